//! Envoy: its configuration on disk, and what its admin says.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::http::Client;
use crate::manifest::{Edit, Manifest, Overrides, at, extension_file};
use crate::network::{Host, Pod};
use crate::{balancer_checks, istio, topology};

/// The sum that event 4 is about: requests in flight downstream on the traffic listeners and upstream to their clusters.
const ACTIVE: &str =
    r"%5E(http%5C.outbound_.%2A%5C.downstream_rq_active%7Ccluster%5C.outbound.%2A%5C.upstream_rq_active)%24";

/// The file that the listeners are discovered in.
pub(crate) const LISTENERS_FILE: &str = "lds.json";

/// What one Envoy is to be configured with.
pub(crate) struct Config<'a> {
    /// The module, if softclose is part of this gateway.
    pub(crate) module: Option<PathBuf>,
    pub(crate) overrides: &'a Overrides,
    pub(crate) pod: &'a Pod,
    /// The application's address.
    pub(crate) application: IpAddr,
}

impl Config<'_> {
    /// Writes bootstrap, LDS and extension configurations into `dir`; returns the bootstrap's path.
    pub(crate) fn write(&self, dir: &Path) -> Result<PathBuf> {
        let root = topology::root()?;
        let names = [
            ("POD_NAME", self.pod.name.clone()),
            ("POD_INSIDE", self.pod.inside.to_string()),
            ("POD_OUTSIDE", self.pod.outside.to_string()),
            ("APP_ADDRESS", self.application.to_string()),
        ];
        let template = |name: &str| -> Result<Value> {
            let path = root.join("testdata/envoy").join(name);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let text = topology::fill(&text, dir, &names).with_context(|| format!("in {}", path.display()))?;
            serde_saphyr::from_str(&text).with_context(|| format!("in {}", path.display()))
        };
        let deployed = self.overrides.deployed;
        let plain = template("traffic-listener.yaml")?;
        let mut listeners = if deployed.istio { istio::listeners(plain)? } else { vec![plain] };
        if let Some(module) = &self.module {
            let manifest = Manifest::read(&deployed.variant.path(&root))?;
            let resolved = manifest.resolve(listeners, module, dir, self.overrides)?;
            listeners = resolved.listeners;
            listeners.iter_mut().try_for_each(|listener| move_to(listener, self.pod))?;
            for (name, extension) in resolved.extensions {
                write_resources(&dir.join(extension_file(&name)), &[extension])?;
            }
        }
        let listeners = edited(Value::Array(listeners), &self.overrides.listeners)?;
        write_json(&dir.join(LISTENERS_FILE), &json!({ "version_info": "1", "resources": listeners }))?;
        let mut bootstrap = template("bootstrap.yaml")?;
        if deployed.istio {
            istio::bootstrap(&mut bootstrap)?;
        }
        let path = dir.join("bootstrap.json");
        write_json(&path, &edited(bootstrap, &self.overrides.bootstrap)?)?;
        Ok(path)
    }
}

/// Adds a listener on the health port whose answer is Envoy's health check filter's, as Envoy Gateway and Contour have one:
/// 200 until `POST /healthcheck/fail`, 503 from then on.
pub(crate) fn with_health_filter(bootstrap: &mut Value) -> Result<()> {
    let mut listener = at(bootstrap, "/static_resources/listeners/0")?.clone();
    *at(&mut listener, "/name")? = json!("health");
    *at(&mut listener, "/address/socket_address/port_value")? = json!(topology::HEALTH);
    let manager = at(&mut listener, "/filter_chains/0/filters/0/typed_config")?;
    *at(manager, "/stat_prefix")? = json!("health");
    let filters = at(manager, "/http_filters")?.as_array_mut().context("http_filters is not a list")?;
    let health_check = json!({
        "name": "envoy.filters.http.health_check",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck",
            "pass_through_mode": false,
            "headers": [{ "name": ":path", "string_match": { "exact": "/health_check.html" } }],
        },
    });
    filters.insert(0, health_check);
    balancer_checks::log_in(&mut listener, balancer_checks::PATH)?;
    at(bootstrap, "/static_resources/listeners")?.as_array_mut().context("listeners is not a list")?.push(listener);
    Ok(())
}

/// Lets the status listener log each question for readiness.
pub(crate) fn with_logged_status(bootstrap: &mut Value) -> Result<()> {
    balancer_checks::log_in(at(bootstrap, "/static_resources/listeners/0")?, "/healthz/ready")
}

/// A shipped listener of a pod that shares its machine with another: its address is the pod's.
fn move_to(listener: &mut Value, pod: &Pod) -> Result<()> {
    if !pod.shares_machine {
        return Ok(());
    }
    let address = at(listener, "/address/socket_address/address")?;
    let own = match address.as_str() {
        Some("127.0.0.1") => pod.inside,
        Some("0.0.0.0") => pod.outside,
        Some(_) | None => return Ok(()),
    };
    *address = json!(own);
    Ok(())
}

