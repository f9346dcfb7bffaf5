//! The simulated process.

mod checks;
mod random;
mod setup;

use std::collections::VecDeque;
use std::time::Duration;

use softclose_fsm::control::Until;
use softclose_fsm::{
    Effect, Input, Instant, LedgerKind, Path, Probe, Reading, Record, Registry, Role, Slot, StateName, step,
};

use self::random::SplitMix;
pub(crate) use self::setup::Setup;

/// One process: what its workers share, and the workers.
pub(crate) struct World {
    now: Instant,
    random: SplitMix,
    record: Record,
    record_version: u64,
    registry: Registry,
    registry_version: u64,
    ledger: u64,
    workers: Vec<Worker>,
    deaf: Option<Vm>,
    due: Vec<(Instant, usize, Callback)>,
    transitions_logged: usize,
    transitions_committed: usize,
    requests_total: usize,
    pub(crate) lost_races: usize,
    pub(crate) in_flight_at_drain: u64,
    /// Requests let in since the first drain began.
    admitted: u64,
    /// The same at the reading that flipped.
    admitted_at_flip: u64,
    /// Hard answers that have left, and the most in flight since a balancer that cuts may act on them.
    pub(crate) hard_answers: u64,
    pub(crate) most_exposed: u64,
    /// Zero was believed while somebody had not heard the soft answer.
    pub(crate) soft_answers: u64,
    /// Which balancers were served the soft answer.
    heard: Vec<bool>,
    refused: u64,
}

/// Which VM: the worker's number and the role on it.
type Vm = (usize, Role);

/// One thread with its two VMs.
struct Worker {
    count: VmState,
    gate: VmState,
    queue: VecDeque<Callback>,
    /// The rest of the callback under way, last step first.
    program: Vec<Micro>,
}

struct VmState {
    slot: Slot,
    draining: bool,
    /// New requests are sent back.
    refuses: bool,
    /// Something may be cut, and the most in flight is watched.
    flipped: bool,
    tick: Option<Instant>,
    waiter: Option<(Until, u64)>,
}

/// What a worker's thread is asked to do.
#[derive(Clone, Debug)]
enum Callback {
    Bell(Role),
    Tick(Role),
    Arrive { lasts: Option<Duration> },
    Leave,
    Command(Input),
    Wait(Until),
    Probe(usize),
}

/// What happens without another worker in between.
#[derive(Clone, Debug)]
enum Micro {
    Ledger(i64),
    /// One more was let in.
    Admit,
    /// Before a request ends: the most in flight is reported.
    Watch,
    /// The answer to a balancer leaves.
    Answered(usize),
    /// Takes a step if the ledger reads no more than that: a zero has ended, or begun.
    LookIfDraining {
        at_most: u64,
    },
    Heed(Role),
    Answer(Role),
    Publish(Role, Slot, Registry, u64),
    Load(Role, Input),
    Read(Role, Input, Record, u64),
    Commit(Role, Input, Record, u64, Reading),
    Perform(Effect),
    Settle(Role),
    Wait(Until),
    Finish(Role),
}

impl World {
    pub(crate) fn new(seed: u64, setup: Setup) -> Self {
        let now = Instant::from_micros(1_000_000_000);
        let mut registry = Registry::default();
        let mut vm = |role| {
            let generation = registry.take_generation();
            let bell = u32::try_from(generation).unwrap();
            let slot = Slot {
                generation,
                vm: generation,
                role,
                ledger: LedgerKind::Gauge,
                bell,
                born: now,
                alive: true,
                answered: 0,
            };
            registry.publish(slot.clone(), now);
            VmState { slot, draining: false, refuses: false, flipped: false, tick: None, waiter: None }
        };
        let workers: Vec<Worker> = (0..setup.workers)
            .map(|_| Worker {
                count: vm(Role::Count),
                gate: vm(Role::Gate),
                queue: VecDeque::new(),
                program: Vec::new(),
            })
            .collect();
        let mut world = Self {
            now,
            random: SplitMix(seed),
            record: Record::open(now),
            record_version: 1,
            registry,
            registry_version: 1,
            ledger: 0,
            workers,
            deaf: None,
            due: Vec::new(),
            transitions_logged: 0,
            transitions_committed: 0,
            requests_total: 0,
            lost_races: 0,
            in_flight_at_drain: 0,
            admitted: 0,
            admitted_at_flip: 0,
            hard_answers: 0,
            most_exposed: 0,
            soft_answers: 0,
            heard: vec![false; setup.balancers],
            refused: 0,
        };
        world.plan_run(&setup);
        world
    }

