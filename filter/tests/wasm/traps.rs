//! VMs that trap, on request (`x-softclose-plant`): the module under test is the shipped one with that feature.

use std::time::Duration;

use softclose_fsm::{DistrustReason, FaultReason, StateName, Status, Verdict};

use crate::drive::{PAID, ROLL_CALL, SOON, each_seed};
use crate::host::{Code, Fault, Listener, Process, Request, Role, Setup, StreamId};

fn planted(workers: usize) -> Setup {
    Setup { code: Code::planted(), ..Setup::of(workers) }
}

/// Makes the counting VM of `worker` trap; the request that does it is answered 503 by the host.
fn trap(process: &Process, worker: usize, how: &str) {
    let plant = Request::new("GET", "/").header("x-softclose-plant", how);
    let id = process.request(worker, Listener::Traffic, plant);
    if how == "panic-response" {
        process.response_headers(id, false);
        process.response_body(id, 1_000, false);
    }
    assert!(process.stream(id).passed && process.reply(id).is_none(), "{how}: the request itself goes on");
    assert!(process.failed(worker, Role::Count), "{how}");
}

/// `fail_open`: new requests pass, and those that the dead VM held go on.
fn assert_traffic_passes(process: &Process, held: StreamId) {
    for worker in process.workers() {
        process.serve(process.traffic(worker));
    }
    assert!(!process.stream(held).ended, "nothing was in flight");
    process.serve(held);
    assert_eq!(process.reply(held).map(|reply| reply.status), None, "answered in place of the application");
}

/// The drain ends at its deadline, and nobody calls it clean.
fn assert_never_clean(process: &Process, reason: DistrustReason) -> Status {
    process.advance(ROLL_CALL);
    for worker in process.workers() {
        let status = process.status(worker);
        assert_eq!((status.state, status.distrust.unwrap().reason), (StateName::Draining, reason));
        assert_eq!(process.probe(worker), (200, StateName::Draining));
    }
    process.advance(Duration::from_secs(20));
    let status = process.status(1);
    assert_eq!(status.state, StateName::Fault);
    assert_eq!(status.verdict, Some(Verdict::Fault { reason: FaultReason::Distrust(reason), active: None }));
    assert_eq!(process.metric("softclose_clean_closes"), 0);
    status
}

#[test]
fn r05_a_panic_in_open_changes_no_answer_but_no_later_drain_is_clean() {
    for how in ["panic", "panic-response"] {
        let process = Process::start(planted(2));
        let held = process.traffic(1);
        let other = process.traffic(2);
        assert_eq!(process.active(), 2);
        trap(&process, 1, how);
        // Its last will: its own two are out of the ledger, the other worker's is not.
        assert_eq!(process.active(), 1, "{how}");
        process.advance(SOON);
        assert_eq!(process.probe(1), (200, StateName::Open));
        assert_eq!(process.status(2).distrust.unwrap().reason, DistrustReason::Trap);
        assert_eq!(process.said("distrust").len(), 1);
        assert_traffic_passes(&process, held);
        process.serve(other);
        process.advance(PAID);
        assert_eq!(process.active(), 0, "{how}");
        process.order(2, "/drain?settle_ms=0&deadline_ms=10000");
        let status = assert_never_clean(&process, DistrustReason::Trap);
        assert_eq!((status.roll_call.roll_call.answered, status.roll_call.roll_call.expected), (2, 3));
    }
}

#[test]
fn r05_a_panic_in_mid_drain_is_never_taken_for_the_last_request() {
    for how in ["panic", "panic-response"] {
        let process = Process::start(planted(2));
        let held = process.traffic(1);
        process.order(2, "/drain?settle_ms=0&deadline_ms=10000");
        let wait = process.wait(2, "for=closing");
        process.advance(SOON);
        trap(&process, 1, how);
        assert_eq!(process.active(), 0, "{how}: the last will");
        process.advance(SOON);
        // Who waits is told that the count is lost, and that this is not the end.
        assert_eq!(process.reply(wait).map(|reply| reply.status), Some(202));
        assert_traffic_passes(&process, held);
        assert_never_clean(&process, DistrustReason::Trap);
    }
}

#[test]
fn r05_where_memory_or_stack_run_out_nobody_has_a_last_will_and_the_roll_call_finds_out() {
    for how in ["oom", "stack"] {
        let process = Process::start(planted(2));
        let held = process.traffic(1);
        trap(&process, 1, how);
        // The dead VM's two are left in the ledger for good: busy, not idle.
        assert_eq!(process.active(), 2, "{how}");
        process.advance(SOON);
        assert_eq!((process.probe(1), process.probe(2)), ((200, StateName::Open), (200, StateName::Open)));
        assert_traffic_passes(&process, held);
        process.order(2, "/drain?settle_ms=0&deadline_ms=10000");
        let status = assert_never_clean(&process, DistrustReason::RollCall);
        assert_eq!((status.roll_call.roll_call.answered, status.roll_call.roll_call.expected), (2, 3));
    }
}

#[test]
fn r05_memory_or_stack_that_run_out_after_the_roll_call_are_bounded_by_the_deadline() {
    for how in ["oom", "stack"] {
        let process = Process::start(planted(2));
        process.order(2, "/drain?settle_ms=1000&deadline_ms=10000");
        process.advance(SOON);
        trap(&process, 1, how);
        process.advance(Duration::from_secs(12));
        let status = process.status(2);
        assert_eq!(status.state, StateName::Fault, "{how}");
        assert_ne!(status.verdict, Some(Verdict::Clean));
    }
}

