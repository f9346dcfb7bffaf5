//! What came after the flip, and what may have been cut of it.

use alloc::borrow::ToOwned;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{SECOND, START, after, busy, closing, draining, idle, plan, step, tick};
use crate::effect::Effect;
use crate::input::{Input, Probe};
use crate::record::{Path, Reading, Record};
use crate::state::{StateName, Verdict};

fn admitted(active: u64, admitted: u64) -> Reading {
    Reading { admitted, ..busy(active) }
}

fn probed(record: &Record, at: u32, reading: Reading, prober: Option<&str>) -> Record {
    let probe = Probe { path: Path::Balancer, prober: prober.map(ToOwned::to_owned) };
    after(record, START.after(at * SECOND), reading, Input::Probe(probe))
}

#[test]
fn late_is_what_was_let_in_since_the_reading_that_flipped() {
    let record = after(&Record::open(START), START, admitted(1, 40), Input::Drain(plan(&[("settle_ms", "0")])));
    assert_eq!(record.late(&admitted(1, 41)), None, "nothing is late before the flip");
    let record = tick(&record, START.after(SECOND), admitted(0, 43));
    let flipped = tick(&record, START.after(2 * SECOND), admitted(0, 43));
    assert_eq!(flipped.verdict(), Some(Verdict::Clean));
    assert_eq!((flipped.late(&admitted(0, 43)), flipped.late(&admitted(2, 45))), (Some(0), Some(2)));
    let closed = step(&flipped, START.after(12 * SECOND), admitted(1, 47), &Input::Tick);
    assert!(matches!(&closed.effects[0], Effect::Log(said) if (said.late, said.cut_at_most) == (Some(4), Some(1))));
    assert_eq!(closed.record.late(&admitted(1, 49)), Some(6));
}

#[test]
fn nothing_can_be_cut_before_the_falls_hard_answer_whoever_was_served() {
    let record = closing(&[("fall", "3")]);
    for (at, prober) in [(1, Some("a")), (2, Some("b"))] {
        let record = probed(&record, at, busy(9), prober);
        assert_eq!(record.cut_at_most(), None);
    }
    let two = probed(&probed(&record, 1, busy(9), Some("a")), 2, busy(8), None);
    assert_eq!((two.aftermath.unwrap().hard, two.cut_at_most()), (2, None));
    let three = probed(&two, 3, busy(5), Some("b"));
    assert_eq!(three.cut_at_most(), Some(5));
    assert_eq!(probed(&three, 4, busy(4), Some("b")).cut_at_most(), Some(5), "the most, not the newest");
    assert_eq!(tick(&three, START.after(4 * SECOND), busy(6)).cut_at_most(), Some(6));
}

#[test]
fn where_connections_are_refused_the_balancer_may_notice_from_the_flip_on() {
    let record = closing(&[("fall", "3"), ("sockets_closing", "close")]);
    assert_eq!(record.cut_at_most(), Some(2), "in flight at the flip");
    assert_eq!(tick(&record, START.after(SECOND), busy(3)).cut_at_most(), Some(3));
    assert_eq!(tick(&record, START.after(SECOND), idle()).cut_at_most(), Some(2));
}

#[test]
fn neither_the_readiness_path_nor_a_200_tells_the_balancer() {
    let readiness = Probe { path: Path::Readiness, prober: Some("a".to_owned()) };
    let record = after(&closing(&[("fall", "1")]), START, busy(1), Input::Probe(readiness));
    assert_eq!(record.cut_at_most(), None);
    let record = probed(&draining(&[("fall", "1")]), 1, busy(1), Some("a"));
    let record = after(&record, START.after(SECOND), busy(1), Input::CloseLb);
    assert_eq!(record.cut_at_most(), None);
}

#[test]
fn whoever_probed_nobody_the_exit_itself_cuts() {
    let record = closing(&[]);
    assert_eq!(tick(&record, START.after(9 * SECOND), busy(7)).cut_at_most(), None);
    let closed = tick(&record, START.after(10 * SECOND), busy(3));
    assert_eq!((closed.state.name(), closed.cut_at_most()), (StateName::Closed, Some(3)));
    let fault = tick(&draining(&[("deadline_ms", "1000")]), START.after(SECOND), busy(7));
    assert_eq!((fault.state.name(), fault.cut_at_most()), (StateName::Fault, None));
    let gone = tick(&fault, START.after(11 * SECOND), busy(2));
    assert_eq!((gone.may_exit(), gone.cut_at_most()), (true, Some(2)));
}

#[test]
fn a_new_drain_begins_a_new_account() {
    let record = probed(&closing(&[("fall", "1")]), 1, admitted(4, 10), Some("a"));
    assert_eq!(record.cut_at_most(), Some(4));
    let open = after(&record, START.after(2 * SECOND), busy(1), Input::Reopen);
    assert_eq!((open.aftermath, open.cut_at_most()), (None, None));
    let again = after(&open, START.after(3 * SECOND), admitted(1, 30), Input::Drain(plan(&[])));
    assert_eq!(again.aftermath, None);
    let again = after(&again, START.after(3 * SECOND), admitted(0, 30), Input::CloseLb);
    assert_eq!((again.late(&admitted(0, 31)), again.cut_at_most()), (Some(1), None));
}

#[test]
fn a_record_without_an_account_begins_none_and_claims_nothing() {
    let record = Record { aftermath: None, ..closing(&[("fall", "1")]) };
    let record = probed(&record, 1, admitted(4, 10), Some("a"));
    let record = tick(&record, START.after(10 * SECOND), idle());
    assert_eq!(record.state.name(), StateName::Closed);
    assert_eq!((record.late(&admitted(0, 99)), record.cut_at_most()), (None, None));
}
