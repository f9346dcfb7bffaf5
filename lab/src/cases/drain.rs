//! What Envoy's own drain does and does not do, who may ask for health and how, and the preStop command run amiss.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cases::scene::{LIMIT, Scene, balancer_probes, client, control_holds, field};
use crate::cases::wire::{Wire, exchange, header, status};
use crate::envoy::Admin;
use crate::gate::{Held, number, text};
use crate::ground::Options;
use crate::manifest::{Overrides, at};
use crate::{haproxy, topology, wait};

const DRAIN_TIME: Duration = Duration::from_secs(3);

async fn drain_listeners(query: &str) -> u16 {
    let path = format!("/drain_listeners{query}");
    client().post(topology::local(topology::ADMIN), &path).await.map_or(0, |answer| answer.status)
}

fn short_drain() -> Options {
    Options { drain_time: DRAIN_TIME, ..Options::default() }
}

/// Without `skip_exit` Envoy closes every listener, health included: shown, because the preStop command must never do it.
pub(crate) async fn without_skip_exit(scene: &mut Scene) -> Result<()> {
    scene.start(short_drain()).await?;
    let began = Instant::now();
    let answer = drain_listeners("?graceful").await;
    scene.check(answer == 200, "POST /drain_listeners?graceful", answer.to_string());
    let word = scene.health().await;
    scene.check(word == "200 OPEN" && began.elapsed() < DRAIN_TIME, "health is answered at first", word);
    let refused = async || (scene.health().await == "refused").then_some(());
    let seen = wait::until("refused", DRAIN_TIME + LIMIT, refused).await;
    let after = began.elapsed();
    let seen = seen.map_or_else(|error| error.to_string(), |()| format!("after {:.1} s", after.as_secs_f64()));
    scene.check(after >= DRAIN_TIME - Duration::from_millis(500) && after < LIMIT, "refused at drain-time", seen);
    Ok(())
}

/// With it, health is answered beyond drain-time.
pub(crate) async fn with_skip_exit(scene: &mut Scene) -> Result<()> {
    scene.start(short_drain()).await?;
    let began = Instant::now();
    let answer = drain_listeners("?graceful&skip_exit").await;
    scene.check(answer == 200, "POST /drain_listeners?graceful&skip_exit", answer.to_string());
    wait::pace_until(began + DRAIN_TIME + Duration::from_secs(1)).await;
    let word = scene.health().await;
    scene.check(word == "200 OPEN", "health is answered at drain-time + 1 s", word);
    Ok(())
}

const FAST: &str = "GET /fast HTTP/1.1\r\nhost: x\r\n\r\n";

/// With Istio's flags the first response after the drain's begin asks to close, on old connections as on new ones.
pub(crate) async fn first_response_closes(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let mut old = Wire::to(topology::TRAFFIC).await?;
    old.send(FAST).await?;
    let before = old.answer().await?;
    let word = header(&before, "connection").unwrap_or("nothing").to_owned();
    scene.check(status(&before) == 200 && word == "nothing", "before: connection is kept", word);
    let answer = drain_listeners("?graceful&skip_exit").await;
    scene.check(answer == 200, "the drain has begun", answer.to_string());
    old.send(FAST).await?;
    let mut fresh = Wire::to(topology::TRAFFIC).await?;
    fresh.send(FAST).await?;
    for (what, wire) in [("old", &mut old), ("fresh", &mut fresh)] {
        let answer = wire.answer().await?;
        let word = header(&answer, "connection").unwrap_or("nothing").to_owned();
        scene.check(
            status(&answer) == 200 && word == "close",
            format!("{what} connection: told to close at once"),
            word,
        );
    }
    Ok(())
}

/// Envoy speaks of its drain only in responses: an idle connection stays, and nobody may wait for connections to go.
pub(crate) async fn idle_connections_stay(scene: &mut Scene) -> Result<()> {
    scene.start(short_drain()).await?;
    let mut idle = Wire::to(topology::TRAFFIC).await?;
    idle.send(FAST).await?;
    idle.answer().await?;
    drain_listeners("?graceful&skip_exit").await;
    let closed = idle.closes_within(DRAIN_TIME + Duration::from_secs(1)).await;
    scene.check(!closed, "an idle connection outlives drain-time", format!("closed: {closed}"));
    scene.gate.command("/drain?settle_ms=0&envoy_drain=started").await?;
    let document = scene.reaches("CLOSING", Duration::from_secs(5), "the gate does not wait for it").await?;
    scene.check(text(&document, "/verdict") == "clean", "clean", field(&document, "/verdict"));
    idle.send(FAST).await?;
    let answer = idle.answer().await?;
    let word = header(&answer, "connection").unwrap_or("nothing").to_owned();
    scene.check(status(&answer) == 200 && word == "close", "a late request on it is served, and told to close", word);
    Ok(())
}

