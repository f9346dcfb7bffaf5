use std::collections::{BTreeMap, VecDeque};

use super::Process;
use super::vm::Key;

/// A status of the ABI. Only those that this host gives have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

impl Status {
    pub(crate) const NOT_FOUND: Self = Self(1);
    pub(crate) const BAD_ARGUMENT: Self = Self(2);
    pub(crate) const INVALID_MEMORY_ACCESS: Self = Self(6);
    pub(crate) const EMPTY: Self = Self(7);
    pub(crate) const CAS_MISMATCH: Self = Self(8);
}

/// Every failure that the ABI names, and one that it does not.
pub(crate) const STATUSES: [u32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 255];

/// What all VMs of the process share, and what was seen of them.
#[derive(Default)]
pub(crate) struct State {
    data: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    cas: u32,
    queue_names: BTreeMap<Vec<u8>, u32>,
    queues: BTreeMap<u32, Queue>,
    metrics: BTreeMap<String, u64>,
    pub(crate) lines: Vec<Line>,
    pub(crate) traced: Option<Vec<Traced>>,
    calls: BTreeMap<&'static str, u64>,
    pub(crate) faults: Vec<Fault>,
}

/// A shared queue and whom it rings: not a VM, but a key, a thread and a context number.
struct Queue {
    messages: VecDeque<Vec<u8>>,
    owner: Owner,
}

#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) thread: usize,
    pub(crate) key: Key,
    pub(crate) context: u32,
}

/// A timer of a root context.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    pub(crate) thread: usize,
    pub(crate) period_nanos: u64,
    pub(crate) due_nanos: u64,
}

/// A log line of some VM.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) level: u32,
    pub(crate) text: String,
}

/// A hostcall that was made, with the key or name that it was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    pub(crate) call: &'static str,
    pub(crate) about: String,
}

/// A hostcall fails with `status`, from its `first`-th time on (counted from one, over all VMs), `times` times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) call: &'static str,
    pub(crate) status: u32,
    pub(crate) first: u64,
    pub(crate) times: u64,
}

impl State {
    /// Counts a call; the status that a planned fault answers it with.
    pub(crate) fn count(&mut self, call: &'static str) -> Option<Status> {
        let nth = self.calls.entry(call).or_default();
        *nth += 1;
        let due =
            |fault: &&Fault| fault.call == call && (fault.first..fault.first.saturating_add(fault.times)).contains(nth);
        self.faults.iter().find(due).map(|fault| Status(fault.status))
    }

    pub(crate) fn trace(&mut self, call: &'static str, about: &[u8]) {
        if let Some(traced) = &mut self.traced {
            traced.push(Traced { call, about: String::from_utf8_lossy(about).into_owned() });
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<(Vec<u8>, u32), Status> {
        self.data.get(key).cloned().ok_or(Status::NOT_FOUND)
    }

    /// Zero overwrites whatever is there; an absent key is created whatever `cas` says.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], cas: u32) -> Result<(), Status> {
        if let Some((_, present)) = self.data.get(key)
            && cas != 0
            && cas != *present
        {
            return Err(Status::CAS_MISMATCH);
        }
        self.cas += 1;
        self.data.insert(key.to_vec(), (value.to_vec(), self.cas));
        Ok(())
    }

    /// A name that is registered again keeps its token and its messages, and rings its new owner.
    pub(crate) fn register(&mut self, name: Vec<u8>, owner: Owner) -> u32 {
        let next = u32::try_from(self.queue_names.len()).unwrap() + 1;
        let token = *self.queue_names.entry(name).or_insert(next);
        self.queues.entry(token).or_insert_with(|| Queue { messages: VecDeque::new(), owner }).owner = owner;
        token
    }

    pub(crate) fn resolve(&self, name: &[u8]) -> Result<u32, Status> {
        self.queue_names.get(name).copied().ok_or(Status::NOT_FOUND)
    }

    pub(crate) fn enqueue(&mut self, token: u32, message: Vec<u8>) -> Result<Owner, Status> {
        let queue = self.queues.get_mut(&token).ok_or(Status::NOT_FOUND)?;
        queue.messages.push_back(message);
        Ok(queue.owner)
    }

    pub(crate) fn dequeue(&mut self, token: u32) -> Result<Vec<u8>, Status> {
        self.queues.get_mut(&token).ok_or(Status::NOT_FOUND)?.messages.pop_front().ok_or(Status::EMPTY)
    }

    /// Wraps like Envoy's gauge: there is no floor at zero.
    pub(crate) fn add(&mut self, metric: &str, offset: i64) {
        let value = self.metrics.entry(metric.to_owned()).or_default();
        *value = value.wrapping_add_signed(offset);
    }

    pub(crate) fn record(&mut self, metric: &str, value: u64) {
        self.metrics.insert(metric.to_owned(), value);
    }

    pub(crate) fn metric(&self, metric: &str) -> u64 {
        self.metrics.get(metric).copied().unwrap_or_default()
    }
}

impl Process {
    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.0.state.borrow().metric(name)
    }

    /// A shared value.
    pub(crate) fn shared(&self, key: &str) -> Option<Vec<u8>> {
        self.0.state.borrow().get(key.as_bytes()).ok().map(|(value, _)| value)
    }

    /// Puts a shared value in place, as another module of the same `vm_id` might.
    pub(crate) fn share(&self, key: &str, value: &[u8]) {
        self.0.state.borrow_mut().set(key.as_bytes(), value, 0).unwrap();
    }

    /// The log lines so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.0.state.borrow().lines.clone()
    }

    /// Plans a fault; counting starts anew.
    pub(crate) fn fail(&self, fault: Fault) {
        let mut state = self.0.state.borrow_mut();
        state.calls.clear();
        state.faults = vec![fault];
    }

    /// Ends all faults.
    pub(crate) fn recover(&self) {
        self.0.state.borrow_mut().faults.clear();
    }

    /// The hostcalls that `run` makes.
    pub(crate) fn traced(&self, run: impl FnOnce()) -> Vec<Traced> {
        self.0.state.borrow_mut().traced = Some(Vec::new());
        run();
        self.0.state.borrow_mut().traced.take().unwrap()
    }
}
