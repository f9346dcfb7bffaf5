mod due;
mod noted;

use alloc::vec::Vec;
use core::time::Duration;

use crate::effect::{Counter, Effect, Transition};
use crate::input::{Input, Refusal, Reply, Warning};
use crate::peer_ends::PeerEnds;
use crate::plan::{Order, Plan};
use crate::record::{Aftermath, DistrustReason, EventName, Reading, Record};
use crate::registry::ROLL_CALL_WAIT;
use crate::state::{Closed, Closing, Draining, Fault, FaultReason, Open, Quest, State, StateName, Verdict};
use crate::time::Instant;

/// How long Envoy's own counters, once brought, speak for the present. The preStop command brings them every second.
const OPINION_LASTS: Duration = Duration::from_secs(5);

/// What one input makes of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The record to commit.
    pub record: Record,
    /// What the winner of the commit carries out, in this order.
    pub effects: Vec<Effect>,
    /// What the asker is told.
    pub reply: Reply,
}

/// How long past a deadline one who cannot see the whole count leaves the decision to others.
const BLIND_WAIT: Duration = Duration::from_millis(500);

/// The gate's one transition function. A lost compare-and-swap runs it again, so it must be, and is, pure.
///
/// Expired deadlines are settled first, on every input: a tick only makes that earlier.
pub fn step(record: &Record, now: Instant, reading: Reading, input: &Input) -> Step {
    let mut next = Next { record: record.clone(), effects: Vec::new(), now, reading };
    next.settle();
    let reply = next.take(input);
    next.watch();
    Step { record: next.record, effects: next.effects, reply }
}

/// A step under way.
struct Next {
    record: Record,
    effects: Vec<Effect>,
    now: Instant,
    reading: Reading,
}

impl Next {
    /// The table: every state and every input.
    fn take(&mut self, input: &Input) -> Reply {
        use StateName::{Closed, Closing, Draining, Fault, Open};
        match (self.record.state.name(), input) {
            (Open, Input::Drain(plan)) => {
                self.drain(plan.clone());
                accepted()
            }
            (Draining | Closing | Closed | Fault, Input::Drain(_)) => accepted(),

            (Open, Input::CloseLb) => self.refuse(Refusal::NotDraining),
            (Draining, Input::CloseLb) => {
                self.close_lb(Verdict::Operator { active: self.reading.active });
                accepted()
            }
            (Closing | Closed | Fault, Input::CloseLb) => accepted(),

            (Open, Input::Close) => self.refuse(Refusal::NotDraining),
            (Draining, Input::Close) => self.refuse(Refusal::BalancerNotTold),
            (Closing | Fault, Input::Close) => {
                self.close();
                accepted()
            }
            (Closed, Input::Close) => accepted(),

            (Open, Input::Reopen) => Reply::Accepted { warnings: self.envoy_warning().into_iter().collect() },
            (Draining, Input::Reopen) => self.reopen(None),
            (Closing | Fault, Input::Reopen) => self.reopen(Some(Warning::BalancerMayHaveNoticed)),
            (Closed, Input::Reopen) => self.refuse(Refusal::AlreadyClosed),

            (Open | Draining | Closing | Closed | Fault, Input::Probe(probe)) => self.probe(probe),
            (Open | Draining | Closing | Closed | Fault, Input::EnvoyDrainStarted) => self.envoy_drain_started(),
            (Draining | Closing, Input::Observe(active)) => self.observe(*active),
            (Open | Closed | Fault, Input::Observe(_)) => accepted(),
            (Draining, Input::PeerEnded) => self.peer_ended(),
            // Before a drain nobody acts on it; after the flip, and where health comes first, `cut_at_most` counts.
            (Open | Closing | Closed | Fault, Input::PeerEnded) => Reply::Noted,
            (Open | Draining | Closing | Closed | Fault, Input::Distrust(reason)) => self.distrust(*reason),
            (Open | Draining | Closing | Closed | Fault, Input::Tick) => Reply::Noted,
        }
    }

    /// Carries out what is due by now.
    fn settle(&mut self) {
        self.end_roll_call();
        self.miss_probers();
        match (&self.record.state, self.record.quest()) {
            (State::Open(_) | State::Closed(_), _) | (State::Draining(_), None) => {}
            (State::Draining(_) | State::Closing(_), Some(quest)) => self.settle_quest(quest),
            (State::Closing(_), None) => {
                if self.told_enough() {
                    self.close();
                }
            }
            (State::Fault(fault), _) => {
                if self.told_enough() && !fault.may_exit {
                    self.record.audience = self.record.audience_now(self.now);
                    self.record.state = State::Fault(Fault { may_exit: true, ..fault.clone() });
                    self.change(None);
                }
            }
        }
        self.watch();
    }

