//! Counting: whatever becomes of a request, it is in the ledger once, and once out of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cases::odd::{self, Odd};
use crate::cases::scene::{LIMIT, Maybe, Scene, client, field};
use crate::cases::wire::{self, Wire, exchange, status};
use crate::gate::{APART, Held, number, text};
use crate::ground::Options;
use crate::http::AbortOnDrop;
use crate::manifest::{Overrides, at};
use crate::timeline::Clock;
use crate::{topology, wait};

const TRAFFIC: u16 = topology::TRAFFIC;

/// Replies of earlier filters and of the codec reach the filter as the end of a request that never was.
pub(crate) async fn early_replies(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![deny_first], ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    for (what, request, wanted) in [
        ("denied by an earlier filter", "GET /deny HTTP/1.1\r\nhost: x\r\n\r\n", 403),
        ("a malformed header", "GET / HTTP/1.1\r\nhost: x\r\nno colon here\r\n\r\n", 400),
        ("HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", 426),
        ("no Host", "GET / HTTP/1.1\r\n\r\n", 400),
    ] {
        let answer = status(&exchange(TRAFFIC, request).await);
        let active = scene.gate.status().await.ok().and_then(|status| number(&status, "/active"));
        let gauge = scene.gauge().await;
        let held = answer == wanted && active == Some(0) && gauge == Some(0);
        let seen = format!("answered {answer}, active {}, gauge {}", Maybe(active), Maybe(gauge));
        scene.check(held, format!("{what}: answered {wanted}, and the count is 0"), seen);
    }
    let held = Held::start(scene.ground()?, 1, 60.0).await?;
    scene.counts(1, "a request after them").await?;
    drop(held);
    scene.counts(0, "after it").await
}

/// In front of the counting filter, where istiod puts authorisation unless told otherwise.
fn deny_first(listeners: &mut Value) -> Result<()> {
    let filters = at(odd::manager(listeners, 0)?, "/http_filters")?.as_array_mut().context("no list of filters")?;
    let policy = json!({"permissions": [{"url_path": {"path": {"prefix": "/deny"}}}], "principals": [{"any": true}]});
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
        "rules": {"action": "DENY", "policies": {"deny": policy}}
    });
    filters.insert(0, json!({"name": "envoy.filters.http.rbac", "typed_config": config}));
    Ok(())
}

/// Every way in which a request may end before its time: in the ledger while it lasts, out of it after.
pub(crate) async fn abort_matrix(scene: &mut Scene) -> Result<()> {
    scene.start(Options { overrides: odd::overrides(), ..Options::default() }).await?;
    let mut odd = Some(Odd::start().await?);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");

    let mut wire = Wire::to(TRAFFIC).await?;
    wire.send(get("/sleep?seconds=60")).await?;
    scene.counts(1, "a client that waits").await?;
    drop(wire);
    scene.counts(0, "it went away").await?;

    let mut wire = Wire::to(TRAFFIC).await?;
    wire.send(format!("POST /odd/silent HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{}", "x".repeat(999)))
        .await?;
    scene.counts(1, "an upload under way").await?;
    wire.reset()?;
    scene.counts(0, "RST in the upload").await?;

    let mut wire = Wire::to(TRAFFIC).await?;
    wire.send_h2("GET", "/sleep?seconds=60").await?;
    scene.counts(1, "an h2 stream").await?;
    wire.reset_h2_stream().await?;
    scene.counts(0, "RST_STREAM").await?;

    for (what, path, wanted) in
        [("the route's timeout", "/impatient", 504), ("resets by the application, three retries", "/odd/reset", 503)]
    {
        let mut wire = Wire::to(TRAFFIC).await?;
        wire.send(get(path)).await?;
        scene.counts(1, what).await?;
        let answer = status(&wire.answer().await?);
        scene.check(answer == wanted, format!("{what}: answered {wanted}"), answer.to_string());
        scene.counts(0, what).await?;
    }
    let retries = scene.stat("cluster.outbound|80||odd.upstream_rq_retry").await;
    scene.check(retries == Some(3), "all three retries were made", Maybe(retries).to_string());

    let before = scene.gate.status().await.ok().and_then(|status| number(&status, "/counted"));
    let answer = status(&exchange(TRAFFIC, &get("/direct")).await);
    scene.check(answer == 200, "a direct response", format!("{answer}, counted before {}", Maybe(before)));
    scene.counts(0, "a direct response").await?;

    let mut wire = Wire::to(TRAFFIC).await?;
    wire.send("POST /odd/body HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n").await?;
    let first = status(&wire.answer().await?);
    scene.check(first == 100, "Expect: 100-continue is answered 100", first.to_string());
    scene.counts(1, "the body is awaited").await?;
    wire.send("0123456789").await?;
    let last = status(&wire.answer().await?);
    scene.check(last == 200, "then 200", last.to_string());
    scene.counts(0, "after Expect").await?;

    let mut wire = Wire::to(TRAFFIC).await?;
    wire.send(get("/odd/silent")).await?;
    scene.counts(1, "the application is about to be killed").await?;
    drop(odd.take());
    let answer = status(&wire.answer().await?);
    scene.check(answer == 503, "the application was killed: answered 503", answer.to_string());
    scene.counts(0, "the application was killed").await
}

