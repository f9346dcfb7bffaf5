use alloc::string::ToString;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{PROBERS_MAX, Prober, Probers, SILENT_INTERVALS, SLOWEST};
use crate::plan::{Plan, Preset, Sockets};
use crate::time::Instant;

const START: Instant = Instant::from_micros(1_000_000_000);
const MICROSECOND: Duration = Duration::from_micros(1);

fn at(millis: u64) -> Instant {
    START.after(Duration::from_millis(millis))
}

fn plan() -> Plan {
    Plan::preset(Preset::Haproxy)
}

/// A table in which `address` has asked every `interval` milliseconds for ten intervals, the last time at START.
fn asking(probers: &mut Probers, address: &str, interval: u64) {
    for ago in (0..=10).rev() {
        let when = Instant::from_micros(START.as_micros() - ago * interval * 1_000);
        probers.asked(address, when);
    }
}

/// `address` asks again every `interval` milliseconds from START on, and is told 503 each time.
fn told(probers: &mut Probers, address: &str, interval: u64, times: u64) {
    for turn in 1..=times {
        probers.asked(address, at(turn * interval));
        probers.told(address, plan().fall, at(turn * interval));
    }
}

fn only(probers: &Probers) -> &Prober {
    let mut all = probers.iter();
    let prober = all.next().unwrap();
    assert!(all.next().is_none());
    prober
}

#[test]
fn the_interval_is_learnt_and_two_probes_make_a_prober() {
    let mut probers = Probers::default();
    probers.asked("10.0.0.1", at(0));
    assert!(!only(&probers).known());
    probers.asked("10.0.0.1", at(2_000));
    assert!(only(&probers).known());
    assert_eq!(only(&probers).interval_us, Some(2_000_000));
}

#[test]
fn a_late_probe_counts_at_once_and_a_quick_one_slowly() {
    let mut probers = Probers::default();
    for when in [0, 1_000, 2_000, 4_500] {
        probers.asked("10.0.0.1", at(when));
    }
    assert_eq!(only(&probers).interval_us, Some(2_500_000));
    probers.asked("10.0.0.1", at(4_600));
    assert_eq!(only(&probers).interval_us, Some((2_500_000 * 3 + 100_000) / 4));
}

#[test]
fn the_hold_ends_a_margin_after_the_falls_hard_answer() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    told(&mut probers, "10.0.0.1", 1_000, 1);
    assert_eq!(probers.hold_over(START, &plan(), at(1_000)), at(10_000), "told once of two");
    probers.asked("10.0.0.1", at(2_000));
    probers.told("10.0.0.1", 2, at(2_000));
    assert_eq!(probers.hold_over(START, &plan(), at(2_000)), at(3_000));
}

#[test]
fn further_answers_move_the_end_no_more() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    told(&mut probers, "10.0.0.1", 1_000, 5);
    assert_eq!(probers.hold_over(START, &plan(), at(5_000)), at(3_000));
}

#[test]
fn answers_in_quick_succession_do_not_undercut_the_shortest_hold() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    for when in [1, 2] {
        probers.told("10.0.0.1", 2, at(when));
    }
    assert_eq!(probers.hold_over(START, &plan(), at(2)), at(3_000), "fall x interval + margin");
}

#[test]
fn a_fast_balancer_gets_the_plans_margin() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 100);
    told(&mut probers, "10.0.0.1", 100, 2);
    assert_eq!(probers.hold_over(START, &plan(), at(200)), at(200 + 500));
}

#[test]
fn the_slowest_of_several_decides() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 500);
    asking(&mut probers, "10.0.0.2", 2_000);
    told(&mut probers, "10.0.0.1", 500, 2);
    assert_eq!(probers.hold_over(START, &plan(), at(1_000)), at(10_000), "one has not heard");
    told(&mut probers, "10.0.0.2", 2_000, 2);
    assert_eq!(probers.hold_over(START, &plan(), at(4_000)), at(6_000));
}

