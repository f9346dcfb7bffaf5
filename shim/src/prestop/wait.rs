//! Step 3: the wait, in slices, each on a connection of its own: an answer that was paused in a worker that then trapped
//! never comes.

use std::time::{Duration, Instant};

use softclose_fsm::StateName;
use softclose_fsm::control::Until;

use crate::control::Answer;
use crate::duration::millis;
use crate::log::Level;
use crate::prestop::{Break, EnvoyDrain, PATIENCE, Prestop, Understood};

/// One slice: every progress line is due by then, and it is below what the gate holds at most.
const SLICE: Duration = Duration::from_secs(10);

/// One slice while there is something else to do each second.
const SHORT_SLICE: Duration = Duration::from_secs(1);

/// Over loopback an answer takes milliseconds; a worker may be busy for longer.
const LATE: Duration = Duration::from_secs(2);

/// The gate keeps its deadlines to the millisecond; longer than this and it has another deadline than ours.
const OVERDUE: Duration = Duration::from_millis(500);

/// Between two answers that brought nothing new.
const BREATH: Duration = Duration::from_millis(100);

impl Prestop {
    /// Waits until the pod may leave. `own_deadline` is when the drain has to end for the rest to fit into the grace period.
    pub(super) fn wait(&mut self, mut own_deadline: Instant) -> Result<Answer, Break> {
        let mut until = Until::Closing;
        let mut closed_lb = false;
        loop {
            self.ask_envoy_to_drain()?;
            self.tell_gate_of_envoy_drain(own_deadline)?;
            self.second_opinion()?;
            if !closed_lb && self.overdue(own_deadline) {
                closed_lb = self.close_lb()?;
                continue;
            }
            let slice = self.slice(own_deadline)?;
            let mut target = format!("/wait?for={}&timeout_ms={}", until.as_str(), millis(slice).max(1));
            if let Some(changes) = self.seen.changes {
                // What changes between two waits is heard of at once.
                target.push_str(&format!("&after={changes}"));
            }
            let asked = Instant::now();
            let Some(answer) = self.attempt("GET", &target, slice + LATE)? else { continue };
            match answer.status {
                409 => {
                    self.look_for_a_lost_record(&answer);
                    own_deadline = self.drain_again()?;
                    until = Until::Closing;
                    closed_lb = false;
                    continue;
                }
                200 => {
                    self.tell(&answer);
                    if until == Until::Exit || may_exit(&answer) {
                        return Ok(answer);
                    }
                    if let Some(closed) = self.close_sockets(&answer)? {
                        return Ok(closed);
                    }
                    until = Until::Exit;
                    continue;
                }
                202 | 504 => self.tell(&answer),
                400 if self.seen.changes.is_some() && self.understood != Understood::Nothing => {
                    // A gate of another version: it waits without.
                    self.understood = Understood::Nothing;
                    self.seen.changes = None;
                }
                status => {
                    let odd = format!(
                        "control {}: GET {target} answered {status}: {}",
                        self.control.address,
                        answer.reason()
                    );
                    self.log.warn(&odd, &[]);
                    self.pause(SHORT_SLICE)?;
                }
            }
            if asked.elapsed() < BREATH {
                self.pause(BREATH)?;
            }
        }
    }

    /// How long the next slice may be.
    fn slice(&self, own_deadline: Instant) -> Result<Duration, Break> {
        // In FAULT each second is a chance to see how many the balancer may cut.
        let watched = match self.seen.state {
            Some(StateName::Draining | StateName::Closing) => self.seen.waits_for_zero && self.seen.distrust.is_some(),
            Some(StateName::Fault) => true,
            None | Some(StateName::Open | StateName::Closed) => false,
        };
        let slice = if watched || self.envoy_drain == EnvoyDrain::Owed { SHORT_SLICE } else { SLICE };
        let to_deadline = match self.seen.state {
            Some(StateName::Draining) => (own_deadline + OVERDUE).saturating_duration_since(Instant::now()),
            None | Some(StateName::Open | StateName::Closing | StateName::Closed | StateName::Fault) => slice,
        };
        // Past the deadline there is nothing to be early for.
        let to_deadline = if to_deadline.is_zero() { slice } else { to_deadline };
        Ok(slice.min(to_deadline).min(self.left()?))
    }

    /// Whether the drain goes on although its time is over: one that was joined has a deadline of its own, or none.
    fn overdue(&self, own_deadline: Instant) -> bool {
        self.seen.state == Some(StateName::Draining) && Instant::now() >= own_deadline + OVERDUE
    }

    /// Tells the balancer while there is time for it to notice; says whether that was done.
    fn close_lb(&mut self) -> Result<bool, Break> {
        let why =
            "the drain under way has a later deadline than this pod's grace period allows: telling the balancer now";
        self.log.line(Level::Error, why, &[]);
        let Some(answer) = self.attempt("POST", "/close-lb", PATIENCE)? else { return Ok(false) };
        self.tell(&answer);
        if answer.status != 200 {
            self.log.warn(&format!("POST /close-lb answered {}: {}", answer.status, answer.reason()), &[]);
        }
        Ok(true)
    }

    /// A gate that counts its drains anew has lost its record (a push of another `vm_id` begins with nothing): what it knew of the
    /// drain so far is gone, and for a while health was 200.
    fn look_for_a_lost_record(&mut self, answer: &Answer) {
        if answer.document.as_ref().is_some_and(|document| document.drains < self.seen.drains) {
            self.seen.record_lost = true;
            let lost = "the gate has lost its record of this drain: another vm_id was pushed?";
            self.log.line(Level::Error, lost, &[]);
        }
    }

    /// Somebody reopened the gate in mid-wait. The pod is leaving all the same.
    fn drain_again(&mut self) -> Result<Instant, Break> {
        self.reopened("the gate is OPEN again: reopened by somebody; draining again with what is left of the budget");
        self.seen.state = Some(StateName::Open);
        // Whoever reopens it in a loop must not make us spin.
        self.pause(BREATH.saturating_mul(self.seen.reopened.min(20)))?;
        self.drain()
    }
}

fn may_exit(answer: &Answer) -> bool {
    match &answer.document {
        Some(document) => document.may_exit,
        None => answer.state == StateName::Closed,
    }
}
