//! `softclose-lab rollcall`: "nobody counts" must not look like "idle".

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Place;
use crate::checks::Checks;
use crate::diagnostics::evidence;
use crate::gate::{Gate, Held, health_word, text};
use crate::ground::{self, Ground, Options};
use crate::http::Client;
use crate::manifest::Overrides;
use crate::network::Pod;
use crate::process::Process;
use crate::timeline::Clock;
use crate::watch::Watch;
use crate::{mode, topology, wait};

/// The shipped plan's `settle_ms`.
const SETTLE: Duration = Duration::from_secs(1);
/// A roll call is given up after this; then the count is distrusted.
const ROLL_CALL: Duration = Duration::from_secs(2);
/// Grace told to the shim: leaves five seconds of drain beside the default hold (10 s) and reserve (5 s).
const GRACE: Duration = Duration::from_secs(20);

/// True if an idle gateway drains at once and an uncounted one is never called idle.
pub(crate) async fn run(place: &Place) -> Result<bool> {
    let out = place.folder()?;
    let mut checks = Checks::default();
    println!("an idle gateway");
    let dir = out.join("idle");
    std::fs::create_dir_all(&dir)?;
    idle(&dir, &mut checks).await.with_context(|| evidence(&dir))?;
    for (name, in_flight) in [("uncounted-busy", 1), ("uncounted-idle", 0)] {
        println!("a traffic listener without the counting filter, {in_flight} request in flight");
        let dir = out.join(name);
        std::fs::create_dir_all(&dir)?;
        uncounted(&dir, in_flight, &mut checks).await.with_context(|| evidence(&dir))?;
    }
    checks.finish(&out.join("rollcall.json"))
}

async fn idle(dir: &std::path::Path, checks: &mut Checks) -> Result<()> {
    let _ground = Ground::start(dir, &Options::default()).await?;
    ground::gate_answers().await?;
    let gate = Gate::new();
    for (what, query, limit) in [
        ("with the shipped settle of 1 s", "", SETTLE + Duration::from_secs(1)),
        ("with settle 0", "?settle_ms=0", Duration::from_secs(1)),
    ] {
        let began = Instant::now();
        gate.command(&format!("/drain{query}")).await?;
        let reached = gate.reaches("CLOSING", Duration::from_secs(10)).await;
        let took = began.elapsed();
        let seen = reached.map_or_else(|error| error.to_string(), |_| format!("{:.0} ms", took.as_secs_f64() * 1000.0));
        checks.check(took < limit, format!("an idle gateway drains at once, {what}"), seen);
        gate.command("/reopen").await?;
    }
    Ok(())
}

async fn uncounted(dir: &std::path::Path, in_flight: usize, checks: &mut Checks) -> Result<()> {
    let overrides = Overrides { without_count: true, ..Overrides::default() };
    let ground = Ground::start(dir, &Options { overrides, ..Options::default() }).await?;
    ground::gate_answers().await?;
    let gate = Gate::new();
    let _held = Held::start(&ground, in_flight, 120.0).await?;
    gate.command("/drain?deadline_ms=60000").await?;
    let client = Client::new(topology::OPERATOR, Duration::from_secs(1));
    let health = topology::local(topology::HEALTH);
    let look = move || async move { health_word(&client.get(health, "/health_check.html").await) };
    let watch = Watch::start("health", Duration::from_millis(20), Clock::start(), look, |_change| {});
    // Well past the moment at which an idle gateway would have flipped, and the roll call was given up.
    wait::pace_until(Instant::now() + SETTLE + ROLL_CALL + Duration::from_secs(3)).await;
    let series = watch.series();
    let words: Vec<&str> = series.changes.iter().map(|change| change.value.as_str()).collect();
    checks.check(
        words == ["200 DRAINING"],
        "health stays 200 for 6 s of drain",
        format!("{} ({} probes)", words.join(", "), series.samples),
    );
    let status = gate.status().await?;
    let reason = status.pointer("/distrust/reason").map(ToString::to_string).unwrap_or_default();
    let roll_call = status.pointer("/roll_call").map(ToString::to_string).unwrap_or_default();
    checks.check(
        reason.to_lowercase().replace(['_', '-'], " ").contains("roll call"),
        "/status says that the roll call is why",
        format!("distrust {reason}, roll call {roll_call}"),
    );
    gate.command("/reopen").await?;

    if let Ok(shim) = mode::softclose_pre_stop(&Pod::only(), GRACE) {
        let mut shim = Process::start("prestop", shim, dir)?;
        let exit = shim.exit(GRACE + Duration::from_secs(2)).await.and_then(|status| status.code());
        let said = std::fs::read_to_string(dir.join("prestop.log"))?;
        for line in said.lines() {
            println!("        prestop: {line}");
        }
        checks.check(
            exit.is_some_and(|code| code != 0),
            "the shim does not call that clean",
            format!("exit code {exit:?}"),
        );
        let words = said.to_lowercase().replace(['_', '-'], " ");
        checks.check(words.contains("roll call"), "the shim says why", crate::process::last_words(&said));
        let state = gate.status().await.map(|status| text(&status, "/state").to_owned()).unwrap_or_default();
        println!("        state afterwards: {state}");
    } else {
        checks.check(false, "the shim runs against it", "dist/softclose is not there");
    }
    Ok(())
}
