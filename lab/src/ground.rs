//! The ground of a run: application, gateway and balancer, up and talking to each other, all of it gone when dropped.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::agent::Agent;
use crate::backend::Backend;
use crate::envoy;
use crate::haproxy::Balancer;
use crate::hc::Hc;
use crate::http::Client;
use crate::manifest::Overrides;
use crate::{diagnostics, topology, wait};

/// What kind of ground.
pub(crate) struct Options {
    /// Softclose's filters in the gateway; otherwise the hc stand-in answers health.
    pub(crate) gate: bool,
    pub(crate) overrides: Overrides,
    pub(crate) concurrency: u16,
    pub(crate) termination_drain: Duration,
    /// Envoy's `--drain-time-s`.
    pub(crate) drain_time: Duration,
    /// HAProxy's `inter`; None for a ground without balancer.
    pub(crate) check_inter_ms: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gate: true,
            overrides: Overrides::default(),
            concurrency: 2,
            // Istio's default terminationDrainDuration.
            termination_drain: Duration::from_secs(5),
            // Istio's default drainDuration.
            drain_time: Duration::from_secs(45),
            check_inter_ms: None,
        }
    }
}

/// Everything that a run needs. Fields are dropped in this order: the balancer first, so that nobody is surprised.
pub(crate) struct Ground {
    _balancer: Option<Balancer>,
    pub(crate) agent: Agent,
    _hc: Option<Hc>,
    pub(crate) backend: Backend,
}

impl Ground {
    /// Starts all parts in `dir` and waits until each is ready.
    pub(crate) async fn start(dir: &Path, options: &Options) -> Result<Self> {
        topology::ports_are_free().await?;
        let backend = Backend::start().await?;
        let module = match (options.gate, &options.overrides.module) {
            (true, Some(module)) => Some(module.clone()),
            (true, None) => Some(topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?),
            (false, _) => None,
        };
        let bootstrap = envoy::Config { module, overrides: &options.overrides }.write(dir)?;
        let hc = match options.gate {
            true => None,
            false => Some(Hc::start(dir).await?),
        };
        let agent =
            Agent::start(dir, &bootstrap, options.concurrency, options.termination_drain, options.drain_time).await?;
        let balancer = match balancer(dir, options.check_inter_ms).await {
            Ok(balancer) => balancer,
            Err(error) => {
                // While Envoy can still be asked.
                diagnostics::collect(dir, diagnostics::FAILED).await;
                return Err(error);
            }
        };
        Ok(Self { _balancer: balancer, agent, _hc: hc, backend })
    }
}

async fn balancer(dir: &Path, check_inter_ms: Option<u64>) -> Result<Option<Balancer>> {
    match check_inter_ms {
        Some(inter) => {
            healthy().await?;
            Ok(Some(Balancer::start(dir, inter).await?))
        }
        None => Ok(None),
    }
}

/// Waits until the health port answers 200, whoever answers there.
pub(crate) async fn healthy() -> Result<()> {
    // The operator's address, not the probe's: one question does not make a prober of it.
    let client = Client::new(topology::OPERATOR, Duration::from_secs(1));
    let mut last = String::new();
    let answered = async || {
        match client.get(topology::local(topology::HEALTH), "/health").await {
            Ok(answer) if answer.status == 200 => return Some(()),
            Ok(answer) => last = format!("{} {}", answer.status, answer.body.trim()),
            Err(failure) => last = failure.to_string(),
        }
        None
    };
    let waited = wait::until("the health port answers 200", Duration::from_secs(10), answered).await;
    waited.with_context(|| format!("the last answer was: {last}"))
}
