//! The stand-in for Istio's pilot-agent: a process of its own that runs Envoy as its child and ends it as pilot-agent
//! does on SIGTERM. Constants and order are those of istio's pkg/envoy/agent.go, proxy.go and admin.go (1.30).

use std::convert::Infallible;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::envoy::Admin;
use crate::foreign::ENVOY;
use crate::http::Client;
use crate::process::{Process, dies_with_us, log_ends};
use crate::{topology, wait};

/// How long Envoy may take to come up; V8 compiles the module once for each role.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of the hidden subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Envoy's bootstrap
    #[arg(long)]
    config: PathBuf,
    /// Worker threads
    #[arg(long, default_value_t = 2)]
    concurrency: u16,
    /// Istio's `terminationDrainDuration` (5000 by default there): SIGTERM to SIGKILL of Envoy
    #[arg(long, default_value_t = 5000)]
    termination_drain_ms: u64,
    /// Istio's `drainDuration`
    #[arg(long, default_value_t = 45)]
    drain_time_s: u32,
}

/// The running agent, seen from the lab. Envoy is in its process group.
pub(crate) struct Agent {
    pub(crate) process: Process,
}

impl Agent {
    /// Starts agent and Envoy and waits until Envoy has set up every listener.
    pub(crate) async fn start(
        dir: &Path,
        bootstrap: &Path,
        concurrency: u16,
        termination_drain: Duration,
        drain_time: Duration,
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
        command.arg("pilot-agent").arg("--config").arg(bootstrap);
        command.args(["--concurrency", &concurrency.to_string()]);
        command.args(["--termination-drain-ms", &termination_drain.as_millis().to_string()]);
        command.args(["--drain-time-s", &drain_time.as_secs().to_string()]);
        // The agent runs in another folder: a relative path would not hold there.
        command.env(ENVOY.variable, ENVOY.path()).current_dir(dir);
        let mut process = Process::start("pilot-agent", command, dir)?;
        let admin = Admin::new();
        let up = async || match process.assert_running(dir) {
            Err(early) => Some(Err(early)),
            Ok(()) => admin.ready().await.then_some(Ok(())),
        };
        let waited = wait::until("Envoy is LIVE", START_LIMIT, up).await;
        waited.flatten().with_context(|| format!("Envoy did not start, {}", log_ends(dir, "envoy")))?;
        Ok(Self { process })
    }
}

/// What the agent's server hears.
enum Call {
    Drain,
    Quit,
}

/// The agent process itself.
pub(crate) async fn run(args: Args) -> Result<()> {
    // A gateway that is started again in the same folder adds to what the one before has said.
    let log = File::options().create(true).append(true).open("envoy.log").context("cannot write envoy.log")?;
    let mut command = Command::new(ENVOY.path());
    command
        .arg("-c")
        .arg(&args.config)
        .args([
            "--drain-time-s",
            &args.drain_time_s.to_string(),
            "--drain-strategy",
            "immediate",
            "--disable-hot-restart",
        ])
        .args(["--file-flush-interval-msec", "1000", "--local-address-ip-version", "v4"])
        .args(["--concurrency", &args.concurrency.to_string()])
        .args(["--log-level", "warning"])
        // Not `--log-path`: that file is flushed on a timer, and SIGKILL takes the last lines with it.
        .stderr(log)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    dies_with_us(&mut command);
    let mut envoy = command.spawn().with_context(|| ENVOY.missing(&ENVOY.path()))?;
    say("envoy started");

    let (calls, mut heard) = mpsc::unbounded_channel();
    let server = serve(calls).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    // pilot-agent's skipDrain: after /drain or /quitquitquit it does not drain again.
    let mut skip_drain = false;
    loop {
        tokio::select! {
            status = envoy.wait() => {
                say(&format!("envoy ended by itself: {}", status?));
                return Ok(());
            }
            call = heard.recv() => match call {
                Some(Call::Drain) => {
                    skip_drain = true;
                    // Only logged when it fails, as in the original.
                    say(&format!("/drain: drain_listeners?graceful&skip_exit: {}", drain("graceful&skip_exit").await));
                }
                Some(Call::Quit) => {
                    skip_drain = true;
                    say("/quitquitquit");
                    break;
                }
                None => break,
            },
            _signal = terminate.recv() => {
                say("SIGTERM");
                break;
            }
        }
    }
    // The status server goes first.
    drop(server);
    if skip_drain {
        say("already drained, exiting immediately");
    } else {
        say(&format!("drain_listeners?graceful: {}", drain("graceful").await));
        let limit = Duration::from_millis(args.termination_drain_ms);
        let _still_running = tokio::time::timeout(limit, envoy.wait()).await;
    }
    // pilot-agent ends Envoy with SIGKILL.
    envoy.kill().await?;
    say("envoy killed");
    Ok(())
}

/// Serves `POST /drain` and `POST /quitquitquit`, to loopback only.
async fn serve(calls: mpsc::UnboundedSender<Call>) -> Result<crate::http::AbortOnDrop<()>> {
    let listener = TcpListener::bind(topology::local(topology::AGENT)).await.context("the agent cannot listen")?;
    let task = tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            let calls = calls.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let post = request.method() == Method::POST;
                let (status, call) = match (request.uri().path(), post) {
                    ("/drain", true) => (200, Some(Call::Drain)),
                    ("/quitquitquit", true) => (200, Some(Call::Quit)),
                    ("/drain" | "/quitquitquit", false) => (405, None),
                    (_, _) => (404, None),
                };
                // The answer does not wait for the drain; the original answers first as well.
                if let Some(call) = call {
                    // The other end is gone only when the agent is ending anyway.
                    let _ending = calls.send(call);
                }
                let mut response = Response::new(Full::new(Bytes::from_static(b"OK")));
                *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move {
                let _closed = connection.await;
            });
        }
    });
    Ok(crate::http::AbortOnDrop(task))
}

async fn drain(form: &str) -> String {
    let admin = Client::new(topology::local(topology::AGENT).ip(), Duration::from_secs(2));
    match admin.post(topology::local(topology::ADMIN), &format!("/drain_listeners?{form}")).await {
        Ok(answer) => format!("status {}", answer.status),
        Err(failure) => failure.to_string(),
    }
}

fn say(what: &str) {
    println!("pilot-agent: {what}");
}
