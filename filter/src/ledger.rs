use std::cell::Cell;

use softclose_fsm::{LedgerKind, Registry};

use crate::host::{self, CAS_ABSENT, Failure, Level, Metric, MetricKind};

/// The shared count of the VMs that have no gauge to count in.
const SHARED: &str = "softclose.1.ledger";

/// How often a lost race for the shared count is run again. Each loss means that another worker won; past this the host
/// refuses to write, and the count is not whole.
const LOSSES_MAX: usize = 10_000;

thread_local! {
    /// Requests that this VM has in the ledger: what its last will takes back. One VM has one thread and its own statics.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Requests in flight over all workers: a gauge, one atomic for the process; a shared value where that is a dud.
///
/// VMs may decide differently (a listener can bring a stats matcher of its own), so what is in flight is the sum of both.
#[derive(Clone, Copy)]
pub(crate) struct Ledger {
    gauge: Metric,
    kind: LedgerKind,
}

impl Ledger {
    /// Finds out where this VM can count.
    ///
    /// A gauge that a stats matcher rejects takes every increment and reads zero, so while this VM holds one the value must be
    /// at least one; other VMs may hold theirs at the same time. The test has a gauge of its own: on the ledger it would be a
    /// request that never was.
    pub(crate) fn choose() -> Result<Self, Failure> {
        let gauge = host::define_metric(MetricKind::Gauge, "softclose_active")?;
        let test = host::define_metric(MetricKind::Gauge, "softclose_self_test")?;
        let held = host::add(test, 1).is_ok();
        let counts = held && host::value(test).is_ok_and(|value| value >= 1);
        if held {
            lost(host::add(test, -1));
        }
        let kind = if counts { LedgerKind::Gauge } else { LedgerKind::Shared };
        Ok(Self { gauge, kind })
    }

    pub(crate) fn kind(&self) -> LedgerKind {
        self.kind
    }

    /// Whether this VM can count at all.
    pub(crate) fn counts(&self) -> bool {
        match self.kind {
            LedgerKind::Gauge => true,
            LedgerKind::Shared => change_shared(0).is_ok(),
        }
    }

    /// One more request in flight; whether it is in the ledger, so that leaving takes it away.
    pub(crate) fn enter(&self) -> bool {
        let entered = match self.kind {
            LedgerKind::Gauge => host::add(self.gauge, 1).is_ok(),
            LedgerKind::Shared => change_shared(1).is_ok(),
        };
        if entered {
            OWN.set(OWN.get().saturating_add(1));
        }
        entered
    }

    /// So many requests less in flight.
    pub(crate) fn leave(&self, ended: u64) {
        OWN.set(OWN.get().saturating_sub(ended));
        self.take(ended);
    }

    /// Takes this VM's whole share out: it is about to be lost.
    pub(crate) fn take_own_share(&self) {
        self.take(OWN.replace(0));
    }

    /// Requests in flight over all workers, as far as this VM can read them.
    pub(crate) fn active(&self) -> u64 {
        let gauge = match self.kind {
            // What cannot be read is not empty.
            LedgerKind::Gauge => host::value(self.gauge).unwrap_or(u64::MAX),
            LedgerKind::Shared => 0,
        };
        gauge.saturating_add(shared().map_or(u64::MAX, |(count, _)| count))
    }

    /// Whether others count in a gauge that this VM cannot read.
    pub(crate) fn is_blind(&self, registry: &Registry) -> bool {
        match self.kind {
            LedgerKind::Gauge => false,
            LedgerKind::Shared => registry.keeps(LedgerKind::Gauge),
        }
    }

    /// Whether this VM's own ledger reads `count` or less: a cheap look on the way of a request.
    pub(crate) fn reads_at_most(&self, count: u32) -> bool {
        let read = match self.kind {
            LedgerKind::Gauge => host::value(self.gauge),
            LedgerKind::Shared => shared().map(|(count, _)| count),
        };
        read.is_ok_and(|read| read <= u64::from(count))
    }

    fn take(&self, share: u64) {
        let offset = 0_i64.saturating_sub_unsigned(share);
        match self.kind {
            LedgerKind::Gauge => lost(host::add(self.gauge, offset)),
            LedgerKind::Shared => lost(change_shared(offset)),
        }
    }
}

/// The shared count and its version.
fn shared() -> Result<(u64, u32), Failure> {
    match host::shared(SHARED) {
        Ok(shared) => {
            let bytes = <[u8; 8]>::try_from(shared.value.as_slice()).map_err(|_| Failure::UNREADABLE)?;
            Ok((u64::from_le_bytes(bytes), shared.cas))
        }
        Err(Failure::NOT_FOUND) => Ok((0, CAS_ABSENT)),
        Err(failure) => Err(failure),
    }
}

fn change_shared(offset: i64) -> Result<(), Failure> {
    for _ in 0..LOSSES_MAX {
        let (count, cas) = shared()?;
        // Below zero is somebody's defect; it must not look like a gateway that is busy for ever.
        let count = count.saturating_add_signed(offset);
        match host::set_shared(SHARED, &count.to_le_bytes(), cas) {
            Ok(()) => return Ok(()),
            Err(Failure::CAS_MISMATCH) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::CAS_MISMATCH)
}

/// A count that cannot be corrected stays too high: the drain then ends at its deadline, and not as clean.
fn lost(result: Result<(), Failure>) {
    if let Err(failure) = result {
        host::log(Level::Error, &format!("softclose: the ledger was not written: {failure:?}"));
    }
}
