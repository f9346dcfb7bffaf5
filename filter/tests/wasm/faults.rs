//! Hostcalls that fail: each of them, with every status, from some call on or once.

use std::time::Duration;

use softclose_fsm::control::STATE_HEADER;
use softclose_fsm::{StateName, Verdict};

use crate::drive::{GAUGES, PAID, SOON, watch_for_clean_flips};
use crate::host::{Fault, Listener, Process, Request, Role, STATUSES, Setup, StreamId};

const CALLS: [&str; 17] = [
    "clock_time_get",
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_header_map_value",
    "proxy_get_metric",
    "proxy_get_property",
    "proxy_get_shared_data",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_record_metric",
    "proxy_register_shared_queue",
    "proxy_send_local_response",
    "proxy_set_effective_context",
    "proxy_set_shared_data",
    "proxy_set_tick_period_milliseconds",
];

/// Of the statuses, those that the module tells apart, and one of the rest.
const TOLD_APART: [u32; 4] = [1, 7, 8, 10];

fn plans(call: &'static str) -> impl Iterator<Item = Fault> {
    let lasting = STATUSES.map(|status| Fault { call, status, first: 1, times: u64::MAX });
    let later = TOLD_APART.map(|status| Fault { call, status, first: 3, times: u64::MAX });
    let once =
        [1, 2, 5].into_iter().flat_map(move |first| TOLD_APART.map(|status| Fault { call, status, first, times: 1 }));
    lasting.into_iter().chain(later).chain(once)
}

/// Whatever a gateway does in a moment. Answers may be missing, as the host may refuse to send them.
fn a_busy_moment(process: &Process) {
    for worker in process.workers() {
        let id = process.request(worker, Listener::Traffic, Request::new("GET", "/"));
        assert!(process.stream(id).passed, "traffic was held up");
        let asked = [
            (Listener::Health, Request::new("GET", "/health_check.html")),
            (Listener::Health, Request::new("GET", "/health")),
            (Listener::Control, Request::new("GET", "/status")),
            (Listener::Control, Request::new("GET", "/wait?timeout_ms=1")),
            (Listener::Control, Request::new("POST", "/observe?active=3")),
            (Listener::Control, Request::new("POST", "/nonsense")),
        ];
        let asked: Vec<StreamId> =
            asked.into_iter().map(|(listener, request)| process.request(worker, listener, request)).collect();
        process.advance(SOON);
        process.serve(id);
        for id in asked {
            if let Some(reply) = process.reply(id).filter(|_| process.stream(id).listener == Listener::Health) {
                let open = reply.header(STATE_HEADER) != Some("OPEN") || [200, 404, 405].contains(&reply.status);
                assert!(open, "{reply:?}");
            }
            process.end(id);
        }
    }
}

#[test]
fn r65_in_open_no_failing_hostcall_traps_or_flips_anything() {
    for call in CALLS {
        let process = Process::start(Setup::of(2));
        for fault in plans(call) {
            process.fail(fault);
            a_busy_moment(&process);
            assert!(process.said("transition").is_empty(), "{fault:?}");
            process.assert_no_trap();
        }
        process.recover();
        process.advance(Duration::from_secs(3));
        a_busy_moment(&process);
        assert_eq!(process.agreed(), StateName::Open, "{call}");
        assert!(process.workers().all(|worker| process.probe(worker) == (200, StateName::Open)), "{call}");
    }
}

#[test]
fn r65_no_hostcall_that_fails_at_the_start_traps_or_keeps_traffic_out() {
    for call in CALLS {
        for fault in plans(call) {
            let process = Process::begin(Setup { fault: Some(fault), ..Setup::of(1) });
            assert!(process.attached(Role::Count), "{fault:?}: a refusal is a 500 to all traffic");
            process.advance(SOON);
            process.serve(process.traffic(1));
            process.recover();
            process.advance(Duration::from_secs(2));
            process.serve(process.traffic(1));
            // A gate that could not read its configuration leaves the answer to the route behind it.
            let probe = process.request(1, Listener::Health, Request::new("GET", "/health_check.html"));
            assert!(process.reply(probe).is_none_or(|reply| reply.status == 200), "{fault:?}");
            process.assert_no_trap();
        }
    }
}

#[test]
fn r65_in_mid_drain_no_failing_hostcall_traps_or_makes_a_busy_gateway_idle() {
    for call in CALLS {
        for fault in plans(call).filter(|fault| TOLD_APART.contains(&fault.status) && fault.first < 5) {
            let process = Process::start(Setup::of(2));
            watch_for_clean_flips(&process);
            let held = process.traffic(1);
            process.fail(fault);
            process.request(1, Listener::Control, Request::new("POST", "/drain?settle_ms=0&deadline_ms=10000"));
            for _ in 0..2 {
                a_busy_moment(&process);
                process.advance(Duration::from_secs(1));
            }
            process.recover();
            process.advance(SOON);
            let status = process.status(2);
            assert_ne!(status.verdict, Some(Verdict::Clean), "{fault:?}: {status:#?}");
            process.order(1, "/drain?settle_ms=0&deadline_ms=10000");
            process.serve(held);
            process.advance(Duration::from_secs(30));
            assert!([StateName::Closed, StateName::Fault].contains(&process.agreed()), "{fault:?}");
            process.assert_no_trap();
        }
    }
}

#[test]
fn r65_a_request_that_could_not_be_counted_is_not_taken_for_none() {
    for (call, null_gauge) in [
        ("proxy_increment_metric", GAUGES[0]),
        ("proxy_get_shared_data", GAUGES[1]),
        ("proxy_set_shared_data", GAUGES[1]),
    ] {
        let process = Process::start(Setup { null_gauge, ..Setup::of(2) });
        process.fail(Fault { call, status: 10, first: 1, times: u64::MAX });
        let id = process.traffic(1);
        process.recover();
        process.order(2, "/drain?settle_ms=0&deadline_ms=5000");
        process.advance(Duration::from_secs(4));
        assert_eq!(process.agreed(), StateName::Draining, "{call} failed: a request in flight is nowhere");
        process.serve(id);
        process.advance(Duration::from_secs(4));
        assert_ne!(process.status(1).verdict, Some(Verdict::Clean), "{call} failed: nobody knows");
    }
}

#[test]
fn r65_a_request_that_could_not_be_taken_out_keeps_the_count_high_and_is_bounded_by_the_deadline() {
    for (call, null_gauge) in [("proxy_increment_metric", GAUGES[0]), ("proxy_set_shared_data", GAUGES[1])] {
        let process = Process::start(Setup { null_gauge, ..Setup::of(2) });
        let id = process.traffic(1);
        process.fail(Fault { call, status: 10, first: 1, times: u64::MAX });
        process.serve(id);
        process.advance(PAID);
        process.recover();
        assert_eq!(process.status(2).active, 1);
        process.order(2, "/drain?settle_ms=0&deadline_ms=5000");
        process.advance(Duration::from_secs(5));
        assert_eq!(process.agreed(), StateName::Fault);
    }
}
