//! Installation, update and removal: whatever comes first, filters, extensions or module, and whatever is replaced, traffic is
//! answered.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cases::scene::{LIMIT, Scene, field, fresh_requests};
use crate::envoy::{self, Admin};
use crate::gate::{Held, health_word};
use crate::ground::{self, Options};
use crate::http::Client;
use crate::manifest::{Overrides, agent, at, extension_file};
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
    let mut extensions = withheld(scene)?;
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

/// Listeners and module first, the extensions that they name late, as when istiod answers one subscription before the other.
pub(crate) async fn extensions_later(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![nothing_of_ours], ..Overrides::default() };
    scene.start_without_gate(Options { overrides, ..Options::default() }).await?;
    let extensions = withheld(scene)?;
    let with = listeners_with_ours(scene, &topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?)?;
    put_listeners(scene, &with)?;
    let unanswered = async || (scene.health().await == "503 (no state)").then_some(());
    wait::until("health stands, without the gate", LIMIT, unanswered).await?;
    flows(scene, "no extension yet").await;
    for (extension, resources) in EXTENSIONS.iter().zip(&extensions) {
        put_extension(scene, extension, resources)?;
    }
    answers_without_a_loss(scene).await?;
    counts_and_drains(scene).await
}

/// The extensions that the files hold, taken out of them.
fn withheld(scene: &Scene) -> Result<Vec<Value>> {
    let mut extensions = Vec::new();
    for extension in EXTENSIONS {
        envoy::push(&scene.dir, &extension_file(extension), |resources| {
            extensions.push(std::mem::replace(resources, json!([])));
            Ok(())
        })?;
    }
    Ok(extensions)
}

/// The agent cannot pull the counting module: its stand-in lets all pass, nobody counts, and no drain takes that for idle.
pub(crate) async fn stand_in_for_count(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let held = Held::start(scene.ground()?, 2, 60.0).await?;
    scene.counts(2, "held before").await?;
    let original = replaced_by_stand_in(scene, "softclose-count").await?;
    flows(scene, "the stand-in counts").await;
    let word = scene.health().await;
    scene.check(word == "200 OPEN", "health is the gate's", word);
    scene.gate.command("/drain?settle_ms=0&deadline_ms=20000").await?;
    let distrusted = async || {
        let status = scene.gate.status().await.ok()?;
        (field(&status, "/distrust") != "null").then_some(status)
    };
    let status = wait::until("the drain is distrusted", LIMIT, distrusted).await?;
    let word = scene.health().await;
    let seen = format!("{word}, {}", field(&status, "/distrust/reason"));
    scene.check(word == "200 DRAINING", "nobody counts is not idle: the drain is distrusted, health stays 200", seen);
    taken(scene, "softclose-count", &original).await?;
    flows(scene, "the module again").await;
    held.leave().await;
    Ok(())
}

/// The agent cannot pull the gate's module: its stand-in denies on health and control, and traffic never sees it. The preStop
/// command goes by Envoy's own counters then.
pub(crate) async fn stand_in_for_gate(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let original = replaced_by_stand_in(scene, "softclose-gate").await?;
    let denied = async || (scene.health().await == "403 (no state)").then_some(());
    let seen = wait::until("health is denied", LIMIT, denied).await;
    scene.check(seen.is_ok(), "health is 403, never taken for the gate's answer", scene.health().await);
    flows(scene, "the stand-in answers health").await;
    taken(scene, "softclose-gate", &original).await?;
    answers_without_a_loss(scene).await?;
    let _again = replaced_by_stand_in(scene, "softclose-gate").await?;
    let mut hook = scene.pre_stop("prestop", Duration::from_secs(30))?;
    let code = hook.exit(Duration::from_secs(40)).await.and_then(|status| status.code());
    let words = crate::process::last_words(&scene.said("prestop"));
    scene.check(code == Some(12), "the preStop command falls back on Envoy's counters", format!("{code:?}: {words}"));
    Ok(())
}

