//! The gate: what a gateway answers to its balancer, and when.
//!
//! ```text
//!                    zero for `settle`, or CloseLb
//!   OPEN --Drain--> DRAINING ----------------------> CLOSING --hold over, or Close--> CLOSED
//!    ^  ^              |   |                            |                               ^
//!    |  '---Reopen-----'   | deadline, not zero         |                               |
//!    |                     v                            |                               |
//!    |                   FAULT ---------------------- Close ----------------------------'
//!    '------Reopen---------'----------Reopen------------'
//! ```
//!
//! A plan whose order is health first goes from OPEN to CLOSING at once; there it waits for zero as DRAINING does, and for the end
//! of the hold, and its deadline leads to FAULT from there.
//!
//! * [`step`] is the whole machine: one pure function over the shared [`Record`].
//! * [`handle`] is the only way a host drives it: read, step, compare-and-swap, then perform the effects.
//! * [`Registry`] is the roll call: who counts, and who has heard of the drain.
//! * [`control`] and [`Status`] are the vocabulary that the filter and the preStop command share.
//!
//! Deliberately absent: a clock (`now` is an argument), sockets, hostcalls, randomness, `unsafe`. Everything here runs the
//! same inside a Proxy-Wasm VM, in a native module, in the preStop command and in a test.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod control;
mod drive;
mod effect;
mod input;
mod machine;
mod peer_ends;
mod plan;
mod probers;
mod record;
mod registry;
mod state;
mod status;
mod time;

pub use drive::{Handled, Host, Loaded, Stored, handle};
pub use effect::{Counter, Effect, Transition};
pub use input::{Input, Probe, Refusal, Reply, Warning};
pub use machine::{Step, step};
pub use peer_ends::PeerEnds;
pub use plan::{Arrivals, Deflection, FieldError, Order, Plan, Preset, Sockets, Watch};
pub use probers::{Audience, PROBERS_MAX, Prober, Probers};
pub use record::{
    Aftermath, Answer, Distrust, DistrustReason, Event, EventName, Opinion, Path, Reading, Record, RollCall,
};
pub use registry::{Enrolled, LedgerKind, ROLL_CALL_WAIT, Registry, Role, SLOTS_MAX, Slot};
pub use state::{Closed, Closing, Draining, Fault, FaultReason, Open, Quest, State, StateName, Verdict};
pub use status::Status;
pub use time::Instant;

/// How long a reading of zero must last before it counts as idle, whatever `settle` says.
///
/// Between two pipelined requests the count touches zero (the first request's stream ends before the second one's headers
/// are read, in the same turn of the event loop), so one reading proves nothing. Half a millisecond is twenty turns that
/// serve a request each (25 us of CPU per request, measured), and less than a host's shortest tick: on a kernel with 250 Hz
/// Envoy's timers, which read the coarse clock, come at the next of its 4 ms edges, so a longer wait often costs another 4 ms.
pub const CONFIRM: core::time::Duration = core::time::Duration::from_micros(500);
