//! N workers race on one record, one registry and one ledger, in separate steps: read, compare-and-swap, +1, ring, deliver.
//!
//! A worker is one thread that runs one callback at a time, of either of its two VMs; between any two steps of it any other
//! worker may run. Each run is decided by its seed: `SEED=0x2a cargo test -p softclose-fsm --test simulation` replays one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test file, helpers included"
)]

#[path = "simulation/world.rs"]
mod world;

use softclose_fsm::{DistrustReason, FaultReason, Preset, StateName, Verdict};
use world::{Setup, World};

const SEEDS: u64 = 3_000;

/// Runs in which balancers ask are longer.
const SEEDS_WITH_BALANCERS: u64 = 400;

fn seeds(all: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => {
            let digits = seed.trim_start_matches("0x");
            vec![u64::from_str_radix(digits, 16).expect("SEED is a hexadecimal number")]
        }
        Err(_) => (0..all).collect(),
    }
}

fn each(setup: impl Fn(u64) -> Setup, check: impl Fn(&World)) {
    each_of(SEEDS, setup, check);
}

fn each_of(all: u64, setup: impl Fn(u64) -> Setup, check: impl Fn(&World)) {
    for seed in seeds(all) {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed, setup(seed));
            world.run();
            check(&world);
        }));
        if let Err(panic) = run {
            eprintln!("replay with SEED={seed:#x}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn workers(seed: u64) -> usize {
    1 + (seed % 4) as usize
}

#[test]
fn a_drain_under_traffic_ends_clean_with_every_request_served_before_the_flip() {
    let setup = |seed| Setup { workers: workers(seed), requests: 12, ..Setup::default() };
    each(setup, |world| {
        assert_eq!(world.record().state.name(), StateName::Closed);
        assert_eq!(world.record().verdict(), Some(Verdict::Clean));
        assert_eq!(world.waiters_left(), 0, "somebody waits for ever");
    });
    // A simulation in which nothing ever raced proves nothing.
    let mut races = 0;
    let mut busy = 0;
    for seed in 0..100 {
        let mut world = World::new(seed, setup(seed));
        world.run();
        races += world.lost_races;
        busy += usize::from(world.in_flight_at_drain > 0);
    }
    assert!(races > 100 && busy > 50, "{races} lost races, {busy} of 100 runs were busy when the drain came");
}

#[test]
fn an_idle_gateway_drains_with_no_stimulus_but_its_own_ticks() {
    each(
        |seed| Setup { workers: workers(seed), requests: 0, ..Setup::default() },
        |world| assert_eq!(world.record().verdict(), Some(Verdict::Clean)),
    );
}

#[test]
fn without_settle_the_flip_still_waits_for_the_last_request() {
    each(
        |seed| Setup { workers: workers(seed), requests: 12, settle_ms: 0, ..Setup::default() },
        |world| assert_eq!(world.record().verdict(), Some(Verdict::Clean)),
    );
}

#[test]
fn a_worker_that_does_not_count_is_never_called_idle() {
    each(
        |seed| Setup { workers: workers(seed), deaf_counter: true, deadline_ms: Some(6_000), ..Setup::default() },
        |world| {
            let reason = FaultReason::Distrust(DistrustReason::RollCall);
            assert_eq!(world.record().verdict(), Some(Verdict::Fault { reason, active: None }));
        },
    );
}

#[test]
fn a_request_that_outlives_the_deadline_is_a_fault_at_the_deadline() {
    each(
        |seed| Setup { workers: workers(seed), requests: 3, endless: 1, deadline_ms: Some(4_000), ..Setup::default() },
        |world| {
            assert_eq!(world.record().state.name(), StateName::Fault);
            assert!(world.record().may_exit());
            let Some(Verdict::Fault { reason: FaultReason::Deadline, active: Some(active) }) = world.record().verdict()
            else {
                panic!("{:?}", world.record().verdict());
            };
            assert!(active >= 1);
            assert_eq!(world.waiters_left(), 0);
        },
    );
}

#[test]
fn commands_by_several_callers_at_once_agree() {
    each(
        |seed| Setup { workers: workers(seed), requests: 8, drains: 3, reopens: 1, ..Setup::default() },
        |world| {
            let state = world.record().state.name();
            assert!(matches!(state, StateName::Open | StateName::Closed), "{state}");
            assert_eq!(world.waiters_left(), 0);
        },
    );
}

#[test]
fn health_first_ends_clean_after_the_last_request_and_the_hold() {
    each(
        |seed| Setup { workers: workers(seed), requests: 12, preset: Preset::Nlb, ..Setup::default() },
        |world| {
            assert_eq!(world.record().state.name(), StateName::Closed);
            assert_eq!(world.record().verdict(), Some(Verdict::Clean));
            assert_eq!(world.account(), (Some(world.late()), Some(0)));
            assert_eq!(world.waiters_left(), 0);
        },
    );
}

#[test]
fn health_first_a_request_that_outlives_the_deadline_is_a_fault_at_the_deadline() {
    let deadline_ms = Some(4_000);
    each(
        |seed| Setup { workers: workers(seed), endless: 1, deadline_ms, preset: Preset::Nlb, ..Setup::default() },
        |world| {
            assert_eq!(world.record().state.name(), StateName::Fault);
            assert!(world.record().may_exit());
            assert!(world.record().cut_at_most() >= Some(1));
            assert_eq!(world.waiters_left(), 0);
        },
    );
}

#[test]
fn health_first_a_worker_that_does_not_count_is_never_called_idle() {
    let (deaf_counter, deadline_ms, preset) = (true, Some(6_000), Preset::Nlb);
    each(
        |seed| Setup { workers: workers(seed), deaf_counter, deadline_ms, preset, ..Setup::default() },
        |world| {
            let reason = FaultReason::Distrust(DistrustReason::RollCall);
            assert_eq!(world.record().verdict(), Some(Verdict::Fault { reason, active: None }));
        },
    );
}

#[test]
fn a_soft_drain_ends_only_after_every_balancer_has_heard() {
    let setup = |seed| {
        let balancers = 1 + (seed % 3) as usize;
        Setup { workers: workers(seed), requests: 12, preset: Preset::HaproxySoft, balancers, ..Setup::default() }
    };
    each_of(SEEDS_WITH_BALANCERS, setup, |world| {
        assert_eq!(world.record().verdict(), Some(Verdict::Clean));
        assert!(world.soft_answers > 0);
    });
}

#[test]
fn what_is_refused_is_never_in_flight_and_the_rest_ends_clean() {
    let setup = |seed| Setup { workers: workers(seed), requests: 20, preset: Preset::HaproxyRetry, ..Setup::default() };
    each(setup, |world| assert_eq!(world.record().verdict(), Some(Verdict::Clean)));
    let refused: u64 = (0..100)
        .map(|seed| {
            let mut world = World::new(seed, setup(seed));
            world.run();
            world.refused()
        })
        .sum();
    assert!(refused > 100, "{refused} refused in 100 runs");
}

#[test]
fn late_is_exact_and_cut_at_most_is_never_below_what_a_balancer_could_have_cut() {
    let compared = std::cell::Cell::new(0);
    let setup = |seed| {
        let (settle_ms, balancers) = (0, 1 + (seed % 3) as usize);
        // Long enough for some to come between the flip and the second answer, and after it.
        Setup { workers: workers(seed), requests: 40, settle_ms, balancers, spread: 4, ..Setup::default() }
    };
    each_of(SEEDS_WITH_BALANCERS, setup, |world| {
        let (late, cut_at_most) = world.account();
        assert_eq!(late, Some(world.late()));
        assert!(cut_at_most >= Some(world.most_exposed), "{cut_at_most:?} said, {} seen", world.most_exposed);
        compared.set(compared.get() + u64::from(world.most_exposed > 0));
    });
    assert!(compared.get() > 100 || std::env::var("SEED").is_ok(), "compared {} times", compared.get());
}
