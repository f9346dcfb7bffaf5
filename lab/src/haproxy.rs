//! HAProxy as the external balancer: configuration, start, and what `show stat` says.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::foreign::HAPROXY;
use crate::network::{Host, Pod, Site};
use crate::process::Process;
use crate::{topology, wait};

/// What a balancer is set up with.
pub(crate) struct Setup<'a> {
    /// Where it listens for clients.
    pub(crate) front: IpAddr,
    /// Where it is, and the source of its checks and its traffic.
    pub(crate) host: Host,
    /// Its servers; the first `running` of them have to be UP before it counts as started.
    pub(crate) servers: &'a [Pod],
    pub(crate) running: usize,
    pub(crate) check: Check,
    /// HAProxy's `inter`.
    pub(crate) inter_ms: u64,
    /// Whether DOWN cuts every session, as in the field; without it a server that is DOWN only gets no new ones.
    pub(crate) shutdown_sessions: bool,
    /// Whether a 404 takes a server out of the balancing and cuts nothing.
    pub(crate) disable_on_404: bool,
}

/// What the balancer asks its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) port: u16,
    pub(crate) path: &'static str,
}

/// A running balancer.
pub(crate) struct Balancer {
    process: Process,
    pub(crate) api: Api,
    /// Those that a reload told to finish what they have.
    leaving: Vec<Process>,
}

impl Balancer {
    /// Starts HAProxy with the topology's configuration and waits until it takes the running gateways for UP.
    pub(crate) async fn start(dir: &Path, setup: &Setup<'_>) -> Result<Self> {
        let path = topology::root()?.join("testdata/haproxy/haproxy.cfg");
        let template = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        std::fs::write(dir.join("haproxy.cfg"), topology::fill(&template, dir, &names(setup))?)?;
        write_certificate(dir)?;
        let site = setup.host.site;
        let started = Process::start("haproxy", command(dir, site), dir);
        let mut process = started.with_context(|| HAPROXY.missing(&HAPROXY.path()))?;
        let api = Api(site);
        // A fresh server counts as UP before its first check; only a check that passed says that the two can talk.
        let passed = async || {
            if let Err(early) = process.assert_running(dir) {
                return Some(Err(early));
            }
            for (number, pod) in setup.servers.iter().enumerate() {
                let server = api.server(&pod.name).await.ok()?;
                let as_wanted = match number < setup.running {
                    true => server.status == "UP" && server.check == "L7OK",
                    // Until its first checks have failed, requests would go to a node without a pod.
                    false => server.status.starts_with("DOWN"),
                };
                if !as_wanted {
                    return None;
                }
            }
            Some(Ok(()))
        };
        wait::until("HAProxy marks the gateway UP", Duration::from_secs(20), passed).await??;
        Ok(Self { process, api, leaving: Vec::new() })
    }

    /// Reloads as init scripts do (`-sf`): a new process takes over the ports and tells the one before to finish what it
    /// has. Returns when the new one answers. It takes every server for UP until its own first check says otherwise.
    pub(crate) async fn reload(&mut self, dir: &Path) -> Result<()> {
        let mut next = command(dir, self.api.0);
        next.args(["-sf", &self.process.id().to_string()]);
        let mut next = Process::start(&format!("haproxy-reload-{}", self.leaving.len() + 1), next, dir)?;
        let pid = format!("Pid: {}", next.id());
        let took_over = async || {
            if let Err(early) = next.assert_running(dir) {
                return Some(Err(early));
            }
            let info = self.api.ask("show info").await.ok()?;
            info.lines().any(|line| line == pid).then_some(Ok(()))
        };
        wait::until("the reloaded HAProxy answers", Duration::from_secs(5), took_over).await??;
        self.leaving.push(std::mem::replace(&mut self.process, next));
        Ok(())
    }
}

