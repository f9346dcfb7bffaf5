//! The single calls.

use softclose_fsm::StateName;

use crate::stand_in::{Gate, Reply, Server, softclose};

#[test]
fn the_whole_life_of_a_drain_by_hand() {
    let gate = Gate::start("127.0.0.1");
    let control = gate.server.address();
    let call = |args: &[&str]| softclose(&[args, &["--control", &control]].concat());
    gate.set_active(2);

    call(&["close-lb"]).expect(1, &["refused: the gate is OPEN: not draining; POST /drain comes first"]);
    call(&["wait"]).expect(1, &["refused: the gate is OPEN"]);
    call(&["drain", "--deadline", "1h"]).expect(0, &["DRAINING: 2 requests in flight"]);
    call(&["close"]).expect(1, &["the balancer has not been told yet"]);
    call(&["wait", "--for", "closing", "--timeout", "100ms"]).expect(69, &["not closing after 0.1 s"]);
    call(&["close-lb"]).expect(0, &["CLOSING: 2 requests in flight"]);
    call(&["wait"]).expect(0, &["CLOSING"]);
    call(&["reopen"]).expect(0, &["OPEN", "warning: the balancer may have counted failed checks"]);
    call(&["drain"]).expect(0, &[]);
    call(&["close-lb"]).expect(0, &[]);
    call(&["close"]).expect(0, &["CLOSED"]);
    call(&["wait", "--for", "exit"]).expect(0, &["CLOSED"]);
    call(&["reopen"]).expect(1, &["closed for good"]);
    assert_eq!(gate.state(), StateName::Closed);
}

#[test]
fn status_is_for_people_and_json_is_the_document() {
    let gate = Gate::start("::1");
    let control = gate.server.address();
    gate.set_active(1);
    let probe = softclose_fsm::Probe { path: softclose_fsm::Path::Balancer, prober: Some("10.0.0.9".to_owned()) };
    gate.input(&softclose_fsm::Input::Probe(probe));
    softclose(&["drain", "--control", &control, "--deadline", "1m"]).expect(0, &[]);
    gate.distrust(softclose_fsm::DistrustReason::Trap);
    softclose(&["status", "--control", &control]).expect(
        0,
        &[
            "state       DRAINING for 0",
            "in flight   1 by the gauge, 7 counted",
            "believed    no: trap",
            "may exit    no",
            "settle 1 s, fall 2, margin 0.5 s, hold 0 s to 10 s",
            "deadline    in 60 s",
            "prober      10.0.0.9 asks once, 1 times, last 0",
            "event       drain 0",
        ],
    );
    let ended = softclose(&["status", "--json", "--control", &control]).expect(0, &[]);
    let document: softclose_fsm::Status = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(document.state, StateName::Draining);
}

#[test]
fn no_answer_and_a_stranger_s_answer_are_69() {
    let gone = Gate::start("127.0.0.1");
    gone.server.vanish();
    let address = gone.server.address();
    for command in ["drain", "close-lb", "close", "reopen", "status", "wait"] {
        softclose(&[command, "--control", &address]).expect(69, &["connection refused"]);
    }
    let stranger = Server::start("127.0.0.1", |_| Reply::Whole(200, String::new(), "hello".to_owned()));
    softclose(&["status", "--control", &stranger.address()]).expect(69, &["answered 200 without x-softclose-state"]);
}

#[test]
fn a_gate_that_does_not_understand_is_1_and_one_in_distress_is_69() {
    let gate = Gate::start("127.0.0.1");
    let control = gate.server.address();
    let answer = |status| Reply::Whole(status, "x-softclose-state: OPEN\r\n".to_owned(), "why\n".to_owned());
    gate.script([answer(400), answer(503)]);
    softclose(&["drain", "--control", &control]).expect(1, &["the gate answered 400: why"]);
    softclose(&["drain", "--control", &control]).expect(69, &["the gate answered 503: why"]);
}
