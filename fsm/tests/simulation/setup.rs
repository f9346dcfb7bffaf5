//! What a run is made of, and when what happens.

use std::time::Duration;

use softclose_fsm::control::Until;
use softclose_fsm::{Input, Plan, Preset, Role};

use super::{Callback, World};

/// What a run is made of.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) workers: usize,
    /// Requests that arrive at random times around the drain.
    pub(crate) requests: usize,
    /// Requests that never end.
    pub(crate) endless: usize,
    pub(crate) settle_ms: u64,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) drains: usize,
    pub(crate) reopens: usize,
    /// One counting VM hears no bell and never ticks.
    pub(crate) deaf_counter: bool,
    pub(crate) preset: Preset,
    /// How many times 50 ms requests keep coming.
    pub(crate) spread: usize,
    /// Balancers, each of which asks every five milliseconds.
    pub(crate) balancers: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let (workers, requests, endless, settle_ms, deadline_ms) = (2, 4, 0, 50, None);
        let (drains, reopens, deaf_counter, preset, spread, balancers) = (1, 0, false, Preset::Haproxy, 1, 0);
        Self {
            workers,
            requests,
            endless,
            settle_ms,
            deadline_ms,
            drains,
            reopens,
            deaf_counter,
            preset,
            spread,
            balancers,
        }
    }
}

/// How often a balancer asks, and for how long: from 60 ms before the drain until nothing happens any more.
const PROBE_EVERY: usize = 5_000;
const PROBES: usize = 80;

impl World {
    /// Lays out the run.
    pub(super) fn plan_run(&mut self, setup: &Setup) {
        let plan = Plan {
            settle: Duration::from_millis(setup.settle_ms),
            deadline: setup.deadline_ms.map(Duration::from_millis),
            margin: Duration::from_millis(if setup.balancers > 0 { 5 } else { 500 }),
            hold_min: Duration::ZERO,
            hold_max: Duration::from_secs(10),
            ..Plan::preset(setup.preset)
        };
        for balancer in 0..setup.balancers {
            for turn in 0..PROBES {
                self.schedule(turn * PROBE_EVERY + balancer, Callback::Probe(balancer));
            }
        }
        // So that they are known before the drain.
        let lead = if setup.balancers > 0 { 60_000 } else { 0 };
        if setup.deaf_counter {
            self.deaf = Some((self.random.below(setup.workers), Role::Count));
        }
        // Requests come from 20 ms before the drain to 30 ms after it, and last up to 40 ms.
        for at in 0..setup.requests {
            let lasts = (at >= setup.endless).then(|| Duration::from_micros(self.random.below(40_000) as u64));
            let arrives = self.random.below(if at < setup.endless { 20_000 } else { 50_000 * setup.spread });
            self.schedule(lead + arrives, Callback::Arrive { lasts });
        }
        for _ in 0..setup.drains {
            let late = if setup.drains > 1 { self.random.below(4_000) } else { 0 };
            self.schedule(lead + 20_000 + late, Callback::Command(Input::Drain(plan.clone())));
        }
        for _ in 0..setup.reopens {
            let late = self.random.below(80_000);
            self.schedule(lead + 20_000 + late, Callback::Command(Input::Reopen));
        }
        for until in [Until::Closing, Until::Exit] {
            self.schedule(lead + 30_000, Callback::Wait(until));
        }
    }
}
