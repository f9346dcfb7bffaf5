use alloc::vec::Vec;
use core::time::Duration;

use crate::CONFIRM;
use crate::effect::{Counter, Effect, Transition};
use crate::input::{Input, Probe, Refusal, Reply, Warning};
use crate::plan::Plan;
use crate::record::{Distrust, DistrustReason, EventName, Opinion, Path, Reading, Record};
use crate::registry::ROLL_CALL_WAIT;
use crate::state::{Closed, Closing, Draining, Fault, FaultReason, Open, State, StateName, Verdict};
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
    Step { record: next.record, effects: next.effects, reply }
}

impl Record {
    /// The next time after `now` at which a `Tick` may decide something; none while only an input can.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let candidates = match &self.state {
            State::Open(_) | State::Closed(_) => [None, None, None, None],
            State::Draining(draining) => [
                draining.deadline,
                Some(draining.since.after(ROLL_CALL_WAIT)),
                draining.zero_since.map(|since| draining.idle_from(since)),
                self.probers.unheard_from(draining.plan.fall),
            ],
            State::Closing(closing) => {
                let over = self.probers.hold_over(closing.since, &closing.plan, now);
                [Some(over), self.probers.next_silence(now), None, None]
            }
            State::Fault(fault) if fault.may_exit => [None, None, None, None],
            State::Fault(fault) => {
                let over = self.probers.hold_over(fault.since, &fault.plan, now);
                [Some(over), self.probers.next_silence(now), None, None]
            }
        };
        candidates.into_iter().flatten().filter(|at| *at > now).min()
    }
}

