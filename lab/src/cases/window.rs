//! Between the last request's end and the balancer's DOWN: bytes that are still owed, and requests that come in between.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cases::balancer::Balancer;
use crate::cases::scene::{LIMIT, Maybe, Scene, field};
use crate::gate::number;
use crate::ground::Options;
use crate::timeline::Clock;
use crate::wait;

/// Larger than what the buffers between gateway and client hold, so that it waits in them.
const ANSWER: u32 = 8_000_000;
/// The slow reader needs four seconds for it.
const BYTES_A_SECOND: usize = 2_000_000;

/// Envoy's stream ends when its last byte is in a connection's buffer, not when the client has it: a settle that is shorter than the
/// slowest reader of the largest answer cuts it, a longer one does not.
pub(crate) async fn bytes_are_owed(scene: &mut Scene, settle: Settle) -> Result<()> {
    scene.start(Options::default()).await?;
    let check = "inter 300ms rise 1 fall 1 on-marked-down shutdown-sessions";
    let balancer = Balancer::start(&scene.dir, 0, "", check).await?;
    balancer.up().await?;
    let path = format!("/bytes?count={ANSWER}");
    let reading = balancer.read_slowly(&path, BYTES_A_SECOND);
    let gate = scene.gate;
    let (settle_ms, whole) = match settle {
        Settle::None => (0, false),
        Settle::Longer => (6000, true),
    };
    let draining = async {
        let began = Instant::now();
        let counted =
            async || gate.status().await.ok().filter(|status| number(status, "/active") == Some(1)).map(|_| ());
        wait::until("the request is counted", LIMIT, counted).await?;
        gate.command(&format!("/drain?fall=1&settle_ms={settle_ms}")).await?;
        let zero = async || gate.status().await.ok().filter(|status| number(status, "/active") == Some(0)).map(|_| ());
        wait::until("no request is in flight", LIMIT, zero).await?;
        let zero_s = began.elapsed().as_secs_f64();
        balancer.says("DOWN").await?;
        anyhow::Ok(zero_s)
    };
    let ((bytes, seconds), zero_s) = tokio::try_join!(reading, draining)?;
    let seen = format!("{bytes} of {ANSWER} after {seconds:.2} s; none in flight after {zero_s:.2} s");
    scene.check(zero_s + 0.5 < seconds || !whole, "nothing is in flight while the client still reads", seen.clone());
    match settle {
        Settle::None => {
            scene.check(bytes < u64::from(ANSWER), "without settle the client loses what was on its way", seen);
        }
        Settle::Longer => {
            scene.check(bytes == u64::from(ANSWER), "with a settle longer than the reader it gets every byte", seen);
        }
    }
    Ok(())
}

/// How long zero has to last.
#[derive(Clone, Copy)]
pub(crate) enum Settle {
    None,
    /// Than the slow reader needs.
    Longer,
}

/// Requests that come after the flip and before DOWN are served, cut by the balancer, and told: the window is real, and placed on
/// purpose.
pub(crate) async fn late_requests(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let check = "inter 1s rise 2 fall 3 fastinter 200ms on-marked-down shutdown-sessions";
    let balancer = Balancer::start(&scene.dir, 0, "", check).await?;
    balancer.up().await?;
    scene.gate.command("/drain?fall=3&settle_ms=0").await?;
    scene.reaches("CLOSING", LIMIT, "an idle gateway").await?;
    let flipped = Instant::now();
    let late = [balancer.ask("/sleep?seconds=8"), balancer.ask("/stream?seconds=8&interval=0.5")];
    let ground = scene.ground()?;
    let running = async || (ground.backend.running() == 2).then_some(());
    let served = wait::until("the application runs both", Duration::from_millis(700), running).await;
    scene.check(served.is_ok(), "both are served, not refused", "");
    let down = balancer.says("DOWN").await? - flipped;
    let seen = format!("{:.2} s after the flip", down.as_secs_f64());
    scene.check(down < Duration::from_millis(1400 + 300), "DOWN by inter + 2 x fastinter", seen);
    for asked in late {
        let fate = asked.fate().await;
        scene.check(fate != "whole", "DOWN cuts it", fate);
    }
    let status = scene.gate.status().await?;
    let late = number(&status, "/late");
    scene.check(late == Some(2), "the gate reports both as late", Maybe(late).to_string());
    let cut = number(&status, "/cut_at_most");
    scene.check(cut >= Some(2), "and as requests that may have been cut", Maybe(cut).to_string());
    let ran = scene.backend()?.visits(Clock::start()).iter().filter(|visit| visit.ran).count();
    scene.check(ran == 2, "the application ran each once", ran.to_string());
    Ok(())
}

/// The same two requests in front of a balancer that was told softly first: they never get here.
pub(crate) async fn no_late_requests_after_a_soft_answer(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let check = "inter 300ms rise 2 fall 3 on-marked-down shutdown-sessions";
    let balancer = Balancer::start(&scene.dir, 0, "http-check disable-on-404", check).await?;
    balancer.up().await?;
    scene.gate.command("/drain?preset=haproxy-soft&fall=3&settle_ms=0").await?;
    scene.reaches("CLOSING", LIMIT, "an idle gateway").await?;
    for path in ["/sleep?seconds=8", "/stream?seconds=8&interval=0.5"] {
        let fate = balancer.ask(path).fate().await;
        scene.check(fate.starts_with("503"), format!("{path} in the window: the balancer has no other server"), fate);
    }
    let status = scene.gate.status().await?;
    let seen = format!("late {}, cut at most {}", field(&status, "/late"), field(&status, "/cut_at_most"));
    scene.check(number(&status, "/late") == Some(0), "none is late", seen);
    Ok(())
}
