use std::time::Duration;

use softclose_fsm::control::Until;
use softclose_fsm::{DistrustReason, Input, Instant, Plan, Preset, Reading, Record, RollCall, step};

use super::{Released, WAITERS_MAX, Waiters};

const START: Instant = Instant::from_micros(1_000_000);
const BUSY: Reading =
    Reading { blind: false, admitted: 0, active: 1, roll_call: RollCall { answered: 1, expected: 1, newcomers: 0 } };
const TIMEOUT: Duration = Duration::from_millis(100);

fn after(record: &Record, input: Input) -> Record {
    step(record, START, BUSY, &input).record
}

fn draining() -> Record {
    after(&Record::open(START), Input::Drain(Plan::preset(Preset::Haproxy)))
}

fn waiting(until: Until, record: &Record) -> Waiters {
    let mut waiters = Waiters::default();
    assert!(waiters.add(7, until, TIMEOUT, record.changes, START));
    waiters
}

fn released(waiters: &mut Waiters, record: &Record, now: Instant) -> Option<u16> {
    let mut released = waiters.release(record, now);
    assert!(released.len() <= 1);
    released.pop().map(|released| released.status)
}

#[test]
fn nothing_happens_and_nobody_is_released() {
    let record = draining();
    assert_eq!(released(&mut waiting(Until::Closing, &record), &record, START), None);
}

#[test]
fn every_transition_releases() {
    let record = draining();
    let closing = after(&record, Input::CloseLb);
    let closed = after(&closing, Input::Close);
    let reopened = after(&record, Input::Reopen);
    let distrusted = after(&record, Input::Distrust(DistrustReason::Trap));
    for (until, then, status) in [
        (Until::Closing, &closing, 200),
        (Until::Closing, &closed, 200),
        (Until::Closing, &reopened, 409),
        (Until::Closing, &distrusted, 202),
        (Until::Exit, &closing, 202),
        (Until::Exit, &closed, 200),
        (Until::Exit, &reopened, 409),
    ] {
        let mut waiters = waiting(until, &record);
        assert_eq!(released(&mut waiters, then, START), Some(status), "{until:?} {:?}", then.state);
        assert_eq!(waiters.next_due(Some(then), START), None, "released once");
    }
}

#[test]
fn a_reopen_and_a_new_drain_in_between_are_not_slept_through() {
    let record = draining();
    let mut waiters = waiting(Until::Closing, &record);
    let later = START.after(Duration::from_millis(5));
    let reopened = step(&record, later, BUSY, &Input::Reopen).record;
    let again = step(&reopened, later, BUSY, &Input::Drain(Plan::preset(Preset::Haproxy))).record;
    assert_eq!(released(&mut waiters, &again, later), Some(202));
}

#[test]
fn a_wait_is_over_at_its_timeout_and_says_so() {
    let record = draining();
    let mut waiters = waiting(Until::Exit, &record);
    let end = START.after(TIMEOUT);
    assert_eq!(waiters.next_due(Some(&record), START), Some(end));
    assert_eq!(released(&mut waiters, &record, Instant::from_micros(end.as_micros() - 1)), None);
    let error = Some("not exit within 100 ms".to_owned());
    assert_eq!(waiters.release(&record, end), [Released { context: 7, status: 504, error }]);
}

#[test]
fn one_whose_stream_ended_is_forgotten() {
    let record = draining();
    let mut waiters = waiting(Until::Closing, &record);
    waiters.remove(7);
    assert_eq!(released(&mut waiters, &after(&record, Input::CloseLb), START), None);
}

#[test]
fn waits_are_bounded() {
    let record = draining();
    let mut waiters = Waiters::default();
    for context in 0..WAITERS_MAX {
        assert!(waiters.add(context as u32, Until::Closing, TIMEOUT, record.changes, START));
    }
    assert!(!waiters.add(0, Until::Closing, TIMEOUT, record.changes, START));
}

#[test]
fn many_are_released_in_several_turns_and_the_next_is_due_at_once() {
    let record = draining();
    let mut waiters = Waiters::default();
    for context in 0..150 {
        assert!(waiters.add(context, Until::Closing, TIMEOUT, record.changes, START));
    }
    let closing = after(&record, Input::CloseLb);
    for (turn, due) in [(64, Some(START)), (64, Some(START)), (22, None)] {
        assert_eq!(waiters.release(&closing, START).len(), turn);
        assert_eq!(waiters.next_due(Some(&closing), START), due);
    }
}
