//! The fallback where Envoy runs without softclose's filter: Envoy's own counters are polled, and its sockets are closed when
//! they read zero. Worse than the gate by the time between two polls, and by every request that comes within it.

use std::time::{Duration, Instant};

use softclose_fsm::{Plan, Preset};

use crate::admin::AdminError;
use crate::budget::Split;
use crate::counters::Counters;
use crate::duration;
use crate::log::Level;
use crate::outcome::Outcome;
use crate::prestop::opinion::NO_COUNTERS;
use crate::prestop::{Break, EnvoyDrain, Prestop};

/// Between two polls, as the published scripts do it.
const POLL: Duration = Duration::from_secs(1);
/// A kubelet that was given less than we were told leaves a trail at least this dense.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

impl Prestop {
    /// Leaves without softclose; `why` is what its listener did instead of answering.
    pub(super) fn fallback(&mut self, why: &str) -> Result<Outcome, Break> {
        if let Some(outcome) = self.join_by_stats(self.own_plan().hold_max)? {
            return Ok(outcome);
        }
        let degraded = "DEGRADED: softclose's filter does not answer; polling Envoy's own counters until zero";
        self.log.line(Level::Error, &format!("{degraded} ({why})"), &[]);
        // What the gate said is of the past; from here on only Envoy's counters speak.
        self.seen.active = None;
        let plan = self.own_plan();
        let split = self.budget.split(Instant::now(), plan.hold_max);
        let polled = self.poll_until_zero(plan.settle, Instant::now() + split.drain)?;
        let closed = self.flip(split)?;
        Ok(match (polled, closed) {
            (Polled::Zero, true) => Outcome::FallbackClean,
            (_, false) => self.unknown("Envoy's sockets could not be closed"),
            (Polled::NotZero, true) => self.unknown("the deadline came with requests in flight"),
            (Polled::NoAnswer, true) => self.unknown("the deadline came and admin did not answer"),
            (Polled::NoCounters, true) => self.unknown("Envoy has no counters of requests in flight"),
        })
    }

    fn unknown(&self, reason: &'static str) -> Outcome {
        Outcome::FallbackUnknown { reason, at_most: self.seen.counted }
    }

    /// The plan without a gate to ask: the preset's defaults and our flags.
    fn own_plan(&self) -> Plan {
        let own = Plan::preset(Preset::Haproxy);
        own.with(self.options.plan.iter().map(|(field, value)| (*field, value.as_str()))).unwrap_or(own)
    }

    fn poll_until_zero(&mut self, settle: Duration, deadline: Instant) -> Result<Polled, Break> {
        let mut zero_since = None;
        loop {
            self.ask_envoy_to_drain()?;
            let counters = self.poll()?;
            let now = Instant::now();
            let last = match counters.map(|counters| counters.requests) {
                None => Polled::NoAnswer,
                Some(None) => Polled::NoCounters,
                Some(Some(0)) => Polled::Zero,
                Some(Some(_)) => Polled::NotZero,
            };
            zero_since = if last == Polled::Zero { zero_since.or(Some(now)) } else { None };
            if zero_since.is_some_and(|since| now.saturating_duration_since(since) >= settle) {
                return Ok(Polled::Zero);
            }
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                return Ok(last);
            }
            self.pause(POLL.min(left))?;
        }
    }

    /// Envoy's counters, once; none if admin did not answer, which is unknown and never zero.
    fn poll(&mut self) -> Result<Option<Counters>, Break> {
        let left = self.left()?;
        match self.admin.counters(left) {
            Ok(counters) => {
                self.admin_link.answered();
                let requests = counters.requests;
                let changed = requests != self.seen.counted;
                self.seen.counted = requests;
                match requests {
                    None if !self.seen.said_no_counters => {
                        self.seen.said_no_counters = true;
                        self.log.line(Level::Error, &format!("{NO_COUNTERS}; waiting for the deadline"), &[]);
                    }
                    Some(requests) if changed || self.log.quiet() >= PROGRESS_EVERY => {
                        let said = format!("Envoy's own counters say {requests} in flight");
                        self.log.info(&said, &[("active", requests.into())]);
                    }
                    None | Some(_) => {}
                }
                Ok(Some(counters))
            }
            Err(error) => {
                let answered = self.admin_failed(error);
                if answered || self.admin_link.news() || self.log.quiet() >= PROGRESS_EVERY {
                    self.log.warn(&format!("admin {}: {error}; unknown, not zero", self.admin.address), &[]);
                }
                if self.admin_link.refused_for_long(Instant::now()) {
                    return Err(Break::EnvoyGone);
                }
                // What was true before the silence may not be any more.
                self.seen.counted = None;
                Ok(None)
            }
        }
    }

    /// Closes Envoy's sockets and gives the balancer its time; says whether they were closed.
    fn flip(&mut self, split: Split) -> Result<bool, Break> {
        if self.envoy_drain == EnvoyDrain::Owed {
            self.log.warn("Envoy's drain never started", &[]);
        }
        loop {
            let left = self.left()?;
            let Err(error) = self.admin.close_listeners(left) else { break };
            self.admin_failed(error);
            self.log.warn(&format!("admin {}: POST /drain_listeners: {error}", self.admin.address), &[]);
            if let AdminError::Unsupported(_) = error {
                return Ok(false);
            }
            if self.admin_link.refused_for_long(Instant::now()) {
                return Err(Break::EnvoyGone);
            }
            self.pause(self.admin_link.pause().max(Duration::from_millis(100)))?;
        }
        let hold = duration::text(split.hold);
        self.log.info(
            &format!("Envoy's sockets are closed: the balancer sees them refused, and has {hold} to notice"),
            &[],
        );
        self.pause(split.hold)?;
        Ok(true)
    }
}

/// What the last poll said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    Zero,
    NotZero,
    NoAnswer,
    NoCounters,
}
