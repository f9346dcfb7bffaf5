#[cfg(not(target_arch = "wasm32"))]
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use std::format;

#[cfg(not(target_arch = "wasm32"))]
use proptest::prelude::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[cfg(not(target_arch = "wasm32"))]
use super::WAIT_MAX;
use super::{CALLS, Call, HealthPaths, Rejection, Until};
use crate::machine::tests::one_of_each_state;
use crate::plan::{Plan, Preset};
use crate::record::Path;
use crate::state::StateName;

fn base() -> Plan {
    Plan::preset(Preset::Haproxy)
}

fn parse(method: &str, target: &str) -> Result<Call, Rejection> {
    Call::parse(method.as_bytes(), target.as_bytes(), false, &base())
}

#[test]
fn each_call_is_understood() {
    let wait = |until, millis| Call::Wait { until, after: None, timeout: Duration::from_millis(millis) };
    let drain = |plan, envoy_drain_started| Call::Drain { plan, envoy_drain_started };
    let plan = base().with([("deadline_ms", "45000"), ("settle_ms", "0")]).unwrap();
    for (method, target, call) in [
        ("POST", "/drain", drain(base(), false)),
        ("POST", "/drain?", drain(base(), false)),
        ("POST", "/drain?preset=haproxy&deadline_ms=45000&settle_ms=0&envoy_drain=started", drain(plan, true)),
        ("POST", "/close-lb", Call::CloseLb),
        ("POST", "/close", Call::Close),
        ("POST", "/reopen", Call::Reopen),
        ("POST", "/observe?active=0", Call::Observe(0)),
        ("POST", "/observe?active=4294967295", Call::Observe(4_294_967_295)),
        ("GET", "/status", Call::Status),
        ("GET", "/wait", wait(Until::Closing, 15_000)),
        ("GET", "/wait?for=exit&timeout_ms=1", wait(Until::Exit, 1)),
        (
            "GET",
            "/wait?after=7",
            Call::Wait { until: Until::Closing, after: Some(7), timeout: Duration::from_secs(15) },
        ),
        ("GET", "/wait?timeout_ms=15000&for=closing", wait(Until::Closing, 15_000)),
    ] {
        assert_eq!(parse(method, target), Ok(call), "{method} {target}");
    }
}

#[test]
fn each_wrong_path_is_404_and_names_the_right_ones() {
    for target in [
        "",
        "/",
        "/drain/",
        "//drain",
        "/Drain",
        "/%64rain",
        "/drain#x",
        "/drain;x",
        "drain",
        "/drainx",
        "*",
        "http://127.0.0.1/drain",
        "/health",
        "/health_check.html",
        "/close-lb/../drain",
        "/status\0",
    ] {
        for method in ["GET", "POST"] {
            let rejection = parse(method, target).unwrap_err();
            assert_eq!(rejection.status, 404, "{method} {target:?}");
            assert!(
                rejection.reason.contains("POST /drain") && rejection.reason.contains("GET /wait"),
                "{rejection:?}"
            );
        }
    }
}

#[test]
fn each_wrong_method_is_405_with_the_right_one() {
    for (path, right, _) in CALLS {
        for method in
            ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "get", "post", "", "CONNECT", "\u{7f}"]
        {
            if method != right {
                let rejection = parse(method, path).unwrap_err();
                assert_eq!((rejection.status, rejection.allow), (405, Some(right)), "{method} {path}");
            }
        }
    }
}

#[test]
fn each_body_is_413() {
    for (path, method, _) in CALLS {
        let rejection = Call::parse(method.as_bytes(), path.as_bytes(), true, &base()).unwrap_err();
        assert_eq!(rejection.status, 413, "{path}");
        assert!(rejection.reason.contains(path));
    }
}

