//! Health first: 503 at once, and the end after zero and the hold.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{MISSING, OPINION_LASTS, SECOND, START, after, at_the_bound, busy, idle, plan, step, tick};
use crate::control::Until;
use crate::effect::{Counter, Effect};
use crate::input::{Input, Probe, Refusal, Reply, Warning};
use crate::machine::BLIND_WAIT;
use crate::plan::Plan;
use crate::record::{DistrustReason, EventName, Path, Reading, Record};
use crate::registry::ROLL_CALL_WAIT;
use crate::state::{FaultReason, StateName, Verdict};
use crate::time::Instant;

fn nlb(fields: &[(&str, &str)]) -> Plan {
    // A hold of ten seconds, where nobody is known to probe.
    plan(&[&[("preset", "nlb"), ("hold_min_ms", "0"), ("hold_max_ms", "10000")], fields].concat())
}

/// Drained at START with two in flight.
fn leaving(fields: &[(&str, &str)]) -> Record {
    after(&Record::open(START), START, busy(2), Input::Drain(nlb(fields)))
}

fn at(seconds: u32) -> Instant {
    START.after(seconds * SECOND)
}

fn events(record: &Record) -> Vec<(EventName, Instant)> {
    record.events.iter().map(|event| (event.event, event.at)).collect()
}

#[test]
fn a_drain_closes_at_once_and_says_it_once() {
    let done = step(&Record::open(START), START, busy(2), &Input::Drain(nlb(&[])));
    assert_eq!(done.record.state.name(), StateName::Closing);
    assert_eq!(done.record.answer(Path::Balancer).status, 503);
    assert_eq!(done.record.answer(Path::Readiness).status, 200);
    assert_eq!(done.record.verdict(), Some(Verdict::HealthFirst { active: 2 }));
    assert_eq!(done.effects.first(), Some(&Effect::Count(Counter::Drains)));
    assert!(
        matches!(&done.effects[1], Effect::Log(said) if said.from == StateName::Open && said.to == StateName::Closing)
    );
    assert_eq!(done.effects[2..], [Effect::Ring]);
    assert_eq!((done.record.drains, done.record.changes), (1, 1));
    assert!(done.record.waits_for_zero());
    assert_eq!(Until::Closing.status(&done.record, 0), Some(200));
    assert_eq!(Until::Exit.status(&done.record, 1), None);
}

#[test]
fn zero_alone_is_not_the_end_nor_is_the_hold() {
    let zero = tick(&leaving(&[("settle_ms", "1000")]), START, idle());
    assert_eq!(zero.deadline(at(3)), Some(at(10)));
    at_the_bound(&zero, at(10), idle(), StateName::Closing, StateName::Closed);
    let held = tick(&leaving(&[("settle_ms", "1000")]), at(20), busy(2));
    assert_eq!(held.state.name(), StateName::Closing, "the hold is over, and two are in flight");
    let zero = tick(&held, at(20), idle());
    assert_eq!(zero.deadline(at(20)), Some(at(21)));
    at_the_bound(&zero, at(21), idle(), StateName::Closing, StateName::Closed);
}

#[test]
fn a_request_that_comes_after_zero_is_waited_for() {
    let zero = tick(&leaving(&[("settle_ms", "1000")]), START, idle());
    let again = tick(&zero, at(9), busy(1));
    assert_eq!(tick(&again, at(15), busy(1)).state.name(), StateName::Closing);
    let zero = tick(&again, at(15), idle());
    at_the_bound(&zero, at(16), idle(), StateName::Closing, StateName::Closed);
}

