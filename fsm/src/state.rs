use core::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::record::{DistrustReason, Opinion};
use crate::time::Instant;

/// A state with its own data and deadlines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Serving; the balancer is told 200.
    Open(Open),
    /// Leaving; the balancer is told 200 until the last request ends.
    Draining(Draining),
    /// The balancer is told 503 and given time to notice; what still comes is served.
    Closing(Closing),
    /// The pod may leave.
    Closed(Closed),
    /// The drain ended without a believed zero: something may have been cut.
    Fault(Fault),
}

/// Data of [`State::Open`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// When the state was entered.
    pub since: Instant,
}

/// Data of [`State::Draining`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// When the state was entered.
    pub since: Instant,
    /// What this drain does.
    pub plan: Plan,
    /// When it ends, whatever is in flight.
    pub deadline: Option<Instant>,
    /// Since when every reading was a believed zero.
    pub zero_since: Option<Instant>,
    /// What the preStop command read from Envoy's own counters, if it did.
    pub opinion: Option<Opinion>,
}

/// Data of [`State::Closing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// When the state was entered: the flip.
    pub since: Instant,
    /// What this drain does.
    pub plan: Plan,
    /// On what ground the flip was made.
    pub verdict: Verdict,
    /// Health first: the zero that is still waited for. None: the flip was the end of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quest: Option<Quest>,
}

/// A zero that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quest {
    /// When the wait ends, whatever is in flight.
    pub deadline: Option<Instant>,
    /// Since when every reading was a believed zero.
    pub zero_since: Option<Instant>,
    /// What the preStop command read from Envoy's own counters, if it did.
    pub opinion: Option<Opinion>,
}

/// Data of [`State::Closed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// When the state was entered.
    pub since: Instant,
    /// What this drain did.
    pub plan: Plan,
    /// On what ground the flip was made.
    pub verdict: Verdict,
}

/// Data of [`State::Fault`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// When the state was entered.
    pub since: Instant,
    /// What this drain does.
    pub plan: Plan,
    /// Why it is a fault.
    pub reason: FaultReason,
    /// Requests in flight at the deadline, as far as known.
    pub active: Option<u64>,
    /// The hold is over: the pod may leave.
    pub may_exit: bool,
    /// Health first: when the balancer was told, long before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Instant>,
}

impl Fault {
    /// Since when the balancer has had its time.
    pub(crate) fn hold_since(&self) -> Instant {
        self.told.unwrap_or(self.since)
    }
}

/// On what ground the balancer was told 503: whether anything may have been cut on our account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The ledger read zero, and was believed.
    Clean,
    /// The ledger was not believed, but Envoy's own counters read zero.
    SecondOpinion {
        /// Why the ledger was not believed.
        distrust: DistrustReason,
    },
    /// An operator asked, with so many requests in flight.
    Operator {
        /// Requests in flight at that moment.
        active: u64,
    },
    /// By plan the balancer was told first, with so many requests in flight, and zero is still waited for: no end yet.
    HealthFirst {
        /// Requests in flight at that moment.
        active: u64,
    },
    /// The deadline came first.
    Fault {
        /// Why it is a fault.
        reason: FaultReason,
        /// Requests in flight at the deadline, as far as known.
        active: Option<u64>,
    },
}

/// Why a drain ended in [`State::Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultReason {
    /// Requests were in flight when the deadline came.
    Deadline,
    /// The count was not to be believed when the deadline came.
    Distrust(DistrustReason),
}

/// The name of a state, as in logs, headers and documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StateName {
    /// See [`State::Open`].
    Open,
    /// See [`State::Draining`].
    Draining,
    /// See [`State::Closing`].
    Closing,
    /// See [`State::Closed`].
    Closed,
    /// See [`State::Fault`].
    Fault,
}

impl State {
    /// Its name.
    pub fn name(&self) -> StateName {
        match self {
            Self::Open(_) => StateName::Open,
            Self::Draining(_) => StateName::Draining,
            Self::Closing(_) => StateName::Closing,
            Self::Closed(_) => StateName::Closed,
            Self::Fault(_) => StateName::Fault,
        }
    }

    /// When it was entered.
    pub fn since(&self) -> Instant {
        match self {
            Self::Open(open) => open.since,
            Self::Draining(draining) => draining.since,
            Self::Closing(closing) => closing.since,
            Self::Closed(closed) => closed.since,
            Self::Fault(fault) => fault.since,
        }
    }
}

impl StateName {
    /// All states, in the order of a drain.
    pub const ALL: [Self; 5] = [Self::Open, Self::Draining, Self::Closing, Self::Closed, Self::Fault];

    /// As in logs, headers and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Draining => "DRAINING",
            Self::Closing => "CLOSING",
            Self::Closed => "CLOSED",
            Self::Fault => "FAULT",
        }
    }

    /// The value of the metric `softclose_state`: the place in [`StateName::ALL`].
    pub fn ordinal(self) -> u64 {
        match self {
            Self::Open => 0,
            Self::Draining => 1,
            Self::Closing => 2,
            Self::Closed => 3,
            Self::Fault => 4,
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("deadline"),
            Self::Distrust(reason) => write!(f, "distrust ({})", reason.as_str()),
        }
    }
}
