//! A balancer that is not heard in mid-drain: the whole process is frozen, or its health listener is out.

use std::time::Duration;

use softclose_fsm::{DistrustReason, FaultReason, StateName, Verdict};

use crate::drive::{SOON, each_seed};
use crate::host::{MAIN, Process, Setup, StreamId};

/// How often the balancer asks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The balancer checks so many times, each time another worker.
fn checks(process: &Process, times: usize) {
    for turn in 0..times {
        process.advance(INTERVAL);
        assert_eq!(process.probe(1 + turn % process.workers().count()).0, 200);
    }
}

/// A drain with two requests in flight on different workers and a balancer that has just checked.
fn in_mid_drain(process: &Process) -> [StreamId; 2] {
    checks(process, 6);
    let held = [process.traffic(1), process.traffic(2)];
    process.order(1, "/drain?settle_ms=0&deadline_ms=60000");
    checks(process, 2);
    let status = process.status(2);
    assert_eq!((status.state, status.active, status.distrust), (StateName::Draining, 2, None));
    held
}

fn freeze(process: &Process, frozen: bool) {
    for thread in std::iter::once(MAIN).chain(process.workers()) {
        process.freeze(thread, frozen);
    }
}

#[test]
fn streams_that_end_when_a_frozen_process_goes_on_are_never_a_clean_end() {
    each_seed(
        20,
        |seed| Setup { seed, ..Setup::of(2) },
        |process| {
            let held = in_mid_drain(process);
            freeze(process, true);
            // From just after the bound to several intervals.
            let frozen = INTERVAL * 7 / 4 + Duration::from_millis(1 + process.random(5_000));
            process.advance(frozen);
            freeze(process, false);
            // In any order: the streams' ends on both workers, what the balancer has sent meanwhile, and due ticks.
            for (worker, stream) in held.into_iter().enumerate() {
                process.script(1 + worker, move |process| process.end(stream));
            }
            process.script(2, |process| assert_eq!(process.probe(2).0, 200));
            process.advance(SOON);
            let status = process.status(1);
            assert_eq!((status.state, status.active), (StateName::Draining, 0), "frozen for {frozen:?}");
            assert_eq!(status.distrust.unwrap().reason, DistrustReason::Unheard, "frozen for {frozen:?}");
            assert_eq!(process.said("distrust").len(), 1);
            checks(process, 50);
            process.advance(Duration::from_secs(15));
            let reason = FaultReason::Distrust(DistrustReason::Unheard);
            assert_eq!(process.status(2).verdict, Some(Verdict::Fault { reason, active: None }));
            assert_eq!(process.metric("softclose_clean_closes"), 0);
            process.assert_no_trap();
        },
    );
}

#[test]
fn a_process_that_stops_for_less_than_half_an_interval_more_than_one_ends_clean() {
    let process = Process::start(Setup::of(2));
    let held = in_mid_drain(&process);
    freeze(&process, true);
    process.advance(INTERVAL * 3 / 2 - Duration::from_millis(1));
    freeze(&process, false);
    held.into_iter().for_each(|stream| process.end(stream));
    // Zero lasts for less than that millisecond.
    process.probe(1);
    process.advance(SOON);
    assert_eq!(process.status(1).verdict, Some(Verdict::Clean));
}

#[test]
fn a_health_listener_that_is_out_while_traffic_goes_on_is_noticed_without_any_input() {
    let process = Process::start(Setup::of(2));
    let held = in_mid_drain(&process);
    process.advance(INTERVAL * 7 / 4 + Duration::from_millis(2));
    assert_eq!(process.said("distrust").len(), 1, "before the next regular look, for the preStop command");
    held.into_iter().for_each(|stream| process.serve(stream));
    process.advance(SOON);
    let status = process.status(1);
    assert_eq!((status.state, status.distrust.unwrap().reason), (StateName::Draining, DistrustReason::Unheard));
    process.order(2, "/observe?active=0");
    process.advance(SOON);
    let verdict = Verdict::SecondOpinion { distrust: DistrustReason::Unheard };
    assert_eq!(process.status(1).verdict, Some(verdict));
}

#[test]
fn a_balancer_that_falls_silent_after_the_flip_spoils_nothing() {
    let process = Process::start(Setup::of(2));
    in_mid_drain(&process).into_iter().for_each(|stream| process.serve(stream));
    process.advance(SOON);
    process.advance(Duration::from_secs(30));
    let status = process.status(2);
    assert_eq!((status.state, status.verdict, status.distrust), (StateName::Closed, Some(Verdict::Clean), None));
}

/// Soft answers from the drain on, for so many checks.
fn soft_checks(process: &Process, times: usize) {
    for turn in 0..times {
        process.advance(INTERVAL);
        assert_eq!(process.probe(1 + turn % process.workers().count()).0, 404);
    }
}

#[test]
fn a_balancer_that_was_told_softly_goes_on_asking_and_is_missed_when_it_does_not() {
    for silent in [false, true] {
        let process = Process::start(Setup::of(2));
        checks(&process, 6);
        let held = process.traffic(1);
        process.order(1, "/drain?preset=haproxy-soft&settle_ms=0&deadline_ms=60000");
        soft_checks(&process, 20);
        assert_eq!((process.status(1).state, process.status(2).distrust), (StateName::Draining, None));
        if silent {
            process.advance(INTERVAL * 7 / 4 + Duration::from_millis(2));
        }
        process.end(held);
        process.advance(SOON);
        let status = process.status(2);
        let expected = if silent { (None, Some(DistrustReason::Unheard)) } else { (Some(Verdict::Clean), None) };
        assert_eq!((status.verdict, status.distrust.map(|distrust| distrust.reason)), expected);
        process.assert_no_trap();
    }
}

#[test]
fn with_health_first_nobody_is_missed_after_the_503() {
    let process = Process::start(Setup::of(2));
    checks(&process, 6);
    let held = process.traffic(1);
    process.order(1, "/drain?preset=nlb&settle_ms=0&hold_min_ms=0&hold_max_ms=4000&deadline_ms=60000");
    process.advance(INTERVAL * 20);
    assert_eq!((process.status(1).state, process.status(2).distrust), (StateName::Closing, None));
    process.end(held);
    process.advance(SOON);
    assert_eq!(process.status(2).verdict, Some(Verdict::Clean));
}
