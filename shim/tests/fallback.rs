//! Envoy without softclose's filter.

use std::time::Duration;

use crate::stand_in::{Pod, Reply, Server, wait_until};

const DRAIN: &str = "POST /drain_listeners?graceful&skip_exit";
const CLOSE: &str = "POST /drain_listeners";

fn foreign() -> Server {
    Server::start("127.0.0.1", |_| Reply::Whole(503, String::new(), "softclose: filter not running\n".to_owned()))
}

#[test]
fn nothing_on_control_polls_until_zero_closes_the_sockets_and_is_12() {
    let pod = Pod::new();
    pod.gate.server.vanish();
    pod.admin.set_stats(Some(1), 1);
    let running = pod.prestop("30s", &[]);
    wait_until("it polls", || pod.admin.server.seen().contains(&"GET /stats?filter=downstream_rq_active".to_owned()));
    assert_eq!(pod.admin.posts(), [DRAIN]);
    pod.admin.set_stats(Some(0), 0);
    let ended =
        running.end().expect(12, &["error: DEGRADED", "connection refused", "Envoy's own counters say 1 in flight"]);
    assert_eq!(pod.admin.posts(), [DRAIN, CLOSE]);
    assert!(ended.summary().contains("cut at most 0; exit code 12"), "{ended:#?}");
    assert!(pod.agent.untouched());
}

#[test]
fn something_else_on_control_is_not_taken_for_softclose() {
    let pod = Pod::new();
    let other = foreign();
    let ended = pod.prestop_at("30s", &other.address(), &[]).end();
    ended.expect(12, &["answered 503 without x-softclose-state: not softclose, or its filter is not running"]);
    assert!(!other.seen().iter().any(|seen| seen.starts_with("POST")), "{:?}", other.seen());
}

#[test]
fn requests_in_flight_at_the_deadline_are_13_with_their_number() {
    let pod = Pod::new();
    pod.gate.server.vanish();
    pod.admin.set_stats(Some(3), 2);
    let ended = pod.prestop("8s", &[]).end().expect(13, &["DEGRADED"]);
    assert!(ended.summary().contains("the deadline came with requests in flight); cut at most 3;"), "{ended:#?}");
    assert_eq!(pod.admin.posts(), [DRAIN, CLOSE]);
}

#[test]
fn missing_counters_are_not_zero_it_waits_and_says_what_to_configure() {
    let pod = Pod::new();
    pod.gate.server.vanish();
    pod.admin.set_stats(None, 0);
    let ended = pod.prestop("8s", &[]).end().expect(13, &["proxyStatsMatcher", "how many were cut is not known"]);
    assert!(ended.took > Duration::from_secs(4), "{ended:#?}");
    assert_eq!(ended.said("proxyStatsMatcher"), 1);
}

#[test]
fn a_filter_that_reloads_within_a_second_is_waited_for() {
    let pod = Pod::new();
    let not_running = || Reply::Whole(503, String::new(), "softclose: filter not running\n".to_owned());
    pod.gate.script([not_running(), not_running(), not_running(), not_running()]);
    let ended = pod.prestop("30s", &[]).end().expect(0, &["without x-softclose-state"]);
    assert_eq!(ended.said("DEGRADED"), 0);
}

#[test]
fn control_that_vanishes_in_mid_wait_is_a_fallback_too() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.gate.server.vanish();
    // The wait under way still has its answer.
    pod.gate.distrust(softclose_fsm::DistrustReason::Trap);
    running.end().expect(12, &["DEGRADED"]);
}
