//! What Istio's agent does with a Wasm filter on its way from istiod to Envoy (pkg/wasm/convert.go): code that is remote becomes a
//! local file, pulled before; code that is local passes as it is.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Variables that are meant for the agent and that it takes out.
const FOR_THE_AGENT: &str = "ISTIO_META_";

pub(super) fn pull(extension: &mut Value) -> Result<()> {
    let Some(vm) = extension.pointer_mut("/typed_config/config/vm_config") else { return Ok(()) };
    let Some(remote) = vm.pointer("/code/remote") else { return Ok(()) };
    let uri = remote.pointer("/http_uri/uri").and_then(Value::as_str);
    let uri = uri.context("remote code without http_uri.uri: the agent has nothing to pull")?;
    let known = ["oci://", "http://", "https://"].iter().any(|scheme| uri.starts_with(scheme));
    ensure!(known, "the agent pulls nothing from {uri}");
    // By Envoy's own rules for it (envoy.config.core.v3.HttpUri), which istiod checks: both must be there.
    for field in ["cluster", "timeout"] {
        ensure!(remote.pointer(&format!("/http_uri/{field}")).is_some(), "http_uri has no {field}");
    }
    let fields = vm.as_object_mut().context("vm_config is not a mapping")?;
    fields.insert("code".into(), json!({"local": {"filename": "/var/lib/istio/data/pulled.wasm"}}));
    if let Some(variables) = fields.get_mut("environment_variables").and_then(|found| found.get_mut("key_values")) {
        let variables = variables.as_object_mut().context("key_values is not a mapping")?;
        variables.retain(|name, _| !name.starts_with(FOR_THE_AGENT));
    }
    Ok(())
}

/// What the agent gives Envoy in place of a filter whose module it cannot pull: an RBAC filter that lets all pass where the filter
/// fails open, and lets none pass otherwise.
pub(crate) fn stand_in(extension: &Value) -> Value {
    let config = |field: &str| extension.pointer(&format!("/typed_config/config/{field}"));
    let open = match config("failure_policy").and_then(Value::as_str) {
        Some(policy) => policy == "FAIL_OPEN",
        None => config("fail_open") == Some(&json!(true)),
    };
    let rbac = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    // Rules without a policy that allows deny everything; no rules allow it.
    let typed = if open { json!({"@type": rbac}) } else { json!({"@type": rbac, "rules": {"action": "ALLOW"}}) };
    json!({"@type": extension.get("@type"), "name": extension.get("name"), "typed_config": typed})
}