/// A client that goes away in mid-drain has ended its request; that is no cut of ours, and the drain is clean.
pub(crate) async fn aborts_while_draining(scene: &mut Scene) -> Result<()> {
    scene.start(Options { overrides: odd::overrides(), ..Options::default() }).await?;
    let _odd = Odd::start().await?;
    let [mut waiting, mut upload, mut stream] =
        [Wire::to(TRAFFIC).await?, Wire::to(TRAFFIC).await?, Wire::to(TRAFFIC).await?];
    waiting.send("GET /odd/silent HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    upload.send("POST /odd/silent HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx").await?;
    stream.send_h2("GET", "/odd/silent").await?;
    scene.counts(3, "three clients").await?;
    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    drop(waiting);
    scene.counts(2, "one went away").await?;
    wait::pace_until(Instant::now() + APART).await;
    upload.reset()?;
    scene.counts(1, "one sent RST").await?;
    wait::pace_until(Instant::now() + APART).await;
    stream.reset_h2_stream().await?;
    let status = scene.reaches("CLOSING", Duration::from_secs(5), "one sent RST_STREAM").await?;
    scene.check(text(&status, "/verdict") == "clean", "and it is clean", field(&status, "/verdict"));
    Ok(())
}

/// Log entries in mid-request must not end it in the ledger.
pub(crate) async fn access_log_flush(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![log_often], ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    let request = tokio::spawn(async { client().get(topology::local(TRAFFIC), "/sleep?seconds=3").await });
    scene.counts(1, "a request of 3 s").await?;
    let mut seen: Vec<u64> = Vec::new();
    let gate = scene.gate;
    while !request.is_finished() {
        if let Some(active) = gate.status().await.ok().and_then(|status| number(&status, "/active")) {
            seen.push(active);
        }
        wait::pace_until(Instant::now() + Duration::from_millis(50)).await;
    }
    let answer = request.await?.map(|answer| answer.status).unwrap_or(0);
    // The last look may have come just after the end.
    seen.pop();
    let steady = seen.len() >= 20 && seen.iter().all(|active| *active == 1);
    scene.check(
        steady && answer == 200,
        "1 at every look until its end",
        format!("{} looks, answered {answer}", seen.len()),
    );
    let path = scene.dir.join("access.log");
    let logged = async || {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        ["DownstreamStart", "DownstreamPeriodic", "DownstreamEnd"].iter().all(|kind| log.contains(kind)).then_some(log)
    };
    let log = wait::until("start, period and end in the access log", LIMIT, logged).await;
    scene.check(log.is_ok(), "Envoy did log in mid-request", log.unwrap_or_default().replace('\n', " "));
    scene.counts(0, "after it").await
}

fn log_often(listeners: &mut Value) -> Result<()> {
    let manager = odd::manager(listeners, 0)?.as_object_mut().context("no mapping")?;
    let format = json!({"text_format_source": {"inline_string": "%ACCESS_LOG_TYPE%\n"}});
    // The agent runs Envoy in the run's folder.
    let log = json!({
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": "access.log", "log_format": format
    });
    manager.insert("access_log".into(), json!([{"name": "envoy.access_loggers.file", "typed_config": log}]));
    let options = json!({"flush_access_log_on_new_request": true, "access_log_flush_interval": "1s"});
    manager.insert("access_log_options".into(), options);
    Ok(())
}

/// The count touches zero between two pipelined requests; half a head is no request.
pub(crate) async fn pipelining(scene: &mut Scene) -> Result<()> {
    const ROUNDS: usize = 5;
    scene.start(Options::default()).await?;
    let mut early = Vec::new();
    for round in 0..ROUNDS {
        let mut wire = Wire::to(TRAFFIC).await?;
        let request = "GET /sleep?seconds=0.5 HTTP/1.1\r\nhost: x\r\n\r\n";
        wire.send(request.repeat(2)).await?;
        let first = async || (scene.backend().ok()?.visits(Clock::start()).len() == 2 * round + 1).then_some(());
        wait::until("the first of the two runs", LIMIT, first).await?;
        scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
        scene.gate.reaches("CLOSING", LIMIT).await?;
        // Of this very moment: the second takes half a second, a look ten milliseconds.
        let visits = scene.backend()?.visits(Clock::start());
        let finished = visits.iter().filter(|visit| visit.finished).count();
        if finished != 2 * round + 2 {
            early.push(format!("round {round}: {finished} finished"));
        }
        let answers = [status(&wire.answer().await?), status(&wire.answer().await?)];
        scene.check(answers == [200, 200], "both pipelined requests are served", format!("{answers:?}"));
        scene.gate.command("/reopen").await?;
    }
    scene.check(
        early.is_empty(),
        format!("{ROUNDS} drains with settle 0: CLOSING only after the second"),
        early.join(", "),
    );

    let silent = Wire::to(TRAFFIC).await?;
    let mut half = Wire::to(TRAFFIC).await?;
    half.send("GET /fast HTTP/1.1\r\nho").await?;
    let open = async || {
        let open = scene.stat(&format!("http.outbound_0.0.0.0_{TRAFFIC}.downstream_cx_active")).await;
        open.filter(|open| *open >= 2)
    };
    let open = wait::until("both connections are open", LIMIT, open).await?;
    scene.counts(0, &format!("a silent connection and half a head ({open} open)")).await?;
    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    let status = scene.reaches("CLOSING", Duration::from_secs(3), "they do not hold a drain up").await?;
    scene.check(text(&status, "/verdict") == "clean", "and it is clean", field(&status, "/verdict"));
    drop((silent, half));
    Ok(())
}

/// Where the gauge is a dud, shared data counts as well.
pub(crate) async fn no_gauge(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { bootstrap: vec![reject_all], ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    let ledger = text(&scene.gate.status().await?, "/ledger").to_owned();
    scene.check(ledger == "shared", "the ledger is shared data", ledger.clone());
    let gauge = scene.gauge().await;
    scene.check(gauge.is_none(), "the gauge is a dud", Maybe(gauge).to_string());
    counts_and_drains(scene).await
}

/// The same where only the traffic listener has a stats matcher: then the two roles may not keep their count alike.
pub(crate) async fn no_gauge_on_traffic(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![reject_all_of_traffic], ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    let held = Held::start(scene.ground()?, 1, 60.0).await?;
    let (gauge, status) = (scene.gauge().await, scene.gate.status().await?);
    let seen = format!("the gate's ledger {}, the gauge reads {}", field(&status, "/ledger"), Maybe(gauge));
    scene.check(number(&status, "/active") == Some(1), "counted, in whichever ledger", seen);
    drop(held);
    scene.counts(0, "it ended").await?;
    counts_and_drains(scene).await
}

async fn counts_and_drains(scene: &mut Scene) -> Result<()> {
    const HELD: usize = 6;
    let held = Held::start(scene.ground()?, HELD, 60.0).await?;
    scene.counts(u64::try_from(HELD)?, "requests on both workers").await?;
    scene.gate.command("/drain?settle_ms=0&deadline_ms=60000").await?;
    // Longer than a roll call.
    wait::pace_until(Instant::now() + Duration::from_millis(2500)).await;
    let health = scene.health().await;
    scene.check(health == "200 DRAINING", "the drain waits for them", health);
    held.leave().await;
    let status = scene.reaches("CLOSING", Duration::from_secs(5), "they ended").await?;
    scene.check(text(&status, "/verdict") == "clean", "and it is clean", field(&status, "/verdict"));
    scene.counts(0, "at the end").await
}

fn reject_all(bootstrap: &mut Value) -> Result<()> {
    let matcher = json!({"stats_matcher": {"reject_all": true}});
    bootstrap.as_object_mut().context("no mapping")?.insert("stats_config".into(), matcher);
    Ok(())
}

fn reject_all_of_traffic(listeners: &mut Value) -> Result<()> {
    let matcher = json!({"@type": "type.googleapis.com/envoy.config.metrics.v3.StatsMatcher", "reject_all": true});
    let metadata = json!({"typed_filter_metadata": {"envoy.stats_matcher": matcher}});
    at(listeners, "/0")?.as_object_mut().context("no mapping")?.insert("metadata".into(), metadata);
    Ok(())
}

/// Whichever worker a probe lands on, it hears the same, from the moment at which the command has returned.
pub(crate) async fn fresh_probes_agree(scene: &mut Scene) -> Result<()> {
    const PROBES: usize = 40;
    scene.start(Options { concurrency: 4, ..Options::default() }).await?;
    let _held = Held::start(scene.ground()?, 1, 60.0).await?;
    for (command, wanted) in [
        ("/drain?deadline_ms=60000", "200 DRAINING"),
        ("/close-lb", "503 CLOSING"),
        ("/reopen", "200 OPEN"),
        ("/drain?deadline_ms=60000", "200 DRAINING"),
    ] {
        scene.gate.command(command).await?;
        let mut others = Vec::new();
        for _ in 0..PROBES {
            let word = scene.health().await;
            if word != wanted {
                others.push(word);
            }
        }
        scene.check(
            others.is_empty(),
            format!("after {command} {PROBES} fresh probes hear {wanted}"),
            others.join(", "),
        );
    }
    let prefix = "worker_softclose_health";
    let by_worker = crate::envoy::Admin::new().connections_by_worker(prefix).await.unwrap_or_default();
    let spread = by_worker.len() == 4 && by_worker.iter().all(|connections| *connections > 0);
    scene.check(spread, "all four workers were asked", format!("{by_worker:?}"));
    Ok(())
}

/// A balancer that keeps connections meets no error on our account, because the pod leaves only after it has stopped.
pub(crate) async fn reuse_while_leaving(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let balancer = AbortOnDrop(tokio::spawn(reusing_balancer()));
    let flowing = async || (scene.backend().ok()?.visits(Clock::start()).len() > 100).then_some(());
    wait::until("requests flow", LIMIT, flowing).await?;
    // So steady a trickle never settles: the drain lasts until its deadline, which comes soon by this grace.
    let mut pre_stop = scene.pre_stop("prestop", Duration::from_secs(22))?;
    let code = pre_stop.exit(Duration::from_secs(60)).await.and_then(|status| status.code());
    scene.ground()?.gateway.agent.process.terminate();
    let ended = scene.ground()?.gateway.agent.process.exit(LIMIT).await;
    scene.check(ended.is_some(), "kubelet's SIGTERM came after preStop", format!("{ended:?}"));
    let mut balancer = balancer;
    let seen = tokio::time::timeout(LIMIT, &mut balancer.0).await.context("the balancer never stopped")???;
    scene.check(seen.reused > 50, "idle connections were reused", format!("{} of {} requests", seen.reused, seen.sent));
    scene.check(seen.after_flip > 0, "requests came after the flip, before mark-down", seen.after_flip.to_string());
    scene.check(seen.failed.is_empty(), "no request failed until mark-down", seen.failed.join(", "));
    scene.check(code.is_some(), "preStop ended by itself", format!("exit code {code:?}"));
    Ok(())
}

#[derive(Default)]
struct Reuse {
    sent: u32,
    reused: u32,
    after_flip: u32,
    failed: Vec<String>,
}

/// Asks health every 200 ms, `fall 2`; sends a request every 20 ms, each on the oldest of four kept connections.
async fn reusing_balancer() -> Result<Reuse> {
    let prober = crate::http::Client::new(topology::LB_SOURCE, Duration::from_secs(2));
    let mut kept: std::collections::VecDeque<Option<Wire>> = (0..4).map(|_| None).collect();
    let (mut seen, mut hard) = (Reuse::default(), 0);
    for turn in 0_u32.. {
        if turn % 10 == 0 {
            let answer = prober.get(topology::local(topology::HEALTH), "/health_check.html").await;
            hard = if answer.is_ok_and(|answer| answer.status == 200) { 0 } else { hard + 1 };
            if hard >= 2 {
                break;
            }
        }
        seen.sent += 1;
        seen.after_flip += u32::from(hard > 0);
        let reused = kept.pop_front().flatten();
        seen.reused += u32::from(reused.is_some());
        let exchange = async {
            let mut wire = match reused {
                Some(wire) => wire,
                None => Wire::from(topology::LB_SOURCE, TRAFFIC).await?,
            };
            wire.send("GET /fast HTTP/1.1\r\nhost: x\r\n\r\n").await?;
            let answer = wire.answer().await?;
            anyhow::ensure!(status(&answer) == 200, "answered {}", status(&answer));
            Ok((wire::header(&answer, "connection") != Some("close")).then_some(wire))
        };
        match exchange.await {
            Ok(keep) => kept.push_back(keep),
            Err(error) => {
                seen.failed.push(format!("{error:#}"));
                kept.push_back(None);
            }
        }
        wait::pace_until(Instant::now() + Duration::from_millis(20)).await;
    }
    Ok(seen)
}
