use alloc::string::String;
use alloc::vec::Vec;

use crate::plan::Plan;
use crate::record::{Answer, DistrustReason, Path};

/// What may happen to the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Leave, by this plan.
    Drain(Plan),
    /// Tell the balancer 503 now, whatever is in flight.
    CloseLb,
    /// End the hold now.
    Close,
    /// Stay after all.
    Reopen,
    /// A health check.
    Probe(Probe),
    /// Envoy's own drain has started.
    EnvoyDrainStarted,
    /// Envoy's own counters say that so many requests are in flight.
    Observe(u64),
    /// A request is about to leave the ledger that whoever asked has ended: its client gave up, or the balancer cut it.
    PeerEnded,
    /// The count is not to be believed.
    Distrust(DistrustReason),
    /// Nothing but time, or another reading of the ledger.
    Tick,
}

/// A health check: who asks for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path asked for.
    pub path: Path,
    /// Peer address without port; none if the host cannot tell.
    pub prober: Option<String>,
}

/// What the asker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The command holds, whether or not it changed anything.
    Accepted {
        /// What the operator should know.
        warnings: Vec<Warning>,
    },
    /// The command makes no sense in this state (409).
    Refused(Refusal),
    /// The health answer.
    Answer(Answer),
    /// Taken note of.
    Noted,
}

/// What an operator should know of a reopen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The balancer may have seen failures.
    BalancerMayHaveNoticed,
    /// Envoy goes on draining.
    EnvoyKeepsDraining,
}

/// Why a command is refused in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `CloseLb` or `Close` without a drain.
    NotDraining,
    /// `Close` while requests may be in flight and the balancer was not told.
    BalancerNotTold,
    /// `Reopen` after the end.
    AlreadyClosed,
}
