//! CLOSING lasts as long as the balancers that are there need, and no longer: several paces, one that stops, one that comes late, a
//! stranger, nobody.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::cases::balancer::Balancer;
use crate::cases::scene::{LIMIT, Maybe, Scene, field};
use crate::gate::{event_us, number, text};
use crate::ground::Options;
use crate::http::Client;
use crate::{topology, wait};

/// The fixed buffer that scripts wait for, and `hold_max_ms`.
const FIXED: Duration = Duration::from_secs(10);

/// On a busy machine a check comes later than its pace says.
const LATE: Duration = Duration::from_millis(700);

/// Checks come a little earlier than their pace says where the one before came late.
const EARLY: Duration = Duration::from_millis(150);

/// `fall 2` at such a pace, and the margin: one more interval, 500 ms at least.
fn hold_of(pace: Duration) -> Duration {
    pace * 2 + pace.max(Duration::from_millis(500))
}

fn server(pace: Duration) -> String {
    format!("inter {}ms rise 2 fall 2 on-marked-down shutdown-sessions", pace.as_millis())
}

const FAST: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(1000);

/// Two balancers, each with a pace of its own: the gate learns both and waits for the slower one.
pub(crate) async fn two_paces(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let (fast, slow) = two(scene).await?;
    learnt(scene, &fast, FAST).await?;
    learnt(scene, &slow, SLOW).await?;
    scene.gate.command("/drain?settle_ms=0").await?;
    scene.reaches("CLOSING", LIMIT, "an idle gateway").await?;
    let (fast_down, slow_down, closed) =
        tokio::try_join!(fast.says("DOWN"), slow.says("DOWN"), closed(scene.gate, LIMIT))?;
    scene.check(fast_down < closed.at && slow_down < closed.at, "both say DOWN before the pod may leave", "");
    held(scene, &closed.status, hold_of(SLOW) - EARLY, hold_of(SLOW) + LATE);
    Ok(())
}

/// One of them goes dark in the middle of the hold: it is missed, and then no longer waited for.
pub(crate) async fn one_stops(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let (fast, slow) = two(scene).await?;
    scene.gate.command("/drain?settle_ms=0").await?;
    scene.reaches("CLOSING", LIMIT, "an idle gateway").await?;
    slow.stop();
    let closed = closed(scene.gate, LIMIT).await?;
    fast.says("DOWN").await?;
    // Who is silent for five of its intervals is gone. Its last check was an interval before the drain or the moment before its end.
    held(scene, &closed.status, SLOW * 4 - EARLY, SLOW * 5 + LATE);
    Ok(())
}

/// A balancer that begins to ask in the middle of the hold is waited for from its second check on.
pub(crate) async fn one_comes_late(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let slow = Balancer::start(&scene.dir, 0, "", &server(SLOW)).await?;
    learnt(scene, &slow, SLOW).await?;
    scene.gate.command("/drain?settle_ms=0").await?;
    scene.reaches("CLOSING", LIMIT, "an idle gateway").await?;
    let late = Balancer::start(&scene.dir, 1, "", &server(FAST)).await?;
    let (down, closed) = tokio::try_join!(late.says("DOWN"), closed(scene.gate, LIMIT))?;
    scene.check(down < closed.at, "the late one says DOWN before the pod may leave", "");
    let told = prober(&closed.status, late.source).map(|prober| field(prober, "/hard"));
    let enough = prober(&closed.status, late.source).and_then(|prober| number(prober, "/hard")) >= Some(2);
    scene.check(enough, "it was served two 503", format!("{told:?}"));
    held(scene, &closed.status, hold_of(SLOW) - EARLY, hold_of(SLOW) + LATE);
    Ok(())
}

/// Somebody who asked once is no balancer, and nothing waits for him.
pub(crate) async fn a_stranger(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let fast = Balancer::start(&scene.dir, 0, "", &server(FAST)).await?;
    learnt(scene, &fast, FAST).await?;
    let stranger = Client::new(topology::OPERATOR, Duration::from_secs(2));
    let answer = stranger.get(topology::local(topology::HEALTH), "/health_check.html").await;
    let asked = answer.map_or(0, |answer| answer.status);
    scene.check(asked == 200, "a stranger asks once", asked.to_string());
    scene.gate.command("/drain?settle_ms=0").await?;
    let closed = closed(scene.gate, LIMIT).await?;
    held(scene, &closed.status, hold_of(FAST) - EARLY, hold_of(FAST) + LATE);
    Ok(())
}

