//! The table: every state and every input; every deadline one microsecond early, on time and late.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use std::format;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{OPINION_LASTS, Step, step};
use crate::CONFIRM;
use crate::effect::{Counter, Effect};
use crate::input::{Input, Probe, Reply, Warning};
use crate::plan::{Plan, Preset};
use crate::record::{Distrust, DistrustReason, EventName, Path, Reading, Record, RollCall};
use crate::registry::ROLL_CALL_WAIT;
use crate::state::{FaultReason, StateName, Verdict};
use crate::time::Instant;

mod doubt;
mod order;
mod peers;
// Random inputs stay native: their crate asks the system for randomness.
#[cfg(not(target_arch = "wasm32"))]
mod properties;
mod soft;
mod truth;
mod unheard;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use properties::any_record;

const START: Instant = Instant::from_micros(1_000_000_000);
const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const WHOLE: RollCall = RollCall { answered: 3, expected: 3, newcomers: 0 };
const MISSING: RollCall = RollCall { answered: 2, expected: 3, newcomers: 0 };

fn busy(active: u64) -> Reading {
    Reading { blind: false, admitted: 0, active, roll_call: WHOLE }
}

fn idle() -> Reading {
    busy(0)
}

fn plan(fields: &[(&str, &str)]) -> Plan {
    Plan::preset(Preset::Haproxy).with(fields.iter().copied()).unwrap()
}

/// The record after one input.
fn after(record: &Record, now: Instant, reading: Reading, input: Input) -> Record {
    step(record, now, reading, &input).record
}

fn tick(record: &Record, now: Instant, reading: Reading) -> Record {
    after(record, now, reading, Input::Tick)
}

fn draining(fields: &[(&str, &str)]) -> Record {
    after(&Record::open(START), START, busy(2), Input::Drain(plan(fields)))
}

fn closing(fields: &[(&str, &str)]) -> Record {
    after(&draining(fields), START, busy(2), Input::CloseLb)
}

/// OPEN, DRAINING, CLOSING, CLOSED and FAULT, each entered at START or a little later, with nothing due.
pub(crate) fn one_of_each_state() -> Vec<Record> {
    let fault = tick(&draining(&[("deadline_ms", "1")]), START.after(Duration::from_millis(1)), busy(2));
    let records =
        [Record::open(START), draining(&[]), closing(&[]), after(&closing(&[]), START, busy(2), Input::Close), fault];
    assert_eq!(records.clone().map(|record| record.state.name()), StateName::ALL);
    records.into()
}

fn all_inputs() -> Vec<(&'static str, Input)> {
    let probe = |path| Input::Probe(Probe { path, prober: Some("10.0.0.1".to_owned()) });
    [
        ("drain", Input::Drain(plan(&[]))),
        ("close-lb", Input::CloseLb),
        ("close", Input::Close),
        ("reopen", Input::Reopen),
        ("probe balancer", probe(Path::Balancer)),
        ("probe readiness", probe(Path::Readiness)),
        ("envoy drain started", Input::EnvoyDrainStarted),
        ("observe 0", Input::Observe(0)),
        ("distrust", Input::Distrust(DistrustReason::Trap)),
        ("tick", Input::Tick),
    ]
    .into()
}

/// The outcome of a step in the words of the table below.
fn outcome(step: &Step) -> String {
    let state = step.record.state.name();
    match &step.reply {
        Reply::Accepted { warnings } if warnings.is_empty() => format!("{state} 200"),
        Reply::Accepted { warnings } => format!("{state} 200 {warnings:?}"),
        Reply::Refused(refusal) => format!("{state} 409 {refusal:?}"),
        Reply::Answer(answer) => format!("{state} {}", answer.status),
        Reply::Noted => format!("{state} noted"),
    }
}

