//! `envoyfilter.yaml` is what users apply, so it is a test input.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test file, helpers included")]

use serde_json::Value;
use softclose_filter::Config;
use softclose_fsm::{Plan, Preset, Role};

fn patches() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../envoyfilter.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    file["spec"]["configPatches"].as_array().unwrap().clone()
}

/// The `config` of the Wasm filter in the EXTENSION_CONFIG of this name.
fn extension(name: &str) -> Value {
    let found: Vec<Value> = patches()
        .into_iter()
        .filter(|patch| patch["applyTo"] == "EXTENSION_CONFIG" && patch["patch"]["value"]["name"] == name)
        .map(|patch| patch["patch"]["value"]["typed_config"]["config"].clone())
        .collect();
    assert_eq!(found.len(), 1, "{name}");
    found.into_iter().next().unwrap()
}

fn parsed(extension: &Value) -> Config {
    let text = |config: &Value| config["value"].as_str().unwrap().as_bytes().to_vec();
    Config::parse(&text(&extension["configuration"]), &text(&extension["vm_config"]["configuration"])).unwrap()
}

#[test]
fn the_shipped_configurations_are_taken_without_a_fault() {
    assert_eq!(parsed(&extension("softclose-count")), Config::Count { fault: None });
    let Config::Gate(gate) = parsed(&extension("softclose-gate")) else { panic!("the gate is no gate") };
    assert_eq!(gate.plan, Plan::preset(Preset::Haproxy), "the shipped plan is the preset's default");
}

#[test]
fn the_roles_share_state_but_not_a_vm() {
    let (count, gate) = (extension("softclose-count"), extension("softclose-gate"));
    for field in ["vm_id", "runtime", "code"] {
        assert_eq!(count["vm_config"][field], gate["vm_config"][field], "{field}");
    }
    assert_eq!(count["root_id"], gate["root_id"]);
    assert_ne!(count["vm_config"]["configuration"], gate["vm_config"]["configuration"]);
    // The newer failure_policy: FAIL_OPEN passes new streams only.
    assert_eq!(count["fail_open"], true, "counting must never stop traffic");
    assert_eq!(count.get("failure_policy"), None, "the two exclude each other");
    assert_eq!(gate["failure_policy"], "FAIL_RELOAD");
    for extension in [&count, &gate] {
        let vm = extension["vm_config"]["configuration"]["value"].as_str().unwrap();
        assert_eq!(vm == "gate", parsed(extension).role() == Role::Gate);
    }
}

#[test]
fn a_missing_module_lets_traffic_pass_wherever_a_filter_is_named() {
    let mut discoveries = Vec::new();
    for patch in patches() {
        collect(&patch, "config_discovery", &mut discoveries);
    }
    assert_eq!(discoveries.len(), 3, "traffic, health, control");
    for discovery in discoveries {
        let rbac = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
        assert_eq!(discovery["default_config"], serde_json::json!({"@type": rbac}), "an empty RBAC allows");
        let types = discovery["type_urls"].as_array().unwrap();
        assert!(types.iter().any(|url| url == rbac), "the agent's stand-in when a pull fails");
        assert!(types.iter().any(|url| url == "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"));
    }
}

#[test]
fn health_is_public_control_is_not_and_both_name_their_chain() {
    let listeners: Vec<Value> = patches()
        .into_iter()
        .filter(|patch| patch["applyTo"] == "LISTENER")
        .map(|patch| patch["patch"]["value"].clone())
        .collect();
    let addresses: Vec<(&str, &str, &Value)> = listeners
        .iter()
        .map(|listener| {
            let socket = &listener["address"]["socket_address"];
            let chain = listener["filter_chains"][0]["name"].as_str().unwrap();
            (chain, socket["address"].as_str().unwrap(), &socket["port_value"])
        })
        .collect();
    assert_eq!(
        addresses,
        [
            ("softclose-health", "0.0.0.0", &serde_json::json!(18180)),
            ("softclose-control", "127.0.0.1", &serde_json::json!(18181)),
        ]
    );
    for listener in &listeners {
        assert!(listener["stat_prefix"].as_str().unwrap().contains("worker_"), "EXIT_ON_ZERO must not count it");
        assert_eq!(listener["ignore_global_conn_limit"], true);
        assert_eq!(listener["bypass_overload_manager"], true);
    }
}

fn collect(value: &Value, key: &str, into: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            into.extend(fields.get(key).cloned());
            fields.values().for_each(|field| collect(field, key, into));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, key, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
