//! A zero that did not come by answers: who ended the last request decides whether it is believed.

use std::time::Duration;

use softclose_fsm::{DistrustReason, StateName, Verdict};

use crate::drive::SOON;
use crate::host::{Process, Setup};

const APART: Duration = Duration::from_millis(60);

/// How a drain by `query` stands when the last of two requests ended as Envoy says in `details`.
fn after_the_last_ended(query: &str, details: &'static str) -> (Option<Verdict>, Option<DistrustReason>) {
    let process = Process::start(Setup::of(2));
    let (first, last) = (process.traffic(1), process.traffic(2));
    process.order(1, query);
    process.advance(SOON);
    process.cut(first, "downstream_remote_disconnect");
    assert_eq!((process.active(), process.status(1).state), (1, StateName::Draining));
    // Later than what a balancer's cut would end together.
    process.advance(APART);
    process.cut(last, details);
    process.advance(SOON);
    let status = process.status(1);
    (status.verdict, status.distrust.map(|distrust| distrust.reason))
}

#[test]
fn a_soft_zero_that_the_balancers_side_made_is_not_believed() {
    let soft = "/drain?preset=haproxy-soft&settle_ms=0&hold_max_ms=1";
    for details in ["downstream_remote_disconnect", "http2.remote_reset"] {
        assert_eq!(after_the_last_ended(soft, details), (None, Some(DistrustReason::Aborted)), "{details}");
        assert_eq!(after_the_last_ended("/drain?settle_ms=0", details), (Some(Verdict::Clean), None), "{details}");
    }
    assert_eq!(after_the_last_ended(soft, "via_upstream"), (Some(Verdict::Clean), None), "one client went before");
}

#[test]
fn a_zero_that_envoy_made_itself_is_never_believed() {
    for query in ["/drain?settle_ms=0", "/drain?preset=haproxy-soft&settle_ms=0&hold_max_ms=1"] {
        let details = "downstream_local_disconnect(filter_chain_is_being_removed)";
        assert_eq!(after_the_last_ended(query, details), (None, Some(DistrustReason::Cut)), "{query}");
    }
}

#[test]
fn several_that_their_peers_end_in_one_instant_are_a_cut_whatever_the_preset() {
    for query in ["/drain?settle_ms=0", "/drain?preset=haproxy-retry&settle_ms=0&hold_max_ms=1"] {
        let process = Process::start(Setup::of(2));
        let (first, last) = (process.traffic(1), process.traffic(2));
        process.order(1, query);
        process.advance(SOON);
        process.cut(first, "downstream_remote_disconnect");
        process.cut(last, "downstream_remote_disconnect");
        process.advance(SOON);
        let status = process.status(1);
        assert_eq!(status.distrust.map(|distrust| distrust.reason), Some(DistrustReason::Aborted), "{query}");
        assert_eq!((status.state, status.peer_ends.perhaps_cut), (StateName::Draining, 2), "{query}");
    }
}

#[test]
fn one_that_its_peer_ended_is_believed_and_named() {
    let process = Process::start(Setup::of(1));
    let only = process.traffic(1);
    process.order(1, "/drain?settle_ms=0");
    process.advance(SOON);
    process.cut(only, "downstream_remote_disconnect");
    process.advance(SOON);
    let status = process.status(1);
    assert_eq!((status.verdict, status.peer_ends.all, status.peer_ends.perhaps_cut), (Some(Verdict::Clean), 1, 1));
}
