//! Plans other than the plain one, and the account of what came after the flip.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use softclose_fsm::control::STATE_HEADER;
use softclose_fsm::{FaultReason, Record, StateName, Verdict};

use crate::drive::{GAUGES, PAID, SOON, each_seed, state};
use crate::host::{Fault, Listener, Process, Reply, Request, Role, Setup, StreamId, Traced};

const RETRY: &str = "/drain?preset=haproxy-retry&settle_ms=0&replay_limit=1000";

fn get() -> Request {
    Request::new("GET", "/")
}

fn post(length: &str) -> Request {
    Request::new("POST", "/").header("content-length", length).with_body()
}

/// A balancer with an address of its own asks worker `worker`.
fn probe(process: &Process, worker: usize, address: &str) -> Reply {
    let request = Request::new("GET", "/health_check.html").with_peer(format!("{address}:40000"));
    process.ask(worker, Listener::Health, request)
}

fn arrives(process: &Process, worker: usize, request: Request) -> (Option<Reply>, StreamId) {
    let id = process.request(worker, Listener::Traffic, request);
    (process.reply(id), id)
}

#[test]
fn refused_is_what_the_balancer_can_replay_and_it_is_never_in_flight() {
    let process = Process::start(Setup::of(2));
    let held = process.traffic(1);
    process.order(2, RETRY);
    process.advance(SOON);
    for worker in process.workers() {
        for request in [get(), post("0"), post("1000"), Request::new("POST", "/")] {
            let (reply, id) = arrives(&process, worker, request);
            let reply = reply.expect("it was not refused");
            assert_eq!((reply.status, reply.header("x-softclose")), (425, Some("refused")));
            assert_eq!((reply.body.as_str(), reply.header(STATE_HEADER)), ("refused\n", None));
            assert!(!process.stream(id).passed && process.stream(id).ended);
            assert_eq!(process.active(), 1, "only what was there before");
        }
        let served = [
            post("1001"),
            Request::new("POST", "/").with_body(),
            post("5").header("transfer-encoding", "chunked"),
            get().header("upgrade", "websocket"),
            Request::new("CONNECT", "gateway:443"),
            post("5").header("content-type", "application/grpc"),
        ];
        for request in served {
            let (reply, id) = arrives(&process, worker, request);
            assert_eq!((reply, process.stream(id).passed, process.active()), (None, true, 2));
            process.serve(id);
            assert_eq!(process.active(), 1);
        }
    }
    assert_eq!(process.metric("softclose_refused_requests"), 8);
    assert_eq!(process.metric("softclose_requests"), 1 + 12);
    assert_eq!(process.status(1).state, StateName::Draining);
    process.serve(held);
    process.advance(SOON);
    assert_eq!((process.agreed(), process.status(1).verdict), (StateName::Closing, Some(Verdict::Clean)));
    for worker in process.workers() {
        assert_eq!(arrives(&process, worker, get()).0.map(|reply| reply.status), Some(425), "in CLOSING too");
    }
    let status = process.status(2);
    assert_eq!((status.late, status.active), (Some(0), 0));
    process.assert_no_trap();
}

#[test]
fn refusing_has_its_own_states_and_status_and_ends_with_a_reopen() {
    let process = Process::start(Setup::of(2));
    let refused = |worker| arrives(&process, worker, get()).0.map(|reply| reply.status);
    let held = process.traffic(1);
    process.order(1, "/drain?arrivals=refuse&refuse_status=503");
    process.advance(SOON);
    assert_eq!((refused(1), refused(2)), (Some(503), Some(503)));
    process.order(2, "/close-lb");
    process.advance(SOON);
    assert_eq!((refused(1), refused(2)), (None, None), "asked for in DRAINING alone");
    process.order(1, "/reopen");
    process.advance(SOON);
    process.order(1, "/drain?arrivals_closing=refuse");
    process.advance(SOON);
    assert_eq!((refused(1), refused(2)), (None, None));
    process.order(2, "/close-lb");
    process.advance(SOON);
    assert_eq!((refused(1), refused(2)), (Some(425), Some(425)));
    process.order(2, "/reopen");
    process.advance(SOON);
    assert_eq!((refused(1), refused(2)), (None, None));
    process.serve(held);
    process.assert_no_trap();
}

