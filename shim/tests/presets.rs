//! Other ways out than the plain one, and what the last line says of requests that came late.

use std::time::Duration;

use softclose_fsm::{DistrustReason, EventName, Input, Path, Probe, StateName};

use crate::stand_in::{Pod, Running, wait_until};

fn nlb(pod: &Pod, grace: &str, flags: &[&str]) -> Running {
    pod.prestop(grace, &[&["--preset", "nlb"], flags].concat())
}

fn probe(pod: &Pod) {
    pod.gate.input(&Input::Probe(Probe { path: Path::Balancer, prober: Some("10.0.0.9".to_owned()) }));
}

#[test]
fn health_first_an_idle_gateway_leaves_clean_after_the_hold() {
    let pod = Pod::new();
    let said =
        ["0 requests in flight, deadline in", "health is 503 already (health first)", "done: clean; cut at most 0"];
    let ended = nlb(&pod, "30s", &["--hold-max", "2s"]).end().expect(0, &said);
    assert!(ended.took > Duration::from_secs(2) && ended.took < Duration::from_secs(5), "{ended:#?}");
    let events: Vec<EventName> = pod.gate.status().events.iter().map(|event| event.event).collect();
    use EventName::{ActiveZero, Drain, EnvoyDrainStart, HealthFail, ReadinessFail};
    assert_eq!(events, [EnvoyDrainStart, Drain, HealthFail, ActiveZero, ReadinessFail]);
    assert!(pod.agent.told());
}

#[test]
fn health_first_the_last_request_is_waited_for_after_the_hold() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    let running = nlb(&pod, "30s", &[]);
    wait_until("it waits for the exit", || pod.gate.seen("/wait?for=exit") >= 1);
    let held = || {
        let status = pod.gate.status();
        (status.state, status.now_us.since(status.since_us))
    };
    wait_until("the hold of 300 ms is over, and one more", || held().1 >= Duration::from_millis(600));
    assert_eq!(held().0, StateName::Closing);
    pod.gate.set_active(0);
    running.end().expect(0, &["done: clean; cut at most 0"]);
}

#[test]
fn health_first_the_requests_have_the_whole_grace_period_but_five_seconds() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = nlb(&pod, "30s", &["--hold-max", "20s"]);
    wait_until("it closes", || pod.gate.state() == StateName::Closing);
    let plan = pod.gate.status().plan;
    let deadline = plan.deadline.unwrap();
    assert!(deadline > Duration::from_millis(24_500) && deadline <= Duration::from_secs(25), "{deadline:?}");
    assert_eq!((plan.hold_max, plan.hold_min), (Duration::from_secs(20), Duration::from_secs(20)));
    running.kill();
}

#[test]
fn health_first_a_hold_longer_than_the_grace_period_is_cut_to_it_and_said() {
    let pod = Pod::new();
    let ended = pod.prestop("7s", &["--preset", "nlb", "--hold-max", "240s"]).end();
    let ended =
        ended.expect(0, &["the grace period is too short for a hold of 240 s: the balancer gets at most 3.5 s"]);
    assert!(ended.took < Duration::from_secs(6), "{ended:#?}");
}

#[test]
fn health_first_the_deadline_with_requests_in_flight_is_10() {
    let pod = Pod::new();
    pod.gate.set_active(3);
    let ended = nlb(&pod, "7s", &[]).end().expect(10, &["fault (deadline): the pod may leave, 3 requests in flight"]);
    assert!(ended.summary().contains("the deadline came with requests in flight; cut at most 3; exit code 10"));
    assert!(pod.agent.untouched());
}

#[test]
fn health_first_a_count_in_doubt_gets_its_second_opinion() {
    let pod = Pod::new();
    pod.gate.distrust(DistrustReason::Ledger);
    pod.admin.set_stats(Some(2), 2);
    let running = nlb(&pod, "30s", &[]);
    wait_until("the opinion is brought", || pod.gate.seen("/observe?active=2") >= 1);
    assert_eq!(pod.gate.state(), StateName::Closing);
    pod.admin.set_stats(Some(0), 0);
    running.end().expect(11, &["(ledger; Envoy's own counters read zero); cut at most 0; exit code 11"]);
}

#[test]
fn a_preset_by_flag_goes_before_the_gates_own() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &["--preset", "haproxy-retry", "--replay-limit", "102400"]);
    wait_until("it drains", || pod.gate.state() == StateName::Draining);
    let plan = pod.gate.status().plan;
    assert_eq!((plan.deflection(StateName::Draining).unwrap().replay_limit, plan.refuse_status), (102_400, 425));
    running.kill();
}

#[test]
fn a_request_in_flight_after_the_falls_hard_answer_is_10_although_the_flip_was_clean() {
    let pod = Pod::new();
    let running = pod.prestop("30s", &["--hold-max", "3s", "--hold-min", "2s"]);
    wait_until("the flip", || pod.gate.state() == StateName::Closing);
    pod.gate.set_active(2);
    pod.gate.admit(5);
    probe(&pod);
    assert_eq!(pod.gate.status().cut_at_most, None);
    probe(&pod);
    assert_eq!(pod.gate.status().cut_at_most, Some(2));
    pod.gate.set_active(0);
    let ended = running.end().expect(10, &["closed: the pod may leave; 5 requests came after the flip"]);
    let so =
        "done: clean when the balancer was told, but requests came before it had noticed; cut at most 2; exit code 10";
    assert!(ended.summary().contains(so), "{ended:#?}");
    assert!(pod.agent.untouched());
}

