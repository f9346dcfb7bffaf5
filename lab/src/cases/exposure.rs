//! Exposure: whoever reaches the traffic port reaches no control, and whoever reaches the health port can neither steer
//! the gate nor wear it out.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::cases::odd;
use crate::cases::scene::{
    LIMIT, Maybe, Scene, balancer_probes, control_holds, control_requests, field, fresh_requests,
};
use crate::cases::wire::{Wire, answer_to, exchange, header, status};
use crate::gate::{Gate, Held, number, text};
use crate::ground::Options;
use crate::manifest::{Overrides, at};
use crate::timeline::Clock;
use crate::{topology, wait};

const TRAFFIC: u16 = topology::TRAFFIC;

/// Request lines and headers that somebody might try on a traffic port.
const TRIED: &[&str] = &[
    "GET /health_check.html HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET /status HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET /wait?for=exit HTTP/1.1\r\nhost: x\r\n\r\n",
    "POST /drain HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST /drain?x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST //drain HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST /./drain HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST /%64rain HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST /close-lb HTTP/1.1\r\nhost: 127.0.0.1:18181\r\ncontent-length: 0\r\n\r\n",
    "POST /reopen HTTP/1.1\r\nhost: softclose-control\r\nx-forwarded-for: 127.0.0.1\r\ncontent-length: 0\r\n\r\n",
    "POST http://127.0.0.1:18181/close-lb HTTP/1.1\r\nhost: 127.0.0.1:18181\r\ncontent-length: 0\r\n\r\n",
    "POST http://softclose-control/close-lb HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
];

/// The same over h2: method and `:path`.
const TRIED_H2: &[(&str, &str)] = &[
    ("POST", "/close-lb"),
    ("POST", "//close-lb"),
    ("POST", "/%63lose-lb"),
    ("POST", "/close-lb?x"),
    ("GET", "/health"),
];

/// On a traffic port the control and health paths are the application's own.
pub(crate) async fn paths(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let _held = Held::start(scene.ground()?, 1, 120.0).await?;
    // In DRAINING each request is reported at once, and every command would be taken.
    scene.gate.command("/drain?deadline_ms=100000").await?;
    let before = scene.gate.status().await?;
    let visits = scene.backend()?.visits(Clock::start()).len();
    let mut others = Vec::new();
    for request in TRIED {
        let answer = exchange(TRAFFIC, request).await;
        if !is_the_applications(&answer) {
            others.push(format!("{request:?}: {answer:?}"));
        }
    }
    for (method, path) in TRIED_H2 {
        let mut wire = Wire::to(TRAFFIC).await?;
        wire.send_h2(method, path).await?;
        match wire.h2_status().await {
            Ok(404) => {}
            Ok(other) => others.push(format!("h2 {method} {path}: {other}")),
            Err(error) => others.push(format!("h2 {method} {path}: {error:#}")),
        }
    }
    let tried = TRIED.len() + TRIED_H2.len();
    scene.check(others.is_empty(), format!("all {tried} are answered by the application"), others.join("; "));
    let routed = scene.backend()?.visits(Clock::start()).len() - visits;
    let after = scene.gate.status().await?;
    let counted = number(&after, "/counted").unwrap_or(0).saturating_sub(number(&before, "/counted").unwrap_or(0));
    let all = routed == tried && counted == u64::try_from(tried)?;
    scene.check(all, "each is routed and counted", format!("{routed} routed, {counted} counted"));
    let same = ["/state", "/since_us", "/changes", "/drains", "/events"]
        .iter()
        .all(|at| before.pointer(at) == after.pointer(at));
    scene.check(
        same,
        "the gate has not moved",
        format!("{}, changes {}", field(&after, "/state"), field(&after, "/changes")),
    );
    Ok(())
}

fn is_the_applications(answer: &str) -> bool {
    status(answer) == 404 && header(answer, "x-softclose-state").is_none() && answer.ends_with("no such path\n")
}

/// A gate filter that was attached to a traffic listener by mistake lets everything pass.
pub(crate) async fn gate_on_traffic(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![misattach], ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    let mut others = Vec::new();
    for request in TRIED {
        let answer = exchange(TRAFFIC, request).await;
        if !is_the_applications(&answer) {
            others.push(format!("{request:?}: {answer:?}"));
        }
    }
    scene.check(others.is_empty(), format!("all {} are answered by the application", TRIED.len()), others.join("; "));
    let (good, bad) = fresh_requests(10).await;
    scene.check(bad.is_empty(), "requests pass", format!("{good} x 200, others {bad:?}"));
    let state = text(&scene.gate.status().await?, "/state").to_owned();
    scene.check(state == "OPEN", "the gate has not moved", state.clone());
    Ok(())
}

