use super::*;
use crate::backend::Visit;
use crate::curl::Protocol;
use crate::evidence::Verdict;
use crate::kubelet::Deletion;
use crate::network::Kind as GroundKind;
use crate::observe::{InFlight, Seen};
use crate::oracle::Prediction;
use crate::scenario::Scenario;
use crate::watch::{Change, Series};

/// A fabricated run: events as (kind, seconds), one h1 client, `in_flight` at lb_down.
pub(crate) fn record(mode: Mode, events: &[(Kind, f64)], client: (u16, f64, u64), in_flight: u64) -> Record {
    let s1 = Scenario::read("S1").unwrap();
    let events: Vec<Event> = events.iter().map(|(kind, at)| Event::new(*kind, at - 0.02, *at, "test", "")).collect();
    let (status, seconds, bytes) = client;
    let outcome = Outcome {
        id: "s1-h1".into(),
        protocol: Protocol::H1,
        path: "/sleep?seconds=15".into(),
        started_s: 0.05,
        over_s: 0.05 + seconds,
        ended_s: 0.06 + seconds,
        status,
        seconds,
        curl_exit: 0,
        curl_error: String::new(),
        bytes,
        expected_bytes: 35,
    };
    let visit = Visit {
        id: "s1-h1".into(),
        request_id: String::new(),
        pod: String::new(),
        path: outcome.path.clone(),
        started_s: 0.06,
        ended_s: Some(0.06 + seconds),
        ran: true,
        finished: status == 200,
    };
    let series = |changes: &[(f64, &str)]| Series {
        changes: changes
            .iter()
            .map(|(at, v)| Change { after_s: at - 0.02, at_s: *at, value: (*v).to_owned() })
            .collect(),
        last_s: 20.0,
        ..Series::default()
    };
    let at = |kind| timeline::find(&events, kind).map_or(19.0, |event: &Event| event.at_s);
    let seen = Seen {
        health: series(&[(0.0, "200 OPEN"), (2.1, "200 DRAINING"), (at(Kind::HealthFail), "503 CLOSING")]),
        balancer: series(&[(0.0, "UP"), (at(Kind::LbDown), "DOWN")]),
        active: series(&[(0.1, "1+1"), (at(Kind::ActiveZero), "0+0")]),
        ..Seen::default()
    };
    Record {
        scenario: "S1".into(),
        title: s1.title.clone(),
        scale: "scaled".into(),
        mode,
        ground: GroundKind::Loopback,
        oracle: Verdict { prediction: Prediction::default(), disagreements: Vec::new() },
        times: s1.scale("scaled").unwrap().clone(),
        concurrency: 2,
        check_phase: 0.0,
        programs: BTreeMap::new(),
        order: timeline::order(&events),
        in_flight_at_lb_down: Some(InFlight { downstream: in_flight, upstream: in_flight }),
        events,
        clients: vec![outcome],
        visits: vec![visit],
        deletion: Deletion {
            deleted_s: 2.05,
            pre_stop_exit: Some(0),
            pre_stop_output: vec![],
            sigterm_s: 18.5,
            gone_s: 18.6,
            killed: false,
        },
        seen,
        story: vec![],
    }
}

pub(crate) fn cut_by_current() -> Record {
    let events = [
        (Kind::HealthFail, 2.1),
        (Kind::LbDown, 3.0),
        (Kind::Rst, 3.0),
        (Kind::ActiveZero, 3.01),
        (Kind::EnvoyDrainStart, 9.6),
    ];
    record(Mode::Current, &events, (502, 2.95, 107), 1)
}

pub(crate) fn kept_by(mode: Mode) -> Record {
    let events = [
        (Kind::EnvoyDrainStart, 2.1),
        (Kind::ActiveZero, 15.1),
        (Kind::HealthFail, 16.1),
        (Kind::LbDown, 17.0),
        (Kind::ReadinessFail, 18.0),
    ];
    record(mode, &events, (200, 15.02, 35), 0)
}

fn reasons(current: Record, softclose: Record) -> Vec<String> {
    demo(&[current, kept_by(Mode::Improved), softclose])
}

#[test]
fn a_demo_that_shows_the_fault_and_the_cure_passes() {
    assert_eq!(reasons(cut_by_current(), kept_by(Mode::Softclose)), Vec::<String>::new());
}

#[test]
fn a_demo_in_which_current_cut_nothing_fails() {
    let mut current = cut_by_current();
    current.clients = kept_by(Mode::Current).clients;
    assert!(reasons(current, kept_by(Mode::Softclose))[0].contains("current cut nothing"));
}

#[test]
fn a_demo_in_which_current_had_nothing_in_flight_at_lb_down_fails() {
    let mut current = cut_by_current();
    current.in_flight_at_lb_down = None;
    assert!(reasons(current, kept_by(Mode::Softclose))[0].contains("no request in flight at lb_down"));
}

#[test]
fn a_demo_in_which_softclose_cut_a_request_fails() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.clients[0].status = 502;
    assert!(reasons(cut_by_current(), softclose)[0].contains("softclose lost s1-h1: status 502"));
}

#[test]
fn a_truncated_answer_is_cut_although_its_status_and_curl_say_success() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.clients[0].bytes = 34;
    assert!(reasons(cut_by_current(), softclose)[0].contains("34 of 35 bytes"));
}

#[test]
fn a_request_that_the_application_ran_twice_is_a_failure() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.visits.push(softclose.visits[0].clone());
    assert!(reasons(cut_by_current(), softclose)[0].contains("ran it twice"));
}

#[test]
fn a_demo_in_which_softclose_failed_health_before_zero_fails() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.events[1].at_s = 16.5;
    assert!(reasons(cut_by_current(), softclose)[0].contains("order"));
}

#[test]
fn an_order_that_the_samples_cannot_decide_is_not_taken_for_kept() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.events[1].at_s = 16.09;
    assert!(!softclose.kept_order());
}

#[test]
fn a_request_waiting_behind_event_6_fails_softclose() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.events.push(Event::new(Kind::Rst, 17.0, 17.01, "test", "s1-h1"));
    assert!(reasons(cut_by_current(), softclose)[0].contains("waiting behind event 6"));
}

#[test]
fn a_demo_without_one_of_its_modes_fails() {
    assert!(demo(&[cut_by_current(), kept_by(Mode::Softclose)])[0].contains("improved did not run"));
}

#[test]
fn a_balancer_that_is_down_before_health_failed_is_a_failure_of_the_ground() {
    let mut softclose = kept_by(Mode::Softclose);
    softclose.events.retain(|event| event.event != Kind::LbDown);
    softclose.events.push(Event::new(Kind::LbDown, 4.0, 4.02, "test", "DOWN"));
    assert!(softclose.ground_failure());
    assert!(!kept_by(Mode::Softclose).ground_failure());
}