/// The admin's verb and its forms, on this version of Envoy.
pub(crate) async fn admin_verbs(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let admin = topology::local(topology::ADMIN);
    let got = client().get(admin, "/drain_listeners?graceful&skip_exit").await.map_or(0, |answer| answer.status);
    scene.check(got == 405, "GET is refused with 405", got.to_string());
    for query in ["?skip_exit", "?graceful&skip_exit", "?graceful&skip_exit"] {
        let answer = drain_listeners(query).await;
        scene.check(answer == 200, format!("POST {query}, again and again"), answer.to_string());
    }
    let ready = Admin::new().ready().await;
    scene.check(ready, "/ready stays LIVE, so it cannot tell", ready.to_string());
    let word = scene.health().await;
    scene.check(word == "200 OPEN", "health is still answered", word);
    let answer = drain_listeners("").await;
    scene.check(answer == 200, "POST without a query", answer.to_string());
    let refused = async || (scene.health().await == "refused").then_some(());
    let refused = wait::until("refused", LIMIT, refused).await;
    scene.check(refused.is_ok(), "closes every listener, health included", "");
    Ok(())
}

/// HTTP/1.0, with and without Host, and HAProxy's own bare check.
pub(crate) async fn http_10_probes(scene: &mut Scene) -> Result<()> {
    scene.start(Options { check_inter_ms: Some(300), ..Options::default() }).await?;
    let server = haproxy::server().await?;
    scene.check(server.status == "UP", "HAProxy's bare httpchk takes the gateway for UP", format!("{server:?}"));
    for (what, host) in [("without Host", ""), ("with Host", "host: x\r\n")] {
        for path in ["/health_check.html", "/health"] {
            let answer = exchange(topology::HEALTH, &format!("GET {path} HTTP/1.0\r\n{host}\r\n")).await;
            let word = format!("{} {:?}", status(&answer), header(&answer, "x-softclose-state"));
            scene.check(word == r#"200 Some("OPEN")"#, format!("GET {path} HTTP/1.0 {what}"), word);
        }
    }
    scene.gate.command("/drain?settle_ms=0").await?;
    let down = async || haproxy::server().await.ok().filter(|server| server.status.starts_with("DOWN"));
    let down = wait::until("HAProxy marks it DOWN", LIMIT, down).await;
    let seen = format!("{down:?}");
    scene.check(down.is_ok_and(|server| server.check == "L7STS"), "and for DOWN by the 503", seen);
    Ok(())
}

/// A PROXY filter that was merged into every listener must not blind health.
pub(crate) async fn proxy_protocol(scene: &mut Scene) -> Result<()> {
    let overrides = Overrides { listeners: vec![proxy_on_health], ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    proxy_headers(scene).await
}

/// Checks with and without a PROXY header are answered.
pub(super) async fn proxy_headers(scene: &mut Scene) -> Result<()> {
    let request = b"GET /health_check.html HTTP/1.1\r\nhost: x\r\n\r\n";
    let v2 = |command: u8, family: u8, block: &[u8]| {
        let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        bytes.extend_from_slice(&[0x20 | command, family, 0, u8::try_from(block.len()).unwrap_or(0)]);
        bytes.extend_from_slice(block);
        bytes
    };
    // 203.0.113.7:40000 -> 203.0.113.1:80
    let block = [203, 0, 113, 7, 203, 0, 113, 1, 0x9c, 0x40, 0, 80];
    for (what, head) in [
        ("without a PROXY header", Vec::new()),
        ("with version 1", b"PROXY TCP4 203.0.113.7 203.0.113.1 40000 80\r\n".to_vec()),
        ("with version 2", v2(1, 0x11, &block)),
        ("with version 2 LOCAL", v2(0, 0, &[])),
    ] {
        let mut wire = Wire::to(topology::HEALTH).await?;
        wire.send([head.as_slice(), request].concat()).await?;
        let answer = wire.answer().await.unwrap_or_else(|error| format!("{error:#}"));
        let word = format!("{} {:?}", status(&answer), header(&answer, "x-softclose-state"));
        scene.check(word == r#"200 Some("OPEN")"#, format!("a probe {what}"), word);
    }
    let probers = scene.gate.status().await?.pointer("/probers").cloned().unwrap_or_default();
    let addresses: Vec<&str> =
        probers.as_array().into_iter().flatten().map(|prober| text(prober, "/address")).collect();
    scene.check(addresses.len() == 2, "a prober is whom the header names, or its peer", format!("{addresses:?}"));
    Ok(())
}

fn proxy_on_health(listeners: &mut Value) -> Result<()> {
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
        "allow_requests_without_proxy_protocol": true
    });
    let filters = json!([{"name": "envoy.filters.listener.proxy_protocol", "typed_config": config}]);
    at(listeners, "/1")?.as_object_mut().context("no mapping")?.insert("listener_filters".into(), filters);
    Ok(())
}

const GRACE: Duration = Duration::from_secs(60);

/// Killed half way and run again: the second run goes on where the first was, with the first one's deadline.
pub(crate) async fn pre_stop_killed(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let _balancer = balancer_probes();
    let held = Held::start(scene.ground()?, 1, 120.0).await?;
    let mut first = scene.pre_stop("prestop-1", GRACE)?;
    let draining = scene.reaches("DRAINING", LIMIT, "the first run").await?;
    rustix::process::kill_process_group(rustix::process::Pid::from_raw(first.id()).context("no id")?, Signal::KILL)?;
    let killed = first.exit(LIMIT).await;
    scene.check(killed.is_some_and(|status| status.code().is_none()), "is killed", format!("{killed:?}"));
    let mut second = scene.pre_stop("prestop-2", GRACE)?;
    control_holds(1).await?;
    let document = scene.gate.status().await?;
    let same = ["/since_us", "/drains", "/plan"].iter().all(|at| document.pointer(at) == draining.pointer(at));
    let deadline = number(&document, "/deadline_in_ms") < number(&draining, "/deadline_in_ms");
    let seen =
        format!("drains {}, deadline in {} ms", field(&document, "/drains"), field(&document, "/deadline_in_ms"));
    scene.check(same && deadline, "the second goes on with the first one's drain", seen);
    drop(held);
    ends_clean(scene, "prestop-2", &mut second).await
}

/// Two at the same time end alike; one against CLOSED at once.
pub(crate) async fn pre_stop_twice(scene: &mut Scene) -> Result<()> {
    scene.start(Options::default()).await?;
    let _balancer = balancer_probes();
    let held = Held::start(scene.ground()?, 1, 120.0).await?;
    let mut first = scene.pre_stop("prestop-1", GRACE)?;
    let mut second = scene.pre_stop("prestop-2", GRACE)?;
    control_holds(2).await?;
    let document = scene.gate.status().await?;
    scene.check(number(&document, "/drains") == Some(1), "two runs, one drain", field(&document, "/drains"));
    drop(held);
    ends_clean(scene, "prestop-1", &mut first).await?;
    ends_clean(scene, "prestop-2", &mut second).await?;
    let state = text(&scene.gate.status().await?, "/state").to_owned();
    scene.check(state == "CLOSED", "then", state.clone());
    let began = Instant::now();
    let mut third = scene.pre_stop("prestop-3", GRACE)?;
    ends_clean(scene, "prestop-3", &mut third).await?;
    let took = began.elapsed();
    scene.check(
        took < Duration::from_secs(3),
        "against CLOSED it ends at once",
        format!("{:.2} s", took.as_secs_f64()),
    );
    Ok(())
}

async fn ends_clean(scene: &mut Scene, name: &str, pre_stop: &mut crate::process::Process) -> Result<()> {
    let code = pre_stop.exit(Duration::from_secs(40)).await.and_then(|status| status.code());
    let words = crate::process::last_words(&scene.said(name));
    scene.check(code == Some(0), format!("{name} ends clean"), format!("exit code {code:?}: {words}"));
    Ok(())
}
