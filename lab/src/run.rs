//! One run of one scenario in one mode: set up, clients, deletion, record.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::backend::Visit;
use crate::curl::{Client, Outcome, Protocol};
use crate::deployed::Deployed;
use crate::evidence::{self, Leaving, Verdict, Watcher};
use crate::foreign::{CURL, ENVOY, HAPROXY};
use crate::ground::{Answers, Ground, Options};
use crate::haproxy::{Api, Habits};
use crate::kubelet::{self, Deletion};
use crate::manifest::{Edit, Overrides};
use crate::mode::Mode;
use crate::network::{Kind as GroundKind, Network, Pod};
use crate::observe::{InFlight, Observers, Seen};
use crate::oracle::requests::Request;
use crate::scenario::{Scale, Scenario};
use crate::story::{Line, Story};
use crate::timeline::{self, Clock, Event};
use crate::{balancer_checks, diagnostics, wait};

/// What to run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) network: Arc<Network>,
    pub(crate) scenario: Scenario,
    pub(crate) scale: String,
    pub(crate) mode: Mode,
    /// Mode nlb-recipe: from the deletion until the load balancer sends the pod nothing new.
    pub(crate) nlb_lag: Duration,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) concurrency: u16,
    pub(crate) deployed: Deployed,
    /// Which of several runs, from 1: it decides the phase of the balancer's checks.
    pub(crate) number: u32,
    /// Tell the story while it happens.
    pub(crate) aloud: bool,
}

/// How long after a check of the balancer the clients of the run of that number start, as a share of its interval. In the field a
/// deletion falls anywhere between two checks; multiples of the golden ratio spread many runs evenly over all of it.
pub(crate) fn check_phase_of(number: u32) -> f64 {
    (f64::from(number) * 0.618_033_988_75).fract()
}

/// All that is known of a run; `events.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) scenario: String,
    pub(crate) title: String,
    pub(crate) scale: String,
    pub(crate) mode: Mode,
    pub(crate) ground: GroundKind,
    pub(crate) times: Scale,
    pub(crate) concurrency: u16,
    /// From a check of the balancer to the clients' start, as a share of the checks' interval.
    pub(crate) check_phase: f64,
    /// What was run, as each program names its version.
    pub(crate) programs: BTreeMap<String, String>,
    /// The order of the events, `=` between those that the samples cannot tell apart.
    pub(crate) order: String,
    pub(crate) events: Vec<Event>,
    /// At the last sample before the balancer's DOWN.
    pub(crate) in_flight_at_lb_down: Option<InFlight>,
    pub(crate) clients: Vec<Outcome>,
    /// Every request that reached the application.
    pub(crate) visits: Vec<Visit>,
    pub(crate) deletion: Deletion,
    pub(crate) seen: Seen,
    pub(crate) oracle: Verdict,
    pub(crate) story: Vec<Line>,
}

/// Runs it; everything that the programs wrote is in `dir` afterwards.
pub(crate) async fn run(plan: &Plan, dir: &Path) -> Result<Record> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let record = play(plan, dir).await.with_context(|| diagnostics::evidence(dir))?;
    let text = serde_json::to_string_pretty(&record)?;
    std::fs::write(dir.join("events.json"), text)?;
    Ok(record)
}

async fn play(plan: &Plan, dir: &Path) -> Result<Record> {
    let times = plan.scenario.scale(&plan.scale)?.clone();
    let mut options = options(plan.mode, &times, plan.concurrency);
    options.overrides.deployed = plan.deployed;
    let mut ground = Ground::on(&plan.network, dir, &options).await?;
    let (pod, api) = (ground.gateway.pod.clone(), ground.api());
    diagnostics::collect(&pod, api, dir, "before").await;
    let played = scene(plan, times, &mut ground, dir).await;
    // While everybody can still be asked.
    diagnostics::collect(&pod, api, dir, if played.is_ok() { "after" } else { diagnostics::FAILED }).await;
    played
}

/// Gateways and balancer of a mode.
pub(crate) fn options(mode: Mode, times: &Scale, concurrency: u16) -> Options {
    // The stand-in logs its checks by itself, and the other listeners always do.
    let listeners = if mode.answers() == Answers::Gate { vec![balancer_checks::logged as Edit] } else { Vec::new() };
    Options {
        answers: mode.answers(),
        overrides: Overrides { listeners, ..Overrides::default() },
        concurrency,
        exit: mode.exit(times),
        drain_time: mode.drain_time(),
        check_inter_ms: Some(times.check_inter_ms),
        habits: Habits { shutdown_sessions: mode.shutdown_sessions(), disable_on_404: times.soft, ..Habits::default() },
    }
}

