//! How a worker drives the gate: the shared record is read and replaced, the ledger is read, effects are carried out.

use std::time::Duration;

use serde::Serialize;
use softclose_fsm::{DistrustReason, Effect, Host, Input, Instant, Loaded, Reading, Record, Role, Stored};

use super::Worker;
use crate::config::Config;
use crate::host::{self, CAS_ABSENT, Failure, Level};
use crate::{bells, json};

/// The shared record. The format's version is part of the key: shared data survives a push of another module, which must not
/// take this one's record for its own.
const RECORD: &str = "softclose.1.record";

/// How long a young zero is left to the worker that saw it begin. Its tick comes in a later turn of its event loop, when a
/// pipelined request has been read; another worker knows only the time, and that one may not have been running. Longer than
/// the 4 ms at which a tick comes on a kernel with 250 Hz.
const YOUNG_ZERO: Duration = Duration::from_millis(10);

/// What was read of the shared record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version(u32);

impl Host for &Worker {
    type Version = Version;

    fn now(&self) -> Instant {
        host::monotonic()
    }

    fn load(&mut self) -> Loaded<Version> {
        let now = host::monotonic();
        let (record, cas) = match host::shared(RECORD) {
            Ok(shared) => (json::from_slice(&shared.value), shared.cas),
            Err(Failure::NOT_FOUND) => (Some(Record::open(now)), CAS_ABSENT),
            // Not to be read, so not to be judged; and a write is to fail if there is something.
            Err(_) => (None, CAS_ABSENT),
        };
        let decoded = record.is_some();
        Loaded { record: record.unwrap_or_else(|| Record::undecodable(now)), version: Version(cas), decoded }
    }

    fn reading(&mut self, record: &Record) -> Reading {
        let now = host::monotonic();
        // Outside of a drain the roll call says who is there: everybody in time, nobody a newcomer.
        let rung = if record.waits_for_zero() { record.state.since() } else { now };
        let registry = bells::registry();
        let roll_call = registry.roll_call(record.drains, rung);
        self.workers.set(roll_call.expected);
        let foreign_zero =
            record.zero_since().is_some_and(|zero| self.saw_zero.get() != Some(zero) && now.since(zero) < YOUNG_ZERO);
        // Before the ledger: whoever is let in after that one was read is late.
        let admitted = self.metrics.admitted();
        // Only zero is left to others: whoever reads work says so.
        let active = self.ledger.active();
        let blind = self.ledger.is_blind(&registry) || (foreign_zero && active == 0);
        Reading { blind, active, admitted, roll_call }
    }

    fn store(&mut self, record: &Record, version: Version) -> Stored {
        let Ok(bytes) = serde_json::to_vec(record) else {
            return Stored::Lost;
        };
        match host::set_shared(RECORD, &bytes, version.0) {
            Ok(()) => Stored::Done,
            Err(_) => Stored::Lost,
        }
    }

    fn perform(&mut self, effect: &Effect, record: &Record) {
        match effect {
            Effect::Log(transition) => {
                self.metrics.show(record);
                log_line("transition", transition);
            }
            Effect::LogDistrust(distrust) => {
                self.metrics.show(record);
                log_line("distrust", distrust);
            }
            Effect::LogTrust(distrust) => {
                self.metrics.show(record);
                log_line("trust", distrust);
            }
            Effect::Count(counter) => self.metrics.count(*counter),
            Effect::Ring => bells::ring(),
        }
    }
}

impl Worker {
    /// Creates the record if nobody has, so that `since` is the start of the process; says what is wrong with the count.
    pub(crate) fn begin(&self) {
        let mut me = self;
        let loaded = me.load();
        if loaded.decoded && loaded.version.0 == CAS_ABSENT {
            // Losing this race is fine: then somebody else has created it.
            me.store(&loaded.record, loaded.version);
        }
        if self.config.role() == Role::Count && !self.ledger.counts() {
            self.take(&Input::Distrust(DistrustReason::Ledger));
        }
        if let Config::Count { fault: Some(fault) } = &self.config {
            host::log(Level::Warn, &format!("softclose: the counting role goes on with its defaults: {fault}"));
            self.take(&Input::Distrust(DistrustReason::Config));
        }
    }
}

/// One JSON line at warn: Istio's default level hides anything below.
fn log_line(kind: &str, what: &impl Serialize) {
    #[derive(Serialize)]
    struct Line<'a, T> {
        softclose: &'a str,
        #[serde(flatten)]
        what: &'a T,
    }
    if let Ok(json) = serde_json::to_string(&Line { softclose: kind, what }) {
        host::log(Level::Warn, &json);
    }
}
