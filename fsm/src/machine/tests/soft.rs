//! The soft answer: when it has been heard, and that zero counts only then.

use alloc::borrow::ToOwned;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{MICROSECOND, SECOND, START, after, at_the_bound, busy, idle, plan, step, tick};
use crate::effect::{Counter, Effect};
use crate::input::{Input, Probe, Reply};
use crate::probers::PROBERS_MAX;
use crate::record::{DistrustReason, Path, Record};
use crate::state::{FaultReason, StateName, Verdict};
use crate::time::Instant;

const HALF: Duration = Duration::from_millis(500);

fn ago(span: Duration) -> Instant {
    Instant::from_micros(START.as_micros() - span.as_micros() as u64)
}

fn asks(record: &Record, address: &str, now: Instant) -> Record {
    let probe = Probe { path: Path::Balancer, prober: Some(address.to_owned()) };
    // A request in flight: nothing is decided by the way.
    after(record, now, busy(1), Input::Probe(probe))
}

fn asks_idle(record: &Record, now: Instant) -> Record {
    let probe = Probe { path: Path::Balancer, prober: Some("a".to_owned()) };
    after(record, now, idle(), Input::Probe(probe))
}

/// OPEN, with probers who have asked every so often, the last time at START: known, but not so steady that their silence says
/// anything.
fn probed(probers: &[(&str, Duration)]) -> Record {
    probed_times(3, probers)
}

fn probed_times(times: u32, probers: &[(&str, Duration)]) -> Record {
    let mut record = Record::open(ago(60 * SECOND));
    for (address, interval) in probers {
        for turn in (0..times).rev() {
            record = asks(&record, address, ago(*interval * turn));
        }
    }
    record
}

/// A soft drain that begins at START.
fn soft(record: &Record, fields: &[(&str, &str)]) -> Record {
    let plan = plan(&[&[("preset", "haproxy-soft")], fields].concat());
    after(record, START, busy(1), Input::Drain(plan))
}

/// The same with nothing in flight since START.
fn soft_idle(record: &Record, fields: &[(&str, &str)]) -> Record {
    tick(&soft(record, fields), START, idle())
}

#[test]
fn draining_is_404_on_the_balancer_path_alone_and_says_so_in_the_body() {
    let record = soft(&Record::open(START), &[]);
    let (balancer, readiness) = (record.answer(Path::Balancer), record.answer(Path::Readiness));
    assert_eq!((balancer.status, balancer.body.as_str()), (404, "DRAINING"));
    assert_eq!((readiness.status, readiness.body.as_str()), (200, "DRAINING"));
    let record = soft(&Record::open(START), &[("soft_status", "200"), ("soft_body", "disabled")]);
    let (balancer, readiness) = (record.answer(Path::Balancer), record.answer(Path::Readiness));
    assert_eq!((balancer.status, balancer.body.as_str()), (200, "disabled"));
    assert_eq!(readiness.body, "DRAINING");
    let closing = after(&record, START, busy(1), Input::CloseLb);
    assert_eq!((closing.answer(Path::Balancer).status, closing.answer(Path::Balancer).body.as_str()), (503, "CLOSING"));
}

#[test]
fn a_soft_answer_is_counted_as_one_and_never_as_a_hard_one() {
    let record = soft(&probed(&[("a", SECOND)]), &[]);
    let probe = Input::Probe(Probe { path: Path::Balancer, prober: Some("a".to_owned()) });
    let done = step(&record, START.after(SECOND), busy(1), &probe);
    assert!(matches!(&done.reply, Reply::Answer(answer) if answer.status == 404));
    assert_eq!(done.effects, [Effect::Count(Counter::SoftAnswers)]);
    let prober = done.record.probers.iter().next().unwrap().clone();
    assert_eq!((prober.soft, prober.hard, prober.told), (1, 0, Some(START.after(SECOND))));
}

