//! Traps on demand, for tests: a request asks for one with the header `x-softclose-plant`.

use crate::host;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    None,
    /// A panic at request headers: the panic hook runs.
    Panic,
    /// Memory runs out at request headers: no panic, no hook.
    OutOfMemory,
    /// The stack runs out at request headers: no panic, no hook.
    Stack,
    /// A panic while the response's body streams.
    PanicInResponse,
}

pub(crate) fn asked_for() -> Plant {
    match host::request_header("x-softclose-plant").unwrap_or_default().as_slice() {
        b"panic" => Plant::Panic,
        b"oom" => Plant::OutOfMemory,
        b"stack" => Plant::Stack,
        b"panic-response" => Plant::PanicInResponse,
        _ => Plant::None,
    }
}

#[expect(clippy::panic, reason = "that is what was asked for")]
pub(crate) fn at_request_headers(plant: Plant) {
    match plant {
        Plant::None | Plant::PanicInResponse => {}
        Plant::Panic => panic!("planted"),
        Plant::OutOfMemory => eat_memory(),
        Plant::Stack => drop(recurse(0)),
    }
}

#[expect(clippy::panic, reason = "that is what was asked for")]
pub(crate) fn at_response_body(plant: Plant) {
    if plant == Plant::PanicInResponse {
        panic!("planted in the response's body");
    }
}

fn eat_memory() {
    const CHUNK: usize = 16 << 20;
    loop {
        std::mem::forget(std::hint::black_box(vec![1_u8; CHUNK]));
    }
}

fn recurse(depth: u64) -> u64 {
    let deeper = std::hint::black_box(depth) + 1;
    if deeper == 0 { 0 } else { std::hint::black_box(recurse(deeper)) + 1 }
}
