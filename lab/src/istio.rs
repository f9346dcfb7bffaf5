//! A gateway as istiod and the agent configure it: a port of HTTP, a port of TLS with chains by server name, h1 and h2 on each
//! and a passthrough beside them, a port of TCP, the agent's own 15021 and 15090, and Istio's rules for which stats exist. Names and
//! settings are those of a live gateway's config dump and of istio's bootstrap (1.30), without the telemetry filters, which a
//! plain Envoy does not have.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::deployed::helm_values;
use crate::manifest::at;
use crate::topology;

/// The port of TLS.
pub(crate) const TLS: u16 = 28446;
/// The port of TCP.
pub(crate) const TCP: u16 = 28447;
/// The names with a chain of their own on the port of TLS.
pub(crate) const HOSTS: [&str; 2] = [topology::HOST, "second.local"];
/// A name whose TLS is not ended here.
const PASSTHROUGH: &str = "passthrough.local";
/// Envoy's own stats, as Prometheus reads them.
const PROMETHEUS: u16 = 15090;

/// Prefixes that Istio's bootstrap always includes (pkg/bootstrap, `requiredEnvoyStatsMatcherInclusionPrefixes`).
const INCLUDED: [&str; 8] =
    ["reporter=", "cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "component", "istio"];
const INCLUDED_SUFFIXES: [&str; 4] = ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];

/// The listeners, out of the one of plain HTTP.
pub(crate) fn listeners(plain: Value) -> Result<Vec<Value>> {
    let named = rcgen::generate_simple_self_signed(HOSTS.map(str::to_owned))?;
    let certificate = json!([{
        "certificate_chain": {"inline_string": named.cert.pem()},
        "private_key": {"inline_string": named.signing_key.serialize_pem()},
    }]);
    let mut tls = on_port(&plain, TLS)?;
    let template = at(&mut tls, "/filter_chains/0")?.clone();
    let mut chains = Vec::new();
    for host in HOSTS {
        chains.push(tls_chain(template.clone(), host, &certificate)?);
    }
    chains.push(json!({
        "filter_chain_match": {"server_names": [PASSTHROUGH]},
        "filters": [tcp_proxy("outbound|443||passthrough.default.svc.cluster.local")],
    }));
    *at(&mut tls, "/filter_chains")? = json!(chains);
    let inspector = json!([{
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"},
    }]);
    mapping(&mut tls)?.insert("listener_filters".into(), inspector);
    let mut tcp = on_port(&plain, TCP)?;
    *at(&mut tcp, "/filter_chains")? = json!([{"filters": [tcp_proxy(topology::CLUSTER)]}]);
    Ok([on_port(&plain, topology::TRAFFIC)?, tls, tcp].into_iter().map(as_istio).collect())
}