#[test]
fn in_open_no_header_is_read_and_who_has_not_heard_of_the_drain_serves() {
    let process = Process::start(Setup::of(2));
    process.serve(process.traffic(1));
    let reads =
        |traced: Vec<Traced>| traced.iter().filter(|traced| traced.call == "proxy_get_header_map_value").count();
    assert_eq!(reads(process.traced(|| process.serve(process.traffic(1)))), 0);
    process.freeze(1, true);
    process.order(2, RETRY);
    process.advance(SOON);
    assert_eq!(reads(process.traced(|| process.serve(process.traffic(1)))), 0, "its bell was not delivered yet");
    process.freeze(1, false);
    process.advance(SOON);
    assert!(reads(process.traced(|| drop(arrives(&process, 1, get())))) > 0);
}

#[test]
fn a_refusal_that_the_host_does_not_send_is_a_request_that_is_served_and_counted() {
    let process = Process::start(Setup::of(1));
    let held = process.traffic(1);
    process.order(1, RETRY);
    process.advance(SOON);
    process.fail(Fault { call: "proxy_send_local_response", status: 2, first: 1, times: 1 });
    let id = process.traffic(1);
    assert_eq!((process.active(), process.metric("softclose_refused_requests")), (2, 0));
    process.recover();
    process.serve(id);
    process.serve(held);
    process.advance(SOON);
    assert_eq!(process.agreed(), StateName::Closing);
    // And one whose headers cannot be read is served as well.
    process.fail(Fault { call: "proxy_get_header_map_value", status: 2, first: 1, times: u64::MAX });
    let id = process.traffic(1);
    process.recover();
    process.serve(id);
}

#[test]
fn the_soft_answer_is_given_by_every_worker_and_zero_waits_until_it_was_heard() {
    let process = Process::start(Setup::of(3));
    let balancers = ["10.0.0.1", "10.0.0.2"];
    for turn in 0..3 {
        for balancer in balancers {
            assert_eq!(probe(&process, 1 + turn, balancer).status, 200);
        }
        process.advance(Duration::from_secs(1));
    }
    process.order(2, "/drain?preset=haproxy-soft&settle_ms=0&soft_body=disabled&hold_max_ms=10000");
    process.advance(SOON);
    assert_eq!(process.agreed(), StateName::Draining, "idle, and nobody has heard");
    for worker in process.workers() {
        let reply = probe(&process, worker, balancers[0]);
        assert_eq!((reply.status, reply.body.as_str(), state(&reply)), (404, "disabled\n", StateName::Draining));
        let readiness = process.ask(worker, Listener::Health, Request::new("GET", "/health"));
        assert_eq!((readiness.status, readiness.body.as_str()), (200, "DRAINING\n"));
    }
    process.advance(Duration::from_secs(2));
    assert_eq!(process.agreed(), StateName::Draining, "one of two");
    assert_eq!(probe(&process, 3, balancers[0]).status, 404);
    assert_eq!(probe(&process, 3, balancers[1]).status, 404);
    assert_eq!(process.metric("softclose_soft_answers"), 5);
    // Its gap was three seconds and a little: so long it may take to ask, and so long is its margin.
    process.advance(Duration::from_millis(1_900));
    assert_eq!(process.agreed(), StateName::Draining);
    assert_eq!(probe(&process, 1, balancers[0]).status, 404);
    process.advance(Duration::from_millis(2_300));
    let status = process.status(1);
    assert_eq!((process.agreed(), status.verdict), (StateName::Closing, Some(Verdict::Clean)));
    assert_eq!(probe(&process, 2, balancers[1]).status, 503);
    process.assert_no_trap();
}

#[test]
fn health_first_closes_at_once_and_leaves_after_zero_and_the_hold() {
    for null_gauge in GAUGES {
        let process = Process::start(Setup { null_gauge, ..Setup::of(3) });
        let held = process.traffic(3);
        process.order(1, "/drain?preset=nlb&settle_ms=20&hold_min_ms=0&hold_max_ms=2000");
        assert_eq!(process.probe(2), (503, StateName::Closing));
        process.advance(Duration::from_secs(3));
        let status = process.status(2);
        assert_eq!((status.state, status.verdict), (StateName::Closing, Some(Verdict::HealthFirst { active: 1 })));
        assert!(status.roll_call.complete, "{:?}", status.roll_call);
        // What comes in the hold is served, and waited for.
        let late = process.traffic(1);
        process.serve(held);
        process.advance(Duration::from_secs(1));
        assert_eq!(process.agreed(), StateName::Closing);
        process.serve(late);
        process.advance(Duration::from_millis(30));
        let status = process.status(3);
        assert_eq!((process.agreed(), status.verdict, status.late), (StateName::Closed, Some(Verdict::Clean), Some(1)));
        assert_eq!(status.cut_at_most, Some(0));
        process.assert_no_trap();
    }
}

