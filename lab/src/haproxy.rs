//! HAProxy as the external balancer: configuration, start, and what `show stat` says.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
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
    pub(crate) habits: Habits,
    /// Whether checks begin with a PROXY header.
    pub(crate) check_send_proxy: bool,
}

/// What a balancer does with a server that leaves, and with a request that it could not place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Habits {
    /// Whether DOWN cuts every session, as in the field; without it a server that is DOWN only gets no new ones.
    pub(crate) shutdown_sessions: bool,
    /// Whether a 404 takes a server out of the balancing and cuts nothing.
    pub(crate) disable_on_404: bool,
    /// Whether a request that was answered 425 is sent to another server.
    pub(crate) replay: Option<Replay>,
    pub(crate) reuse: Reuse,
}

/// How large a request may be that is sent again: all of it has to be in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Replay {
    /// HAProxy's own `tune.bufsize`, 16384.
    DefaultBuffer,
    /// `tune.bufsize 131072`: a request of 64 KiB fits.
    LargeBuffer,
    /// The same, but a request whose connection ended before any answer is not sent again.
    AnsweredOnly,
}

impl Replay {
    fn buffer(self) -> &'static str {
        match self {
            Self::DefaultBuffer => "",
            Self::LargeBuffer | Self::AnsweredOnly => "tune.bufsize 131072",
        }
    }

    /// Waits for the whole request, so that there is something to send again, and sends it again to another server.
    fn lines(self) -> String {
        let retried = match self {
            Self::DefaultBuffer | Self::LargeBuffer => "conn-failure empty-response 425",
            Self::AnsweredOnly => "conn-failure 425",
        };
        format!("option http-buffer-request\n  retry-on {retried}\n  option redispatch 1")
    }
}

/// HAProxy's `http-reuse`: when a server's idle connection carries another client's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reuse {
    /// HAProxy's default: never a client's first request
    #[default]
    Safe,
    Always,
}

impl Reuse {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Always => "always",
        }
    }
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
        let api = Api { site, ..Api::default() };
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
        let mut next = command(dir, self.api.site);
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
    let proxy = if setup.check_send_proxy { " check-send-proxy" } else { "" };
    let server = |pod: &Pod| format!("  server {} {} source {source}{proxy}", pod.name, pod.traffic());
    let habits = setup.habits;
    let on_marked_down = if habits.shutdown_sessions { "on-marked-down shutdown-sessions" } else { "" };
    vec![
        ("LB_ADDRESS", setup.front.to_string()),
        ("CHECK_PATH", setup.check.path.to_owned()),
        ("CHECK_PORT", setup.check.port.to_string()),
        ("CHECK_INTER_MS", setup.inter_ms.to_string()),
        ("ON_MARKED_DOWN", on_marked_down.to_owned()),
        ("DISABLE_ON_404", if habits.disable_on_404 { "http-check disable-on-404" } else { "" }.to_owned()),
        ("BUFSIZE", habits.replay.map_or("", Replay::buffer).to_owned()),
        ("REPLAY", habits.replay.map(Replay::lines).unwrap_or_default()),
        ("REUSE", habits.reuse.name().to_owned()),
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
#[derive(Clone, Copy)]
pub(crate) struct Api {
    site: Site,
    port: u16,
}

impl Default for Api {
    fn default() -> Self {
        Self { site: Site::default(), port: topology::LB_STATS }
    }
}

impl Api {
    /// Of another HAProxy on this machine.
    pub(crate) fn at(port: u16) -> Self {
        Self { port, ..Self::default() }
    }

    /// A server's line of `show stat`.
    pub(crate) async fn server(self, name: &str) -> Result<Server> {
        let page = self.ask("show stat").await?;
        parse_server(&page, name).with_context(|| format!("`show stat` knows no server {name}"))
    }

    /// How often the balancer has sent a request again, and how often to another server.
    pub(crate) async fn retries(self) -> Result<Retries> {
        parse_retries(&self.ask("show stat").await?).context("`show stat` counts no retries")
    }

    /// One command.
    pub(crate) async fn ask(self, command: &str) -> Result<String> {
        let exchange = async {
            let mut stream = self.site.connect(topology::local(self.port)).await?;
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

/// What a balancer did again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retries {
    pub(crate) retries: u64,
    pub(crate) redispatches: u64,
}

fn parse_server(csv: &str, wanted: &str) -> Option<Server> {
    let [status, check] = fields(csv, wanted, ["status", "check_status"])?;
    // "* L7OK" while a check is under way.
    Some(Server { status: status.to_owned(), check: check.trim_start_matches("* ").to_owned() })
}

fn parse_retries(csv: &str) -> Option<Retries> {
    let [retries, redispatches] = fields(csv, "BACKEND", ["wretr", "wredis"])?;
    Some(Retries { retries: retries.parse().ok()?, redispatches: redispatches.parse().ok()? })
}

/// The first line names the columns; their places differ by version.
fn fields<'a, const N: usize>(csv: &'a str, wanted: &str, titles: [&str; N]) -> Option<[&'a str; N]> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
    let column = |title: &str| names.iter().position(|name| *name == title);
    let name = column("svname")?;
    let row: Vec<&str> =
        lines.map(|line| line.split(',').collect::<Vec<_>>()).find(|row| row.get(name) == Some(&wanted))?;
    let found: Vec<&str> = titles.iter().map(|title| row.get(column(title)?).copied()).collect::<Option<_>>()?;
    found.try_into().ok()
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

    #[test]
    fn retries_are_those_of_the_backend_as_a_whole() {
        let csv = "# pxname,svname,wretr,wredis\nhttps,FRONTEND,,\nbe,gw,3,1\nbe,BACKEND,7,2\n";
        assert_eq!(parse_retries(csv), Some(Retries { retries: 7, redispatches: 2 }));
        assert_eq!(parse_retries("# svname,wretr\nBACKEND,7\n"), None);
    }
}
