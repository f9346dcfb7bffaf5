//! The stand-in for Istio's pilot-agent: a process of its own that runs Envoy as its child and ends it as pilot-agent
//! does on SIGTERM. Constants and order are those of istio's pkg/envoy/agent.go, proxy.go and admin.go (1.30).

use std::convert::Infallible;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
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
use crate::network::Pod;
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
    /// Istio's `EXIT_ON_ZERO_ACTIVE_CONNECTIONS`, with its `MINIMUM_DRAIN_DURATION` in milliseconds
    #[arg(long)]
    exit_on_zero_after_ms: Option<u64>,
    /// Where the pod's own programs find each other
    #[arg(long, default_value = "127.0.0.1")]
    inside: IpAddr,
}

/// How an agent is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Envoy's worker threads.
    pub(crate) concurrency: u16,
    pub(crate) exit: Exit,
    /// Envoy's `--drain-time-s`.
    pub(crate) drain_time: Duration,
}

/// How the agent ends Envoy on SIGTERM, unless it was told before that all is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Drains for so long, then kills: Istio's default, with its `terminationDrainDuration`.
    After(Duration),
    /// Drains for so long (`MINIMUM_DRAIN_DURATION`), then until no connection is left: `EXIT_ON_ZERO_ACTIVE_CONNECTIONS`.
    OnZeroConnections(Duration),
}

/// The running agent, seen from the lab. Envoy is in its process group.
pub(crate) struct Agent {
    pub(crate) process: Process,
}

impl Agent {
    /// Starts agent and Envoy and waits until Envoy has set up every listener.
    pub(crate) async fn start(dir: &Path, bootstrap: &Path, pod: &Pod, settings: Settings) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
        command.arg("pilot-agent").arg("--config").arg(bootstrap);
        command.args(["--concurrency", &settings.concurrency.to_string()]);
        match settings.exit {
            Exit::After(drain) => command.args(["--termination-drain-ms", &drain.as_millis().to_string()]),
            Exit::OnZeroConnections(least) => command.args(["--exit-on-zero-after-ms", &least.as_millis().to_string()]),
        };
        command.args(["--drain-time-s", &settings.drain_time.as_secs().to_string()]);
        command.args(["--inside", &pod.inside.to_string()]);
        pod.site.place(&mut command);
        // The agent runs in another folder: a relative path would not hold there.
        command.env(ENVOY.variable, ENVOY.path()).current_dir(dir);
        let mut process = Process::start("pilot-agent", command, dir)?;
        let admin = Admin::of(pod);
        let up = async || match process.assert_running(dir) {
            Err(early) => Some(Err(early)),
            Ok(()) => admin.ready().await.then_some(Ok(())),
        };
        let waited = wait::until("Envoy is LIVE", START_LIMIT, up).await;
        waited.flatten().with_context(|| format!("Envoy did not start, {}", log_ends(dir, "envoy")))?;
        Ok(Self { process })
    }

    /// Envoy's process id: it is the agent's only child.
    pub(crate) fn envoy(&self) -> Result<i32> {
        let agent = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"))?;
        let envoy = children.split_whitespace().next().context("the agent has no child")?;
        envoy.parse().with_context(|| format!("Envoy's process id {envoy} is no number"))
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
    let server = serve(args.inside, calls).await?;
    let admin = Local::at(args.inside);
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
                    say(&format!("/drain: drain_listeners?graceful&skip_exit: {}", admin.drain("graceful&skip_exit").await));
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
        say(&format!("drain_listeners?graceful: {}", admin.drain("graceful").await));
        match args.exit_on_zero_after_ms {
            None => {
                let limit = Duration::from_millis(args.termination_drain_ms);
                let _still_running = tokio::time::timeout(limit, envoy.wait()).await;
            }
            Some(least) => {
                let _still_running = tokio::time::timeout(Duration::from_millis(least), envoy.wait()).await;
                let _ended_by_itself = tokio::select! {
                    status = envoy.wait() => Some(status),
                    () = admin.zero_connections() => None,
                };
            }
        }
    }
    // pilot-agent ends Envoy with SIGKILL.
    envoy.kill().await?;
    say("envoy killed");
    Ok(())
}

