//! A small Proxy-Wasm host: one Envoy process with its main thread, its workers, and the state that their VMs share.
//!
//! What it copies, and from where: callbacks, deferred actions and failure checks from proxy-wasm-cpp-host (`context.cc`,
//! `wasm.cc`, `exports.cc`), shared data and queues from its `shared_data.cc` and `shared_queue.cc`; streams, metrics, timers
//! and reloading from Envoy's `extensions/common/wasm` (`context.cc`, `wasm.cc`).
//!
//! Deterministic: there is one real thread, and the clock moves only when a test moves it. A callback runs to its end on its
//! own worker; what other workers do meanwhile happens inside its hostcalls, where a test or the seeded scheduler runs whole
//! callbacks of other workers ([`Process::intrude`], [`Process::race`]).
//!
//! Deliberately absent: sockets, filters other than ours, response and trailer maps, HTTP and gRPC calls. An import that is
//! not offered here traps the VM that calls it.

mod calls;
mod code;
mod state;
mod streams;
mod threads;
mod vm;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

pub(crate) use code::Code;
pub(crate) use state::{Fault, Line, STATUSES, Traced};
use state::{State, Timer};
pub(crate) use streams::{Listener, Reply, Request, Stream, StreamId};
use threads::Thread;
use vm::Vm;

/// The thread that configures; it has VMs like any worker, but no streams.
pub(crate) const MAIN: usize = 0;

/// Which of the two plugins; each has VMs of its own, because their VM configurations differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Count,
    Gate,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::Count, Self::Gate];

    fn vm_configuration(self) -> &'static [u8] {
        match self {
            Self::Count => b"count",
            Self::Gate => b"gate",
        }
    }
}

/// What a process is started with.
pub(crate) struct Setup {
    pub(crate) workers: usize,
    pub(crate) seed: u64,
    pub(crate) code: &'static Code,
    /// The plugin configuration of the counting role.
    pub(crate) count: Vec<u8>,
    /// The plugin configurations of the answering role: one root context each. The health listener has the first one, the
    /// control listener the last.
    pub(crate) gates: Vec<Vec<u8>>,
    /// How many plugins of the counting role there are, all configured alike; the traffic listener has the first one.
    pub(crate) counts: usize,
    /// Whether the plugins of a role have one name: then nothing tells a stream's root context from another.
    pub(crate) namesakes: bool,
    /// Whether a gauge that is defined on this thread is a dud: it takes every increment and reads zero.
    pub(crate) null_gauge: fn(thread: usize, name: &str) -> bool,
    /// Roles in the order in which they are configured; one that is missing is a filter that is not attached.
    pub(crate) order: Vec<Role>,
    /// Planned from the very first hostcall on.
    pub(crate) fault: Option<Fault>,
}

impl Setup {
    pub(crate) fn of(workers: usize) -> Self {
        Self {
            workers,
            seed: 0,
            code: Code::shipped(),
            count: br#"{"role": "count"}"#.to_vec(),
            gates: vec![br#"{"role": "gate", "plan": {"settle_ms": 0, "hold_max_ms": 1000}}"#.to_vec()],
            counts: 1,
            namesakes: false,
            null_gauge: |_, _| false,
            order: Role::BOTH.to_vec(),
            fault: None,
        }
    }
}

/// One Envoy process.
#[derive(Clone)]
pub(crate) struct Process(Rc<Inner>);

/// What happens before a hostcall of some VM is carried out.
type Hook = Box<dyn FnMut(&Process, Intruded)>;

/// Is shown each shared value that was written, at that very moment.
type Witness = Box<dyn FnMut(&Process, &str, &[u8])>;

/// The hostcall that a [`Hook`] comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intruded {
    pub(crate) thread: usize,
    pub(crate) role: Role,
    pub(crate) call: &'static str,
}

struct Inner {
    setup: Setup,
    state: RefCell<State>,
    threads: Vec<Thread>,
    timers: RefCell<BTreeMap<(usize, u32), Timer>>,
    streams: RefCell<Vec<Stream>>,
    vms: Cell<usize>,
    pushes: Cell<u32>,
    now_nanos: Cell<u64>,
    wall_nanos: Cell<u64>,
    random: Cell<u64>,
    hook: RefCell<Option<Hook>>,
    witness: RefCell<Option<Witness>>,
    /// Out of a hundred hostcalls, before how many another worker gets a turn.
    races: Cell<u64>,
    raced: Cell<u64>,
    depth: Cell<usize>,
}

