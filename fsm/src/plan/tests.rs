use alloc::string::ToString;
use core::time::Duration;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{Arrivals, Deflection, FieldError, Order, Plan, Preset, Sockets};
use crate::state::StateName;

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
        ("replay_limit", 0, 16_777_216),
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
    let configured = haproxy().with([("hold_min_ms", "500")]).unwrap();
    assert_eq!(configured.with([("hold_max_ms", "499")]).unwrap_err().field, "hold_min_ms");
    let short = haproxy().with([("preset", "nlb"), ("hold_max_ms", "499")]).unwrap();
    assert_eq!(short.hold_min, short.hold_max, "a preset's own default gives way");
}

#[test]
fn unknown_and_repeated_fields_are_refused_by_name() {
    let unknown = haproxy().with([("deadline", "5")]).unwrap_err();
    assert!(unknown.to_string().starts_with(r#"deadline: got "5", must be absent: the fields are preset, settle_ms"#));
    let twice = haproxy().with([("fall", "1"), ("fall", "1")]).unwrap_err();
    assert_eq!(twice.to_string(), r#"fall: got "1", must be once only"#);
    let preset = haproxy().with([("preset", "netscaler")]).unwrap_err();
    assert_eq!(
        preset.to_string(),
        r#"preset: got "netscaler", must be one of haproxy, haproxy-soft, haproxy-retry, nlb"#
    );
}

#[test]
fn a_plan_survives_json() {
    let plan = haproxy().with([("deadline_ms", "1234"), ("hold_min_ms", "7")]).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{text}");
}

#[test]
fn every_field_of_every_preset_can_be_overridden() {
    let values = [
        ("settle_ms", "7"),
        ("fall", "7"),
        ("margin_ms", "7"),
        ("hold_min_ms", "7"),
        ("hold_max_ms", "600000"),
        ("deadline_ms", "7"),
        ("order", "idle-first"),
        ("soft_status", "404"),
        ("arrivals", "refuse"),
        ("arrivals_closing", "refuse"),
        ("refuse_status", "503"),
        ("replay_limit", "102400"),
        ("sockets_closing", "close"),
    ];
    for (name, preset) in Preset::ALL {
        let plan = Plan::preset(preset).with(values).unwrap();
        assert_eq!((plan.preset, plan.order, plan.soft_status), (preset, Order::IdleFirst, Some(404)), "{name}");
        assert_eq!((plan.arrivals, plan.arrivals_closing), (Arrivals::Refuse, Arrivals::Refuse));
        assert_eq!((plan.refuse_status, plan.replay_limit, plan.sockets_closing), (503, 102_400, Sockets::Close));
        assert_eq!(Plan { soft_status: None, ..plan.clone() }, plan.with([("soft_status", "none")]).unwrap());
        let other = Plan::preset(preset).with([("preset", "haproxy"), ("hold_max_ms", "1")]).unwrap();
        assert_eq!(other.hold_max, Duration::from_millis(1));
    }
}

#[test]
fn the_soft_answer_and_refusing_are_a_default_only_where_they_are_asked_for() {
    for (name, preset) in Preset::ALL {
        let plan = Plan::preset(preset);
        assert_eq!(plan.soft_status, (name == "haproxy-soft").then_some(404), "{name}");
        assert_eq!(plan.sockets_closing == Sockets::Close, name == "haproxy-retry", "{name}");
        for state in StateName::ALL {
            let refuses = name == "haproxy-retry" && state != StateName::Open;
            let expected = refuses.then_some(Deflection { status: 425, replay_limit: 8_192 });
            assert_eq!(plan.deflection(state), expected, "{name} in {state}");
        }
    }
    let while_draining = haproxy().with([("arrivals", "refuse")]).unwrap();
    assert!(while_draining.deflection(StateName::Draining).is_some());
    assert_eq!(while_draining.deflection(StateName::Closing), None);
    let closing = Plan::preset(Preset::Nlb).with([("arrivals_closing", "refuse"), ("refuse_status", "503")]).unwrap();
    assert_eq!(closing.deflection(StateName::Fault), Some(Deflection { status: 503, replay_limit: 8_192 }));
}

#[test]
fn names_statuses_and_bodies_are_bounded_and_named() {
    for (field, value, expected) in [
        ("order", "first", "one of idle-first, health-first"),
        ("arrivals", "no", "one of serve, refuse"),
        ("arrivals_closing", "", "one of serve, refuse"),
        ("sockets_closing", "open", "one of keep, close"),
        ("probers", "0", "one of expected, none"),
        ("soft_status", "199", "a whole number from 200 to 599 or none"),
        ("soft_status", "600", "a whole number from 200 to 599 or none"),
        ("soft_status", "None", "a whole number from 200 to 599 or none"),
        ("refuse_status", "399", "a whole number from 400 to 599"),
        ("refuse_status", "600", "a whole number from 400 to 599"),
        ("replay_limit", "16777217", "a whole number from 0 to 16777216"),
    ] {
        let error = haproxy().with([(field, value)]).unwrap_err();
        assert_eq!(error, FieldError::new(field, value, expected));
    }
    for (field, value) in [
        ("soft_status", "200"),
        ("soft_status", "599"),
        ("refuse_status", "400"),
        ("refuse_status", "599"),
        ("replay_limit", "0"),
        ("replay_limit", "16777216"),
    ] {
        assert!(haproxy().with([(field, value)]).is_ok(), "{field}={value}");
    }
    let longest = "x".repeat(64);
    let bodies = |body: &str| Plan::preset(Preset::HaproxySoft).with([("soft_body", body)]);
    assert!(bodies("x").is_ok() && bodies(&longest).is_ok());
    for bad in ["", "a b", "a&b", "a%20b", "a+b", "a#b", "\n", "é", &(longest + "x")] {
        assert!(bodies(bad).unwrap_err().expected.starts_with("1 to 64 printable ASCII characters"), "{bad:?}");
    }
}

#[test]
fn fields_without_effect_are_contradictions() {
    for (fields, error) in [
        ([("soft_body", "x"), ("fall", "2")], r#"soft_body: got "x", must be absent without soft_status"#),
        (
            [("order", "health-first"), ("soft_status", "404")],
            r#"soft_status: got "404", must be none where order is health-first: there is no DRAINING"#,
        ),
        (
            [("preset", "nlb"), ("arrivals", "refuse")],
            r#"arrivals: got "refuse", must be serve where order is health-first: there is no DRAINING, arrivals_closing is what counts"#,
        ),
        (
            [("order", "health-first"), ("sockets_closing", "close")],
            r#"sockets_closing: got "close", must be keep where order is health-first: DOWN cuts nothing, and CLOSING waits for zero"#,
        ),
    ] {
        assert_eq!(haproxy().with(fields).unwrap_err().to_string(), error);
        let backwards = [fields[1], fields[0]];
        assert_eq!(haproxy().with(backwards).unwrap_err().to_string(), error, "whatever their order");
    }
    assert!(haproxy().with([("soft_body", "x"), ("soft_status", "200")]).is_ok());
}

#[test]
fn a_plan_written_before_there_were_presets_is_a_plain_one() {
    let text = r#"{"preset":"haproxy","settle_ms":1000,"fall":2,"margin_ms":500,"hold_min_ms":0,"hold_max_ms":10000,"deadline_ms":null}"#;
    assert_eq!(serde_json::from_str::<Plan>(text).unwrap(), haproxy());
}
