//! Every manifest that is shipped, held against the types of Kubernetes, Istio and the Gateway API. A document is read into its
//! type and written again; what did not come back is a field that the API server would refuse or drop.
//!
//! Not held against a published schema, since no package has one: the values of Istio's gateway chart and the IstioOperator. Their
//! own keys are restated here, and what stands below a key is held against the Kubernetes type that it becomes a part of.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test file, helpers included")]

mod document;
mod helm;
mod istio_operator;
mod typed;
mod ways;

use std::path::{Path, PathBuf};

use serde_json::Value;

#[test]
fn every_shipped_document_has_only_fields_of_its_kind() {
    let files: Vec<PathBuf> =
        ["envoyfilter.yaml", "deploy"].iter().flat_map(|place| yaml_files(&root().join(place))).collect();
    let mut kinds = Vec::new();
    for file in &files {
        if file.parent().is_some_and(|folder| folder.ends_with("helm")) {
            let unknown = helm::unknown_fields(&documents(file)[0]);
            assert!(unknown.is_empty(), "{}: {unknown:?}", file.display());
            continue;
        }
        for document in documents(file) {
            let unknown = document::unknown_fields(&document);
            assert!(unknown.is_empty(), "{}: {unknown:?}", file.display());
            kinds.push(document["kind"].as_str().unwrap().to_owned());
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    let expected = [
        "Component",
        "ConfigMap",
        "Deployment",
        "EnvoyFilter",
        "Gateway",
        "IstioOperator",
        "Kustomization",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
        "WasmPlugin",
    ];
    assert_eq!(kinds, expected, "a kind is missing, or new: {} files", files.len());
}

#[test]
fn a_field_that_does_not_exist_is_found_wherever_it_stands() {
    let at = |file: &str, number: usize| documents(&root().join(file)).into_iter().nth(number).unwrap();
    let misspelt = |mut document: Value, pointer: &str, key: &str| {
        document.pointer_mut(pointer).unwrap().as_object_mut().unwrap().insert(key.to_owned(), "x".into());
        document
    };
    for (file, number, pointer, key) in [
        ("envoyfilter.yaml", 0, "/spec/configPatches/2/match", "portNumber"),
        ("envoyfilter.yaml", 0, "/spec", "selector"),
        ("deploy/variants/wasmplugin.yaml", 0, "/spec", "failureStrategy"),
        ("deploy/gateway-api/gateway.yaml", 0, "/spec/infrastructure", "parameterRef"),
        (
            "deploy/kustomize/gateway/deployment.yaml",
            0,
            "/spec/template/spec/containers/0/lifecycle/preStop",
            "execute",
        ),
        ("deploy/istiooperator/gateway.yaml", 0, "/spec/components/ingressGateways/0/k8s", "minReadySeconds"),
        (
            "deploy/istiooperator/gateway.yaml",
            0,
            "/spec/components/ingressGateways/0/k8s/strategy/rollingUpdate",
            "surge",
        ),
        (
            "deploy/istiooperator/gateway.yaml",
            0,
            "/spec/components/ingressGateways/0/k8s/overlays/0/patches/6/value",
            "preStart",
        ),
    ] {
        let unknown = document::unknown_fields(&misspelt(at(file, number), pointer, key));
        assert!(unknown.iter().any(|path| path.ends_with(&format!("/{key}"))), "{file} {pointer}/{key}: {unknown:?}");
    }
    for (pointer, key) in
        [("", "initContainer"), ("/initContainers/0", "images"), ("/service", "externalTrafficPolicies")]
    {
        let unknown = helm::unknown_fields(&misspelt(at("deploy/helm/values.yaml", 0), pointer, key));
        assert!(unknown.iter().any(|path| path.ends_with(key)), "values {pointer}/{key}: {unknown:?}");
    }
    let mut config = at("deploy/gateway-api/gateway.yaml", 1);
    config["data"]["deployment"] = "spec: {template: {spec: {initContainer: []}}}".into();
    assert_eq!(document::unknown_fields(&config), ["data/deployment/spec/template/spec/initContainer"]);
    config["data"] = serde_json::json!({"deployments": ""});
    assert_eq!(document::unknown_fields(&config), ["data/deployments"]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn yaml_files(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return if place.extension().is_some_and(|end| end == "yaml") { vec![place.to_owned()] } else { Vec::new() };
    }
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(place).unwrap().flat_map(|entry| yaml_files(&entry.unwrap().path())).collect();
    files.sort();
    files
}

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
