mod gate;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use softclose_fsm::{
    Deflection, DistrustReason, Handled, Host, Input, Instant, LedgerKind, Record, Registry, Slot, StateName, Status,
    handle,
};

use crate::bells;
use crate::config::{Config, GateConfig};
use crate::host::{self, Level};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::stream::{Ending, send_status};
use crate::waiters::Waiters;

/// Requests that a worker counts before it reports them; a hostcall less for each request.
const REPORTED_BATCH: u64 = 64;

/// How long what has ended may stay in the ledger while the gate is OPEN, where nobody acts on the count: long enough to cost a
/// busy gateway nothing, and no longer than one scrape of its metrics.
const OWED_MAX: Duration = Duration::from_secs(1);

/// While draining, a worker looks at the ledger at least this often, should an edge have been missed.
const DRAINING_LOOK: Duration = Duration::from_secs(1);

thread_local! {
    /// The generation of this VM's first slot, which names the VM. One VM has one thread and its own statics.
    static VM: Cell<Option<u64>> = const { Cell::new(None) };
}

/// One root context: what it and its streams share on one worker.
pub(crate) struct Worker {
    /// The plugin's name, as the host knows it.
    pub(crate) plugin: Vec<u8>,
    pub(crate) config: Config,
    metrics: Metrics,
    ledger: Ledger,
    pub(crate) waiters: RefCell<Waiters>,
    root: u32,
    slot: RefCell<Option<Slot>>,
    /// The record as this worker last saw it, so that counting in OPEN makes no shared-data call.
    cached: RefCell<Option<Record>>,
    /// Up to when what is due in `cached` was carried out.
    settled: Cell<Instant>,
    open: Cell<bool>,
    /// A drain is under way that waits for zero.
    draining: Cell<bool>,
    /// The balancer is being told softly.
    soft: Cell<bool>,
    /// How new requests are sent back to the balancer, if they are.
    deflection: Cell<Option<Deflection>>,
    /// The hard answers that this worker knows of: with each more the balancer may have noticed.
    hard_answers: Cell<u64>,
    /// Late requests and those that may be cut, as this worker last showed them.
    shown: Cell<(u64, u64)>,
    /// Requests that have ended and are still in the ledger. While the gate is OPEN the next request takes such a place over, so
    /// that neither costs a hostcall. The ledger then reads too much, never too little.
    owed: Cell<u64>,
    /// The beginning of the zero that this worker saw begin.
    saw_zero: Cell<Option<Instant>>,
    /// Counting VMs, as of the last reading.
    workers: Cell<u32>,
    /// A request could not be counted, and that is not in the record yet.
    missed: Cell<bool>,
    unreported: Cell<u64>,
    reported_any: Cell<bool>,
    ticking: Cell<bool>,
}

impl Worker {
    /// A worker that nobody can ring yet; `root` is its root context.
    pub(crate) fn new(root: u32, plugin: Vec<u8>, config: Config, metrics: Metrics, ledger: Ledger) -> Self {
        Self {
            plugin,
            config,
            metrics,
            ledger,
            waiters: RefCell::default(),
            root,
            slot: RefCell::default(),
            cached: RefCell::default(),
            settled: Cell::new(host::monotonic()),
            open: Cell::new(false),
            draining: Cell::new(false),
            soft: Cell::new(false),
            deflection: Cell::new(None),
            hard_answers: Cell::new(0),
            shown: Cell::new((0, 0)),
            owed: Cell::new(0),
            saw_zero: Cell::new(None),
            workers: Cell::new(u32::MAX),
            missed: Cell::new(false),
            unreported: Cell::new(0),
            reported_any: Cell::new(false),
            ticking: Cell::new(false),
        }
    }

    /// Registers the bell, publishes the slot, reads the record and arms the tick, in that order: whatever is committed from
    /// here on either is in the record that is read, or rings the bell.
    pub(crate) fn enrol(&self) {
        let now = host::monotonic();
        let Some(generation) = bells::update(Registry::take_generation) else {
            return host::log(Level::Error, "softclose: no generation could be taken; this VM cannot be rung");
        };
        let bell = match host::register_queue(&format!("softclose.bell.{generation}")) {
            Ok(bell) => bell,
            Err(status) => {
                return host::log(Level::Error, &format!("softclose: no bell could be registered: {status:?}"));
            }
        };
        let vm = VM.with(|vm| {
            let first = vm.get().unwrap_or(generation);
            vm.set(Some(first));
            first
        });
        let (role, ledger) = (self.config.role(), self.ledger.kind());
        let slot = Slot { generation, vm, role, ledger, bell, born: now, alive: false, answered: 0 };
        bells::publish(&slot, now);
        *self.slot.borrow_mut() = Some(slot);
        let loaded = (&*self).load();
        self.keep(loaded.record);
        // The first tick proves that this VM lives: the canary is killed before it ticks.
        self.tick_in(Duration::from_millis(1));
    }

