//! Whichever way a gateway is installed, it gets the same.

use serde_json::{Value, json};

use crate::{documents, istio_operator, root};

/// What a way of installing gives the gateway.
#[derive(Debug, PartialEq)]
struct Gateway {
    label: Value,
    init_containers: Value,
    volume: Value,
    volume_mount: Value,
    lifecycle: Value,
    grace: Value,
    /// `proxy.istio.io/config`, read.
    proxy_config: Value,
    strategy: Value,
    min_ready: Value,
    disruption_budget: Value,
    health_port: Value,
    service: [Value; 2],
    topology_key: Value,
    scale_down: Value,
}

#[test]
fn whichever_way_a_gateway_is_installed_it_gets_the_same() {
    let helm = by_helm();
    assert_eq!(by_kustomize(helm.scale_down.clone()), helm, "kustomize (whose example has no autoscaler)");
    assert_eq!(by_istio_operator(), helm, "IstioOperator");
    assert_eq!(by_gateway_api(), helm, "Gateway API");
}

#[test]
fn the_command_is_told_the_grace_period_and_the_agent_fits_into_what_it_keeps_back() {
    for file in ["values.yaml", "values-nlb.yaml", "values-unix-socket.yaml"] {
        let values = values(file);
        let own = values.get("terminationGracePeriodSeconds").cloned();
        let seconds = own.unwrap_or_else(|| by_helm().grace);
        let command = values["lifecycle"]["preStop"]["exec"]["command"].as_array().unwrap();
        let at = command.iter().position(|word| word == "--grace").unwrap();
        assert_eq!(command[at + 1], format!("{seconds}s"), "{file}");
    }
    // The preStop command's reserve is 5 s, and kubelet kills at its end.
    let drain = by_helm().proxy_config["terminationDrainDuration"].as_str().unwrap().to_owned();
    let seconds: u32 = drain.strip_suffix('s').unwrap().parse().unwrap();
    assert!((1..5).contains(&seconds), "{drain}");
}

#[test]
fn the_selected_label_is_the_one_that_the_pod_template_gets() {
    for file in ["envoyfilter.yaml", "deploy/variants/wasmplugin.yaml", "deploy/variants/unix-socket.yaml"] {
        for document in documents(&root().join(file)) {
            let labels = match document["kind"].as_str().unwrap() {
                "WasmPlugin" => &document["spec"]["selector"]["matchLabels"],
                _ => &document["spec"]["workloadSelector"]["labels"],
            };
            assert_eq!(*labels, json!({"softclose.dev/gate": by_helm().label}), "{file}");
        }
    }
}

#[test]
fn the_socket_is_where_the_command_looks_for_it() {
    let command = &values("values-unix-socket.yaml")["lifecycle"]["preStop"]["exec"]["command"];
    let variant = &documents(&root().join("deploy/variants/unix-socket.yaml"))[0];
    let path = &variant["spec"]["configPatches"][4]["patch"]["value"]["address"]["pipe"]["path"];
    assert_eq!(command[5], format!("unix:{}", path.as_str().unwrap()));
}

fn values(file: &str) -> Value {
    documents(&root().join("deploy/helm").join(file)).remove(0)
}

fn by_helm() -> Gateway {
    let values = values("values.yaml");
    Gateway {
        label: values["labels"]["softclose.dev/gate"].clone(),
        init_containers: values["initContainers"].clone(),
        volume: named_softclose(&values["volumes"]),
        volume_mount: named_softclose(&values["volumeMounts"]),
        lifecycle: values["lifecycle"].clone(),
        grace: values["terminationGracePeriodSeconds"].clone(),
        proxy_config: proxy_config(&values["podAnnotations"]),
        strategy: values["strategy"].clone(),
        min_ready: values["minReadySeconds"].clone(),
        disruption_budget: values["podDisruptionBudget"]["maxUnavailable"].clone(),
        health_port: health_port(&values["service"]),
        service: [values["service"]["type"].clone(), values["service"]["externalTrafficPolicy"].clone()],
        topology_key: topology_key(&values["affinity"]),
        scale_down: values["autoscaling"]["autoscaleBehavior"]["scaleDown"].clone(),
    }
}

