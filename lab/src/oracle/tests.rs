use std::time::Duration;

use softclose_fsm::{Input, Preset};

use super::estimate::Estimate;
use super::gate::Gate;
use super::requests::Request;
use super::script::{Mark, Script, When};
use super::*;
use crate::scenario::Scenario;

const BALANCER: &str = "127.0.0.2";

fn scaled() -> Scale {
    Scenario::read("S1").unwrap().scale("scaled").unwrap().clone()
}

fn request(id: &str, from_s: f64, until_s: f64) -> Request {
    Request { id: id.to_owned(), from: Estimate::exact(from_s), until: Estimate::exact(until_s) }
}

/// Deleted at 2 s; checks each 500 ms from `first_check_s` to `last_check_s`.
fn facts(requests: &[Request], first_check_s: f64, last_check_s: f64) -> Facts {
    let count = ((last_check_s - first_check_s) / 0.5).round() as u32;
    let check = |k: u32| Check { at_s: first_check_s + 0.5 * f64::from(k), prober: BALANCER.to_owned() };
    Facts {
        deleted_s: 2.0,
        requests: requests.to_vec(),
        checks: (0..=count).map(check).collect(),
        balancer: Balancer { address: BALANCER.to_owned(), inter_s: 0.5, fall: 2, cuts_at_down: true },
    }
}

fn s1() -> Facts {
    facts(&[request("s1-h1", 0.1, 15.1)], 0.4, 30.4)
}

fn gate() -> Way {
    Way::of(Mode::Softclose, &scaled())
}

fn predicted(prediction: &Prediction, kind: Kind) -> &Predicted {
    prediction.events.iter().find(|event| event.event == kind).unwrap_or_else(|| panic!("no {kind:?}: {prediction:?}"))
}

fn assert_at(prediction: &Prediction, kind: Kind, at_s: f64, within_s: f64) {
    let event = predicted(prediction, kind);
    assert!((event.at_s - at_s).abs() <= within_s, "{kind:?}: {event}, expected {at_s}");
    assert!(event.or_s.is_empty() && event.sure, "{kind:?}: {event}");
    assert!(event.tolerance_s <= within_s + tolerance::LOOK_S + 1e-9, "{kind:?}: {event} is too vague");
}

/// As the lab would see a run that went exactly as predicted.
fn as_predicted(prediction: &Prediction) -> Vec<Event> {
    let sure = prediction.events.iter().filter(|event| event.sure);
    sure.map(|event| Event::new(event.event, event.at_s - 0.02, event.at_s, "test", "")).collect()
}

fn shifted(mut events: Vec<Event>, kind: Kind, by_s: f64) -> Vec<Event> {
    for event in events.iter_mut().filter(|event| event.event == kind) {
        (event.after_s, event.at_s) = (event.after_s + by_s, event.at_s + by_s);
    }
    timeline::sort(&mut events);
    events
}

#[test]
fn softclose_flips_a_second_after_the_last_request_and_nobody_is_cut() {
    let prediction = predict(&gate(), &s1());
    assert_eq!(prediction.order, "3 4 1 5 2");
    assert_at(&prediction, Kind::EnvoyDrainStart, 2.0, tolerance::SHIM_START_S);
    assert_at(&prediction, Kind::ActiveZero, 15.1, 0.001);
    // settle: 1 s.
    assert_at(&prediction, Kind::HealthFail, 16.1, tolerance::TIMER_EDGE_S);
    // Told 503 at 16.4 and 16.9.
    assert_at(&prediction, Kind::LbDown, 16.9, tolerance::VERDICT_S);
    // Two intervals and a margin of one after the flip; the second answer and its margin are over before.
    assert_at(&prediction, Kind::ReadinessFail, 17.6, tolerance::TIMER_EDGE_S);
    assert!(prediction.cut.is_empty() && prediction.either_way.is_empty());
    assert_eq!(prediction.compare(&as_predicted(&prediction), &[]), [] as [&str; 0]);
}

#[test]
fn current_cuts_at_the_second_failed_check() {
    let prediction = predict(&Way::of(Mode::Current, &scaled()), &s1());
    assert_eq!(prediction.order, "1 5=6=4 3");
    assert_at(&prediction, Kind::HealthFail, 2.1, 0.1);
    assert_at(&prediction, Kind::LbDown, 2.9, tolerance::VERDICT_S);
    assert_at(&prediction, Kind::Rst, 2.9, tolerance::VERDICT_S);
    assert_at(&prediction, Kind::ActiveZero, 2.9, 0.1);
    // The sleep, then SIGTERM drains.
    assert_at(&prediction, Kind::EnvoyDrainStart, 9.7, 0.3);
    assert_eq!(prediction.cut, ["s1-h1"]);
    assert_eq!(prediction.compare(&as_predicted(&prediction), &["s1-h1".to_owned()]), [] as [&str; 0]);
}

