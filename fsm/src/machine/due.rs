//! What a record waits for, and until when.

use crate::CONFIRM;
use crate::plan::{Plan, Sockets};
use crate::probers::Audience;
use crate::record::{Aftermath, Record};
use crate::registry::ROLL_CALL_WAIT;
use crate::state::{Closing, Fault, State, StateName};
use crate::time::Instant;

impl Record {
    /// The next time after `now` at which a `Tick` may decide something; none while only an input can.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let silence = || self.probers.next_silence(now);
        let candidates = match &self.state {
            State::Open(_) | State::Closed(_) | State::Fault(Fault { may_exit: true, .. }) => [None; 5],
            State::Closing(Closing { quest: None, .. }) | State::Fault(_) => {
                [self.told_enough(now), silence(), None, None, None]
            }
            State::Draining(_) | State::Closing(_) => {
                let quest = self.quest();
                let deadline = quest.and_then(|quest| quest.deadline);
                // In DRAINING nothing is left to wait for past the deadline.
                let due = self.state.name() == StateName::Closing && deadline.is_some_and(|deadline| deadline <= now);
                let idle = quest.and_then(|quest| quest.zero_since).map(|zero| self.idle_from(zero, due));
                let ends = idle.zip(self.told_enough(now)).map(|(idle, told)| idle.max(told));
                let silence = if self.waits_for_probers() { silence() } else { None };
                [deadline, Some(self.state.since().after(ROLL_CALL_WAIT)), ends, silence, self.unheard_from()]
            }
        };
        candidates.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// From when on a balancer counts as unheard in this state, if nobody asks until then; none outside DRAINING: a balancer that
    /// was told 503 is free to cut.
    pub(super) fn unheard_from(&self) -> Option<Instant> {
        match &self.state {
            State::Draining(draining) => self.probers.unheard_from(draining.plan.fall),
            State::Open(_) | State::Closing(_) | State::Closed(_) | State::Fault(_) => None,
        }
    }

    /// Whether whoever the drain expects to hear has asked since a peer ended a request. A balancer that has cut it may have forgotten
    /// this server as well, and then asks no more.
    pub(super) fn zero_is_confirmed(&self) -> bool {
        self.peer_ends.last.is_none_or(|ended| self.probers.asked_since(ended))
    }

    /// What the probers have been told by `now`, since health is 503; none before.
    pub(super) fn audience_now(&self, now: Instant) -> Option<Audience> {
        let since = match &self.state {
            State::Open(_) | State::Draining(_) => return None,
            State::Closing(closing) => closing.since,
            State::Closed(_) => return self.audience,
            State::Fault(fault) => fault.hold_since(),
        };
        Some(self.probers.audience(since, self.plan()?, now))
    }

    /// When a zero that began at `zero_since` is taken for idle; past the deadline (`due`) at once.
    pub(super) fn idle_from(&self, zero_since: Instant, due: bool) -> Instant {
        let settle = self.plan().map_or(CONFIRM, |plan| plan.settle.max(CONFIRM));
        if due { zero_since } else { zero_since.after(settle) }
    }

    /// When the probers were told enough for this state to be left, as far as known at `now`; none while that is not to be said.
    pub(super) fn told_enough(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::Open(open) => Some(open.since),
            State::Draining(draining) if draining.plan.soft_status.is_some() => {
                self.probers.heard(draining.since, &draining.plan, now)
            }
            State::Draining(draining) => Some(draining.since),
            State::Closing(closing) => Some(self.probers.hold_over(closing.since, &closing.plan, now)),
            State::Closed(closed) => Some(closed.since),
            State::Fault(fault) => Some(self.probers.hold_over(fault.hold_since(), &fault.plan, now)),
        }
    }

    /// Whether this state is left only after the probers were told.
    fn waits_for_probers(&self) -> bool {
        match &self.state {
            State::Open(_) | State::Closed(_) => false,
            State::Draining(draining) => draining.plan.soft_status.is_some(),
            State::Closing(_) | State::Fault(_) => true,
        }
    }

    /// Whether something that is in flight now can be cut: by a balancer that was served enough hard answers, or because the pod
    /// may leave.
    pub(super) fn may_cut(&self, aftermath: &Aftermath) -> bool {
        // Refused connections are failed checks too, and nobody counts those.
        let noticed = |plan: &Plan| aftermath.hard >= u64::from(plan.fall) || plan.sockets_closing == Sockets::Close;
        match &self.state {
            State::Open(_) | State::Draining(_) => false,
            // Health first: for such a balancer DOWN cuts nothing.
            State::Closing(closing) => closing.quest.is_none() && noticed(&closing.plan),
            State::Closed(_) => true,
            State::Fault(fault) => fault.may_exit || fault.told.is_some() || noticed(&fault.plan),
        }
    }
}
