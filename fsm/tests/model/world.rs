//! The process in a finite space: what its workers share, and where each worker's thread is in its callback.

use softclose_fsm::control::Until;

use crate::record::Rec;

/// What may happen in a run, and what is planted in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) requests: u8,
    pub(crate) drains: u8,
    pub(crate) reopens: u8,
    pub(crate) close_lbs: u8,
    pub(crate) waits_closing: u8,
    pub(crate) waits_exit: u8,
    pub(crate) traps: u8,
    /// How a VM may trap.
    pub(crate) trap: Trap,
    /// Whether drains have a deadline.
    pub(crate) deadline: bool,
    /// Whether a worker that drains looks again after a while although nothing is due.
    pub(crate) look: bool,
    pub(crate) arming: Arming,
    /// A worker's two VMs are told and look as one: the counting one while it lives. Gate VMs then do not trap.
    pub(crate) one_vm: bool,
    /// The first worker's counting VM is configured during the run, and the record does not exist before it is written.
    pub(crate) late: bool,
    /// The first worker has no counting VM.
    pub(crate) uncounted: bool,
    pub(crate) bug: Option<Bug>,
}

impl Setup {
    pub(crate) const CALM: Self = Self {
        requests: 1,
        drains: 1,
        reopens: 0,
        close_lbs: 0,
        waits_closing: 0,
        waits_exit: 0,
        traps: 0,
        trap: Trap::WithWill,
        deadline: false,
        look: false,
        arming: Arming::AtOnce,
        one_vm: false,
        late: false,
        uncounted: false,
        bug: None,
    };
}

/// How a VM ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    /// A panic: its hook says that the count is not to be believed, then takes the VM's share back.
    WithWill,
    /// The same in the other order.
    WithHastyWill,
    /// Out of memory or of stack: nothing runs.
    Silent,
}

/// How long after its step a callback arms the tick, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arming {
    /// In no time.
    AtOnce,
    /// Time may pass meanwhile: for the instants that are still to come.
    Later,
    /// Time may pass meanwhile: for the instants that were to come at the step, at once if they have come.
    LaterByTheStep,
}

/// A defect that the search has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Whoever found no record overwrites what is there by the time it writes.
    BlindFirstWrite,
    /// A zero is noticed only by the request whose end made it.
    EdgeOnlyIdle,
    /// A VM reads the record, then publishes its slot, and relies on the bell from there on.
    LostBell,
    /// What ended in OPEN is left in the ledger for good.
    NeverPays,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World<const N: usize> {
    pub(crate) record: Rec,
    /// Whether the record was written; until then everybody reads OPEN.
    pub(crate) exists: bool,
    /// The sum of all shares that are in the ledger.
    pub(crate) ledger: u8,
    /// Gate slots in the registry, those of trapped VMs included.
    pub(crate) gate_slots: u8,
    pub(crate) left: Left,
    pub(crate) workers: [Worker; N],
    /// What was broken, as bits of [`crate::check::Broken`].
    pub(crate) broken: u16,
}

/// What the environment may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    pub(crate) requests: u8,
    pub(crate) drains: u8,
    pub(crate) reopens: u8,
    pub(crate) close_lbs: u8,
    pub(crate) waits_closing: u8,
    pub(crate) waits_exit: u8,
    pub(crate) traps: u8,
}

