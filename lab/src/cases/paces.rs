//! HAProxy's own arithmetic, which a hold has to outlast: from the flip to DOWN, from 404 to NOLB and back, and what a fresh HAProxy
//! believes.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cases::balancer::Balancer;
use crate::cases::scene::{LIMIT, Maybe, Scene, field};
use crate::gate::number;
use crate::ground::Options;
use crate::{topology, wait};

/// A pace of checks, and what it comes to.
struct Pace {
    backend: &'static str,
    server: &'static str,
    /// From the flip to DOWN: without and with the wait for the next check.
    down_ms: (u64, u64),
    /// From the answer 200 to UP, as far as the case looks at it.
    up_ms: Option<(u64, u64)>,
}

const PACES: &[Pace] = &[
    // inter + (fall - 1) x fastinter, and after DOWN downinter + (rise - 1) x fastinter.
    Pace {
        backend: "",
        server: "inter 1s fall 3 fastinter 200ms downinter 500ms rise 2",
        down_ms: (400, 1400),
        up_ms: Some((200, 700)),
    },
    // Without fastinter it is inter, three times.
    Pace { backend: "", server: "inter 500ms fall 3 rise 2", down_ms: (1000, 1500), up_ms: Some((500, 1000)) },
    // Nothing said: inter 2 s, fall 3.
    Pace { backend: "", server: "", down_ms: (4000, 6000), up_ms: None },
    // The server's line has the last word; without a unit it is milliseconds.
    Pace {
        backend: "default-server inter 10s fall 5",
        server: "inter 300 fall 2 rise 1",
        down_ms: (300, 600),
        up_ms: Some((0, 300)),
    },
];

/// A look at the balancer, its check's own time, and a busy machine.
const LATE: Duration = Duration::from_millis(400);
/// Timers of a check are spread by HAProxy a little.
const EARLY: Duration = Duration::from_millis(60);

/// Time to DOWN is inter + (fall - 1) x fastinter at most, whatever people compute.
pub(crate) async fn time_to_down(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let mut balancers = Vec::new();
    for (number, pace) in (0..).zip(PACES) {
        let balancer = Balancer::start(&scene.dir, number, pace.backend, pace.server).await?;
        balancers.push((balancer, pace));
    }
    for (balancer, _) in &balancers {
        balancer.up().await?;
    }
    scene.gate.command("/drain?settle_ms=0&hold_max_ms=20000&fall=3").await?;
    scene.reaches("CLOSING", LIMIT, "an idle gateway").await?;
    let flipped = Instant::now();
    each_says(scene, &balancers, "DOWN", flipped, |pace| Some(pace.down_ms)).await?;
    scene.gate.command("/reopen").await?;
    let reopened = Instant::now();
    each_says(scene, &balancers, "UP", reopened, |pace| pace.up_ms).await
}

/// Waits for a word of all of them at once; checks when each said it.
async fn each_says(
    scene: &mut Scene,
    balancers: &[(Balancer, &Pace)],
    word: &str,
    from: Instant,
    bounds: impl Fn(&Pace) -> Option<(u64, u64)>,
) -> Result<()> {
    let mut open: Vec<_> =
        balancers.iter().filter_map(|(balancer, pace)| Some((balancer, *pace, bounds(pace)?))).collect();
    while !open.is_empty() {
        let mut left = Vec::new();
        for (balancer, pace, (least, most)) in open {
            let server = balancer.server().await?;
            // On its way up it says `DOWN 1/2`, on its way down `UP 2/3`.
            if server.status != word && !(word == "DOWN" && server.status.starts_with(word)) {
                left.push((balancer, pace, (least, most)));
                continue;
            }
            let after = from.elapsed();
            let within = after + EARLY >= Duration::from_millis(least) && after <= Duration::from_millis(most) + LATE;
            let what = format!("check {:?} {:?}: {word} after {least} to {most} ms", pace.backend, pace.server);
            scene.check(within, what, format!("{} ms", after.as_millis()));
        }
        open = left;
        if from.elapsed() > LIMIT {
            scene.check(open.is_empty(), format!("every balancer says {word}"), format!("{} do not", open.len()));
            return Ok(());
        }
    }
    Ok(())
}