#[test]
fn the_events_of_a_clean_end_are_1_4_2_and_the_end_is_clean() {
    let zero = tick(&leaving(&[("settle_ms", "500")]), at(4), idle());
    let done = step(&zero, at(10), idle(), &Input::Tick);
    use EventName::{ActiveZero, Drain, HealthFail, ReadinessFail};
    assert_eq!(
        events(&done.record),
        [(Drain, START), (HealthFail, START), (ActiveZero, at(4)), (ReadinessFail, at(10))]
    );
    assert_eq!(done.record.verdict(), Some(Verdict::Clean));
    assert_eq!(done.record.cut_at_most(), Some(0));
    assert_eq!(done.effects.first(), Some(&Effect::Count(Counter::CleanCloses)));
    assert!(
        matches!(&done.effects[1], Effect::Log(said) if said.cut_at_most == Some(0) && said.verdict == Some(Verdict::Clean))
    );
    assert!(done.record.may_exit());
}

#[test]
fn the_deadline_with_requests_in_flight_is_a_fault_that_may_exit_if_the_hold_is_over() {
    let record = leaving(&[("deadline_ms", "30000")]);
    at_the_bound(&record, at(30), busy(7), StateName::Closing, StateName::Fault);
    let done = step(&record, at(30), busy(7), &Input::Tick);
    assert_eq!(done.record.verdict(), Some(Verdict::Fault { reason: FaultReason::Deadline, active: Some(7) }));
    assert!(done.effects.contains(&Effect::Count(Counter::FaultsDeadline)));
    assert!(done.record.may_exit());
    assert_eq!(done.record.cut_at_most(), Some(7));
    use EventName::{Drain, Fault, HealthFail};
    assert_eq!(events(&done.record), [(Drain, START), (HealthFail, START), (Fault, at(30))], "503 began once");
}

#[test]
fn a_deadline_within_the_hold_is_a_fault_that_has_the_rest_of_the_hold() {
    let fault = tick(&leaving(&[("deadline_ms", "4000")]), at(4), busy(1));
    assert_eq!((fault.state.name(), fault.may_exit()), (StateName::Fault, false));
    assert_eq!(fault.deadline(at(4)), Some(at(10)), "counted from the 503, not from the fault");
    assert!(!tick(&fault, Instant::from_micros(at(10).as_micros() - 1), busy(1)).may_exit());
    assert!(tick(&fault, at(10), busy(1)).may_exit());
}

#[test]
fn a_deadline_at_zero_within_the_hold_waits_for_the_rest_of_it() {
    let zero = tick(&leaving(&[("deadline_ms", "4000"), ("settle_ms", "60000")]), at(3), idle());
    let due = tick(&zero, at(4), idle());
    assert_eq!(due.state.name(), StateName::Closing);
    assert_eq!(due.deadline(at(4)), Some(at(10)));
    at_the_bound(&due, at(10), idle(), StateName::Closing, StateName::Closed);
    assert_eq!(tick(&due, at(10), idle()).verdict(), Some(Verdict::Clean));
    assert_eq!(
        tick(&due, at(6), busy(1)).state.name(),
        StateName::Fault,
        "what comes after the deadline is a fault at once"
    );
}

