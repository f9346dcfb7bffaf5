//! A pod that leaves with clients under way: the ground, the clients, kubelet, and whatever a fault may reach meanwhile.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::agent::{Agent, Exit};
use crate::backend::Backend;
use crate::cases::scene::{LIMIT, Scene, control_holds};
use crate::chaos::account::Account;
use crate::checks::Checks;
use crate::curl::{Client, Outcome, Protocol};
use crate::gate::Gate;
use crate::ground::{Answers, Options};
use crate::haproxy::{Api, Balancer};
use crate::manifest::Overrides;
use crate::network::{Network, Pod};
use crate::observe::{Observers, Seen};
use crate::story::Story;
use crate::timeline::{self, Clock};
use crate::{diagnostics, gate, kubelet, mode, topology, wait};

/// HAProxy's `inter`: two failed checks, and so the hold, are over in about a second.
const CHECK_INTER_MS: u64 = 300;

/// Istio's terminationDrainDuration, scaled from 5 s.
const TERMINATION_DRAIN: Duration = Duration::from_secs(1);

/// From the clients' start to the deletion: two chunks of a streamed answer, so that there is a middle to be cut in.
const UNDER_WAY: Duration = Duration::from_millis(600);

/// A grace period that leaves 15 s for the requests, beside 10 s of hold and 5 s of reserve.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// A gateway behind a balancer.
pub(crate) fn ground(overrides: Overrides) -> Options {
    Options {
        overrides,
        exit: Exit::After(TERMINATION_DRAIN),
        check_inter_ms: Some(CHECK_INTER_MS),
        ..Options::default()
    }
}

/// The preStop command, told of `grace`; of flags given twice the last counts.
pub(crate) fn pre_stop(grace: Duration, flags: &[&str]) -> Result<Command> {
    let mut command = mode::softclose_pre_stop(&Pod::only(), grace)?;
    command.args(flags);
    Ok(command)
}

/// The gate has to have heard so many of the balancer's checks to miss one: four, says the gate. In the field they have come for
/// hours. Where somebody else has the control port, nobody can ask the gate.
async fn balancer_is_known(scene: &Scene) -> Result<()> {
    const CHECKS: u64 = 5;
    if scene.gate.status().await.is_err() {
        return Ok(());
    }
    let known = async || {
        let status = scene.gate.status().await.ok()?;
        let probers = status.pointer("/probers")?.as_array()?.clone();
        let balancer = topology::LB_SOURCE.to_string();
        let asked = probers.iter().find(|prober| gate::text(prober, "/address") == balancer)?;
        gate::number(asked, "/asked").filter(|asked| *asked >= CHECKS).map(|_| ())
    };
    wait::until("the gate knows the balancer", LIMIT, known).await
}

/// Clients under way on a gateway that is about to leave.
pub(crate) struct Leaving {
    dir: PathBuf,
    clock: Clock,
    story: Story,
    observers: Observers,
    clients: usize,
    running: JoinSet<Result<Outcome>>,
}

impl Leaving {
    /// Starts the ground and so many pairs of clients, over HTTP/1.1 and h2, whose answers take `seconds`.
    pub(crate) async fn begin(scene: &mut Scene, options: Options, pairs: usize, seconds: u32) -> Result<Self> {
        scene.start(options).await?;
        diagnostics::collect(&Pod::only(), Api::default(), &scene.dir, "before").await;
        let clock = Clock::start();
        let story = Story::start(clock, true);
        let observers =
            Observers::start(&Network::Loopback, &Pod::only(), Answers::Gate, Api::default(), clock, &story);
        let looking = async || {
            let seen = observers.seen();
            (seen.health.samples > 0 && seen.active.samples > 0 && seen.balancer.samples > 0).then_some(())
        };
        wait::until("every watch has looked once", LIMIT, looking).await?;
        let limit = Duration::from_secs(u64::from(seconds)) + 2 * LIMIT;
        let mut running = JoinSet::new();
        for pair in 1..=pairs {
            let whole = (format!("h1-{pair}"), Protocol::H1, format!("/sleep?seconds={seconds}"));
            let streamed = (format!("h2-{pair}"), Protocol::H2, format!("/stream?seconds={seconds}&interval=0.25"));
            for (id, protocol, path) in [whole, streamed] {
                let client = Client::start(&Network::Loopback, &scene.dir, &id, protocol, &path, limit, clock)?;
                let (dir, story) = (scene.dir.clone(), story.clone());
                running.spawn(async move {
                    let outcome = client.outcome(&dir, limit + LIMIT, clock).await?;
                    story.tell_at(outcome.over_s, outcome.to_string());
                    anyhow::Ok(outcome)
                });
            }
        }
        balancer_is_known(scene).await?;
        let clients = 2 * pairs;
        let backend = scene.backend()?;
        let all = async || (backend.running() == clients).then_some(());
        wait::until("the application runs every client's request", LIMIT, all).await?;
        wait::pace_until(Instant::now() + UNDER_WAY).await;
        Ok(Self { dir: scene.dir.clone(), clock, story, observers, clients, running })
    }

