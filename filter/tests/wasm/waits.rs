//! `GET /wait`: paused streams that a bell resumes.

use std::time::Duration;

use softclose_fsm::{FaultReason, StateName, Verdict};

use crate::drive::{SOON, document};
use crate::host::{Process, Setup, StreamId};

/// The waits that one VM holds.
const MOST: usize = 1_000;

fn waits(process: &Process, query: &str) -> Vec<StreamId> {
    process.workers().map(|worker| process.wait(worker, query)).collect()
}

/// Every one of them was answered so.
fn assert_answered(process: &Process, waits: &[StreamId], status: u32, state: StateName) {
    process.advance(SOON);
    for wait in waits {
        let reply = process.reply(*wait).unwrap_or_else(|| panic!("nobody released a wait: {state}"));
        assert_eq!((reply.status, document(&reply).state), (status, state));
        assert!(process.stream(*wait).ended);
    }
}

#[test]
fn a_wait_is_released_by_every_transition_whichever_worker_made_it() {
    let process = Process::start(Setup::of(3));
    let id = process.traffic(2);
    for worker in process.workers() {
        let transitions = [("/close-lb", 200, StateName::Closing), ("/reopen", 409, StateName::Open)];
        for (command, status, state) in transitions {
            process.order(worker, "/drain");
            let held = waits(&process, "for=closing");
            process.advance(Duration::from_millis(100));
            assert!(held.iter().all(|wait| process.reply(*wait).is_none()), "answered before there was a reason");
            process.order(worker, command);
            assert_answered(&process, &held, status, state);
            process.command(worker, "/reopen");
        }
    }
    process.order(1, "/drain");
    let closing = waits(&process, "for=closing");
    let exit = waits(&process, "for=exit");
    process.serve(id);
    assert_answered(&process, &closing, 200, StateName::Closing);
    // For those who wait for the end the flip is news, and not yet the end.
    assert_answered(&process, &exit, 202, StateName::Closing);
    let exit = waits(&process, "for=exit");
    process.order(3, "/close");
    assert_answered(&process, &exit, 200, StateName::Closed);
    process.assert_no_trap();
}

#[test]
fn a_wait_is_released_when_the_last_request_ends_on_another_worker_and_when_the_deadline_comes() {
    let process = Process::start(Setup::of(3));
    let id = process.traffic(3);
    process.order(1, "/drain?settle_ms=0&deadline_ms=3000");
    let held = waits(&process, "for=closing");
    process.advance(Duration::from_millis(2_990));
    assert!(held.iter().all(|wait| process.reply(*wait).is_none()));
    process.advance(Duration::from_millis(10));
    assert_answered(&process, &held, 200, StateName::Fault);
    let verdict = Verdict::Fault { reason: FaultReason::Deadline, active: Some(1) };
    assert_eq!(process.status(2).verdict, Some(verdict));
    let exit = waits(&process, "for=exit");
    process.advance(Duration::from_secs(1));
    assert_answered(&process, &exit, 200, StateName::Fault);
    process.serve(id);
}

#[test]
fn a_wait_ends_after_its_timeout() {
    let process = Process::start(Setup::of(1));
    process.traffic(1);
    process.order(1, "/drain");
    let short = process.wait(1, "timeout_ms=500");
    let long = process.wait(1, "for=exit");
    process.advance(Duration::from_millis(499));
    assert_eq!(process.reply(short), None);
    process.advance(Duration::from_millis(2));
    let reply = process.reply(short).unwrap();
    assert_eq!((reply.status, document(&reply).state), (504, StateName::Draining));
    assert!(document(&reply).error.unwrap().contains("500 ms"));
    process.advance(Duration::from_millis(14_500));
    assert_eq!(process.reply(long).unwrap().status, 504);
}

#[test]
fn nothing_falls_between_two_waits() {
    let process = Process::start(Setup::of(2));
    process.traffic(1);
    let known = process.order(1, "/drain").changes;
    process.order(1, "/close-lb");
    process.order(1, "/reopen");
    process.order(1, "/drain");
    // Back in DRAINING, but not as its caller knows it.
    let reply = process.reply(process.wait(2, &format!("for=closing&after={known}"))).unwrap();
    assert_eq!(reply.status, 202);
    let held = process.wait(2, &format!("for=closing&after={}", document(&reply).changes));
    assert_eq!(process.reply(held), None);
}

#[test]
fn waits_are_bounded_and_forgotten_when_their_streams_end() {
    let process = Process::start(Setup::of(1));
    process.traffic(1);
    process.order(1, "/drain");
    let mut held: Vec<StreamId> = (0..MOST).map(|_| process.wait(1, "for=exit")).collect();
    assert!(held.iter().all(|wait| process.reply(*wait).is_none()));
    let reply = process.reply(process.wait(1, "for=exit")).unwrap();
    assert_eq!(reply.status, 503);
    assert!(document(&reply).error.unwrap().contains("1000"));
    // Commands and probes are answered all the same.
    assert_eq!(process.probe(1), (200, StateName::Draining));
    // A client that hangs up makes room.
    process.end(held.pop().unwrap());
    held.push(process.wait(1, "for=exit"));
    assert_eq!(process.reply(*held.last().unwrap()), None);
    process.order(1, "/reopen");
    // So many are answered over several turns, lest they use up the VM's stack.
    process.advance(Duration::from_millis(50));
    assert_answered(&process, &held, 409, StateName::Open);
    process.order(1, "/drain");
    assert_eq!(process.reply(process.wait(1, "for=exit")), None, "there is room again");
    process.assert_no_trap();
}
