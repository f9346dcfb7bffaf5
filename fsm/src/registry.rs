use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::RollCall;
use crate::time::Instant;

/// How long a drain waits for every VM to say that it counts. A bell takes well under a millisecond; a worker that is
/// busy for two seconds has other troubles.
pub const ROLL_CALL_WAIT: Duration = Duration::from_secs(2);

/// The most slots that are kept: two roles on 128 workers and the main thread, twice over during a push.
pub const SLOTS_MAX: usize = 516;

/// A slot whose owner showed no sign of life for so long never will (the canary VM is configured and killed).
const STILLBORN_AFTER: Duration = Duration::from_secs(10);

/// Who listens: one slot per root context of every VM. Shared by all workers, replaced by compare-and-swap.
///
/// Roll call: a drain rings every bell and each VM writes the drain's number into its slot. "Nobody counts" must not look
/// like "idle", so zero is believed only when as many counting VMs have answered as there are workers. Both roles are cloned
/// once per worker, and the answering role is known to be there: it takes the commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// Generations given out so far. Never reused: a bell names its owner for good.
    generations: u64,
    slots: Vec<Slot>,
}

/// One root context that wants to be rung.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Which of all slots ever given out.
    pub generation: u64,
    /// The VM it lives in: the generation of that VM's first slot.
    pub vm: u64,
    /// What it does.
    pub role: Role,
    /// Where it keeps its part of the count.
    pub ledger: LedgerKind,
    /// The host's token for its queue.
    pub bell: u32,
    /// When it was taken.
    pub born: Instant,
    /// Its owner has shown a sign of life.
    pub alive: bool,
    /// The newest drain it has heard of.
    pub answered: u64,
}

/// What a root context does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Counts requests on a traffic listener.
    Count,
    /// Answers health and control.
    Gate,
}

/// Where a VM keeps its part of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerKind {
    /// The host's own gauge: one atomic for the whole process.
    Gauge,
    /// A shared value, by compare-and-swap: where the host hands out a gauge that does not count.
    Shared,
}

impl fmt::Display for LedgerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gauge => "gauge",
            Self::Shared => "shared data",
        })
    }
}

/// Whether there was room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// The slot is published.
    Published,
    /// The registry is full of living slots; this one is not part of any roll call, which will therefore not complete.
    Full,
}

impl Registry {
    /// Reserves a generation.
    pub fn take_generation(&mut self) -> u64 {
        self.generations = self.generations.saturating_add(1);
        self.generations
    }

    /// Publishes a slot, in place of an older one of the same generation; drops stillborn ones.
    pub fn publish(&mut self, slot: Slot, now: Instant) -> Enrolled {
        self.generations = self.generations.max(slot.generation);
        self.slots.retain(|old| old.alive || now.since(old.born) < STILLBORN_AFTER);
        if let Some(old) = self.slots.iter_mut().find(|old| old.generation == slot.generation) {
            *old = slot;
            return Enrolled::Published;
        }
        if self.slots.len() >= SLOTS_MAX {
            return Enrolled::Full;
        }
        self.slots.push(slot);
        Enrolled::Published
    }

    /// Gives a slot back: its owner was replaced, not lost.
    pub fn leave(&mut self, generation: u64) {
        self.slots.retain(|slot| slot.generation != generation);
    }

    /// How far the roll call of `drain`, rung at `rung`, has come.
    ///
    /// A VM that lived, does not answer and has not given its slot back has trapped. A counting VM is never reloaded, so its
    /// worker goes uncounted; a gate VM is reloaded under a new slot, which makes one gate more than there are counters.
    /// Either way the roll call stays incomplete for the life of the process.
    pub fn roll_call(&self, drain: u64, rung: Instant) -> RollCall {
        let gates = self.vms(Role::Gate, |slot| slot.alive);
        let counters = self.vms(Role::Count, |slot| slot.alive);
        let answered = self.vms(Role::Count, |slot| slot.alive && slot.answered >= drain);
        let newcomers = self.vms(Role::Count, |slot| slot.alive && slot.answered >= drain && slot.born > rung);
        RollCall { answered, expected: gates.max(counters), newcomers }
    }

    /// Whether some counting VM keeps its part of the count there.
    pub fn keeps(&self, ledger: LedgerKind) -> bool {
        self.slots.iter().any(|slot| slot.role == Role::Count && slot.ledger == ledger)
    }

