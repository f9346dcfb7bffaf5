//! A balancer that is not heard while a drain lasts: it may have marked the server DOWN and cut what it carried.

use alloc::borrow::ToOwned;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{MICROSECOND, SECOND, START, after, busy, idle, plan, step, tick};
use crate::CONFIRM;
use crate::effect::Effect;
use crate::input::{Input, Probe};
use crate::record::{Distrust, DistrustReason, Path, Record};
use crate::registry::ROLL_CALL_WAIT;
use crate::state::{FaultReason, StateName, Verdict};
use crate::time::Instant;

const BALANCER: &str = "10.0.0.1";

fn ask(record: &Record, address: &str, now: Instant) -> Record {
    let probe = Probe { path: Path::Balancer, prober: Some(address.to_owned()) };
    after(record, now, busy(2), Input::Probe(probe))
}

fn before(span: Duration) -> Instant {
    Instant::from_micros(START.as_micros() - u64::try_from(span.as_micros()).unwrap())
}

/// OPEN, with a balancer that has asked every second, `times` times, the last time `ago` before START.
fn probed(times: u32, ago: Duration) -> Record {
    let turns = (0..times).rev().map(|turn| before(ago + turn * SECOND));
    turns.fold(Record::open(before(60 * SECOND)), |record, now| ask(&record, BALANCER, now))
}

/// A drain that began at START, in the moment in which a balancer of one check a second asked.
fn draining(fields: &[(&str, &str)]) -> Record {
    after(&probed(10, Duration::ZERO), START, busy(2), Input::Drain(plan(fields)))
}

fn reason(record: &Record) -> Option<DistrustReason> {
    record.distrust.map(|distrust| distrust.reason)
}

/// Whether it is missed one microsecond before `last_in_time`, at it and one after.
fn missed_around(record: &Record, last_in_time: Instant, input: &Input) -> [Option<DistrustReason>; 3] {
    let early = Instant::from_micros(last_in_time.as_micros() - 1);
    [early, last_in_time, last_in_time.after(MICROSECOND)].map(|now| reason(&step(record, now, busy(2), input).record))
}

const MISSED_JUST_AFTER: [Option<DistrustReason>; 3] = [None, None, Some(DistrustReason::Unheard)];

#[test]
fn a_balancer_is_missed_before_it_can_have_counted_fall_failures_and_never_for_half_an_interval() {
    // At 10 it would be 9.75 intervals; after five of them the prober has gone.
    for (fall, millis) in [("1", 1_500), ("2", 1_750), ("3", 2_750), ("4", 3_750), ("10", 5_000)] {
        let record = draining(&[("fall", fall), ("settle_ms", "0")]);
        let bound = START.after(Duration::from_millis(millis));
        // Whoever looks first: nobody in particular, the balancer itself, or somebody else who makes the table forget it.
        let probe = |prober: &str| Input::Probe(Probe { path: Path::Balancer, prober: Some(prober.to_owned()) });
        for input in [Input::Tick, probe(BALANCER), probe("10.0.0.2")] {
            assert_eq!(missed_around(&record, bound, &input), MISSED_JUST_AFTER, "fall {fall}, {input:?}");
        }
        assert!(fall == "1" || Duration::from_millis(millis) < fall.parse::<u32>().unwrap() * SECOND, "fall {fall}");
    }
}

#[test]
fn streams_that_end_in_the_moment_in_which_a_frozen_process_goes_on_are_no_zero() {
    let record = draining(&[("settle_ms", "0"), ("deadline_ms", "60000")]);
    let resumed = START.after(3 * SECOND);
    let done = step(&record, resumed, idle(), &Input::Tick);
    let distrust = Distrust { reason: DistrustReason::Unheard, since: resumed };
    assert!(done.effects.contains(&Effect::LogDistrust(distrust)), "{:?}", done.effects);
    // The check that comes next heals nothing.
    let record = ask(&done.record, BALANCER, resumed.after(MICROSECOND));
    let record = tick(&record, resumed.after(SECOND), idle());
    assert_eq!((record.state.name(), record.distrust), (StateName::Draining, Some(distrust)));
    let end = tick(&record, START.after(60 * SECOND), idle());
    let fault = FaultReason::Distrust(DistrustReason::Unheard);
    assert_eq!(end.verdict(), Some(Verdict::Fault { reason: fault, active: None }));
}