fn misattach(listeners: &mut Value) -> Result<()> {
    let gate = at(odd::manager(listeners, 1)?, "/http_filters/0")?.clone();
    let filters = at(odd::manager(listeners, 0)?, "/http_filters")?.as_array_mut().context("no list of filters")?;
    filters.insert(0, gate);
    Ok(())
}

/// A prober is its peer address, whatever it says of itself.
pub(crate) async fn forwarded_for(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let own = IpAddr::V4(Ipv4Addr::new(127, 0, 7, 7));
    for claimed in ["127.0.0.2", "203.0.113.9", "203.0.113.9, 127.0.0.2"] {
        let mut wire = Wire::from(own, topology::HEALTH).await?;
        wire.send(format!(
            "GET /health_check.html HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {claimed}\r\nx-real-ip: {claimed}\r\n\r\n"
        ))
        .await?;
        let answer = status(&wire.answer().await?);
        scene.check(answer == 200, format!("a probe that claims to be {claimed}"), answer.to_string());
    }
    let addresses = addresses(&scene.gate.status().await?);
    scene.check(addresses == [own.to_string()], "the prober is its peer", format!("{addresses:?}"));
    Ok(())
}

fn addresses(document: &Value) -> Vec<String> {
    let probers = document.pointer("/probers").and_then(Value::as_array);
    probers.into_iter().flatten().map(|prober| text(prober, "/address").to_owned()).collect()
}

