//! wrk and h2load.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::process::Command;

use super::gateway::Listener;
use crate::process::{Process, last_words};
use crate::topology;

/// Connections of a load over HTTP/1.1; over HTTP/2 a quarter of them with as many streams in all.
const CONNECTIONS: u32 = 32;
const H2_CONNECTIONS: u32 = 8;
/// A load that has not ended by then hangs: the slowest has a few thousand requests under an emulator.
const LIMIT: Duration = Duration::from_secs(120);

/// What a load speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    #[serde(rename = "http/1.1")]
    H1,
    /// HTTP/2 without TLS.
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

    /// The command that loads `path` of a port for about `time`: wrk or h2load.
    pub(crate) fn command(self, port: u16, path: &str, time: Duration) -> Command {
        let url = format!("http://{}{path}", topology::local(port));
        // Both take whole seconds.
        let seconds = time.as_secs().max(1);
        match self {
            Self::H1 => {
                let mut command = Command::new(WRK.name);
                command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), &url]);
                command
            }
            Self::H2 => {
                let mut command = self.h2load();
                command.arg(format!("-D{seconds}")).arg(url);
                command
            }
        }
    }

    /// h2load in this protocol, without what to load and for how long.
    fn h2load(self) -> Command {
        let mut command = Command::new(H2LOAD.name);
        match self {
            Self::H1 => command.args(["--h1", "-t1", "-m1", &format!("-c{CONNECTIONS}")]),
            Self::H2 => {
                let streams = CONNECTIONS / H2_CONNECTIONS;
                command.args(["-t1", &format!("-m{streams}"), &format!("-c{H2_CONNECTIONS}")])
            }
        };
        command
    }
}

/// A program that loads, and Debian's package of it.
#[derive(Clone, Copy)]
pub(crate) struct Loader {
    name: &'static str,
    package: &'static str,
}

pub(crate) const WRK: Loader = Loader { name: "wrk", package: "wrk" };
pub(crate) const H2LOAD: Loader = Loader { name: "h2load", package: "nghttp2-client" };

/// Says all at once which programs are missing.
pub(crate) fn are_there(loaders: &[Loader]) -> Result<()> {
    let missing: Vec<String> = loaders
        .iter()
        .filter(|loader| {
            let mut probe = std::process::Command::new(loader.name);
            probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // wrk answers its own --version with an exit code of 1.
            probe.status().is_err()
        })
        .map(|loader| format!("{} (Debian: {})", loader.name, loader.package))
        .collect();
    ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
    Ok(())
}

/// Sends `requests` requests to a listener, as fast as they are answered; every answer must be a 200.
pub(crate) async fn run(protocol: Protocol, listener: Listener, requests: u64) -> Result<()> {
    let mut command = protocol.h2load();
    command.arg(format!("-n{requests}")).arg(listener.url());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(H2LOAD.name, command)?;
    let pipe = process.child().stdout.take().context("no pipe")?;
    let said = tokio::spawn(async move {
        let (mut pipe, mut text) = (pipe, String::new());
        tokio::io::AsyncReadExt::read_to_string(&mut pipe, &mut text).await.map(|_| text)
    });
    let status = process.exit(LIMIT).await;
    let said = said.await??;
    let status = status.with_context(|| format!("h2load did not end within {LIMIT:?}"))?;
    ensure!(status.success(), "h2load ended with {status}: {}", last_words(&said));
    let all = format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx");
    ensure!(said.lines().any(|line| line == all), "h2load had not {requests} good answers: {}", last_words(&said));
    Ok(())
}
