//! The modes: who answers health, which preStop command a pod's deletion runs, and how the pod's first process ends.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::agent::Exit;
use crate::ground::Answers;
use crate::network::Pod;
use crate::scenario::Scale;
use crate::topology;

/// How a gateway leaves its balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Fail health first, then sleep: what people run
    Current,
    /// Drain, poll until nothing is in flight, then fail health
    Improved,
    /// Istio as it comes: SIGTERM, drain for 5 s, SIGKILL; the balancer asks 15021
    IstioDefault,
    /// Istio with EXIT_ON_ZERO_ACTIVE_CONNECTIONS; the balancer asks 15021
    ExitOnZero,
    /// Sleep 30 s while the load balancer deregisters the pod, then Istio's exit on zero
    NlbRecipe,
    /// Envoy Gateway's shutdown manager: fail health, then poll connections
    EnvoyGateway,
    /// Contour's shutdown manager: fail health, then poll connections each 5 s
    Contour,
    /// The gate inside Envoy, and `softclose prestop`
    Softclose,
}

/// Seconds between two polls of mode improved. An assumption: the starting document's script names no pace.
pub(crate) const IMPROVED_POLL_S: u32 = 1;

/// Istio's MINIMUM_DRAIN_DURATION, 5 s by default (pkg/envoy/agent.go).
pub(crate) const MINIMUM_DRAIN: Duration = Duration::from_secs(5);

/// The preStop sleep of the NLB recipe.
pub(crate) const NLB_SLEEP: Duration = Duration::from_secs(30);

/// From the pod's deletion until the load balancer sends it nothing new. AWS names no figure, and users report from 30 s to
/// 180 s (aws-load-balancer-controller #2366 and others): the least of that.
pub(crate) const NLB_LAG: Duration = Duration::from_secs(30);

/// Envoy Gateway's defaults (internal/cmd/envoy/shutdown_manager.go): looks each second, drains 10 s at least and 60 s at most.
const ENVOY_GATEWAY_MIN_DRAIN: Duration = Duration::from_secs(10);
const ENVOY_GATEWAY_DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Istio's `drainDuration` by default (pkg/config/mesh/mesh.go).
pub(crate) const DRAIN_DURATION: Duration = Duration::from_secs(45);

/// Contour's `--check-interval` (cmd/contour/shutdownmanager.go). It has no limit of its own.
const CONTOUR_CHECK: Duration = Duration::from_secs(5);

impl Mode {
    pub(crate) const ALL: [Self; 8] = [
        Self::Current,
        Self::Improved,
        Self::IstioDefault,
        Self::ExitOnZero,
        Self::NlbRecipe,
        Self::EnvoyGateway,
        Self::Contour,
        Self::Softclose,
    ];

