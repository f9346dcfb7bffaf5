use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::peer_ends::PeerEnds;
use crate::plan::Plan;
use crate::probers::{Audience, Prober};
use crate::record::{Distrust, Event, Opinion, Reading, Record, RollCall};
use crate::registry::LedgerKind;
use crate::state::{StateName, Verdict};
use crate::time::{Instant, optional_millis};

/// The status document: the body of every control answer.
///
/// All `_us` fields are readings of one monotonic clock, `now_us` among them; only their differences mean anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Why the call was not carried out, where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the caller should know although the call was carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Where the gate stands.
    pub state: StateName,
    /// When it came there.
    pub since_us: Instant,
    /// When this was written.
    pub now_us: Instant,
    /// Whether the pod may leave: the balancer was given its time.
    pub may_exit: bool,
    /// On what ground the balancer was told 503; none before that.
    pub verdict: Option<Verdict>,
    /// Requests in flight by the ledger.
    pub active: u64,
    /// Since when every reading was a believed zero.
    pub zero_since_us: Option<Instant>,
    /// What the worker that answers keeps its part of the count in.
    pub ledger: LedgerKind,
    /// Requests counted since the process started. Each worker reports its own after the first, then in batches, and at
    /// each drain.
    pub counted: u64,
    /// How far the newest drain's roll call has come.
    pub roll_call: RollCallStatus,
    /// Why the count is not to be believed, if so.
    pub distrust: Option<Distrust>,
    /// What Envoy's own counters said, if the preStop command brought them.
    pub opinion: Option<Opinion>,
    /// When Envoy's own drain started; it cannot be undone.
    pub envoy_drain_us: Option<Instant>,
    /// Drains begun since the process started.
    pub drains: u64,
    /// The number of the newest change; `GET /wait?after=` takes it, so that nothing falls between two waits.
    pub changes: u64,
    /// Requests let in since the flip.
    #[serde(default)]
    pub late: Option<u64>,
    /// How many requests may have been cut: the most in flight since the `fall`-th hard answer, or since the pod may leave. None
    /// before that.
    #[serde(default)]
    pub cut_at_most: Option<u64>,
    /// Requests of this drain that its peers ended.
    #[serde(default)]
    pub peer_ends: PeerEnds,
    /// What the probers had been told when the pod was free to leave.
    #[serde(default)]
    pub audience: Option<Audience>,
    /// What this drain does; in OPEN what a drain would do.
    pub plan: Plan,
    /// Until the drain ends, whatever is in flight.
    #[serde(with = "optional_millis", default)]
    pub deadline_in_ms: Option<core::time::Duration>,
    /// What happened, oldest first.
    pub events: Vec<Event>,
    /// Who asks the balancer path.
    pub probers: Vec<Prober>,
    /// The version of softclose that wrote this.
    pub version: String,
}

/// A roll call and whether it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollCallStatus {
    /// The numbers.
    #[serde(flatten)]
    pub roll_call: RollCall,
    /// Whether everybody who counts has heard of the drain.
    pub complete: bool,
}

impl Status {
    /// The document of `record` as read with `reading` at `now`; `plan` is what a drain would do, `ledger` where the host
    /// counts, `counted` the requests counted so far.
    pub fn of(record: &Record, reading: Reading, now: Instant, plan: &Plan, ledger: LedgerKind, counted: u64) -> Self {
        let quest = record.quest();
        let deadline = quest.and_then(|quest| quest.deadline);
        let roll_call = reading.roll_call;
        Self {
            error: None,
            warnings: Vec::new(),
            state: record.state.name(),
            since_us: record.state.since(),
            now_us: now,
            may_exit: record.may_exit(),
            verdict: record.verdict(),
            active: reading.active,
            zero_since_us: record.zero_since(),
            ledger,
            counted,
            roll_call: RollCallStatus { roll_call, complete: roll_call.complete() },
            distrust: record.distrust,
            opinion: quest.and_then(|quest| quest.opinion),
            envoy_drain_us: record.envoy_drain,
            drains: record.drains,
            changes: record.changes,
            late: record.late(&reading),
            cut_at_most: record.cut_at_most(),
            peer_ends: record.peer_ends,
            audience: record.audience,
            plan: record.plan().unwrap_or(plan).clone(),
            deadline_in_ms: deadline.map(|deadline| deadline.since(now)),
            events: record.events.clone(),
            probers: record.probers.iter().cloned().collect(),
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }
}
