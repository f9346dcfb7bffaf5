//! Who is connected to whom: every address, port and name of the lab, in one place.
//!
//! ```text
//! curl -> HAProxy (TLS, h2 and http/1.1) -> Envoy traffic listener -> application
//!            `- GET /health_check.html  -> health listener (Envoy) or hc (stand-in)
//! ```
//!
//! All ports lie below the ephemeral range, so that no client socket can take one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// Where the balancer listens for clients.
pub(crate) const LB: u16 = 28443;
/// The balancer's runtime API (`show stat`).
pub(crate) const LB_STATS: u16 = 28444;
/// The gateway's traffic listener.
pub(crate) const TRAFFIC: u16 = 28080;
/// The application behind the gateway.
pub(crate) const APP: u16 = 29080;
/// Envoy's admin, as in an Istio gateway.
pub(crate) const ADMIN: u16 = 15000;
/// pilot-agent's own server, as in an Istio gateway.
pub(crate) const AGENT: u16 = 15020;
/// The status listener, as in an Istio gateway; the lab sees Envoy's drain begin here.
pub(crate) const STATUS: u16 = 15021;
/// The health listener of `envoyfilter.yaml`, and of the stand-in in the other modes.
pub(crate) const HEALTH: u16 = 18180;
/// The control listener of `envoyfilter.yaml`.
pub(crate) const CONTROL: u16 = 18181;

/// The name that clients ask for.
pub(crate) const HOST: &str = "example.local";
/// The application's cluster, named as istiod would.
pub(crate) const CLUSTER: &str = "outbound|8080||app.default.svc.cluster.local";

/// The balancer's own source address, for checks and traffic: a prober is told by its address.
pub(crate) const LB_SOURCE: IpAddr = loopback(2);
/// The lab's probe of the balancer path. Each of the lab's probes has an address of its own, so that it is never taken
/// for the balancer and its sockets in TIME-WAIT do not use up the others' ports.
pub(crate) const HEALTH_PROBE: IpAddr = loopback(9);
/// The lab's probe of the readiness path.
pub(crate) const READINESS_PROBE: IpAddr = loopback(10);
/// The lab's probe of Envoy's drain.
pub(crate) const DRAIN_PROBE: IpAddr = loopback(11);
/// The lab's reader of Envoy's admin.
pub(crate) const ADMIN_PROBE: IpAddr = loopback(12);
/// The lab as operator: commands, status, single requests.
pub(crate) const OPERATOR: IpAddr = loopback(13);

/// Loopback answers at once or, when a listener's backlog is full, not at all.
const LISTENS_LIMIT: Duration = Duration::from_secs(1);

const fn loopback(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

/// A port of this machine.
pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::new(loopback(1), port)
}

/// The repository: the folder that holds `envoyfilter.yaml` and `testdata`, from here upwards.
pub(crate) fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("no current folder")?;
    here.ancestors()
        .find(|folder| folder.join("envoyfilter.yaml").is_file() && folder.join("testdata").is_dir())
        .map(Path::to_path_buf)
        .with_context(|| {
            format!("neither {} nor a folder above it holds envoyfilter.yaml and testdata/", here.display())
        })
}

/// Something we build: the environment names it, otherwise it lies in `dist/`.
pub(crate) fn artifact(variable: &str, name: &str) -> Result<PathBuf> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => root()?.join("dist").join(name),
    };
    let path = std::path::absolute(&path)?;
    if !path.is_file() {
        bail!("{} is not there; build it, or name it in {variable}", path.display());
    }
    Ok(path)
}

/// Fills in the `${NAME}`s of a template, those in `more` first, the rest as for the only pod on loopback; a name that nobody
/// knows is an error.
pub(crate) fn fill(template: &str, run_dir: &Path, more: &[(&str, String)]) -> Result<String> {
    let mut text = template.to_owned();
    for (name, value) in more {
        text = text.replace(&placeholder(name), value);
    }
    let ports = [
        ("LB_PORT", LB),
        ("LB_STATS_PORT", LB_STATS),
        ("TRAFFIC_PORT", TRAFFIC),
        ("APP_PORT", APP),
        ("ADMIN_PORT", ADMIN),
        ("AGENT_PORT", AGENT),
        ("STATUS_PORT", STATUS),
        ("HEALTH_PORT", HEALTH),
    ];
    for (name, port) in ports {
        text = text.replace(&placeholder(name), &port.to_string());
    }
    text = text.replace(&placeholder("RUN_DIR"), &run_dir.display().to_string());
    text = text.replace(&placeholder("CLUSTER"), CLUSTER);
    for name in ["POD_INSIDE", "POD_OUTSIDE", "APP_ADDRESS"] {
        text = text.replace(&placeholder(name), &loopback(1).to_string());
    }
    text = text.replace(&placeholder("POD_NAME"), "gw");
    let left = text.lines().filter(|line| !line.trim_start().starts_with('#')).find(|line| line.contains("${"));
    match left {
        Some(line) => bail!("a name in this template line is unknown: {}", line.trim()),
        None => Ok(text),
    }
}

/// Whether somebody listens on a port. One that takes no connection although it does not refuse either is taken.
pub(crate) fn listens(port: u16) -> bool {
    match std::net::TcpStream::connect_timeout(&local(port), LISTENS_LIMIT) {
        Ok(_connected) => true,
        Err(error) => error.kind() == std::io::ErrorKind::TimedOut,
    }
}

/// Ports that a run needs for itself: another gateway on this machine would be measured in its stead. The previous
/// run's programs may still be ending.
pub(crate) async fn ports_are_free() -> Result<()> {
    let mut taken = LB;
    let free = async || {
        let ports = [LB, LB_STATS, TRAFFIC, APP, ADMIN, AGENT, STATUS, HEALTH, CONTROL];
        taken = match ports.into_iter().find(|port| listens(*port)) {
            Some(port) => port,
            None => return Some(()),
        };
        None
    };
    let waited = wait::until("the lab's ports are free", Duration::from_secs(3), free).await;
    waited.with_context(|| format!("port {taken} is taken by another program (`ss -ltnp` names it)"))
}

fn placeholder(name: &str) -> String {
    format!("${{{name}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_the_templates_is_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
        let inter = [
            "LB_ADDRESS",
            "CHECK_PATH",
            "CHECK_PORT",
            "CHECK_INTER_MS",
            "ON_MARKED_DOWN",
            "DISABLE_ON_404",
            "BUFSIZE",
            "REPLAY",
            "REUSE",
            "SERVERS",
        ]
        .map(|name| (name, String::new()));
        for file in ["envoy/bootstrap.yaml", "envoy/traffic-listener.yaml", "haproxy/haproxy.cfg"] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            fill(&text, Path::new("/run"), &inter).unwrap();
        }
    }

    #[test]
    fn an_unknown_placeholder_is_refused() {
        let refused = fill("port ${NOBODY_KNOWS}", Path::new("/run"), &[]).unwrap_err();
        assert!(refused.to_string().contains("NOBODY_KNOWS"));
    }
}