/// Gives a running Envoy another plugin configuration, as a push of the control plane would.
pub(crate) fn push_plugin_configuration(dir: &Path, extension: &str, configuration: &str) -> Result<()> {
    push(dir, &extension_file(extension), |resources| {
        *at(resources, "/0/typed_config/config/configuration/value")? = json!(configuration);
        Ok(())
    })
}

/// Gives a running Envoy other resources than those of `file`, as a push of the control plane would.
pub(crate) fn push(dir: &Path, file: &str, edit: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let path = dir.join(file);
    let mut response: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    edit(at(&mut response, "/resources")?)?;
    // Envoy watches for a move into place, not for writes.
    let next = path.with_extension("next");
    write_json(&next, &response)?;
    std::fs::rename(&next, &path).with_context(|| format!("cannot replace {}", path.display()))
}

/// Requests in flight as admin counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Active {
    pub(crate) downstream: u64,
    pub(crate) upstream: u64,
}

/// Reads Envoy's admin from an address of its own.
#[derive(Clone, Copy)]
pub(crate) struct Admin {
    client: Client,
    at: SocketAddr,
}

impl Admin {
    /// Of the only pod on loopback.
    pub(crate) fn new() -> Self {
        Self::of(&Pod::only())
    }

    pub(crate) fn of(pod: &Pod) -> Self {
        Self::read_from(pod.admin_probe(), pod.admin())
    }

    fn read_from(probe: Host, at: SocketAddr) -> Self {
        Self { client: Client::on(probe, Duration::from_secs(2)), at }
    }

    /// An admin page, or why there is none.
    pub(crate) async fn page(&self, path: &str) -> Result<String, String> {
        match self.client.get(self.at, path).await {
            Ok(answer) if answer.status == 200 => Ok(answer.body),
            Ok(answer) => Err(format!("status {}", answer.status)),
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// Whether every listener has been set up.
    pub(crate) async fn ready(&self) -> bool {
        self.page("/ready").await.is_ok_and(|body| body.trim() == "LIVE")
    }

    /// Requests in flight; no answer is unknown, never zero.
    pub(crate) async fn active(&self) -> Result<Active, String> {
        parse_active(&self.page(&format!("/stats?filter={ACTIVE}")).await?).ok_or_else(|| "no such stats".to_owned())
    }

    /// Extension configurations that Envoy took and refused since its start.
    pub(crate) async fn extension_pushes(&self, extension: &str) -> Result<(u64, u64), String> {
        let page = self.page(&format!("/stats?filter=extension_config_discovery.*{extension}")).await?;
        let sum = |counter: &str| {
            let lines =
                page.lines().filter_map(|line| line.rsplit_once(": ")).filter(|(name, _)| name.ends_with(counter));
            lines.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum()
        };
        Ok((sum("config_reload"), sum("config_fail")))
    }

    /// New connections that each worker took on listeners with this stat prefix, since Envoy's start.
    pub(crate) async fn connections_by_worker(&self, stat_prefix: &str) -> Result<Vec<u64>, String> {
        let page = self.page(&format!("/stats?filter=listener.{stat_prefix}.worker_.%2Adownstream_cx_total")).await?;
        Ok(page.lines().filter_map(|line| line.rsplit(": ").next()?.trim().parse().ok()).collect())
    }
}

fn parse_active(page: &str) -> Option<Active> {
    let mut active = Active { downstream: 0, upstream: 0 };
    let mut seen = false;
    for line in page.lines() {
        let (name, value) = line.rsplit_once(": ")?;
        let value: u64 = value.trim().parse().ok()?;
        if name.ends_with("downstream_rq_active") {
            active.downstream += value;
            seen = true;
        } else {
            active.upstream += value;
        }
    }
    seen.then_some(active)
}

fn edited(mut value: Value, edits: &[Edit]) -> Result<Value> {
    edits.iter().try_for_each(|edit| edit(&mut value))?;
    Ok(value)
}

fn write_resources(path: &Path, resources: &[Value]) -> Result<()> {
    write_json(path, &json!({ "version_info": "1", "resources": resources }))
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_sums_listeners_and_clusters() {
        let page =
            "cluster.outbound|8080||app.upstream_rq_active: 2\nhttp.outbound_0.0.0.0_28080.downstream_rq_active: 3\n";
        assert_eq!(parse_active(page), Some(Active { downstream: 3, upstream: 2 }));
    }

    #[test]
    fn an_empty_page_is_unknown_and_not_zero() {
        assert_eq!(parse_active(""), None);
    }
}
