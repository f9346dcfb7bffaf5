//! Workers that race for the record, the registry and the ledger.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use softclose_fsm::{Record, StateName, Verdict};

use crate::drive::{GAUGES, PAID, SOON, each_seed, watch_for_clean_flips};
use crate::host::{Listener, Process, Request, Role, Setup, StreamId};

const SEEDS: u64 = 120;

fn setup(seed: u64) -> Setup {
    let order = if seed.is_multiple_of(3) { vec![Role::Gate, Role::Count] } else { Role::BOTH.to_vec() };
    Setup { null_gauge: GAUGES[seed as usize % GAUGES.len()], order, ..Setup::of(1 + seed as usize % 4) }
}

/// Requests that a worker has in flight.
type Held = Rc<RefCell<VecDeque<StreamId>>>;

/// Gives `worker` something to do, as the seed decides.
fn something(process: &Process, worker: usize, held: &Held, commands: bool) {
    let held = Rc::clone(held);
    let kind = process.random(if commands { 14 } else { 10 });
    process.script(worker, move |process| match kind {
        0..=3 => held.borrow_mut().push_back(process.traffic(worker)),
        4..=6 => {
            let id = held.borrow_mut().pop_front();
            if let Some(id) = id {
                process.serve(id);
            }
        }
        7 => {
            let id = held.borrow_mut().pop_back();
            if let Some(id) = id {
                let again = process.redirect(id);
                process.end(again);
            }
        }
        8 => drop(process.probe(worker)),
        9 => drop(process.status(worker)),
        10 => drop(process.command(worker, "/drain?settle_ms=0&hold_max_ms=100")),
        11 => drop(process.command(worker, "/reopen")),
        12 => drop(process.command(worker, "/close-lb")),
        _ => drop(process.wait(worker, "for=closing&timeout_ms=1000")),
    });
}

/// Every transition was made once: those that were said are those that were counted, and lead from one to the next.
fn assert_transitions_once(process: &Process) {
    let record: Record = serde_json::from_slice(&process.shared("softclose.1.record").unwrap()).unwrap();
    let mut balance = BTreeMap::<String, i64>::from([("OPEN".to_owned(), 1)]);
    let mut drains = 0;
    for transition in process.said("transition") {
        *balance.entry(transition["from"].as_str().unwrap().to_owned()).or_default() -= 1;
        *balance.entry(transition["to"].as_str().unwrap().to_owned()).or_default() += 1;
        drains += u64::from(transition["from"] == "OPEN");
    }
    balance.retain(|_, balance| *balance != 0);
    assert_eq!(balance, BTreeMap::from([(record.state.name().as_str().to_owned(), 1)]), "lost or doubled transitions");
    assert_eq!((process.metric("softclose_drains"), record.drains), (drains, drains));
}

fn assert_at_rest(process: &Process) {
    assert_eq!(process.in_flight(), 0);
    assert_eq!(process.active(), 0, "the gauge");
    let shared = process.shared("softclose.1.ledger").map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
    assert_eq!(shared, 0, "the shared count");
    process.assert_no_trap();
}

#[test]
fn r63_under_races_every_transition_is_made_once_and_the_count_ends_at_zero() {
    let raced = std::cell::Cell::new(0);
    each_seed(SEEDS, setup, |process| {
        process.race(15);
        process.advance(SOON);
        watch_for_clean_flips(process);
        let held: Vec<Held> = process.workers().map(|_| Held::default()).collect();
        for _ in 0..10 {
            for worker in process.workers() {
                for _ in 0..process.random(6) {
                    something(process, worker, &held[worker - 1], true);
                }
            }
            process.advance(Duration::from_millis(process.random(4)));
        }
        for (worker, held) in process.workers().zip(&held) {
            let held = held.take();
            process.script(worker, move |process| held.into_iter().for_each(|id| process.serve(id)));
        }
        process.advance(PAID);
        assert_at_rest(process);
        assert_transitions_once(process);
        raced.set(raced.get() + process.raced());
    });
    assert!(raced.get() > SEEDS || std::env::var("SEED").is_ok(), "a run in which nothing raced proves nothing");
}

#[test]
fn r63_a_drain_under_racing_traffic_ends_clean_on_either_ledger() {
    for null_gauge in GAUGES {
        each_seed(
            SEEDS / 2,
            |seed| Setup { null_gauge, ..setup(seed) },
            |process| {
                process.race(15);
                process.advance(SOON);
                watch_for_clean_flips(process);
                let held: Vec<Held> = process.workers().map(|_| Held::default()).collect();
                for round in 0..8 {
                    for worker in process.workers() {
                        for _ in 0..process.random(5) {
                            something(process, worker, &held[worker - 1], false);
                        }
                    }
                    if round == 3 {
                        let by = 1 + process.random(process.workers().count() as u64) as usize;
                        process.script(by, move |process| drop(process.order(by, "/drain?settle_ms=20")));
                    }
                    process.advance(Duration::from_millis(process.random(30)));
                }
                for (worker, held) in process.workers().zip(&held) {
                    let held = held.take();
                    process.script(worker, move |process| held.into_iter().for_each(|id| process.serve(id)));
                }
                process.advance(Duration::from_secs(3));
                let status = process.status(1);
                assert_eq!((status.state, status.verdict), (StateName::Closed, Some(Verdict::Clean)));
                assert_at_rest(process);
                assert_transitions_once(process);
            },
        );
    }
}

