//! `softclose status --verify`, beside real Envoy: it is content with the shipped configuration, and finds what is planted.

use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cases::scene::{LIMIT, Scene};
use crate::envoy;
use crate::ground::Options;
use crate::manifest::{Overrides, at, extension_file};
use crate::{topology, wait};

/// The shipped configuration is as it should be, but for a listener that nobody can count.
pub(crate) async fn shipped(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let (code, said) = verify().await?;
    scene.check(code == Some(0), "the shipped configuration is as it should be", format!("{code:?}\n{said}"));
    scene.check(!said.contains("limit"), "all of it can be counted", said);

    envoy::push(&scene.dir, envoy::LISTENERS_FILE, with_tcp)?;
    let there = async || {
        let (code, said) = verify().await.ok()?;
        let named =
            said.lines().any(|line| line.starts_with("limit") && line.contains("tcp_29999 (127.0.0.1:29999): TCP"));
        named.then_some((code, said))
    };
    let (code, said) = wait::until("the TCP listener is named", LIMIT, there).await?;
    scene.check(
        code == Some(0),
        "a listener that cannot be counted is named, and no mistake",
        format!("{code:?}\n{said}"),
    );
    Ok(())
}

/// Neither a stand-in under the filter's name, nor a filter that is not there, nor one that comes second passes for it.
pub(crate) async fn lacking(scene: &mut Scene) -> Result<()> {
    scene
        .start(Options { overrides: Overrides { without_count: true, ..Overrides::default() }, ..Options::default() })
        .await?;
    finds(scene, "a traffic listener without the filter", "not counted: no counting filter").await?;

    let second = Overrides { listeners: vec![second_place], ..Overrides::default() };
    scene.start(Options { overrides: second, ..Options::default() }).await?;
    finds(scene, "a filter that comes second", "what waits in envoy.filters.http.grpc_stats is not counted").await?;

    scene.start(Options::default()).await?;
    envoy::push(&scene.dir, &extension_file("softclose-count"), |resources| {
        *at(resources, "/0/typed_config")? =
            json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"});
        Ok(())
    })?;
    finds(scene, "the agent's stand-in", "instead of the counting filter runs RBAC").await?;

    let missing = Overrides { module: Some(scene.dir.join("no.wasm")), ..Overrides::default() };
    scene.start_without_gate(Options { overrides: missing, ..Options::default() }).await?;
    finds(scene, "a module that is not there", "Envoy refused its last update: Invalid path").await
}

/// Waits until it says so and ends with 20; notes whether it did.
async fn finds(scene: &mut Scene, planted: &str, finding: &str) -> Result<()> {
    let mut last = String::new();
    let found = async || {
        let (code, said) = verify().await.ok()?;
        let wrong = said.lines().any(|line| line.starts_with("WRONG") && line.contains(finding));
        last = format!("{code:?}\n{said}");
        (wrong && code == Some(20)).then_some(())
    };
    let held = wait::until(planted, LIMIT, found).await.is_ok();
    scene.check(held, format!("{planted} is found: {finding}"), last);
    Ok(())
}

async fn verify() -> Result<(Option<i32>, String)> {
    let binary = topology::artifact("SOFTCLOSE_BIN", "softclose")?;
    let output = tokio::process::Command::new(binary)
        .args(["status", "--verify"])
        .stdin(Stdio::null())
        .output()
        .await
        .context("cannot run softclose")?;
    Ok((output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()))
}

fn with_tcp(listeners: &mut Value) -> Result<()> {
    let tcp = json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "tcp_29999",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 29999}},
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "stat_prefix": "tcp",
                "cluster": "agent",
            },
        }]}],
    });
    listeners.as_array_mut().context("no list of listeners")?.push(tcp);
    Ok(())
}

fn second_place(listeners: &mut Value) -> Result<()> {
    let filters = at(listeners, "/0/filter_chains/0/filters/0/typed_config/http_filters")?;
    filters.as_array_mut().context("no list of filters")?.swap(0, 1);
    Ok(())
}