/// Replaces an extension as the agent would where it cannot pull; gives what was there.
async fn replaced_by_stand_in(scene: &mut Scene, extension: &str) -> Result<Value> {
    let mut original = extension_of(scene, extension)?;
    let stand_in = json!([agent::stand_in(at(&mut original, "/0")?)]);
    taken(scene, extension, &stand_in).await?;
    Ok(original)
}

/// Delivers an extension and waits until Envoy has taken it.
async fn taken(scene: &mut Scene, extension: &str, resources: &Value) -> Result<()> {
    let admin = Admin::new();
    let before = admin.extension_pushes(extension).await.map_err(anyhow::Error::msg)?;
    put_extension(scene, extension, resources)?;
    let moved = async || admin.extension_pushes(extension).await.ok().filter(|now| *now != before);
    let after = wait::until("Envoy has read the extension", LIMIT, moved).await?;
    scene.check(after.0 > before.0 && after.1 == before.1, format!("{extension} is taken"), format!("{after:?}"));
    Ok(())
}

/// The EnvoyFilter is deleted under a running gateway, which is not how it is meant to go: traffic goes on, what was in flight on the
/// old listener ends within Envoy's drain time, and health goes away as if the pod had.
pub(crate) async fn filters_removed(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let client = Client::new(topology::OPERATOR, Duration::from_secs(30));
    let slow = tokio::spawn(async move { client.get(topology::local(topology::TRAFFIC), "/sleep?seconds=3").await });
    scene.counts(1, "in flight").await?;
    envoy::push(&scene.dir, envoy::LISTENERS_FILE, nothing_of_ours)?;
    let mut requests = 0;
    let gone = async || {
        let (good, bad) = fresh_requests(5).await;
        requests += good;
        if !bad.is_empty() {
            return Some(Err(anyhow::anyhow!("not all were answered 200: {bad:?}")));
        }
        (scene.health().await == "refused").then_some(Ok(()))
    };
    wait::until("health is gone", LIMIT, gone).await??;
    scene.check(true, "health goes away, traffic is answered 200 meanwhile", format!("{requests} x 200"));
    let status = slow.await?.map(|answer| answer.status);
    scene.check(matches!(status, Ok(200)), "the request in flight ends well", format!("{status:?}"));
    flows(scene, "without softclose").await;
    Ok(())
}

/// Another build of the module for both roles, and back: the way of a release that is taken back. Nothing is lost, nothing flips,
/// and a drain afterwards counts what began on either build.
pub(crate) async fn updated_and_rolled_back(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let first = Held::start(scene.ground()?, 2, 60.0).await?;
    let planted = topology::artifact("SOFTCLOSE_WASM_PLANTED", "softclose-planted.wasm")?;
    let shipped = topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?;
    let mut held = Vec::new();
    for (name, module) in [("the other build", planted), ("the first build again", shipped)] {
        for extension in EXTENSIONS {
            let mut resources = extension_of(scene, extension)?;
            *at(&mut resources, "/0/typed_config/config/vm_config/code/local/filename")? = json!(module);
            taken(scene, extension, &resources).await?;
        }
        flows(scene, name).await;
        answers_without_a_loss(scene).await?;
        held.push(Held::start(scene.ground()?, 2, 60.0).await?);
    }
    scene.counts(6, "begun on three builds").await?;
    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    for held in held {
        held.leave().await;
    }
    scene.counts(2, "those of the first build").await?;
    let word = scene.health().await;
    scene.check(word == "200 DRAINING", "still waited for", word);
    first.leave().await;
    let document = scene.reaches("CLOSING", Duration::from_secs(5), "all ended").await?;
    scene.check(field(&document, "/verdict") == "\"clean\"", "clean", field(&document, "/verdict"));
    Ok(())
}

fn extension_of(scene: &Scene, extension: &str) -> Result<Value> {
    let text = std::fs::read_to_string(scene.dir.join(extension_file(extension)))?;
    let response: Value = serde_json::from_str(&text)?;
    response.get("resources").cloned().context("no resources")
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
    held.leave().await;
    let document = scene.reaches("CLOSING", Duration::from_secs(5), "the drain").await?;
    scene.check(field(&document, "/verdict") == "\"clean\"", "clean", field(&document, "/verdict"));
    Ok(())
}
