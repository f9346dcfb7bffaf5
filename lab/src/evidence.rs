//! What a run is held against: the capture beside the balancer, and the oracle's prediction from outside facts.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::balancer_checks;
use crate::capture::endings::{self, Cut, Ending};
use crate::capture::{Capture, Captured};
use crate::curl::Outcome;
use crate::fate::Fate;
use crate::mode::Mode;
use crate::network::Network;
use crate::oracle::requests::Request;
use crate::oracle::{self, Balancer, Facts, Prediction, Way};
use crate::scenario::Scale;
use crate::timeline::{self, Clock, Event, Kind};
use crate::topology;
use crate::wall::Wall;

/// `fall` of the balancer's configuration.
const FALL: u32 = 2;
/// Ports that carry requests.
const TRAFFIC: [u16; 2] = [topology::TRAFFIC, topology::LB];

/// The watch over a run, from its beginning on.
pub(crate) struct Watcher {
    wall: Wall,
    capture: Option<Capture>,
}

/// What the watch has seen.
pub(crate) struct Watched {
    pub(crate) wall: Wall,
    captured: Option<Captured>,
}

/// A pod's way out as it had to be, and how it was.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) prediction: Prediction,
    /// What disagrees, in words; empty if all went as it had to.
    pub(crate) disagreements: Vec<String>,
}

impl Watcher {
    pub(crate) async fn start(network: &Network, dir: &Path, clock: Clock) -> Result<Self> {
        let wall = Wall::read(clock);
        let ports = [topology::TRAFFIC, topology::LB, topology::HEALTH, topology::STATUS];
        let capture = match network.watchpoint() {
            Some((site, interface)) => {
                let place = move |command: &mut tokio::process::Command| site.place(command);
                Some(Capture::start(dir, "wire", interface, &ports, place).await?)
            }
            None => None,
        };
        Ok(Self { wall, capture })
    }

    /// Ends the capture; an error if it lost anything, or if the wall clock was set meanwhile.
    pub(crate) async fn end(self) -> Result<Watched> {
        let captured = match self.capture {
            Some(capture) => Some(capture.end(&self.wall).await?),
            None => None,
        };
        self.wall.held()?;
        let lost = captured.as_ref().map_or(0, |captured| captured.lost);
        ensure!(lost == 0, "the capture lost {lost} packets, so what is not in it proves nothing");
        Ok(Watched { wall: self.wall, captured })
    }
}

impl Watched {
    /// Event 6 by the wire, with its sender, where there is a capture.
    pub(crate) fn event_6(&self, cuts: &[Cut]) -> Option<Event> {
        let captured = self.captured.as_ref()?;
        let endings: Vec<Ending> = endings::endings(&captured.segments, &TRAFFIC);
        endings::event_6(&endings, cuts, "tcpdump beside the balancer")
    }
}

/// Puts the wire's event 6 in the place of the clients' word for it.
pub(crate) fn with_event_6(mut events: Vec<Event>, wire: Option<Event>) -> Vec<Event> {
    if let Some(wire) = wire {
        events.retain(|event| event.event != Kind::Rst);
        events.push(wire);
        timeline::sort(&mut events);
    }
    events
}

/// What the oracle says of a pod that left: `requests` are those that reached it, `checks_dir` holds the log of its checks.
pub(crate) fn judge(
    mode: Mode,
    times: &Scale,
    network: &Network,
    wall: &Wall,
    checks_dir: &Path,
    leaving: &Leaving<'_>,
) -> Result<Verdict> {
    let facts = Facts {
        deleted_s: leaving.deleted_s,
        requests: leaving.requests.clone(),
        checks: balancer_checks::read(checks_dir, wall)?,
        balancer: Balancer {
            address: network.balancer().address.to_string(),
            inter_s: times.check_inter_ms as f64 / 1000.0,
            fall: FALL,
            cuts_at_down: mode.shutdown_sessions(),
        },
    };
    let mut prediction = oracle::predict(&Way::of(mode, times), &facts);
    let mut events = leaving.events.to_vec();
    if leaving.under_load {
        // Zero comes and goes between two requests, often too shortly to be seen: no single moment of the run.
        prediction.events.retain(|predicted| predicted.event != Kind::ActiveZero);
        events.retain(|event| event.event != Kind::ActiveZero);
    }
    std::fs::write(checks_dir.join("facts.json"), serde_json::to_string_pretty(&facts)?)?;
    let disagreements = prediction.compare(&events, leaving.cut);
    Ok(Verdict { prediction, disagreements })
}

/// How a pod left, as far as the oracle is concerned.
pub(crate) struct Leaving<'a> {
    pub(crate) deleted_s: f64,
    /// Other requests come and go all the time.
    pub(crate) under_load: bool,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: &'a [Event],
    /// Requests that their clients lost.
    pub(crate) cut: &'a [String],
}

/// Clients' losses, as the wire is asked for them.
pub(crate) fn cuts_of_outcomes(outcomes: &[Outcome]) -> Vec<Cut> {
    outcomes.iter().filter_map(Cut::of_outcome).collect()
}

/// The same of a load.
pub(crate) fn cuts_of_fates<'a>(fates: impl Iterator<Item = &'a Fate>) -> Vec<Cut> {
    fates.filter_map(Cut::of_fate).collect()
}
