//! Run again, or at the same time.

use std::time::Duration;

use softclose_fsm::{Input, Plan, Preset, StateName};

use crate::stand_in::{Pod, wait_until};

#[test]
fn two_at_the_same_time_join_one_drain_and_end_alike() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let both = [pod.prestop("30s", &[]), pod.prestop("30s", &[])];
    wait_until("both wait", || pod.gate.seen("/wait") >= 2);
    assert_eq!(pod.gate.status().drains, 1);
    pod.gate.set_active(0);
    for running in both {
        running.end().expect(0, &["done: clean"]);
    }
}

#[test]
fn killed_and_run_again_it_goes_on_and_the_deadline_stands() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let first = pod.prestop("20s", &[]);
    wait_until("the first waits", || pod.gate.seen("/wait") == 1);
    let deadline = pod.gate.status().plan.deadline;
    assert_eq!(first.kill().code, None);
    let second = pod.prestop("30s", &[]);
    wait_until("the second waits", || pod.gate.seen("/wait") == 2);
    assert_eq!((pod.gate.status().drains, pod.gate.status().plan.deadline), (1, deadline));
    pod.gate.set_active(0);
    second.end().expect(0, &["joining the drain under way; its deadline stands"]);
}

#[test]
fn run_again_after_the_end_it_says_the_same() {
    let pod = Pod::new();
    pod.prestop("30s", &[]).end().expect(0, &[]);
    pod.prestop("30s", &[]).end().expect(0, &["joining a drain that is past its flip", "done: clean"]);
    assert_eq!(pod.gate.status().drains, 1);
}

#[test]
fn a_joined_drain_without_a_deadline_is_closed_at_ours() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    pod.gate.input(&Input::Drain(Plan::preset(Preset::Haproxy).with([("hold_max_ms", "200")]).unwrap()));
    let ended = pod.prestop("7s", &[]).end().expect(10, &["later deadline than this pod's grace period allows"]);
    assert!(ended.summary().contains("close-lb came with requests in flight; cut at most 2"), "{ended:#?}");
    assert!(ended.took < Duration::from_secs(5));
}

#[test]
fn a_hold_longer_than_the_budget_is_17_with_what_a_last_look_saw() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    pod.gate.input(&Input::Drain(Plan::preset(Preset::Haproxy).with([("hold_max_ms", "60000")]).unwrap()));
    pod.gate.input(&Input::CloseLb);
    let running = pod.prestop("3s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait?for=exit") == 1);
    pod.gate.set_active(3);
    let ended = running.end().expect(17, &[]);
    assert!(
        ended.summary().contains("done: budget spent in CLOSING (3 in flight when last seen); cut at most 3"),
        "{ended:#?}"
    );
    assert!(pod.agent.untouched());
}

#[test]
fn a_drain_by_somebody_else_after_a_reopen_is_joined_and_said() {
    let pod = Pod::new();
    pod.gate.set_active(1);
    let running = pod.prestop("30s", &[]);
    wait_until("it waits", || pod.gate.seen("/wait") == 1);
    // Both within one slice, while nobody asks.
    pod.gate.server.hang(true);
    pod.gate.input(&Input::Reopen);
    pod.gate.input(&Input::Drain(Plan::preset(Preset::Haproxy).with([("hold_max_ms", "200")]).unwrap()));
    assert_eq!(pod.gate.state(), StateName::Draining);
    pod.gate.set_active(0);
    pod.gate.server.hang(false);
    running.end().expect(15, &["reopened"]);
}
