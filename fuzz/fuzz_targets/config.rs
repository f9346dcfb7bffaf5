#![no_main]

#[path = "../config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| config::config(bytes));
