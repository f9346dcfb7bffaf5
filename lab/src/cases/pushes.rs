//! Pushes of configuration: they move nothing that the gate has decided, and lose no request that was counted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cases::scene::{LIMIT, Scene, control_holds, field, fresh_requests, verdict};
use crate::envoy::{self, Admin};
use crate::gate::{Gate, Held, number, text};
use crate::ground::Options;
use crate::manifest::{at, extension_file};
use crate::{topology, wait};

/// What is pushed.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// Another plugin configuration: a new root context in the same VMs.
    Plugin,
    /// Another VM configuration: new VMs.
    Vm,
    /// Another build of the module: new VMs of other code.
    Code,
}

const HELD: usize = 4;
/// How long one `GET /wait` is held at most, in milliseconds; nobody may wait much longer than that.
const WAIT_MS: u64 = 5000;

pub(crate) async fn push(scene: &mut Scene, role: &str, part: Part) -> Result<()> {
    scene.start(Options::default()).await?;
    let held = Held::start(scene.ground()?, HELD, 120.0).await?;
    scene.counts(u64::try_from(HELD)?, "held in OPEN").await?;
    deliver(scene, role, part, 1).await?;
    let word = scene.health().await;
    scene.check(word == "200 OPEN", "nothing flips in OPEN", word);
    scene.counts(u64::try_from(HELD)?, "still held").await?;
    let more = Held::start(scene.ground()?, HELD, 120.0).await?;
    scene.counts(2 * u64::try_from(HELD)?, "more, on what was pushed").await?;
    drop(more);
    scene.counts(u64::try_from(HELD)?, "those ended").await?;

    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    let waiter = wait_for_closing();
    control_holds(1).await?;
    deliver(scene, role, part, 2).await?;
    let began = Instant::now();
    // Longer than a roll call, so that all that comes of it has come.
    wait::pace_until(began + Duration::from_secs(3)).await;
    let word = scene.health().await;
    scene.check(word == "200 DRAINING", "nothing flips early in mid-drain", word);
    scene.counts(u64::try_from(HELD)?, "still held in mid-drain").await?;
    held.leave().await;
    scene.counts(0, "all ended").await?;
    let answer = waiter.await?;
    let seen = format!("{} after {:.2} s", answer.0, answer.1.as_secs_f64());
    let bounded = answer.1 < Duration::from_millis(WAIT_MS) + Duration::from_secs(2);
    scene.check(bounded && answer.0 != 0, "nobody waits for ever", seen);
    // The flip comes a tick after the last request.
    let ended = async || {
        let status = scene.gate.status().await.ok()?;
        let ended = text(&status, "/verdict") == "clean" || field(&status, "/distrust") != "null";
        ended.then_some(status)
    };
    let status = wait::until("the drain ends clean, or is distrusted", Duration::from_secs(5), ended).await?;
    let call = format!("{} {}, roll call {}", text(&status, "/state"), verdict(&status), field(&status, "/roll_call"));
    let settled = text(&status, "/verdict") == "clean" || field(&status, "/distrust") != "null";
    scene.check(settled, "the drain ends clean, or the count is distrusted", call);
    Ok(())
}

/// A `GET /wait` and how it ended: the status (0: none) and after how long.
fn wait_for_closing() -> JoinHandle<(u16, Duration)> {
    tokio::spawn(async {
        let began = Instant::now();
        let answer = Gate::new().send("GET", &format!("/wait?for=closing&timeout_ms={WAIT_MS}"), "").await;
        (answer.map_or(0, |answer| answer.status), began.elapsed())
    })
}

