//! One more HAProxy for a case: in front of the case's gateway, with a source, a pace of checks and habits of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::process::Command;

use crate::cases::scene::LIMIT;
use crate::foreign::HAPROXY;
use crate::haproxy::{Api, Server};
use crate::http::{self, AbortOnDrop, Client};
use crate::process::Process;
use crate::{backend, topology, wait};

/// The pace of looking at a balancer's state.
const LOOK: Duration = Duration::from_millis(10);

/// A running HAProxy. Dropping it ends it at once.
pub(crate) struct Balancer {
    process: Process,
    api: Api,
    /// Where it listens for clients.
    port: u16,
    /// Where its checks come from.
    pub(crate) source: IpAddr,
}

impl Balancer {
    /// Starts the balancer of that number, 0 to 7, and waits until it answers. `backend` are lines of its backend, `server` is what
    /// its server line says about checks.
    pub(crate) async fn start(dir: &Path, number: u8, backend: &str, server: &str) -> Result<Self> {
        HAPROXY.starts().await?;
        let (port, stats) = (FIRST_PORT + 2 * u16::from(number), FIRST_PORT + 2 * u16::from(number) + 1);
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, FIRST_SOURCE + number));
        let names = [
            ("CASE_PORT", port.to_string()),
            ("CASE_STATS_PORT", stats.to_string()),
            ("CASE_BACKEND", backend.replace('\n', "\n  ")),
            ("CASE_SERVER", server.to_owned()),
            ("CASE_SOURCE", source.to_string()),
        ];
        let path = topology::root()?.join("testdata/haproxy/case.cfg");
        let template = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let config = dir.join(format!("balancer-{number}.cfg"));
        std::fs::write(&config, topology::fill(&template, dir, &names)?)?;
        let mut command = Command::new(HAPROXY.path());
        command.arg("-db").arg("-f").arg(&config);
        let mut process = Process::start(&format!("balancer-{number}"), command, dir)?;
        let api = Api::at(stats);
        let answers = async || match process.assert_running(dir) {
            Err(early) => Some(Err(early)),
            Ok(()) => api.server("gw").await.ok().map(Ok),
        };
        wait::until("the balancer answers", LIMIT, answers).await??;
        Ok(Self { process, api, port, source })
    }

    /// Waits until it has taken the gateway for UP by a check of its own.
    pub(crate) async fn up(&self) -> Result<()> {
        let up = async || self.server().await.ok().filter(|server| server.status == "UP" && server.check == "L7OK");
        wait::until("the balancer takes the gateway for UP", LIMIT, up).await?;
        Ok(())
    }

    pub(crate) async fn server(&self) -> Result<Server> {
        self.api.server("gw").await
    }

    /// One command at its runtime API.
    pub(crate) async fn command(&self, command: &str) -> Result<()> {
        self.api.ask(command).await.map(drop)
    }

    /// Waits until its word for the gateway begins so; when that was seen.
    pub(crate) async fn says(&self, word: &str) -> Result<Instant> {
        let seen = async || self.server().await.ok().filter(|server| server.status.starts_with(word));
        wait::until(&format!("the balancer says {word}"), LIMIT, seen).await?;
        Ok(Instant::now())
    }

    /// Its words for the gateway during `time`, each once.
    pub(crate) async fn words_during(&self, time: Duration) -> Vec<String> {
        let (ends, mut words) = (Instant::now() + time, Vec::<String>::new());
        while Instant::now() < ends {
            let word = self.server().await.map_or_else(|error| error.to_string(), |server| server.status);
            if words.last() != Some(&word) {
                words.push(word);
            }
            wait::pace_until(Instant::now() + LOOK).await;
        }
        words
    }

    /// Ends it without a word, as a machine that goes dark.
    pub(crate) fn stop(mut self) {
        self.process.kill();
    }

    pub(crate) fn at(&self) -> SocketAddr {
        topology::local(self.port)
    }

    /// A request through it, under way.
    pub(crate) fn ask(&self, path: &str) -> Asked {
        let (at, path) = (self.at(), path.to_owned());
        Asked(AbortOnDrop(tokio::spawn(async move {
            let client = Client::new(topology::OPERATOR, Duration::from_secs(60));
            match client.get(at, &path).await {
                Ok(answer)
                    if answer.status == 200 && Some(answer.body.len() as u64) == backend::expected_bytes(&path) =>
                {
                    "whole".to_owned()
                }
                Ok(answer) => format!("{} with {} bytes", answer.status, answer.body.len()),
                Err(failure) => failure.to_string(),
            }
        })))
    }

    /// Reads an answer through it no faster than so many bytes a second; how many bytes of it came, and within how many seconds.
    pub(crate) async fn read_slowly(&self, path: &str, bytes_a_second: usize) -> Result<(u64, f64)> {
        const STEPS_A_SECOND: u32 = 50;
        /// Small, so that the answer waits where the case is about: in the gateway and in the balancer.
        const BUFFER: u32 = 64 << 10;
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(BUFFER)?;
        let mut stream = http::connect(socket, self.at()).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await?;
        let (began, mut all) = (Instant::now(), Vec::new());
        let mut piece = vec![0; bytes_a_second / STEPS_A_SECOND as usize];
        for step in 1.. {
            wait::pace_until(began + Duration::from_secs(1) / STEPS_A_SECOND * step).await;
            match stream.read(&mut piece).await {
                // A reset ends it as well; what came is what counts.
                Ok(0) | Err(_) => break,
                Ok(read) => all.extend_from_slice(piece.get(..read).unwrap_or_default()),
            }
        }
        let head = all.windows(4).position(|four| four == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
        Ok(((all.len() - head) as u64, began.elapsed().as_secs_f64()))
    }
}

/// A request under way.
pub(crate) struct Asked(AbortOnDrop<String>);

impl Asked {
    /// What became of it: `whole`, or why not.
    pub(crate) async fn fate(mut self) -> String {
        (&mut self.0.0).await.unwrap_or_else(|error| error.to_string())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.0.is_finished()
    }
}

/// Two ports for each balancer of a case: for clients and for its runtime API.
const FIRST_PORT: u16 = 28450;

/// The last byte of the first one's address; none of the lab's probes has any of these.
const FIRST_SOURCE: u8 = 50;