#[test]
fn a_roll_call_that_stays_incomplete_is_distrust_and_its_zero_no_end() {
    let missing = Reading { roll_call: MISSING, ..idle() };
    let record = leaving(&[("settle_ms", "0"), ("deadline_ms", "60000")]);
    let due = START.after(ROLL_CALL_WAIT);
    assert_eq!(tick(&record, Instant::from_micros(due.as_micros() - 1), missing).distrust, None);
    let record = tick(&record, due, missing);
    assert_eq!(record.distrust.map(|distrust| distrust.reason), Some(DistrustReason::RollCall));
    assert_eq!(tick(&record, at(59), missing).state.name(), StateName::Closing);
    let reason = FaultReason::Distrust(DistrustReason::RollCall);
    assert_eq!(tick(&record, at(60), missing).verdict(), Some(Verdict::Fault { reason, active: None }));
    let mended = tick(&record, at(20), idle());
    assert_eq!(mended.distrust, None);
    assert_eq!(tick(&mended, at(21), idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn a_distrusted_drain_believes_a_second_opinion_and_says_so() {
    let record = after(&leaving(&[("settle_ms", "1000")]), START, idle(), Input::Distrust(DistrustReason::Trap));
    assert_eq!(tick(&record, at(60), idle()).state.name(), StateName::Closing, "own zero is not believed");
    let record = after(&record, at(20), busy(4), Input::Observe(0));
    at_the_bound(&record, at(21), busy(4), StateName::Closing, StateName::Closed);
    let verdict = Verdict::SecondOpinion { distrust: DistrustReason::Trap };
    assert_eq!(tick(&record, at(21), busy(4)).verdict(), Some(verdict));
    let work = after(&record, at(20), busy(4), Input::Observe(2));
    assert_eq!(tick(&work, at(22), busy(4)).state.name(), StateName::Closing);
    assert_eq!(tick(&record, at(20).after(OPINION_LASTS).after(Duration::from_micros(1)), busy(4)).zero_since(), None);
}

#[test]
fn one_who_cannot_see_the_whole_count_decides_only_long_after_the_deadline() {
    let blind = Reading { blind: true, ..idle() };
    let record = leaving(&[("settle_ms", "0"), ("deadline_ms", "20000")]);
    assert_eq!(tick(&record, at(19), blind), record);
    at_the_bound(&record, at(20).after(BLIND_WAIT), blind, StateName::Closing, StateName::Fault);
}

#[test]
fn an_operator_ends_it_at_once_with_what_is_in_flight() {
    let closed = after(&leaving(&[]), at(1), busy(3), Input::Close);
    assert_eq!(closed.state.name(), StateName::Closed);
    assert_eq!(closed.verdict(), Some(Verdict::Operator { active: 3 }));
    assert_eq!(closed.cut_at_most(), Some(3));
    let same = step(&leaving(&[]), at(1), busy(3), &Input::CloseLb);
    assert_eq!((same.record.state.name(), same.effects.len()), (StateName::Closing, 0));
    let again = step(&leaving(&[]), at(1), busy(3), &Input::Drain(plan(&[])));
    assert_eq!((again.record, again.effects.len()), (leaving(&[]), 0));
}

#[test]
fn reopened_it_is_open_and_the_operator_is_warned() {
    let done = step(&leaving(&[]), at(1), busy(3), &Input::Reopen);
    assert_eq!(done.record.state.name(), StateName::Open);
    assert_eq!(done.reply, Reply::Accepted { warnings: [Warning::BalancerMayHaveNoticed].into() });
    assert_eq!((done.record.late(&busy(3)), done.record.cut_at_most()), (None, None));
    let closed = step(&tick(&tick(&leaving(&[]), START, idle()), at(10), idle()), at(11), idle(), &Input::Reopen);
    assert_eq!(closed.reply, Reply::Refused(Refusal::AlreadyClosed));
}

#[test]
fn silence_after_the_503_says_nothing_of_a_balancer_that_was_steady() {
    let ask = |record: &Record, now: Instant| {
        after(record, now, busy(2), Input::Probe(Probe { path: Path::Balancer, prober: Some("10.0.0.1".to_owned()) }))
    };
    let before = |seconds: u64| Instant::from_micros(START.as_micros() - seconds * 1_000_000);
    let open = (0..6).rev().fold(Record::open(before(60)), |record, turn| ask(&record, before(turn)));
    let record = after(&open, START, busy(2), Input::Drain(nlb(&[("settle_ms", "0")])));
    let record = ask(&ask(&record, at(1)), at(2));
    for second in 3..30 {
        assert_eq!(tick(&record, at(second), busy(2)).distrust, None, "after {second} s");
    }
    let zero = tick(&record, at(30), idle());
    assert_eq!(tick(&zero, at(31), idle()).verdict(), Some(Verdict::Clean));
    assert_eq!(ask(&zero, at(31)).distrust, None);
}
