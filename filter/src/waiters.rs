use std::time::Duration;

use softclose_fsm::control::Until;
use softclose_fsm::{Instant, Record};

/// The most waits that one VM holds. A wait belongs to a preStop command; a thousand of them is somebody's mistake.
pub(crate) const WAITERS_MAX: usize = 1_000;

/// The most that are released in one callback. Envoy sends their answers after it, each on the stack of the one before; from
/// about 300 on the VM's stack is used up (measured on Envoy 1.40).
const RELEASED_AT_ONCE: usize = 64;

/// Streams on this VM that are paused until something happens.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Vec<Waiter>,
}

/// One paused `GET /wait`.
struct Waiter {
    context: u32,
    until: Until,
    timeout: Duration,
    ends: Instant,
    /// The newest change that its caller knows of.
    known: u64,
}

/// A waiter whose time has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) context: u32,
    pub(crate) status: u16,
    /// Said with a 504.
    pub(crate) error: Option<String>,
}

impl Waiters {
    /// Adds a waiter who knows of the changes up to `known`; false if there is no room.
    pub(crate) fn add(&mut self, context: u32, until: Until, timeout: Duration, known: u64, now: Instant) -> bool {
        if self.waiting.len() >= WAITERS_MAX {
            return false;
        }
        let ends = now.after(timeout);
        self.waiting.push(Waiter { context, until, timeout, ends, known });
        true
    }

    /// Forgets a waiter whose stream has ended.
    pub(crate) fn remove(&mut self, context: u32) {
        self.waiting.retain(|waiter| waiter.context != context);
    }

    /// Takes out those for whom `record` at `now` is an answer, as many as can be answered at once.
    pub(crate) fn release(&mut self, record: &Record, now: Instant) -> Vec<Released> {
        let mut released = Vec::new();
        self.waiting.retain(|waiter| {
            if released.len() >= RELEASED_AT_ONCE {
                return true;
            }
            let answer = waiter.until.status(record, waiter.known).map(|status| (status, None));
            let answer = answer.or_else(|| {
                let error = format!("not {} within {} ms", waiter.until.as_str(), waiter.timeout.as_millis());
                (waiter.ends <= now).then_some((504, Some(error)))
            });
            let Some((status, error)) = answer else { return true };
            released.push(Released { context: waiter.context, status, error });
            false
        });
        released
    }

    /// When the next one has to be released: at once if `record` is an answer to somebody, else when the first wait is over.
    pub(crate) fn next_due(&self, record: Option<&Record>, now: Instant) -> Option<Instant> {
        let answered =
            |waiter: &Waiter| record.is_some_and(|record| waiter.until.status(record, waiter.known).is_some());
        self.waiting.iter().map(|waiter| if answered(waiter) { now } else { waiter.ends }).min()
    }
}

#[cfg(test)]
mod tests;