    /// Every slot, oldest first.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn vms(&self, role: Role, which: impl Fn(&Slot) -> bool) -> u32 {
        let mut vms: Vec<u64> =
            self.slots.iter().filter(|slot| slot.role == role && which(slot)).map(|slot| slot.vm).collect();
        vms.sort_unstable();
        vms.dedup();
        u32::try_from(vms.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::{Enrolled, LedgerKind, ROLL_CALL_WAIT, Registry, Role, SLOTS_MAX, STILLBORN_AFTER, Slot};
    use crate::record::RollCall;
    use crate::time::Instant;

    const START: Instant = Instant::from_micros(1_000_000);

    fn slot(generation: u64, role: Role) -> Slot {
        let ledger = LedgerKind::Gauge;
        Slot { generation, vm: generation, role, ledger, bell: 0, born: START, alive: false, answered: 0 }
    }

    /// A registry of living VMs, whose generations count from one: first gates, then counters.
    fn registry(gates: u64, counters: u64) -> Registry {
        let mut registry = Registry::default();
        for at in 0..gates + counters {
            let generation = registry.take_generation();
            let role = if at < gates { Role::Gate } else { Role::Count };
            assert_eq!(registry.publish(slot(generation, role), START), Enrolled::Published);
            answer(&mut registry, generation, 0);
        }
        registry
    }

    /// The owner of `generation` shows that it lives and has heard of the drain `answered`.
    fn answer(registry: &mut Registry, generation: u64, answered: u64) {
        let slot = registry.slots().iter().find(|slot| slot.generation == generation).unwrap().clone();
        assert_eq!(registry.publish(Slot { alive: true, answered, ..slot }, START), Enrolled::Published);
    }

    fn call(registry: &Registry) -> RollCall {
        registry.roll_call(1, START)
    }

    #[test]
    fn an_empty_registry_is_never_complete() {
        assert!(!call(&Registry::default()).complete());
        assert!(!call(&registry(3, 0)).complete());
    }

    #[test]
    fn complete_when_as_many_counters_answered_as_gates_exist() {
        let mut registry = registry(2, 2);
        assert_eq!(call(&registry), RollCall { answered: 0, expected: 2, newcomers: 0 });
        answer(&mut registry, 3, 1);
        assert_eq!(call(&registry), RollCall { answered: 1, expected: 2, newcomers: 0 });
        answer(&mut registry, 4, 1);
        assert!(call(&registry).complete());
    }

    #[test]
    fn a_counter_that_does_not_answer_is_missing_until_it_says_goodbye() {
        let mut registry = registry(2, 3);
        answer(&mut registry, 3, 1);
        answer(&mut registry, 4, 1);
        assert_eq!(call(&registry), RollCall { answered: 2, expected: 3, newcomers: 0 });
        registry.leave(5);
        assert!(call(&registry).complete());
    }

    #[test]
    fn a_gate_that_was_reloaded_leaves_a_roll_call_incomplete_for_ever() {
        let mut registry = registry(2, 2);
        for counter in [3, 4] {
            answer(&mut registry, counter, 1);
        }
        assert!(call(&registry).complete());
        let generation = registry.take_generation();
        registry.publish(slot(generation, Role::Gate), START);
        answer(&mut registry, generation, 1);
        assert_eq!(call(&registry), RollCall { answered: 2, expected: 3, newcomers: 0 });
    }

    #[test]
    fn it_is_known_where_the_counters_keep_their_count() {
        let mut registry = registry(1, 1);
        assert!(registry.keeps(LedgerKind::Gauge) && !registry.keeps(LedgerKind::Shared));
        registry.publish(Slot { ledger: LedgerKind::Shared, ..slot(9, Role::Gate) }, START);
        assert!(!registry.keeps(LedgerKind::Shared), "a gate counts nothing");
        registry.publish(Slot { ledger: LedgerKind::Shared, ..slot(10, Role::Count) }, START);
        assert!(registry.keeps(LedgerKind::Shared));
    }

    #[test]
    fn one_that_came_after_the_drain_began_is_a_newcomer() {
        let mut registry = registry(1, 0);
        let later = START.after(ROLL_CALL_WAIT);
        let generation = registry.take_generation();
        registry.publish(Slot { born: later, ..slot(generation, Role::Count) }, later);
        answer(&mut registry, generation, 1);
        let call = call(&registry);
        assert_eq!(call, RollCall { answered: 1, expected: 1, newcomers: 1 });
        assert!(call.complete() && !call.complete_without_newcomers());
    }

    #[test]
    fn several_listeners_on_one_vm_count_once() {
        let mut registry = registry(2, 1);
        let generation = registry.take_generation();
        let second = Slot { vm: 3, ..slot(generation, Role::Count) };
        registry.publish(second, START);
        answer(&mut registry, 3, 1);
        answer(&mut registry, generation, 1);
        assert_eq!(call(&registry), RollCall { answered: 1, expected: 2, newcomers: 0 });
    }

    #[test]
    fn the_canary_is_neither_expected_nor_kept() {
        let mut registry = registry(1, 1);
        for role in [Role::Gate, Role::Count] {
            let generation = registry.take_generation();
            registry.publish(slot(generation, role), START);
        }
        answer(&mut registry, 2, 1);
        assert!(call(&registry).complete());
        let later = START.after(STILLBORN_AFTER);
        registry.publish(Slot { born: later, ..slot(9, Role::Count) }, later);
        assert_eq!(registry.slots().iter().map(|slot| slot.generation).collect::<std::vec::Vec<_>>(), [1, 2, 9]);
    }

    #[test]
    fn an_answer_to_an_older_drain_does_not_count() {
        let mut registry = registry(1, 1);
        answer(&mut registry, 2, 1);
        assert!(!registry.roll_call(2, START).complete());
        answer(&mut registry, 2, 2);
        assert!(registry.roll_call(2, START).complete());
    }

    #[test]
    fn the_registry_is_bounded_and_a_full_one_says_so() {
        let mut registry = registry(1, SLOTS_MAX as u64 - 1);
        assert_eq!(registry.publish(slot(9_999, Role::Count), START), Enrolled::Full);
        assert_eq!(registry.slots().len(), SLOTS_MAX);
    }

    #[test]
    fn a_slot_that_got_lost_is_published_again_and_its_generation_stays_taken() {
        let mut registry = Registry::default();
        registry.publish(slot(7, Role::Count), START);
        assert_eq!(registry.take_generation(), 8);
    }
}
