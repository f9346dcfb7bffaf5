//! The images as files, by the rules of those who pull them, and by way of a real registry.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "clippy.toml relaxes test functions, not their helpers"
)]

mod agent;
mod layouts;
mod registry;
mod store;