#[test]
fn r63_a_command_that_loses_the_race_again_and_again_is_carried_out_once() {
    for losses in [1, 2, 10, 100] {
        let process = Process::start(Setup::of(2));
        process.traffic(1);
        let left = Rc::new(RefCell::new(losses));
        let shown = Rc::clone(&left);
        process.intrude(move |process, intruded| {
            // Worker 2 asks as a balancer, which writes the record, between worker 1's reading and its writing.
            if intruded.thread == 1 && intruded.call == "proxy_set_shared_data" && *left.borrow() > 0 {
                *left.borrow_mut() -= 1;
                process.advance(Duration::from_micros(10));
                process.probe(2);
            }
        });
        let status = process.order(1, "/drain");
        assert_eq!((*shown.borrow(), status.state, status.drains), (0, StateName::Draining, 1));
        assert_eq!(process.said("transition").len(), 1);
        assert_eq!(process.metric("softclose_drains"), 1);
    }
}

#[test]
fn r63_two_drains_at_the_same_moment_are_one() {
    let process = Process::start(Setup::of(2));
    process.traffic(1);
    process.intrude(|process, intruded| {
        if intruded.thread == 1 && intruded.call == "proxy_set_shared_data" {
            assert_eq!(process.command(2, "/drain?deadline_ms=7000").status, 200);
        }
    });
    let status = process.order(1, "/drain?deadline_ms=9000");
    process.leave_alone();
    assert_eq!((status.drains, status.plan.deadline), (1, Some(Duration::from_secs(7))));
    assert_eq!(process.said("transition").len(), 1);
}

#[test]
fn a_command_that_can_never_be_written_says_so_and_does_nothing() {
    let process = Process::start(Setup::of(2));
    process.intrude(|process, intruded| {
        if intruded.thread == 1 && intruded.call == "proxy_set_shared_data" {
            process.advance(Duration::from_micros(10));
            process.probe(2);
        }
    });
    let reply = process.command(1, "/drain");
    process.leave_alone();
    assert_eq!(reply.status, 503);
    assert_eq!(process.agreed(), StateName::Open);
    assert!(process.said("transition").is_empty());
}

#[test]
fn time_that_passes_inside_a_callback_makes_no_busy_gateway_idle() {
    each_seed(SEEDS / 2, setup, |process| {
        process.advance(SOON);
        watch_for_clean_flips(process);
        process.traffic(1);
        let workers = process.workers().count() as u64;
        let ids: Vec<StreamId> = (0..4).map(|_| process.traffic(1 + process.random(workers) as usize)).collect();
        process.order(1, "/drain?settle_ms=0&deadline_ms=20000");
        // The kernel takes a worker off its processor in the middle of a callback, for longer than any settling.
        process.intrude(|process, _| {
            if process.random(8) == 0 {
                process.advance(Duration::from_micros(700));
            }
        });
        for id in ids {
            process.serve(id);
            let worker = 1 + process.random(workers) as usize;
            let id = process.request(worker, Listener::Traffic, Request::new("GET", "/"));
            process.advance(SOON);
            process.serve(id);
            assert_ne!(process.status(1).verdict, Some(Verdict::Clean));
        }
        process.leave_alone();
    });
}

#[test]
fn r63_wherever_in_a_drain_a_request_comes_in_it_is_in_flight_under_no_clean_flip() {
    for null_gauge in GAUGES {
        let mut nth = 0;
        loop {
            let process = Process::start(Setup { null_gauge, ..Setup::of(2) });
            watch_for_clean_flips(&process);
            let last = process.traffic(1);
            process.order(1, "/drain?settle_ms=0");
            process.advance(SOON);
            let held = Rc::new(RefCell::new(None));
            let arrived = Rc::clone(&held);
            let mut left: u32 = nth;
            // Before the `nth` hostcall that anybody else makes from here on, worker 2 is given a request.
            process.intrude(move |process, intruded| {
                if intruded.thread == 2 || arrived.borrow().is_some() {
                    return;
                }
                match left.checked_sub(1) {
                    Some(fewer) => left = fewer,
                    None => *arrived.borrow_mut() = Some(process.traffic(2)),
                }
            });
            process.serve(last);
            process.advance(SOON);
            process.leave_alone();
            let Some(id) = held.take() else { break };
            process.serve(id);
            process.advance(Duration::from_secs(2));
            assert_eq!(process.status(1).verdict, Some(Verdict::Clean), "before hostcall {nth}");
            assert_at_rest(&process);
            nth += 1;
        }
        assert!(nth > 20, "only {nth} hostcalls until the flip");
    }
}
