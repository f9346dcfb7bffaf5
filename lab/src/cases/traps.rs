//! Traps: a VM that dies harms nobody's request but those it held, and no drain that it took part in is called clean.
//!
//! Traps are planted by a header that only a module built with the feature `plant` knows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cases::scene::{LIMIT, Scene, balancer_probes, field, fresh_requests, verdict};
use crate::cases::wire::{Wire, exchange, header, status};
use crate::gate::{Held, number, text};
use crate::ground::Options;
use crate::manifest::Overrides;
use crate::{topology, wait};

/// Whose VM traps.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Victim {
    Count,
    Gate,
}

/// In which state.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum During {
    Open,
    Draining,
}

/// Fresh requests after a trap: enough that both workers get some.
const FRESH: usize = 30;
/// The drain's end in these cases; after the roll call's.
const DEADLINE: Duration = Duration::from_secs(6);

pub(crate) async fn trap(scene: &mut Scene, victim: Victim, plant: &str, during: During) -> Result<()> {
    scene.start(planted()?).await?;
    // The panic hook runs for panics only; of any other trap nobody hears until the next roll call.
    let heard = plant.starts_with("panic");
    // Eating four gigabytes takes its time on a busy machine, and the roll call must be over before the deadline.
    let deadline = if heard || during == During::Open { DEADLINE } else { 2 * DEADLINE };
    if during == During::Draining {
        let held = Held::start(scene.ground()?, 4, 60.0).await?;
        drain(scene, deadline).await?;
        let mut complete = Value::Null;
        let called = async || {
            complete = scene.gate.status().await.ok()?;
            complete.pointer("/roll_call/complete")?.as_bool()?.then_some(())
        };
        wait::until("the roll call", LIMIT, called).await?;
        plant_in(scene, victim, plant).await?;
        if heard {
            scene.distrusted("trap", "in mid-drain").await?;
        }
        passes(scene, victim, "DRAINING").await?;
        if !heard && victim == Victim::Gate {
            // Its successor makes one gate more than there are counters. A zero in the second before that is told as what
            // it is: the gate's VM took no part of the count with it.
            scene.distrusted("roll call", "once the gate is back").await?;
        }
        drop(held);
    } else {
        plant_in(scene, victim, plant).await?;
        passes(scene, victim, "OPEN").await?;
        if heard {
            scene.distrusted("trap", "at once").await?;
        } else {
            let status = scene.gate.status().await?;
            scene.check(field(&status, "/distrust") == "null", "nobody has heard of it yet", verdict(&status));
        }
        drain(scene, deadline).await?;
        if !heard {
            scene.distrusted("roll call", "at the next drain").await?;
        }
    }
    let status = scene.reaches("FAULT", deadline + Duration::from_secs(3), "the deadline, not a clean end").await?;
    let clean = text(&status, "/verdict") == "clean";
    scene.check(!clean, "never clean", format!("{}, active {}", verdict(&status), field(&status, "/active")));
    let (good, bad) = fresh_requests(FRESH).await;
    scene.check(bad.is_empty(), "requests pass in FAULT", format!("{good} x 200, others {bad:?}"));
    Ok(())
}

/// Nor does the preStop command call it clean, although it asks Envoy for a second opinion.
pub(crate) async fn pre_stop_after_trap(scene: &mut Scene) -> Result<()> {
    scene.start(planted()?).await?;
    let _balancer = balancer_probes();
    plant_in(scene, Victim::Count, "panic").await?;
    scene.distrusted("trap", "at once").await?;
    let mut pre_stop = scene.pre_stop("prestop", Duration::from_secs(22))?;
    let code = pre_stop.exit(Duration::from_secs(30)).await.and_then(|status| status.code());
    let words = crate::process::last_words(&scene.said("prestop"));
    let held = code.is_some_and(|code| code != 0) && words.contains("trap");
    scene.check(held, "preStop does not call it clean, and says why", format!("exit code {code:?}: {words}"));
    Ok(())
}

/// Nor is it thrown off by a control listener that answers 503 at first, because every gate VM has just been lost.
pub(crate) async fn pre_stop_while_the_gate_reloads(scene: &mut Scene) -> Result<()> {
    scene.start(planted()?).await?;
    let _balancer = balancer_probes();
    // Fresh connections spread over both workers; sixteen of them miss one in fewer than one run of thirty thousand.
    for _ in 0..16 {
        let request = "GET /health HTTP/1.1\r\nhost: x\r\nx-softclose-plant: panic\r\nconnection: close\r\n\r\n";
        exchange(topology::HEALTH, request).await;
    }
    let mut pre_stop = scene.pre_stop("prestop", Duration::from_secs(22))?;
    let code = pre_stop.exit(Duration::from_secs(30)).await.and_then(|status| status.code());
    let said = scene.said("prestop");
    let held = code.is_some_and(|code| code != 0) && said.contains("trap") && !said.contains("no softclose here");
    scene.check(
        held,
        "preStop waits for the gate to come back, and does not call it clean",
        format!("exit code {code:?}: {}", said.replace('\n', " | ")),
    );
    Ok(())
}

