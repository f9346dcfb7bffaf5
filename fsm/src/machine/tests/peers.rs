//! Requests that whoever asked has ended: clients that gave up, or a balancer that cut. And whom the end was told.

use alloc::borrow::ToOwned;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{MICROSECOND, SECOND, START, after, busy, idle, plan, step, tick};
use crate::input::{Input, Probe, Reply};
use crate::probers::Audience;
use crate::record::{DistrustReason, Path, Record};
use crate::state::{FaultReason, StateName, Verdict};
use crate::time::Instant;

fn asks(record: &Record, now: Instant, active: u64) -> Record {
    after(record, now, busy(active), Input::Probe(probe()))
}

fn probe() -> Probe {
    Probe { path: Path::Balancer, prober: Some("10.0.0.1".to_owned()) }
}

/// OPEN, with a balancer that has asked every second, the last time at START.
fn probed() -> Record {
    let turns = (0..10).map(|turn| Instant::from_micros(START.as_micros() - (9 - turn) * 1_000_000));
    turns.fold(Record::open(Instant::from_micros(0)), |record, now| asks(&record, now, 1))
}

/// A drain that begins at START.
fn draining(fields: &[(&str, &str)]) -> Record {
    after(&probed(), START, busy(2), Input::Drain(plan(fields)))
}

fn reason(record: &Record) -> Option<DistrustReason> {
    record.distrust.map(|distrust| distrust.reason)
}

#[test]
fn all_that_is_in_flight_ended_at_once_is_a_cut_whatever_the_preset() {
    for preset in ["haproxy", "haproxy-soft", "haproxy-retry"] {
        let record = draining(&[("preset", preset)]);
        let record = after(&record, START.after(SECOND / 2), busy(2), Input::PeerEnded);
        assert_eq!(reason(&record), None, "{preset}: one of two may be a client");
        let record = after(&record, START.after(SECOND / 2), busy(1), Input::PeerEnded);
        assert_eq!(reason(&record), Some(DistrustReason::Aborted), "{preset}");
    }
}

#[test]
fn two_of_many_are_clients_that_left() {
    let mut record = draining(&[]);
    for active in [20, 19] {
        record = after(&record, START.after(SECOND / 2), busy(active), Input::PeerEnded);
    }
    assert_eq!((reason(&record), record.peer_ends.all, record.peer_ends.perhaps_cut), (None, 2, 0));
}

#[test]
fn a_zero_that_a_peer_made_is_believed_once_the_balancer_has_asked_again_and_its_answer_is_503_already() {
    let record = draining(&[("settle_ms", "0")]);
    let ended = START.after(SECOND / 2);
    let record = tick(&after(&record, ended, busy(1), Input::PeerEnded), ended.after(MICROSECOND), idle());
    let waiting = tick(&record, START.after(SECOND), idle());
    assert_eq!(waiting.state.name(), StateName::Draining, "nobody has asked since");
    let asked = step(&waiting, START.after(SECOND), idle(), &Input::Probe(probe()));
    let Reply::Answer(answer) = &asked.reply else { panic!("{:?}", asked.reply) };
    assert_eq!((answer.status, asked.record.verdict()), (503, Some(Verdict::Clean)));
    assert_eq!(asked.record.probers.iter().next().map(|prober| prober.hard), Some(1), "and it is counted as told");
}

#[test]
fn where_the_balancer_asks_no_more_it_is_not_believed() {
    let record = draining(&[("settle_ms", "0"), ("deadline_ms", "60000")]);
    let ended = START.after(SECOND / 2);
    let record = tick(&after(&record, ended, busy(1), Input::PeerEnded), ended.after(MICROSECOND), idle());
    let record = tick(&record, START.after(Duration::from_millis(1_751)), idle());
    assert_eq!((record.state.name(), reason(&record)), (StateName::Draining, Some(DistrustReason::Unheard)));
}

#[test]
fn at_the_deadline_a_zero_that_is_not_confirmed_is_no_clean_end() {
    let record = draining(&[("settle_ms", "0"), ("deadline_ms", "1000")]);
    let ended = START.after(SECOND / 2);
    let record = tick(&after(&record, ended, busy(1), Input::PeerEnded), ended.after(MICROSECOND), idle());
    let fault = Verdict::Fault { reason: FaultReason::Distrust(DistrustReason::Aborted), active: None };
    assert_eq!(tick(&record, START.after(SECOND), idle()).verdict(), Some(fault));
}

#[test]
fn before_a_drain_and_after_the_flip_nobody_keeps_account_of_them() {
    for record in [probed(), after(&draining(&[]), START, busy(2), Input::CloseLb)] {
        let after = after(&record, START, busy(1), Input::PeerEnded);
        assert_eq!(after, record);
    }
}

#[test]
fn who_was_told_is_noted_when_the_pod_is_free_to_leave() {
    let closing = after(&draining(&[]), START, idle(), Input::CloseLb);
    assert_eq!(closing.audience, None);
    let told = (1..=3).fold(closing.clone(), |record, second| asks(&record, START.after(second * SECOND), 0));
    let closed = tick(&told, START.after(3 * SECOND), idle());
    assert_eq!(closed.audience, Some(Audience { told: 1, ..Audience::default() }));
    let once = asks(&closing, START.after(SECOND), 0);
    let early = after(&once, START.after(2 * SECOND), idle(), Input::Close);
    assert_eq!(early.audience, Some(Audience { untold: 1, ..Audience::default() }), "served one of two");
    let silent = tick(&closing, START.after(10 * SECOND), idle());
    assert_eq!(silent.audience, Some(Audience { gone: 1, ..Audience::default() }));
    let nobody = after(&Record::open(START), START, idle(), Input::Drain(plan(&[("settle_ms", "0")])));
    let nobody =
        [SECOND, 2 * SECOND, 20 * SECOND].iter().fold(nobody, |record, span| tick(&record, START.after(*span), idle()));
    assert_eq!(nobody.audience, Some(Audience::default()));
    assert!(nobody.audience.is_some_and(|audience| audience.is_empty()));
}

#[test]
fn where_by_plan_nobody_asks_nobody_is_waited_for() {
    let record = after(&Record::open(START), START, idle(), Input::Drain(plan(&[("probers", "none")])));
    let closing = after(&record, START, idle(), Input::CloseLb);
    assert_eq!(tick(&closing, START, idle()).state.name(), StateName::Closed);
    let known = after(&probed(), START, idle(), Input::Drain(plan(&[("probers", "none")])));
    let closing = after(&known, START, idle(), Input::CloseLb);
    assert_eq!(tick(&closing, START.after(SECOND), idle()).state.name(), StateName::Closing, "who asks is waited for");
}