#[test]
fn a_zero_that_had_begun_before_ends_nothing_either() {
    let zero = tick(&draining(&[("settle_ms", "1000")]), START.after(SECOND), idle());
    let unheard = tick(&zero, START.after(2 * SECOND), idle());
    assert_eq!((unheard.state.name(), reason(&unheard)), (StateName::Draining, Some(DistrustReason::Unheard)));
    let probe = Probe { path: Path::Balancer, prober: Some(BALANCER.to_owned()) };
    let heard = after(&zero, START.after(SECOND), idle(), Input::Probe(probe));
    assert_eq!(tick(&heard, START.after(2 * SECOND), idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn a_deadline_that_comes_while_a_balancer_is_unheard_is_no_clean_end() {
    let record = tick(&draining(&[("settle_ms", "60000"), ("deadline_ms", "5000")]), START, idle());
    let due = START.after(5 * SECOND);
    let fault = Some(Verdict::Fault { reason: FaultReason::Distrust(DistrustReason::Unheard), active: None });
    // Last heard so that at the deadline it is still there, just there, and just not.
    for (ago, expected) in [
        (SECOND * 7 / 4 - MICROSECOND, Some(Verdict::Clean)),
        (SECOND * 7 / 4, Some(Verdict::Clean)),
        (SECOND * 7 / 4 + MICROSECOND, fault.clone()),
    ] {
        let last = Instant::from_micros(due.as_micros() - u64::try_from(ago.as_micros()).unwrap());
        let on_the_way =
            (1..=3).fold(record.clone(), |record, second| ask(&record, BALANCER, START.after(second * SECOND)));
        let heard = after(&ask(&on_the_way, BALANCER, last), last, idle(), Input::Tick);
        assert_eq!(tick(&heard, due, idle()).verdict(), expected, "{ago:?}");
    }
}

#[test]
fn an_operator_who_ends_such_a_drain_learns_of_it() {
    let record = draining(&[]);
    let closed = after(&record, START.after(3 * SECOND), idle(), Input::CloseLb);
    assert_eq!(closed.verdict(), Some(Verdict::Operator { active: 0 }));
    assert_eq!(reason(&closed), Some(DistrustReason::Unheard));
}

#[test]
fn it_ends_by_a_second_opinion_and_with_its_drain() {
    let record = tick(&draining(&[("settle_ms", "0")]), START.after(3 * SECOND), idle());
    let record = after(&record, START.after(3 * SECOND), idle(), Input::Observe(0));
    let closing = tick(&record, START.after(3 * SECOND).after(CONFIRM), idle());
    assert_eq!(closing.verdict(), Some(Verdict::SecondOpinion { distrust: DistrustReason::Unheard }));
    // It went for good, so no later drain misses it.
    let open = after(&closing, START.after(6 * SECOND), idle(), Input::Reopen);
    let again = after(&open, START.after(6 * SECOND), idle(), Input::Drain(plan(&[("settle_ms", "0")])));
    let record = tick(&again, START.after(60 * SECOND), idle());
    assert_eq!(reason(&record), None);
    assert_eq!(tick(&record, START.after(61 * SECOND), idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn after_the_flip_silence_says_nothing() {
    let record = tick(&draining(&[("settle_ms", "0")]), START, idle());
    let record = tick(&record, START.after(CONFIRM), idle());
    assert_eq!(record.verdict(), Some(Verdict::Clean));
    for second in 1..30 {
        assert_eq!(reason(&tick(&record, START.after(second * SECOND), idle())), None);
    }
    assert_eq!(reason(&ask(&record, BALANCER, START.after(9 * SECOND))), None);
}

#[test]
fn who_was_silent_when_the_drain_began_is_not_missed() {
    let drained = |ago: Duration| {
        let record = after(&probed(10, ago), START, busy(2), Input::Drain(plan(&[])));
        reason(&tick(&record, START, busy(2)))
    };
    assert_eq!([5 * SECOND - MICROSECOND, 5 * SECOND].map(drained), [Some(DistrustReason::Unheard); 2], "or frozen");
    assert_eq!(drained(5 * SECOND + MICROSECOND), None);
    assert_eq!(drained(600 * SECOND), None);
}

#[test]
fn a_few_looks_make_no_prober_that_is_missed() {
    for (times, missed) in [(0, false), (1, false), (3, false), (4, true), (5, true)] {
        let record = after(&probed(times, Duration::ZERO), START, busy(2), Input::Drain(plan(&[])));
        assert_eq!(reason(&tick(&record, START.after(4 * SECOND), busy(2))).is_some(), missed, "{times} times");
    }
}

#[test]
fn who_began_to_ask_in_mid_drain_is_not_missed() {
    let record = after(&Record::open(START), START, busy(2), Input::Drain(plan(&[])));
    let record = (0..10).fold(record, |record, turn| ask(&record, BALANCER, START.after(turn * SECOND)));
    assert_eq!(reason(&tick(&record, START.after(60 * SECOND), busy(2))), None);
}

#[test]
fn one_of_several_is_enough() {
    let open = (0..10)
        .rev()
        .fold(probed(10, Duration::ZERO), |record, turn| ask(&record, "10.0.0.2", before(turn * SECOND / 2)));
    let record = after(&open, START, busy(2), Input::Drain(plan(&[])));
    let record = (1..=3).fold(record, |record, turn| ask(&record, "10.0.0.2", START.after(turn * SECOND / 2)));
    assert_eq!(missed_around(&record, START.after(SECOND * 7 / 4), &Input::Tick), MISSED_JUST_AFTER);
}

#[test]
fn checks_that_are_late_by_less_than_half_an_interval_alarm_nobody_and_blunt_nothing() {
    let (mut record, mut now) = (draining(&[]), START);
    for turn in 0..50 {
        now = now.after(Duration::from_millis(if turn % 2 == 0 { 1_450 } else { 550 }));
        record = ask(&record, BALANCER, now);
        assert_eq!(reason(&record), None, "check {turn}");
    }
    assert_eq!(missed_around(&record, now.after(SECOND * 7 / 4), &Input::Tick), MISSED_JUST_AFTER);
}

#[test]
fn one_outage_before_the_drain_does_not_make_it_more_patient() {
    let open = ask(&probed(10, 4 * SECOND), BALANCER, START);
    let record = after(&open, START, busy(2), Input::Drain(plan(&[])));
    assert_eq!(missed_around(&record, START.after(SECOND * 7 / 4), &Input::Tick), MISSED_JUST_AFTER);
}

#[test]
fn a_host_is_told_when_to_look() {
    let record = draining(&[]);
    let bound = START.after(SECOND * 7 / 4).after(MICROSECOND);
    assert_eq!(record.deadline(START), Some(bound));
    let missed = tick(&record, bound, busy(2));
    assert_eq!(missed.deadline(bound), Some(START.after(ROLL_CALL_WAIT)));
}

#[test]
fn what_lasts_is_hidden_for_that_drain_alone() {
    for lasting in [DistrustReason::Config, DistrustReason::Record, DistrustReason::Ledger] {
        let distrusted = |record: &Record| after(record, START, busy(2), Input::Distrust(lasting));
        let known_before = tick(&distrusted(&draining(&[])), START.after(3 * SECOND), busy(2));
        let found_later = distrusted(&tick(&draining(&[]), START.after(3 * SECOND), busy(2)));
        for record in [known_before, found_later] {
            assert_eq!(reason(&record), Some(DistrustReason::Unheard), "requests may have been cut");
            assert_eq!(distrusted(&record), record, "said once");
            let open = after(&record, START.after(3 * SECOND), busy(2), Input::Reopen);
            let again = after(&open, START.after(60 * SECOND), busy(2), Input::Drain(plan(&[])));
            assert_eq!((reason(&again), again.lasting_distrust), (Some(lasting), None));
        }
    }
    let trapped = tick(&draining(&[]), START.after(3 * SECOND), busy(2));
    let trapped = after(&trapped, START.after(3 * SECOND), busy(2), Input::Distrust(DistrustReason::Trap));
    assert_eq!(reason(&trapped), Some(DistrustReason::Trap));
}