    /// What a VM that is about to trap still can do: take its own requests out of the ledger, and say that the count is not to be
    /// believed, since those requests live on uncounted. Runs inside a panic, so it touches nothing that may be borrowed.
    pub(crate) fn last_will(&self) {
        handle(&mut &*self, &Input::Distrust(DistrustReason::Trap));
        // In this order: a share that is gone before everybody knows looks like zero.
        if self.is_distrusted() {
            self.ledger.take_own_share();
        }
    }

    /// Gives the slot back: this root context is being replaced.
    pub(crate) fn leave(&self) {
        // Nothing ticks for this worker from here on, so its streams that still run take themselves out at once.
        self.open.set(false);
        self.pay();
        if let Some(slot) = self.slot.borrow_mut().take() {
            bells::update(|registry| registry.leave(slot.generation));
        }
    }

    /// Whether `token` is this worker's own bell; takes what lies in it.
    pub(crate) fn is_rung_by(&self, token: u32) -> bool {
        let own = self.slot.borrow().as_ref().is_some_and(|slot| slot.bell == token);
        if own {
            while host::dequeue(token).is_ok() {}
        }
        own
    }

    /// Reads the record anew, answers the roll call, settles what is due, wakes whom it concerns and arms the next tick.
    pub(crate) fn heed(&self) {
        // Before the roll call is answered: who has answered owes nothing.
        self.pay();
        self.own_up();
        let record = (&*self).load().record;
        self.answer_roll_call(record.drains);
        let settled = match record.state.name() {
            StateName::Open => None,
            StateName::Draining | StateName::Closing | StateName::Closed | StateName::Fault => {
                Some(self.take(&Input::Tick))
            }
        };
        let record = settled.map_or(record, |handled| handled.record);
        self.release(&record);
        self.keep(record);
        self.arm();
    }

    /// Drives the gate with one input.
    pub(crate) fn take(&self, input: &Input) -> Handled {
        let known = self.cached.borrow().as_ref().and_then(Record::zero_since);
        let handled = handle(&mut &*self, input);
        if !handled.contended {
            self.show_aftermath(&handled);
            let zero = handled.record.zero_since().filter(|zero| known != Some(*zero) && *zero == handled.now);
            self.saw_zero.set(zero.or(self.saw_zero.get()));
            self.keep(handled.record.clone());
            self.settled.set(handled.now);
        }
        handled
    }

    /// A request has arrived; whether it is in the ledger.
    pub(crate) fn enter(&self) -> bool {
        let counted = self.take_over() || self.ledger.enter();
        if !counted {
            self.missed.set(true);
            self.own_up();
        }
        self.unreported.set(self.unreported.get() + 1);
        if !self.open.get() {
            // After the ledger, so that a request which a reading of zero did not see is not in the reading before it either.
            self.metrics.add_admitted();
        }
        if !self.open.get() || !self.reported_any.get() || self.unreported.get() >= REPORTED_BATCH {
            self.report();
        }
        // A zero that others may be waiting out has to end now. If there was one, then at most one +1 per worker has come since
        // and this one reads no more than that; with more in flight nobody can be waiting.
        if self.draining.get() && self.ledger.reads_at_most(self.workers.get()) {
            self.take(&Input::Tick);
        }
        counted
    }

    /// A request that is in the ledger has ended. Runs while the host tears the stream down: it may be called, but must not be asked
    /// to answer a stream. `ending` is asked only while draining: was it answered to its end, or does zero prove nothing?
    pub(crate) fn exit(&self, ending: impl FnOnce() -> Ending) {
        if self.open.get() {
            return self.owe();
        }
        self.exit_of_drain(ending);
    }

    #[cold]
    fn exit_of_drain(&self, ending: impl FnOnce() -> Ending) {
        self.watch();
        let ending = if self.draining.get() { ending() } else { Ending::Answered };
        if ending == Ending::ByHost {
            self.take(&Input::Distrust(DistrustReason::Cut));
        }
        if ending == Ending::ByPeer {
            // While it still is in the ledger: nobody may believe a zero before this is known.
            self.take(&Input::PeerEnded);
        }
        self.ledger.leave(1);
        // Whoever takes the ledger to zero reads zero, or something that came since and will end in its turn.
        if self.draining.get() && self.ledger.reads_at_most(0) {
            if ending == Ending::ByPeer && self.soft.get() {
                self.take(&Input::Distrust(DistrustReason::Aborted));
            }
            let handled = self.take(&Input::Tick);
            self.saw_zero.set(handled.record.zero_since());
            self.arm();
        }
    }

    /// How a new request is sent back to the balancer, as far as this worker has heard; none: it is served.
    pub(crate) fn deflection(&self) -> Option<Deflection> {
        self.deflection.get()
    }

    pub(crate) fn count_refused(&self) {
        self.metrics.add_refused();
    }

    /// The status document of `record`, with a reading of its own: the one that decided belongs to the record before.
    pub(crate) fn status(&self, record: &Record) -> Status {
        let mut me = self;
        let reading = me.reading(record);
        let now = me.now();
        let plan = match &self.config {
            Config::Gate(gate) => gate.plan.clone(),
            Config::Count { .. } => GateConfig::default().plan,
        };
        Status::of(record, reading, now, &plan, self.ledger.kind(), self.metrics.requests())
    }