/// One thread with its two VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Worker {
    pub(crate) at: At,
    pub(crate) count: Vm,
    pub(crate) gate: Vm,
    /// Requests in flight that the counting VM has in the ledger and will take out of it.
    pub(crate) share: u8,
    /// Requests that ended in OPEN and are still in the ledger; the next ones take their places over.
    pub(crate) owed: u8,
    /// Requests in flight that were in the ledger and whose VM has trapped.
    pub(crate) orphans: u8,
    /// The newest drain that the counting VM's slot answers; none before it has shown a sign of life.
    pub(crate) answered: Option<u8>,
    /// Drains begun when the counting VM's slot was taken.
    pub(crate) born: u8,
    pub(crate) waiter: Option<(Wait, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Vm {
    pub(crate) life: Life,
    /// Knows of the drain: what the counting path looks at.
    pub(crate) draining: bool,
    /// Its queue has something for it.
    pub(crate) bell: bool,
    /// What its tick is armed for, as bits of [`crate::record::Moment`] and of this module.
    pub(crate) tick: u8,
}

/// The tick has come.
pub(crate) const DUE: u8 = 1 << 4;
/// The tick is armed for the regular look.
pub(crate) const LOOK: u8 = 1 << 5;
/// The same, but nothing has happened since the last one, so that it would find nothing new.
pub(crate) const LOOKED: u8 = 1 << 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Life {
    /// Not configured yet.
    Unborn,
    /// Its slot is not published yet.
    Configuring,
    /// Its slot is published; its first tick is still to come.
    Young,
    Lives,
    Trapped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wait {
    Closing,
    Exit,
}

impl Wait {
    pub(crate) fn until(self) -> Until {
        match self {
            Self::Closing => Until::Closing,
            Self::Exit => Until::Exit,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    Count,
    Gate,
}

/// Why a callback drives the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Job {
    Enter,
    Exit,
    Heed(Role),
    Drain,
    CloseLb,
    Reopen,
    Wait(Wait),
    /// Distrust, by the panic hook of that VM.
    Will(Role),
    /// Creates the record if nobody has: a VM that is being configured.
    Begin,
}

impl Job {
    /// The VM whose callback it is.
    pub(crate) fn role(self) -> Role {
        match self {
            Self::Enter | Self::Exit | Self::Begin => Role::Count,
            Self::Heed(role) | Self::Will(role) => role,
            Self::Drain | Self::CloseLb | Self::Reopen | Self::Wait(_) => Role::Gate,
        }
    }
}

/// Where a thread is: what it does next, and what it has read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum At {
    Idle,
    Load(Job),
    Read(Job, Held),
    Commit(Job, Held, Seen),
    Ring(Job, Held),
    /// It ends; with what was ahead at its step.
    Finish(Job, Held, u8),
    /// A panic hook takes the VM's share out of the ledger.
    TakeShare(Role),
    /// A VM that is being configured publishes its slot.
    Publish,
    /// It reads the record and arms its tick.
    Keep,
    /// It does so before it publishes, which is what [`Bug::LostBell`] plants.
    KeepUnpublished,
}

/// A record that a thread has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Held {
    /// It still is the shared one.
    Fresh,
    /// It was replaced since; whether it was read as "there is none".
    Stale(Rec, bool),
}

/// A reading of the ledger and the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) zero: bool,
    pub(crate) complete: bool,
    pub(crate) newcomers: bool,
    /// No request whose +1 came before was in flight.
    pub(crate) honest: bool,
    /// Every worker counted.
    pub(crate) counting: bool,
}

impl Seen {
    /// Of no interest: the record that was read does not depend on it.
    pub(crate) const NOTHING: Self =
        Self { zero: false, complete: false, newcomers: false, honest: true, counting: true };
}

impl<const N: usize> World<N> {
    pub(crate) fn new(setup: &Setup) -> Self {
        let vm = Vm { life: Life::Lives, draining: false, bell: false, tick: 0 };
        let worker = Worker {
            at: At::Idle,
            count: vm,
            gate: vm,
            share: 0,
            owed: 0,
            orphans: 0,
            answered: Some(0),
            born: 0,
            waiter: None,
        };
        let mut workers = [worker; N];
        if setup.late || setup.uncounted {
            workers[0].count.life = if setup.late { Life::Unborn } else { Life::Trapped };
            workers[0].answered = None;
        }
        let left = Left {
            requests: setup.requests,
            drains: setup.drains,
            reopens: setup.reopens,
            close_lbs: setup.close_lbs,
            waits_closing: setup.waits_closing,
            waits_exit: setup.waits_exit,
            traps: setup.traps,
        };
        let gate_slots = u8::try_from(N).unwrap();
        Self { record: Rec::OPEN, exists: !setup.late, ledger: 0, gate_slots, left, workers, broken: 0 }
    }

    /// Workers do not know each other's number, so their order means nothing.
    pub(crate) fn representative(&self) -> Self {
        let mut sorted = self.clone();
        sorted.workers.sort_unstable();
        sorted
    }

    /// How far the roll call has come: whether it is complete, and whether some who answered are newcomers.
    pub(crate) fn roll_call(&self, drain: u8) -> (bool, bool) {
        let counters = self.workers.iter().filter_map(|worker| worker.answered.map(|answered| (answered, worker.born)));
        let alive = counters.clone().count();
        let answered = counters.clone().filter(|(answered, _)| *answered >= drain).count();
        let newcomers = counters.filter(|(answered, born)| *answered >= drain && *born >= drain).count();
        (answered >= alive.max(usize::from(self.gate_slots)), newcomers > 0)
    }

    /// A fresh reading.
    pub(crate) fn seen(&self, drain: u8) -> Seen {
        let (complete, newcomers) = self.roll_call(drain);
        let zero = self.ledger == 0;
        let (mut honest, mut counting) = (true, true);
        if zero && complete {
            honest = self.workers.iter().all(|worker| worker.share == 0 && worker.orphans == 0);
            counting = self.workers.iter().all(|worker| worker.count.life == Life::Lives);
        }
        Seen { zero, complete, newcomers, honest, counting }
    }
}

impl Worker {
    /// Which VM heeds bells and ticks of that role.
    pub(crate) fn heeder(&self, setup: &Setup, role: Role) -> Role {
        if setup.one_vm && self.count.life == Life::Lives { Role::Count } else { role }
    }

    pub(crate) fn vm(&mut self, role: Role) -> &mut Vm {
        match role {
            Role::Count => &mut self.count,
            Role::Gate => &mut self.gate,
        }
    }

    pub(crate) fn vms(&mut self) -> [&mut Vm; 2] {
        [&mut self.count, &mut self.gate]
    }
}