#[test]
fn health_first_ends_by_the_hold_alone_where_nothing_happens() {
    let process = Process::start(Setup::of(2));
    process.order(2, "/drain?preset=nlb&settle_ms=0&hold_min_ms=0&hold_max_ms=2000");
    let wait = process.wait(1, "for=exit&timeout_ms=15000");
    process.advance(Duration::from_millis(1_990));
    assert_eq!((process.agreed(), process.reply(wait)), (StateName::Closing, None));
    process.advance(Duration::from_millis(20));
    assert_eq!(process.agreed(), StateName::Closed);
    assert_eq!(process.reply(wait).map(|reply| reply.status), Some(200));
}

#[test]
fn health_first_the_deadline_is_a_fault_with_what_is_in_flight() {
    let process = Process::start(Setup::of(2));
    let held = process.traffic(2);
    process.order(1, "/drain?preset=nlb&settle_ms=0&hold_min_ms=0&hold_max_ms=1000&deadline_ms=3000");
    process.advance(Duration::from_millis(3_010));
    let status = process.status(2);
    let verdict = Verdict::Fault { reason: FaultReason::Deadline, active: Some(1) };
    assert_eq!((status.state, status.verdict, status.may_exit), (StateName::Fault, Some(verdict), true));
    assert_eq!(status.cut_at_most, Some(1));
    assert_eq!(process.metric("softclose_cut_at_most"), 1);
    process.serve(held);
    assert_eq!(process.status(1).cut_at_most, Some(1), "what was cut is not undone");
}

#[test]
fn health_first_a_worker_that_does_not_count_is_never_called_idle() {
    let process = Process::start(Setup { order: vec![Role::Gate], ..Setup::of(2) });
    process.order(1, "/drain?preset=nlb&settle_ms=0&hold_min_ms=0&hold_max_ms=1000&deadline_ms=5000");
    process.advance(Duration::from_secs(6));
    let status = process.status(2);
    assert_eq!(status.state, StateName::Fault);
    assert!(matches!(status.verdict, Some(Verdict::Fault { reason: FaultReason::Distrust(_), active: None })));
}

#[test]
fn a_height_between_two_looks_is_not_missed() {
    for (dud, null_gauge) in [false, true].into_iter().zip(GAUGES) {
        let process = Process::start(Setup { null_gauge, ..Setup::of(3) });
        let mut held: Vec<StreamId> = process.workers().map(|worker| process.traffic(worker)).collect();
        process.order(1, "/drain?settle_ms=0&hold_max_ms=60000");
        process.advance(SOON);
        process.order(1, "/close-lb");
        process.advance(SOON);
        assert_eq!(process.probe(1).0, 503);
        assert_eq!(process.status(2).cut_at_most, None, "one of two answers");
        // Nobody has heard of the second one but who gave it.
        assert_eq!(process.probe(3).0, 503);
        held.extend([1, 2, 2, 3, 3].map(|worker| process.traffic(worker)));
        held.into_iter().for_each(|id| process.serve(id));
        let status = process.status(1);
        assert_eq!((status.active, status.late, status.cut_at_most), (0, Some(5), Some(8)));
        process.advance(SOON);
        let shown = (process.metric("softclose_late"), process.metric("softclose_cut_at_most"));
        assert_eq!(shown, if dud { (0, 0) } else { (5, 8) });
        process.order(2, "/close");
        let said = process.said("transition").pop().unwrap();
        assert_eq!((&said["to"], &said["late"], &said["cut_at_most"]), (&"CLOSED".into(), &5.into(), &8.into()));
        process.assert_no_trap();
    }
}

#[test]
fn late_begins_anew_with_each_drain_and_means_nothing_in_open() {
    let process = Process::start(Setup::of(2));
    for _ in 0..2 {
        process.order(1, "/drain?settle_ms=0&hold_max_ms=60000");
        process.serve(process.traffic(2));
        process.advance(SOON);
        assert_eq!(process.agreed(), StateName::Closing);
        for worker in [1, 2, 2] {
            process.serve(process.traffic(worker));
        }
        assert_eq!(process.status(1).late, Some(3));
        process.order(2, "/reopen");
        process.serve(process.traffic(1));
        let status = process.status(2);
        assert_eq!((status.late, status.cut_at_most), (None, None));
        process.advance(PAID);
    }
}

/// What a test saw from outside of a run of racing workers.
#[derive(Default)]
struct Outside {
    /// Requests that were let in, in all and when the flip was committed.
    let_in: Cell<u64>,
    let_in_at_flip: Cell<Option<u64>>,
    /// Hard answers that were given.
    hard: Cell<u64>,
    /// The most in flight since the second of them.
    most: Cell<u64>,
    held: RefCell<Vec<StreamId>>,
}