#[test]
fn zero_counts_a_margin_after_the_only_prober_was_served() {
    let record = soft_idle(&probed(&[("a", SECOND)]), &[("settle_ms", "0")]);
    let served = tick(&asks(&record, "a", START.after(SECOND)), START.after(SECOND), idle());
    assert_eq!(served.deadline(START.after(SECOND)), Some(START.after(2 * SECOND)));
    at_the_bound(&served, START.after(2 * SECOND), idle(), StateName::Draining, StateName::Closing);
    assert_eq!(tick(&served, START.after(2 * SECOND), idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn a_fast_prober_gets_the_plans_margin() {
    let interval = Duration::from_millis(200);
    let record = soft_idle(&probed(&[("a", interval)]), &[("settle_ms", "0")]);
    let at = START.after(interval);
    let served = tick(&asks(&record, "a", at), at, idle());
    at_the_bound(&served, at.after(HALF), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn a_zero_that_begins_later_settles_as_ever() {
    let record = soft(&probed(&[("a", SECOND)]), &[("settle_ms", "1000")]);
    let served = asks(&record, "a", START.after(SECOND));
    let zero = tick(&served, START.after(4 * SECOND), idle());
    at_the_bound(&zero, START.after(5 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn a_request_in_between_starts_the_settling_again_but_not_the_hearing() {
    let record = soft(&probed(&[("a", SECOND)]), &[("settle_ms", "1000")]);
    let served = (1..=4).fold(record, |record, second| asks(&record, "a", START.after(second * SECOND)));
    let zero = tick(&served, START.after(4 * SECOND), idle());
    let again = asks(&zero, "a", START.after(4 * SECOND).after(HALF));
    let zero = tick(&again, START.after(5 * SECOND), idle());
    at_the_bound(&zero, START.after(6 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn while_one_that_still_probes_was_not_served_no_zero_counts() {
    let record = soft_idle(&probed(&[("a", SECOND), ("b", 4 * SECOND)]), &[("settle_ms", "0")]);
    let served = asks(&record, "a", START.after(SECOND));
    let record = tick(&served, START.after(SECOND), idle());
    // Longer than the longest hold: a hold may end there, a hearing may not.
    let late = START.after(11 * SECOND);
    assert_eq!(tick(&record, late, idle()).state.name(), StateName::Draining);
    let mut record = record;
    for second in 2..=11 {
        record = tick(&asks(&record, "a", START.after(second * SECOND)), START.after(second * SECOND), idle());
    }
    assert_eq!(record.state.name(), StateName::Draining);
    let served = tick(&asks(&record, "b", late), late, idle());
    // Its gap was eleven seconds, and that is its margin.
    at_the_bound(&served, late.after(11 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn one_that_stops_holds_nobody_once_it_was_silent_for_five_intervals() {
    let record = soft_idle(&probed(&[("a", HALF), ("b", HALF)]), &[("settle_ms", "0")]);
    let mut record = record;
    for turn in 1..=5 {
        record = asks(&record, "a", START.after(HALF * turn));
    }
    let last = START.after(HALF * 5);
    let record = tick(&record, last, idle());
    let gone = last.after(MICROSECOND);
    assert_eq!(record.deadline(last), Some(gone), "a host has to look then");
    // Zero has to be confirmed as well, and b is gone by then.
    let due = last.after(crate::CONFIRM);
    at_the_bound(&record, due, idle(), StateName::Draining, StateName::Closing);
    let long_zero = tick(&soft_idle(&probed(&[("b", 3 * SECOND)]), &[("settle_ms", "0")]), START, idle());
    let due = START.after(15 * SECOND).after(MICROSECOND);
    at_the_bound(&long_zero, due, idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn nobody_and_a_stranger_both_mean_the_longest_hold() {
    let nobody = soft_idle(&Record::open(START), &[("settle_ms", "0"), ("hold_max_ms", "3000")]);
    at_the_bound(&nobody, START.after(3 * SECOND), idle(), StateName::Draining, StateName::Closing);
    let stranger = tick(&asks(&nobody, "203.0.113.9", START.after(SECOND)), START.after(SECOND), idle());
    at_the_bound(&stranger, START.after(3 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn a_stranger_neither_lengthens_nor_shortens_the_hearing_of_the_known() {
    let record = soft_idle(&probed(&[("a", SECOND)]), &[("settle_ms", "0")]);
    let record = asks(&asks(&record, "a", START.after(SECOND)), "203.0.113.9", START.after(SECOND));
    let record = tick(&record, START.after(SECOND), idle());
    at_the_bound(&record, START.after(2 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn one_that_comes_late_is_known_at_its_second_question_and_then_holds() {
    let record = soft_idle(&probed(&[("a", SECOND)]), &[("settle_ms", "0")]);
    let record = asks(&record, "a", START.after(SECOND));
    let record = asks(&record, "late", START.after(SECOND));
    let record = asks(&record, "late", START.after(SECOND).after(HALF));
    let record = tick(&record, START.after(SECOND).after(HALF), idle());
    // It was served at both; the first one counts, and its margin from there ends before that of a.
    at_the_bound(&record, START.after(2 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn a_table_full_of_the_known_means_the_longest_hold() {
    let names: alloc::vec::Vec<alloc::string::String> = (0..PROBERS_MAX).map(|at| std::format!("{at}")).collect();
    let all: alloc::vec::Vec<(&str, Duration)> = names.iter().map(|name| (name.as_str(), SECOND)).collect();
    let mut record = soft_idle(&probed(&all), &[("settle_ms", "0")]);
    for name in &names {
        record = asks(&record, name, START.after(SECOND));
    }
    let record = asks(&record, "one too many", START.after(SECOND));
    let record = tick(&record, START.after(SECOND), idle());
    at_the_bound(&record, START.after(10 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn what_was_served_in_open_is_not_the_soft_answer_and_the_soft_answer_is_no_hard_one() {
    let record = soft_idle(&probed(&[("a", SECOND)]), &[("settle_ms", "0")]);
    assert!(record.probers.iter().all(|prober| prober.told.is_none()));
    let served = tick(&asks(&record, "a", START.after(SECOND)), START.after(SECOND), idle());
    let flip = START.after(2 * SECOND);
    let closing = tick(&served, flip, idle());
    assert_eq!(closing.state.name(), StateName::Closing);
    // The hold is that of any plan: two hard answers and an interval.
    let closing = asks(&asks(&closing, "a", flip), "a", START.after(3 * SECOND));
    at_the_bound(&closing, START.after(5 * SECOND), idle(), StateName::Closing, StateName::Closed);
}

#[test]
fn the_plans_shortest_hold_holds_for_the_hearing_too() {
    let record = soft_idle(&probed(&[("a", SECOND)]), &[("settle_ms", "0"), ("hold_min_ms", "7000")]);
    let mut record = record;
    for second in 1..=6 {
        record = tick(&asks(&record, "a", START.after(second * SECOND)), START.after(second * SECOND), idle());
        assert_eq!(record.state.name(), StateName::Draining);
    }
    at_the_bound(&record, START.after(7 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn the_deadline_ends_what_was_never_heard() {
    let fields = [("settle_ms", "0"), ("deadline_ms", "5000")];
    let record = soft_idle(&probed(&[("a", 4 * SECOND)]), &fields);
    let due = START.after(5 * SECOND);
    at_the_bound(&record, due, idle(), StateName::Draining, StateName::Closing);
    assert_eq!(tick(&record, due, idle()).verdict(), Some(Verdict::Clean));
    at_the_bound(&record, due, busy(3), StateName::Draining, StateName::Fault);
    let reason = FaultReason::Deadline;
    assert_eq!(tick(&record, due, busy(3)).verdict(), Some(Verdict::Fault { reason, active: Some(3) }));
}

#[test]
fn a_second_opinion_of_zero_counts_no_earlier() {
    let record = soft(&probed(&[("a", SECOND)]), &[("settle_ms", "0")]);
    let record = after(&record, START, busy(1), Input::Distrust(DistrustReason::Trap));
    let record = after(&record, START, busy(1), Input::Observe(0));
    assert_eq!(tick(&record, START.after(SECOND), busy(1)).state.name(), StateName::Draining);
    let record = asks(&record, "a", START.after(SECOND));
    at_the_bound(&record, START.after(2 * SECOND), busy(1), StateName::Draining, StateName::Closing);
}

#[test]
fn reopening_takes_the_soft_answer_back() {
    let record = after(&soft(&probed(&[("a", SECOND)]), &[]), START, busy(1), Input::Reopen);
    assert_eq!(record.answer(Path::Balancer).status, 200);
}

/// A soft drain from START on, with nothing in flight and a balancer of one check a second that does not fall silent by itself.
fn soft_steady(fields: &[(&str, &str)]) -> Record {
    soft_idle(&probed_times(6, &[("a", SECOND)]), fields)
}

#[test]
fn a_steady_balancer_that_was_told_goes_on_probing_and_so_is_heard() {
    let mut record = soft_steady(&[("settle_ms", "30000")]);
    for second in 1..=29 {
        record = tick(&asks_idle(&record, START.after(second * SECOND)), START.after(second * SECOND), idle());
        assert_eq!((record.state.name(), record.distrust), (StateName::Draining, None), "after {second} s");
    }
    at_the_bound(&record, START.after(30 * SECOND), idle(), StateName::Draining, StateName::Closing);
    assert_eq!(tick(&record, START.after(30 * SECOND), idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn one_that_falls_silent_is_unheard_whether_or_not_it_was_told() {
    let untold = soft_steady(&[("settle_ms", "0"), ("deadline_ms", "60000")]);
    let told = asks_idle(&untold, START.after(SECOND));
    // Told and settled, it would be clean at two seconds; a margin that long outlasts the silence that is allowed.
    let long = soft_steady(&[("settle_ms", "0"), ("margin_ms", "5000"), ("deadline_ms", "60000")]);
    let long = asks_idle(&long, START.after(SECOND));
    assert_eq!(tick(&told, START.after(2 * SECOND), idle()).verdict(), Some(Verdict::Clean));
    for (record, last) in [(untold, START), (long, START.after(SECOND))] {
        let allowed = last.after(SECOND * 7 / 4);
        assert_eq!(record.deadline(last.after(SECOND)), Some(allowed.after(MICROSECOND)), "a host has to look then");
        assert_eq!(tick(&record, allowed, idle()).distrust, None);
        let missed = tick(&record, allowed.after(MICROSECOND), idle());
        assert_eq!(missed.distrust.map(|distrust| distrust.reason), Some(DistrustReason::Unheard));
        let heard_again = asks_idle(&missed, START.after(3 * SECOND));
        let end = tick(&heard_again, START.after(60 * SECOND), idle());
        let reason = FaultReason::Distrust(DistrustReason::Unheard);
        assert_eq!(end.verdict(), Some(Verdict::Fault { reason, active: None }));
    }
}

#[test]
fn a_silence_that_is_too_long_is_noticed_before_the_zero_that_was_waited_for() {
    let record = soft_steady(&[("settle_ms", "0")]);
    let told = asks_idle(&record, START.after(SECOND));
    // Zero counts from two seconds on, but nobody looked before it was too late.
    let late = tick(&told, START.after(SECOND).after(SECOND * 7 / 4).after(MICROSECOND), idle());
    assert_eq!(late.state.name(), StateName::Draining);
    assert_eq!(late.distrust.map(|distrust| distrust.reason), Some(DistrustReason::Unheard));
}
