//! The built binary against stand-ins for Envoy's admin, softclose's control listener and Istio's agent. The gate behind the
//! control listener is the real one; what listens is scripted, so that it can hang, lie and vanish when asked to.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml relaxes test functions, not their helpers"
)]

mod audience;
mod commands;
mod distrust;
mod empty_root;
mod fallback;
mod faults;
mod install;
mod log;
mod presets;
mod prestop;
mod stand_in;
mod twice;
mod usage;
mod verify;
