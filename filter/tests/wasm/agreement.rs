//! Several VMs, one gate: commands, probes, the roll call and ticks.

use std::time::Duration;

use softclose_fsm::control::STATE_HEADER;
use softclose_fsm::{DistrustReason, FaultReason, StateName, Verdict};

use crate::drive::{PAID, ROLL_CALL, SOON};
use crate::host::{Listener, MAIN, Process, Request, Role, Setup};

/// 40 probes over all workers, none of which has heard a bell.
fn forty_probes(process: &Process) -> Vec<(u32, StateName)> {
    let mut answers: Vec<(u32, StateName)> =
        (0..40).map(|probe| process.probe(1 + probe % process.workers().count())).collect();
    answers.dedup();
    answers
}

#[test]
fn r09_once_a_command_has_returned_every_worker_answers_alike() {
    let process = Process::start(Setup::of(4));
    let id = process.traffic(3);
    assert_eq!(forty_probes(&process), [(200, StateName::Open)]);
    for worker in process.workers() {
        process.order(worker, "/drain");
        assert_eq!(forty_probes(&process), [(200, StateName::Draining)]);
        process.order(worker, "/reopen");
        assert_eq!(forty_probes(&process), [(200, StateName::Open)]);
        process.order(worker, "/drain");
        process.order(worker, "/close-lb");
        assert_eq!(forty_probes(&process), [(503, StateName::Closing)]);
        process.order(worker, "/reopen");
        assert_eq!(forty_probes(&process), [(200, StateName::Open)]);
    }
    process.order(1, "/drain");
    process.serve(id);
    process.advance(SOON);
    assert_eq!(forty_probes(&process), [(503, StateName::Closing)]);
    process.order(2, "/close");
    assert_eq!(forty_probes(&process), [(503, StateName::Closed)]);
    process.assert_no_trap();
}

#[test]
fn readiness_turns_503_at_the_end_only_on_every_worker() {
    let process = Process::start(Setup::of(2));
    let ready = |worker| process.ask(worker, Listener::Health, Request::new("GET", "/health")).status;
    process.order(1, "/drain");
    process.advance(SOON);
    assert_eq!((process.probe(2).0, ready(1), ready(2)), (503, 200, 200));
    process.order(2, "/close");
    assert_eq!((ready(1), ready(2)), (503, 503));
}

#[test]
fn r11_trickling_traffic_does_not_turn_a_503_back() {
    let process = Process::start(Setup::of(2));
    process.order(1, "/drain?settle_ms=100&hold_max_ms=600000&hold_min_ms=600000");
    let mut flipped = false;
    // A request of 50 ms every 300 ms, a check every second, for a minute.
    for tick in 0..1_200_u32 {
        let worker = 1 + tick as usize % 2;
        let id = tick.is_multiple_of(6).then(|| process.traffic(worker));
        process.advance(Duration::from_millis(50));
        if let Some(id) = id {
            process.serve(id);
        }
        if tick.is_multiple_of(20) {
            let (status, state) = process.probe(worker);
            assert!(!flipped || status == 503, "{state} answered {status} after a 503");
            flipped |= status == 503;
        }
    }
    assert!(flipped);
    assert_eq!(process.agreed(), StateName::Closing);
    assert_eq!(process.said("transition").len(), 2);
    process.order(2, "/reopen");
    assert_eq!(process.probe(1).0, 200);
}

#[test]
fn the_canary_is_in_no_roll_call_and_its_bell_rings_in_vain() {
    let process = Process::start(Setup::of(3));
    let roll_call = process.status(1).roll_call.roll_call;
    // Three workers and the main thread. The canary's bell is delivered to the main thread's VM, which has its number.
    assert_eq!((roll_call.answered, roll_call.expected), (4, 4));
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    assert_eq!(process.status(2).verdict, Some(Verdict::Clean));
    assert!(process.lines().iter().all(|line| line.level < 4), "{:#?}", process.lines());
}

#[test]
fn the_roles_may_be_configured_in_either_order() {
    let order = vec![Role::Gate, Role::Count];
    let process = Process::start(Setup { order, ..Setup::of(2) });
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    assert_eq!(process.status(2).verdict, Some(Verdict::Clean));
}

#[test]
fn health_and_control_may_have_a_root_context_each() {
    let gate = br#"{"role": "gate", "plan": {"settle_ms": 0}}"#.to_vec();
    for namesakes in [false, true] {
        let process = Process::start(Setup { gates: vec![gate.clone(), gate.clone()], namesakes, ..Setup::of(2) });
        let id = process.traffic(1);
        process.order(1, "/drain");
        let wait = process.wait(2, "for=closing");
        process.serve(id);
        process.advance(SOON);
        assert_eq!(process.reply(wait).unwrap().status, 200);
        assert_eq!(process.probe(1), (503, StateName::Closing));
        assert_eq!(process.status(2).verdict, Some(Verdict::Clean));
    }
}

#[test]
fn a_worker_keeps_its_own_tick_whichever_root_context_the_stream_is_of() {
    let process = Process::start(Setup { counts: 2, namesakes: true, ..Setup::of(1) });
    process.advance(SOON);
    assert_eq!(process.ticking(Role::Count), 0);
    // The stream is of the older root context, and the newer one's worker counts it.
    let id = process.traffic(1);
    process.serve(id);
    assert_eq!((process.active(), process.ticking(Role::Count)), (1, 1), "OPEN owes it");
    process.advance(PAID);
    assert_eq!((process.active(), process.ticking(Role::Count)), (0, 0), "it was paid, and nothing ticks for ever");
}