/// The bootstrap, out of the lab's own.
pub(crate) fn bootstrap(bootstrap: &mut Value) -> Result<()> {
    let prefixes = INCLUDED.iter().map(|prefix| json!({"prefix": prefix}));
    let suffixes = INCLUDED_SUFFIXES.iter().map(|suffix| json!({"suffix": suffix}));
    let routes = [json!({"safe_regex": {"regex": r"vhost\..*\.route\..*"}})];
    let asked_for = inclusion_regexps()?.into_iter().map(|regex| json!({"safe_regex": {"regex": regex}}));
    let patterns: Vec<Value> = prefixes.chain(suffixes).chain(routes).chain(asked_for).collect();
    let stats = json!({
        "use_all_default_tags": false,
        "stats_tags": [{
            "tag_name": "http_conn_manager_prefix",
            "regex": r"^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)",
        }],
        "stats_matcher": {"inclusion_list": {"patterns": patterns}},
    });
    mapping(bootstrap)?.insert("stats_config".into(), stats);
    let mut prometheus = at(bootstrap, "/static_resources/listeners/0")?.clone();
    *at(&mut prometheus, "/name")? = json!(format!("0.0.0.0_{PROMETHEUS}"));
    *at(&mut prometheus, "/address/socket_address/port_value")? = json!(PROMETHEUS);
    let manager = at(&mut prometheus, "/filter_chains/0/filters/0/typed_config")?;
    *at(manager, "/stat_prefix")? = json!("stats");
    let route = json!([{"match": {"prefix": "/stats/prometheus"}, "route": {"cluster": "prometheus_stats"}}]);
    *at(manager, "/route_config/virtual_hosts/0/routes")? = route;
    list(bootstrap, "/static_resources/listeners")?.push(prometheus);
    let agent = at(bootstrap, "/static_resources/clusters/0")?.clone();
    for (name, port) in
        [("prometheus_stats", topology::ADMIN), ("outbound|443||passthrough.default.svc.cluster.local", TLS)]
    {
        let mut cluster = agent.clone();
        *at(&mut cluster, "/name")? = json!(name);
        *at(&mut cluster, "/load_assignment/cluster_name")? = json!(name);
        let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value";
        *at(&mut cluster, endpoint)? = json!(port);
        list(bootstrap, "/static_resources/clusters")?.push(cluster);
    }
    Ok(())
}

/// `proxyStatsMatcher` of the values that are shipped for Istio's gateway chart.
fn inclusion_regexps() -> Result<Vec<String>> {
    let values = helm_values("values.yaml")?;
    let config = values.pointer("/podAnnotations/proxy.istio.io~1config").and_then(Value::as_str);
    let config: Value = serde_saphyr::from_str(config.context("no proxy.istio.io/config")?)?;
    let regexps = config.pointer("/proxyStatsMatcher/inclusionRegexps").cloned().context("no inclusionRegexps")?;
    Ok(serde_json::from_value(regexps)?)
}

/// A listener of the same kind on another port. Since 1.22 Istio ends the prefix of a listener's stats with a semicolon.
fn on_port(plain: &Value, port: u16) -> Result<Value> {
    let mut listener = plain.clone();
    *at(&mut listener, "/name")? = json!(format!("0.0.0.0_{port}"));
    *at(&mut listener, "/address/socket_address/port_value")? = json!(port);
    *at(&mut listener, "/filter_chains/0/filters/0/typed_config/stat_prefix")? =
        json!(format!("outbound_0.0.0.0_{port};"));
    Ok(listener)
}

fn tls_chain(mut chain: Value, host: &str, certificate: &Value) -> Result<Value> {
    let route = at(&mut chain, "/filters/0/typed_config/route_config")?;
    *at(route, "/name")? = json!(format!("https.443.https.{host}"));
    *at(route, "/virtual_hosts/0/domains")? = json!([host, format!("{host}:*")]);
    let fields = mapping(&mut chain)?;
    fields.insert("filter_chain_match".into(), json!({"server_names": [host]}));
    let transport = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": certificate},
            "require_client_certificate": false,
        },
    });
    fields.insert("transport_socket".into(), transport);
    fields.insert("transport_socket_connect_timeout".into(), json!("15s"));
    Ok(chain)
}

fn tcp_proxy(cluster: &str) -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": cluster,
            "cluster": cluster,
        },
    })
}

fn as_istio(mut listener: Value) -> Value {
    if let Some(fields) = listener.as_object_mut() {
        fields.insert("max_connections_to_accept_per_socket_event".into(), json!(1));
    }
    listener
}

fn mapping(value: &mut Value) -> Result<&mut serde_json::Map<String, Value>> {
    value.as_object_mut().context("not a mapping")
}

fn list<'a>(value: &'a mut Value, pointer: &str) -> Result<&'a mut Vec<Value>> {
    at(value, pointer)?.as_array_mut().with_context(|| format!("{pointer} is not a list"))
}

