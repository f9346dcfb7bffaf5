//! `softclose status --verify`, and what `prestop` says of listeners that nobody can count.

use crate::stand_in::{Ended, Pod, softclose};

const PUSHED: &str = "/config_dump?resource=dynamic_listeners";

/// A pod whose Envoy is configured as the files of `testdata/verify` say, with one worker beside the main thread, as the
/// stand-in of the gate has it.
fn pod(listeners: &str) -> Pod {
    let read = |name: &str| {
        let path = format!("{}/../testdata/verify/{name}.json", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let pod = Pod::new();
    pod.admin.set_page(PUSHED, &read(listeners));
    pod.admin.set_page("/config_dump?resource=static_listeners", &read("static-listeners"));
    pod.admin.set_page("/config_dump?resource=ecds_filters", &read("extensions"));
    pod.admin.set_page(
        "/server_info",
        r#"{"version": "x/1.40.0/x", "command_line_options": {"concurrency": 1, "drain_time": "45s", "drain_strategy": "Immediate"}}"#,
    );
    pod
}

fn verify(pod: &Pod, flags: &[&str]) -> Ended {
    let (admin, control) = (pod.admin.server.address(), pod.gate.server.address());
    softclose(&[&["status", "--verify", "--admin", &admin, "--control", &control], flags].concat())
}

#[test]
fn a_gateway_as_it_should_be_is_0_and_it_only_reads() {
    let pod = pod("listeners");
    let ended = verify(&pod, &[]).expect(
        0,
        &[
            "::_8443 ([::]:8443): the counting filter comes first, on 3 filter chains",
            "roll call: 2 of 2",
            "immediate, its time 45s",
            "second opinion",
        ],
    );
    assert_eq!(ended.summary(), "as it should be");
    let seen = [pod.admin.server.seen(), pod.gate.server.seen()].concat();
    assert!(seen.iter().all(|request| request.starts_with("GET ")), "{seen:?}");
}

#[test]
fn what_is_wrong_is_20_and_named_for_machines_too() {
    let pod = pod("listeners-lacking");
    verify(&pod, &[]).expect(20, &["WRONG       0.0.0.0_8443", "6 things not as it should be\n"]);
    let json = verify(&pod, &["--json"]).expect(20, &[]);
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&document["ok"], document["wrong"].as_array().unwrap().len()), (&false.into(), 6));
    assert_eq!(document["uncounted"].as_array().unwrap().len(), 4);
}

#[test]
fn a_gate_that_is_not_there_or_not_heard_is_20() {
    let pod = pod("listeners");
    pod.gate.distrust(softclose_fsm::DistrustReason::Trap);
    verify(&pod, &[]).expect(20, &["the count is not believed: trap"]);
    pod.gate.server.vanish();
    verify(&pod, &[]).expect(20, &["connection refused"]);
}

#[test]
fn fewer_counting_vms_than_workers_are_20_and_hidden_counters_a_hint() {
    let pod = pod("listeners");
    pod.admin.set_stats(None, 0);
    verify(&pod, &[]).expect(0, &["hint        Envoy's own counters are hidden"]);
    pod.admin.set_page(
        "/server_info",
        r#"{"command_line_options": {"concurrency": 2, "drain_time": "600s", "drain_strategy": "Gradual"}}"#,
    );
    verify(&pod, &[]).expect(20, &["roll call: 2 of 3 counting VMs are there", "Envoy's drain is gradual: over 600s"]);
}

#[test]
fn without_a_whole_answer_of_admin_nothing_is_known_and_it_is_69() {
    let pod = pod("listeners");
    pod.admin.set_page(PUSHED, r#"{"configs": [{"name": "0.0.0.0_80"#);
    verify(&pod, &[]).expect(69, &["resource=dynamic_listeners: not an HTTP answer: not the JSON", "nothing is known"]);
    pod.admin.server.vanish();
    verify(&pod, &[]).expect(69, &["connection refused; nothing is known"]);
    assert_eq!(verify(&pod, &["--settle", "1s"]).code, Some(64));
}

#[test]
fn prestop_never_says_clean_without_naming_what_it_cannot_count() {
    let lacking = pod("listeners-lacking");
    let ended = lacking.prestop("30s", &[]).end();
    ended
        .expect(0, &["warn: clean is said of HTTP, and nothing is known of 0.0.0.0_8443 (0.0.0.0:8443), 0.0.0.0_9000"]);
    let whole = pod("listeners").prestop("30s", &[]).end().expect(0, &[]);
    assert_eq!(whole.said("is said of HTTP"), 0);
    let unknown = pod("listeners");
    unknown.admin.set_page(PUSHED, "nonsense");
    unknown.prestop("30s", &[]).end().expect(0, &["which listeners cannot be counted is not known: admin not an HTTP"]);
}
