//! HAProxy as the external balancer: configuration, start, and what `show stat` says.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::process::Command;

use crate::foreign::HAPROXY;
use crate::process::Process;
use crate::{http, topology, wait};

/// A running balancer.
pub(crate) struct Balancer {
    _process: Process,
}

impl Balancer {
    /// Starts HAProxy with the topology's configuration and waits until it takes the gateway for UP.
    pub(crate) async fn start(dir: &Path, check_inter_ms: u64) -> Result<Self> {
        let path = topology::root()?.join("testdata/haproxy/haproxy.cfg");
        let template = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let config = topology::fill(&template, dir, &[("CHECK_INTER_MS", check_inter_ms.to_string())])?;
        std::fs::write(dir.join("haproxy.cfg"), config)?;
        write_certificate(dir)?;
        let mut command = Command::new(HAPROXY.path());
        command.arg("-db").arg("-f").arg(dir.join("haproxy.cfg"));
        let mut process = Process::start("haproxy", command, dir).with_context(|| HAPROXY.missing(&HAPROXY.path()))?;
        // A fresh server counts as UP before its first check; only a check that passed says that the two can talk.
        let passed = async || {
            if let Err(early) = process.assert_running(dir) {
                return Some(Err(early));
            }
            let server = server().await.ok()?;
            (server.status == "UP" && server.check == "L7OK").then_some(Ok(()))
        };
        wait::until("HAProxy marks the gateway UP", Duration::from_secs(20), passed).await??;
        Ok(Self { _process: process })
    }
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

/// Asks the runtime API for the gateway's line of `show stat`.
pub(crate) async fn server() -> Result<Server> {
    parse_server(&ask("show stat").await?).ok_or_else(|| anyhow!("`show stat` knows no server gw"))
}

/// One command of the runtime API.
pub(crate) async fn ask(command: &str) -> Result<String> {
    let exchange = async {
        let mut stream = http::connect(TcpSocket::new_v4()?, topology::local(topology::LB_STATS)).await?;
        stream.write_all(format!("{command}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await.context("HAProxy's runtime API is silent")?
}

/// The first line names the columns; their places differ by version.
fn parse_server(csv: &str) -> Option<Server> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
    let column = |wanted: &str| names.iter().position(|name| *name == wanted);
    let (name, status, check) = (column("svname")?, column("status")?, column("check_status")?);
    let row: Vec<&str> =
        lines.map(|line| line.split(',').collect::<Vec<_>>()).find(|row| row.get(name) == Some(&"gw"))?;
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
        let server = parse_server(csv).unwrap();
        assert_eq!(server, Server { status: "UP 1/2".into(), check: "L7STS".into() });
    }
}