#[test]
fn r05_the_leak_of_a_dead_vm_is_undone_nowhere_and_envoys_own_counters_may_end_the_drain() {
    let process = Process::start(planted(2));
    trap(&process, 1, "oom");
    process.order(2, "/drain?settle_ms=0&deadline_ms=60000");
    process.advance(ROLL_CALL);
    process.order(2, "/observe?active=0");
    process.advance(SOON);
    let status = process.status(1);
    assert_eq!(status.verdict, Some(Verdict::SecondOpinion { distrust: DistrustReason::RollCall }));
    assert_eq!((status.state, status.active), (StateName::Closing, 1));
}

#[test]
fn r05_a_gate_that_traps_answers_503_until_it_is_loaded_anew_and_then_like_the_others() {
    for how in ["panic", "oom", "stack"] {
        let process = Process::start(planted(2));
        let held = process.traffic(2);
        process.order(2, "/drain?settle_ms=0&deadline_ms=10000");
        let wait = process.wait(1, "for=closing");
        process.advance(SOON);
        // Just loaded, so the host waits before it loads it again.
        process.replace_vm(1, Role::Gate);
        let plant = Request::new("GET", "/health_check.html").header("x-softclose-plant", how);
        assert_eq!(process.ask(1, Listener::Health, plant).status, 503);
        assert!(process.failed(1, Role::Gate) && !process.failed(1, Role::Count), "{how}");
        let refused = process.ask(1, Listener::Health, Request::new("GET", "/health_check.html"));
        assert_eq!((refused.status, refused.headers.len()), (503, 0), "{how}: not an answer of ours");
        assert_eq!(process.probe(2), (200, StateName::Draining));
        process.advance(Duration::from_millis(1_100));
        assert_eq!(process.probe(1), (200, StateName::Draining), "{how}: loaded anew");
        process.advance(SOON);
        assert_eq!(process.reply(wait), None, "a paused stream of a dead VM is answered by nobody");
        process.order(1, "/close-lb");
        assert_eq!(process.probe(2), (503, StateName::Closing));
        process.serve(held);
    }
}

#[test]
fn r05_a_gate_that_traps_in_open_flips_nothing() {
    let process = Process::start(planted(2));
    process.advance(Duration::from_secs(2));
    let plant = Request::new("GET", "/status").header("x-softclose-plant", "panic");
    assert_eq!(process.ask(1, Listener::Control, plant).status, 503);
    // It was loaded long ago, so the next stream gets a new one.
    assert_eq!(process.probe(1), (200, StateName::Open));
    process.advance(SOON);
    assert_eq!(process.agreed(), StateName::Open);
    assert_eq!(process.status(1).distrust.unwrap().reason, DistrustReason::Trap);
}

#[test]
fn r05_whenever_a_vm_traps_a_drain_that_held_its_requests_is_not_called_clean() {
    each_seed(
        60,
        |seed| planted(1 + seed as usize % 3),
        |process| {
            process.advance(SOON);
            let workers = process.workers().count() as u64;
            let worker = 1 + process.random(workers) as usize;
            let how = ["panic", "oom", "stack", "panic-response"][process.random(4) as usize];
            let held = process.traffic(worker);
            process.race(10);
            let by = 1 + process.random(workers) as usize;
            process.script(by, move |process| drop(process.order(by, "/drain?settle_ms=0&deadline_ms=5000")));
            process.script(worker, move |process| trap(process, worker, how));
            process.advance(Duration::from_millis(process.random(3_000)));
            assert_ne!(process.status(by).verdict, Some(Verdict::Clean), "{how} on worker {worker}");
            process.end(held);
            process.advance(Duration::from_secs(10));
            let status = process.status(by);
            assert!(matches!(status.verdict, Some(Verdict::Fault { .. })), "{how} on worker {worker}: {status:#?}");
        },
    );
}

#[test]
fn r05_in_no_moment_of_a_last_will_is_the_count_both_low_and_believed() {
    let process = Process::start(planted(2));
    let held = process.traffic(1);
    process.order(2, "/drain?settle_ms=0&deadline_ms=10000");
    process.advance(SOON);
    process.intrude(|process, intruded| {
        // The dying VM's thread is taken off its processor before each hostcall, and the others go on serving.
        if intruded.thread == 1 && intruded.role == Role::Count {
            process.serve(process.traffic(2));
            process.advance(Duration::from_millis(2));
        }
    });
    trap(&process, 1, "panic");
    process.leave_alone();
    assert_ne!(process.status(2).verdict, Some(Verdict::Clean), "its requests live on");
    assert!(process.stream(held).passed && !process.stream(held).ended);
    assert_never_clean(&process, DistrustReason::Trap);
}

#[test]
fn r05_a_last_will_that_cannot_be_written_leaves_the_count_high() {
    for status in [8, 10] {
        let process = Process::start(planted(2));
        process.traffic(1);
        process.order(2, "/drain?settle_ms=0&deadline_ms=10000");
        process.advance(SOON);
        process.fail(Fault { call: "proxy_set_shared_data", status, first: 1, times: u64::MAX });
        trap(&process, 1, "panic");
        process.recover();
        process.advance(Duration::from_secs(5));
        assert_ne!(process.status(2).verdict, Some(Verdict::Clean), "its requests live on");
    }
}
