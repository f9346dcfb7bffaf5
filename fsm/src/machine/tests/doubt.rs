//! What becomes of a drain whose count is not believed, with and without a second opinion.

use super::*;

#[test]
fn a_distrusted_drain_believes_a_second_opinion_and_says_so() {
    let record = after(&draining(&[("settle_ms", "1000")]), START, idle(), Input::Distrust(DistrustReason::Trap));
    assert_eq!(
        tick(&record, START.after(9 * SECOND), idle()).state.name(),
        StateName::Draining,
        "own zero is not believed"
    );
    let record = after(&record, START, busy(4), Input::Observe(0));
    at_the_bound(&record, START.after(SECOND), busy(4), StateName::Draining, StateName::Closing);
    let verdict = tick(&record, START.after(SECOND), busy(4)).verdict();
    assert_eq!(verdict, Some(Verdict::SecondOpinion { distrust: DistrustReason::Trap }));
}

#[test]
fn a_second_opinion_of_work_ends_the_settling() {
    let record = after(&draining(&[("settle_ms", "1000")]), START, idle(), Input::Distrust(DistrustReason::Trap));
    let record = after(&record, START, idle(), Input::Observe(0));
    let record = after(&record, START.after(SECOND / 2), idle(), Input::Observe(3));
    assert_eq!(tick(&record, START.after(2 * SECOND), idle()).state.name(), StateName::Draining);
}

#[test]
fn an_old_opinion_is_no_opinion() {
    let fields = [("settle_ms", "60000"), ("deadline_ms", "30000")];
    let record = after(&draining(&fields), START, idle(), Input::Distrust(DistrustReason::Ledger));
    let deadline = START.after(30 * SECOND);
    for (age, expected) in [
        (OPINION_LASTS - MICROSECOND, StateName::Closing),
        (OPINION_LASTS, StateName::Closing),
        (OPINION_LASTS + MICROSECOND, StateName::Fault),
    ] {
        let brought = Instant::from_micros(deadline.as_micros() - age.as_micros() as u64);
        let record = after(&record, brought, idle(), Input::Observe(0));
        assert_eq!(tick(&record, deadline, idle()).state.name(), expected, "{age:?} old");
    }
}

#[test]
fn an_opinion_brought_without_distrust_decides_nothing() {
    let record = after(&draining(&[("settle_ms", "0")]), START, busy(1), Input::Observe(0));
    assert_eq!(tick(&record, START.after(SECOND), busy(1)).state.name(), StateName::Draining);
}

#[test]
fn a_lasting_reason_replaces_a_missing_answer_and_not_the_other_way_round() {
    let record = after(&Record::open(START), START, idle(), Input::Distrust(DistrustReason::RollCall));
    let record = after(&record, START, idle(), Input::Distrust(DistrustReason::Trap));
    assert_eq!(record.distrust.unwrap().reason, DistrustReason::Trap);
    let record = after(&record, START, idle(), Input::Distrust(DistrustReason::RollCall));
    assert_eq!(record.distrust.unwrap().reason, DistrustReason::Trap);
}

#[test]
fn a_new_drain_takes_a_new_roll_call_but_keeps_a_lasting_distrust() {
    for (reason, kept) in [
        (DistrustReason::RollCall, false),
        (DistrustReason::Cut, false),
        (DistrustReason::Unheard, false),
        (DistrustReason::Aborted, false),
        (DistrustReason::Trap, true),
    ] {
        let record = after(&Record::open(START), START, idle(), Input::Distrust(reason));
        let record = after(&record, START, idle(), Input::Drain(plan(&[])));
        assert_eq!(record.distrust.is_some(), kept, "{reason:?}");
        assert_eq!(record.drains, 1);
    }
}
