//! The worlds that a busy gateway may live in: what its balancer is configured to do, and which of softclose's presets is
//! meant for that.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use softclose_fsm::Preset;
use tokio::process::Command;

use super::scenario::Times;
use crate::haproxy::{Habits, Replay, Reuse};
use crate::mode;
use crate::network::Pod;

/// A balancer's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum World {
    /// DOWN cuts every session, and nothing is known but 200 and 503
    Plain,
    /// The same, and `http-check disable-on-404`
    Soft,
    /// The same as plain, and what is answered 425, or was not answered at all, is sent to another server; `tune.bufsize 131072`
    Retry,
    /// The same with HAProxy's own buffer of 16 KiB
    RetryDefaultBuffer,
    /// The same as retry without `empty-response`: what was not answered is lost
    #[value(name = "retry-425-only")]
    #[serde(rename = "retry-425-only")]
    Retry425Only,
    /// DOWN cuts nothing
    Nlb,
}

impl World {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Soft => "soft",
            Self::Retry => "retry",
            Self::RetryDefaultBuffer => "retry-default-buffer",
            Self::Retry425Only => "retry-425-only",
            Self::Nlb => "nlb",
        }
    }

    /// That for which a preset is made.
    pub(crate) fn of(preset: Preset) -> Self {
        match preset {
            Preset::Haproxy => Self::Plain,
            Preset::HaproxySoft => Self::Soft,
            Preset::HaproxyRetry => Self::Retry,
            Preset::Nlb => Self::Nlb,
        }
    }

    pub(crate) fn habits(self, reuse: Reuse) -> Habits {
        let plain = Habits { shutdown_sessions: true, disable_on_404: false, replay: None, reuse };
        match self {
            Self::Plain => plain,
            Self::Soft => Habits { disable_on_404: true, ..plain },
            Self::Retry => Habits { replay: Some(Replay::LargeBuffer), ..plain },
            Self::RetryDefaultBuffer => Habits { replay: Some(Replay::DefaultBuffer), ..plain },
            Self::Retry425Only => Habits { replay: Some(Replay::AnsweredOnly), ..plain },
            Self::Nlb => Habits { shutdown_sessions: false, ..plain },
        }
    }
}

/// A preset by its name, for the command line.
pub(crate) fn parse_preset(name: &str) -> Result<Preset, String> {
    let known = Preset::ALL.into_iter().find(|(known, _)| *known == name);
    let names = || Preset::ALL.map(|(name, _)| name).join(", ");
    known.map(|(_, preset)| preset).ok_or_else(|| format!("must be one of {}", names()))
}

pub(crate) fn preset_name(preset: Preset) -> &'static str {
    Preset::ALL.into_iter().find(|(_, known)| *known == preset).map_or("", |(name, _)| name)
}

/// What a buffer of 128 KiB replays, with room for heads and for what HAProxy adds (`tune.maxrewrite`).
const REPLAY_LIMIT: u32 = 100 * 1024;

/// The preStop command with a preset, told what it has to know about that world.
pub(crate) fn pre_stop(pod: &Pod, preset: Preset, world: World, times: &Times) -> Result<Command> {
    let mut command = mode::softclose_pre_stop(pod, Duration::from_secs(times.times.grace_s.into()))?;
    command.args(["--log", "json", "--preset", preset_name(preset)]);
    command.args(["--hold-max", &format!("{}s", times.hold_max_s)]);
    if preset == Preset::Nlb {
        command.args(["--hold-min", &format!("{}s", times.nlb_hold_min_s)]);
    }
    if preset == Preset::HaproxyRetry && matches!(world, World::Retry | World::Retry425Only) {
        command.args(["--replay-limit", &REPLAY_LIMIT.to_string()]);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_world_of_a_network_load_balancer_spares_the_sessions_of_a_server_that_is_down() {
        let cuts = |world: World| world.habits(Reuse::Safe).shutdown_sessions;
        assert_eq!(World::value_variants().iter().filter(|world| !cuts(**world)).collect::<Vec<_>>(), [&World::Nlb]);
    }

    #[test]
    fn every_preset_has_a_world_of_its_own() {
        let presets = [Preset::Haproxy, Preset::HaproxySoft, Preset::HaproxyRetry, Preset::Nlb];
        let worlds = presets.map(World::of);
        assert_eq!(worlds, [World::Plain, World::Soft, World::Retry, World::Nlb]);
        assert_eq!(World::Retry.habits(Reuse::Always).replay, Some(Replay::LargeBuffer));
        assert_eq!(World::RetryDefaultBuffer.habits(Reuse::Always).replay, Some(Replay::DefaultBuffer));
    }
}