#[test]
fn every_state_and_every_input() {
    const TABLE: &str = "
        drain               | DRAINING 200        | DRAINING 200            | CLOSING 200                       | CLOSED 200               | FAULT 200
        close-lb            | OPEN 409 NotDraining| CLOSING 200             | CLOSING 200                       | CLOSED 200               | FAULT 200
        close               | OPEN 409 NotDraining| DRAINING 409 BalancerNotTold | CLOSED 200                   | CLOSED 200               | CLOSED 200
        reopen              | OPEN 200            | OPEN 200                | OPEN 200 [BalancerMayHaveNoticed] | CLOSED 409 AlreadyClosed | OPEN 200 [BalancerMayHaveNoticed]
        probe balancer      | OPEN 200            | DRAINING 200            | CLOSING 503                       | CLOSED 503               | FAULT 503
        probe readiness     | OPEN 200            | DRAINING 200            | CLOSING 200                       | CLOSED 503               | FAULT 200
        envoy drain started | OPEN 200            | DRAINING 200            | CLOSING 200                       | CLOSED 200               | FAULT 200
        observe 0           | OPEN 200            | DRAINING 200            | CLOSING 200                       | CLOSED 200               | FAULT 200
        distrust            | OPEN noted          | DRAINING noted          | CLOSING noted                     | CLOSED noted             | FAULT noted
        tick                | OPEN noted          | DRAINING noted          | CLOSING noted                     | CLOSED noted             | FAULT noted";
    let rows: Vec<Vec<&str>> = TABLE.trim().lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    let inputs = all_inputs();
    assert_eq!(rows.len(), inputs.len());
    for (row, (name, input)) in rows.iter().zip(&inputs) {
        assert_eq!(row[0], *name);
        for (expected, record) in row[1..].iter().zip(one_of_each_state()) {
            let now = record.state.since();
            let done = step(&record, now, busy(2), input);
            assert_eq!(outcome(&done), *expected, "{name} in {}", record.state.name());
            let moved = done.record.state.name() != record.state.name();
            let logged = done.effects.iter().filter(|effect| matches!(effect, Effect::Log(_))).count();
            assert_eq!(logged, usize::from(moved), "{name}: a transition is logged once, and nothing else is");
        }
    }
}

/// Asserts what a tick makes of `record` one microsecond before `due`, at it, and one after.
fn at_the_bound(record: &Record, due: Instant, reading: Reading, before: StateName, then: StateName) {
    let early = Instant::from_micros(due.as_micros() - 1);
    assert_eq!(tick(record, early, reading).state.name(), before, "1 us early");
    assert_eq!(tick(record, due, reading).state.name(), then, "on time");
    assert_eq!(tick(record, due.after(MICROSECOND), reading).state.name(), then, "1 us late");
}

#[test]
fn zero_must_last_for_settle() {
    let record = tick(&draining(&[("settle_ms", "1000")]), START.after(SECOND), idle());
    let due = START.after(2 * SECOND);
    at_the_bound(&record, due, idle(), StateName::Draining, StateName::Closing);
    assert_eq!(record.deadline(START.after(SECOND)), Some(due).min(Some(START.after(ROLL_CALL_WAIT))));
}

