//! Real `curl` children as clients: one request each, judged by status, exit code and every byte of the body.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Command;

use crate::foreign::CURL;
use crate::network::Network;
use crate::process::Process;
use crate::timeline::Clock;
use crate::{backend, haproxy, topology};

/// The protocol between client and balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    H1,
    H2,
}

/// What became of one request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) id: String,
    pub(crate) protocol: Protocol,
    pub(crate) path: String,
    pub(crate) started_s: f64,
    /// When curl says that it was over.
    pub(crate) over_s: f64,
    /// When curl itself had ended: not earlier than `over_s`.
    pub(crate) ended_s: f64,
    /// 0 if there was no answer.
    pub(crate) status: u16,
    /// As curl measured it.
    pub(crate) seconds: f64,
    pub(crate) curl_exit: i32,
    pub(crate) curl_error: String,
    pub(crate) bytes: u64,
    pub(crate) expected_bytes: u64,
}

impl Outcome {
    /// Answered, and whole to the last byte. Neither the status nor curl's exit code alone can say so: a cut h2 stream
    /// may end cleanly.
    pub(crate) fn whole(&self) -> bool {
        self.status == 200 && self.curl_exit == 0 && self.bytes == self.expected_bytes
    }

    /// Bytes of the application's answer; an error page of the balancer's is none of it.
    pub(crate) fn answer_bytes(&self) -> u64 {
        if self.status == 200 { self.bytes } else { 0 }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fate = if self.whole() { "whole" } else { "CUT" };
        write!(f, "client {}: status {} after {:.2} s, {fate}", self.id, self.status, self.seconds)
    }
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H1 => "h1",
            Self::H2 => "h2",
        }
    }

    /// What makes curl speak it.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::H1 => "--http1.1",
            Self::H2 => "--http2",
        }
    }
}

/// A request under way.
pub(crate) struct Client {
    process: Process,
    id: String,
    protocol: Protocol,
    path: String,
    started_s: f64,
}

impl Client {
    /// Starts one request through the balancer.
    pub(crate) fn start(
        network: &Network,
        dir: &Path,
        id: &str,
        protocol: Protocol,
        path: &str,
        limit: Duration,
        clock: Clock,
    ) -> Result<Self> {
        let (host, port) = (topology::HOST, topology::LB);
        let mut command = Command::new(CURL.path());
        command
            // The user's ~/.curlrc and proxy settings are not part of the experiment.
            .args(["--disable", "--noproxy", "*", "--silent", "--show-error", protocol.flag()])
            .arg("--cacert")
            .arg(haproxy::certificate(dir))
            .args(["--resolve", &format!("{host}:{port}:{}", network.front())])
            .args(["--max-time", &limit.as_secs_f64().to_string()])
            .args(["--header", &format!("{}: {id}", backend::REQUEST_ID)])
            .arg("--output")
            .arg(dir.join(format!("client-{id}.body")))
            .args(["--write-out", "%{json}\n"])
            .arg(format!("https://{host}:{port}{path}"));
        network.clients().site.place(&mut command);
        let started_s = clock.now();
        let process = Process::start(&format!("client-{id}"), command, dir)?;
        Ok(Self { process, id: id.to_owned(), protocol, path: path.to_owned(), started_s })
    }

    /// Waits for its end.
    pub(crate) async fn outcome(mut self, dir: &Path, limit: Duration, clock: Clock) -> Result<Outcome> {
        let status = self.process.exit(limit).await.with_context(|| format!("curl {} did not end", self.id))?;
        let ended_s = clock.now();
        let log = std::fs::read_to_string(dir.join(format!("client-{}.log", self.id)))?;
        let report: Value = log.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        let number = |name: &str| report.get(name).and_then(Value::as_f64).unwrap_or_default();
        let seconds = number("time_total");
        Ok(Outcome {
            status: number("http_code") as u16,
            seconds,
            curl_exit: status.code().unwrap_or(-1),
            curl_error: report.get("errormsg").and_then(Value::as_str).unwrap_or_default().to_owned(),
            bytes: number("size_download") as u64,
            expected_bytes: backend::expected_bytes(&self.path).context("the application has no such answer")?,
            started_s: self.started_s,
            over_s: (self.started_s + seconds).min(ended_s),
            ended_s,
            id: self.id,
            protocol: self.protocol,
            path: self.path,
        })
    }
}