    /// The modes of the demo.
    pub(crate) const SHOWN: [Self; 3] = [Self::Current, Self::Improved, Self::Softclose];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Improved => "improved",
            Self::IstioDefault => "istio-default",
            Self::ExitOnZero => "exit-on-zero",
            Self::NlbRecipe => "nlb-recipe",
            Self::EnvoyGateway => "envoy-gateway",
            Self::Contour => "contour",
            Self::Softclose => "softclose",
        }
    }

    /// One line for a reader who has not met the mode.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Current => "health fails first, then the pod sleeps (what people run)",
            Self::Improved => "a script drains, polls each second until nothing is in flight, then fails health",
            Self::IstioDefault => "SIGTERM fails 15021, Envoy drains for 5 s and is killed (Istio as it comes)",
            Self::ExitOnZero => {
                "SIGTERM fails 15021, Envoy is killed when no connection is left, 5 s later at the earliest"
            }
            Self::NlbRecipe => "the pod sleeps 30 s while it is deregistered, then exits on zero connections",
            Self::EnvoyGateway => {
                "health fails first, then connections are polled each second (Envoy Gateway's defaults)"
            }
            Self::Contour => "health fails first, then connections are polled each 5 s (Contour's defaults)",
            Self::Softclose => "the gate inside Envoy fails health when the last request has ended",
        }
    }

    /// Who answers the balancer.
    pub(crate) fn answers(self) -> Answers {
        match self {
            Self::Current | Self::Improved => Answers::Hc,
            Self::IstioDefault | Self::ExitOnZero | Self::NlbRecipe => Answers::Readiness,
            Self::EnvoyGateway | Self::Contour => Answers::HealthFilter,
            Self::Softclose => Answers::Gate,
        }
    }

    /// How the pod's first process ends Envoy on SIGTERM.
    pub(crate) fn exit(self, scale: &Scale) -> Exit {
        match self {
            Self::Current | Self::Improved | Self::IstioDefault | Self::Softclose => {
                Exit::After(Duration::from_secs_f64(scale.termination_drain_s))
            }
            Self::ExitOnZero | Self::NlbRecipe => Exit::OnZeroConnections(scale.shrunk(MINIMUM_DRAIN)),
            // Envoy itself is the first process there, and ends at once on SIGTERM.
            Self::EnvoyGateway | Self::Contour => Exit::After(Duration::ZERO),
        }
    }

    /// Envoy's `--drain-time-s`.
    pub(crate) fn drain_time(self) -> Duration {
        match self {
            // Envoy Gateway starts Envoy with its drainTimeout.
            Self::EnvoyGateway => ENVOY_GATEWAY_DRAIN_TIMEOUT,
            Self::Current
            | Self::Improved
            | Self::IstioDefault
            | Self::ExitOnZero
            | Self::NlbRecipe
            | Self::Contour
            | Self::Softclose => DRAIN_DURATION,
        }
    }

    /// Whether the balancer cuts the sessions of a server that is DOWN. A network load balancer does not, if its target group is
    /// told so (`target_health_state.unhealthy.connection_termination.enabled=false`; AWS' default is true), which the recipe
    /// is given the benefit of.
    pub(crate) fn shutdown_sessions(self) -> bool {
        !matches!(self, Self::NlbRecipe)
    }

    /// How long after the deletion somebody tells the balancer itself to send nothing new; None if nobody does.
    pub(crate) fn deregistered_after(self, lag: Duration) -> Option<Duration> {
        match self {
            Self::NlbRecipe => Some(lag),
            Self::Current
            | Self::Improved
            | Self::IstioDefault
            | Self::ExitOnZero
            | Self::EnvoyGateway
            | Self::Contour
            | Self::Softclose => None,
        }
    }

    /// The preStop command of that pod, with an environment of its own and nothing inherited; None if the mode has none.
    pub(crate) fn pre_stop(self, scale: &Scale, pod: &Pod) -> Result<Option<Command>> {
        let script = |name: &str| -> Result<Command> {
            let mut command = Command::new("/bin/sh");
            command.arg(topology::root()?.join("testdata/prestop").join(name));
            command.env_clear().env("PATH", "/usr/bin:/bin");
            command.env("HC", pod.health().to_string());
            command.env("ADMIN", pod.admin().to_string());
            pod.site.place(&mut command);
            Ok(command)
        };
        let seconds = |time: Duration| scale.shrunk(time).as_secs_f64().to_string();
        let command = match self {
            Self::Current => {
                let mut command = script("current.sh")?;
                command.env("SLEEP", scale.current_sleep_s.to_string());
                command
            }
            Self::Improved => {
                let mut command = script("improved.sh")?;
                command.env("POLL", IMPROVED_POLL_S.to_string());
                command.env("MAX_WAIT", scale.max_wait_s.to_string());
                command.env("LB_BUFFER", scale.lb_buffer_s.to_string());
                command
            }
            Self::IstioDefault | Self::ExitOnZero => return Ok(None),
            Self::NlbRecipe => {
                let mut command = Command::new("/bin/sleep");
                command.env_clear().arg(seconds(NLB_SLEEP));
                pod.site.place(&mut command);
                command
            }
            Self::EnvoyGateway => {
                let mut command = script("envoy-gateway.sh")?;
                command.env("MIN_DRAIN", seconds(ENVOY_GATEWAY_MIN_DRAIN));
                command.env("DRAIN_TIMEOUT", seconds(ENVOY_GATEWAY_DRAIN_TIMEOUT));
                command
            }
            Self::Contour => {
                let mut command = script("contour.sh")?;
                command.env("CHECK", seconds(CONTOUR_CHECK));
                command
            }
            Self::Softclose => {
                let mut command = softclose_pre_stop(pod, Duration::from_secs(scale.grace_s.into()))?;
                if scale.soft {
                    command.args(["--preset", "haproxy-soft"]);
                }
                if let Some(settle) = scale.settle_ms {
                    command.args(["--settle", &format!("{settle}ms")]);
                }
                command
            }
        };
        Ok(Some(command))
    }
}

/// The real preStop binary, in an empty environment as in a distroless image, told of this grace period.
pub(crate) fn softclose_pre_stop(pod: &Pod, grace: Duration) -> Result<Command> {
    let mut command = Command::new(topology::artifact("SOFTCLOSE_BIN", "softclose")?);
    command.env_clear();
    // Outside a container the first process is not the pod's, and its output is none of ours.
    command.args(["prestop", "--log-also", "none", "--grace", &format!("{}s", grace.as_secs())]);
    let control = match &pod.socket {
        Some(path) => format!("unix:{}", path.display()),
        None => pod.control().to_string(),
    };
    for (flag, at) in
        [("--admin", pod.admin().to_string()), ("--control", control), ("--agent", pod.agent().to_string())]
    {
        command.args([flag, &at]);
    }
    pod.site.place(&mut command);
    Ok(command)
}