    /// Who has not answered by now does not count, so the count is not whole; unless it turns out that everybody did count and
    /// was only late (a busy main thread, a process that was stopped for a while).
    fn end_roll_call(&mut self) {
        if !self.record.waits_for_zero() {
            return;
        }
        let due = self.record.state.since().after(ROLL_CALL_WAIT) <= self.now;
        let roll_call = self.reading.roll_call;
        match self.record.distrust {
            None if due && !roll_call.complete() => {
                self.distrust(DistrustReason::RollCall);
            }
            Some(distrust) if distrust.reason == DistrustReason::RollCall && roll_call.complete_without_newcomers() => {
                self.record.distrust = None;
                self.record.note(EventName::Trust, self.now);
                self.change(Some(Effect::LogTrust(distrust)));
            }
            None | Some(_) => {}
        }
    }

    /// A balancer that was not heard may have marked the server DOWN and cut what it carried. Before any zero is believed, because
    /// a process that was frozen sees those streams end before the next check; and sticky, because that check heals nothing.
    fn miss_probers(&mut self) {
        if self.record.unheard_from().is_some_and(|from| from <= self.now) {
            self.distrust(DistrustReason::Unheard);
        }
    }

    fn settle_quest(&mut self, quest: Quest) {
        // Who cannot see leaves the decision to those who can, and past the deadline waits for them a little.
        let unseen = self.reading.blind && self.record.distrust.is_none();
        if unseen && quest.deadline.is_none_or(|deadline| deadline.after(BLIND_WAIT) > self.now) {
            return;
        }
        let zero = self.believed_active(quest) == Some(0);
        let zero_since = zero.then(|| quest.zero_since.unwrap_or(self.now));
        let due = quest.deadline.is_some_and(|deadline| deadline <= self.now);
        if due && zero && self.record.distrust.is_none() && !self.record.zero_is_confirmed() {
            self.distrust(DistrustReason::Aborted);
            return self.fault(quest);
        }
        match zero_since {
            Some(since) if self.ends(quest, due) => return self.end_on_zero(since),
            None if due => return self.fault(quest),
            Some(_) | None => {}
        }
        if zero_since != quest.zero_since {
            self.record.set_quest(Quest { zero_since, ..quest });
        }
    }

    /// Whether a zero ends the wait for it.
    fn ends(&self, quest: Quest, due: bool) -> bool {
        let settled = quest.zero_since.is_some_and(|since| self.record.idle_from(since, false) <= self.now);
        match self.record.state.name() {
            // At the deadline the balancer is told, whether or not it has heard the soft answer: nothing is in flight.
            StateName::Draining => due || (settled && self.told_enough() && self.record.zero_is_confirmed()),
            StateName::Closing => (due || settled) && self.told_enough(),
            StateName::Open | StateName::Closed | StateName::Fault => false,
        }
    }

    fn told_enough(&self) -> bool {
        self.record.told_enough(self.now).is_some_and(|told| told <= self.now)
    }

    /// Keeps account of the most in flight while something can be cut.
    fn watch(&mut self) {
        let Some(aftermath) = self.record.aftermath.filter(|aftermath| self.record.may_cut(aftermath)) else { return };
        let peak = Some(self.reading.active).max(aftermath.peak);
        self.record.aftermath = Some(Aftermath { peak, ..aftermath });
    }

    /// Requests in flight as far as anything says so that is to be believed.
    fn believed_active(&self, quest: Quest) -> Option<u64> {
        match self.record.distrust {
            None if self.reading.blind => None,
            None => self.reading.roll_call.complete().then_some(self.reading.active),
            Some(_) => self.fresh_opinion(quest),
        }
    }

    fn fresh_opinion(&self, quest: Quest) -> Option<u64> {
        quest.opinion.filter(|opinion| self.now.since(opinion.at) <= OPINION_LASTS).map(|opinion| opinion.active)
    }

    fn drain(&mut self, plan: Plan) {
        // A drain takes its own roll call; what an earlier one found missing may be there by now.
        let lasting = self.record.lasting_distrust.take();
        self.record.distrust =
            self.record.distrust.filter(|distrust| !distrust.reason.ends_with_the_drain()).or(lasting);
        self.record.probers.expect(self.now);
        self.record.drains = self.record.drains.saturating_add(1);
        self.record.note(EventName::Drain, self.now);
        self.effects.push(Effect::Count(Counter::Drains));
        self.record.aftermath = None;
        self.record.audience = None;
        self.record.peer_ends = PeerEnds::default();
        let deadline = plan.deadline.map(|span| self.now.after(span));
        match plan.order {
            Order::IdleFirst => {
                if plan.soft_status.is_some() {
                    self.record.probers.forget_answers();
                }
                let (zero_since, opinion) = (None, None);
                self.enter(State::Draining(Draining { since: self.now, plan, deadline, zero_since, opinion }));
            }
            Order::HealthFirst => {
                self.health_fails();
                let quest = Some(Quest { deadline, zero_since: None, opinion: None });
                let verdict = Verdict::HealthFirst { active: self.reading.active };
                self.enter(State::Closing(Closing { since: self.now, plan, verdict, quest }));
            }
        }
    }

