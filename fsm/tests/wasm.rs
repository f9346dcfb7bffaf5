//! The gate on wasm32-unknown-unknown, under Node: no clock, no system, pointers of 32 bits. The same runs natively.
//!
//! Every state and every input, the simulation with fixed seeds, and the fuzz bodies on their seeds. Property tests with random
//! inputs stay native: their crate asks the system for randomness.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test file, helpers included"
)]

#[path = "../../fuzz/bodies.rs"]
mod bodies;
#[allow(dead_code, reason = "the native simulation asks for more")]
#[path = "simulation/world.rs"]
mod world;

use std::time::Duration;

use softclose_fsm::{
    CONFIRM, DistrustReason, Effect, Input, Instant, Path, Plan, Preset, Reading, Record, RollCall, StateName, Verdict,
    step,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::{Setup, World};

const SEEDS: u64 = 300;
const START: Instant = Instant::from_micros(1_000_000_000);
const IDLE: Reading =
    Reading { blind: false, admitted: 0, active: 0, roll_call: RollCall { answered: 2, expected: 2, newcomers: 0 } };
const BUSY: Reading = Reading { blind: false, admitted: 0, active: 3, ..IDLE };

fn plan() -> Plan {
    Plan { settle: Duration::ZERO, deadline: Some(Duration::from_secs(30)), ..Plan::preset(Preset::Haproxy) }
}

fn inputs() -> [Input; 8] {
    let (observe, distrust) = (Input::Observe(0), Input::Distrust(DistrustReason::Trap));
    [
        Input::Drain(plan()),
        Input::CloseLb,
        Input::Close,
        Input::Reopen,
        Input::EnvoyDrainStarted,
        observe,
        distrust,
        Input::Tick,
    ]
}

#[test]
fn every_run_of_four_inputs_keeps_the_invariants() {
    // Three readings and three distances in time: now, when zero is confirmed, past every deadline.
    let laters = [Duration::ZERO, CONFIRM, Duration::from_secs(31)];
    let mut records = vec![(Record::open(START), START)];
    let mut seen = [false; 5];
    for _ in 0..4 {
        let mut next: Vec<(Record, Instant)> = Vec::new();
        for (record, at) in &records {
            for (later, reading) in laters.into_iter().flat_map(|later| [(later, IDLE), (later, BUSY)]) {
                for input in inputs() {
                    let now = at.after(later);
                    let done = step(record, now, reading, &input);
                    check(record, &done.record, reading, &input, now);
                    let rings = done.effects.iter().filter(|effect| **effect == Effect::Ring).count();
                    assert_eq!(rings as u64, done.record.changes - record.changes);
                    seen[usize::try_from(done.record.state.name().ordinal()).unwrap()] = true;
                    if next.len() < 400 && done.record != *record {
                        next.push((done.record, now));
                    }
                }
            }
        }
        records = next;
    }
    assert_eq!(seen, [true; 5], "some state is never reached");
}

fn check(from: &Record, to: &Record, reading: Reading, input: &Input, now: Instant) {
    let (was, is) = (from.state.name(), to.state.name());
    assert!(was != StateName::Closed || is == StateName::Closed, "CLOSED is left");
    assert!(is != StateName::Open || was == is || *input == Input::Reopen, "opened by {input:?}");
    let flips = from.answer(Path::Balancer).status == 200 && to.answer(Path::Balancer).status == 503;
    if flips && to.verdict() == Some(Verdict::Clean) {
        assert_eq!((reading.active, from.distrust), (0, None));
    }
    assert!(to.deadline(now).is_none_or(|at| at > now));
    let bytes = serde_json::to_vec(to).unwrap();
    assert_eq!(serde_json::from_slice::<Record>(&bytes).unwrap(), *to);
}

#[test]
fn a_simulated_drain_under_traffic_ends_clean() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Setup { workers: 1 + (seed % 4) as usize, requests: 12, ..Setup::default() });
        world.run();
        assert_eq!(world.record().verdict(), Some(Verdict::Clean), "seed {seed:#x}");
        assert_eq!(world.waiters_left(), 0, "seed {seed:#x}");
    }
}

#[test]
fn a_simulated_worker_that_does_not_count_is_never_called_idle() {
    for seed in 0..SEEDS {
        let (deaf_counter, deadline_ms) = (true, Some(6_000));
        let mut world = World::new(seed, Setup { workers: 2, deaf_counter, deadline_ms, ..Setup::default() });
        world.run();
        assert_eq!(world.record().state.name(), StateName::Fault, "seed {seed:#x}");
    }
}

#[test]
fn the_seeds_of_the_fuzz_targets_pass() {
    for seed in [
        &include_bytes!("../../fuzz/seeds/control/drain")[..],
        include_bytes!("../../fuzz/seeds/control/wait"),
        include_bytes!("../../fuzz/seeds/control/observe"),
        include_bytes!("../../fuzz/seeds/control/balancer"),
    ] {
        bodies::control(seed);
    }
    for seed in [
        &include_bytes!("../../fuzz/seeds/record/open")[..],
        include_bytes!("../../fuzz/seeds/record/draining"),
        include_bytes!("../../fuzz/seeds/record/closing"),
        include_bytes!("../../fuzz/seeds/record/closed"),
        include_bytes!("../../fuzz/seeds/record/fault"),
    ] {
        bodies::record(seed);
    }
    bodies::registry(include_bytes!("../../fuzz/seeds/registry/two"));
    bodies::probes(include_bytes!("../../fuzz/seeds/probes/odd"));
}
