//! How soon a flip is made, and how soon it is heard: `GET /wait` held on every worker while the last request ends.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::envoy::Admin;
use crate::gate::{Gate, event_us, text};
use crate::ground::{self, Ground, Options};
use crate::http::Client;
use crate::report::Quantiles;
use crate::{topology, wait};

/// Waits held at once; the kernel spreads them over the two workers, and a drain where it did not is not counted.
const WAITERS: usize = 4;
const WORKERS: u16 = 2;
const LIMIT: Duration = Duration::from_secs(10);
/// A drain that missed its request (it ended before all waits were held) is repeated; more than this share of them, and
/// the machine is not fit.
const MISSED_SHARE: f64 = 0.5;

/// What was measured, in milliseconds.
#[derive(Serialize)]
pub(crate) struct Wake {
    /// From the record of active zero to the record of the flip.
    pub(crate) flip_ms: Option<Quantiles>,
    /// From the record of the flip to the last of the waits' answers, received.
    pub(crate) wake_ms: Option<Quantiles>,
    /// From the client's last byte to the last of the waits' answers, received.
    pub(crate) outside_ms: Option<Quantiles>,
    /// Drains repeated because their request ended too early or the waits lay on one worker.
    pub(crate) missed: u32,
}

/// One drain.
struct Sample {
    flip: f64,
    wake: f64,
    outside: f64,
    /// The first of the waits' answers.
    document: Value,
}

pub(crate) async fn measure(drains: u32, dir: &Path) -> Result<Wake> {
    let _ground = Ground::start(dir, &Options { concurrency: WORKERS, ..Options::default() }).await?;
    ground::gate_answers().await?;
    println!("flip and wake: {drains} drains with one request in flight and {WAITERS} waits held");
    let (mut samples, mut missed) = (Vec::new(), 0);
    while samples.len() < drains as usize {
        match drain().await? {
            Some(sample) => {
                samples.push(sample);
                if samples.len().is_multiple_of(200) {
                    println!("  {} of {drains}", samples.len());
                }
            }
            None => missed += 1,
        }
        ensure!(
            f64::from(missed) <= f64::from(drains).mul_add(MISSED_SHARE, 10.0),
            "{missed} drains missed: this machine is too busy"
        );
    }
    // An outlier has a story, and only the gate's own document tells it.
    if let Some(slowest) = samples.iter().max_by(|a, b| a.flip.total_cmp(&b.flip)) {
        std::fs::write(dir.join("slowest-flip.json"), serde_json::to_string_pretty(&slowest.document)?)?;
    }
    let of = |pick: fn(&Sample) -> f64| Quantiles::of(&samples.iter().map(pick).collect::<Vec<_>>());
    Ok(Wake { flip_ms: of(|s| s.flip), wake_ms: of(|s| s.wake), outside_ms: of(|s| s.outside), missed })
}

/// One drain and its undoing; None if it says nothing.
async fn drain() -> Result<Option<Sample>> {
    let gate = Gate::new();
    let request = tokio::spawn(async {
        let client = Client::new(topology::OPERATOR, LIMIT);
        let answer = client.get(topology::local(topology::TRAFFIC), "/sleep?seconds=0.06").await;
        (answer.map(|answer| answer.status), now_us())
    });
    let counted = async || {
        let status = gate.status().await.ok()?;
        (status.pointer("/active").and_then(Value::as_u64) == Some(1)).then_some(())
    };
    wait::until("the request is counted", LIMIT, counted).await?;
    gate.command("/drain?settle_ms=0").await?;
    let before = connections().await?;
    let mut waits = JoinSet::new();
    for _ in 0..WAITERS {
        waits.spawn(async move {
            let answer = gate.send("GET", "/wait?for=closing&timeout_ms=5000", "").await;
            (answer, now_us())
        });
    }
    // A connection that Envoy has taken is read, and its wait paused, in the same turn of that worker's loop.
    let held = async || {
        let taken: Vec<u64> = connections().await.ok()?.iter().zip(&before).map(|(now, then)| now - then).collect();
        (taken.iter().sum::<u64>() == WAITERS as u64).then_some(taken)
    };
    let spread = wait::until("all waits are held", LIMIT, held).await?.iter().all(|waits| *waits > 0);
    let in_time = !request.is_finished();
    let (status, last_byte) = request.await?;
    ensure!(matches!(status, Ok(200)), "the request was answered {status:?}");
    let (mut documents, mut heard) = (Vec::new(), 0);
    while let Some(answered) = waits.join_next().await {
        let (answer, at) = answered?;
        let answer = answer.context("GET /wait")?;
        documents.push(serde_json::from_str::<Value>(&answer.body).with_context(|| answer.body.clone())?);
        heard = heard.max(at);
    }
    gate.command("/reopen").await?;
    let document = documents.first().context("no answer")?;
    let all_closing = documents.iter().all(|document| text(document, "/state") == "CLOSING");
    let (Some(zero), Some(flip)) = (event_us(document, "active_zero"), event_us(document, "health_fail")) else {
        return Ok(None);
    };
    if !spread || !in_time || !all_closing {
        return Ok(None);
    }
    let ms = |from: u64, to: u64| (to as f64 - from as f64) / 1000.0;
    let (flip, wake, outside) = (ms(zero, flip), ms(flip, heard), ms(last_byte, heard));
    Ok(Some(Sample { flip, wake, outside, document: document.clone() }))
}

/// Connections that each worker has taken on the control listener.
async fn connections() -> Result<Vec<u64>> {
    Admin::new().connections_by_worker("worker_softclose_control").await.map_err(anyhow::Error::msg)
}

/// The monotonic clock that the gate's stamps are readings of.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}