#[test]
fn improved_flips_at_a_poll_after_the_last_request() {
    let prediction = predict(&Way::of(Mode::Improved, &scaled()), &s1());
    assert_at(&prediction, Kind::EnvoyDrainStart, 2.1, 0.1);
    assert_at(&prediction, Kind::ActiveZero, 15.1, 0.001);
    // Anywhere in the second between two polls.
    let health = predicted(&prediction, Kind::HealthFail);
    assert!((health.span().0 - 15.08).abs() < 0.01 && (16.1..16.5).contains(&health.span().1), "{health}");
    // So several checks may be the second failed one.
    let down = predicted(&prediction, Kind::LbDown);
    let mut downs: Vec<f64> = down.or_s.iter().copied().chain([down.at_s]).collect();
    downs.sort_by(f64::total_cmp);
    let expected = [15.9, 16.4, 16.9];
    assert_eq!(downs.len(), expected.len(), "{down}");
    assert!(downs.iter().zip(expected).all(|(down, at_s)| (down - at_s).abs() < tolerance::VERDICT_S), "{down}");
    let readiness = predicted(&prediction, Kind::ReadinessFail);
    assert!(readiness.span().0 < 17.7 && 18.6 < readiness.span().1, "{readiness}");
    assert!(prediction.cut.is_empty());
}

#[test]
fn the_gate_that_is_told_503_at_once_cuts_as_mode_current_does() {
    let mut gate = Gate::shipped(Preset::Haproxy, Duration::from_secs(45), Duration::from_secs(1));
    gate.orders.push((0.0, Input::CloseLb));
    let told = predict(&Way::Gate(gate), &s1());
    let current = predict(&Way::of(Mode::Current, &scaled()), &s1());
    assert_eq!(told.cut, current.cut);
    for kind in [Kind::LbDown, Kind::Rst] {
        assert!((predicted(&told, kind).at_s - predicted(&current, kind).at_s).abs() < 1e-9);
    }
}

#[test]
fn a_wrong_order_is_found() {
    let prediction = predict(&gate(), &s1());
    let events = shifted(as_predicted(&prediction), Kind::HealthFail, -2.0);
    let wrong = prediction.compare(&events, &[]);
    assert!(wrong.iter().any(|line| line.contains("health_fail came before active_zero")), "{wrong:?}");
}

#[test]
fn a_time_is_found_that_is_off_by_more_than_its_tolerance_and_only_then() {
    let prediction = predict(&gate(), &s1());
    let late = |beyond_s: f64| {
        let by_s = predicted(&prediction, Kind::HealthFail).tolerance_s + beyond_s;
        prediction.compare(&shifted(as_predicted(&prediction), Kind::HealthFail, by_s), &[])
    };
    // The measured interval is 20 ms wide.
    assert_eq!(late(0.019), [] as [&str; 0]);
    let wrong = late(0.021);
    assert_eq!(wrong.len(), 1);
    assert!(
        wrong[0].starts_with("health_fail: predicted 16.104 s with a tolerance of 0.024 s, measured 16."),
        "{wrong:?}"
    );
}

#[test]
fn an_event_that_is_missing_or_should_not_be_there_is_found() {
    let prediction = predict(&gate(), &s1());
    let mut events = as_predicted(&prediction);
    events.retain(|event| event.event != Kind::LbDown);
    events.push(Event::new(Kind::Rst, 16.9, 16.91, "test", "s1-h1"));
    let wrong = prediction.compare(&events, &[]);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with("lb_down: predicted 16.9") && wrong[0].ends_with("measured never"));
    assert!(wrong[1].starts_with("rst: predicted never, measured 16.900"));
}

#[test]
fn an_event_that_was_seen_too_vaguely_is_no_proof() {
    let prediction = predict(&gate(), &s1());
    let mut events = as_predicted(&prediction);
    events.iter_mut().filter(|event| event.event == Kind::LbDown).for_each(|event| event.after_s -= 1.0);
    let wrong = prediction.compare(&events, &[]);
    assert!(wrong.len() == 1 && wrong[0].contains("too vague"), "{wrong:?}");
}

