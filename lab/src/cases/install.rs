//! The order of installation: whatever comes first, filters or module, traffic is answered.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cases::scene::{LIMIT, Scene, field, fresh_requests};
use crate::envoy::{self, Admin};
use crate::gate::{Held, health_word};
use crate::ground::{self, Options};
use crate::http::Client;
use crate::manifest::{Overrides, at, extension_file};
use crate::network::{Network, Pod};
use crate::{topology, wait};

const EXTENSIONS: [&str; 2] = ["softclose-count", "softclose-gate"];

/// Filters first, the module late: nothing harms traffic in between, and what it takes for the gate to come up is shown.
pub(crate) async fn module_later(scene: &mut Scene) -> Result<()> {
    let module = scene.dir.join("later.wasm");
    // A folder that an earlier run has used.
    let _absent = std::fs::remove_file(&module);
    let overrides =
        Overrides { module: Some(module.clone()), listeners: vec![nothing_of_ours], ..Overrides::default() };
    scene.start_without_gate(Options { overrides, ..Options::default() }).await?;
    // As over ADS: the listeners come before the extensions that they name.
    let mut extensions = Vec::new();
    for extension in EXTENSIONS {
        envoy::push(&scene.dir, &extension_file(extension), |resources| {
            extensions.push(std::mem::replace(resources, json!([])));
            Ok(())
        })?;
    }
    let with = listeners_with_ours(scene, &module)?;
    put_listeners(scene, &with)?;
    let unanswered = |port: u16| async move {
        let client = Client::new(topology::OPERATOR, Duration::from_secs(2));
        let answer = client.get(topology::local(port), "/health_check.html").await;
        (answer.as_ref().is_ok_and(|answer| answer.status == 503 && answer.state().is_none()), health_word(&answer))
    };
    let up = async || (unanswered(topology::CONTROL).await.0 && unanswered(topology::HEALTH).await.0).then_some(());
    wait::until("both listeners stand without the filter", LIMIT, up).await?;
    flows(scene, "no extension yet").await;

    for (extension, resources) in EXTENSIONS.iter().zip(&extensions) {
        put_extension(scene, extension, resources)?;
        let refused = async || {
            let (_, refused) = Admin::new().extension_pushes(extension).await.ok()?;
            (refused > 0).then_some(())
        };
        wait::until("Envoy's refusal", LIMIT, refused).await?;
    }
    flows(scene, "without the module").await;
    let (held, word) = unanswered(topology::HEALTH).await;
    scene.check(held, "health is 503 and never taken for the gate's answer", word);

    let mut changed = with.clone();
    let metadata = json!({"filter_metadata": {"lab": {"changed": true}}});
    at(&mut changed, "/0")?.as_object_mut().context("no mapping")?.insert("metadata".into(), metadata);
    let before = lds(scene).await;
    put_listeners(scene, &changed)?;
    let after =
        wait::until("Envoy's word", LIMIT, async || Some(lds(scene).await).filter(|now| *now != before)).await?;
    flows(scene, &format!("a listener changed without the module (taken, refused {before:?} -> {after:?})")).await;

    std::fs::copy(topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?, &module)?;
    flows(scene, "the module has come, and nobody has said so").await;
    for (extension, resources) in EXTENSIONS.iter().zip(&mut extensions) {
        // The same again is nothing new to Envoy, so a white space makes it another.
        let configuration = at(resources, "/0/typed_config/config/configuration/value")?;
        *configuration = json!(format!("{} ", configuration.as_str().unwrap_or_default()));
        put_extension(scene, extension, resources)?;
    }
    answers_without_a_loss(scene).await?;
    counts_and_drains(scene).await
}

/// Listener updates that Envoy took and refused.
async fn lds(scene: &Scene) -> (u64, u64) {
    let stat = async |name: &str| scene.stat(&format!("listener_manager.lds.{name}")).await.unwrap_or(0);
    (stat("update_success").await, stat("update_rejected").await)
}

fn put_extension(scene: &Scene, extension: &str, with: &Value) -> Result<()> {
    envoy::push(&scene.dir, &extension_file(extension), |resources| {
        *resources = with.clone();
        Ok(())
    })
}

fn put_listeners(scene: &Scene, with: &Value) -> Result<()> {
    envoy::push(&scene.dir, envoy::LISTENERS_FILE, |listeners| {
        *listeners = with.clone();
        Ok(())
    })
}

/// The listeners as they are with the file applied.
fn listeners_with_ours(scene: &Scene, module: &Path) -> Result<Value> {
    let other = scene.dir.join("with");
    std::fs::create_dir_all(&other)?;
    envoy::Config {
        module: Some(module.to_owned()),
        overrides: &Overrides::default(),
        pod: &Pod::only(),
        application: Network::Loopback.application().address,
    }
    .write(&other)?;
    let text = std::fs::read_to_string(other.join(envoy::LISTENERS_FILE))?;
    // Extensions are discovered in the folder of the gateway that runs.
    let text = text.replace(&format!("{}/", other.display()), &format!("{}/", scene.dir.display()));
    let response: Value = serde_json::from_str(&text)?;
    response.get("resources").cloned().context("no resources")
}

async fn answers_without_a_loss(scene: &mut Scene) -> Result<()> {
    let mut requests = 0;
    let answered = async || {
        let (good, bad) = fresh_requests(5).await;
        requests += good;
        if !bad.is_empty() {
            return Some(Err(anyhow::anyhow!("not all were answered 200: {bad:?}")));
        }
        (scene.health().await == "200 OPEN").then_some(Ok(()))
    };
    wait::until("the gate answers", LIMIT, answered).await??;
    let health = scene.health().await;
    scene.check(
        health == "200 OPEN",
        "after the push the gate answers",
        format!("{health}; {requests} x 200 meanwhile"),
    );
    Ok(())
}

/// Module first, filters into a running gateway that had none.
pub(crate) async fn filters_later(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![nothing_of_ours], ..Overrides::default() };
    scene.start_without_gate(Options { overrides, ..Options::default() }).await?;
    flows(scene, "a gateway without softclose").await;
    let health = scene.health().await;
    scene.check(health == "refused", "nobody listens for health", health);
    let with = listeners_with_ours(scene, &topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?)?;
    put_listeners(scene, &with)?;
    answers_without_a_loss(scene).await?;
    counts_and_drains(scene).await
}

fn nothing_of_ours(listeners: &mut Value) -> Result<()> {
    let list = listeners.as_array_mut().context("no list")?;
    list.truncate(1);
    let filters = at(listeners, "/0/filter_chains/0/filters/0/typed_config/http_filters")?;
    filters.as_array_mut().context("no list of filters")?.remove(0);
    Ok(())
}

async fn flows(scene: &mut Scene, when: &str) {
    let (good, bad) = fresh_requests(40).await;
    scene.check(
        bad.is_empty() && good == 40,
        format!("{when}: traffic is answered 200"),
        format!("{good} x 200, others {bad:?}"),
    );
}

async fn counts_and_drains(scene: &mut Scene) -> Result<()> {
    ground::gate_answers().await?;
    let held = Held::start(scene.ground()?, 4, 60.0).await?;
    scene.counts(4, "held").await?;
    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    drop(held);
    let document = scene.reaches("CLOSING", Duration::from_secs(5), "the drain").await?;
    scene.check(field(&document, "/verdict") == "\"clean\"", "clean", field(&document, "/verdict"));
    Ok(())
}