#[test]
fn whose_connections_are_refused_has_the_time_of_its_checks_though_nobody_sees_them() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    let refused = Plan { sockets_closing: Sockets::Close, ..plan() };
    assert_eq!(probers.hold_over(START, &plan(), START), at(10_000));
    assert_eq!(probers.hold_over(START, &refused, START), at(3_000), "fall x interval + margin");
    // Two were served before the sockets closed.
    told(&mut probers, "10.0.0.1", 1_500, 2);
    assert_eq!(probers.hold_over(START, &refused, at(3_000)), at(4_500));
    assert_eq!(Probers::default().hold_over(START, &refused, START), at(10_000), "nobody is known to probe");
}

#[test]
fn a_soft_answer_has_to_be_heard_whatever_becomes_of_the_sockets() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    let soft = Plan { sockets_closing: Sockets::Close, fall: 1, ..plan() };
    assert_eq!(probers.heard(START, &soft, START), None);
}

#[test]
fn one_that_stops_is_forgotten_after_five_intervals_and_then_holds_nobody() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 500);
    asking(&mut probers, "10.0.0.2", 500);
    told(&mut probers, "10.0.0.1", 500, 2);
    let gone = at(500 * u64::from(SILENT_INTERVALS));
    assert_eq!(probers.hold_over(START, &plan(), gone), at(10_000));
    assert_eq!(probers.hold_over(START, &plan(), gone.after(MICROSECOND)), at(1_500));
    assert_eq!(probers.next_silence(at(2_400)), Some(gone.after(MICROSECOND)), "a host has to look then");
}

#[test]
fn nobody_and_a_stranger_both_mean_the_longest_hold() {
    let mut probers = Probers::default();
    assert_eq!(probers.hold_over(START, &plan(), START), at(10_000));
    probers.asked("203.0.113.9", at(0));
    probers.told("203.0.113.9", 1, at(0));
    assert_eq!(probers.hold_over(START, &plan(), at(1)), at(10_000), "once is a stranger passing by");
}

#[test]
fn one_that_comes_in_mid_hold_is_known_at_its_second_question_and_then_has_its_time() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 500);
    told(&mut probers, "10.0.0.1", 500, 2);
    assert_eq!(probers.hold_over(START, &plan(), at(1_000)), at(1_500));
    for when in [1_000, 1_400] {
        probers.asked("10.0.0.2", at(when));
        probers.told("10.0.0.2", plan().fall, at(when));
    }
    assert_eq!(probers.hold_over(START, &plan(), at(1_400)), at(1_900), "both of its answers were hard ones");
}

#[test]
fn a_prober_that_was_silent_begins_anew_with_either_answer() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 500);
    probers.told_softly("10.0.0.1", at(0));
    assert_eq!((only(&probers).soft, only(&probers).told), (1, Some(at(0))));
    probers.asked("10.0.0.1", at(60_000));
    assert_eq!((only(&probers).soft, only(&probers).told, only(&probers).known()), (0, None, false));
}

#[test]
fn a_stranger_neither_lengthens_nor_shortens_the_hold_of_the_known() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    told(&mut probers, "10.0.0.1", 1_000, 2);
    probers.asked("203.0.113.9", at(2_000));
    assert_eq!(probers.hold_over(START, &plan(), at(2_000)), at(3_000));
}

#[test]
fn a_known_prober_is_never_evicted_by_ten_thousand_strangers() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 1_000);
    for stranger in 0..10_000_u64 {
        probers.asked(&std::format!("203.0.113.{stranger}"), START.after(Duration::from_micros(stranger)));
    }
    assert_eq!(probers.iter().count(), PROBERS_MAX);
    assert_eq!(probers.iter().next().unwrap().address, "10.0.0.1");
}

#[test]
fn a_table_full_of_known_probers_means_the_longest_hold() {
    let mut probers = Probers::default();
    for prober in 0..PROBERS_MAX {
        asking(&mut probers, &prober.to_string(), 500);
    }
    for prober in 0..PROBERS_MAX {
        told(&mut probers, &prober.to_string(), 500, 2);
    }
    assert_eq!(probers.hold_over(START, &plan(), at(1_000)), at(1_500));
    probers.asked("one too many", at(1_000));
    assert_eq!(probers.hold_over(START, &plan(), at(1_000)), at(10_000));
    probers.forget_answers();
    assert!(probers.iter().all(|prober| prober.hard == 0 && prober.told.is_none()));
}