#[test]
fn a_check_just_before_the_flip_is_told_200_and_one_just_after_it_503() {
    let down = |first_check_s: f64| {
        let prediction = predict(&gate(), &facts(&[request("s1-h1", 0.1, 15.1)], first_check_s, 30.0));
        let down = predicted(&prediction, Kind::LbDown);
        let mut downs: Vec<f64> = down.or_s.iter().copied().chain([down.at_s]).collect();
        downs.sort_by(f64::total_cmp);
        downs.iter().map(|at_s| (at_s * 10.0).round() / 10.0).collect::<Vec<_>>()
    };
    // The flip comes at 16.1, up to 8 ms late.
    assert_eq!(down(0.09), [17.1]);
    assert_eq!(down(0.115), [16.6]);
    // Within the timer's edge nobody outside can tell.
    assert_eq!(down(0.104), [16.6, 17.1]);
}

#[test]
fn of_two_overlapping_requests_the_last_to_end_counts() {
    let requests = [request("a", 0.1, 5.0), request("b", 4.0, 9.0)];
    let prediction = predict(&gate(), &facts(&requests, 0.4, 30.4));
    assert_at(&prediction, Kind::ActiveZero, 9.0, 0.001);
    assert_at(&prediction, Kind::HealthFail, 10.0, tolerance::TIMER_EDGE_S);
}

#[test]
fn a_request_within_the_settling_time_begins_it_anew() {
    let requests = [request("a", 0.1, 5.0), request("b", 5.7, 9.0)];
    let prediction = predict(&gate(), &facts(&requests, 0.4, 30.4));
    // Seen as the first zero, but not the one that is believed.
    assert_at(&prediction, Kind::ActiveZero, 5.0, 0.001);
    assert_at(&prediction, Kind::HealthFail, 10.0, tolerance::TIMER_EDGE_S);
    let unsettled = predict(&gate(), &facts(&[request("a", 0.1, 5.0), request("b", 6.2, 9.0)], 0.4, 30.4));
    assert_at(&unsettled, Kind::HealthFail, 6.0, tolerance::TIMER_EDGE_S);
    // It came after the flip and before DOWN: what the balancer sends then, it cuts.
    assert_eq!(unsettled.cut, ["b"]);
}

#[test]
fn a_zero_too_short_to_be_seen_may_be_the_one_that_was() {
    let requests = [request("a", 0.1, 5.0), request("b", 5.02, 9.0)];
    let prediction = predict(&gate(), &facts(&requests, 0.4, 30.4));
    let zero = predicted(&prediction, Kind::ActiveZero);
    assert!((zero.at_s - 9.0).abs() < 1e-9 && zero.or_s.iter().all(|at_s| (at_s - 5.0).abs() < 1e-9), "{zero}");
    let seen = |at_s| prediction.compare(&shifted(as_predicted(&prediction), Kind::ActiveZero, at_s - 9.0), &[]);
    assert_eq!(seen(5.0), [] as [&str; 0]);
    assert!(!seen(7.0).is_empty());
}

#[test]
fn a_request_past_the_deadline_is_a_fault_and_is_cut() {
    // 45 s of grace: 30 s for the drain, so the flip is at 32 s.
    let prediction = predict(&gate(), &facts(&[request("long", 0.1, 60.0)], 0.4, 60.4));
    assert_at(&prediction, Kind::HealthFail, 32.0, tolerance::SHIM_START_S + tolerance::TIMER_EDGE_S);
    assert_at(&prediction, Kind::LbDown, 32.9, tolerance::VERDICT_S);
    assert_at(&prediction, Kind::Rst, 32.9, tolerance::VERDICT_S);
    assert_at(&prediction, Kind::ActiveZero, 32.9, 0.1);
    // In FAULT readiness fails only with Envoy itself: hold, SIGTERM, terminationDrainDuration.
    let gone_s = 32.0 + 1.5 + scaled().termination_drain_s;
    assert_at(&prediction, Kind::ReadinessFail, gone_s, 0.5);
    assert_eq!(prediction.order, "3 1 5=6=4 2");
    assert_eq!(prediction.cut, ["long"]);
}

#[test]
fn a_gateway_that_is_idle_when_it_is_deleted_has_no_zero_to_show() {
    let prediction = predict(&gate(), &facts(&[request("a", 0.1, 1.0)], 0.3, 20.3));
    assert!(!prediction.events.iter().any(|event| event.event == Kind::ActiveZero), "{prediction:?}");
    assert_at(&prediction, Kind::HealthFail, 3.0, tolerance::SHIM_START_S + tolerance::TIMER_EDGE_S);
}