#[test]
fn where_nobody_counts_nothing_is_idle() {
    let order = vec![Role::Gate];
    let process = Process::start(Setup { order, ..Setup::of(2) });
    process.order(1, "/drain?settle_ms=0&deadline_ms=5000");
    process.advance(ROLL_CALL);
    assert_eq!(process.agreed(), StateName::Draining);
    assert_eq!(process.status(2).distrust.unwrap().reason, DistrustReason::RollCall);
    process.advance(Duration::from_secs(3));
    let reason = FaultReason::Distrust(DistrustReason::RollCall);
    assert_eq!(process.status(1).verdict, Some(Verdict::Fault { reason, active: None }));
}

#[test]
fn a_worker_that_is_busy_through_the_whole_roll_call_is_missing_and_then_only_late() {
    let process = Process::start(Setup::of(2));
    process.order(1, "/drain?settle_ms=500");
    // The main thread hears nothing for three seconds.
    process.freeze(MAIN, true);
    process.advance(Duration::from_secs(3));
    let status = process.status(1);
    assert_eq!((status.state, status.distrust.unwrap().reason), (StateName::Draining, DistrustReason::RollCall));
    process.freeze(MAIN, false);
    process.advance(Duration::from_secs(2));
    let status = process.status(1);
    assert_eq!((status.state, status.distrust), (StateName::Closed, None));
    assert_eq!(status.verdict, Some(Verdict::Clean));
}

#[test]
fn ticks_are_armed_only_while_something_is_pending() {
    let process = Process::begin(Setup::of(2));
    let everywhere = 2 * 3;
    assert_eq!(process.armed(), everywhere, "the first tick shows that a VM lives");
    process.advance(SOON);
    assert_eq!(process.armed(), 0, "OPEN waits for nothing");
    process.probe(1);
    process.serve(process.traffic(1));
    assert_eq!(process.armed(), 1, "what has ended is taken out soon");
    process.advance(PAID);
    assert_eq!(process.armed(), 0);
    let id = process.traffic(1);
    process.order(1, "/drain");
    process.settle();
    assert_eq!(process.armed(), everywhere);
    process.order(1, "/reopen");
    process.settle();
    assert_eq!(process.armed(), 0);
    let wait = process.wait(2, "for=closing");
    assert_eq!((process.reply(wait).unwrap().status, process.armed()), (409, 0), "OPEN: nothing to wait for");
    process.order(1, "/drain");
    process.serve(id);
    process.advance(Duration::from_secs(5));
    assert_eq!(process.agreed(), StateName::Closed);
    assert_eq!(process.armed(), 0, "CLOSED is left by nothing");
}

#[test]
fn a_drain_under_way_survives_a_push_of_another_configuration() {
    let process = Process::start(Setup::of(2));
    let id = process.traffic(1);
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    for role in Role::BOTH {
        process.push(role);
        process.advance(SOON);
        assert_eq!(process.agreed(), StateName::Draining);
        assert_eq!(process.status(1).active, 1, "the old VM still holds its request");
    }
    // Its own VM is deaf, and the new ones are newcomers, but the gauge is everybody's.
    process.serve(id);
    process.advance(Duration::from_secs(3));
    let status = process.status(2);
    assert_eq!((status.state, status.active), (StateName::Closed, 0), "{status:#?}");
}

#[test]
fn after_a_push_in_open_a_drain_is_clean() {
    let process = Process::start(Setup::of(2));
    let id = process.traffic(1);
    for role in Role::BOTH {
        process.push(role);
        process.advance(SOON);
    }
    process.serve(id);
    process.advance(SOON);
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    let status = process.status(2);
    assert_eq!(
        (status.roll_call.roll_call.answered, status.roll_call.roll_call.expected),
        (3, 3),
        "who left is not missing"
    );
    assert_eq!(status.verdict, Some(Verdict::Clean));
}

#[test]
fn nothing_is_built_on_the_wall_clock() {
    let process = Process::start(Setup::of(1));
    process.order(1, "/drain?settle_ms=1000");
    process.advance(SOON);
    process.step_wall_clock(3_600_000_000_000);
    process.advance(SOON);
    assert_eq!(process.agreed(), StateName::Draining);
    process.step_wall_clock(-7_200_000_000_000);
    process.advance(Duration::from_secs(1));
    assert_eq!(process.agreed(), StateName::Closing);
}

#[test]
fn shared_values_of_another_format_flip_nothing() {
    for key in ["softclose.1.record", "softclose.1.registry", "softclose.1.ledger"] {
        for bytes in [&b""[..], b"{}", b"\xff\xfe", b"{\"state\":{\"CLOSED\":{}}}"] {
            let process = Process::start(Setup::of(2));
            process.share(key, bytes);
            process.advance(SOON);
            for worker in process.workers() {
                process.serve(process.traffic(worker));
                let reply = process.ask(worker, Listener::Health, Request::new("GET", "/health_check.html"));
                assert_eq!((reply.status, reply.header(STATE_HEADER)), (200, Some("OPEN")), "{key} {bytes:?}");
            }
            process.order(1, "/drain?settle_ms=0&deadline_ms=4000");
            process.advance(Duration::from_secs(5));
            let status = process.status(2);
            assert_ne!(status.state, StateName::Draining, "{key} {bytes:?}");
            process.assert_no_trap();
        }
    }
}