impl Draining {
    /// When zero since `zero_since` is believed to be idle.
    fn idle_from(&self, zero_since: Instant) -> Instant {
        zero_since.after(self.plan.settle.max(CONFIRM))
    }
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
            (Draining, Input::Observe(active)) => self.observe(*active),
            (Open | Closing | Closed | Fault, Input::Observe(_)) => accepted(),
            (Open | Draining | Closing | Closed | Fault, Input::Distrust(reason)) => self.distrust(*reason),
            (Open | Draining | Closing | Closed | Fault, Input::Tick) => Reply::Noted,
        }
    }

    /// Carries out what is due by now.
    fn settle(&mut self) {
        self.end_roll_call();
        self.miss_probers();
        match self.record.state.clone() {
            State::Open(_) | State::Closed(_) => {}
            State::Draining(draining) => self.settle_draining(&draining),
            State::Closing(closing) => {
                if self.record.probers.hold_over(closing.since, &closing.plan, self.now) <= self.now {
                    self.close();
                }
            }
            State::Fault(fault) => {
                let over = self.record.probers.hold_over(fault.since, &fault.plan, self.now) <= self.now;
                if over && !fault.may_exit {
                    self.record.state = State::Fault(Fault { may_exit: true, ..fault });
                    self.change(None);
                }
            }
        }
    }

    /// Who has not answered by now does not count, so the count is not whole; unless it turns out that everybody did count and
    /// was only late (a busy main thread, a process that was stopped for a while).
    fn end_roll_call(&mut self) {
        let State::Draining(draining) = &self.record.state else { return };
        let due = draining.since.after(ROLL_CALL_WAIT) <= self.now;
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
        if let State::Draining(draining) = &self.record.state
            && self.record.probers.unheard_from(draining.plan.fall).is_some_and(|from| from <= self.now)
        {
            self.distrust(DistrustReason::Unheard);
        }
    }

    fn settle_draining(&mut self, draining: &Draining) {
        // Who cannot see leaves the decision to those who can, and past the deadline waits for them a little.
        let unseen = self.reading.blind && self.record.distrust.is_none();
        if unseen && draining.deadline.is_none_or(|deadline| deadline.after(BLIND_WAIT) > self.now) {
            return;
        }
        let zero = self.believed_active(draining) == Some(0);
        if let Some(since) = draining.zero_since
            && zero
            && draining.idle_from(since) <= self.now
        {
            return self.flip_on_zero(since);
        }
        let zero_since = zero.then(|| draining.zero_since.unwrap_or(self.now));
        if draining.deadline.is_some_and(|deadline| deadline <= self.now) {
            return match zero_since {
                Some(since) => self.flip_on_zero(since),
                None => self.fault(draining),
            };
        }
        if zero_since != draining.zero_since
            && let State::Draining(draining) = &mut self.record.state
        {
            draining.zero_since = zero_since;
        }
    }

    /// Requests in flight as far as anything says so that is to be believed.
    fn believed_active(&self, draining: &Draining) -> Option<u64> {
        match self.record.distrust {
            None if self.reading.blind => None,
            None => self.reading.roll_call.complete().then_some(self.reading.active),
            Some(_) => self.fresh_opinion(draining),
        }
    }

    fn fresh_opinion(&self, draining: &Draining) -> Option<u64> {
        draining.opinion.filter(|opinion| self.now.since(opinion.at) <= OPINION_LASTS).map(|opinion| opinion.active)
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
        let deadline = plan.deadline.map(|span| self.now.after(span));
        self.enter(State::Draining(Draining { since: self.now, plan, deadline, zero_since: None, opinion: None }));
    }

    fn flip_on_zero(&mut self, zero_since: Instant) {
        let verdict = match self.record.distrust {
            None => Verdict::Clean,
            Some(distrust) => Verdict::SecondOpinion { distrust: distrust.reason },
        };
        if verdict == Verdict::Clean {
            self.effects.push(Effect::Count(Counter::CleanCloses));
        }
        self.record.note(EventName::ActiveZero, zero_since);
        self.close_lb(verdict);
    }

    fn close_lb(&mut self, verdict: Verdict) {
        let State::Draining(draining) = &self.record.state else {
            return;
        };
        let plan = draining.plan.clone();
        self.record.probers.forget_answers();
        self.record.note(EventName::HealthFail, self.now);
        self.enter(State::Closing(Closing { since: self.now, plan, verdict }));
    }

    fn fault(&mut self, draining: &Draining) {
        let (reason, counter, active) = match self.record.distrust {
            Some(distrust) => {
                (FaultReason::Distrust(distrust.reason), Counter::FaultsDistrust, self.fresh_opinion(draining))
            }
            None if !self.reading.roll_call.complete() => {
                (FaultReason::Distrust(DistrustReason::RollCall), Counter::FaultsDistrust, None)
            }
            None if self.reading.blind => {
                (FaultReason::Distrust(DistrustReason::Ledger), Counter::FaultsDistrust, None)
            }
            None => (FaultReason::Deadline, Counter::FaultsDeadline, Some(self.reading.active)),
        };
        self.record.probers.forget_answers();
        self.record.note(EventName::Fault, self.now);
        self.record.note(EventName::HealthFail, self.now);
        self.effects.push(Effect::Count(counter));
        let plan = draining.plan.clone();
        self.enter(State::Fault(Fault { since: self.now, plan, reason, active, may_exit: false }));
    }

    fn close(&mut self) {
        let (Some(verdict), Some(plan)) = (self.record.verdict(), self.record.plan().cloned()) else { return };
        self.record.note(EventName::ReadinessFail, self.now);
        self.enter(State::Closed(Closed { since: self.now, plan, verdict }));
    }

    fn reopen(&mut self, warning: Option<Warning>) -> Reply {
        self.record.note(EventName::Reopen, self.now);
        self.effects.push(Effect::Count(Counter::Reopens));
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

    fn probe(&mut self, probe: &Probe) -> Reply {
        let answer = self.record.answer(probe.path);
        match (probe.path, &probe.prober) {
            (Path::Balancer, Some(prober)) => {
                self.record.probers.asked(prober, self.now);
                if answer.status == 503 {
                    let fall = self.record.plan().map_or(u32::MAX, |plan| plan.fall);
                    self.record.probers.told(prober, fall, self.now);
                }
            }
            (Path::Balancer, None) | (Path::Readiness, _) => {}
        }
        if probe.path == Path::Balancer && answer.status == 503 {
            self.effects.push(Effect::Count(Counter::HardAnswers));
        }
        Reply::Answer(answer)
    }

    fn envoy_drain_started(&mut self) -> Reply {
        if self.record.envoy_drain.is_none() {
            self.record.envoy_drain = Some(self.now);
            self.record.note(EventName::EnvoyDrainStart, self.now);
        }
        accepted()
    }

    fn observe(&mut self, active: u64) -> Reply {
        if let State::Draining(draining) = &mut self.record.state {
            draining.opinion = Some(Opinion { active, at: self.now });
        }
        // News of zero starts the settling now, not at the next tick; news of work ends it.
        self.settle();
        accepted()
    }

    fn distrust(&mut self, reason: DistrustReason) -> Reply {
        let distrust = Distrust { reason, since: self.now };
        let old = self.record.distrust;
        let heavier = old.is_none_or(|old| old.reason.weight() < reason.weight());
        let (shown, hidden) = if heavier { (Some(distrust), old) } else { (old, Some(distrust)) };
        if shown.is_some_and(|shown| shown.reason.ends_with_the_drain()) {
            let lasting = hidden.filter(|hidden| !hidden.reason.ends_with_the_drain());
            self.record.lasting_distrust = self.record.lasting_distrust.or(lasting);
        }
        if heavier {
            self.record.distrust = Some(distrust);
            self.record.note(EventName::Distrust, self.now);
            if let State::Draining(draining) = &mut self.record.state {
                draining.zero_since = None;
            }
            self.change(Some(Effect::LogDistrust(distrust)));
        }
        Reply::Noted
    }

    fn enter(&mut self, state: State) {
        let transition = Transition {
            from: self.record.state.name(),
            to: state.name(),
            at: self.now,
            after: self.now.since(self.record.state.since()),
            active: self.reading.active,
            verdict: None,
        };
        self.record.state = state;
        let transition = Transition { verdict: self.record.verdict(), ..transition };
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