#[test]
fn without_settle_zero_must_still_last_for_one_turn_of_the_loop() {
    let record = tick(&draining(&[("settle_ms", "0")]), START, idle());
    at_the_bound(&record, START.after(CONFIRM), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn a_request_in_between_starts_the_settling_again() {
    let record = tick(&draining(&[("settle_ms", "1000")]), START, idle());
    let record = tick(&record, START.after(SECOND / 2), busy(1));
    assert_eq!(tick(&record, START.after(SECOND), busy(1)).state.name(), StateName::Draining);
    let record = tick(&record, START.after(SECOND), idle());
    at_the_bound(&record, START.after(2 * SECOND), idle(), StateName::Draining, StateName::Closing);
}

#[test]
fn a_deadline_with_requests_in_flight_is_a_fault_with_their_number() {
    let record = draining(&[("deadline_ms", "5000")]);
    let due = START.after(5 * SECOND);
    at_the_bound(&record, due, busy(7), StateName::Draining, StateName::Fault);
    let done = step(&record, due, busy(7), &Input::Tick);
    assert_eq!(done.record.verdict(), Some(Verdict::Fault { reason: FaultReason::Deadline, active: Some(7) }));
    assert!(done.effects.contains(&Effect::Count(Counter::FaultsDeadline)));
}

#[test]
fn a_deadline_at_zero_closes_although_it_has_not_settled() {
    let record = draining(&[("deadline_ms", "5000"), ("settle_ms", "60000")]);
    let due = START.after(5 * SECOND);
    at_the_bound(&record, due, idle(), StateName::Draining, StateName::Closing);
    assert_eq!(tick(&record, due, idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn a_roll_call_that_stays_incomplete_is_distrust_and_never_idle() {
    let record = draining(&[("settle_ms", "0")]);
    let missing = Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING };
    let due = START.after(ROLL_CALL_WAIT);
    for (now, distrusted) in
        [(Instant::from_micros(due.as_micros() - 1), false), (due, true), (due.after(MICROSECOND), true)]
    {
        let record = tick(&record, now, missing);
        assert_eq!(record.state.name(), StateName::Draining);
        assert_eq!(record.distrust.map(|distrust| distrust.reason), distrusted.then_some(DistrustReason::RollCall));
    }
    let record = tick(&record, due, missing);
    let much_later = tick(&record, due.after(3600 * SECOND), missing);
    assert_eq!(much_later.state.name(), StateName::Draining);
}

#[test]
fn who_comes_after_the_drain_began_mends_no_distrust() {
    let missing = Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING };
    let newcomer = Reading { blind: false, admitted: 0, active: 0, roll_call: RollCall { newcomers: 1, ..WHOLE } };
    let record = tick(&draining(&[("settle_ms", "0")]), START.after(ROLL_CALL_WAIT), missing);
    let record = tick(&record, START.after(3 * SECOND), newcomer);
    assert_eq!(record.distrust.map(|distrust| distrust.reason), Some(DistrustReason::RollCall));
    assert_eq!(tick(&record, START.after(4 * SECOND), newcomer).state.name(), StateName::Draining);
}

#[test]
fn an_answer_that_was_only_late_is_believed() {
    let missing = Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING };
    let record = tick(&draining(&[("settle_ms", "0")]), START.after(ROLL_CALL_WAIT), missing);
    let late = START.after(3 * SECOND);
    let done = step(&record, late, idle(), &Input::Tick);
    assert_eq!(done.record.distrust, None);
    assert!(done.effects.contains(&Effect::LogTrust(record.distrust.unwrap())), "{:?}", done.effects);
    let end = tick(&done.record, late.after(CONFIRM), idle());
    assert_eq!(end.verdict(), Some(Verdict::Clean));
}

#[test]
fn one_who_cannot_see_the_whole_count_neither_starts_nor_ends_a_zero() {
    let blind = Reading { blind: true, ..busy(1) };
    let record = draining(&[("settle_ms", "1000"), ("deadline_ms", "9000")]);
    assert_eq!(tick(&record, START, Reading { active: 0, ..blind }), record);
    let zero = tick(&record, START, idle());
    assert_eq!(tick(&zero, START.after(SECOND / 2), blind), zero, "others see zero");
    assert_eq!(tick(&zero, START.after(SECOND), idle()).verdict(), Some(Verdict::Clean));
}

#[test]
fn one_who_cannot_see_faults_only_if_nobody_else_has_decided() {
    let blind = Reading { blind: true, ..busy(1) };
    let record = draining(&[("deadline_ms", "9000")]);
    let due = START.after(9 * SECOND).after(super::BLIND_WAIT);
    at_the_bound(&record, due, blind, StateName::Draining, StateName::Fault);
    let reason = FaultReason::Distrust(DistrustReason::Ledger);
    assert_eq!(tick(&record, due, blind).verdict(), Some(Verdict::Fault { reason, active: None }));
}

#[test]
fn what_the_host_cut_is_not_mended_by_a_roll_call_nor_hidden_by_one() {
    let record = after(&draining(&[("settle_ms", "0")]), START, busy(1), Input::Distrust(DistrustReason::Cut));
    let record =
        tick(&record, START.after(3 * SECOND), Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING });
    assert_eq!(record.distrust.unwrap().reason, DistrustReason::Cut);
    assert_eq!(tick(&record, START.after(4 * SECOND), idle()).state.name(), StateName::Draining);
}

#[test]
fn a_lasting_distrust_is_not_mended_by_a_roll_call() {
    let record = after(&draining(&[("settle_ms", "0")]), START, idle(), Input::Distrust(DistrustReason::Trap));
    assert!(tick(&record, START.after(3 * SECOND), idle()).distrust.is_some());
}

#[test]
fn a_late_answer_within_the_wait_is_in_time() {
    let record = draining(&[("settle_ms", "0")]);
    let record =
        tick(&record, START.after(SECOND), Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING });
    let record = tick(&record, START.after(SECOND), idle());
    assert_eq!(tick(&record, START.after(SECOND).after(CONFIRM), idle()).state.name(), StateName::Closing);
}

#[test]
fn nobody_counting_is_not_idle() {
    let nobody = Reading {
        blind: false,
        admitted: 0,
        active: 0,
        roll_call: RollCall { answered: 0, expected: 0, newcomers: 0 },
    };
    let record = draining(&[("settle_ms", "0"), ("deadline_ms", "60000")]);
    let record = tick(&record, START.after(3 * SECOND), nobody);
    assert_eq!(record.state.name(), StateName::Draining);
    assert_eq!(record.distrust.map(|distrust| distrust.reason), Some(DistrustReason::RollCall));
    let end = tick(&record, START.after(60 * SECOND), nobody);
    let reason = FaultReason::Distrust(DistrustReason::RollCall);
    assert_eq!(end.verdict(), Some(Verdict::Fault { reason, active: None }));
}

#[test]
fn a_deadline_before_the_roll_call_is_over_is_no_clean_end() {
    let record = draining(&[("deadline_ms", "1000")]);
    let end = tick(&record, START.after(SECOND), Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING });
    let reason = FaultReason::Distrust(DistrustReason::RollCall);
    assert_eq!(end.verdict(), Some(Verdict::Fault { reason, active: None }));
}

