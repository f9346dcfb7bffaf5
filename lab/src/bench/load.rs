//! wrk and h2load.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tokio::process::Command;

use crate::process::{Process, last_words};
use crate::topology;

/// Connections of a load over HTTP/1.1; over HTTP/2 a quarter of them with as many streams in all.
const CONNECTIONS: u32 = 32;
const H2_CONNECTIONS: u32 = 8;

/// What a load speaks, and by which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Protocol {
    /// HTTP/1.1, by wrk.
    #[serde(rename = "http/1.1")]
    H1,
    /// HTTP/2 without TLS, by h2load.
    #[serde(rename = "h2")]
    H2,
}

impl Protocol {
    pub(crate) const ALL: [Self; 2] = [Self::H1, Self::H2];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H1 => "http/1.1",
            Self::H2 => "h2",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::H1 => "wrk",
            Self::H2 => "h2load",
        }
    }

    /// The command that loads `path` of a port for about `time`.
    pub(crate) fn command(self, port: u16, path: &str, time: Duration) -> Command {
        let url = format!("http://{}{path}", topology::local(port));
        // Both take whole seconds.
        let seconds = time.as_secs().max(1);
        let mut command = Command::new(self.program());
        match self {
            Self::H1 => command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), &url]),
            Self::H2 => {
                let streams = CONNECTIONS / H2_CONNECTIONS;
                let shape = [format!("-c{H2_CONNECTIONS}"), format!("-m{streams}"), format!("-D{seconds}")];
                command.arg("-t1").args(shape).arg(url)
            }
        };
        command
    }
}

/// Says all at once which programs are missing.
pub(crate) fn tools_are_there() -> Result<()> {
    let missing: Vec<String> = Protocol::ALL
        .iter()
        .filter(|protocol| {
            let mut probe = std::process::Command::new(protocol.program());
            probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // wrk answers its own --version with an exit code of 1.
            probe.status().is_err()
        })
        .map(|protocol| format!("{} ({})", protocol.program(), package(*protocol)))
        .collect();
    ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
    Ok(())
}

/// Loads a port for about `time`; every answer must be a 200.
pub(crate) async fn run(protocol: Protocol, port: u16, time: Duration) -> Result<()> {
    let mut command = protocol.command(port, "/fast", time);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(protocol.program(), command)?;
    let pipe = process.child().stdout.take().context("no pipe")?;
    let said = tokio::spawn(async move {
        let (mut pipe, mut text) = (pipe, String::new());
        tokio::io::AsyncReadExt::read_to_string(&mut pipe, &mut text).await.map(|_| text)
    });
    let status = process.exit(time + Duration::from_secs(30)).await;
    let said = said.await??;
    match (status, protocol) {
        (Some(status), _) if !status.success() => {
            bail!("{} ended with {status}: {}", protocol.program(), last_words(&said))
        }
        (None, _) => bail!("{} did not end", protocol.program()),
        (Some(_), Protocol::H1) => {
            let bad = said.lines().find(|line| line.contains("Non-2xx") || line.contains("Socket errors"));
            ensure!(bad.is_none(), "wrk: {}", bad.unwrap_or_default().trim());
        }
        (Some(_), Protocol::H2) => {
            let statuses =
                said.lines().find(|line| line.starts_with("status codes:")).context("h2load said nothing")?;
            ensure!(statuses.contains(" 0 3xx, 0 4xx, 0 5xx"), "h2load: {statuses}");
        }
    }
    Ok(())
}

fn package(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::H1 => "Debian: wrk",
        Protocol::H2 => "Debian: nghttp2-client",
    }
}
