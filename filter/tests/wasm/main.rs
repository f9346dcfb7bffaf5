//! The shipped module as several VMs over one host state: the ring between the pure simulation and real Envoy.
//!
//! The modules are `dist/softclose.wasm` and `dist/softclose-planted.wasm` (the same with the feature `plant`), or what
//! `SOFTCLOSE_WASM` and `SOFTCLOSE_WASM_PLANTED` name.
//!
//! Numbers in the names of tests (`r05_`) are those of the field cases. Where a test is decided by a seed,
//! `SEED=0x2a cargo test -p softclose-filter --test wasm` replays one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test file, helpers included"
)]

mod agreement;
mod counting;
mod drive;
mod endings;
mod faults;
mod host;
mod odd;
mod presets;
mod races;
mod traps;
mod unheard;
mod waits;