const SOFT: &str = "http-check disable-on-404";
const SOFT_CHECK: &str = "inter 500ms rise 1 fall 1 on-marked-down shutdown-sessions";

/// 404 takes an UP server out and keeps what runs on it; from DOWN it brings nothing back.
pub(crate) async fn soft_signal(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let balancer = Balancer::start(&scene.dir, 0, SOFT, SOFT_CHECK).await?;
    balancer.up().await?;
    let running = balancer.ask("/sleep?seconds=4");
    scene.counts(1, "a request that runs").await?;
    scene.gate.command("/drain?preset=haproxy-soft&fall=1&settle_ms=0").await?;
    balancer.says("NOLB").await?;
    let refused = balancer.ask("/fast").fate().await;
    scene.check(refused.starts_with("503"), "404: NOLB, and no other server for a new request", refused);
    scene.check(!running.is_over(), "the one that runs goes on", "");
    let fate = running.fate().await;
    scene.check(fate == "whole", "to its end", fate);
    scene.reaches("CLOSING", LIMIT, "then").await?;
    balancer.says("DOWN").await?;
    // Back to 404 before the balancer can see a 200: with a request in flight, so that it lasts.
    let held = crate::gate::Held::start(scene.ground()?, 1, 60.0).await?;
    scene.gate.command("/reopen").await?;
    scene.gate.command("/drain?preset=haproxy-soft&fall=1&settle_ms=0").await?;
    let words = balancer.words_during(Duration::from_millis(1600)).await;
    scene.check(words == ["DOWN"], "404 from DOWN: it stays DOWN", format!("{words:?}"));
    scene.gate.command("/reopen").await?;
    let up = balancer.says("UP").await;
    scene.check(up.is_ok(), "200: UP", up.err().map(|error| error.to_string()).unwrap_or_default());
    drop(held);
    Ok(())
}

/// Between two requests in the first interval of a fresh HAProxy.
const EACH: Duration = Duration::from_millis(50);

/// A fresh HAProxy takes a server for UP until its first check: what it sends to a gateway that is CLOSED is served as long as the
/// process is there, and what its DOWN cuts is counted.
pub(crate) async fn fresh_balancer(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let first =
        Balancer::start(&scene.dir, 0, "", "inter 300ms rise 2 fall 2 on-marked-down shutdown-sessions").await?;
    first.up().await?;
    scene.gate.command("/drain?settle_ms=0").await?;
    scene.reaches("CLOSED", LIMIT, "an idle gateway").await?;
    drop(first);
    // HAProxy spreads the first checks of all servers over the interval: the gateway's, of two, comes after half of it.
    let other = format!(
        "server other {} check port {} inter 2s weight 0",
        topology::local(topology::TRAFFIC),
        topology::HEALTH
    );
    let fresh =
        Balancer::start(&scene.dir, 1, &other, "inter 2s rise 2 fall 2 on-marked-down shutdown-sessions").await?;
    let long = fresh.ask("/sleep?seconds=20");
    let (mut served, mut other) = (0_u32, Vec::new());
    let down = async || fresh.server().await.ok().filter(|server| server.status.starts_with("DOWN"));
    let began = Instant::now();
    while down().await.is_none() && began.elapsed() < LIMIT {
        match fresh.ask("/fast").fate().await.as_str() {
            "whole" => served += 1,
            fate => other.push(fate.to_owned()),
        }
        wait::pace_until(Instant::now() + EACH).await;
    }
    let seen = format!("{served} served in {:.2} s, then {other:?}", began.elapsed().as_secs_f64());
    // The last may have found the balancer on its way DOWN: then it says itself that it has no server.
    let refused = other.iter().filter(|fate| !fate.starts_with("503")).count();
    scene.check(served > 0 && refused <= 1, "CLOSED serves what comes, and refuses nothing", seen);
    let fate = long.fate().await;
    scene.check(fate != "whole", "DOWN cuts what runs", fate);
    let status = scene.gate.status().await?;
    let cut = number(&status, "/cut_at_most");
    let late = field(&status, "/late");
    scene.check(cut >= Some(1), "and the gate says so", format!("late {late}, cut at most {}", Maybe(cut)));
    Ok(())
}