/// Pushes, and waits until Envoy has taken it, with requests all the time.
async fn deliver(scene: &mut Scene, role: &str, part: Part, turn: usize) -> Result<()> {
    let extension = format!("softclose-{role}");
    let admin = Admin::new();
    let before = admin.extension_pushes(&extension).await.unwrap_or_default();
    change(&scene.dir, role, part, turn)?;
    let taken = async {
        let moved = async || admin.extension_pushes(&extension).await.ok().filter(|now| *now != before);
        wait::until("Envoy has read the push", LIMIT, moved).await
    };
    let (taken, first) = tokio::join!(taken, fresh_requests(50));
    let (good, bad) = fresh_requests(20).await;
    let bad = [first.1, bad].concat();
    let seen = format!("{} x 200, others {bad:?}; {taken:?} taken and refused, {before:?} before", first.0 + good);
    let reload = taken.is_ok_and(|(took, refused)| took > before.0 && refused == before.1);
    scene.check(reload && bad.is_empty(), format!("push {turn} is taken, and traffic flows"), seen);
    Ok(())
}

fn change(dir: &Path, role: &str, part: Part, turn: usize) -> Result<()> {
    envoy::push(dir, &extension_file(&format!("softclose-{role}")), |resources| {
        let config = at(resources, "/0/typed_config/config")?;
        // White space makes another key and means the same.
        let space = " ".repeat(turn);
        match part {
            Part::Plugin => *at(config, "/configuration/value")? = json!(format!(r#"{{"role": "{role}"}}{space}"#)),
            Part::Vm => *at(config, "/vm_config/configuration/value")? = json!(format!("{role}{space}")),
            Part::Code => {
                let module = match turn {
                    1 => topology::artifact("SOFTCLOSE_WASM_PLANTED", "softclose-planted.wasm")?,
                    _ => topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?,
                };
                *at(config, "/vm_config/code/local/filename")? = json!(module);
            }
        }
        Ok(())
    })
}

/// A changed traffic listener: Envoy itself cuts what is left after its drain time. That is not a clean end.
pub(crate) async fn listener(scene: &mut Scene) -> Result<()> {
    const DRAIN_TIME: Duration = Duration::from_secs(2);
    // Well after the cut, so that what is reported is the cut and not the deadline.
    const DEADLINE: Duration = Duration::from_secs(8);
    scene.start(Options { drain_time: DRAIN_TIME, ..Options::default() }).await?;
    let held = tokio::spawn(async {
        let client = crate::http::Client::new(topology::OPERATOR, Duration::from_secs(60));
        let began = Instant::now();
        let answer = client.get(topology::local(topology::TRAFFIC), "/sleep?seconds=30").await;
        (answer.map(|answer| answer.status).map_err(|failure| failure.to_string()), began.elapsed())
    });
    scene.counts(1, "a request of 30 s").await?;
    scene.gate.command(&format!("/drain?settle_ms=0&deadline_ms={}", DEADLINE.as_millis())).await?;
    envoy::push(&scene.dir, envoy::LISTENERS_FILE, |listeners| {
        let metadata = json!({"filter_metadata": {"lab": {"pushed": true}}});
        at(listeners, "/0")?.as_object_mut().context("no mapping")?.insert("metadata".into(), metadata);
        Ok(())
    })?;
    let modified = async || scene.stat("listener_manager.listener_modified").await.filter(|modified| *modified > 0);
    wait::until("Envoy has changed the listener", LIMIT, modified).await?;
    let (answer, after) = tokio::time::timeout(LIMIT, held).await.context("the request was not cut")??;
    let seen = format!("{answer:?} after {:.1} s", after.as_secs_f64());
    scene.check(answer.is_err() && after < DEADLINE, "Envoy cuts the request in flight", seen);
    let ended = async || {
        let status: Value = scene.gate.status().await.ok()?;
        (text(&status, "/state") != "DRAINING").then_some(status)
    };
    let status = wait::until("the end of the drain", LIMIT + Duration::from_secs(5), ended).await?;
    let clean = text(&status, "/verdict") == "clean";
    let seen = format!("{}, {}, active {:?}", text(&status, "/state"), verdict(&status), number(&status, "/active"));
    scene.check(!clean, "what Envoy cut is not reported as clean", seen);
    let (good, bad) = fresh_requests(20).await;
    scene.check(bad.is_empty(), "the new listener serves", format!("{good} x 200, others {bad:?}"));
    Ok(())
}