/// Checks by Envoy itself, without starting: once with the filters discovered, once with them in place, so that both their
/// surroundings and they themselves are read.
pub(crate) async fn validated(dir: &Path) -> Result<Vec<(String, std::result::Result<(), String>)>> {
    let read = |file: &str| -> Result<Value> {
        let text = std::fs::read_to_string(dir.join(file)).with_context(|| format!("cannot read {file}"))?;
        Ok(serde_json::from_str(&text)?)
    };
    let mut results = Vec::new();
    for (name, inlined) in [("discovered", false), ("in place", true)] {
        let mut whole = read("bootstrap.json")?;
        mapping(&mut whole)?.remove("dynamic_resources");
        let mut listeners = read(crate::envoy::LISTENERS_FILE)?;
        let resources = at(&mut listeners, "/resources")?;
        if inlined {
            put_in_place(resources, &read)?;
        }
        let listeners = resources.as_array().cloned().unwrap_or_default();
        for mut listener in listeners {
            mapping(&mut listener)?.remove("@type");
            list(&mut whole, "/static_resources/listeners")?.push(listener);
        }
        let file = dir.join(format!("validate-{}.json", name.replace(' ', "-")));
        std::fs::write(&file, serde_json::to_string_pretty(&whole)?)?;
        let mut command = tokio::process::Command::new(crate::foreign::ENVOY.path());
        command
            .args(["--mode", "validate", "--log-level", "warning", "-c"])
            .arg(&file)
            .current_dir(dir)
            .kill_on_drop(true);
        let output = command.output().await.context("cannot start Envoy")?;
        let words = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        results.push((name.to_owned(), if output.status.success() { Ok(()) } else { Err(words) }));
    }
    Ok(results)
}

/// Replaces each `config_discovery` by what it would discover.
fn put_in_place(value: &mut Value, read: &impl Fn(&str) -> Result<Value>) -> Result<()> {
    if let Some(fields) = value.as_object_mut() {
        if fields.remove("config_discovery").is_some() {
            let name = fields.get("name").and_then(Value::as_str).context("a discovered filter without name")?;
            let mut extension = read(&crate::manifest::extension_file(name))?;
            fields.insert("typed_config".into(), at(&mut extension, "/resources/0/typed_config")?.take());
            return Ok(());
        }
        return fields.values_mut().try_for_each(|field| put_in_place(field, read));
    }
    value.as_array_mut().into_iter().flatten().try_for_each(|item| put_in_place(item, read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn gateway() -> Vec<Value> {
        let root = topology::root().unwrap();
        let text = std::fs::read_to_string(root.join("testdata/envoy/traffic-listener.yaml")).unwrap();
        let text = topology::fill(&text, Path::new("/run"), &[]).unwrap();
        listeners(serde_saphyr::from_str(&text).unwrap()).unwrap()
    }

    #[test]
    fn counting_comes_first_in_every_http_chain_and_touches_no_tcp_chain() {
        let root = topology::root().unwrap();
        let manifest = Manifest::read(&root.join("envoyfilter.yaml")).unwrap();
        let before = gateway();
        let after = manifest.resolve(before.clone(), Path::new("/m.wasm"), Path::new("/run"), &Default::default());
        let after = after.unwrap().listeners;
        let (mut http, mut tcp) = (0, 0);
        for (before, after) in before.iter().zip(&after) {
            let chains = |listener: &Value| listener["filter_chains"].as_array().unwrap().clone();
            for (before, after) in chains(before).into_iter().zip(chains(after)) {
                let filters = |chain: &Value| chain.pointer("/filters/0/typed_config/http_filters").cloned();
                match (filters(&before), filters(&after)) {
                    (Some(before), Some(after)) => {
                        assert_eq!(after[0]["name"], "softclose-count");
                        assert_eq!(after.as_array().unwrap()[1..], before.as_array().unwrap()[..]);
                        http += 1;
                    }
                    _ => {
                        assert_eq!(before, after);
                        tcp += 1;
                    }
                }
            }
        }
        assert_eq!((http, tcp, after.len()), (3, 2, 5));
    }
}