    /// Strikes before the deletion.
    pub(crate) async fn before(
        &self,
        scene: &mut Scene,
        fault: impl AsyncFnOnce(&mut Reach<'_>) -> Result<()>,
    ) -> Result<()> {
        let (ground, checks) = scene.parts()?;
        let (backend, balancer) = (&ground.backend, ground.balancer.as_mut());
        let mut reach = self.reach(ground.gateway.agent.envoy()?, backend, balancer, checks);
        fault(&mut reach).await
    }

    /// Deletes the pod with this preStop command, told of `told`, and kubelet's own `grace`; `fault` strikes meanwhile.
    /// Ends when container and clients have, with everybody's account of it.
    pub(crate) async fn delete(
        mut self,
        scene: &mut Scene,
        pre_stop: Command,
        [told, grace]: [Duration; 2],
        fault: impl AsyncFnOnce(&mut Reach<'_>) -> Result<()>,
    ) -> Result<Account> {
        let (ground, checks) = scene.parts()?;
        // An Envoy that was killed is nobody's child any more.
        let envoy = ground.gateway.agent.envoy().unwrap_or_default();
        let mut reach = self.reach(envoy, &ground.backend, ground.balancer.as_mut(), checks);
        let deletion = delete(pre_stop, &mut ground.gateway.agent, grace, self.clock, &self.story);
        // Both to their ends: a fault that could not strike has evidence as well.
        let (deletion, struck) = tokio::join!(deletion, fault(&mut reach));
        let deletion = deletion?;
        let mut clients = Vec::new();
        while let Some(outcome) = self.running.join_next().await {
            clients.push(outcome??);
        }
        clients.sort_by(|a: &Outcome, b| a.id.cmp(&b.id));
        let seen = self.observers.seen();
        drop(self.observers);
        let events = seen.events(deletion.deleted_s, &clients);
        let account = Account {
            told,
            visits: ground.backend.visits(self.clock),
            clients,
            deletion,
            state: last_state(&seen),
            order: timeline::order(&events),
            events,
            seen,
            story: self.story.lines(),
        };
        std::fs::write(self.dir.join("account.json"), serde_json::to_string_pretty(&account)?)?;
        struck?;
        account.judge(checks);
        Ok(account)
    }

    fn reach<'a>(
        &'a self,
        envoy: i32,
        backend: &'a Backend,
        balancer: Option<&'a mut Balancer>,
        checks: &'a mut Checks,
    ) -> Reach<'a> {
        Reach {
            dir: &self.dir,
            gate: Gate::new(),
            story: &self.story,
            checks,
            envoy,
            backend,
            balancer,
            clients: self.clients,
        }
    }
}

/// What a fault may reach while the pod leaves.
pub(crate) struct Reach<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) gate: Gate,
    pub(crate) checks: &'a mut Checks,
    story: &'a Story,
    envoy: i32,
    backend: &'a Backend,
    balancer: Option<&'a mut Balancer>,
    clients: usize,
}

impl Reach<'_> {
    /// Waits until the preStop command waits: the gate drains, and a `GET /wait` is held.
    pub(crate) async fn waited_for(&self) -> Result<Value> {
        let document = self.gate.reaches("DRAINING", LIMIT).await?;
        control_holds(1).await?;
        Ok(document)
    }

    /// Says that the fault strikes now, and notes the precondition: every client's request is under way.
    pub(crate) fn strikes(&mut self, what: &str) {
        self.story.tell(format!("FAULT: {what}"));
        let running = self.backend.running();
        let seen = format!("{running} of {}", self.clients);
        self.checks.check(running == self.clients, format!("{what}: every request is in flight"), seen);
    }

    /// Says that the fault strikes now, with no request under way.
    pub(crate) fn strikes_idle(&mut self, what: &str) {
        self.story.tell(format!("FAULT: {what}"));
        let running = self.backend.running();
        self.checks.check(running == 0, format!("{what}: no request is in flight"), running.to_string());
    }

    pub(crate) fn signal_envoy(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.envoy).context("Envoy has no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Stops Envoy's process for so long: its admin and everything else is silent, its connections stay.
    pub(crate) async fn freeze_envoy(&self, span: Duration) -> Result<()> {
        self.signal_envoy(Signal::STOP)?;
        wait::pace_until(Instant::now() + span).await;
        self.signal_envoy(Signal::CONT)?;
        self.story.tell("Envoy goes on");
        Ok(())
    }

    pub(crate) async fn reload_balancer(&mut self) -> Result<()> {
        self.balancer.as_mut().context("no balancer")?.reload(self.dir).await
    }
}

async fn delete(
    pre_stop: Command,
    agent: &mut Agent,
    grace: Duration,
    clock: Clock,
    story: &Story,
) -> Result<kubelet::Deletion> {
    let limit = grace + LIMIT;
    let deleted = tokio::time::timeout(limit, kubelet::delete_with(pre_stop, agent, grace, clock, story)).await;
    deleted.with_context(|| format!("the deletion was not over after {:.0} s", limit.as_secs_f64()))?
}

/// The last state that an answer of the health listener named, on either path.
fn last_state(seen: &Seen) -> String {
    let changes = seen.health.changes.iter().chain(&seen.readiness.changes);
    let named = changes.filter_map(|change| Some((change.at_s, change.value.split_once(' ')?.1)));
    named.max_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(|| "unknown".to_owned(), |(_, state)| state.to_owned())
}
