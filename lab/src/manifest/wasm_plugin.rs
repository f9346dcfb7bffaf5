//! What istiod makes of a WasmPlugin (pilot/pkg/model/extensions.go and networking/core/extension, 1.30): an extension configuration
//! and, in the HTTP filters of every listener of its own, a filter that discovers it. Neither a vm_id nor a VM configuration, and
//! no `default_config`. In phase AUTHN it stands behind nothing that a plain Envoy has.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

pub(super) fn extension(plugin: &Value) -> Result<Value> {
    let text = |pointer: &str| plugin.pointer(pointer).and_then(Value::as_str);
    let url = text("/spec/url").context("no spec.url")?;
    let file = url.strip_prefix("file://").with_context(|| format!("the lab pulls nothing: {url}"))?;
    let policy = match text("/spec/failStrategy") {
        None | Some("FAIL_CLOSE") => "FAIL_CLOSED",
        Some(other) => other,
    };
    ensure!(text("/spec/phase") == Some("AUTHN"), "the lab knows the place of phase AUTHN alone");
    let configuration = plugin.pointer("/spec/pluginConfig").cloned().unwrap_or_else(|| json!({}));
    Ok(json!({
        "name": resource(plugin)?,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": name(plugin)?,
                "root_id": text("/spec/pluginName").unwrap_or_default(),
                "failure_policy": policy,
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": configuration.to_string(),
                },
                "vm_config": {"runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": file}}},
            },
        },
    }))
}

pub(super) fn filter(plugin: &Value) -> Result<Value> {
    Ok(json!({
        "name": resource(plugin)?,
        "config_discovery": {
            "config_source": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
            "type_urls": [
                "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
                "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            ],
        },
    }))
}

fn name(plugin: &Value) -> Result<String> {
    let text = |pointer: &str| plugin.pointer(pointer).and_then(Value::as_str);
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let (namespace, name) = namespace.zip(name).context("a WasmPlugin without namespace or name")?;
    Ok(format!("{namespace}.{name}~istio-translated-wasmplugin"))
}

fn resource(plugin: &Value) -> Result<String> {
    Ok(format!("extensions.istio.io/trafficextension/{}", name(plugin)?))
}