/// What happens on the ground.
async fn scene(plan: &Plan, times: Scale, ground: &mut Ground, dir: &Path) -> Result<Record> {
    let phase = check_phase(plan, &times).await;
    let clock = Clock::start();
    let watcher = Watcher::start(&plan.network, dir, clock).await?;
    let story = Story::start(clock, plan.aloud);
    let (pod, api) = (ground.gateway.pod.clone(), ground.api());
    let observers = Observers::start(&plan.network, &pod, plan.mode.answers(), api, clock, &story);
    observers.have_looked().await?;

    let limit = Duration::from_secs(u64::from(times.grace_s) + 30);
    let started_s = clock.now();
    let mut clients = Vec::new();
    for protocol in &plan.protocols {
        let id = format!("{}-{}", plan.scenario.name.to_lowercase(), protocol.name());
        clients.push(Client::start(&plan.network, dir, &id, *protocol, &times.request, limit, clock)?);
    }
    story.tell(format!("clients ask for {}", times.request));
    let outcomes = async {
        let mut running = tokio::task::JoinSet::new();
        for client in clients {
            let (dir, story) = (dir.to_path_buf(), story.clone());
            running.spawn(async move {
                let outcome = client.outcome(&dir, limit + Duration::from_secs(5), clock).await?;
                story.tell_at(outcome.over_s, outcome.to_string());
                anyhow::Ok(outcome)
            });
        }
        let mut outcomes = Vec::new();
        while let Some(outcome) = running.join_next().await {
            outcomes.push(outcome??);
        }
        outcomes.sort_by(|a: &Outcome, b| a.id.cmp(&b.id));
        anyhow::Ok(outcomes)
    };
    let deletion = async {
        wait::pace_until(clock.at(started_s + times.delete_at_s)).await;
        let deletion = kubelet::delete(plan.mode, &times, &mut ground.gateway, clock, &story);
        let deregistration = deregister(plan.mode, plan.nlb_lag, &pod, api, &story);
        let (deletion, ()) = tokio::try_join!(deletion, deregistration)?;
        anyhow::Ok(deletion)
    };
    let (outcomes, deletion) = tokio::try_join!(outcomes, deletion)?;
    // In every mode the balancer has noticed by now, or does so when its next checks are refused.
    let balancer_down = async || observers.seen().balancer.first(0.0, |value| value.starts_with("DOWN")).map(|_| ());
    let detection = Duration::from_millis(4 * times.check_inter_ms) + Duration::from_secs(2);
    wait::until("HAProxy notices that the gateway is gone", detection, balancer_down).await?;

    let seen = observers.seen();
    drop(observers);
    let watched = watcher.end().await?;
    let events = seen.events(deletion.deleted_s, &outcomes);
    let events = evidence::with_event_6(events, watched.event_6(&evidence::cuts_of_outcomes(&outcomes)));
    let cut: Vec<String> = outcomes.iter().filter(|one| !one.whole()).map(|one| one.id.clone()).collect();
    let leaving = Leaving {
        deleted_s: deletion.deleted_s,
        under_load: false,
        requests: outcomes.iter().map(Request::of_outcome).collect(),
        events: &events,
        cut: &cut,
    };
    let oracle = evidence::judge(plan.mode, &times, &plan.network, &watched.wall, dir, &leaving)?;
    Ok(Record {
        scenario: plan.scenario.name.clone(),
        title: plan.scenario.title.clone(),
        scale: plan.scale.clone(),
        mode: plan.mode,
        ground: plan.network.kind(),
        oracle,
        times,
        concurrency: plan.concurrency,
        check_phase: phase,
        programs: versions().await,
        order: timeline::order(&events),
        in_flight_at_lb_down: seen.in_flight_at_lb_down(&events),
        events,
        clients: outcomes,
        visits: ground.backend.visits(clock),
        deletion,
        seen,
        story: in_order(story.lines()),
    })
}

/// Lets the run begin at its own moment between two checks of the balancer, whose start waited for one; the phase.
pub(crate) async fn check_phase(plan: &Plan, times: &Scale) -> f64 {
    let phase = check_phase_of(plan.number);
    wait::pace_until(Instant::now() + Duration::from_millis(times.check_inter_ms).mul_f64(phase)).await;
    phase
}

/// Tells the balancer itself to send the pod nothing new, as a controller of the cloud's does, if that is part of the mode.
pub(crate) async fn deregister(mode: Mode, lag: Duration, pod: &Pod, api: Api, story: &Story) -> Result<()> {
    let Some(lag) = mode.deregistered_after(lag) else { return Ok(()) };
    wait::pace_until(Instant::now() + lag).await;
    let answer = api.ask(&format!("set server istio-http-backend/{} state drain", pod.name)).await?;
    story.tell(format!("load balancer: {} deregistered {}", pod.name, answer.trim()));
    Ok(())
}

/// A line is told when it is known, which may be later than what it tells.
pub(crate) fn in_order(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    lines
}

pub(crate) async fn versions() -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for program in [ENVOY, HAPROXY, CURL] {
        let output = tokio::process::Command::new(program.path()).arg(program.version_flag).output().await;
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown");
        // Envoy puts its path before it.
        let version = first.rsplit(" version: ").next().unwrap_or(first);
        versions.insert(program.name.to_owned(), version.trim().to_owned());
    }
    versions
}
