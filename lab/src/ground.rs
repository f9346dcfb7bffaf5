//! The ground of a run: application, gateways and balancer, up and talking to each other, all of it gone when dropped.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::agent::{Agent, Exit, Settings};
use crate::backend::Backend;
use crate::deployed::{SOCKET, Variant};
use crate::envoy;
use crate::haproxy::{Api, Balancer, Check, Habits, Setup};
use crate::hc::Hc;
use crate::http::Client;
use crate::manifest::Overrides;
use crate::mode::DRAIN_DURATION;
use crate::network::{Network, Pod};
use crate::{diagnostics, topology, wait};

/// What kind of gateways.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) answers: Answers,
    pub(crate) overrides: Overrides,
    pub(crate) concurrency: u16,
    /// How the agent ends Envoy on SIGTERM.
    pub(crate) exit: Exit,
    /// Envoy's `--drain-time-s`.
    pub(crate) drain_time: Duration,
    /// HAProxy's `inter`; None for a ground without balancer.
    pub(crate) check_inter_ms: Option<u64>,
    /// What the balancer does with a gateway that leaves.
    pub(crate) habits: Habits,
}

/// Who answers the balancer's checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Softclose's filter.
    Gate,
    /// The stand-in for a health sidecar.
    Hc,
    /// Istio's own readiness on 15021, which is the agent's.
    Readiness,
    /// Envoy's health check filter, which fails on `/healthcheck/fail`.
    HealthFilter,
}

impl Answers {
    pub(crate) fn check(self) -> Check {
        match self {
            Self::Gate | Self::Hc | Self::HealthFilter => Check { port: topology::HEALTH, path: "/health_check.html" },
            Self::Readiness => Check { port: topology::STATUS, path: "/healthz/ready" },
        }
    }

    /// Where readiness is asked for, for event 2.
    pub(crate) fn readiness(self) -> Check {
        match self {
            Self::Gate | Self::Hc => Check { port: topology::HEALTH, path: "/health" },
            Self::Readiness | Self::HealthFilter => Check { port: topology::STATUS, path: "/healthz/ready" },
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            answers: Answers::Gate,
            overrides: Overrides::default(),
            concurrency: 2,
            // Istio's default terminationDrainDuration.
            exit: Exit::After(Duration::from_secs(5)),
            drain_time: DRAIN_DURATION,
            check_inter_ms: None,
            habits: Habits { shutdown_sessions: true, ..Habits::default() },
        }
    }
}

/// One gateway pod that runs.
pub(crate) struct Gateway {
    pub(crate) pod: Pod,
    pub(crate) agent: Agent,
    _hc: Option<Hc>,
    /// Where its configuration and its logs are.
    pub(crate) dir: PathBuf,
}

impl Gateway {
    /// Starts the pod's programs in `dir` and waits until Envoy has set up its listeners.
    pub(crate) async fn start(dir: &Path, mut pod: Pod, application: IpAddr, options: &Options) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut overrides = options.overrides.clone();
        if overrides.deployed.variant == Variant::UnixSocket {
            pod.socket = Some(std::path::absolute(dir)?.join(SOCKET));
        }
        let (mut module, mut hc) = (None, None);
        match options.answers {
            Answers::Gate => {
                module = Some(match &overrides.module {
                    Some(module) => module.clone(),
                    None => topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?,
                });
            }
            Answers::Hc => hc = Some(Hc::start(&pod, dir)?),
            Answers::HealthFilter => overrides.bootstrap.push(envoy::with_health_filter),
            Answers::Readiness => overrides.bootstrap.push(envoy::with_logged_status),
        }
        let config = envoy::Config { module, overrides: &overrides, pod: &pod, application };
        let bootstrap = config.write(dir)?;
        let settings =
            Settings { concurrency: options.concurrency, exit: options.exit, drain_time: options.drain_time };
        let agent = Agent::start(dir, &bootstrap, &pod, settings).await?;
        Ok(Self { pod, agent, _hc: hc, dir: dir.to_path_buf() })
    }
}

/// Everything that a run with one gateway needs. Fields are dropped in this order: the balancer first, so that nobody is surprised.
pub(crate) struct Ground {
    pub(crate) balancer: Option<Balancer>,
    pub(crate) gateway: Gateway,
    pub(crate) backend: Backend,
}

impl Ground {
    /// Starts all parts on loopback.
    pub(crate) async fn start(dir: &Path, options: &Options) -> Result<Self> {
        Self::on(&Network::Loopback, dir, options).await
    }

    /// Starts all parts in `dir` and waits until each is ready.
    pub(crate) async fn on(network: &Network, dir: &Path, options: &Options) -> Result<Self> {
        network.is_free().await?;
        let application = network.application();
        let backend = Backend::start(application)?;
        let gateway = Gateway::start(dir, network.pod(0), application.address, options).await?;
        let pods = std::slice::from_ref(&gateway.pod);
        let balancer = match balancer(network, dir, pods, 1, options).await {
            Ok(balancer) => balancer,
            Err(error) => {
                // While Envoy can still be asked.
                diagnostics::collect(&gateway.pod, Api::default(), dir, diagnostics::FAILED).await;
                return Err(error);
            }
        };
        Ok(Self { balancer, gateway, backend })
    }

    /// The balancer's runtime API.
    pub(crate) fn api(&self) -> Api {
        self.balancer.as_ref().map(|balancer| balancer.api).unwrap_or_default()
    }
}

/// Starts the balancer for `pods`, of which the first `running` answer already; None if the options want none.
pub(crate) async fn balancer(
    network: &Network,
    dir: &Path,
    pods: &[Pod],
    running: usize,
    options: &Options,
) -> Result<Option<Balancer>> {
    let Some(inter_ms) = options.check_inter_ms else { return Ok(None) };
    for pod in pods.iter().take(running) {
        healthy(pod, options.answers.readiness()).await?;
    }
    let setup = Setup {
        front: network.front(),
        host: network.balancer(),
        servers: pods,
        running,
        check: options.answers.check(),
        inter_ms,
        habits: options.habits,
        check_send_proxy: options.overrides.deployed.variant == Variant::ProxyProtocol,
    };
    Ok(Some(Balancer::start(dir, &setup).await?))
}

/// Waits until the gate of the only pod on loopback answers 200.
pub(crate) async fn gate_answers() -> Result<()> {
    healthy(&Pod::only(), Answers::Gate.readiness()).await
}

/// Waits until the pod answers the balancer's question with 200, whoever answers there.
pub(crate) async fn healthy(pod: &Pod, check: Check) -> Result<()> {
    // From the operator's address: what asks here is not to be taken for a prober.
    let client = Client::on(pod.operator(), Duration::from_secs(1));
    let at = std::net::SocketAddr::new(pod.outside, check.port);
    let mut last = String::new();
    let answered = async || {
        match client.get(at, check.path).await {
            Ok(answer) if answer.status == 200 => return Some(()),
            Ok(answer) => last = format!("{} {}", answer.status, answer.body.trim()),
            Err(failure) => last = failure.to_string(),
        }
        None
    };
    let waited = wait::until("the health port answers 200", Duration::from_secs(10), answered).await;
    waited.with_context(|| format!("the last answer was: {last}"))
}