#[test]
fn checks_that_nobody_wrote_down_any_more_are_carried_on_with_a_wider_tolerance() {
    let whole = predict(&gate(), &s1());
    let lost = predict(&gate(), &facts(&[request("s1-h1", 0.1, 15.1)], 0.4, 15.9));
    let (whole, lost) = (predicted(&whole, Kind::LbDown), predicted(&lost, Kind::LbDown));
    assert!((whole.at_s - lost.at_s).abs() < 1e-6);
    assert!(whole.tolerance_s < lost.tolerance_s);
}

#[test]
fn a_request_that_ends_at_the_cut_may_fall_either_way() {
    let requests = [request("a", 0.1, 2.91), request("b", 0.1, 9.0)];
    let prediction = predict(&Way::of(Mode::Current, &scaled()), &facts(&requests, 0.4, 30.4));
    assert_eq!(
        (prediction.cut.as_slice(), prediction.either_way.as_slice()),
        (["b".to_owned()].as_slice(), ["a".to_owned()].as_slice())
    );
    let events = as_predicted(&prediction);
    assert_eq!(prediction.compare(&events, &["b".to_owned()]), [] as [&str; 0]);
    assert_eq!(prediction.compare(&events, &["a".to_owned(), "b".to_owned()]), [] as [&str; 0]);
    let wrong = prediction.compare(&events, &["a".to_owned()]);
    assert_eq!(wrong, ["request b: predicted cut, its client got everything"]);
}

#[test]
fn a_balancer_that_does_not_cut_at_down_leaves_the_cut_to_the_gateways_end() {
    let mut facts = s1();
    facts.balancer.cuts_at_down = false;
    let prediction = predict(&Way::of(Mode::Current, &scaled()), &facts);
    assert_eq!(prediction.cut, ["s1-h1"]);
    // Deletion, the sleep of 7.5 s, terminationDrainDuration of 1.25 s.
    let rst = predicted(&prediction, Kind::Rst);
    assert!(rst.span().0 < 10.8 && 10.8 < rst.span().1, "{rst}");
    assert!(!prediction.events.iter().any(|event| event.event == Kind::ActiveZero));
}

#[test]
fn a_mode_is_added_as_data_alone() {
    // A balancer that is told of the deletion and takes a while; then a pod that ends by whichever comes first.
    let steps = [
        (Mark::LbDown, When::after(Mark::Deletion, 3.0, 0.1)),
        (Mark::Sigterm, When::after(Mark::Deletion, 5.0, 0.1)),
        (
            Mark::Gone,
            When::First(vec![
                When::Idle { since: Mark::Sigterm, every_s: 1.0, at_most_s: 60.0, late_s: 0.1 },
                When::after(Mark::Deletion, 8.0, 0.1),
            ]),
        ),
        (Mark::HealthFail, When::after(Mark::Sigterm, 0.0, 0.1)),
    ];
    let mut facts = s1();
    facts.balancer.cuts_at_down = false;
    let script = serde_json::to_string(&Script::of(&steps)).unwrap();
    let prediction = predict(&Way::Script(serde_json::from_str(&script).unwrap()), &facts);
    assert_at(&prediction, Kind::LbDown, 5.05, 0.05);
    assert_at(&prediction, Kind::HealthFail, 7.1, 0.1);
    assert_at(&prediction, Kind::Rst, 10.05, 0.05);
    assert_eq!(prediction.cut, ["s1-h1"]);
}

/// Facts and measured events of real runs of S1, scaled; the facts with the balancer's own checks only.
#[derive(serde::Deserialize)]
struct Recorded {
    mode: Mode,
    facts: Facts,
    events: Vec<Event>,
    cut: Vec<String>,
}

fn recorded(mode: Mode) -> Recorded {
    let path = crate::topology::root().unwrap().join(format!("testdata/oracle/{}.json", mode.name()));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn what_was_really_measured_agrees_with_what_is_predicted() {
    for mode in [Mode::Current, Mode::Improved, Mode::Softclose] {
        let Recorded { mode, facts, events, cut } = recorded(mode);
        let prediction = predict(&Way::of(mode, &scaled()), &facts);
        assert_eq!(prediction.compare(&events, &cut), [] as [&str; 0], "{}", mode.name());
    }
}

#[test]
fn what_was_measured_in_one_mode_is_not_taken_for_another() {
    let modes = [Mode::Current, Mode::Improved, Mode::Softclose];
    for (way, measured) in modes.iter().flat_map(|way| modes.iter().map(move |measured| (*way, *measured))) {
        let Recorded { facts, events, cut, .. } = recorded(measured);
        let wrong = predict(&Way::of(way, &scaled()), &facts).compare(&events, &cut);
        assert_eq!(wrong.is_empty(), way == measured, "{} for {}: {wrong:?}", way.name(), measured.name());
    }
}