/// A gateway with the module that traps when asked to.
pub(crate) fn planted() -> Result<Options> {
    let module = Some(topology::artifact("SOFTCLOSE_WASM_PLANTED", "softclose-planted.wasm")?);
    Ok(Options { overrides: Overrides { module, ..Overrides::default() }, ..Options::default() })
}

/// A worker whose gate VM was lost answers 503 for about a second at each listener, beginning with the first request there;
/// so the control listener may only just begin when health is back.
async fn drain(scene: &Scene, deadline: Duration) -> Result<Value> {
    let path = format!("/drain?settle_ms=0&deadline_ms={}", deadline.as_millis());
    wait::until("POST /drain is taken", LIMIT, async || scene.gate.command(&path).await.ok()).await
}

async fn plant_in(scene: &mut Scene, victim: Victim, plant: &str) -> Result<()> {
    let (first, trapped) = spring(&scene.dir, victim, plant).await?;
    scene.check(trapped.is_ok(), format!("{plant} traps a VM"), format!("its own request: {first}"));
    trapped
}

/// Makes the VM of one worker trap: whichever worker takes this one connection. Gives the first line of that request's
/// answer, and whether Envoy has spoken of a trap.
pub(crate) async fn spring(dir: &Path, victim: Victim, plant: &str) -> Result<(String, Result<()>)> {
    let (port, path) = match victim {
        // A body that streams, for the trap that comes in one.
        Victim::Count => (topology::TRAFFIC, "/stream?seconds=0.2&interval=0.05"),
        Victim::Gate => (topology::HEALTH, "/health"),
    };
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-softclose-plant: {plant}\r\nconnection: close\r\n\r\n");
    let mut wire = Wire::to(port).await?;
    wire.send(request).await?;
    let answer = wire.answer().await.unwrap_or_else(|error| format!("{error:#}"));
    // To the end of a body that streams, or of what came of it.
    wire.closes_within(LIMIT).await;
    let log = dir.join("envoy.log");
    // The answer may come before the log's line.
    let logged =
        async || std::fs::read_to_string(&log).unwrap_or_default().contains("Function: proxy_on_").then_some(());
    let trapped = wait::until("Envoy's word of the trap", LIMIT, logged).await;
    Ok((answer.lines().next().unwrap_or_default().to_owned(), trapped))
}

/// What a trap must leave alone; for the gate, that it comes back.
async fn passes(scene: &mut Scene, victim: Victim, state: &str) -> Result<()> {
    let (good, bad) = fresh_requests(FRESH).await;
    scene.check(bad.is_empty(), "fresh requests pass on both workers", format!("{good} x 200, others {bad:?}"));
    let wanted = format!("200 {state}");
    let began = Instant::now();
    let (mut away, mut in_a_row) = (0, 0);
    while in_a_row < 20 && began.elapsed() < LIMIT {
        let request = "GET /health_check.html HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let answer = exchange(topology::HEALTH, request).await;
        let word = format!("{} {}", status(&answer), header(&answer, "x-softclose-state").unwrap_or("(no state)"));
        if word == wanted {
            in_a_row += 1;
        } else {
            in_a_row = 0;
            away += 1;
        }
    }
    let seen = format!("{away} other answers within {:.1} s", began.elapsed().as_secs_f64());
    match victim {
        Victim::Count => scene.check(away == 0 && in_a_row == 20, format!("health answers {wanted} all along"), seen),
        Victim::Gate => {
            scene.check(in_a_row == 20, format!("health answers {wanted} on both workers again"), seen);
            let reloads = scene.stat("wasm.softclose-gate.vm_reload_success").await;
            scene.check(reloads == Some(1), "the gate's VM was reloaded", format!("{reloads:?}"));
        }
    }
    let reloads = scene.stat("wasm.softclose-count.vm_reload_success").await.unwrap_or(0);
    scene.check(reloads == 0, "a counting VM never is", reloads.to_string());
    Ok(())
}

impl Scene {
    /// Waits until `/status` distrusts the count for this reason.
    async fn distrusted(&mut self, reason: &str, when: &str) -> Result<()> {
        let gate = self.gate;
        let mut last = Value::Null;
        let seen = async || {
            last = gate.status().await.ok()?;
            (text(&last, "/distrust/reason") == reason).then_some(())
        };
        let reached = wait::until("distrust", Duration::from_secs(5), seen).await.is_ok();
        let call = format!("{}, roll call {}", verdict(&last), field(&last, "/roll_call"));
        self.check(reached, format!("{when} /status distrusts the count: {reason}"), call);
        number(&last, "/active").map(|_| ()).context("no status")
    }
}