    fn end_on_zero(&mut self, zero_since: Instant) {
        let verdict = match self.record.distrust {
            None => Verdict::Clean,
            Some(distrust) => Verdict::SecondOpinion { distrust: distrust.reason },
        };
        if verdict == Verdict::Clean {
            self.effects.push(Effect::Count(Counter::CleanCloses));
        }
        self.record.note(EventName::ActiveZero, zero_since);
        match &self.record.state {
            State::Closing(_) => self.close_by(verdict),
            State::Open(_) | State::Draining(_) | State::Closed(_) | State::Fault(_) => self.close_lb(verdict),
        }
    }

    fn close_lb(&mut self, verdict: Verdict) {
        let State::Draining(draining) = &self.record.state else {
            return;
        };
        let plan = draining.plan.clone();
        self.health_fails();
        self.enter(State::Closing(Closing { since: self.now, plan, verdict, quest: None }));
    }

    /// The balancer path turns 503, and the account of what comes after that begins.
    fn health_fails(&mut self) {
        self.record.probers.forget_answers();
        self.record.note(EventName::HealthFail, self.now);
        self.record.aftermath = Some(Aftermath { admitted: self.reading.admitted, ..Aftermath::default() });
    }

    fn fault(&mut self, quest: Quest) {
        let (reason, counter, active) = match self.record.distrust {
            Some(distrust) => {
                (FaultReason::Distrust(distrust.reason), Counter::FaultsDistrust, self.fresh_opinion(quest))
            }
            None if !self.reading.roll_call.complete() => {
                (FaultReason::Distrust(DistrustReason::RollCall), Counter::FaultsDistrust, None)
            }
            None if self.reading.blind => {
                (FaultReason::Distrust(DistrustReason::Ledger), Counter::FaultsDistrust, None)
            }
            None => (FaultReason::Deadline, Counter::FaultsDeadline, Some(self.reading.active)),
        };
        let Some(plan) = self.record.plan().cloned() else { return };
        let told = match &self.record.state {
            State::Closing(closing) => Some(closing.since),
            State::Open(_) | State::Draining(_) | State::Closed(_) | State::Fault(_) => None,
        };
        let may_exit = told.is_some() && self.told_enough();
        let audience = if may_exit { self.record.audience_now(self.now) } else { None };
        self.record.note(EventName::Fault, self.now);
        if told.is_none() {
            self.health_fails();
        }
        self.record.audience = audience;
        self.effects.push(Effect::Count(counter));
        self.enter(State::Fault(Fault { since: self.now, plan, reason, active, may_exit, told }));
    }

    fn close(&mut self) {
        let verdict = match &self.record.state {
            State::Closing(Closing { quest: Some(_), .. }) => Some(Verdict::Operator { active: self.reading.active }),
            State::Open(_) | State::Draining(_) | State::Closing(_) | State::Closed(_) | State::Fault(_) => {
                self.record.verdict()
            }
        };
        if let Some(verdict) = verdict {
            self.close_by(verdict);
        }
    }

    fn close_by(&mut self, verdict: Verdict) {
        let Some(plan) = self.record.plan().cloned() else { return };
        self.record.note(EventName::ReadinessFail, self.now);
        self.record.audience = self.record.audience_now(self.now);
        self.enter(State::Closed(Closed { since: self.now, plan, verdict }));
    }

    fn reopen(&mut self, warning: Option<Warning>) -> Reply {
        self.record.note(EventName::Reopen, self.now);
        self.effects.push(Effect::Count(Counter::Reopens));
        self.record.aftermath = None;
        self.record.audience = None;
        self.enter(State::Open(Open { since: self.now }));
        Reply::Accepted { warnings: warning.into_iter().chain(self.envoy_warning()).collect() }
    }

    fn envoy_warning(&self) -> Option<Warning> {
        self.record.envoy_drain.map(|_| Warning::EnvoyKeepsDraining)
    }

    fn refuse(&mut self, refusal: Refusal) -> Reply {
        self.effects.push(Effect::Count(Counter::RefusedCommands));
        Reply::Refused(refusal)
    }

    fn enter(&mut self, state: State) {
        let transition = Transition {
            from: self.record.state.name(),
            to: state.name(),
            at: self.now,
            after: self.now.since(self.record.state.since()),
            active: self.reading.active,
            verdict: None,
            late: None,
            cut_at_most: None,
        };
        self.record.state = state;
        self.watch();
        let (verdict, late) = (self.record.verdict(), self.record.late(&self.reading));
        let transition = Transition { verdict, late, cut_at_most: self.record.cut_at_most(), ..transition };
        self.change(Some(Effect::Log(transition)));
    }

    /// Something that others act on: it is said, and everybody is woken.
    fn change(&mut self, said: Option<Effect>) {
        self.record.changes = self.record.changes.saturating_add(1);
        self.effects.extend(said.into_iter().chain([Effect::Ring]));
    }
}

fn accepted() -> Reply {
    Reply::Accepted { warnings: Vec::new() }
}

#[cfg(test)]
pub(crate) mod tests;