    fn schedule(&mut self, micros: usize, callback: Callback) {
        let worker = self.random.below(self.workers.len());
        self.due.push((self.now.after(Duration::from_micros(micros as u64)), worker, callback));
    }

    /// Runs until nothing is left to do but to wait for a stimulus from outside.
    pub(crate) fn run(&mut self) {
        for _ in 0..200_000 {
            self.deliver();
            let ready: Vec<usize> = (0..self.workers.len()).filter(|at| self.busy(*at)).collect();
            if ready.is_empty() {
                match self.next_time() {
                    Some(next) => self.now = self.now.after(next.since(self.now)),
                    None => return self.check_end(),
                }
                continue;
            }
            let at = ready[self.random.below(ready.len())];
            self.run_one_step(at);
            if self.random.below(4) == 0 {
                self.now = self.now.after(Duration::from_micros(self.random.below(200) as u64));
            }
        }
        panic!("the run does not end: {:?}", self.record);
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn waiters_left(&self) -> usize {
        self.workers.iter().filter(|worker| worker.gate.waiter.is_some()).count()
    }

    fn busy(&self, at: usize) -> bool {
        !self.workers[at].queue.is_empty() || !self.workers[at].program.is_empty()
    }

    /// Queues whatever is due by now on the threads that it belongs to.
    fn deliver(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.due).into_iter().partition(|(when, _, _)| *when <= now);
        self.due = later;
        for (_, at, callback) in due {
            self.workers[at].queue.push_back(callback);
        }
        for at in 0..self.workers.len() {
            for role in [Role::Count, Role::Gate] {
                let vm = self.vm(at, role);
                if vm.tick.is_some_and(|tick| tick <= now) {
                    vm.tick = None;
                    self.workers[at].queue.push_back(Callback::Tick(role));
                }
            }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let ticks = self.workers.iter().flat_map(|worker| [worker.count.tick, worker.gate.tick]).flatten();
        self.due.iter().map(|(when, _, _)| *when).chain(ticks).min()
    }

    fn vm(&mut self, at: usize, role: Role) -> &mut VmState {
        match role {
            Role::Count => &mut self.workers[at].count,
            Role::Gate => &mut self.workers[at].gate,
        }
    }

    fn run_one_step(&mut self, at: usize) {
        if let Some(micro) = self.workers[at].program.pop() {
            return self.perform(at, micro);
        }
        let Some(callback) = self.workers[at].queue.pop_front() else { return };
        let program = match callback {
            Callback::Bell(role) | Callback::Tick(role) if self.deaf == Some((at, role)) => vec![],
            Callback::Bell(role) | Callback::Tick(role) => vec![Micro::Heed(role)],
            Callback::Arrive { lasts } => {
                self.requests_total += 1;
                if self.vm(at, Role::Count).refuses {
                    self.refused += 1;
                    return;
                }
                if let Some(lasts) = lasts {
                    self.due.push((self.now.after(lasts), at, Callback::Leave));
                }
                vec![Micro::LookIfDraining { at_most: self.workers.len() as u64 }, Micro::Admit, Micro::Ledger(1)]
            }
            Callback::Leave => vec![Micro::LookIfDraining { at_most: 0 }, Micro::Ledger(-1), Micro::Watch],
            Callback::Probe(balancer) => {
                let probe = Probe { path: Path::Balancer, prober: Some(format!("10.0.0.{balancer}")) };
                let load = Micro::Load(Role::Gate, Input::Probe(probe));
                vec![Micro::Finish(Role::Gate), Micro::Answered(balancer), load]
            }
            Callback::Command(input) => {
                if matches!(input, Input::Drain(_)) && self.record.drains == 0 {
                    self.in_flight_at_drain = self.ledger;
                }
                vec![Micro::Finish(Role::Gate), Micro::Load(Role::Gate, input)]
            }
            Callback::Wait(until) => {
                vec![Micro::Finish(Role::Gate), Micro::Wait(until), Micro::Load(Role::Gate, Input::Tick)]
            }
        };
        self.workers[at].program = program;
    }

    fn perform(&mut self, at: usize, micro: Micro) {
        match micro {
            Micro::Ledger(offset) => {
                self.ledger = self.ledger.checked_add_signed(offset).expect("the ledger is negative");
                self.expose();
            }
            Micro::Admit => self.admitted += u64::from(self.record.drains > 0),
            Micro::Watch => {
                // The host tells by a counter of hard answers, which is ahead of the bell, whether there is anything to watch.
                if self.vm(at, Role::Count).flipped || self.hard_answers > 0 {
                    self.then(at, [Micro::Load(Role::Count, Input::Tick)]);
                }
            }
            Micro::Answered(balancer) => self.answered(balancer),
            Micro::LookIfDraining { at_most } => {
                if self.vm(at, Role::Count).draining && self.ledger <= at_most {
                    self.then(at, [Micro::Finish(Role::Count), Micro::Load(Role::Count, Input::Tick)]);
                }
            }
            Micro::Heed(role) => {
                let next = if self.record.state.name() == StateName::Open {
                    Micro::Settle(role)
                } else {
                    Micro::Load(role, Input::Tick)
                };
                self.then(at, [Micro::Finish(role), next, Micro::Answer(role)]);
            }
            Micro::Answer(role) => {
                let drains = self.record.drains;
                let slot = &mut self.vm(at, role).slot;
                if slot.answered < drains {
                    slot.answered = drains;
                    let publish = Micro::Publish(role, slot.clone(), self.registry.clone(), self.registry_version);
                    self.then(at, [publish]);
                }
            }
            Micro::Publish(role, slot, mut registry, version) => {
                if version == self.registry_version {
                    registry.publish(slot, self.now);
                    self.registry = registry;
                    self.registry_version += 1;
                } else {
                    self.lost_races += 1;
                    let again = Micro::Publish(role, slot, self.registry.clone(), self.registry_version);
                    self.then(at, [again]);
                }
            }
            Micro::Load(role, input) => {
                let read = Micro::Read(role, input, self.record.clone(), self.record_version);
                self.then(at, [read]);
            }
            Micro::Read(role, input, record, version) => {
                let roll_call = self.registry.roll_call(record.drains, record.state.since());
                let reading = Reading { blind: false, admitted: self.admitted, active: self.ledger, roll_call };
                self.then(at, [Micro::Commit(role, input, record, version, reading)]);
            }
            Micro::Commit(role, input, record, version, reading) => {
                self.commit(at, role, input, record, version, reading);
            }
            Micro::Perform(Effect::Ring) => self.ring(),
            Micro::Perform(Effect::Log(_)) => self.transitions_logged += 1,
            Micro::Perform(Effect::LogDistrust(_) | Effect::LogTrust(_) | Effect::Count(_)) => {}
            Micro::Settle(role) => self.keep(at, role),
            Micro::Wait(until) => {
                let known = self.record.changes;
                let waits = until.status(&self.record, known).is_none();
                self.workers[at].gate.waiter = waits.then_some((until, known));
            }
            Micro::Finish(role) => self.finish(at, role),
        }
    }

    /// The next steps of a worker, the last one first.
    fn then<const N: usize>(&mut self, at: usize, micros: [Micro; N]) {
        self.workers[at].program.extend(micros);
    }

    fn commit(&mut self, at: usize, role: Role, input: Input, record: Record, version: u64, reading: Reading) {
        let done = step(&record, self.now, reading, &input);
        if done.record != record {
            if version != self.record_version {
                self.lost_races += 1;
                return self.then(at, [Micro::Load(role, input)]);
            }
            self.check_commit(&record, &done.record, reading);
            self.record = done.record;
            self.record_version += 1;
        }
        self.keep(at, role);
        let effects: Vec<Micro> = done.effects.into_iter().rev().map(Micro::Perform).collect();
        self.workers[at].program.extend(effects);
    }

    fn keep(&mut self, at: usize, role: Role) {
        let (draining, refuses) = (self.record.waits_for_zero(), self.record.deflection().is_some());
        let flipped = self.record.aftermath.is_some();
        let vm = self.vm(at, role);
        (vm.draining, vm.refuses, vm.flipped) = (draining, refuses, flipped);
    }

    /// Ends a callback: answers whoever waits, arms the tick. There is no regular look: every wake-up must have a reason.
    fn finish(&mut self, at: usize, role: Role) {
        let deadline = self.record.deadline(self.now);
        let record = self.record.clone();
        let vm = self.vm(at, role);
        vm.tick = deadline;
        if let Some((until, known)) = vm.waiter {
            match until.status(&record, known) {
                Some(202) => vm.waiter = Some((until, record.changes)),
                Some(_) => vm.waiter = None,
                None => {}
            }
        }
    }

    fn ring(&mut self) {
        for at in 0..self.workers.len() {
            for role in [Role::Count, Role::Gate] {
                let late = Duration::from_micros(self.random.below(500) as u64);
                self.due.push((self.now.after(late), at, Callback::Bell(role)));
            }
        }
    }
}
