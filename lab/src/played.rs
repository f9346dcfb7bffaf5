//! One run of a scenario, whichever kind it is of: single requests under one deletion, or a load under a rolling restart.

use std::path::Path;

use anyhow::{Result, bail};

use crate::chart;
use crate::mode::Mode;
use crate::rollout;
use crate::run::{self, Plan};
use crate::timeline::Kind;
use crate::{timeline, verdict};

/// A run is repeated this often at most when its ground failed.
const GROUND_RETRIES: u32 = 3;

/// What a run has left.
pub(crate) enum Played {
    Single(Box<run::Record>),
    Rolling(Box<rollout::Record>),
}

impl Played {
    /// Runs once.
    pub(crate) async fn once(plan: &Plan, dir: &Path) -> Result<Self> {
        if plan.scenario.is_rolling() {
            let record = rollout::run(plan, dir).await?;
            std::fs::write(dir.join("timeline.svg"), chart::rolling(&record))?;
            return Ok(Self::Rolling(Box::new(record)));
        }
        let record = run::run(plan, dir).await?;
        std::fs::write(dir.join("timeline.svg"), chart::single(&record))?;
        Ok(Self::Single(Box::new(record)))
    }

    /// Runs until the ground held; with what was played, how often it did not.
    pub(crate) async fn on_firm_ground(plan: &Plan, dir: &Path) -> Result<(Self, u32)> {
        for failed in 0..=GROUND_RETRIES {
            let dir = match failed {
                0 => dir.to_path_buf(),
                again => dir.with_extension(format!("rerun-{again}")),
            };
            match Self::once(plan, &dir).await {
                Ok(played) if !played.ground_failure() => return Ok((played, failed)),
                Ok(_) => println!("  ground failure: HAProxy DOWN before health failed, evidence in {}", dir.display()),
                // A capture that lost packets, a clock that was set, a program that did not come up: nothing that the mode did.
                Err(error) if failed < GROUND_RETRIES => println!("  ground failure: {error:#}"),
                Err(error) => return Err(error),
            }
        }
        bail!("the ground failed {} times in a row; is this machine very busy?", GROUND_RETRIES + 1)
    }

    pub(crate) fn requests(&self) -> usize {
        match self {
            Self::Single(record) => record.clients.len(),
            Self::Rolling(record) => record.fates.len(),
        }
    }

    /// What clients lost, in words.
    pub(crate) fn failures(&self) -> Vec<String> {
        match self {
            Self::Single(record) => record.failures(),
            Self::Rolling(record) => record.failures(),
        }
    }

    /// The balancer was DOWN before health had failed: nothing that the mode did.
    pub(crate) fn ground_failure(&self) -> bool {
        match self {
            Self::Single(record) => record.ground_failure(),
            Self::Rolling(record) => record.ground_failure(),
        }
    }

    /// Why it is not as its mode promises; empty if it is. Mode current promises to cut the one long request: a lab that
    /// cannot show it proves nothing.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let oracle = self.disagreements().into_iter().map(|wrong| format!("the oracle disagrees: {wrong}"));
        self.broken_promises().into_iter().chain(oracle).collect()
    }

    /// Where prediction and measurement are apart.
    pub(crate) fn disagreements(&self) -> Vec<String> {
        match self {
            Self::Single(record) => record.oracle.disagreements.clone(),
            Self::Rolling(record) => {
                let of = |gone: &rollout::Departure| {
                    gone.oracle.disagreements.iter().map(|wrong| format!("{}: {wrong}", gone.pod)).collect::<Vec<_>>()
                };
                record.departures.iter().flat_map(of).chain(record.unexplained()).collect()
            }
        }
    }

    fn broken_promises(&self) -> Vec<String> {
        match self {
            Self::Single(record) => match record.mode {
                Mode::Current => verdict::missing_fault(record),
                Mode::Softclose => verdict::broken_promises(record),
                Mode::Improved
                | Mode::IstioDefault
                | Mode::ExitOnZero
                | Mode::NlbRecipe
                | Mode::EnvoyGateway
                | Mode::Contour => record.failures(),
            },
            Self::Rolling(record) => match record.mode {
                // What sparse traffic loses there is chance.
                Mode::Current => Vec::new(),
                Mode::Softclose => {
                    let exits = record.departures.iter().filter_map(|gone| verdict::not_clean(&gone.deletion));
                    record.failures().into_iter().chain(exits).collect()
                }
                Mode::Improved
                | Mode::IstioDefault
                | Mode::ExitOnZero
                | Mode::NlbRecipe
                | Mode::EnvoyGateway
                | Mode::Contour => record.failures(),
            },
        }
    }

    /// The order of the events; of each pod's, where several left.
    pub(crate) fn order(&self) -> String {
        match self {
            Self::Single(record) => record.order.clone(),
            Self::Rolling(record) => {
                record.departures.iter().map(|gone| gone.order.as_str()).collect::<Vec<_>>().join(" / ")
            }
        }
    }

    /// From a pod's deletion to its end; the longest, where several left.
    pub(crate) fn seconds_to_exit(&self) -> f64 {
        match self {
            Self::Single(record) => record.deletion.gone_s - record.deletion.deleted_s,
            Self::Rolling(record) => record.seconds_to_exit(),
        }
    }

    /// How long a pod was there after the last of its requests had ended, or had been cut; the longest, where several left.
    pub(crate) fn seconds_wasted(&self) -> f64 {
        match self {
            Self::Single(record) => {
                let last = record.clients.iter().map(|client| client.over_s).fold(record.deletion.deleted_s, f64::max);
                (record.deletion.gone_s - last).max(0.0)
            }
            Self::Rolling(record) => record
                .departures
                .iter()
                .map(|gone| {
                    let on_this = record.fates.iter().filter(|fate| fate.pod.as_deref() == Some(&gone.pod));
                    let ends = on_this.map(|fate| fate.ended_s).filter(|end| *end <= gone.deletion.gone_s);
                    gone.deletion.gone_s - ends.fold(gone.deletion.deleted_s, f64::max)
                })
                .fold(0.0, f64::max),
        }
    }

    /// Requests that were in flight when the balancer cut, or that its clients lost if it never did; for the tables.
    pub(crate) fn in_flight_at_down(&self) -> String {
        match self {
            Self::Single(record) => match timeline::find(&record.events, Kind::LbDown) {
                Some(_) => record.in_flight().map_or("?".to_owned(), |active| active.to_string()),
                None => "-".to_owned(),
            },
            Self::Rolling(record) => {
                let each = record.departures.iter().map(|gone| {
                    gone.in_flight_at_lb_down.as_ref().map_or("?".to_owned(), |active| active.downstream.to_string())
                });
                each.collect::<Vec<_>>().join(" / ")
            }
        }
    }
}