#[test]
fn each_wrong_query_is_400_and_names_field_value_and_bound() {
    for (method, target, reason) in [
        ("POST", "/drain?settle_ms=60001", r#"settle_ms: got "60001", must be a whole number from 0 to 60000"#),
        ("POST", "/drain?fall=0", r#"fall: got "0", must be a whole number from 1 to 100"#),
        (
            "POST",
            "/drain?preset=nlb2",
            r#"preset: got "nlb2", must be one of haproxy, haproxy-soft, haproxy-retry, nlb"#,
        ),
        ("POST", "/drain?settle_ms=1&settle_ms=1", r#"settle_ms: got "1", must be once only"#),
        ("POST", "/drain?envoy_drain=yes", r#"envoy_drain: got "yes", must be one of started"#),
        ("POST", "/drain?envoy_drain=started&envoy_drain=started", r#"envoy_drain: got "started", must be once only"#),
        ("POST", "/drain?settle_ms", r#"settle_ms: got "", must be written as name=value"#),
        ("POST", "/drain?&", r#": got "", must be written as name=value"#),
        ("POST", "/drain?hold_min_ms=20000", r#"hold_min_ms: got "20000", must be at most hold_max_ms (10000)"#),
        ("POST", "/close-lb?x=1", r#"x: got "1", must be absent: this call takes no query"#),
        ("POST", "/close?x=1", r#"x: got "1", must be absent: this call takes no query"#),
        ("POST", "/reopen?x=1", r#"x: got "1", must be absent: this call takes no query"#),
        ("GET", "/status?x=1", r#"x: got "1", must be absent: this call takes no query"#),
        ("POST", "/observe", r#"active: got "", must be given: the requests in flight by Envoy's own counters"#),
        ("POST", "/observe?active=-1", r#"active: got "-1", must be a whole number from 0 to 4294967295"#),
        (
            "POST",
            "/observe?active=4294967296",
            r#"active: got "4294967296", must be a whole number from 0 to 4294967295"#,
        ),
        ("POST", "/observe?active=1&active=2", r#"active: got "2", must be once only"#),
        ("POST", "/observe?n=1", r#"n: got "1", must be absent: the fields are active"#),
        ("GET", "/wait?after=x", r#"after: got "x", must be a whole number from 0 to 18446744073709551615"#),
        ("GET", "/wait?for=open", r#"for: got "open", must be one of closing, exit"#),
        ("GET", "/wait?for=exit&for=exit", r#"for: got "exit", must be once only"#),
        ("GET", "/wait?timeout_ms=0", r#"timeout_ms: got "0", must be a whole number from 1 to 15000"#),
        ("GET", "/wait?timeout_ms=15001", r#"timeout_ms: got "15001", must be a whole number from 1 to 15000"#),
        ("GET", "/wait?until=exit", r#"until: got "exit", must be absent: the fields are for, after, timeout_ms"#),
    ] {
        let rejection = parse(method, target).unwrap_err();
        assert_eq!((rejection.status, rejection.reason.as_str()), (400, reason), "{method} {target}");
    }
    let unknown = parse("POST", "/drain?grace=9").unwrap_err().reason;
    assert!(unknown.starts_with(r#"grace: got "9", must be absent: the fields are preset,"#), "{unknown}");
    assert!(unknown.ends_with(", envoy_drain"), "{unknown}");
    let latin = Call::parse(b"POST", b"/drain?settle_ms=\xff", false, &base()).unwrap_err();
    assert_eq!((latin.status, latin.reason.as_str()), (400, "the query is not UTF-8"));
}

#[test]
fn a_hostile_value_is_shown_cut() {
    let rejection = parse("POST", &format!("/drain?settle_ms={}", "9".repeat(100_000))).unwrap_err();
    assert!(rejection.reason.len() < 200, "{}", rejection.reason.len());
}

#[test]
fn health_answers_get_and_head_of_its_two_paths_only() {
    let paths = HealthPaths::default();
    for method in ["GET", "HEAD"] {
        for target in ["/health_check.html", "/health_check.html?", "/health_check.html?a=b"] {
            assert_eq!(paths.parse(method.as_bytes(), target.as_bytes()), Ok(Path::Balancer));
        }
        assert_eq!(paths.parse(method.as_bytes(), b"/health"), Ok(Path::Readiness));
    }
    for method in ["POST", "PUT", "OPTIONS", "get", ""] {
        let rejection = paths.parse(method.as_bytes(), b"/health").unwrap_err();
        assert_eq!((rejection.status, rejection.allow), (405, Some("GET, HEAD")), "{method}");
    }
    for (path, method, _) in CALLS {
        assert_eq!(
            paths.parse(method.as_bytes(), path.as_bytes()).unwrap_err().status,
            404,
            "{path} is no command here"
        );
    }
}

#[test]
fn a_wait_is_answered_by_where_the_gate_stands() {
    let mut records = one_of_each_state();
    let mut left = records.last().unwrap().clone();
    let due = left.deadline(left.state.since()).unwrap();
    let nobody = crate::record::Reading {
        blind: false,
        admitted: 0,
        active: 0,
        roll_call: crate::record::RollCall { answered: 1, expected: 1, newcomers: 0 },
    };
    left = crate::machine::step(&left, due, nobody, &crate::input::Input::Tick).record;
    records.push(left);
    let names: Vec<StateName> = records.iter().map(|record| record.state.name()).collect();
    assert_eq!(names[4..], [StateName::Fault, StateName::Fault]);
    let table = [
        (Until::Closing, [Some(409), None, Some(200), Some(200), Some(200), Some(200)]),
        (Until::Exit, [Some(409), None, None, Some(200), None, Some(200)]),
    ];
    for (until, row) in table {
        for (record, expected) in records.iter().zip(row) {
            assert_eq!(until.status(record, record.changes), expected, "{until:?} in {}", record.state.name());
            assert_eq!(
                until.status(record, u64::MAX),
                expected.or(Some(202)),
                "{until:?} in {}, moved",
                record.state.name()
            );
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
proptest! {
    #[test]
    fn no_request_makes_the_parser_panic_or_answer_without_a_reason(
        method in any::<Vec<u8>>(), target in any::<Vec<u8>>(), has_body in any::<bool>(),
    ) {
        if let Err(rejection) = Call::parse(&method, &target, has_body, &base()) {
            prop_assert!((400..500).contains(&rejection.status) && !rejection.reason.is_empty());
        }
        if let Err(rejection) = HealthPaths::default().parse(&method, &target) {
            prop_assert!((400..500).contains(&rejection.status) && !rejection.reason.is_empty());
        }
    }

    #[test]
    fn no_query_makes_a_call_panic(at in 0..CALLS.len(), query in "[a-z_=&0-9%+-]{0,40}") {
        let (path, method, _) = CALLS[at];
        let target: String = [path, "?", &query].concat();
        if let Err(rejection) = parse(method, &target) {
            prop_assert_eq!(rejection.status, 400);
        }
    }

    #[test]
    fn whatever_a_wait_asks_for_it_is_bounded(timeout in any::<u64>()) {
        match parse("GET", &format!("/wait?timeout_ms={timeout}")) {
            Ok(Call::Wait { timeout, .. }) => prop_assert!(timeout <= WAIT_MAX && !timeout.is_zero()),
            Ok(other) => panic!("{other:?}"),
            Err(rejection) => prop_assert!(rejection.reason.contains(&WAIT_MAX.as_millis().to_string())),
        }
    }
}
