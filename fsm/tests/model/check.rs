//! What must hold.

use softclose_fsm::{Effect, Reading, RollCall, StateName};
use stateright::Property;

use crate::Gateway;
use crate::act::Action;
use crate::record::{Deadline, Ground, Phase, Rec, Zero};
use crate::world::{Held, Job, Life, Seen, Setup, World};

pub(crate) const UNDER_HARD_ANSWER: &str =
    "no request whose +1 came before the reading is under the 503 of a clean flip";
pub(crate) const CLEAN_WITHOUT_COUNT: &str = "no flip is clean while a worker does not count";
pub(crate) const ONLY_REOPEN: &str = "only a reopen undoes a drain";
pub(crate) const DRAIN_ENDS: &str = "every drain ends";
pub(crate) const WAIT_ENDS: &str = "every wait ends";
/// Not a property: a search in which it never happens has searched nothing.
pub(crate) const REACHED: &str = "a drain ends clean";

/// All of them. No path comes back to a world that it has left, so "in the end" is "where nothing more happens".
pub(crate) fn properties<const N: usize>() -> Vec<Property<Gateway<N>>> {
    vec![
        Property::always("a clean flip is committed on a believed zero", |_, world: &World<N>| {
            world.holds(Broken::ZeroNotBelieved)
        }),
        Property::always(UNDER_HARD_ANSWER, |_, world: &World<N>| world.holds(Broken::RequestUnderHardAnswer)),
        Property::always(CLEAN_WITHOUT_COUNT, |_, world: &World<N>| world.holds(Broken::CleanWithoutCount)),
        Property::always("the deadline is kept", |_, world: &World<N>| world.holds(Broken::DeadlineMissed)),
        Property::always("there is no fault before the deadline", |_, world: &World<N>| {
            world.holds(Broken::FaultBeforeDeadline)
        }),
        Property::always("each transition is said and rung once", |_, world: &World<N>| {
            world.holds(Broken::EffectsNotOnce)
        }),
        Property::always("CLOSED is left by nothing", |_, world: &World<N>| world.holds(Broken::ClosedLeft)),
        Property::always(ONLY_REOPEN, |_, world: &World<N>| world.holds(Broken::DrainUndone)),
        Property::always(DRAIN_ENDS, |model: &Gateway<N>, world: &World<N>| world.drains_end(&model.0)),
        Property::always(WAIT_ENDS, |model: &Gateway<N>, world: &World<N>| world.waits_end(&model.0)),
        Property::sometimes(REACHED, |_, world: &World<N>| {
            matches!(world.record.phase, Phase::Closed { ground: Ground::Clean })
        }),
    ]
}

/// What can be broken by a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    ZeroNotBelieved,
    RequestUnderHardAnswer,
    CleanWithoutCount,
    DeadlineMissed,
    FaultBeforeDeadline,
    EffectsNotOnce,
    ClosedLeft,
    DrainUndone,
}

impl Broken {
    fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl<const N: usize> World<N> {
    pub(crate) fn holds(&self, broken: Broken) -> bool {
        self.broken & broken.bit() == 0
    }

    fn must(&mut self, holds: bool, broken: Broken) {
        if !holds {
            self.broken |= broken.bit();
        }
    }

    /// Whether nothing will happen any more unless the environment does something.
    pub(crate) fn quiet(&self, setup: &Setup) -> bool {
        let mut actions = Vec::new();
        self.actions(setup, &mut actions);
        !actions.into_iter().any(Action::must)
    }

    /// Whether a drain may rightly wait for ever: it has no deadline, and the count is rightly not believed or not zero.
    fn may_drain_for_ever(&self) -> bool {
        let Phase::Draining { deadline, .. } = self.record.phase else { return false };
        let (complete, newcomers) = self.roll_call(self.record.drains);
        let whole = self.workers.iter().all(|worker| worker.count.life == Life::Lives);
        let whole = whole && usize::from(self.gate_slots) == N && !newcomers;
        deadline == Deadline::None && !whole && (self.record.distrust.is_some() || !complete || self.ledger > 0)
    }

    /// Where nothing will happen any more, no drain is left half-way.
    pub(crate) fn drains_end(&self, setup: &Setup) -> bool {
        match self.record.phase {
            Phase::Open | Phase::Closed { .. } | Phase::Fault { may_exit: true, .. } => true,
            Phase::Draining { .. } => self.may_drain_for_ever() || !self.quiet(setup),
            Phase::Closing { .. } | Phase::Fault { may_exit: false, .. } => !self.quiet(setup),
        }
    }

    /// Where nothing will happen any more, nobody waits.
    pub(crate) fn waits_end(&self, setup: &Setup) -> bool {
        self.workers.iter().all(|worker| worker.waiter.is_none()) || self.may_drain_for_ever() || !self.quiet(setup)
    }
}

pub(crate) fn reading(seen: Seen) -> Reading {
    let roll_call = RollCall { answered: u32::from(seen.complete), expected: 1, newcomers: u32::from(seen.newcomers) };
    Reading { blind: false, admitted: 0, active: u64::from(!seen.zero), roll_call }
}

/// Whether zero would be news.
pub(crate) fn begins_to_count(record: Rec) -> bool {
    matches!(record.phase, Phase::Draining { zero: Zero::Not, .. })
}

/// A step that changes nothing.
pub(crate) fn unchanged<const N: usize>(world: &mut World<N>, from: Rec, held: Held) {
    world.must(held != Held::Fresh || !from.deadline_passed(), Broken::DeadlineMissed);
}

/// A step that is about to be committed: `to` in place of the shared record, with `effects`, decided by `seen`.
pub(crate) fn committed<const N: usize>(world: &mut World<N>, job: Job, to: &Rec, effects: &[Effect], seen: Seen) {
    let from = world.record;
    let flips = |phase: Phase| matches!(phase, Phase::Closing { ground: Ground::Clean, .. });
    if flips(to.phase) && !flips(from.phase) {
        world.must(seen.zero && seen.complete, Broken::ZeroNotBelieved);
        world.must(seen.honest, Broken::RequestUnderHardAnswer);
        world.must(seen.counting, Broken::CleanWithoutCount);
    }
    world.must(!from.deadline_passed() || !to.is_draining(), Broken::DeadlineMissed);
    let faults = to.name() == StateName::Fault && from.name() != StateName::Fault;
    world.must(!faults || from.deadline_passed(), Broken::FaultBeforeDeadline);
    world.must(from.name() != StateName::Closed || to.name() == StateName::Closed, Broken::ClosedLeft);
    let undone = from.name() != StateName::Open && to.name() == StateName::Open;
    world.must(!undone || job == Job::Reopen, Broken::DrainUndone);
    // The transitions that are said lead from the record that is replaced to the one that replaces it.
    let said = effects.iter().filter_map(|effect| match effect {
        Effect::Log(transition) => Some((transition.from, transition.to)),
        Effect::LogDistrust(_) | Effect::LogTrust(_) | Effect::Count(_) | Effect::Ring => None,
    });
    let end = said.clone().try_fold(from.name(), |at, (from, to)| (at == from).then_some(to));
    let rings = effects.iter().filter(|effect| **effect == Effect::Ring).count();
    let changes = usize::from(to.changes.saturating_sub(from.changes));
    world.must(end == Some(to.name()) && rings == changes, Broken::EffectsNotOnce);
}
