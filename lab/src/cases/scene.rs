//! What a case stands on: one gateway after the other, in a folder of its own, with what a case needs to look at it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::backend::Backend;
use crate::checks::Checks;
use crate::envoy::Admin;
use crate::gate::{Gate, health_word, number, text};
use crate::ground::{self, Ground, Options};
use crate::http::{AbortOnDrop, Client};
use crate::network::Pod;
use crate::process::Process;
use crate::{mode, topology, wait};

/// Long enough for anything that a busy machine does late; reached only by what never happens.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The stage of one case.
pub(crate) struct Scene {
    pub(crate) dir: PathBuf,
    pub(crate) gate: Gate,
    pub(crate) checks: Checks,
    ground: Option<Ground>,
}

impl Scene {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, gate: Gate::new(), checks: Checks::default(), ground: None }
    }

    /// Starts a gateway, after ending the one before; the gate answers.
    pub(crate) async fn start(&mut self, options: Options) -> Result<()> {
        self.start_without_gate(options).await?;
        ground::gate_answers().await
    }

    /// Starts a gateway that need not have a gate.
    pub(crate) async fn start_without_gate(&mut self, options: Options) -> Result<()> {
        drop(self.ground.take());
        self.ground = Some(Ground::start(&self.dir, &options).await?);
        Ok(())
    }

    pub(crate) fn ground(&mut self) -> Result<&mut Ground> {
        self.ground.as_mut().context("no gateway was started")
    }

    /// The gateway and the checks, apart: what is asserted while the gateway is in use.
    pub(crate) fn parts(&mut self) -> Result<(&mut Ground, &mut Checks)> {
        Ok((self.ground.as_mut().context("no gateway was started")?, &mut self.checks))
    }

    pub(crate) fn backend(&self) -> Result<&Backend> {
        self.ground.as_ref().map(|ground| &ground.backend).context("no gateway was started")
    }

    pub(crate) fn check(&mut self, held: bool, what: impl Into<String>, seen: impl Into<String>) {
        self.checks.check(held, what, seen);
    }

    /// Waits until `/status` says that so many requests are in flight; notes whether it did.
    pub(crate) async fn counts(&mut self, wanted: u64, when: &str) -> Result<()> {
        let mut last = None;
        let gate = self.gate;
        let seen = async || {
            last = gate.status().await.ok().and_then(|status| number(&status, "/active"));
            (last == Some(wanted)).then_some(())
        };
        let reached = wait::until("the count", LIMIT, seen).await.is_ok();
        self.check(reached, format!("{when}: {wanted} in flight"), format!("{}", Maybe(last)));
        Ok(())
    }

    /// Waits for a state; notes whether it was reached, and gives the document of that moment.
    pub(crate) async fn reaches(&mut self, state: &str, limit: Duration, when: &str) -> Result<Value> {
        let began = Instant::now();
        let reached = self.gate.reaches(state, limit).await;
        let took = began.elapsed().as_secs_f64();
        let status = self.gate.status().await.unwrap_or_default();
        let seen = format!("{} after {took:.2} s, {}", text(&status, "/state"), verdict(&status));
        self.check(reached.is_ok(), format!("{when}: {state}"), seen);
        Ok(reached.unwrap_or(status))
    }

    /// Requests in flight by Envoy's own gauge; none if it has none.
    pub(crate) async fn gauge(&self) -> Option<u64> {
        let page = Admin::new().page("/stats?filter=wasmcustom.softclose_active").await.ok()?;
        page.lines().find_map(|line| line.rsplit_once(": ")?.1.trim().parse().ok())
    }

    /// A stat of Envoy's by its full name.
    pub(crate) async fn stat(&self, name: &str) -> Option<u64> {
        let page = Admin::new().page(&format!("/stats?filter={name}")).await.ok()?;
        let named = |line: &str| line.rsplit_once(": ").filter(|(found, _)| *found == name)?.1.trim().parse().ok();
        page.lines().find_map(named)
    }

    /// The balancer path, asked by the operator.
    pub(crate) async fn health(&self) -> String {
        health_word(&client().get(topology::local(topology::HEALTH), "/health_check.html").await)
    }

    /// The preStop command under way.
    pub(crate) fn pre_stop(&self, name: &str, grace: Duration) -> Result<Process> {
        Process::start(name, mode::softclose_pre_stop(&Pod::only(), grace)?, &self.dir)
    }

    /// What a program has printed so far.
    pub(crate) fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Envoy's resident memory in kB.
    pub(crate) fn envoy_rss_kb(&mut self) -> Result<u64> {
        let envoy = self.ground()?.gateway.agent.envoy()?;
        let status = std::fs::read_to_string(format!("/proc/{envoy}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        line.split_whitespace().next().and_then(|kb| kb.parse().ok()).context("VmRSS is no number")
    }
}

/// The operator's client.
pub(crate) fn client() -> Client {
    Client::new(topology::OPERATOR, Duration::from_secs(10))
}

/// Status codes of so many fresh requests at the traffic listener, and what came instead of one.
pub(crate) async fn fresh_requests(count: usize) -> (usize, Vec<String>) {
    let (mut good, mut bad) = (0, Vec::new());
    for _ in 0..count {
        match client().get(topology::local(topology::TRAFFIC), "/fast").await {
            Ok(answer) if answer.status == 200 => good += 1,
            Ok(answer) => bad.push(answer.status.to_string()),
            Err(failure) => bad.push(failure.to_string()),
        }
    }
    (good, bad)
}

/// The balancer: asks at a steady pace from its own address, until dropped. Without it every hold lasts its longest.
pub(crate) fn balancer_probes() -> AbortOnDrop<()> {
    AbortOnDrop(tokio::spawn(async {
        let client = Client::new(topology::LB_SOURCE, Duration::from_secs(2));
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        loop {
            ticks.tick().await;
            // What it hears is of no matter here; that it asks makes it a prober.
            let _answer = client.get(topology::local(topology::HEALTH), "/health_check.html").await;
        }
    }))
}

/// Waits until the control listener has at least so many requests under way, such as a `GET /wait` that is held.
pub(crate) async fn control_holds(at_least: usize) -> Result<()> {
    let held = async || control_requests().await.filter(|active| *active >= at_least);
    wait::until(&format!("{at_least} requests at the control listener"), LIMIT, held).await?;
    Ok(())
}

/// Requests under way at the control listener.
pub(crate) async fn control_requests() -> Option<usize> {
    let page = Admin::new().page("/stats?filter=http.softclose_control.downstream_rq_active").await.ok()?;
    page.lines().find_map(|line| line.rsplit(": ").next()?.trim().parse().ok())
}

/// A field of a document as it stands there.
pub(crate) fn field(document: &Value, pointer: &str) -> String {
    document.pointer(pointer).map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

/// A verdict, and why the count is not believed, in few words.
pub(crate) fn verdict(status: &Value) -> String {
    format!("verdict {}, distrust {}", field(status, "/verdict"), field(status, "/distrust/reason"))
}

/// A number, or that there is none.
pub(crate) struct Maybe(pub(crate) Option<u64>);

impl std::fmt::Display for Maybe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}