/// Ten thousand strangers ask once, two hundred ask twice: the table is bounded, and the balancer stays in it.
pub(crate) async fn many_probers(scene: &mut Scene) -> Result<()> {
    const STRANGERS: u32 = 10_000;
    const TWICE: u32 = 200;
    scene.start(Options::default()).await?;
    let _balancer = balancer_probes();
    let balancer = topology::LB_SOURCE.to_string();
    let known = async || {
        let status = scene.gate.status().await.ok()?;
        let probers = status.pointer("/probers")?.as_array()?.clone();
        probers.iter().find(|prober| text(prober, "/address") == balancer).and_then(|prober| number(prober, "/asked"))
    };
    wait::until("the balancer is known", LIMIT, async || known().await.filter(|asked| *asked >= 3)).await?;
    // The first thousand warm what grows once: connection pools, per-worker caches.
    ask_from(0, 1000, 1).await?;
    let before = scene.envoy_rss_kb()?;
    let began = Instant::now();
    ask_from(1000, STRANGERS - 1000, 1).await?;
    ask_from(STRANGERS, TWICE, 2).await?;
    let took = began.elapsed().as_secs_f64();
    let after = scene.envoy_rss_kb()?;
    let asked_at = Instant::now();
    let status = scene.gate.status().await?;
    let answered = asked_at.elapsed();
    let addresses = addresses(&status);
    scene.check(addresses.len() <= 64, "64 are remembered at most", addresses.len().to_string());
    scene.check(addresses.contains(&balancer), "the balancer is among them", format!("{took:.1} s of strangers"));
    let grown = after.saturating_sub(before);
    scene.check(grown < 16_384, "memory is bounded", format!("RSS {before} kB before, {after} kB after"));
    let ms = answered.as_secs_f64() * 1000.0;
    scene.check(answered < Duration::from_secs(1), "commands are answered", format!("/status in {ms:.1} ms"));
    let began = Instant::now();
    scene.gate.command("/drain?settle_ms=0").await?;
    let document = scene.reaches("CLOSED", Duration::from_secs(30), "a drain comes to its end").await?;
    let told = document.pointer("/probers").and_then(Value::as_array).into_iter().flatten();
    let told =
        told.filter(|prober| text(prober, "/address") == balancer).any(|prober| field(prober, "/told_us") != "null");
    scene.check(told, "the balancer was told", format!("{:.1} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// Probes from so many addresses, `times` each.
async fn ask_from(first: u32, count: u32, times: usize) -> Result<()> {
    const AT_ONCE: u32 = 32;
    let mut lanes = JoinSet::new();
    for lane in 0..AT_ONCE {
        lanes.spawn(async move {
            for number in (first + lane..first + count).step_by(32) {
                let [_, _, high, low] = number.to_be_bytes();
                for _ in 0..times {
                    let mut wire = Wire::from(IpAddr::V4(Ipv4Addr::new(127, 9, high, low)), topology::HEALTH).await?;
                    wire.send("GET /health_check.html HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
                    ensure!(status(&wire.answer().await?) == 200, "a stranger was not answered 200");
                }
            }
            Ok(())
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    Ok(())
}

/// A thousand waits are held and released at once; those whose callers went away make room.
pub(crate) async fn many_waiters(scene: &mut Scene, waiters: usize) -> Result<()> {
    more_files()?;
    scene.start(Options::default()).await?;
    let _held = Held::start(scene.ground()?, 1, 120.0).await?;
    scene.gate.command("/drain?deadline_ms=100000").await?;
    let before = scene.envoy_rss_kb()?;
    let began = Instant::now();
    for round in ["went away", "stay"] {
        let mut waits = Vec::new();
        for _ in 0..waiters {
            let mut wire = Wire::to(topology::CONTROL).await?;
            wire.send("GET /wait?for=closing&timeout_ms=15000 HTTP/1.1\r\nhost: x\r\n\r\n").await?;
            waits.push(wire);
        }
        control_holds(waiters).await?;
        let (ms, status) = timed(&scene.gate).await?;
        let rss = scene.envoy_rss_kb()?;
        scene.check(
            status == "DRAINING",
            format!("with {waiters} waits held, commands are answered"),
            format!("/status in {ms:.1} ms, RSS {before} kB before, {rss} kB now"),
        );
        if round == "went away" {
            drop(waits);
            let gone = async || (control_requests().await == Some(0)).then_some(());
            wait::until("nobody waits any more", LIMIT, gone).await?;
            continue;
        }
        let in_time = began.elapsed() < Duration::from_secs(14);
        let told = Instant::now();
        scene.gate.command("/close-lb").await?;
        let mut answers = Vec::new();
        for wire in &mut waits {
            answers.push(status_word(wire).await);
        }
        let released = answers.iter().filter(|status| **status == 200).count();
        let seen = format!("{released} x 200, the last after {:.0} ms", told.elapsed().as_secs_f64() * 1000.0);
        scene.check(in_time && released == waiters, "all are released by one command", seen);
    }
    let after = scene.envoy_rss_kb()?;
    scene.check(
        after.saturating_sub(before) < 65_536,
        "memory is bounded",
        format!("RSS {before} kB before, {after} kB after"),
    );
    Ok(())
}

async fn status_word(wire: &mut Wire) -> u16 {
    wire.answer().await.map_or(0, |answer| status(&answer))
}

async fn timed(gate: &Gate) -> Result<(f64, String)> {
    let began = Instant::now();
    let status = gate.status().await?;
    Ok((began.elapsed().as_secs_f64() * 1000.0, text(&status, "/state").to_owned()))
}

/// Clients that never finish a request keep nobody else from being answered.
pub(crate) async fn slow_clients(scene: &mut Scene) -> Result<()> {
    const SLOW: usize = 300;
    more_files()?;
    scene.start(Options::default()).await?;
    let before = scene.envoy_rss_kb()?;
    let mut slow = Vec::new();
    for port in [topology::CONTROL, topology::HEALTH] {
        for number in 0..SLOW {
            let mut wire = Wire::to(port).await?;
            let begun = match number % 3 {
                0 => "",
                1 => "POST /dra",
                _ => "POST /drain HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\nx-slow: ",
            };
            wire.send(begun).await?;
            slow.push(wire);
        }
    }
    let (mut slowest, mut health) = (0_f64, Vec::new());
    for turn in 0..20 {
        // A byte more from each, as slow clients do. One that Envoy has given up is a slow client less.
        for wire in &mut slow {
            let _gone = wire.send(if turn == 0 { "i" } else { "x" }).await;
        }
        let (ms, state) = timed(&scene.gate).await?;
        slowest = slowest.max(ms);
        let word = scene.health().await;
        if state != "OPEN" || word != "200 OPEN" {
            health.push(format!("{state}, {word}"));
        }
    }
    let open = scene.stat("http.softclose_control.downstream_cx_active").await;
    scene.check(open.is_some_and(|open| open >= 200), "the slow ones are still there", Maybe(open).to_string());
    scene.check(
        health.is_empty(),
        "everybody else is answered",
        format!("slowest /status {slowest:.1} ms {}", health.join("; ")),
    );
    let after = scene.envoy_rss_kb()?;
    scene.check(
        after.saturating_sub(before) < 65_536,
        "memory is bounded",
        format!("RSS {before} kB before, {after} kB after"),
    );
    let answer =
        answer_to(topology::CONTROL, "POST /drain?settle_ms=0 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            .await?;
    scene.check(status(&answer) == 200, "a command is taken", status(&answer).to_string());
    let document = scene.reaches("CLOSING", Duration::from_secs(5), "and they are no requests in flight").await?;
    scene.check(text(&document, "/verdict") == "clean", "clean", field(&document, "/verdict"));
    Ok(())
}

/// A thousand connections need more files than the usual soft limit; Envoy inherits ours.
fn more_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
