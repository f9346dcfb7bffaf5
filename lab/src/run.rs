//! One run of one scenario in one mode: set up, clients, deletion, record.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::backend::Visit;
use crate::curl::{Client, Outcome, Protocol};
use crate::foreign::{CURL, ENVOY, HAPROXY};
use crate::ground::{Ground, Options};
use crate::kubelet::{self, Deletion};
use crate::manifest::Overrides;
use crate::mode::Mode;
use crate::observe::{InFlight, Observers, Seen};
use crate::scenario::{Scale, Scenario};
use crate::story::{Line, Story};
use crate::timeline::{self, Clock, Event};
use crate::{diagnostics, wait};

/// What to run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) scale: String,
    pub(crate) mode: Mode,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) concurrency: u16,
    /// Which of several runs, from 1: it decides the phase of the balancer's checks.
    pub(crate) number: u32,
    /// Tell the story while it happens.
    pub(crate) aloud: bool,
}

impl Plan {
    /// How long after a check of the balancer the clients start, as a share of its interval. In the field a deletion falls
    /// anywhere between two checks; multiples of the golden ratio spread many runs evenly over all of it.
    fn check_phase(&self) -> f64 {
        (f64::from(self.number) * 0.618_033_988_75).fract()
    }
}

/// All that is known of a run; `events.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) scenario: String,
    pub(crate) title: String,
    pub(crate) scale: String,
    pub(crate) mode: Mode,
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
    let options = Options {
        gate: plan.mode.has_gate(),
        overrides: Overrides::default(),
        concurrency: plan.concurrency,
        termination_drain: Duration::from_secs_f64(times.termination_drain_s),
        check_inter_ms: Some(times.check_inter_ms),
        ..Options::default()
    };
    let mut ground = Ground::start(dir, &options).await?;
    diagnostics::collect(dir, "before").await;
    let played = scene(plan, times, &mut ground, dir).await;
    // While everybody can still be asked.
    diagnostics::collect(dir, if played.is_ok() { "after" } else { diagnostics::FAILED }).await;
    played
}

/// What happens on the ground.
async fn scene(plan: &Plan, times: Scale, ground: &mut Ground, dir: &Path) -> Result<Record> {
    // The balancer's start waited for a check, so this is counted from one.
    let phase = plan.check_phase();
    let inter = Duration::from_millis(times.check_inter_ms);
    wait::pace_until(Instant::now() + inter.mul_f64(phase)).await;
    let clock = Clock::start();
    let story = Story::start(clock, plan.aloud);
    let observers = Observers::start(clock, &story);
    let all_looking = async || {
        let seen = observers.seen();
        let ready = seen.health.samples > 0 && seen.active.samples > 0 && seen.balancer.samples > 0;
        ready.then_some(())
    };
    wait::until("every watch has looked once", Duration::from_secs(5), all_looking).await?;

    let limit = Duration::from_secs(u64::from(times.grace_s) + 30);
    let started_s = clock.now();
    let mut clients = Vec::new();
    for protocol in &plan.protocols {
        let id = format!("{}-{}", plan.scenario.name.to_lowercase(), protocol.name());
        clients.push(Client::start(dir, &id, *protocol, &times.request, limit, clock)?);
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
        let pre_stop = plan.mode.pre_stop(&times)?;
        let grace = Duration::from_secs(u64::from(times.grace_s));
        kubelet::delete(pre_stop, &mut ground.agent, grace, clock, &story).await
    };
    let (outcomes, deletion) = tokio::try_join!(outcomes, deletion)?;
    // In every mode the balancer has noticed by now, or does so when its next checks are refused.
    let balancer_down = async || observers.seen().balancer.first(0.0, |value| value.starts_with("DOWN")).map(|_| ());
    let detection = Duration::from_millis(4 * times.check_inter_ms) + Duration::from_secs(2);
    wait::until("HAProxy notices that the gateway is gone", detection, balancer_down).await?;

    let seen = observers.seen();
    drop(observers);
    let events = seen.events(deletion.deleted_s, &outcomes);
    Ok(Record {
        scenario: plan.scenario.name.clone(),
        title: plan.scenario.title.clone(),
        scale: plan.scale.clone(),
        mode: plan.mode,
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

/// A line is told when it is known, which may be later than what it tells.
fn in_order(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    lines
}

async fn versions() -> BTreeMap<String, String> {
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
