//! On dumps written by hand, as short as they can be and with fields that are read past: `testdata/verify`.

use serde::de::DeserializeOwned;

use super::*;
use crate::verify::dump::Dump;

fn dump<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = format!("{}/../testdata/verify/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let dump: Dump<T> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    dump.configs
}

fn report(listeners: &str, extensions: &str) -> Report {
    let mut report = Report::default();
    at_listeners(&dump(listeners), &dump("static-listeners"), &dump(extensions), &mut report);
    report
}

#[test]
fn a_gateway_as_it_should_be_has_each_listener_counted_and_both_gates() {
    let report = report("listeners", "extensions");
    assert_eq!((&report.wrong, &report.uncounted), (&vec![], &vec![]));
    assert_eq!(
        report.good,
        [
            "0.0.0.0_8080 (0.0.0.0:8080): the counting filter comes first, on 1 filter chain",
            "::_8443 ([::]:8443): the counting filter comes first, on 3 filter chains",
            "softclose-health (0.0.0.0:18180): the gate answers there",
            "softclose-control (127.0.0.1:18181): the gate answers there",
        ]
    );
}

#[test]
fn each_filter_chain_that_is_not_counted_first_is_named() {
    let report = report("listeners-lacking", "extensions");
    assert_eq!(
        report.wrong,
        [
            "0.0.0.0_8080 (0.0.0.0:8080): softclose does not come first: what waits in istio.metadata_exchange, \
             envoy.filters.http.ext_authz is not counted; on filter chain 1",
            "0.0.0.0_8443 (0.0.0.0:8443): not counted: no counting filter; on pay, blog",
            "0.0.0.0_7000: does not listen yet, it waits for a part of its configuration",
            "0.0.0.0_7001: Envoy refused its last update: Invalid path: /opt/softclose/softclose.wasm",
            "softclose-health (0.0.0.0:18180): its first HTTP filter is not the gate",
            "no listener with the filter chain softclose-control: is the pod's label softclose.dev/gate: v1?",
        ]
    );
}

#[test]
fn what_nobody_can_count_is_named_and_is_not_wrong() {
    let report = report("listeners-lacking", "extensions");
    assert_eq!(
        report.uncounted,
        [
            "0.0.0.0_8443 (0.0.0.0:8443): TCP connections (also TLS passed through) are not counted, and cut when the pod ends; \
             on db.example",
            "0.0.0.0_9000 (0.0.0.0:9000): TCP connections (also TLS passed through) are not counted, and cut when the pod ends; \
             on filter chain 1",
            "udp_0.0.0.0_8443 (0.0.0.0:8443): HTTP/3: its requests are counted, but a balancer's checks say nothing of UDP",
            "udp_0.0.0.0_53 (0.0.0.0:53): UDP is not counted",
        ]
    );
    assert_eq!(
        uncounted(&dump("listeners-lacking")),
        [
            "0.0.0.0_8443 (0.0.0.0:8443)",
            "0.0.0.0_9000 (0.0.0.0:9000)",
            "udp_0.0.0.0_8443 (0.0.0.0:8443)",
            "udp_0.0.0.0_53 (0.0.0.0:53)"
        ]
    );
    assert_eq!(uncounted(&dump("listeners")), [""; 0]);
}

#[test]
fn a_stand_in_under_our_name_is_not_taken_for_us() {
    let report = report("listeners", "extensions-stand-in");
    assert_eq!(report.good, [""; 0]);
    let of = |place: &str| report.wrong.iter().find(|line| line.starts_with(place)).unwrap().clone();
    assert!(of("0.0.0.0_8080").contains("instead of the counting filter runs RBAC"), "{report:?}");
    assert!(of("::_8443").ends_with("on shop, pay, filter chain 3"), "{report:?}");
    assert!(of("softclose-health").ends_with("instead of the gate runs RBAC"), "{report:?}");
}

#[test]
fn filters_that_were_never_delivered_are_not_taken_for_us() {
    let mut report = Report::default();
    at_listeners(&dump("listeners"), &[], &[], &mut report);
    assert_eq!(report.good, [""; 0]);
    assert_eq!(report.wrong.iter().filter(|line| line.contains("was not delivered")).count(), 4, "{report:?}");
}

#[test]
fn without_listeners_everything_is_missing() {
    let mut report = Report::default();
    at_listeners(&[], &dump("static-listeners"), &[], &mut report);
    assert_eq!(report.wrong.len(), 3, "{report:?}");
    assert!(report.wrong[2].starts_with("no traffic listener"), "Istio's own are none: {report:?}");
}

#[test]
fn a_plugin_of_another_name_is_known_by_the_role_that_it_is_given() {
    let config = |json: &str| serde_json::from_str::<HttpConfig>(json).unwrap();
    let wasm = |plugin: &str| config(&format!(r#"{{"@type": "x.Wasm", "config": {plugin}}}"#));
    let role = |plugin: &str| role("extensions.istio.io/x", &wasm(plugin));
    assert_eq!(role(r#"{"configuration": {"value": "{\"role\": \"count\"}"}}"#), Some(Is::Counting));
    assert_eq!(role(r#"{"configuration": {"value": {"role": "gate"}}}"#), Some(Is::Gate));
    assert_eq!(role(r#"{"configuration": {"value": "not JSON"}, "name": "ns.softclose"}"#), Some(Is::Counting));
    assert_eq!(role(r#"{"vm_config": {"vm_id": "softclose", "configuration": {"value": "gate"}}}"#), Some(Is::Gate));
    assert_eq!(role(r#"{"name": "somebody-else", "configuration": {"value": "{\"role\": \"auth\"}"}}"#), None);
    let lua = config(r#"{"@type": "x.Lua", "config": "softclose"}"#);
    assert_eq!(super::role("softclose-count", &lua), None);
}

#[test]
fn a_filter_that_is_switched_off_is_there_by_its_name_only() {
    let switched_off = |text: &str| {
        let path = format!("{}/../testdata/verify/listeners.json", env!("CARGO_MANIFEST_DIR"));
        let listeners = std::fs::read_to_string(path).unwrap().replace(text, &format!("{text}, \"disabled\": true"));
        let dump: Dump<DynamicListener> = serde_json::from_str(&listeners).unwrap();
        let mut report = Report::default();
        at_listeners(&dump.configs, &[], &self::dump("extensions"), &mut report);
        report
    };
    let report = switched_off(r#""name": "softclose-count""#);
    assert_eq!(
        report.wrong.iter().filter(|line| line.contains("the counting filter is disabled")).count(),
        2,
        "{report:?}"
    );
    let report = switched_off(r#""name": "softclose-gate""#);
    assert_eq!(
        report.wrong.iter().filter(|line| line.contains("first HTTP filter is disabled")).count(),
        2,
        "{report:?}"
    );
}
