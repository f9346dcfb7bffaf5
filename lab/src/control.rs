//! `softclose-lab control`: what is not a call gets its 4xx and changes nothing; what is not a configuration is refused
//! where it may be, and harmless where it may not.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Place;
use crate::checks::Checks;
use crate::diagnostics::evidence;
use crate::envoy::{self, Admin};
use crate::gate::{Gate, Held, health_word, text};
use crate::ground::{self, Ground, Options};
use crate::http::{Answer, Client, Failure};
use crate::manifest::Overrides;
use crate::{topology, wait};

/// A wrong call: method, path, body, the status that it deserves, and words that its reason must hold.
type Wrong = (&'static str, &'static str, &'static str, u16, &'static [&'static str]);

/// On the control listener, in whatever state.
const CONTROL: &[Wrong] = &[
    ("GET", "/", "", 404, &["/drain"]),
    ("POST", "/nope", "", 404, &["/drain"]),
    ("POST", "/drain/", "", 404, &[]),
    ("POST", "//drain", "", 404, &[]),
    ("POST", "/DRAIN", "", 404, &[]),
    ("POST", "/health_check.html", "", 404, &[]),
    ("GET", "/drain", "", 405, &["POST"]),
    ("PUT", "/drain", "", 405, &["POST"]),
    ("HEAD", "/close", "", 405, &[]),
    ("GET", "/reopen", "", 405, &["POST"]),
    ("OPTIONS", "/observe", "", 405, &["POST"]),
    ("POST", "/status", "", 405, &["GET"]),
    ("DELETE", "/wait", "", 405, &["GET"]),
    ("POST", "/drain?settle_ms=soon", "", 400, &["settle_ms", "soon", "60000"]),
    ("POST", "/drain?settle_ms=60001", "", 400, &["settle_ms", "60001", "60000"]),
    ("POST", "/drain?settle_ms=-1", "", 400, &["settle_ms", "-1"]),
    ("POST", "/drain?settle_ms=", "", 400, &["settle_ms"]),
    ("POST", "/drain?settle_ms", "", 400, &["settle_ms"]),
    ("POST", "/drain?settle_ms=1&settle_ms=2", "", 400, &["settle_ms"]),
    ("POST", "/drain?deadline_ms=0", "", 400, &["deadline_ms", "0", "86400000"]),
    ("POST", "/drain?deadline_ms=86400001", "", 400, &["deadline_ms", "86400001"]),
    ("POST", "/drain?deadline_ms=99999999999999999999", "", 400, &["deadline_ms"]),
    ("POST", "/drain?fall=0", "", 400, &["fall", "0", "100"]),
    ("POST", "/drain?fall=101", "", 400, &["fall", "101", "100"]),
    ("POST", "/drain?margin_ms=60001", "", 400, &["margin_ms", "60001", "60000"]),
    ("POST", "/drain?hold_min_ms=600001", "", 400, &["hold_min_ms", "600001", "600000"]),
    ("POST", "/drain?hold_max_ms=600001", "", 400, &["hold_max_ms", "600001", "600000"]),
    ("POST", "/drain?preset=nobody", "", 400, &["preset", "nobody", "haproxy"]),
    ("POST", "/drain?envoy_drain=perhaps", "", 400, &["envoy_drain", "perhaps", "started"]),
    ("POST", "/drain?hurry=1", "", 400, &["hurry"]),
    ("POST", "/observe", "", 400, &["active"]),
    ("POST", "/observe?active=none", "", 400, &["active", "none"]),
    ("POST", "/observe?active=-1", "", 400, &["active", "-1"]),
    ("POST", "/observe?passive=1", "", 400, &["passive"]),
    ("POST", "/close-lb?now=1", "", 400, &["now"]),
    ("POST", "/close?now=1", "", 400, &["now"]),
    ("POST", "/reopen?now=1", "", 400, &["now"]),
    ("GET", "/status?verbose=1", "", 400, &["verbose"]),
    ("GET", "/wait?for=godot", "", 400, &["for", "godot", "closing", "exit"]),
    ("GET", "/wait?timeout_ms=0", "", 400, &["timeout_ms", "0", "15000"]),
    ("GET", "/wait?timeout_ms=15001", "", 400, &["timeout_ms", "15001", "15000"]),
    ("GET", "/wait?for=exit&for=exit", "", 400, &["for"]),
    ("POST", "/drain", "deadline_ms=1", 413, &[]),
    ("POST", "/close-lb", "x", 413, &[]),
    ("POST", "/observe?active=0", "{}", 413, &[]),
    ("GET", "/status", "x", 413, &[]),
];

/// On the control listener while OPEN: nothing has been begun that these could go on with.
const REFUSED_IN_OPEN: &[Wrong] = &[
    ("POST", "/close-lb", "", 409, &[]),
    ("POST", "/close", "", 409, &[]),
    ("GET", "/wait", "", 409, &[]),
    ("GET", "/wait?for=exit&timeout_ms=1000", "", 409, &[]),
];

/// On the control listener while DRAINING.
const REFUSED_IN_DRAINING: &[Wrong] = &[("POST", "/close", "", 409, &[])];

/// On the health listener, in whatever state: anybody may reach it.
const HEALTH: &[Wrong] = &[
    ("GET", "/", "", 404, &[]),
    ("GET", "/status", "", 404, &[]),
    ("GET", "/health/", "", 404, &[]),
    ("GET", "/HEALTH", "", 404, &[]),
    ("POST", "/drain", "", 404, &[]),
    ("POST", "/close-lb", "", 404, &[]),
    ("POST", "/reopen", "", 404, &[]),
    ("GET", "/wait", "", 404, &[]),
    ("POST", "/health_check.html", "", 405, &["GET"]),
    ("PUT", "/health", "", 405, &["GET"]),
    ("DELETE", "/health_check.html", "", 405, &["GET"]),
    ("POST", "/health", "x", 405, &["GET"]),
];

/// Configurations that the gate must refuse, each with the field that its refusal must name.
const BAD_GATE: &[(&str, &str)] = &[
    (r#"{"role": "gate", "plan": {"fall": 0}}"#, "fall"),
    (r#"{"role": "gate", "plan": {"settle_ms": 60001}}"#, "settle_ms"),
    (r#"{"role": "gate", "plan": {"hurry": 1}}"#, "hurry"),
    (r#"{"role": "gate", "balancer_path": "no-slash"}"#, "balancer_path"),
    (r#"{"role": "gatekeeper"}"#, "role"),
    ("plan: {fall: 2}", "configuration"),
];

/// Configurations that the counting role must live with.
const BAD_COUNT: &[&str] = &[r#"{"role": "count", "limit": 5}"#, r#"{"role": 7}"#, "[]", "not JSON", ""];

/// True if every wrong call and configuration was answered as it should be.
pub(crate) async fn run(place: &Place) -> Result<bool> {
    let out = place.folder()?;
    let mut checks = Checks::default();
    println!("wrong calls");
    let dir = out.join("calls");
    std::fs::create_dir_all(&dir)?;
    calls(&dir, &mut checks).await.with_context(|| evidence(&dir))?;
    for (number, (configuration, field)) in BAD_GATE.iter().enumerate() {
        println!("gate configuration {configuration}");
        let dir = out.join(format!("gate-{number}"));
        std::fs::create_dir_all(&dir)?;
        bad_gate(&dir, configuration, field, &mut checks).await.with_context(|| evidence(&dir))?;
    }
    for (number, configuration) in BAD_COUNT.iter().enumerate() {
        println!("count configuration {configuration:?}");
        let dir = out.join(format!("count-{number}"));
        std::fs::create_dir_all(&dir)?;
        bad_count(&dir, configuration, &mut checks).await.with_context(|| evidence(&dir))?;
    }
    println!("bad configuration pushed to a running gateway");
    let dir = out.join("pushed");
    std::fs::create_dir_all(&dir)?;
    pushed(&dir, &mut checks).await.with_context(|| evidence(&dir))?;
    checks.finish(&out.join("control.json"))
}

async fn calls(dir: &Path, checks: &mut Checks) -> Result<()> {
    let ground = Ground::start(dir, &Options::default()).await?;
    ground::gate_answers().await?;
    let (control, health) = (topology::CONTROL, topology::HEALTH);
    all_refused(checks, "OPEN, control", control, CONTROL).await?;
    all_refused(checks, "OPEN, control", control, REFUSED_IN_OPEN).await?;
    all_refused(checks, "OPEN, health", health, HEALTH).await?;
    let _held = Held::start(&ground, 1, 120.0).await?;
    Gate::new().command("/drain?deadline_ms=100000").await?;
    all_refused(checks, "DRAINING, control", control, CONTROL).await?;
    all_refused(checks, "DRAINING, control", control, REFUSED_IN_DRAINING).await?;
    all_refused(checks, "DRAINING, health", health, HEALTH).await?;

    let client = Client::new(topology::OPERATOR, Duration::from_secs(2));
    for path in ["/health_check.html", "/health"] {
        let head = client.send(topology::local(health), "HEAD", path, "").await;
        checks.check(
            health_word(&head) == "200 DRAINING",
            format!("HEAD {path} is answered like GET"),
            health_word(&head),
        );
    }
    for path in ["/drain", "/status", "/health_check.html"] {
        let answer = client.get(topology::local(topology::TRAFFIC), path).await;
        let foreign = answer.as_ref().is_ok_and(|answer| answer.status == 404 && answer.state().is_none());
        checks.check(foreign, format!("{path} means nothing on a traffic port"), health_word(&answer));
    }
    Ok(())
}

/// Sends each wrong call; each must get its status and reason, and leave the gate as it was.
async fn all_refused(checks: &mut Checks, whence: &str, port: u16, wrongs: &[Wrong]) -> Result<()> {
    let gate = Gate::new();
    let client = Client::new(topology::OPERATOR, Duration::from_secs(3));
    for (method, path, body, wanted, words) in wrongs {
        let before = essence(&gate.status().await?);
        let answer = client.send(topology::local(port), method, path, body).await;
        let after = essence(&gate.status().await?);
        let complaint = complaint(&answer, *wanted, words, *method == "HEAD", port == topology::CONTROL);
        let held = complaint.is_none() && before == after;
        let seen = match (complaint, before == after) {
            (Some(complaint), _) => complaint,
            (None, false) => format!("changed the gate from {before} to {after}"),
            (None, true) => answer.as_ref().map(reason).unwrap_or_default(),
        };
        let with = if body.is_empty() { String::new() } else { format!(" with body {body:?}") };
        checks.check(held, format!("{whence}: {method} {path}{with} is {wanted}"), seen);
    }
    Ok(())
}

/// What is wrong with the answer to a wrong call.
fn complaint(
    answer: &Result<Answer, Failure>,
    wanted: u16,
    words: &[&str],
    bodiless: bool,
    control: bool,
) -> Option<String> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(failure) => return Some(format!("no answer: {failure}")),
    };
    let reason = reason(answer);
    if answer.status != wanted {
        return Some(format!("answered {}: {reason}", answer.status));
    }
    if answer.state().is_none() {
        return Some("no x-softclose-state".to_owned());
    }
    if wanted == 405 && answer.header("allow").is_none() {
        return Some("405 without allow".to_owned());
    }
    if bodiless {
        return None;
    }
    if reason.is_empty() {
        return Some(format!("no reason in {:?}", answer.body));
    }
    // The health listener's reasons are for probes, not for people who mistyped a query.
    let missing = words.iter().find(|word| control && !reason.contains(*word));
    missing.map(|word| format!("the reason does not name {word}: {reason}"))
}

fn reason(answer: &Answer) -> String {
    match serde_json::from_str::<Value>(&answer.body) {
        Ok(document) if answer.status == 409 && document.get("error").is_none() => text(&document, "/state").to_owned(),
        Ok(document) => text(&document, "/error").to_owned(),
        Err(_plain) => answer.body.trim().to_owned(),
    }
}

/// What a refused call must leave alone. Probers and clocks move by themselves.
fn essence(status: &Value) -> String {
    let kept =
        ["/state", "/since_us", "/plan", "/drains", "/distrust", "/opinion", "/envoy_drain_us", "/events", "/verdict"];
    let field = |pointer: &&str| status.pointer(pointer).map(ToString::to_string).unwrap_or_default();
    kept.iter().map(field).collect::<Vec<_>>().join(" ")
}

async fn bad_gate(dir: &Path, configuration: &str, field: &str, checks: &mut Checks) -> Result<()> {
    let overrides = Overrides { gate: Some(configuration.to_owned()), ..Overrides::default() };
    let _ground = Ground::start(dir, &Options { overrides, ..Options::default() }).await?;
    let mut refusal = String::new();
    let named = async || {
        let log = std::fs::read_to_string(dir.join("envoy.log")).unwrap_or_default();
        refusal =
            log.lines().find(|line| line.contains("softclose") && line.contains(field)).unwrap_or_default().to_owned();
        (!refusal.is_empty()).then_some(())
    };
    let waited = wait::until("a refusal in Envoy's log", Duration::from_secs(5), named).await;
    checks.check(waited.is_ok(), format!("refused naming {field}"), refusal);
    let client = Client::new(topology::OPERATOR, Duration::from_secs(2));
    let health = client.get(topology::local(topology::HEALTH), "/health_check.html").await;
    let unanswered = health.as_ref().is_ok_and(|answer| answer.status == 503 && answer.state().is_none());
    checks.check(unanswered, "health is 503 and never taken for the gate's answer", health_word(&health));
    traffic_flows(checks).await;
    Ok(())
}

async fn bad_count(dir: &Path, configuration: &str, checks: &mut Checks) -> Result<()> {
    let overrides = Overrides { count: Some(configuration.to_owned()), ..Overrides::default() };
    let _ground = Ground::start(dir, &Options { overrides, ..Options::default() }).await?;
    traffic_flows(checks).await;
    ground::gate_answers().await?;
    let status = Gate::new().status().await?;
    let distrust = status.pointer("/distrust").map(ToString::to_string).unwrap_or_default();
    checks.check(distrust.contains("config"), "/status distrusts the count because of its configuration", distrust);
    traffic_flows(checks).await;
    Ok(())
}

/// A running gateway keeps the gate that it has, and goes on counting by defaults.
async fn pushed(dir: &Path, checks: &mut Checks) -> Result<()> {
    let _ground = Ground::start(dir, &Options::default()).await?;
    ground::gate_answers().await?;
    let (admin, client) = (Admin::new(), Client::new(topology::OPERATOR, Duration::from_secs(2)));
    for (extension, configuration) in [("softclose-gate", "{}[]"), ("softclose-count", "not JSON")] {
        let before = admin.extension_pushes(extension).await.unwrap_or_default();
        let push = async {
            envoy::push_plugin_configuration(dir, extension, configuration)?;
            let moved = async || admin.extension_pushes(extension).await.ok().filter(|now| *now != before);
            wait::until("Envoy has read the pushed configuration", Duration::from_secs(5), moved).await
        };
        let ((good, bad), seen) = tokio::join!(traffic(Duration::from_secs(1)), push);
        let seen =
            seen.map_or_else(|error| error.to_string(), |(took, refused)| format!("{took} taken, {refused} refused"));
        let flowed = good > 0 && bad.is_empty();
        checks.check(
            flowed,
            format!("traffic flows while {extension} is given {configuration:?}"),
            format!("{good} x 200, others {bad:?}"),
        );
        let health = health_word(&client.get(topology::local(topology::HEALTH), "/health_check.html").await);
        checks.check(
            health == "200 OPEN",
            format!("health stays 200 after {extension} was given {configuration:?}"),
            format!("{health}; {seen}"),
        );
    }
    Ok(())
}

async fn traffic_flows(checks: &mut Checks) {
    let (good, bad) = traffic(Duration::from_millis(500)).await;
    checks.check(good > 0 && bad.is_empty(), "traffic flows", format!("{good} x 200, others {bad:?}"));
}

/// Requests one after the other; how many were answered 200, and what else came.
async fn traffic(time: Duration) -> (u32, Vec<String>) {
    let client = Client::new(topology::OPERATOR, Duration::from_secs(2));
    let until = Instant::now() + time;
    let (mut good, mut bad) = (0, Vec::new());
    while Instant::now() < until {
        match client.get(topology::local(topology::TRAFFIC), "/fast").await {
            Ok(answer) if answer.status == 200 => good += 1,
            Ok(answer) => bad.push(answer.status.to_string()),
            Err(failure) => bad.push(failure.to_string()),
        }
    }
    (good, bad)
}
