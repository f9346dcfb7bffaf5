//! What istioctl makes of an IstioOperator: which fields it has (operator/pkg/apis/types.go), and how overlays are applied
//! (operator/pkg/tpath).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStrategy};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
use k8s_openapi::api::core::v1::{Affinity, ServiceSpec};
use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::typed::unknown;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IstioOperator {
    api_version: String,
    kind: String,
    spec: Spec,
}

#[derive(Serialize, Deserialize)]
struct Spec {
    components: Components,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Components {
    ingress_gateways: Vec<IngressGateway>,
}

#[derive(Serialize, Deserialize)]
struct IngressGateway {
    name: String,
    namespace: String,
    enabled: bool,
    k8s: Kubernetes,
}

/// Those of its fields that we use.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kubernetes {
    pod_annotations: BTreeMap<String, String>,
    affinity: Affinity,
    strategy: DeploymentStrategy,
    hpa_spec: HorizontalPodAutoscalerSpec,
    pod_disruption_budget: PodDisruptionBudgetSpec,
    service: ServiceSpec,
    overlays: Vec<Overlay>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overlay {
    api_version: String,
    kind: String,
    name: String,
    patches: Vec<Patch>,
}

#[derive(Serialize, Deserialize)]
struct Patch {
    path: String,
    value: Value,
}

pub(crate) fn unknown_fields(document: &Value) -> Vec<String> {
    let lost = unknown::<IstioOperator>(document, "");
    let gateway = &document["spec"]["components"]["ingressGateways"][0];
    [lost, unknown::<Deployment>(&deployment(gateway), "the Deployment with overlays")].concat()
}

/// As much of the Deployment as the overlays need, with them applied.
pub(crate) fn deployment(gateway: &Value) -> Value {
    let mut deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": {
            "metadata": {"labels": {"istio": "ingressgateway"}},
            "spec": {
                "containers": [{
                    "name": "istio-proxy",
                    "volumeMounts": [{"name": "istio-envoy", "mountPath": "/etc/istio/proxy"}],
                }],
                "volumes": [{"name": "istio-envoy", "emptyDir": {}}],
            },
        }},
    });
    for overlay in gateway["k8s"]["overlays"].as_array().unwrap() {
        assert_eq!((&overlay["kind"], &overlay["name"]), (&json!("Deployment"), &gateway["name"]));
        for patch in overlay["patches"].as_array().unwrap() {
            let elements = elements(patch["path"].as_str().unwrap());
            write(&mut deployment, &elements, &patch["value"]);
        }
    }
    deployment
}

/// A path's elements: what is between dots that are not escaped.
fn elements(path: &str) -> Vec<String> {
    path.replace("\\.", "\0").split('.').map(|element| element.replace('\0', ".")).collect()
}

/// Missing mappings are made; `[key:value]` has to be there; `[N]` past the end appends.
fn write(node: &mut Value, path: &[String], value: &Value) {
    let Some((first, rest)) = path.split_first() else {
        *node = value.clone();
        return;
    };
    let Some(selector) = first.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) else {
        let fields = node.as_object_mut().unwrap_or_else(|| panic!("{first} of something that is no mapping"));
        return write(fields.entry(first).or_insert_with(|| json!({})), rest, value);
    };
    let items = node.as_array_mut().unwrap_or_else(|| panic!("{first} of something that is no list"));
    match selector.split_once(':') {
        Some((key, wanted)) => {
            let found = items.iter_mut().find(|item| item[key] == wanted).unwrap_or_else(|| panic!("no {first}"));
            write(found, rest, value);
        }
        None => {
            let number: usize = selector.parse().unwrap();
            if number >= items.len() {
                items.push(json!({}));
            }
            let last = number.min(items.len() - 1);
            write(&mut items[last], rest, value);
        }
    }
}
