//! What is counted, and what is not.

use std::time::Duration;

use softclose_fsm::{LedgerKind, StateName, Verdict};

use crate::drive::{GAUGES, PAID, SOON};
use crate::host::{Listener, Process, Request, Role, Setup, StreamId, Traced};

/// A way in which a request ends, from the moment when its headers came in.
type Ending = (&'static str, fn(&Process, StreamId));

const ENDINGS: [Ending; 12] = [
    ("served", |process, id| process.serve(id)),
    ("the client gave up while waiting", |process, id| process.end(id)),
    ("the client reset in mid-upload", |process, id| {
        process.request_body(id, 10, false);
        process.end(id);
    }),
    ("uploaded, then reset", |process, id| {
        process.request_body(id, 10, true);
        process.end(id);
    }),
    ("the route timed out, the proxy answered", |process, id| {
        process.response_headers(id, false);
        process.response_body(id, 24, true);
        process.end(id);
    }),
    ("the upstream died after its response headers", |process, id| {
        process.response_headers(id, false);
        process.end(id);
    }),
    ("the upstream died in mid-body", |process, id| {
        process.response_headers(id, false);
        process.response_body(id, 24, false);
        process.end(id);
    }),
    ("a response without a body", |process, id| {
        process.response_headers(id, true);
        process.end(id);
    }),
    ("trailers on both sides", |process, id| {
        process.request_body(id, 10, false);
        process.request_trailers(id);
        process.response_headers(id, false);
        process.response_body(id, 24, false);
        process.response_trailers(id);
        process.end(id);
    }),
    ("upgraded, both sides spoke, then reset", |process, id| {
        process.response_headers(id, false);
        process.request_body(id, 10, false);
        process.response_body(id, 10, false);
        process.request_body(id, 10, false);
        process.end(id);
    }),
    ("redirected twice inside the proxy, then served", |process, id| {
        let again = process.redirect(id);
        let last = process.redirect(again);
        process.serve(last);
    }),
    ("redirected inside the proxy, then reset", |process, id| {
        let again = process.redirect(id);
        process.end(again);
    }),
];

fn every_ending_leaves_zero(setup: Setup, drained: bool) {
    let process = Process::start(setup);
    if drained {
        // Something that keeps the drain from ending.
        process.traffic(2);
        process.order(1, "/drain");
        process.advance(SOON);
    }
    let before = u64::from(drained);
    for (name, ending) in ENDINGS {
        let id = process.traffic(1);
        assert_eq!(process.status(2).active, before + 1, "{name}");
        ending(&process, id);
        if !drained {
            process.advance(PAID);
        }
        assert_eq!(process.status(2).active, before, "{name}");
        process.advance(SOON);
    }
    assert_eq!(process.agreed(), if drained { StateName::Draining } else { StateName::Open });
    process.assert_no_trap();
}

#[test]
fn r01_a_reply_by_an_earlier_filter_takes_nothing_from_the_count() {
    let process = Process::start(Setup::of(2));
    let served = process.traffic(1);
    for worker in process.workers() {
        let early = process.open(worker, Listener::Traffic, Request::new("GET", "/deny"));
        process.end(early);
        assert_eq!(process.active(), 1);
    }
    process.serve(served);
    process.advance(PAID);
    // While the count is zero, it must not wrap.
    let early = process.open(1, Listener::Traffic, Request::new("GET", "/deny"));
    process.end(early);
    process.advance(PAID);
    assert_eq!(process.active(), 0);
    process.assert_no_trap();
}

#[test]
fn r69_every_way_to_abort_a_request_takes_it_out_of_the_count() {
    every_ending_leaves_zero(Setup::of(2), false);
    every_ending_leaves_zero(Setup::of(2), true);
}

#[test]
fn r69_the_same_holds_where_the_gauge_is_a_dud() {
    every_ending_leaves_zero(Setup { null_gauge: |_, _| true, ..Setup::of(2) }, false);
    every_ending_leaves_zero(Setup { null_gauge: |_, _| true, ..Setup::of(2) }, true);
}

#[test]
fn r70_a_log_in_mid_request_ends_nothing() {
    let process = Process::start(Setup::of(1));
    let id = process.traffic(1);
    process.log(id);
    process.response_headers(id, false);
    process.log(id);
    assert_eq!(process.active(), 1);
    process.end(id);
    process.advance(PAID);
    assert_eq!(process.active(), 0);
}

#[test]
fn r71_between_two_pipelined_requests_nothing_flips_even_without_settling() {
    let process = Process::start(Setup::of(2));
    let mut id = process.traffic(1);
    process.order(2, "/drain?settle_ms=0");
    process.advance(SOON);
    for _ in 0..10 {
        // The first one's end and the next one's headers come in one turn of the event loop.
        process.end(id);
        assert_eq!(process.active(), 0);
        id = process.traffic(1);
        process.advance(Duration::from_millis(50));
        assert_eq!(process.agreed(), StateName::Draining);
    }
    process.end(id);
    process.advance(SOON);
    assert_eq!(process.agreed(), StateName::Closing);
    assert_eq!(process.status(1).verdict, Some(Verdict::Clean));
}

#[test]
fn r71_a_short_request_in_the_middle_of_settling_starts_it_anew() {
    for null_gauge in GAUGES {
        let process = Process::start(Setup { null_gauge, ..Setup::of(3) });
        process.order(1, "/drain?settle_ms=1000");
        for _ in 0..5 {
            process.advance(Duration::from_millis(700));
            assert_eq!(process.agreed(), StateName::Draining);
            process.serve(process.traffic(3));
        }
        process.advance(Duration::from_millis(990));
        assert_eq!(process.agreed(), StateName::Draining);
        process.advance(Duration::from_millis(20));
        assert_eq!(process.agreed(), StateName::Closing);
    }
}

#[test]
fn r71_a_request_whose_headers_are_half_sent_is_not_counted_and_holds_up_nothing() {
    let process = Process::start(Setup::of(1));
    let half = process.open(1, Listener::Traffic, Request::new("GET", "/"));
    assert_eq!(process.active(), 0);
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    assert_eq!(process.agreed(), StateName::Closing);
    // Its headers come after all: served, and counted.
    process.request_headers(half);
    assert_eq!(process.active(), 1);
    process.serve(half);
    assert_eq!(process.active(), 0);
}

#[test]
fn in_open_a_request_that_follows_another_costs_no_hostcall() {
    let process = Process::start(Setup::of(1));
    let call = |call, about: &str| Traced { call, about: about.to_owned() };
    let count = |about: &str| call("proxy_increment_metric", about);
    let one = || process.traced(|| process.serve(process.traffic(1)));
    // The first one is reported at once, so that a gateway which served anything says so; then every 64th reports.
    assert_eq!(one(), [count("softclose_active+1"), count("softclose_requests+1")]);
    assert_eq!(process.armed(), 1, "one tick for all that end within a second");
    for _ in 0..63 {
        assert_eq!(one(), []);
    }
    assert_eq!(one(), [count("softclose_requests+64")]);
    assert_eq!(process.metric("softclose_requests"), 65);
    assert_eq!(process.status(1).counted, 65);
    let ended = process.traced(|| process.advance(PAID));
    assert!(ended.contains(&count("softclose_active-1")), "{ended:?}");
    assert_eq!((process.active(), process.armed()), (0, 0));
}

#[test]
fn in_open_the_ledger_never_reads_less_than_is_in_flight_and_is_exact_a_second_after_the_last_end() {
    let process = Process::start(Setup::of(2));
    let held = process.traffic(2);
    let burst: Vec<StreamId> = (0..5).map(|_| process.traffic(1)).collect();
    burst.into_iter().for_each(|id| process.serve(id));
    assert_eq!(process.active(), 6, "five have ended and keep their places");
    let burst: Vec<StreamId> = (0..7).map(|_| process.traffic(1)).collect();
    assert_eq!(process.active(), 8, "five places were taken over, two were added");
    burst.into_iter().for_each(|id| process.serve(id));
    process.advance(PAID);
    assert_eq!(process.active(), 1);
    process.serve(held);
    process.advance(PAID);
    assert_eq!(process.active(), 0);
}

#[test]
fn a_drain_pays_at_once_what_was_left_in_the_ledger() {
    for null_gauge in GAUGES {
        let process = Process::start(Setup { null_gauge, ..Setup::of(3) });
        let held = process.traffic(3);
        for worker in process.workers() {
            (0..4).map(|_| process.traffic(worker)).collect::<Vec<_>>().into_iter().for_each(|id| process.serve(id));
        }
        assert_eq!(process.status(1).active, 1 + 3 * 4);
        process.order(1, "/drain?settle_ms=0");
        process.advance(SOON);
        assert_eq!((process.agreed(), process.status(1).active), (StateName::Draining, 1));
        process.serve(held);
        process.advance(SOON);
        assert_eq!(process.agreed(), StateName::Closing);
        assert_eq!(process.status(1).verdict, Some(Verdict::Clean));
    }
}

#[test]
fn a_worker_that_hears_late_of_the_drain_keeps_the_ledger_high_until_it_does() {
    let process = Process::start(Setup::of(2));
    process.serve(process.traffic(2));
    process.freeze(2, true);
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    assert_eq!((process.status(1).state, process.active()), (StateName::Draining, 1), "worker 2 has heard nothing");
    process.freeze(2, false);
    process.advance(SOON);
    assert_eq!((process.agreed(), process.active()), (StateName::Closing, 0));
    assert_eq!(process.status(1).verdict, Some(Verdict::Clean));
}

#[test]
fn what_a_replaced_worker_owes_is_paid() {
    let process = Process::start(Setup::of(1));
    let held = process.traffic(1);
    process.serve(process.traffic(1));
    assert_eq!(process.active(), 2);
    process.push(Role::Count);
    process.serve(process.traffic(1));
    assert_eq!(process.active(), 3, "the old one and its successor keep a place each");
    process.advance(PAID);
    assert_eq!(process.active(), 1);
    process.serve(held);
    process.advance(PAID);
    assert_eq!(process.active(), 0);
}

#[test]
fn a_drain_reports_what_was_counted_since_the_last_batch() {
    let process = Process::start(Setup::of(2));
    for _ in 0..10 {
        process.serve(process.traffic(2));
    }
    process.order(1, "/drain");
    process.advance(SOON);
    assert_eq!(process.status(1).counted, 10);
}

#[test]
fn r08_probes_and_commands_are_never_counted() {
    let process = Process::start(Setup::of(2));
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    // Every probe has others of the other worker inside it.
    process.intrude(|process, intruded| {
        assert_eq!(process.active(), 0);
        if intruded.call == "proxy_get_header_map_value" {
            assert_eq!(process.probe(3 - intruded.thread), (503, StateName::Closing));
        }
    });
    let traced = process.traced(|| {
        for probe in 0..20 {
            assert_eq!(process.probe(1 + probe % 2), (503, StateName::Closing));
        }
        for (method, target) in [("HEAD", "/health_check.html"), ("GET", "/nothing"), ("POST", "/health")] {
            process.ask(1, Listener::Health, Request::new(method, target));
        }
    });
    process.leave_alone();
    let commands = process.traced(|| {
        process.status(1);
        process.command(2, "/close");
        process.end(process.wait(1, "for=exit"));
    });
    let counted = traced.iter().chain(&commands).filter(|traced| traced.about.contains("softclose_active")).count();
    assert_eq!(counted, 0, "a probe or a command was counted");
    assert_eq!(process.active(), 0);
}

#[test]
fn r07_where_every_gauge_is_a_dud_shared_data_counts_and_zero_is_believed() {
    let process = Process::start(Setup { null_gauge: |_, _| true, ..Setup::of(2) });
    let requests = [process.traffic(1), process.traffic(2)];
    let status = process.status(1);
    assert_eq!((status.active, status.ledger, status.distrust), (2, LedgerKind::Shared, None));
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    for id in requests {
        assert_eq!(process.agreed(), StateName::Draining);
        process.serve(id);
        process.advance(SOON);
    }
    assert_eq!(process.agreed(), StateName::Closing);
    assert_eq!(process.status(2).verdict, Some(Verdict::Clean));
}

/// The counting VMs of some threads have a dud, those of others a gauge that counts.
fn mixed(null_gauge: fn(usize, &str) -> bool) {
    for settle in [0, 100, 1_000, 2_500] {
        let process = Process::start(Setup { null_gauge, ..Setup::of(3) });
        let requests: Vec<StreamId> = process.workers().map(|worker| process.traffic(worker)).collect();
        assert!(process.workers().all(|worker| process.status(worker).active > 0));
        process.order(1, &format!("/drain?settle_ms={settle}&deadline_ms=30000"));
        process.advance(Duration::from_secs(5));
        for id in requests {
            assert_eq!(process.agreed(), StateName::Draining);
            process.serve(id);
            process.advance(SOON);
        }
        process.advance(Duration::from_millis(2 * settle + 1_100));
        let status = process.status(1);
        assert_ne!(status.state, StateName::Draining, "settle {settle} ms: zero is not seen: {status:#?}");
        assert_eq!(status.verdict, Some(Verdict::Clean));
    }
}

#[test]
fn r07_a_dud_on_one_worker_neither_hides_a_request_nor_keeps_the_drain_from_ending() {
    mixed(|thread, _| thread == 1);
}

#[test]
fn r07_a_dud_on_all_workers_but_one_neither_hides_a_request_nor_keeps_the_drain_from_ending() {
    mixed(|thread, _| thread != 3);
}
