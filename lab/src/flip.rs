//! `softclose-lab flip`: how long after the last request health fails, without polling and with it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::Place;
use crate::gate::{Gate, event_us};
use crate::ground::{self, Ground, Options};
use crate::http::{AbortOnDrop, Client};
use crate::mode::{IMPROVED_POLL_S, Mode};
use crate::process::Process;
use crate::report::{self, Quantiles};
use crate::scenario::Scenario;
use crate::{diagnostics, topology, wait};

/// The pace of the probe from outside.
const PROBE_EVERY: Duration = Duration::from_millis(5);
const LIMIT: Duration = Duration::from_secs(10);
/// Design target for the gate's own stamps: 99 of 100 drains.
const TARGET_P99_MS: f64 = 5.0;

/// What was measured, in milliseconds.
#[derive(Serialize)]
struct Flip {
    mode: Mode,
    /// The request in flight lasts from .. to, spread evenly.
    request_ms: [u64; 2],
    /// From the gate's record of active zero to the record of the flip.
    own_stamps_ms: Option<Quantiles>,
    /// From the client's last byte to the end of the first probe that was answered 503.
    outside_ms: Option<Quantiles>,
    own: Vec<f64>,
    outside: Vec<f64>,
}

/// True if the flip is as quick as promised.
pub(crate) async fn run(drains: u32, improved_drains: u32, place: &Place) -> Result<bool> {
    let out = place.folder()?;
    let mut flips = Vec::new();
    for (mode, drains) in [(Mode::Softclose, drains), (Mode::Improved, improved_drains)] {
        if drains > 0 {
            let dir = out.join(mode.name());
            std::fs::create_dir_all(&dir)?;
            println!("{}: {drains} drains with one request in flight", mode.name());
            flips.push(measure(mode, drains, &dir).await.with_context(|| diagnostics::evidence(&dir))?);
        }
    }
    let head = ["mode", "drains", "measured", "p50 ms", "p99 ms", "max ms"];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for flip in &flips {
        let lines = [
            ("own stamps: active_zero to health_fail", flip.own_stamps_ms),
            ("outside: last byte to first 503", flip.outside_ms),
        ];
        for (what, quantiles) in lines {
            if let Some(q) = quantiles {
                let figures = [q.p50, q.p99, q.max].map(|figure| format!("{figure:.3}"));
                let row = [flip.mode.name().to_owned(), q.n.to_string(), what.to_owned()];
                rows.push(row.into_iter().chain(figures).collect());
            }
        }
    }
    println!("\n{}", report::table(&rows));
    println!(
        "\nsettle 0; a probe each {} ms on fresh connections; mode improved polls each {IMPROVED_POLL_S} s (an assumption)",
        PROBE_EVERY.as_millis()
    );
    let path = out.join("flip.json");
    std::fs::write(&path, serde_json::to_string_pretty(&flips)?)?;
    println!("{}", path.display());
    let own = flips.iter().find(|flip| flip.mode == Mode::Softclose).and_then(|flip| flip.own_stamps_ms);
    let kept = own.is_none_or(|own| own.p99 < TARGET_P99_MS);
    if let Some(own) = own {
        let verdict = if kept { "within" } else { "OVER (a busy machine delays Envoy's ticks)" };
        println!("own stamps: p99 {:.1} ms, {verdict} the target of {TARGET_P99_MS} ms", own.p99);
    }
    Ok(kept)
}

async fn measure(mode: Mode, drains: u32, dir: &Path) -> Result<Flip> {
    let ground = Ground::start(dir, &Options { answers: mode.answers(), ..Options::default() }).await?;
    ground::healthy(&ground.gateway.pod, mode.answers().readiness()).await?;
    // Polling sees zero up to a period late: the requests' lengths must not all fall on one phase of it.
    let request_ms = if mode == Mode::Softclose { [100, 200] } else { [100, 100 + 1000 * u64::from(IMPROVED_POLL_S)] };
    let (mut own, mut outside) = (Vec::new(), Vec::new());
    for number in 0..drains {
        // Multiples of the golden ratio spread evenly, whatever their number.
        let spread = (f64::from(number) * 0.618_033_988_75).fract();
        let [from, to] = request_ms.map(|ms| ms as f64 / 1000.0);
        let (one_own, one_outside) = drain(mode, &ground, from + spread * (to - from)).await?;
        own.extend(one_own);
        outside.push(one_outside);
        if (number + 1) % 20 == 0 {
            println!("  {} of {drains}", number + 1);
        }
    }
    Ok(Flip { mode, request_ms, own_stamps_ms: Quantiles::of(&own), outside_ms: Quantiles::of(&outside), own, outside })
}

/// One drain and its undoing; milliseconds by the gate's stamps and from outside.
async fn drain(mode: Mode, ground: &Ground, seconds: f64) -> Result<(Option<f64>, f64)> {
    let client = Client::new(topology::OPERATOR, LIMIT);
    let request = tokio::spawn(async move {
        let answer = client.get(topology::local(topology::TRAFFIC), &format!("/sleep?seconds={seconds}")).await;
        (answer.map(|answer| answer.status), Instant::now())
    });
    let running = async || (ground.backend.running() == 1).then_some(());
    wait::until("the request is in flight", LIMIT, running).await?;

    let (first_503, probe) = probe();
    let (gate, mut script) = (Gate::new(), None);
    if mode == Mode::Softclose {
        gate.command("/drain?settle_ms=0").await?;
    } else {
        let mut times = Scenario::read("S1")?.scale("scaled")?.clone();
        // Ended by the lab once health has failed; only the flip matters here.
        times.lb_buffer_s = 60.0;
        let mut command = mode.pre_stop(&times, &ground.gateway.pod)?.context("the mode has no preStop command")?;
        command.stdout(std::process::Stdio::null());
        script = Some(Process::spawn("preStop", command)?);
    }
    let (status, last_byte) = request.await?;
    anyhow::ensure!(matches!(status, Ok(200)), "the request was answered {status:?}");
    let failed = tokio::time::timeout(LIMIT, first_503).await.context("health never failed")??;
    drop(probe);
    let outside = signed_ms(last_byte, failed);
    let own = if mode == Mode::Softclose {
        let status = gate.status().await?;
        let zero = event_us(&status, "active_zero").context("no event active_zero in /status")?;
        let failed = event_us(&status, "health_fail").context("no event health_fail in /status")?;
        gate.command("/reopen").await?;
        Some((failed as f64 - zero as f64) / 1000.0)
    } else {
        drop(script);
        client.post(topology::local(topology::HEALTH), "/reopen").await?;
        None
    };
    ground::healthy(&ground.gateway.pod, mode.answers().readiness()).await?;
    Ok((own, outside))
}

/// Probes until the first 503; gives the moment at which that answer was in.
fn probe() -> (oneshot::Receiver<Instant>, AbortOnDrop<()>) {
    let (tell, told) = oneshot::channel();
    let task = tokio::spawn(async move {
        let client = Client::new(topology::HEALTH_PROBE, LIMIT);
        let mut ticks = tokio::time::interval(PROBE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = client.get(topology::local(topology::HEALTH), "/health_check.html").await;
            if answer.is_ok_and(|answer| answer.status == 503) {
                // Nobody listens any more if the drain has failed otherwise.
                let _gone = tell.send(Instant::now());
                return;
            }
        }
    });
    (told, AbortOnDrop(task))
}

fn signed_ms(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(after) => after.as_secs_f64() * 1000.0,
        None => -(from.duration_since(to).as_secs_f64() * 1000.0),
    }
}
