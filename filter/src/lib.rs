//! Proxy-Wasm host of the gate.
//!
//! One module, two roles by plugin configuration: `count` is the first HTTP filter of the traffic listeners and keeps the
//! ledger of requests in flight; `gate` answers the health and control listeners. Every decision is made in `softclose_fsm`;
//! this crate translates callbacks into inputs, and effects into hostcalls.
//!
//! Deliberately absent: reading bodies, responses or trailers, and any state that is not in shared data or in the ledger but
//! for the cached copy that keeps the counting path free of shared-data calls.

mod bells;
mod config;
mod entry;
mod host;
mod json;
mod ledger;
mod metrics;
#[cfg(feature = "plant")]
mod plant;
mod replay;
mod root;
mod stream;
mod streams;
mod waiters;
mod worker;

pub use config::{Config, GateConfig};
