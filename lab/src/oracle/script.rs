//! Modes without a gate: their algorithms as data.
//!
//! A script names moments, each by an earlier one. [`Mark::Deletion`] is given; the six events take what they need from
//! the marks of the same names, and a mark that no step names never comes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::estimate::Lean;
use super::requests::{active, gaps};
use super::{Between, Course, Facts, tolerance};
use crate::mode::{IMPROVED_POLL_S, MINIMUM_DRAIN};
use crate::scenario::Scale;
use crate::timeline::Kind;

/// How one mode leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Script {
    /// Each may refer to those before it.
    pub(crate) steps: Vec<Step>,
}

/// One moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) mark: Mark,
    pub(crate) when: When,
}

/// The moments of a way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    Deletion,
    EnvoyDrainStart,
    /// A poll saw nothing in flight, or gave up.
    Idle,
    /// The balancer path fails.
    HealthFail,
    ReadinessFail,
    Sigterm,
    /// Envoy's end: whoever is still in flight is cut.
    Gone,
    /// Only where the balancer is told and does not find out by its checks.
    LbDown,
}

/// When a moment comes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum When {
    /// So long after another; up to `late_s` later for the calls and processes in between.
    After { mark: Mark, seconds: f64, late_s: f64 },
    /// The first poll since another that finds nothing in flight, or the end of its patience. A poll falls anywhere in its
    /// period: what the calls themselves take shifts it by an amount that nobody outside knows.
    Idle { since: Mark, every_s: f64, at_most_s: f64, late_s: f64 },
    /// Whichever comes first of those that come at all.
    First(Vec<Self>),
}

/// What a script's call takes: a shell starts `curl`, which connects and is answered. 15 to 40 ms each where little else runs.
const CALL_S: f64 = 0.1;
/// From the preStop command's end to the agent's reaction to SIGTERM.
const SIGNAL_S: f64 = 0.1;

impl Script {
    /// Mode `current`: health fails with the deletion, the pod sleeps, SIGTERM drains and waits for terminationDrainDuration. The
    /// readiness path belongs to a stand-in that outlives the gateway.
    pub(crate) fn current(scale: &Scale) -> Self {
        Self::of(&[
            // Two calls: drain, close-lb.
            (Mark::HealthFail, When::after(Mark::Deletion, 0.0, 2.0 * CALL_S)),
            (Mark::Sigterm, When::after(Mark::HealthFail, scale.current_sleep_s, CALL_S)),
            (Mark::EnvoyDrainStart, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::Gone, When::after(Mark::Sigterm, scale.termination_drain_s, SIGNAL_S)),
        ])
    }

    /// Mode `improved`: drain, poll until nothing is in flight, then fail health, wait, fail readiness.
    pub(crate) fn improved(scale: &Scale) -> Self {
        let poll = When::Idle {
            since: Mark::EnvoyDrainStart,
            every_s: f64::from(IMPROVED_POLL_S),
            at_most_s: f64::from(scale.max_wait_s),
            late_s: CALL_S,
        };
        Self::of(&[
            (Mark::EnvoyDrainStart, When::after(Mark::Deletion, 0.0, 2.0 * CALL_S)),
            (Mark::Idle, poll),
            (Mark::HealthFail, When::after(Mark::Idle, 0.0, CALL_S)),
            (Mark::ReadinessFail, When::after(Mark::HealthFail, scale.lb_buffer_s, CALL_S)),
            (Mark::Sigterm, When::after(Mark::ReadinessFail, 0.0, SIGNAL_S)),
            (Mark::Gone, When::after(Mark::Sigterm, scale.termination_drain_s, SIGNAL_S)),
        ])
    }

    /// Istio as it comes: SIGTERM with the deletion; the agent's readiness, which 15021 shows, goes first.
    pub(crate) fn istio_default(scale: &Scale) -> Self {
        Self::of(&[
            (Mark::Sigterm, When::after(Mark::Deletion, 0.0, SIGNAL_S)),
            (Mark::HealthFail, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::ReadinessFail, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::EnvoyDrainStart, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::Gone, When::after(Mark::Sigterm, scale.termination_drain_s, SIGNAL_S)),
        ])
    }