#[test]
fn under_races_late_is_exact_and_cut_at_most_is_never_below_what_was_in_flight() {
    let compared = Cell::new(0);
    let setup =
        |seed: u64| Setup { null_gauge: GAUGES[seed as usize % GAUGES.len()], ..Setup::of(1 + seed as usize % 4) };
    each_seed(120, setup, |process| {
        process.race(15);
        process.advance(SOON);
        let outside = Rc::new(Outside::default());
        let seen = Rc::clone(&outside);
        process.witness(move |_, key, value| {
            if key == "softclose.1.record" && seen.let_in_at_flip.get().is_none() {
                let record: Record = serde_json::from_slice(value).unwrap();
                if record.state.name() == StateName::Closing {
                    seen.let_in_at_flip.set(Some(seen.let_in.get()));
                }
            }
        });
        let seen = Rc::clone(&outside);
        process.intrude(move |process, _| {
            if seen.hard.get() >= 2 {
                seen.most.set(seen.most.get().max(process.in_flight() as u64));
            }
        });
        process.order(1, "/drain?settle_ms=0&hold_max_ms=60000");
        process.advance(Duration::from_millis(20));
        assert_eq!(process.agreed(), StateName::Closing);
        for _ in 0..12 {
            for worker in process.workers() {
                for _ in 0..process.random(6) {
                    let (kind, outside) = (process.random(8), Rc::clone(&outside));
                    process.script(worker, move |process| match kind {
                        0..=3 => {
                            let id = process.traffic(worker);
                            outside.let_in.set(outside.let_in.get() + 1);
                            outside.held.borrow_mut().push(id);
                        }
                        4..=6 => {
                            let of_worker = |id: &StreamId| process.stream(*id).worker == worker;
                            let at = outside.held.borrow().iter().position(of_worker);
                            let id = at.map(|at| outside.held.borrow_mut().remove(at));
                            id.into_iter().for_each(|id| process.serve(id));
                        }
                        _ => {
                            assert_eq!(process.probe(worker).0, 503);
                            outside.hard.set(outside.hard.get() + 1);
                        }
                    });
                }
            }
            process.advance(Duration::from_millis(process.random(4)));
        }
        let held = outside.held.take();
        for id in held {
            process.script(process.stream(id).worker, move |process| process.serve(id));
        }
        process.advance(SOON);
        process.leave_alone();
        let status = process.status(1);
        assert_eq!(process.in_flight(), 0);
        assert_eq!(status.late, Some(outside.let_in.get() - outside.let_in_at_flip.get().unwrap()));
        if outside.hard.get() >= 2 {
            let cut = status.cut_at_most.unwrap();
            assert!(cut >= outside.most.get(), "{cut} said, {} seen", outside.most.get());
            // No more than there can have been: those that were seen, and one callback of each worker in between.
            assert!(
                cut <= outside.most.get() + process.workers().count() as u64 * 3,
                "{cut} said, {} seen",
                outside.most.get()
            );
            compared.set(compared.get() + u64::from(outside.most.get() > 0));
        }
        process.assert_no_trap();
    });
    assert!(compared.get() > 60 || std::env::var("SEED").is_ok(), "compared {} times", compared.get());
}

/// Shared data survives a push of another module: what an older one began goes on as it began it.
#[test]
fn r28_a_record_of_a_module_before_presets_flips_nothing_and_is_continued() {
    for (seed, before, then) in [
        (&include_bytes!("../../../fuzz/seeds/record/open")[10..], StateName::Open, StateName::Open),
        (&include_bytes!("../../../fuzz/seeds/record/closing")[10..], StateName::Closing, StateName::Closed),
        (&include_bytes!("../../../fuzz/seeds/record/fault")[10..], StateName::Fault, StateName::Fault),
    ] {
        // The seeds' clock stands at a second, this process' at a thousand.
        let record = std::str::from_utf8(seed).unwrap().replace("1000000,", "1000000000,");
        let process = Process::begin(Setup::of(2));
        process.share("softclose.1.record", record.as_bytes());
        process.advance(SOON);
        let (status, expected) = (process.status(1), if before == StateName::Open { 200 } else { 503 });
        assert_eq!((status.state, status.distrust.is_some()), (before, record.contains("roll call")));
        assert_eq!((status.late, status.cut_at_most), (None, None), "nobody kept account of it");
        for worker in process.workers() {
            assert_eq!(process.probe(worker), (expected, before));
            process.serve(process.traffic(worker));
        }
        process.advance(Duration::from_secs(15));
        assert_eq!(process.agreed(), then);
        process.assert_no_trap();
    }
}