impl Process {
    /// Starts a process as Envoy does: per plugin the canary VM is configured and killed, then the main thread and the workers
    /// get theirs; a plugin whose canary refuses is not there ([`Process::attached`]). Nothing that they posted has been delivered yet.
    pub(crate) fn begin(setup: Setup) -> Self {
        const BOOTED: u64 = 1_000_000_000_000;
        const WALL: u64 = 1_800_000_000_000_000_000;
        let inner = Inner {
            state: RefCell::default(),
            threads: (0..=setup.workers).map(|_| Thread::default()).collect(),
            timers: RefCell::default(),
            streams: RefCell::default(),
            vms: Cell::new(0),
            pushes: Cell::new(0),
            now_nanos: Cell::new(BOOTED),
            wall_nanos: Cell::new(WALL),
            // Any non-trivial start does; seeds differ by one.
            random: Cell::new(setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            hook: RefCell::default(),
            witness: RefCell::default(),
            races: Cell::new(0),
            raced: Cell::new(0),
            depth: Cell::new(0),
            setup,
        };
        let process = Self(Rc::new(inner));
        process.0.state.borrow_mut().faults.extend(process.0.setup.fault);
        for role in process.0.setup.order.clone() {
            let Some(canary) = Vm::load(&process, role, MAIN) else {
                continue;
            };
            canary.kill();
            for thread in 0..=process.0.setup.workers {
                process.replace_vm(thread, role);
            }
        }
        process
    }

    /// Starts a process and lets every VM have its first tick.
    pub(crate) fn start(setup: Setup) -> Self {
        let process = Self::begin(setup);
        process.advance(Duration::from_millis(10));
        process
    }

    /// Workers are threads 1 to this.
    pub(crate) fn workers(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.0.setup.workers
    }

    /// Whether the filter of `role` is there.
    pub(crate) fn attached(&self, role: Role) -> bool {
        self.vm(MAIN, role).is_some()
    }

    /// A number below `bound`, decided by the seed.
    pub(crate) fn random(&self, bound: u64) -> u64 {
        // SplitMix64.
        let state = self.0.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Steps the wall clock, which nothing may be built on.
    pub(crate) fn step_wall_clock(&self, by_nanos: i64) {
        self.0.wall_nanos.set(self.0.wall_nanos.get().wrapping_add_signed(by_nanos));
    }

    /// Runs `hook` before every hostcall from here on. It may run callbacks of any worker but the calling one.
    pub(crate) fn intrude(&self, hook: impl FnMut(&Self, Intruded) + 'static) {
        *self.0.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Ends [`Process::intrude`].
    pub(crate) fn leave_alone(&self) {
        *self.0.hook.borrow_mut() = None;
    }

    /// Shows `witness` each shared value that is written from here on.
    pub(crate) fn witness(&self, witness: impl FnMut(&Self, &str, &[u8]) + 'static) {
        *self.0.witness.borrow_mut() = Some(Box::new(witness));
    }

    /// From here on, before `percent` of all hostcalls another worker runs one whole callback.
    pub(crate) fn race(&self, percent: u64) {
        self.0.races.set(percent);
    }

    /// How often [`Process::race`] ran one.
    pub(crate) fn raced(&self) -> u64 {
        self.0.raced.get()
    }

    fn written(&self, key: &[u8], value: &[u8]) {
        if let Some(witness) = self.0.witness.borrow_mut().as_mut() {
            witness(self, &String::from_utf8_lossy(key), value);
        }
    }

    fn before_hostcall(&self, intruded: Intruded) {
        const DEEPEST: usize = 3;
        let hook = self.0.hook.borrow_mut().take();
        if let Some(mut hook) = hook {
            hook(self, intruded);
            self.0.hook.borrow_mut().get_or_insert(hook);
        }
        let percent = self.0.races.get();
        if percent > 0 && self.0.depth.get() < DEEPEST && self.random(100) < percent {
            self.0.depth.set(self.0.depth.get() + 1);
            if self.turn() {
                self.0.raced.set(self.0.raced.get() + 1);
            }
            self.0.depth.set(self.0.depth.get() - 1);
        }
    }
}
