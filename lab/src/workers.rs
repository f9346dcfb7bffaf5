//! `softclose-lab workers`: whichever worker a connection lands on, the answer is the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use crate::Place;
use crate::checks::Checks;
use crate::diagnostics::evidence;
use crate::envoy::Admin;
use crate::gate::{Gate, Held, health_word, number};
use crate::ground::{self, Ground, Options};
use crate::http::Client;
use crate::{topology, wait};

/// Probes after each command, each on a connection of its own.
const PROBES: usize = 40;
/// Requests held in flight: enough that the kernel spreads them over four workers.
const HELD: usize = 32;
/// Waiters held at once.
const WAITERS: usize = 12;
/// A waiter is released by a queue message; measured well under this.
const RELEASE_LIMIT: Duration = Duration::from_millis(250);

/// True if every worker told the same story.
pub(crate) async fn run(place: &Place) -> Result<bool> {
    let out = place.folder()?;
    let mut checks = Checks::default();
    for concurrency in [1, 2, 4] {
        println!("--concurrency {concurrency}");
        let dir = out.join(format!("concurrency-{concurrency}"));
        std::fs::create_dir_all(&dir)?;
        on(concurrency, &dir, &mut checks).await.with_context(|| evidence(&dir))?;
    }
    checks.finish(&out.join("workers.json"))
}

async fn on(concurrency: u16, dir: &Path, checks: &mut Checks) -> Result<()> {
    let ground = Ground::start(dir, &Options { concurrency, ..Options::default() }).await?;
    ground::gate_answers().await?;
    let gate = Gate::new();
    let named = |what: &str| format!("{concurrency} workers: {what}");

    agree(checks, &named("before any command"), "200 OPEN", "200 OPEN").await;
    let _held = Held::start(&ground, HELD, 120.0).await?;
    let status = gate.status().await?;
    checks.check(
        number(&status, "/active") == Some(u64::try_from(HELD)?),
        named(&format!("{HELD} requests held on fresh connections are all counted")),
        format!("active {:?}", number(&status, "/active")),
    );

    gate.command("/drain?deadline_ms=120000").await?;
    agree(checks, &named("after /drain"), "200 DRAINING", "200 DRAINING").await;

    let waiting = Waiting::start(gate, "closing").await?;
    let began = Instant::now();
    gate.command("/close-lb").await?;
    agree(checks, &named("after /close-lb"), "503 CLOSING", "200 CLOSING").await;
    waiting.released(checks, &named("/wait?for=closing by /close-lb"), began, 200).await;

    let waiting = Waiting::start(gate, "exit").await?;
    let began = Instant::now();
    gate.command("/reopen").await?;
    agree(checks, &named("after /reopen"), "200 OPEN", "200 OPEN").await;
    waiting.released(checks, &named("/wait?for=exit by /reopen"), began, 409).await;

    gate.command("/drain?deadline_ms=120000").await?;
    gate.command("/close-lb").await?;
    let waiting = Waiting::start(gate, "exit").await?;
    let began = Instant::now();
    gate.command("/close").await?;
    agree(checks, &named("after /close"), "503 CLOSED", "503 CLOSED").await;
    waiting.released(checks, &named("/wait?for=exit by /close"), began, 200).await;

    let traffic = format!("127.0.0.1_{}", topology::TRAFFIC);
    for (name, prefix) in
        [("traffic", traffic.as_str()), ("health", "worker_softclose_health"), ("control", "worker_softclose_control")]
    {
        let by_worker = Admin::new().connections_by_worker(prefix).await.unwrap_or_default();
        checks.check(
            by_worker.len() == usize::from(concurrency) && by_worker.iter().all(|connections| *connections > 0),
            named(&format!("every worker took {name} connections")),
            format!("{by_worker:?}"),
        );
    }
    Ok(())
}

/// Forty probes at once, half on each path: all of a path's answers must be the same.
async fn agree(checks: &mut Checks, when: &str, balancer: &str, readiness: &str) {
    let mut probes = JoinSet::new();
    for number in 0..PROBES {
        let path = if number % 2 == 0 { "/health_check.html" } else { "/health" };
        probes.spawn(async move {
            let client = Client::new(topology::OPERATOR, Duration::from_secs(2));
            (path, health_word(&client.get(topology::local(topology::HEALTH), path).await))
        });
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = 0;
    while let Some(Ok((path, word))) = probes.join_next().await {
        let wanted = if path == "/health" { readiness } else { balancer };
        wrong += usize::from(word != wanted);
        *seen.entry(format!("{path} {word}")).or_default() += 1;
    }
    let total: usize = seen.values().sum();
    let words: Vec<String> = seen.iter().map(|(word, count)| format!("{count} x {word}")).collect();
    checks.check(wrong == 0 && total == PROBES, format!("{when}: {PROBES} probes agree"), words.join(", "));
}

/// Streams paused in `GET /wait`.
struct Waiting(JoinSet<(u16, Instant)>);

impl Waiting {
    async fn start(gate: Gate, what: &str) -> Result<Self> {
        let mut waiters = JoinSet::new();
        let held = |stats: String| {
            stats.lines().filter_map(|line| line.rsplit(": ").next()?.trim().parse::<usize>().ok()).sum::<usize>()
        };
        for _ in 0..WAITERS {
            let path = format!("/wait?for={what}&timeout_ms=15000");
            waiters.spawn(async move {
                let answer = gate.send("GET", &path, "").await;
                (answer.map_or(0, |answer| answer.status), Instant::now())
            });
        }
        let paused = async || {
            let page = Admin::new().page("/stats?filter=http.softclose_control.downstream_rq_active").await.ok()?;
            (held(page) >= WAITERS).then_some(())
        };
        wait::until("all waiters are held", Duration::from_secs(5), paused).await?;
        Ok(Self(waiters))
    }

    async fn released(mut self, checks: &mut Checks, what: &str, began: Instant, wanted: u16) {
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        let mut slowest = Duration::ZERO;
        while let Some(Ok((status, at))) = self.0.join_next().await {
            *statuses.entry(status).or_default() += 1;
            slowest = slowest.max(at.saturating_duration_since(began));
        }
        checks.check(
            statuses.get(&wanted) == Some(&WAITERS) && slowest < RELEASE_LIMIT,
            format!("{what} releases all {WAITERS} waiters with {wanted}"),
            format!("{statuses:?}, the last after {:.1} ms", slowest.as_secs_f64() * 1000.0),
        );
    }
}