#[test]
fn requests_that_came_and_went_before_the_balancer_can_have_noticed_are_clean() {
    let pod = Pod::new();
    let running = pod.prestop("30s", &["--hold-max", "3s", "--hold-min", "2s"]);
    wait_until("the flip", || pod.gate.state() == StateName::Closing);
    pod.gate.set_active(2);
    pod.gate.admit(5);
    probe(&pod);
    pod.gate.set_active(0);
    probe(&pod);
    running.end().expect(0, &["5 requests came after the flip", "done: clean; cut at most 0"]);
}

/// A drain for a retrying balancer, past its flip: the gate's metrics are in Envoy's stats, and Envoy's sockets have been closed.
fn retrying(pod: &Pod) -> Running {
    pod.admin.set_gate_stats(2, 0, 0);
    // Somebody who has asked twice is known, and his checks have been refused for long enough after the margin.
    probe(pod);
    probe(pod);
    let running = pod.prestop("30s", &["--preset", "haproxy-retry", "--margin", "5s"]);
    let closed = || pod.admin.posts().last().is_some_and(|last| last == "POST /drain_listeners");
    wait_until("the sockets are closed", closed);
    running
}

#[test]
fn a_retrying_balancers_connections_are_refused_from_the_flip_to_the_exit() {
    let pod = Pod::new();
    let running = retrying(&pod);
    assert_eq!(pod.gate.state(), StateName::Closing);
    pod.admin.set_gate_stats(3, 0, 0);
    let ended = running.end().expect(0, &["Envoy's sockets are closed", "closed: the pod may leave", "cut at most 0"]);
    assert!(ended.took < Duration::from_secs(5), "it left when the gate was CLOSED: {ended:#?}");
    assert_eq!(pod.gate.seen("/wait?for=exit"), 0, "control is closed by then");
    assert!(pod.agent.told());
}

#[test]
fn what_the_gates_metrics_say_may_have_been_cut_is_the_last_word() {
    let pod = Pod::new();
    let running = retrying(&pod);
    pod.admin.set_gate_stats(3, 4, 2);
    running.end().expect(10, &["4 requests came after the flip", "cut at most 2"]);
}

#[test]
fn a_gate_that_is_never_seen_closed_is_not_called_clean() {
    for (state, word) in [(2, "CLOSING"), (0, "OPEN"), (4, "FAULT")] {
        let pod = Pod::new();
        let running = retrying(&pod);
        pod.admin.set_gate_stats(state, 3, 0);
        let ended = running.end().expect(11, &["by Envoy's stats the gate is", word, "how many were cut is not known"]);
        assert!(ended.took < Duration::from_secs(9), "{ended:#?}");
        assert!(pod.agent.untouched());
    }
}

#[test]
fn a_count_that_is_doubted_once_the_sockets_are_closed_is_not_clean_either() {
    let pod = Pod::new();
    let running = retrying(&pod);
    pod.admin.set_doubted_gate_stats(3, 0, 0);
    running.end().expect(11, &["how many were cut is not known"]);
}

#[test]
fn a_second_run_joins_a_drain_whose_sockets_are_closed_by_the_stats() {
    for (late, cut_at_most) in [(0, 0), (3, 3)] {
        let pod = Pod::new();
        pod.admin.set_gate_stats(3, late, cut_at_most);
        let nobody = "127.0.0.1:1";
        let ended = pod.prestop_at("30s", nobody, &["--preset", "haproxy-retry"]).end();
        let bound = format!("cut at most {cut_at_most}; exit code 11");
        ended.expect(11, &["joining a drain whose sockets are closed", &bound]);
        assert_eq!(pod.admin.posts(), ["POST /drain_listeners?graceful&skip_exit"], "nothing is closed twice");
    }
}

#[test]
fn where_the_gates_metrics_are_hidden_or_admin_refuses_the_sockets_stay_open() {
    let pod = Pod::new();
    let said = ["Envoy does not show the gate's metrics", "Envoy's sockets stay open", "done: clean"];
    pod.prestop("30s", &["--preset", "haproxy-retry", "--hold-max", "1s"]).end().expect(0, &said);
    assert_eq!(pod.admin.posts(), ["POST /drain_listeners?graceful&skip_exit"]);

    let pod = Pod::new();
    pod.admin.refuse_to_drain(404);
    pod.admin.set_gate_stats(2, 0, 0);
    let running = pod.prestop("30s", &["--preset", "haproxy-retry", "--hold-max", "1s"]);
    running.end().expect(0, &["POST /drain_listeners: answered 404", "Envoy's sockets stay open", "done: clean"]);
}

#[test]
fn at_the_deadline_the_sockets_stay_open() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    pod.admin.set_gate_stats(4, 0, 0);
    pod.prestop("9s", &["--preset", "haproxy-retry", "--hold-max", "1s"]).end().expect(10, &["cut at most 1"]);
    assert_eq!(pod.admin.posts(), ["POST /drain_listeners?graceful&skip_exit"]);
}
