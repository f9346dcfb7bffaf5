//! One bad answer, and worse.

use std::thread;
use std::time::Duration;

use softclose_fsm::StateName;

use crate::stand_in::{Ended, Pod, Reply, wait_until};

#[test]
fn admin_and_control_stopped_for_three_seconds_in_mid_wait_are_unknown_and_not_zero() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.gate.server.hang(true);
    pod.admin.server.hang(true);
    // Not a wait for something: this is how long the process is stopped.
    thread::sleep(Duration::from_secs(3));
    pod.gate.set_active(0);
    pod.gate.server.hang(false);
    pod.admin.server.hang(false);
    running.end().expect(0, &[]);
}

#[test]
fn stopped_from_the_start_it_is_asked_again_until_it_answers() {
    let pod = Pod::new();
    pod.gate.server.hang(true);
    pod.admin.server.hang(true);
    let running = pod.prestop("30s", &[]);
    thread::sleep(Duration::from_secs(3));
    pod.gate.server.hang(false);
    pod.admin.server.hang(false);
    running.end().expect(0, &["no answer in time; unknown, asking again"]);
    assert_eq!(pod.gate.state(), StateName::Closed);
}

#[test]
fn an_admin_that_hangs_does_not_hold_up_the_gate_s_drain_and_is_asked_again() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    pod.admin.server.hang(true);
    let running = pod.prestop("30s", &[]);
    wait_until("the gate drains", || pod.gate.state() == StateName::Draining);
    assert_eq!(pod.gate.status().envoy_drain_us, None);
    pod.admin.server.hang(false);
    wait_until("the gate knows of Envoy's drain", || pod.gate.status().envoy_drain_us.is_some());
    assert_eq!(pod.gate.status().drains, 1);
    pod.gate.set_active(0);
    running.end().expect(0, &["going on with the gate's, and asking again meanwhile", "Envoy's drain has started"]);
}

#[test]
fn one_503_half_a_body_and_an_early_end_are_asked_again() {
    let half = || {
        Reply::Bytes(b"HTTP/1.1 200 OK\r\nx-softclose-state: CLOSED\r\ncontent-length: 999\r\n\r\n{\"state\"".to_vec())
    };
    let busy = || Reply::Whole(503, "x-softclose-state: OPEN\r\n".to_owned(), String::new());
    let pod = Pod::new();
    pod.gate.set_active(1);
    pod.admin.script([Reply::Whole(503, String::new(), String::new()), half(), Reply::Close]);
    pod.gate.script([half(), busy(), Reply::Close]);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.gate.script([half(), busy(), Reply::Close]);
    pod.gate.distrust(softclose_fsm::DistrustReason::Trap);
    wait_until("it waits again", || pod.gate.seen("/wait") >= 4);
    assert_eq!(pod.gate.state(), StateName::Draining);
    pod.gate.set_active(0);
    running.end().expect(11, &["the connection ended before the answer did"]);
}

#[test]
fn refused_once_is_not_gone() {
    let pod = Pod::new();
    pod.admin.server.vanish();
    pod.gate.server.vanish();
    let running = pod.prestop("30s", &[]);
    thread::sleep(Duration::from_millis(700));
    pod.admin.server.appear();
    pod.gate.server.appear();
    running.end().expect(0, &["connection refused; unknown, asking again"]);
    assert!(pod.gate.status().envoy_drain_us.is_some());
}

fn gone(ended: Ended) -> Ended {
    let ended = ended.expect(16, &["done: Envoy is gone"]);
    assert!(ended.took < Duration::from_secs(10), "{ended:#?}");
    ended
}

#[test]
fn refused_again_and_again_by_both_is_gone_and_it_leaves_early() {
    let pod = Pod::new();
    pod.admin.server.vanish();
    pod.gate.server.vanish();
    let ended = gone(pod.prestop("60s", &[]).end());
    assert!(ended.took > Duration::from_secs(3), "{ended:#?}");
    assert!(pod.agent.untouched());
}

#[test]
fn gone_in_mid_wait_says_how_many_were_in_flight() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    let running = pod.prestop("60s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    pod.admin.server.vanish();
    pod.gate.server.vanish();
    pod.gate.distrust(softclose_fsm::DistrustReason::Trap);
    assert!(
        gone(running.end())
            .summary()
            .contains("Envoy is gone (2 in flight when last seen); how many were cut is not known")
    );
}

#[test]
fn an_admin_that_knows_another_verb_is_a_named_error_and_the_gate_drains_all_the_same() {
    for status in [400, 404, 405] {
        let pod = Pod::new();
        pod.admin.refuse_to_drain(status);
        let what = format!("POST /drain_listeners?graceful&skip_exit answered {status}");
        let ended =
            pod.prestop("30s", &[]).end().expect(0, &[&what, "server version abc/1.40.0/Clean/RELEASE/BoringSSL"]);
        assert_eq!((pod.admin.posts().len(), ended.said(&what)), (1, 1), "asked once, said once");
        assert_eq!(pod.gate.status().envoy_drain_us, None);
    }
}

#[test]
fn a_document_of_another_version_is_never_called_clean() {
    let pod = Pod::new();
    let odd = |status: u16, state: &str| {
        Reply::Whole(status, format!("x-softclose-state: {state}\r\n"), r#"{"state": "SOMETHING"}"#.to_owned())
    };
    pod.gate.script([odd(200, "OPEN"), odd(200, "DRAINING"), odd(200, "CLOSING"), odd(200, "CLOSED")]);
    pod.prestop("30s", &[]).end().expect(11, &["the status document was not understood"]);
}

#[test]
fn a_gate_that_refuses_our_fields_drains_by_its_own_and_the_code_is_64() {
    let pod = Pod::new();
    let refuse = || {
        Reply::Whole(400, "x-softclose-state: OPEN\r\n".to_owned(), "settle_ms: got \"50\", must be absent".to_owned())
    };
    pod.gate.configure(&[("hold_max_ms", "200"), ("settle_ms", "10")]);
    let status = || Reply::Whole(200, "x-softclose-state: OPEN\r\n".to_owned(), String::new());
    pod.gate.script([status(), refuse()]);
    let ended = pod
        .prestop("30s", &[])
        .end()
        .expect(64, &["must be absent; going on with the gate's own plan", "it would have been 0"]);
    assert!(pod.gate.server.seen().iter().any(|seen| seen.starts_with("POST /drain?deadline_ms=")), "{ended:#?}");
}