    /// Arms the tick for the next deadline of the record or of a waiter; none without one.
    pub(crate) fn arm(&self) {
        let now = host::monotonic();
        let cached = self.cached.borrow();
        // Of the deadlines that were ahead when the record was last settled: one that has come since is due at once, not over.
        let deadline = cached.as_ref().and_then(|record| record.deadline(self.settled.get()));
        let look = self.draining.get().then(|| now.after(DRAINING_LOOK));
        // A VM that is made on the way of a request must not lose the tick that proves it alive to that request's own.
        let proof = self.slot.borrow().as_ref().filter(|slot| !slot.alive).map(|_| now);
        let waiters = self.waiters.borrow().next_due(cached.as_ref(), now);
        let owed = (self.owed.get() > 0).then(|| now.after(OWED_MAX));
        let next = [deadline, look, proof, waiters, owed].into_iter().flatten().min();
        match next {
            Some(at) => self.tick_in(at.since(now).max(Duration::from_millis(1))),
            None if self.ticking.get() => self.tick_in(Duration::ZERO),
            None => {}
        }
    }

    /// Keeps account of the most in flight while something can be cut.
    ///
    /// The ledger falls only where a request ends, so whoever looks before each end misses no height. A hard answer is in the
    /// metric before it leaves, so no balancer knows of one that is not seen here.
    fn watch(&self) {
        let served = self.metrics.hard_answers();
        let news = self.hard_answers.replace(served) != served;
        let (flipped, peak) = self
            .cached
            .borrow()
            .as_ref()
            .map_or((false, None), |record| (record.aftermath.is_some(), record.cut_at_most()));
        // Where the gauge is a dud, so may the counter be.
        let blind = flipped && self.ledger.kind() == LedgerKind::Shared;
        if news || blind || peak.is_some_and(|peak| self.ledger.active() > peak) {
            self.take(&Input::Tick);
        }
    }

    fn show_aftermath(&self, handled: &Handled) {
        let late = handled.record.late(&handled.reading).unwrap_or(0);
        let aftermath = (late, handled.record.cut_at_most().unwrap_or(0));
        if self.shown.replace(aftermath) != aftermath {
            self.metrics.show_aftermath(aftermath.0, aftermath.1);
        }
    }

    /// Whether a request that begins has the place of one that ended.
    fn take_over(&self) -> bool {
        let owed = self.owed.get();
        self.owed.set(owed.saturating_sub(1));
        owed > 0
    }

    fn owe(&self) {
        self.owed.set(self.owed.get() + 1);
        if !self.ticking.get() {
            self.tick_in(OWED_MAX);
        }
    }

    /// Takes what has ended out of the ledger.
    fn pay(&self) {
        let owed = self.owed.replace(0);
        if owed > 0 {
            self.ledger.leave(owed);
        }
    }

    /// Says, until it is heard, that a request is in flight which is not in the ledger.
    fn own_up(&self) {
        if self.missed.get() {
            self.take(&Input::Distrust(DistrustReason::Ledger));
            self.missed.set(!self.is_distrusted());
        }
    }

    fn is_distrusted(&self) -> bool {
        let loaded = (&*self).load();
        loaded.decoded && loaded.record.distrust.is_some()
    }

    fn tick_in(&self, period: Duration) {
        self.ticking.set(!period.is_zero());
        if let Err(status) = host::as_root(self.root, || host::set_tick(period)) {
            host::log(Level::Error, &format!("softclose: no tick could be armed: {status:?}"));
        }
    }

    fn keep(&self, record: Record) {
        let state = record.state.name();
        self.draining.set(record.waits_for_zero());
        self.soft.set(record.speaks_softly());
        self.deflection.set(record.deflection());
        // A worker that has left has nobody to pay for it later.
        self.open.set(state == StateName::Open && self.slot.borrow().is_some());
        if !self.open.get() {
            self.pay();
        }
        *self.cached.borrow_mut() = Some(record);
    }

    fn report(&self) {
        self.metrics.add_requests(self.unreported.replace(0));
        self.reported_any.set(true);
    }

    fn answer_roll_call(&self, drain: u64) {
        let mut slot = self.slot.borrow_mut();
        let Some(slot) = slot.as_mut().filter(|slot| !slot.alive || slot.answered < drain) else {
            return;
        };
        if self.unreported.get() > 0 {
            self.report();
        }
        let answered = Slot { alive: true, answered: drain, ..slot.clone() };
        if bells::publish(&answered, host::monotonic()) {
            *slot = answered;
        }
    }

    fn release(&self, record: &Record) {
        let released = self.waiters.borrow_mut().release(record, host::monotonic());
        if released.is_empty() {
            return;
        }
        for waiter in released {
            if host::speak_for(waiter.context).is_err() {
                continue;
            }
            send_status(waiter.status, Status { error: waiter.error, ..self.status(record) }, None);
        }
        if let Err(status) = host::speak_for(self.root) {
            host::log(Level::Error, &format!("softclose: the root context is gone: {status:?}"));
        }
    }
}
