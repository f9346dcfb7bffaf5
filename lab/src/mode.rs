//! The modes: who answers health, and which preStop command a pod's deletion runs.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::scenario::Scale;
use crate::topology;

/// How a gateway leaves its balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Fail health first, then sleep: what people run.
    Current,
    /// The improved preStop script of the project's starting document: drain, poll Envoy's admin until nothing is in flight, then
    /// fail health.
    Improved,
    /// The gate inside Envoy, and `softclose prestop`.
    Softclose,
}

/// Seconds between two polls of mode improved. An assumption: the starting document's script names no pace.
pub(crate) const IMPROVED_POLL_S: u32 = 1;

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Current, Self::Improved, Self::Softclose];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Improved => "improved",
            Self::Softclose => "softclose",
        }
    }

    /// One line for a reader who has not met the mode.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Current => "health fails first, then the pod sleeps (what people run)",
            Self::Improved => "a script drains, polls each second until nothing is in flight, then fails health",
            Self::Softclose => "the gate inside Envoy fails health when the last request has ended",
        }
    }

    /// Whether softclose's filters are part of the gateway; otherwise the hc stand-in answers health.
    pub(crate) fn has_gate(self) -> bool {
        match self {
            Self::Current | Self::Improved => false,
            Self::Softclose => true,
        }
    }

    /// The preStop command, with an environment of its own and nothing inherited.
    pub(crate) fn pre_stop(self, scale: &Scale) -> Result<Command> {
        let script = |name: &str| -> Result<Command> {
            let mut command = Command::new("/bin/sh");
            command.arg(topology::root()?.join("testdata/prestop").join(name));
            command.env_clear().env("PATH", "/usr/bin:/bin");
            command.env("HC", topology::local(topology::HEALTH).to_string());
            command.env("ADMIN", topology::local(topology::ADMIN).to_string());
            Ok(command)
        };
        match self {
            Self::Current => {
                let mut command = script("current.sh")?;
                command.env("SLEEP", scale.current_sleep_s.to_string());
                Ok(command)
            }
            Self::Improved => {
                let mut command = script("improved.sh")?;
                command.env("POLL", IMPROVED_POLL_S.to_string());
                command.env("MAX_WAIT", scale.max_wait_s.to_string());
                command.env("LB_BUFFER", scale.lb_buffer_s.to_string());
                Ok(command)
            }
            Self::Softclose => softclose_pre_stop(Duration::from_secs(scale.grace_s.into())),
        }
    }
}

/// The real preStop binary, in an empty environment as in a distroless image, told of this grace period.
pub(crate) fn softclose_pre_stop(grace: Duration) -> Result<Command> {
    let mut command = Command::new(topology::artifact("SOFTCLOSE_BIN", "softclose")?);
    command.env_clear();
    // Outside a container the first process is not the pod's, and its output is none of ours.
    command.args(["prestop", "--log-also", "none", "--grace", &format!("{}s", grace.as_secs())]);
    for (flag, port) in [("--admin", topology::ADMIN), ("--control", topology::CONTROL), ("--agent", topology::AGENT)] {
        command.args([flag, &topology::local(port).to_string()]);
    }
    Ok(command)
}
