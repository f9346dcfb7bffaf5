//! The values of Istio's gateway chart, 1.27 to 1.30: the keys that its values.schema.json has and we use. The chart takes no other
//! key, and writes most values into the object as they are.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DeploymentStrategy;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerBehavior;
use k8s_openapi::api::core::v1::{Affinity, Container, Lifecycle, ServiceSpec, Volume, VolumeMount};
use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;
use serde_json::Value;

use crate::typed::{unknown, unknown_in_each};

pub(crate) fn unknown_fields(values: &Value) -> Vec<String> {
    let each = values.as_object().unwrap().iter().flat_map(|(key, value)| match key.as_str() {
        "labels" | "podAnnotations" | "env" => unknown::<BTreeMap<String, String>>(value, key),
        "initContainers" => unknown_in_each::<Container>(value, key),
        "volumes" => unknown_in_each::<Volume>(value, key),
        "volumeMounts" => unknown_in_each::<VolumeMount>(value, key),
        "lifecycle" => unknown::<Lifecycle>(value, key),
        "affinity" => unknown::<Affinity>(value, key),
        "strategy" => unknown::<DeploymentStrategy>(value, key),
        "podDisruptionBudget" => unknown::<PodDisruptionBudgetSpec>(value, key),
        "terminationGracePeriodSeconds" | "minReadySeconds" => unknown::<u32>(value, key),
        "service" => service(value),
        "autoscaling" => autoscaling(value),
        _ => vec![key.clone()],
    });
    each.collect()
}

/// Annotations beside fields of the Service's own.
fn service(value: &Value) -> Vec<String> {
    let mut spec = value.clone();
    let annotations = spec.as_object_mut().unwrap().remove("annotations").unwrap_or_else(|| serde_json::json!({}));
    let annotations = unknown::<BTreeMap<String, String>>(&annotations, "service/annotations");
    [annotations, unknown::<ServiceSpec>(&spec, "service")].concat()
}

fn autoscaling(value: &Value) -> Vec<String> {
    let each = value.as_object().unwrap().iter().flat_map(|(key, value)| match key.as_str() {
        "enabled" => unknown::<bool>(value, key),
        "minReplicas" | "maxReplicas" => unknown::<u32>(value, key),
        "autoscaleBehavior" => unknown::<HorizontalPodAutoscalerBehavior>(value, "autoscaling/autoscaleBehavior"),
        _ => vec![format!("autoscaling/{key}")],
    });
    each.collect()
}
