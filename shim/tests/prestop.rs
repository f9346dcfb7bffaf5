//! The ordinary way out.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use softclose_fsm::{EventName, Input, StateName};

use crate::stand_in::{Pod, wait_until};

const DRAIN: &str = "POST /drain_listeners?graceful&skip_exit";

#[test]
fn an_idle_gateway_leaves_clean_and_the_agent_is_told() {
    let pod = Pod::new();
    let ended =
        pod.prestop("30s", &[]).end().expect(0, &["Envoy's drain has started", "closing: health is 503 (clean)"]);
    assert_eq!(ended.summary().split_once(" done").unwrap().1, ": clean; cut at most 0; exit code 0");
    assert!(ended.took < Duration::from_secs(5), "{ended:#?}");
    assert_eq!(pod.admin.posts(), [DRAIN]);
    assert!(pod.agent.told());
    assert_eq!(pod.gate.state(), StateName::Closed);
    assert!(pod.gate.status().envoy_drain_us.is_some());
}

#[test]
fn the_deadline_is_grace_less_hold_and_five_seconds() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &["--hold-max", "10s"]);
    wait_until("it drains", || pod.gate.state() == StateName::Draining);
    let deadline = pod.gate.status().plan.deadline.unwrap();
    assert!(deadline > Duration::from_millis(14_500) && deadline <= Duration::from_secs(15), "{deadline:?}");
    running.kill();
}

#[test]
fn what_is_not_given_is_as_the_gate_is_configured() {
    let pod = Pod::new();
    pod.gate.configure(&[("hold_max_ms", "400"), ("fall", "7")]);
    pod.gate.set_active(1);
    let (admin, control) = (pod.admin.server.address(), pod.gate.server.address());
    let args = ["prestop", "--grace=20", "--admin", &admin, "--control", &control, "--log-also", "none"];
    let running = crate::stand_in::Running::start(&args);
    wait_until("it drains", || pod.gate.state() == StateName::Draining);
    let plan = pod.gate.status().plan;
    assert_eq!((plan.fall, plan.hold_max), (7, Duration::from_millis(400)));
    let deadline = plan.deadline.unwrap();
    assert!(deadline > Duration::from_millis(14_000) && deadline <= Duration::from_millis(14_600), "{deadline:?}");
    running.kill();
}

#[test]
fn the_flip_waits_for_the_last_request() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait?for=closing") == 1);
    assert_eq!(pod.gate.state(), StateName::Draining);
    pod.gate.set_active(0);
    running.end().expect(0, &["draining: 2 requests in flight, deadline in 2"]);
    let events: Vec<EventName> = pod.gate.status().events.iter().map(|event| event.event).collect();
    use EventName::{ActiveZero, Drain, EnvoyDrainStart, HealthFail, ReadinessFail};
    assert_eq!(events, [EnvoyDrainStart, Drain, ActiveZero, HealthFail, ReadinessFail]);
}

#[test]
fn requests_in_flight_at_the_deadline_are_10_and_the_agent_keeps_its_own_drain() {
    let pod = Pod::new();
    pod.gate.set_active(3);
    let ended = pod.prestop("3s", &["--hold-max", "1s"]).end();
    let ended = ended.expect(10, &["fault (deadline): health is 503 with 3 requests in flight"]);
    assert!(
        ended.summary().contains("done: the deadline came with requests in flight; cut at most 3; exit code 10"),
        "{ended:#?}"
    );
    assert!(pod.agent.untouched());
}

#[test]
fn cut_at_most_counts_what_comes_after_the_flip() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("6s", &["--hold-max", "2s"]);
    wait_until("the deadline", || pod.gate.state() == StateName::Fault);
    pod.gate.set_active(5);
    let ended = running.end().expect(10, &[]);
    assert!(ended.summary().contains("cut at most 5"), "{ended:#?}");
}