#[test]
fn whoever_asks_more_rarely_than_any_balancer_stays_a_stranger() {
    let mut probers = Probers::default();
    probers.asked("203.0.113.9", START);
    probers.asked("203.0.113.9", START.after(SLOWEST).after(MICROSECOND));
    assert!(!only(&probers).known());
    probers.asked("203.0.113.9", only(&probers).last.after(SLOWEST));
    assert!(only(&probers).known());
}

#[test]
fn an_endless_address_is_cut() {
    let mut probers = Probers::default();
    let endless: alloc::string::String = core::iter::repeat_n('x', 10_000).collect();
    probers.asked(&endless, at(0));
    probers.asked(&endless, at(1_000));
    probers.told(&endless, 1, at(1_000));
    assert_eq!(only(&probers).address.len(), 64);
    assert_eq!((only(&probers).asked, only(&probers).hard), (2, 1));
}

#[test]
fn the_plan_bounds_the_hold_on_both_sides() {
    let mut probers = Probers::default();
    asking(&mut probers, "10.0.0.1", 500);
    told(&mut probers, "10.0.0.1", 500, 2);
    let longer = plan().with([("hold_min_ms", "7000")]).unwrap();
    assert_eq!(probers.hold_over(START, &longer, at(1_000)), at(7_000));
    let shorter = plan().with([("hold_max_ms", "700")]).unwrap();
    assert_eq!(probers.hold_over(START, &shorter, at(1_000)), at(700));
}

/// What a drain that begins at the last of these (in milliseconds) takes for the pace, in milliseconds.
fn pace_after(asked: &[u64]) -> Option<u64> {
    let mut probers = Probers::default();
    for when in asked {
        probers.asked("10.0.0.1", at(*when));
    }
    probers.expect(at(*asked.last().unwrap()));
    only(&probers).pace_us.map(|pace| pace / 1_000)
}

#[test]
fn a_pace_is_that_of_the_newest_gaps_whatever_one_of_them_was() {
    assert_eq!(pace_after(&[0, 1_000, 2_000]), None, "not steady yet");
    assert_eq!(pace_after(&[0, 1_000, 2_000, 3_000]), Some(1_000));
    assert_eq!(pace_after(&[0, 1_000, 2_000, 3_000, 7_000]), Some(1_000), "one lost check, or an outage");
    assert_eq!(pace_after(&[0, 1_000, 2_000, 3_000, 3_001, 3_002, 3_003]), Some(1_000), "quick ones");
    // Two balancers behind one address, and three.
    assert_eq!(pace_after(&[0, 900, 1_000, 1_900, 2_000, 2_900, 3_000]), Some(900));
    assert_eq!(pace_after(&[0, 200, 400, 1_000, 1_200, 1_400, 2_000, 2_200, 2_400]), Some(600));
    // Nine gaps of a new pace leave nothing of the old one.
    let slow_then_fast: std::vec::Vec<u64> =
        (0..9).map(|turn| turn * 2_000).chain((1..=9).map(|turn| 16_000 + turn * 500)).collect();
    assert_eq!(pace_after(&slow_then_fast), Some(500));
}

#[test]
fn one_whose_pace_is_near_the_slowest_stays_expected() {
    let mut probers = Probers::default();
    for turn in (0..=3).rev() {
        probers.asked("10.0.0.1", Instant::from_micros(START.as_micros() - turn * 290_000_000));
    }
    probers.expect(START);
    let late = START.after(SLOWEST).after(MICROSECOND);
    probers.asked("10.0.0.1", late);
    assert!(!only(&probers).known());
    assert_eq!(probers.unheard_from(2), Some(late.after(Duration::from_millis(579_750)).after(MICROSECOND)));
}

#[test]
fn somebody_who_looks_in_a_loop_is_no_balancer() {
    let mut probers = Probers::default();
    for (interval, expected) in [(99_999, false), (100_000, true), (100_001, true)] {
        let address = interval.to_string();
        let turn = |turn: u64| START.after(Duration::from_micros(turn * interval));
        for when in (0..5).map(turn) {
            probers.asked(&address, when);
        }
        probers.expect(turn(4));
        assert_eq!(probers.unheard_from(2).is_some(), expected, "{interval}");
        probers = Probers::default();
    }
}
