//! Network namespaces: a switch, the machines on it, and their removal.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use super::{Host, PODS_MAX, Site, loopback};
use crate::topology;

/// A switch and the machines on it, each a network namespace of its own; none of them sees any other network.
pub(crate) struct Namespaces {
    prefix: String,
    machines: Vec<(String, Host)>,
}

/// Last bytes of the machines' addresses. The lab's probes have those that they have on loopback.
pub(super) const MACHINES: [(&str, u8); 4] = [("client", 3), ("app", 4), ("lb", 5), ("lab", 8)];
pub(super) const PROBES: [IpAddr; 3] = [topology::HEALTH_PROBE, topology::READINESS_PROBE, topology::DRAIN_PROBE];

impl Namespaces {
    pub(super) fn lay() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "network namespaces need root; `--ground loopback` does without, but captures nothing"
        );
        sweep();
        let mut namespaces = Self { prefix: format!("{PREFIX}{}-", std::process::id()), machines: Vec::new() };
        let switch = namespaces.add("switch")?;
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        let pods = (0..PODS_MAX).map(|number| (pod_machine(number), 21 + number));
        for (machine, last) in MACHINES.map(|(name, last)| (name.to_owned(), last)).into_iter().chain(pods) {
            namespaces.connect(&switch, &machine, last)?;
        }
        let lab = namespaces.name("lab");
        for probe in PROBES.into_iter().chain([topology::OPERATOR]) {
            if let IpAddr::V4(probe) = probe {
                ip(&["-n", &lab, "address", "add", &format!("{}/24", subnet(probe.octets()[3])), "dev", "eth0"])?;
            }
        }
        Ok(namespaces)
    }

    /// Connects a new machine to the switch.
    fn connect(&mut self, switch: &str, machine: &str, last: u8) -> Result<()> {
        let namespace = self.add(machine)?;
        let port = format!("p-{machine}");
        ip(&["-n", switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
        ip(&["-n", switch, "link", "set", &port, "master", "br0", "up"])?;
        ip(&["-n", &namespace, "address", "add", &format!("{}/24", subnet(last)), "dev", "eth0"])?;
        ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        let file = File::open(path(&namespace)).with_context(|| format!("namespace {namespace}"))?;
        let host = Host { site: Site(Some(Box::leak(Box::new(file)))), address: subnet(last) };
        self.machines.push((machine.to_owned(), host));
        Ok(())
    }

    fn add(&self, machine: &str) -> Result<String> {
        let name = self.name(machine);
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(name)
    }

    fn name(&self, machine: &str) -> String {
        format!("{}{machine}", self.prefix)
    }

    pub(super) fn host(&self, machine: &str) -> Host {
        let known = self.machines.iter().find(|(name, _)| name == machine);
        // Every machine that is asked for was laid.
        known.map_or_else(|| Host { site: Site::default(), address: loopback(1) }, |(_, host)| *host)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in named(&self.prefix) {
            // Left behind, it is swept by the next run.
            let _left = ip(&["netns", "delete", &namespace]);
        }
    }
}

/// How the lab's namespaces are named: this, the process id, the machine.
const PREFIX: &str = "softclose-lab-";

/// Removes the namespaces of labs that were killed.
fn sweep() {
    for namespace in named(PREFIX) {
        let owner = namespace.trim_start_matches(PREFIX).split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            // Another lab may be sweeping as well.
            let _swept = ip(&["netns", "delete", &namespace]);
        }
    }
}

fn named(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with(prefix)).collect()
}

fn path(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

pub(super) fn pod_machine(number: u8) -> String {
    format!("pod{}", number + 1)
}

/// A network that documentation examples use (RFC 5737), so nobody's own.
pub(super) fn subnet(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn ip(arguments: &[&str]) -> Result<()> {
    let mut command = std::process::Command::new("ip");
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().context("cannot run `ip` (Debian: iproute2)")?;
    if !output.status.success() {
        bail!("`ip {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