#[test]
fn a_grace_period_too_short_shrinks_the_hold_and_says_so() {
    let pod = Pod::new();
    pod.gate.configure(&[("hold_min_ms", "9000")]);
    let ended = pod.prestop("4s", &["--hold-max", "10s"]).end();
    let ended = ended
        .expect(0, &["the grace period is too short for a hold of 10 s: the balancer gets at most 1.5 s to notice"]);
    assert!(ended.took < Duration::from_secs(3), "{ended:#?}");
}

#[test]
fn reopened_in_mid_wait_it_drains_again_with_what_is_left() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    let first = pod.gate.status().plan.deadline.unwrap();
    pod.gate.input(&Input::Reopen);
    wait_until("it drains again", || pod.gate.state() == StateName::Draining);
    assert!(pod.gate.status().plan.deadline.unwrap() < first);
    pod.gate.set_active(0);
    running.end().expect(15, &["the gate is OPEN again: reopened by somebody", "done: clean, but somebody reopened"]);
    assert!(pod.agent.told());
}

#[test]
fn reopened_while_the_balancer_is_given_its_time_it_drains_again() {
    let pod = Pod::new();
    let running = pod.prestop("30s", &["--hold-max", "3s"]);
    wait_until("it waits for exit", || pod.gate.seen("/wait?for=exit") == 1);
    pod.gate.input(&Input::Reopen);
    wait_until("it waits for exit again", || pod.gate.seen("/wait?for=exit") == 2);
    pod.gate.input(&Input::Close);
    running.end().expect(15, &[]);
}

#[test]
fn an_operator_s_close_lb_is_10_with_requests_in_flight_and_0_without() {
    for (active, code) in [(4, 10), (0, 0)] {
        let pod = Pod::new();
        pod.gate.set_active(4);
        let running = pod.prestop("30s", &["--settle", "20s"]);
        wait_until("it waits", || pod.gate.seen("/wait") == 1);
        pod.gate.set_active(active);
        pod.gate.input(&Input::CloseLb);
        let ended = running.end().expect(code, &[]);
        assert!(ended.summary().contains(&format!("cut at most {active};")), "{ended:#?}");
    }
}

#[test]
fn idle_connections_and_scrapes_do_not_hold_it_up() {
    let pod = Pod::new();
    let addresses = [pod.admin.server.address(), pod.gate.server.address()];
    let idle: Vec<TcpStream> = addresses.iter().map(|address| TcpStream::connect(address).unwrap()).collect();
    let mut half = TcpStream::connect(&addresses[0]).unwrap();
    half.write_all(b"GET /stats HTTP/1.1\r\n").unwrap();
    let ended = pod.prestop("30s", &[]).end().expect(0, &[]);
    assert!(ended.took < Duration::from_secs(5));
    drop((idle, half));
}

#[test]
fn ipv6_loopback_and_localhost_are_as_good() {
    let pod = Pod::on("::1");
    pod.prestop("30s", &[]).end().expect(0, &[]);
    assert!(pod.agent.told());

    let pod = Pod::on("::1");
    let control = format!("localhost:{}", pod.gate.server.port());
    pod.prestop_at("30s", &control, &[]).end().expect(0, &[]);
}

#[test]
fn the_agent_s_failure_is_logged_and_changes_nothing() {
    let pod = Pod::new();
    pod.agent.server.vanish();
    pod.prestop("30s", &[])
        .end()
        .expect(0, &["agent 127.0.0.1:", "connection refused; it will drain by itself on SIGTERM"]);
}

#[test]
fn nothing_left_of_the_budget_is_17_a_second_before_the_end() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("4s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") >= 1);
    pod.gate.server.hang(true);
    pod.admin.server.hang(true);
    let ended = running
        .end()
        .expect(17, &["done: budget spent in DRAINING (1 in flight when last seen); how many were cut is not known"]);
    assert!(ended.took >= Duration::from_secs(3) && ended.took < Duration::from_secs(4), "{ended:#?}");
    pod.gate.server.hang(false);
    pod.admin.server.hang(false);
}