/// Serves `POST /drain` and `POST /quitquitquit`, and readiness, which Envoy's status listener asks for. Readiness is cached
/// once it was good (`atleastOnceReady`), so it fails only when this server goes.
async fn serve(inside: IpAddr, calls: mpsc::UnboundedSender<Call>) -> Result<crate::http::AbortOnDrop<()>> {
    let at = SocketAddr::new(inside, topology::AGENT);
    let listener = TcpListener::bind(at).await.context("the agent cannot listen")?;
    let task = tokio::spawn(async move {
        // They end with the server: Envoy keeps one to ask for readiness.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _peer)) = listener.accept().await {
            let calls = calls.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let post = request.method() == Method::POST;
                let (status, call) = match (request.uri().path(), post) {
                    ("/drain", true) => (200, Some(Call::Drain)),
                    ("/quitquitquit", true) => (200, Some(Call::Quit)),
                    ("/drain" | "/quitquitquit", false) => (405, None),
                    ("/healthz/ready", false) => (200, None),
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
            connections.spawn(async move {
                let _closed = connection.await;
            });
        }
    });
    Ok(crate::http::AbortOnDrop(task))
}

/// Envoy's admin, from inside the pod.
struct Local {
    client: Client,
    admin: SocketAddr,
}

impl Local {
    fn at(inside: IpAddr) -> Self {
        // pkg/envoy/agent.go gives each look at the stats two seconds.
        let client = Client::new(inside, Duration::from_secs(2));
        Self { client, admin: SocketAddr::new(inside, topology::ADMIN) }
    }

    async fn drain(&self, form: &str) -> String {
        match self.client.post(self.admin, &format!("/drain_listeners?{form}")).await {
            Ok(answer) => format!("status {}", answer.status),
            Err(failure) => failure.to_string(),
        }
    }

    /// Returns when no connection is left, when the stat is missing, or after five looks in a row that failed: agent.go's
    /// `activeProxyConnections`, each second.
    async fn zero_connections(&self) {
        let mut failed = 0;
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        while failed < 5 {
            seconds.tick().await;
            let looked = self.client.get(self.admin, "/stats?usedonly&filter=downstream_cx_active%24").await;
            match looked.map(|answer| connections(&answer.body)) {
                Ok(Some(0)) => return say("no active connections, exiting"),
                Ok(Some(active)) => {
                    failed = 0;
                    say(&format!("{active} active connections"));
                }
                Ok(None) => return say("no such stats, exiting"),
                Err(failure) => {
                    failed += 1;
                    say(&format!("stats: {failure}"));
                }
            }
        }
    }
}

/// Active connections, by agent.go's choice of listeners; None without any.
fn connections(page: &str) -> Option<u64> {
    let skipped = |name: &str| {
        let ports = [topology::STATUS, 15090, topology::ADMIN];
        name.contains("worker_")
            || name.starts_with("listener.envoy_internal_")
            || name.starts_with("listener.admin")
            || ports.iter().any(|port| name.contains(&format!("_{port}.")))
    };
    let lines = page.lines().filter_map(|line| line.rsplit_once(": "));
    let counted = lines.filter(|(name, _)| name.starts_with("listener.") && !skipped(name));
    let values: Vec<u64> = counted.filter_map(|(_, value)| value.trim().parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

fn say(what: &str) {
    println!("pilot-agent: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_of_the_gateways_own_listeners_keep_it_from_exiting() {
        let page = "listener.admin.downstream_cx_active: 1\nlistener.0.0.0.0_28080.downstream_cx_active: 2\n\
                    listener.0.0.0.0_28080.worker_0.downstream_cx_active: 2\nlistener.0.0.0.0_15021.downstream_cx_active: 4\n\
                    http.outbound.downstream_cx_active: 9\n";
        assert_eq!(connections(page), Some(2));
        assert_eq!(connections("listener.admin.downstream_cx_active: 1\n"), None);
    }
}