fn command(dir: &Path, site: Site) -> Command {
    let mut command = Command::new(HAPROXY.path());
    command.arg("-db").arg("-f").arg(dir.join("haproxy.cfg"));
    site.place(&mut command);
    command
}

fn names(setup: &Setup<'_>) -> Vec<(&'static str, String)> {
    let source = setup.host.address;
    let server = |pod: &Pod| format!("  server {} {} source {source}", pod.name, pod.traffic());
    let on_marked_down = if setup.shutdown_sessions { "on-marked-down shutdown-sessions" } else { "" };
    vec![
        ("LB_ADDRESS", setup.front.to_string()),
        ("CHECK_PATH", setup.check.path.to_owned()),
        ("CHECK_PORT", setup.check.port.to_string()),
        ("CHECK_INTER_MS", setup.inter_ms.to_string()),
        ("ON_MARKED_DOWN", on_marked_down.to_owned()),
        ("DISABLE_ON_404", if setup.disable_on_404 { "http-check disable-on-404" } else { "" }.to_owned()),
        ("SERVERS", setup.servers.iter().map(server).collect::<Vec<_>>().join("\n")),
    ]
}

/// The clients' trust in the balancer.
pub(crate) fn certificate(dir: &Path) -> std::path::PathBuf {
    dir.join("haproxy.crt")
}

/// HAProxy's view of the gateway.
#[derive(Debug, PartialEq)]
pub(crate) struct Server {
    /// `UP`, `UP 1/2`, `NOLB`, `DOWN`...
    pub(crate) status: String,
    /// The last check's result, `L7OK`, `L7STS`...
    pub(crate) check: String,
}

/// HAProxy's runtime API.
#[derive(Clone, Copy, Default)]
pub(crate) struct Api(Site);

impl Api {
    /// A server's line of `show stat`.
    pub(crate) async fn server(self, name: &str) -> Result<Server> {
        let page = self.ask("show stat").await?;
        parse_server(&page, name).with_context(|| format!("`show stat` knows no server {name}"))
    }

    /// One command.
    pub(crate) async fn ask(self, command: &str) -> Result<String> {
        let exchange = async {
            let mut stream = self.0.connect(topology::local(topology::LB_STATS)).await?;
            stream.write_all(format!("{command}\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer)
        };
        tokio::time::timeout(Duration::from_secs(2), exchange).await.context("HAProxy's runtime API is silent")?
    }
}

/// The only gateway on loopback, as the balancer sees it.
pub(crate) async fn server() -> Result<Server> {
    Api::default().server("gw").await
}

/// The first line names the columns; their places differ by version.
fn parse_server(csv: &str, wanted: &str) -> Option<Server> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
    let column = |title: &str| names.iter().position(|name| *name == title);
    let (name, status, check) = (column("svname")?, column("status")?, column("check_status")?);
    let row: Vec<&str> =
        lines.map(|line| line.split(',').collect::<Vec<_>>()).find(|row| row.get(name) == Some(&wanted))?;
    // "* L7OK" while a check is under way.
    let check = row.get(check)?.trim_start_matches("* ");
    Some(Server { status: (*row.get(status)?).to_owned(), check: check.to_owned() })
}

fn write_certificate(dir: &Path) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([topology::HOST.to_owned()])?;
    let (certificate_pem, key_pem) = (made.cert.pem(), made.signing_key.serialize_pem());
    std::fs::write(dir.join("haproxy.pem"), format!("{certificate_pem}{key_pem}"))?;
    std::fs::write(certificate(dir), certificate_pem)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn show_stat_is_read_by_column_names() {
        let csv = "# pxname,svname,status,x,check_status\nhttps,FRONTEND,OPEN,,\nbe,gw,UP 1/2,7,* L7STS\n";
        let server = parse_server(csv, "gw").unwrap();
        assert_eq!(parse_server(csv, "gw2"), None);
        assert_eq!(server, Server { status: "UP 1/2".into(), check: "L7STS".into() });
    }
}
