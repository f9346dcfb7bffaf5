use alloc::string::ToString;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{Plan, Preset};

fn haproxy() -> Plan {
    Plan::preset(Preset::Haproxy)
}

#[test]
fn fields_replace_the_base_and_the_rest_stays() {
    let plan = haproxy().with([("settle_ms", "0"), ("deadline_ms", "60000"), ("fall", "3")]).unwrap();
    assert_eq!(plan.settle, Duration::ZERO);
    assert_eq!(plan.deadline, Some(Duration::from_secs(60)));
    assert_eq!(plan.fall, 3);
    assert_eq!(plan.hold_max, haproxy().hold_max);
}

#[test]
fn naming_the_base_preset_keeps_what_was_configured() {
    let base = haproxy().with([("settle_ms", "5")]).unwrap();
    assert_eq!(base.with([("preset", "haproxy")]).unwrap(), base);
}

#[test]
fn every_bound_is_enforced_on_both_sides_and_named() {
    for (field, low, high) in [
        ("settle_ms", 0_u64, 60_000_u64),
        ("fall", 1, 100),
        ("margin_ms", 0, 60_000),
        ("hold_max_ms", 0, 600_000),
        ("deadline_ms", 1, 86_400_000),
    ] {
        for good in [low, low + 1, high - 1, high] {
            assert!(haproxy().with([(field, good.to_string().as_str())]).is_ok(), "{field}={good}");
        }
        let mut bad = std::vec![(high + 1).to_string()];
        if low > 0 {
            bad.push((low - 1).to_string());
        }
        bad.extend(["", " ", "-1", "+1", "1.5", "1e3", "0x10", "abc", "99999999999999999999"].map(ToString::to_string));
        for value in bad {
            let error = haproxy().with([(field, value.as_str())]).unwrap_err();
            assert_eq!(error.field, field);
            assert_eq!(error.value, value);
            assert!(error.expected.contains(&std::format!("from {low} to {high}")), "{error}");
        }
    }
}

#[test]
fn hold_min_above_hold_max_is_a_contradiction() {
    let error = haproxy().with([("hold_min_ms", "500"), ("hold_max_ms", "499")]).unwrap_err();
    assert_eq!(error.to_string(), r#"hold_min_ms: got "500", must be at most hold_max_ms (499)"#);
    assert!(haproxy().with([("hold_min_ms", "500"), ("hold_max_ms", "500")]).is_ok());
}

#[test]
fn unknown_and_repeated_fields_are_refused_by_name() {
    let unknown = haproxy().with([("deadline", "5")]).unwrap_err();
    assert!(unknown.to_string().starts_with(r#"deadline: got "5", must be absent: the fields are preset, settle_ms"#));
    let twice = haproxy().with([("fall", "1"), ("fall", "1")]).unwrap_err();
    assert_eq!(twice.to_string(), r#"fall: got "1", must be once only"#);
    let preset = haproxy().with([("preset", "netscaler")]).unwrap_err();
    assert_eq!(preset.to_string(), r#"preset: got "netscaler", must be one of haproxy"#);
}

#[test]
fn a_plan_survives_json() {
    let plan = haproxy().with([("deadline_ms", "1234"), ("hold_min_ms", "7")]).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{text}");
}