/// From the objects that kustomize, istioctl and istiod merge into, or make.
fn from_objects(deployment: &Value, service: &Value, budget: &Value, scale_down: Value) -> Gateway {
    let (template, spec) = (&deployment["spec"]["template"], &deployment["spec"]["template"]["spec"]);
    assert_eq!(spec["containers"][0]["name"], "istio-proxy");
    Gateway {
        label: template["metadata"]["labels"]["softclose.dev/gate"].clone(),
        init_containers: spec["initContainers"].clone(),
        volume: named_softclose(&spec["volumes"]),
        volume_mount: named_softclose(&spec["containers"][0]["volumeMounts"]),
        lifecycle: spec["containers"][0]["lifecycle"].clone(),
        grace: spec["terminationGracePeriodSeconds"].clone(),
        proxy_config: proxy_config(&template["metadata"]["annotations"]),
        strategy: deployment["spec"]["strategy"].clone(),
        min_ready: deployment["spec"]["minReadySeconds"].clone(),
        disruption_budget: budget["maxUnavailable"].clone(),
        health_port: health_port(service),
        service: [service["type"].clone(), service["externalTrafficPolicy"].clone()],
        topology_key: topology_key(&spec["affinity"]),
        scale_down,
    }
}

fn by_kustomize(scale_down: Value) -> Gateway {
    let read = |file: &str| documents(&root().join("deploy/kustomize/gateway").join(file)).remove(0);
    let (deployment, service) = (read("deployment.yaml"), read("service.yaml"));
    from_objects(&deployment, &service["spec"], &read("podDisruptionBudget.yaml")["spec"], scale_down)
}

fn by_istio_operator() -> Gateway {
    let document = documents(&root().join("deploy/istiooperator/gateway.yaml")).remove(0);
    let gateway = &document["spec"]["components"]["ingressGateways"][0];
    let k8s = &gateway["k8s"];
    let mut deployment = istio_operator::deployment(gateway);
    // What has a field of its own, istioctl writes before the overlays (operator/pkg/render/postprocess.go).
    deployment["spec"]["strategy"] = k8s["strategy"].clone();
    deployment["spec"]["template"]["metadata"]["annotations"] = k8s["podAnnotations"].clone();
    deployment["spec"]["template"]["spec"]["affinity"] = k8s["affinity"].clone();
    let scale_down = k8s["hpaSpec"]["behavior"]["scaleDown"].clone();
    from_objects(&deployment, &k8s["service"], &k8s["podDisruptionBudget"], scale_down)
}

fn by_gateway_api() -> Gateway {
    let config = documents(&root().join("deploy/gateway-api/gateway.yaml")).remove(1);
    let overlay = |key: &str| -> Value { serde_saphyr::from_str(config["data"][key].as_str().unwrap()).unwrap() };
    let scale_down = overlay("horizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"].clone();
    let (service, budget) = (overlay("service"), overlay("podDisruptionBudget"));
    from_objects(&overlay("deployment"), &service["spec"], &budget["spec"], scale_down)
}

fn named_softclose(list: &Value) -> Value {
    list.as_array().unwrap().iter().find(|item| item["name"] == "softclose").unwrap().clone()
}

fn proxy_config(annotations: &Value) -> Value {
    serde_saphyr::from_str(annotations["proxy.istio.io/config"].as_str().unwrap()).unwrap()
}

fn health_port(service: &Value) -> Value {
    service["ports"].as_array().unwrap().iter().find(|port| port["name"] == "softclose-health").unwrap().clone()
}

fn topology_key(affinity: &Value) -> Value {
    affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"].clone()
}
