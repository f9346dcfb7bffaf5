//! A count that is not to be believed, and the second opinion.

use std::time::Duration;

use softclose_fsm::{DistrustReason, StateName};

use crate::stand_in::{Pod, Reply, wait_until};

#[test]
fn zero_by_envoy_s_own_counters_closes_and_is_11() {
    let pod = Pod::new();
    pod.gate.distrust(DistrustReason::Trap);
    pod.admin.set_stats(Some(2), 2);
    let running = pod.prestop("30s", &[]);
    wait_until("the opinion is brought", || pod.gate.seen("/observe?active=2") >= 1);
    assert_eq!(pod.gate.state(), StateName::Draining);
    pod.admin.set_stats(Some(0), 0);
    let ended = running.end().expect(11, &["the count is not to be believed (trap)", "Envoy's counters read zero"]);
    // What the trapped VM held was cut before Envoy's counters read zero.
    let so = "(trap; Envoy's own counters read zero); how many were cut is not known; exit code 11";
    assert!(ended.summary().contains(so), "{ended:#?}");
    assert!(pod.agent.untouched());
}

#[test]
fn distrust_that_comes_in_mid_wait_is_met_at_once() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.gate.distrust(DistrustReason::Ledger);
    pod.gate.set_active(0);
    let ended = running.end().expect(11, &["(ledger; Envoy's own counters read zero); cut at most 0"]);
    assert!(ended.took < Duration::from_secs(5), "{ended:#?}");
}

#[test]
fn a_count_in_doubt_that_never_reads_zero_leaves_open_how_many_were_cut() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.gate.distrust(DistrustReason::Ledger);
    running.end().expect(11, &["(ledger; Envoy's own counters read zero); how many were cut is not known"]);
}

#[test]
fn without_a_downstream_stat_there_is_no_opinion_and_it_is_said_once() {
    let pod = Pod::new();
    pod.gate.distrust(DistrustReason::RollCall);
    pod.gate.distrust(DistrustReason::Config);
    pod.admin.set_stats(None, 0);
    let ended =
        pod.prestop("8s", &[]).end().expect(11, &["(config; no second opinion); how many were cut is not known"]);
    assert_eq!(ended.said("proxyStatsMatcher"), 1, "{ended:#?}");
    assert_eq!(pod.gate.seen("/observe"), 0);
}

#[test]
fn half_of_the_counters_is_no_opinion() {
    let pod = Pod::new();
    pod.gate.distrust(DistrustReason::Trap);
    // 0 so far, and the listener that is busy is in the half that did not come.
    let half = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n35\r\nhttp.outbound_0.0.0.0_8080;.downstream_rq_active: 0\n\r\n";
    pod.admin.set_stats(Some(3), 0);
    let running = pod.prestop("30s", &[]);
    wait_until("one opinion", || pod.gate.seen("/observe?active=3") == 1);
    pod.admin.script([Reply::Bytes(half.to_vec()), Reply::Close]);
    wait_until("another opinion", || pod.gate.seen("/observe?active=3") == 2);
    assert_eq!(pod.gate.seen("/observe?active=0"), 0);
    pod.admin.set_stats(Some(0), 0);
    running.end().expect(11, &["the connection ended before the answer did; no second opinion"]);
}

#[test]
fn an_operator_s_close_lb_on_a_count_in_doubt_is_not_called_clean() {
    let pod = Pod::new();
    pod.gate.distrust(DistrustReason::Trap);
    pod.admin.set_stats(Some(1), 0);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") >= 1);
    pod.gate.input(&softclose_fsm::Input::CloseLb);
    running.end().expect(11, &["not to be believed (trap"]);
}

#[test]
fn a_balancer_that_was_unheard_makes_no_zero_clean_and_says_that_the_number_is_not_known() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.gate.distrust(DistrustReason::Unheard);
    pod.gate.set_active(0);
    let so = "(unheard; Envoy's own counters read zero); how many were cut is not known; exit code 11";
    let ended = running.end().expect(11, &["the count is not to be believed (unheard)"]);
    assert!(ended.summary().contains(so), "{ended:#?}");
    assert!(pod.agent.untouched());
}

#[test]
fn a_record_that_is_lost_in_mid_drain_or_in_the_hold_is_drained_again_and_not_called_clean() {
    for lost_in in [StateName::Draining, StateName::Closing] {
        let pod = Pod::new();
        pod.gate.set_active(1);
        let running = pod.prestop("30s", &["--hold-max", "2s"]);
        wait_until("it waits", || pod.gate.seen("/wait?for=closing") >= 1);
        if lost_in == StateName::Closing {
            pod.gate.set_active(0);
        }
        wait_until("it comes there", || pod.gate.state() == lost_in);
        pod.gate.lose_record();
        wait_until("it drains again", || pod.gate.seen("POST /drain?") == 2);
        pod.gate.set_active(0);
        let said = ["lost its record", "the gate's record was lost in mid-drain", "exit code 11"];
        running.end().expect(11, &said);
    }
}