#[test]
fn nothing_enters_fault_from_open() {
    for reason in [DistrustReason::RollCall, DistrustReason::Trap, DistrustReason::Ledger, DistrustReason::Config] {
        let record = after(&Record::open(START), START, idle(), Input::Distrust(reason));
        let record = tick(
            &record,
            START.after(3600 * SECOND),
            Reading { blind: false, admitted: 0, active: 0, roll_call: MISSING },
        );
        assert_eq!(record.state.name(), StateName::Open);
        assert_eq!(record.answer(Path::Balancer).status, 200);
        assert_eq!(record.distrust, Some(Distrust { reason, since: START }));
    }
}

#[test]
fn a_second_drain_restarts_no_deadline() {
    let record = draining(&[("deadline_ms", "5000")]);
    let again = after(&record, START.after(SECOND), busy(2), Input::Drain(plan(&[("deadline_ms", "60000")])));
    assert_eq!(again.deadline(START.after(3 * SECOND)), Some(START.after(5 * SECOND)));
    assert_eq!(again.drains, 1);
}

#[test]
fn reopening_after_envoys_drain_warns_that_it_cannot_be_undone() {
    let record = after(&draining(&[]), START, busy(1), Input::EnvoyDrainStarted);
    let reopened = step(&record, START, busy(1), &Input::Reopen);
    assert_eq!(reopened.reply, Reply::Accepted { warnings: [Warning::EnvoyKeepsDraining].into() });
    let closing = after(&record, START, busy(1), Input::CloseLb);
    let reopened = step(&closing, START, busy(1), &Input::Reopen);
    let both = [Warning::BalancerMayHaveNoticed, Warning::EnvoyKeepsDraining];
    assert_eq!(reopened.reply, Reply::Accepted { warnings: both.into() });
    assert_eq!(reopened.record.envoy_drain, Some(START), "it is still draining");
}

#[test]
fn the_hold_is_over_at_its_longest_when_nobody_probes() {
    let record = closing(&[("hold_max_ms", "10000")]);
    at_the_bound(&record, START.after(10 * SECOND), busy(9), StateName::Closing, StateName::Closed);
}

#[test]
fn a_fault_may_be_left_after_its_hold_and_rings_once() {
    let entered = START.after(Duration::from_millis(1));
    let fault = one_of_each_state().pop().unwrap();
    let due = entered.after(10 * SECOND);
    assert!(!tick(&fault, Instant::from_micros(due.as_micros() - 1), busy(2)).may_exit());
    let done = step(&fault, due, busy(2), &Input::Tick);
    assert!(done.record.may_exit());
    assert_eq!(done.record.state.name(), StateName::Fault);
    assert_eq!(done.effects, [Effect::Ring]);
    assert_eq!(step(&done.record, due.after(SECOND), busy(2), &Input::Tick).effects, []);
}

#[test]
fn traffic_after_the_flip_never_turns_503_back() {
    let mut record = closing(&[("hold_max_ms", "600000")]);
    for second in 0..60 {
        record = tick(&record, START.after(second * SECOND), busy(u64::from(second % 3)));
        assert_eq!(record.answer(Path::Balancer).status, 503);
    }
}

#[test]
fn the_events_of_a_clean_drain_are_3_4_1_2_at_their_times() {
    let record = after(&Record::open(START), START, busy(1), Input::EnvoyDrainStarted);
    let record = after(&record, START, busy(1), Input::Drain(plan(&[("settle_ms", "500")])));
    let zero = START.after(4 * SECOND);
    let record = tick(&record, zero, idle());
    let flip = zero.after(SECOND);
    let record = tick(&record, flip, idle());
    let end = flip.after(10 * SECOND);
    let record = tick(&record, end, idle());
    let events: Vec<(EventName, Instant)> = record.events.iter().map(|event| (event.event, event.at)).collect();
    assert_eq!(
        events,
        [
            (EventName::EnvoyDrainStart, START),
            (EventName::Drain, START),
            (EventName::ActiveZero, zero),
            (EventName::HealthFail, flip),
            (EventName::ReadinessFail, end),
        ]
    );
}

#[test]
fn events_are_bounded_and_the_newest_stay() {
    let mut record = Record::open(START);
    for _ in 0..Record::EVENTS_MAX {
        record = after(&record, START, busy(1), Input::Drain(plan(&[])));
        record = after(&record, START, busy(1), Input::Reopen);
    }
    assert_eq!(record.events.len(), Record::EVENTS_MAX);
    assert_eq!(record.events.last().unwrap().event, EventName::Reopen);
}
