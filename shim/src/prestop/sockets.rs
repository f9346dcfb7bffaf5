//! Leaving with Envoy's sockets closed (`sockets_closing=close`).
//!
//! A balancer that sends a request elsewhere when it is sent back goes on sending until the moment of DOWN, and then cuts the one
//! that is on its way. One whose connection is refused connects elsewhere, so nothing is on its way any more when DOWN comes. What
//! is in flight goes on; but control is closed with the rest, so the end is read in Envoy's stats, where the gate keeps its own.

use std::time::{Duration, Instant};

use softclose_fsm::{Audience, Prober, Sockets, StateName, Status, Verdict};

use crate::admin::AdminError;
use crate::control::Answer;
use crate::counters::GateStats;
use crate::duration;
use crate::log::Level;
use crate::outcome::Outcome;
use crate::prestop::{Break, Prestop};

/// Between two looks. Nothing depends on them but how soon the pod leaves.
const LOOK: Duration = Duration::from_millis(100);

/// How much longer than its longest the gate's hold may seem to last.
const OVERDUE: Duration = Duration::from_secs(1);

impl Prestop {
    /// Where the plan says so, closes Envoy's sockets and waits until the pod may leave; none if there is nothing to close, or that
    /// cannot be done. `answer` is the gate's, in CLOSING.
    pub(super) fn close_sockets(&mut self, answer: &Answer) -> Result<Option<Answer>, Break> {
        let Some(document) = answer.document.as_deref().filter(|document| is_asked_for(document)) else {
            return Ok(None);
        };
        let instead = "Envoy's sockets stay open, so what is on its way when the balancer says DOWN may be cut";
        if !self.look()?.is_some_and(|stats| stats.is_whole()) {
            let why =
                "Envoy does not show the gate's metrics: include wasmcustom\\..* in proxyStatsMatcher.inclusionRegexps";
            self.log.line(Level::Error, &format!("{why}; {instead}"), &[]);
            return Ok(None);
        }
        let left = self.left()?;
        match self.admin.close_listeners(left) {
            Ok(()) => {
                let hold = duration::text(document.plan.hold_max);
                let so = "the balancer connects elsewhere";
                self.log.info(&format!("Envoy's sockets are closed: {so}, and has at most {hold} to notice"), &[]);
            }
            Err(error @ AdminError::Failed(_)) => {
                self.admin_failed(error);
                let what = format!("admin {}: POST /drain_listeners: {error}", self.admin.address);
                self.log.warn(&format!("{what}; whether Envoy's sockets are closed is unknown"), &[]);
            }
            Err(error @ (AdminError::Unsupported(_) | AdminError::Busy(_))) => {
                self.admin_failed(error);
                let what = format!("admin {}: POST /drain_listeners: {error}", self.admin.address);
                self.log.line(Level::Error, &format!("{what}; {instead}"), &[]);
                return Ok(None);
            }
        }
        let stats = self.wait_for_closed(document.plan.hold_max)?;
        if stats.distrust != Some(0) && document.distrust.is_none() {
            return Err(Break::Ended(Outcome::ByStats { state: Some(StateName::Closed), at_most: None }));
        }
        let closed = Status {
            state: StateName::Closed,
            may_exit: true,
            late: stats.late,
            // Nobody is seen to ask any more; whom nobody knew before was told nothing.
            audience: Some(Audience::default()).filter(|_| !document.probers.iter().any(Prober::known)),
            cut_at_most: stats.cut_at_most.max(document.cut_at_most),
            ..document.clone()
        };
        let closed = Answer { state: StateName::Closed, document: Some(Box::new(closed)), ..answer.clone() };
        self.tell(&closed);
        Ok(Some(closed))
    }

    /// Where control is refused because another run has closed the sockets, goes by the stats too; none if that is not it.
    pub(super) fn join_by_stats(&mut self, hold: Duration) -> Result<Option<Outcome>, Break> {
        let state = self.look()?.and_then(|stats| stats.state());
        let (Some(StateName::Closing | StateName::Closed), true) = (state, self.control_link.refused_repeatedly())
        else {
            return Ok(None);
        };
        self.log
            .info("joining a drain whose sockets are closed, and control with them; Envoy's stats say its end", &[]);
        let stats = self.wait_for_closed(hold)?;
        let at_most = stats.cut_at_most.filter(|_| stats.distrust == Some(0));
        Ok(Some(Outcome::ByStats { state: Some(StateName::Closed), at_most }))
    }

    /// The stats in CLOSED. Whatever else they say at last is no end: then nobody knows what may have been cut.
    fn wait_for_closed(&mut self, hold: Duration) -> Result<GateStats, Break> {
        let latest = Instant::now() + hold + OVERDUE;
        let mut closed = false;
        loop {
            let stats = self.look()?;
            let state = stats.and_then(|stats| stats.state());
            match (state, stats) {
                // The gauges are written one after the other: what goes with CLOSED is there at the next look.
                (Some(StateName::Closed), Some(stats)) if closed && stats.is_whole() => return Ok(stats),
                (Some(StateName::Closed), _) => closed = true,
                // Somebody reopened it over a connection that control still had, or it never was what it said.
                (Some(StateName::Open | StateName::Draining | StateName::Fault), _) => {
                    return Err(Break::Ended(Outcome::ByStats { state, at_most: None }));
                }
                (None | Some(StateName::Closing), _) => {
                    if self.admin_link.refused_for_long(Instant::now()) {
                        return Err(Break::EnvoyGone);
                    }
                }
            }
            if Instant::now() >= latest {
                return Err(Break::Ended(Outcome::ByStats { state, at_most: None }));
            }
            self.pause(LOOK)?;
        }
    }

    fn look(&mut self) -> Result<Option<GateStats>, Break> {
        let left = self.left()?;
        match self.admin.gate(left) {
            Ok(stats) => {
                self.admin_link.answered();
                Ok(Some(stats))
            }
            Err(error) => {
                self.admin_failed(error);
                if self.admin_link.news() {
                    self.log.warn(&format!("admin {}: {error}; unknown, asking again", self.admin.address), &[]);
                }
                Ok(None)
            }
        }
    }
}

/// The drain has ended in CLOSING: what is cut in FAULT or health first is cut by the exit, not by DOWN.
fn is_asked_for(document: &Status) -> bool {
    let ended = match document.verdict {
        Some(Verdict::Clean | Verdict::SecondOpinion { .. } | Verdict::Operator { .. }) => true,
        None | Some(Verdict::HealthFirst { .. } | Verdict::Fault { .. }) => false,
    };
    document.plan.sockets_closing == Sockets::Close && document.state == StateName::Closing && ended
}
