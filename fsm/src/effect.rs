use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::Distrust;
use crate::state::{StateName, Verdict};
use crate::time::Instant;

/// Something to do once a step is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Say that the state changed.
    Log(Transition),
    /// Say that the count stopped being believed.
    LogDistrust(Distrust),
    /// Say that the count is believed again, after this.
    LogTrust(Distrust),
    /// Add one to a counter.
    Count(Counter),
    /// Wake every VM: the record has changed in a way that others act on.
    Ring,
}

/// One change of state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// The state that was left.
    pub from: StateName,
    /// The state that was entered.
    pub to: StateName,
    /// When.
    #[serde(rename = "at_us")]
    pub at: Instant,
    /// How long the state that was left had lasted.
    #[serde(rename = "after_ms", with = "crate::time::millis")]
    pub after: Duration,
    /// Requests in flight by the ledger.
    pub active: u64,
    /// On what ground, where there is one.
    pub verdict: Option<Verdict>,
    /// Requests let in since the flip, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// How many may have been cut so far, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_at_most: Option<u64>,
}

/// What is counted over the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Drains begun.
    Drains,
    /// Flips on a believed zero; health first: ends on one.
    CleanCloses,
    /// Drains that ended at the deadline with requests in flight.
    FaultsDeadline,
    /// Drains that ended at the deadline without a count to believe.
    FaultsDistrust,
    /// Returns to OPEN.
    Reopens,
    /// Commands refused with 409.
    RefusedCommands,
    /// 503 answers served on the balancer path.
    HardAnswers,
    /// Soft answers served on the balancer path.
    SoftAnswers,
}
