//! Leaving with Envoy's sockets closed (`sockets_closing=close`).
//!
//! A balancer that sends a request elsewhere when it is sent back goes on sending until the moment of DOWN, and then cuts the one
//! that is on its way. One whose connection is refused connects elsewhere, so nothing is on its way any more when DOWN comes. What
//! is in flight goes on; but control is closed with the rest, so the end is read in Envoy's stats, where the gate keeps its own.

use std::time::{Duration, Instant};

use softclose_fsm::{Sockets, StateName, Status, Verdict};

use crate::control::Answer;
use crate::counters::GateStats;
use crate::duration;
use crate::log::Level;
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
        if self.look()?.and_then(|stats| stats.state).is_none() {
            let why = "Envoy shows no wasmcustom.softclose_state: include wasmcustom\\..* in proxyStatsMatcher.inclusionRegexps";
            self.log.line(Level::Error, &format!("{why}; {instead}"), &[]);
            return Ok(None);
        }
        let left = self.left()?;
        if let Err(error) = self.admin.close_listeners(left) {
            self.admin_failed(error);
            let what = format!("admin {}: POST /drain_listeners: {error}", self.admin.address);
            self.log.line(Level::Error, &format!("{what}; {instead}"), &[]);
            return Ok(None);
        }
        let hold = duration::text(document.plan.hold_max);
        let said =
            format!("Envoy's sockets are closed: the balancer connects elsewhere, and has at most {hold} to notice");
        self.log.info(&said, &[]);
        let stats = self.wait_for_closed(Instant::now() + document.plan.hold_max + OVERDUE)?;
        let closed = Status {
            state: StateName::Closed,
            may_exit: true,
            late: stats.late,
            // Without an account, whatever came late may have been cut.
            cut_at_most: stats.cut_at_most.or(stats.late),
            ..document.clone()
        };
        let closed = Answer { state: StateName::Closed, document: Some(Box::new(closed)), ..answer.clone() };
        self.tell(&closed);
        Ok(Some(closed))
    }

    fn wait_for_closed(&mut self, latest: Instant) -> Result<GateStats, Break> {
        loop {
            if let Some(stats) = self.look()? {
                let closed = stats.state == Some(StateName::Closed.ordinal());
                if closed || Instant::now() >= latest {
                    return Ok(stats);
                }
            } else if self.admin_link.refused_for_long(Instant::now()) {
                return Err(Break::EnvoyGone);
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

/// With nothing in flight, as far as known: what is cut in FAULT or health first is cut by the exit, not by DOWN.
fn is_asked_for(document: &Status) -> bool {
    let ended = match document.verdict {
        Some(Verdict::Clean | Verdict::SecondOpinion { .. } | Verdict::Operator { .. }) => true,
        None | Some(Verdict::HealthFirst { .. } | Verdict::Fault { .. }) => false,
    };
    document.plan.sockets_closing == Sockets::Close && document.state == StateName::Closing && ended
}
