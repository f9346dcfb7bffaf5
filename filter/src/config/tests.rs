use std::time::Duration;

use softclose_fsm::{Plan, Preset, Role};

use super::{Config, GateConfig};

fn parse(plugin: &str, vm: &str) -> Result<Config, String> {
    Config::parse(plugin.as_bytes(), vm.as_bytes()).map_err(|error| error.to_string())
}

fn gate(plugin: &str) -> Result<GateConfig, String> {
    match parse(plugin, "gate")? {
        Config::Gate(gate) => Ok(gate),
        Config::Count { .. } => panic!("{plugin} is no gate"),
    }
}

#[test]
fn the_plugins_role_goes_before_the_vms_and_counting_is_the_default() {
    for (plugin, vm, role) in [
        (r#"{"role": "count"}"#, "count", Role::Count),
        (r#"{"role": "count"}"#, "gate", Role::Count),
        (r#"{"role": "gate"}"#, "", Role::Gate),
        ("{}", "gate", Role::Gate),
        ("{}", " gate\n", Role::Gate),
        ("{}", "count", Role::Count),
        ("{}", "", Role::Count),
    ] {
        assert_eq!(parse(plugin, vm).unwrap().role(), role, "{plugin} on {vm:?}");
    }
}

#[test]
fn counting_accepts_anything_and_says_what_was_wrong() {
    for (plugin, fault) in [
        ("", r#"configuration: got "", must be a JSON object"#),
        ("{", r#"configuration: got "{", must be a JSON object"#),
        ("[]", r#"configuration: got "[]", must be a JSON object"#),
        ("null", r#"configuration: got "null", must be a JSON object"#),
        (r#"{"role": "gaet"}"#, r#"role: got "gaet", must be one of count, gate"#),
        (r#"{"role": 7}"#, r#"role: got "7", must be one of count, gate"#),
        (r#"{"role": "count", "x": [1]}"#, r#"x: got "[1]", must be absent: the fields are role"#),
    ] {
        assert_eq!(parse(plugin, "count"), Ok(Config::Count { fault: Some(fault.to_owned()) }), "{plugin}");
    }
    assert!(matches!(Config::parse(b"\xff\xfe", b"count"), Ok(Config::Count { fault: Some(_) })));
    assert_eq!(parse(r#"{"role": "count"}"#, ""), Ok(Config::Count { fault: None }));
}

#[test]
fn answering_takes_its_fields() {
    let config = gate(
        r#"{"role": "gate", "plan": {"preset": "haproxy", "settle_ms": 0, "fall": "3"},
            "balancer_path": "/lb", "readiness_path": "/ready"}"#,
    )
    .unwrap();
    assert_eq!(config.plan.settle, Duration::ZERO);
    assert_eq!(config.plan.fall, 3);
    assert_eq!((config.paths.balancer.as_str(), config.paths.readiness.as_str()), ("/lb", "/ready"));
    assert_eq!(gate("{}").unwrap().plan, Plan::preset(Preset::Haproxy));
}

#[test]
fn answering_refuses_each_bad_field_by_name_value_and_bound() {
    for (plugin, error) in [
        ("", r#"configuration: got "", must be a JSON object"#),
        ("7", r#"configuration: got "7", must be a JSON object"#),
        (r#"{"role": "gaet"}"#, r#"role: got "gaet", must be one of count, gate"#),
        (
            r#"{"plna": {}}"#,
            r#"plna: got "{}", must be absent: the fields are role, plan, balancer_path, readiness_path"#,
        ),
        (r#"{"plan": 7}"#, r#"plan: got "7", must be a JSON object"#),
        (r#"{"plan": {"settle_ms": -1}}"#, r#"plan.settle_ms: got "-1", must be a whole number from 0 to 60000"#),
        (r#"{"plan": {"settle_ms": 1.5}}"#, r#"plan.settle_ms: got "1.5", must be a whole number from 0 to 60000"#),
        (r#"{"plan": {"settle_ms": null}}"#, r#"plan.settle_ms: got "null", must be a whole number from 0 to 60000"#),
        (r#"{"plan": {"fall": 101}}"#, r#"plan.fall: got "101", must be a whole number from 1 to 100"#),
        (
            r#"{"plan": {"preset": "x"}}"#,
            r#"plan.preset: got "x", must be one of haproxy, haproxy-soft, haproxy-retry, nlb"#,
        ),
        (
            r#"{"plan": {"hold_min_ms": 2, "hold_max_ms": 1}}"#,
            r#"plan.hold_min_ms: got "2", must be at most hold_max_ms (1)"#,
        ),
        (
            r#"{"readiness_path": "/health_check.html"}"#,
            r#"readiness_path: got "/health_check.html", must be another than balancer_path"#,
        ),
    ] {
        assert_eq!(gate(plugin), Err(error.to_owned()), "{plugin}");
    }
    for bad in [r#""health""#, r#""""#, r#""/a?b""#, r#""/a#b""#, r#""/a b""#, r#""/\u00e9""#, "7", "null"] {
        let error = gate(&format!(r#"{{"balancer_path": {bad}}}"#)).unwrap_err();
        assert!(error.starts_with("balancer_path: got "), "{error}");
        assert!(
            error.ends_with("must be a path: / and up to 255 printable ASCII characters without ? and #"),
            "{error}"
        );
    }
}
