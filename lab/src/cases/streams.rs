//! Streams that do not end: an upgraded connection is one request until its socket closes.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cases::odd::{self, Odd};
use crate::cases::scene::{Scene, field};
use crate::cases::wire::{Wire, status};
use crate::gate::{number, text};
use crate::ground::Options;
use crate::{topology, wait};

/// The preStop command's budget is not that short; the case must be.
const DEADLINE: Duration = Duration::from_secs(4);

async fn websocket() -> Result<(Wire, u16)> {
    let mut wire = Wire::to(topology::TRAFFIC).await?;
    let head = "GET /odd/ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    wire.send(head).await?;
    let answer = status(&wire.answer().await?);
    Ok((wire, answer))
}

/// An idle one keeps the drain until the deadline, and the fault names it.
pub(crate) async fn idle_websocket(scene: &mut Scene) -> Result<()> {
    scene.start(Options { overrides: odd::overrides(), ..Options::default() }).await?;
    let _odd = Odd::start().await?;
    let (wire, answer) = websocket().await?;
    scene.check(answer == 101, "the websocket is open", answer.to_string());
    scene.counts(1, "an idle websocket").await?;
    let began = Instant::now();
    scene.gate.command(&format!("/drain?settle_ms=0&deadline_ms={}", DEADLINE.as_millis())).await?;
    wait::pace_until(began + DEADLINE - Duration::from_millis(1500)).await;
    let before = scene.health().await;
    let in_time = began.elapsed() < DEADLINE;
    scene.check(in_time && before == "200 DRAINING", "shortly before the deadline", before);
    let status = scene.reaches("FAULT", Duration::from_secs(5), "at the deadline").await?;
    let (reason, active) = (text(&status, "/verdict/fault/reason"), number(&status, "/verdict/fault/active"));
    scene.check(reason == "deadline" && active == Some(1), "the fault names one request", field(&status, "/verdict"));
    drop(wire);
    scene.counts(0, "it was closed").await
}

/// One that closes in mid-drain ends it, clean.
pub(crate) async fn closing_websocket(scene: &mut Scene) -> Result<()> {
    scene.start(Options { overrides: odd::overrides(), ..Options::default() }).await?;
    let _odd = Odd::start().await?;
    let (wire, answer) = websocket().await?;
    scene.check(answer == 101, "the websocket is open", answer.to_string());
    scene.counts(1, "a websocket").await?;
    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    wait::pace_until(Instant::now() + Duration::from_millis(2500)).await;
    let health = scene.health().await;
    scene.check(health == "200 DRAINING", "the drain waits for it", health);
    drop(wire);
    let status = scene.reaches("CLOSING", Duration::from_secs(5), "it was closed").await?;
    scene.check(text(&status, "/verdict") == "clean", "and that is clean", field(&status, "/verdict"));
    Ok(())
}