    /// The same after a sleep, and with an end that waits for connections, which are idle at some time after the last request:
    /// how long the balancer keeps one is its own matter, so that end is left open.
    pub(crate) fn exit_on_zero(scale: &Scale, sleep: Duration) -> Self {
        let grace_s = f64::from(scale.grace_s);
        let least_s = scale.shrunk(MINIMUM_DRAIN).as_secs_f64();
        let idle = When::Idle { since: Mark::Sigterm, every_s: 1.0, at_most_s: grace_s, late_s: grace_s };
        Self::of(&[
            (Mark::Sigterm, When::after(Mark::Deletion, sleep.as_secs_f64(), CALL_S + SIGNAL_S)),
            (Mark::HealthFail, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::ReadinessFail, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::EnvoyDrainStart, When::after(Mark::Sigterm, 0.0, SIGNAL_S)),
            (Mark::Idle, idle),
            (Mark::Gone, When::after(Mark::Idle, least_s, grace_s)),
        ])
    }

    /// Envoy Gateway and Contour: `/healthcheck/fail` with the deletion, which starts the drain as well. Their end waits for
    /// connections, and readiness is the agent's, so both are left open.
    pub(crate) fn health_check_fail(scale: &Scale) -> Self {
        Self::of(&[
            (Mark::HealthFail, When::after(Mark::Deletion, 0.0, 2.0 * CALL_S)),
            (Mark::EnvoyDrainStart, When::after(Mark::Deletion, 0.0, 2.0 * CALL_S)),
            (Mark::ReadinessFail, When::after(Mark::HealthFail, 0.0, f64::from(scale.grace_s))),
        ])
    }

    pub(crate) fn of(steps: &[(Mark, When)]) -> Self {
        let steps = steps.iter().map(|(mark, when)| Step { mark: *mark, when: when.clone() }).collect();
        Self { steps }
    }

    pub(super) fn course(&self, facts: &Facts, lean: Lean) -> Course {
        let requests: Vec<(f64, f64)> = facts.requests.iter().map(|request| request.leaning(lean)).collect();
        let mut marks = BTreeMap::from([(Mark::Deletion, facts.deleted_s)]);
        for step in &self.steps {
            if let Some(at_s) = step.when.at_s(&marks, &requests, lean) {
                marks.insert(step.mark, at_s);
            }
        }
        let mark = |mark: Mark| marks.get(&mark).copied();
        Course {
            envoy_drain_start: mark(Mark::EnvoyDrainStart),
            health_fail: mark(Mark::HealthFail),
            readiness_fail: mark(Mark::ReadinessFail),
            lb_down: mark(Mark::LbDown),
            gone: mark(Mark::Gone),
        }
    }

    /// How far apart those events are of which one is reckoned from the other.
    pub(super) fn between(&self) -> Vec<Between> {
        let between = |step: &Step| match &step.when {
            When::After { mark, seconds, late_s } => Some(Between {
                from: mark.event()?,
                to: step.mark.event()?,
                least_s: seconds - tolerance::LOOK_S,
                most_s: seconds + late_s + tolerance::LOOK_S,
            }),
            When::Idle { .. } | When::First(_) => None,
        };
        self.steps.iter().filter_map(between).collect()
    }
}

impl Mark {
    /// The event that it is, if it is one.
    fn event(self) -> Option<Kind> {
        match self {
            Self::EnvoyDrainStart => Some(Kind::EnvoyDrainStart),
            Self::HealthFail => Some(Kind::HealthFail),
            Self::ReadinessFail => Some(Kind::ReadinessFail),
            Self::LbDown => Some(Kind::LbDown),
            Self::Deletion | Self::Idle | Self::Sigterm | Self::Gone => None,
        }
    }
}

impl When {
    pub(crate) fn after(mark: Mark, seconds: f64, late_s: f64) -> Self {
        Self::After { mark, seconds, late_s }
    }

    fn at_s(&self, marks: &BTreeMap<Mark, f64>, requests: &[(f64, f64)], lean: Lean) -> Option<f64> {
        match self {
            Self::After { mark, seconds, late_s } => Some(marks.get(mark)? + seconds + lean.of(*late_s)),
            Self::Idle { since, every_s, at_most_s, late_s } => {
                let since_s = *marks.get(since)?;
                // The script counts its sleeps, not its calls, so patience lasts longer by a call for each poll.
                let gives_up_s = since_s + at_most_s + lean.of(late_s * (at_most_s / every_s).max(1.0));
                // Idle from the start, the first poll sees it; a zero shorter than what a poll needs, none may.
                let idle_s = if active(requests, since_s) == 0 {
                    since_s + lean.of(*late_s)
                } else {
                    let needed_s = lean.of(every_s + late_s);
                    let zero = gaps(requests, since_s).into_iter().find(|(from_s, to_s)| to_s - from_s >= needed_s);
                    zero.map_or(f64::INFINITY, |(from_s, _)| from_s + needed_s)
                };
                Some(idle_s.min(gives_up_s))
            }
            Self::First(all) => all.iter().filter_map(|when| when.at_s(marks, requests, lean)).reduce(f64::min),
        }
    }
}
