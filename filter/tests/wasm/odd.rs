//! Requests that nobody should send.

use std::time::Duration;

use softclose_fsm::StateName;

use crate::drive::{PAID, SOON, document};
use crate::host::{Listener, Process, Request, Setup};

/// What is no UTF-8 in any of the ways in which text is not: a lone continuation, a cut sequence, a surrogate, too long.
const NOT_TEXT: [&[u8]; 6] = [b"\xff\xfe", b"\xa1\xb1", b"/\x80", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x80\x80\x80\0"];

#[test]
fn r13_bytes_that_are_no_text_trap_nothing_anywhere() {
    let process = Process::start(Setup::of(1));
    for bytes in NOT_TEXT {
        let odd = |request: Request| request.header("x-a", bytes).header("user-agent", bytes).with_peer(bytes);
        let served = process.request(1, Listener::Traffic, odd(Request::new("GET", bytes)));
        assert_eq!(process.active(), 1);
        process.serve(served);
        for listener in [Listener::Health, Listener::Control] {
            let reply = process.ask(1, listener, odd(Request::new("GET", bytes)));
            assert_eq!(reply.status, 404, "{bytes:?}");
        }
        let query = [b"/drain?deadline_ms=", bytes].concat();
        assert_eq!(process.ask(1, Listener::Control, odd(Request::new("POST", query))).status, 400, "{bytes:?}");
        let probe = process.ask(1, Listener::Health, odd(Request::new("GET", "/health_check.html")));
        assert_eq!(probe.status, 200);
        let method = Request {
            headers: vec![(":method", bytes.to_vec()), (":path", b"/drain".to_vec())],
            ..odd(Request::new("", ""))
        };
        assert_eq!(process.ask(1, Listener::Control, method).status, 405);
        process.advance(SOON);
    }
    process.advance(PAID);
    assert_eq!(process.agreed(), StateName::Open);
    assert_eq!(process.active(), 0);
    process.assert_no_trap();
}

#[test]
fn r65_odd_control_requests_get_one_answer_and_change_nothing() {
    let process = Process::start(Setup::of(2));
    // Keeps the one drain among these from ending.
    process.traffic(2);
    let long = format!("/drain?deadline_ms={}", "9".repeat(100_000));
    let odd = [
        (Request::new("GET", "/drain"), 405),
        (Request::new("PRI", "*"), 404),
        (Request::new("POST", "/drain").with_body(), 413),
        (Request::new("POST", "/close").header("expect", "100-continue").with_body(), 413),
        (Request::new("POST", "/drain").header("transfer-encoding", "chunked").with_body(), 413),
        (Request::new("POST", "/drain?deadline_ms=0"), 400),
        (Request::new("POST", "/drain?deadline_ms=+5"), 400),
        (Request::new("POST", "/drain?preset=haproxy&preset=haproxy"), 400),
        (Request::new("POST", "/drain?colour=red"), 400),
        (Request::new("POST", "/drain?"), 200),
        (Request::new("POST", "/reopen"), 200),
        (Request::new("POST", &long), 400),
        (Request::new("POST", "/drain/"), 404),
        (Request::new("POST", "//drain"), 404),
        (Request::new("POST", "/%64rain"), 404),
        (Request::new("POST", "http://gateway/drain"), 404),
        (Request::new("POST", "/close-lb"), 409),
        (Request::new("GET", "/wait?for=ever"), 400),
        (Request::new("GET", "/wait?timeout_ms=15001"), 400),
        (Request::new("GET", ""), 404),
        (Request { headers: Vec::new(), ..Request::new("", "") }, 404),
    ];
    for (request, status) in odd {
        let shown = format!("{request:?}").chars().take(200).collect::<String>();
        let id = process.request(1, Listener::Control, request);
        // What is still on its way when the answer is sent comes to nobody.
        process.request_body(id, 1 << 20, false);
        process.request_trailers(id);
        process.end(id);
        let reply = process.reply(id).unwrap();
        assert_eq!(reply.status, status, "{shown}: {reply:?}");
        document(&reply);
        process.advance(SOON);
    }
    assert_eq!(process.agreed(), StateName::Open);
    assert_eq!(process.said("transition").len(), 2, "the one drain and its reopen");
    process.assert_no_trap();
}

#[test]
fn r65_a_client_that_is_gone_before_the_answer_is_answered_never_and_forgotten() {
    let process = Process::start(Setup::of(1));
    process.traffic(1);
    process.order(1, "/drain");
    let wait = process.wait(1, "for=closing");
    process.end(wait);
    process.order(1, "/close-lb");
    process.advance(Duration::from_secs(20));
    assert_eq!(process.reply(wait), None);
    process.assert_no_trap();
}

#[test]
fn commands_mean_nothing_on_the_traffic_and_health_listeners() {
    let process = Process::start(Setup::of(1));
    for (path, method, _) in softclose_fsm::control::CALLS {
        let id = process.request(1, Listener::Traffic, Request::new(method, path));
        assert!(process.stream(id).passed && process.reply(id).is_none());
        process.serve(id);
        assert_eq!(process.ask(1, Listener::Health, Request::new(method, path)).status, 404);
    }
    assert_eq!(process.agreed(), StateName::Open);
    assert_eq!(process.said("transition").len(), 0);
}
