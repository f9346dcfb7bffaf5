//! Documents by their kind.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kcr_extensions_istio_io::v1alpha1::wasmplugins::WasmPlugin;
use kcr_gateway_networking_k8s_io::v1::gateways::Gateway;
use kcr_networking_istio_io::v1alpha3::envoyfilters::EnvoyFilter;
use serde_json::Value;

use crate::istio_operator;
use crate::typed::unknown;

pub(crate) fn unknown_fields(document: &Value) -> Vec<String> {
    let field = |name: &str| document[name].as_str().unwrap_or_default();
    match (field("apiVersion"), field("kind")) {
        ("networking.istio.io/v1alpha3", "EnvoyFilter") => unknown::<EnvoyFilter>(document, ""),
        ("extensions.istio.io/v1alpha1", "WasmPlugin") => unknown::<WasmPlugin>(document, ""),
        ("gateway.networking.k8s.io/v1", "Gateway") => unknown::<Gateway>(document, ""),
        ("install.istio.io/v1alpha1", "IstioOperator") => istio_operator::unknown_fields(document),
        ("apps/v1", "Deployment") => unknown::<Deployment>(document, ""),
        ("policy/v1", "PodDisruptionBudget") => unknown::<PodDisruptionBudget>(document, ""),
        ("rbac.authorization.k8s.io/v1", "Role") => unknown::<Role>(document, ""),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => unknown::<RoleBinding>(document, ""),
        ("v1", "Service") => unknown::<Service>(document, ""),
        ("v1", "ServiceAccount") => unknown::<ServiceAccount>(document, ""),
        ("v1", "ConfigMap") => [unknown::<ConfigMap>(document, ""), overlays(document)].concat(),
        // Read by kustomize itself in `just render-check`, which refuses what it does not know.
        ("kustomize.config.k8s.io/v1beta1", "Kustomization") | ("kustomize.config.k8s.io/v1alpha1", "Component") => {
            Vec::new()
        }
        (version, kind) => vec![format!("{version} {kind}: no type for it here")],
    }
}

/// What istiod merges into the objects of a Gateway (deploymentcontroller.go, `supportedOverlays`).
fn overlays(config_map: &Value) -> Vec<String> {
    let data = config_map["data"].as_object().unwrap();
    let each = data.iter().flat_map(|(key, text)| {
        let at = format!("data/{key}");
        let overlay: Value = serde_saphyr::from_str(text.as_str().unwrap()).unwrap();
        match key.as_str() {
            "deployment" => unknown::<Deployment>(&overlay, &at),
            "service" => unknown::<Service>(&overlay, &at),
            "serviceAccount" => unknown::<ServiceAccount>(&overlay, &at),
            "horizontalPodAutoscaler" => unknown::<HorizontalPodAutoscaler>(&overlay, &at),
            "podDisruptionBudget" => unknown::<PodDisruptionBudget>(&overlay, &at),
            _ => vec![at],
        }
    });
    each.collect()
}