/// Nobody ever asked: who would have to be told is not known, so the hold is the longest.
pub(crate) async fn nobody(scene: &mut Scene) -> Result<()> {
    scene.start_without_gate(Options::default()).await?;
    let ready = async || scene.gate.status().await.ok();
    let status = wait::until("the gate answers its control", LIMIT, ready).await?;
    let probers = status.pointer("/probers").and_then(Value::as_array).map(Vec::len);
    scene.check(probers == Some(0), "nobody is known to probe", format!("{probers:?}"));
    scene.gate.command("/drain?settle_ms=0").await?;
    let closed = closed(scene.gate, FIXED + LIMIT).await?;
    held(scene, &closed.status, FIXED - EARLY, FIXED + LATE);
    Ok(())
}

/// Both balancers, once each has told its pace.
async fn two(scene: &mut Scene) -> Result<(Balancer, Balancer)> {
    let fast = Balancer::start(&scene.dir, 0, "", &server(FAST)).await?;
    let slow = Balancer::start(&scene.dir, 1, "", &server(SLOW)).await?;
    for balancer in [&fast, &slow] {
        balancer.up().await?;
        asked(scene, balancer, 4).await?;
    }
    Ok((fast, slow))
}

/// Waits until a balancer has asked so often.
async fn asked(scene: &Scene, balancer: &Balancer, times: u64) -> Result<()> {
    let gate = scene.gate;
    let enough = async || {
        let status = gate.status().await.ok()?;
        prober(&status, balancer.source).and_then(|prober| number(prober, "/asked")).filter(|asked| *asked >= times)
    };
    wait::until("the balancer has asked", LIMIT, enough).await?;
    Ok(())
}

/// The gate has learnt this pace.
async fn learnt(scene: &mut Scene, balancer: &Balancer, pace: Duration) -> Result<()> {
    asked(scene, balancer, 4).await?;
    let status = scene.gate.status().await?;
    let interval = prober(&status, balancer.source).and_then(|prober| number(prober, "/interval_us"));
    let us = u64::try_from(pace.as_micros()).unwrap_or(u64::MAX);
    // HAProxy spreads its first checks, and the learnt interval falls slowly.
    let held = interval.is_some_and(|interval| interval > us * 8 / 10 && interval < us * 15 / 10);
    scene.check(held, format!("/status has learnt an interval of {us} us"), Maybe(interval).to_string());
    Ok(())
}

fn prober(status: &Value, source: IpAddr) -> Option<&Value> {
    let probers = status.pointer("/probers")?.as_array()?;
    probers.iter().find(|prober| text(prober, "/address") == source.to_string())
}

struct Closed {
    status: Value,
    at: Instant,
}

/// Waits for CLOSED.
async fn closed(gate: crate::gate::Gate, limit: Duration) -> Result<Closed> {
    let status = gate.reaches("CLOSED", limit).await?;
    Ok(Closed { status, at: Instant::now() })
}

/// The hold, by the gate's own stamps, is within these bounds; says what it saved against the fixed buffer.
fn held(scene: &mut Scene, status: &Value, least: Duration, most: Duration) {
    let stamps = event_us(status, "health_fail").zip(event_us(status, "readiness_fail"));
    let hold = stamps.map(|(closing, closed)| Duration::from_micros(closed.saturating_sub(closing)));
    let seen = hold.map_or_else(
        || format!("events {}", field(status, "/events")),
        |hold| {
            let (hold, saved) = (hold.as_secs_f64(), FIXED.as_secs_f64() - hold.as_secs_f64());
            format!("{hold:.2} s, {saved:.2} s less than the fixed 10 s")
        },
    );
    let (from, to) = (least.as_secs_f64(), most.as_secs_f64());
    let within = hold.is_some_and(|hold| hold >= least && hold <= most);
    scene.check(within, format!("the hold lasts {from:.2} s to {to:.2} s"), seen);
}
