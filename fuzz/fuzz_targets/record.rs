#![no_main]

#[allow(dead_code, reason = "each target calls one")]
#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::record(bytes));
