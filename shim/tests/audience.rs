//! Whether the balancer was told: a clean end says so, and one without it has a code of its own.

use std::time::Duration;

use softclose_fsm::{Input, Path, Probe};

use crate::stand_in::{Pod, wait_until};

/// Somebody asks the balancer path.
fn ask(pod: &Pod) {
    pod.gate.input(&Input::Probe(Probe { path: Path::Balancer, prober: Some("10.0.0.1".to_owned()) }));
}

fn pod() -> Pod {
    let pod = Pod::new();
    pod.gate.say_who_was_told();
    pod
}

#[test]
fn a_drain_that_nobody_watched_is_none_that_a_balancer_knows_of() {
    let pod = pod();
    let ended = pod.prestop("30s", &["--hold-max", "200ms"]).end();
    ended.expect(19, &["nobody asked this pod for health", "cut at most 0; exit code 19"]);
    assert!(pod.agent.untouched(), "the agent's own drain stays as a second net");
}

#[test]
fn where_by_plan_nobody_asks_it_is_clean_and_waits_for_nobody() {
    let pod = pod();
    let ended = pod.prestop("30s", &["--probers", "none"]).end().expect(0, &["done: clean; cut at most 0"]);
    assert!(ended.took < Duration::from_secs(5), "{ended:#?}");
    assert!(pod.agent.told());
}

#[test]
fn a_prober_that_was_not_told_when_the_hold_ended_is_counted() {
    let pod = pod();
    ask(&pod);
    wait_until("time passes between two checks", || pod.gate.status().now_us.as_micros() > 200_000);
    ask(&pod);
    let ended = pod.prestop("30s", &["--hold-max", "300ms", "--settle", "0"]).end();
    ended.expect(18, &["left before 1 of 1 probers had been told", "exit code 18"]);
    assert!(pod.agent.untouched());
}

#[test]
fn one_that_was_told_and_had_its_margin_is_named_in_a_clean_end() {
    let pod = pod();
    ask(&pod);
    wait_until("time passes between two checks", || pod.gate.status().now_us.as_micros() > 200_000);
    ask(&pod);
    let running = pod.prestop("30s", &["--settle", "0", "--margin", "0", "--hold-max", "5s"]);
    wait_until("health is 503", || pod.gate.state() == softclose_fsm::StateName::Closing);
    ask(&pod);
    ask(&pod);
    running.end().expect(0, &["done: clean; 1 prober was told; cut at most 0; exit code 0"]);
}
