//! One run: two pods under a load without a pause, of which one is deleted and one stays.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use softclose_fsm::Preset;

use super::departure::Departure;
use super::log;
use super::record::{self, Lost, Record};
use super::scenario::{Rate, Scenario, Times};
use super::world::World;
use crate::backend::Backend;
use crate::curl::Protocol;
use crate::envoy::Admin;
use crate::ground::{self, Gateway, Options};
use crate::haproxy::{Api, Retries, Reuse};
use crate::mode::Mode;
use crate::network::{Network, Pod};
use crate::story::Story;
use crate::timeline::Clock;
use crate::traffic::{self, Load, Traffic, Window};
use crate::watch::Watch;
use crate::{diagnostics, rollout, run, wait};

/// How long the answers that are still out may take after the load has ended.
const ANSWERS_LIMIT: Duration = Duration::from_secs(15);

/// The pace of looking at the pods that stay.
const STAYING_PACE: Duration = Duration::from_millis(50);

/// What to run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) network: Arc<Network>,
    pub(crate) scenario: Scenario,
    /// The field's times.
    pub(crate) full: bool,
    pub(crate) rate: Rate,
    /// None for the mix that the scenario names.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) mode: Mode,
    /// Of mode softclose.
    pub(crate) preset: Preset,
    pub(crate) world: World,
    pub(crate) reuse: Reuse,
    pub(crate) replicas: u8,
    /// How many of them are deleted, all at once.
    pub(crate) leaving: u8,
    pub(crate) concurrency: u16,
    /// Which of several runs, from 1: it decides the phase of the balancer's checks and the load's schedule.
    pub(crate) number: u32,
    pub(crate) aloud: bool,
}

/// What a departure happens on.
pub(crate) struct Stage<'a> {
    pub(crate) times: &'a Times,
    pub(crate) api: Api,
    pub(crate) clock: Clock,
    pub(crate) story: &'a Story,
}

impl Plan {
    pub(crate) fn scale(&self) -> &'static str {
        if self.full { "full" } else { "scaled" }
    }

    fn options(&self, times: &Times) -> Options {
        let of_mode = run::options(self.mode, &times.times, self.concurrency);
        Options { habits: self.world.habits(self.reuse), ..of_mode }
    }
}

/// Runs it; everything that the programs wrote is in `dir` afterwards.
pub(crate) async fn run(plan: &Plan, dir: &Path) -> Result<Record> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let record = play(plan, dir).await.with_context(|| diagnostics::evidence(dir))?;
    std::fs::write(dir.join("busy.json"), serde_json::to_string_pretty(&record)?)?;
    Ok(record)
}

async fn play(plan: &Plan, dir: &Path) -> Result<Record> {
    let network = &plan.network;
    let times = plan.scenario.times(plan.scale())?.clone();
    let options = plan.options(&times);
    network.is_free().await?;
    let backend = Backend::start(network.application())?;
    let pods = network.pods(plan.replicas);
    let mut gateways = Vec::new();
    for pod in &pods {
        gateways.push(rollout::start(network, dir, pod.clone(), 1, &options).await?);
    }
    let balancer = ground::balancer(network, dir, &pods, plan.replicas.into(), &options).await?;
    let api = balancer.as_ref().context("a busy gateway needs a balancer")?.api;

    let phase = Duration::from_millis(times.times.check_inter_ms).mul_f64(run::check_phase_of(plan.number));
    wait::pace_until(Instant::now() + phase).await;
    let clock = Clock::start();
    let story = Story::start(clock, plan.aloud);
    let streams = plan.scenario.load(plan.full, plan.rate, plan.protocol);
    let load = Traffic::start(&streams, &rollout::target(network, dir)?, plan.number.into(), clock)?;
    story.tell(format!("load: {:.0} requests a second", streams.iter().map(|stream| stream.rate).sum::<f64>()));
    let (leaving, staying) = gateways.split_at_mut(plan.leaving.into());
    let watches: Vec<Watch> = staying.iter().map(|gateway| watch_active(&gateway.pod, clock)).collect();
    wait::pace_until(clock.at(times.times.delete_at_s)).await;
    story.tell(format!("load: {} requests so far, {} in flight", load.started(), load.in_flight()));
    let before = api.retries().await?;
    let stage = Stage { times: &times, api, clock, story: &story };
    let departed = depart(plan, &stage, leaving).await;
    for gateway in &gateways {
        let moment = if departed.is_ok() { "after" } else { diagnostics::FAILED };
        diagnostics::collect(&gateway.pod, api, &gateway.dir, moment).await;
    }
    let departures = departed?;
    wait::pace_until(Instant::now() + Duration::from_secs_f64(times.times.tail_s)).await;
    let Load { mut fates, began_s, ended_s } = load.stop(ANSWERS_LIMIT).await?;
    let retries = since(before, api.retries().await?);
    traffic::join(&mut fates, &backend.visits(clock));
    let window = Window {
        from_s: departures.iter().map(|gone| gone.deletion.deleted_s).fold(f64::INFINITY, f64::min),
        to_s: departures.iter().map(|gone| gone.deletion.gone_s).fold(0.0, f64::max),
    };
    let load = Load { fates, began_s, ended_s };
    let summary = traffic::summary(&load, &streams, window);
    let logged = log::read(dir)?;
    let lost = load.fates.iter().filter(|fate| fate.loss().is_some());
    let lost = lost.map(|fate| Lost::new(fate, logged.get(&fate.id).cloned(), &departures)).collect();
    Ok(Record {
        scenario: plan.scenario.name.clone(),
        title: plan.scenario.title.clone(),
        scale: plan.scale().to_owned(),
        rate: plan.rate,
        protocol: plan.protocol,
        mode: plan.mode,
        preset: (plan.mode == Mode::Softclose).then_some(plan.preset),
        world: plan.world,
        reuse: plan.reuse,
        replicas: plan.replicas,
        ground: network.kind(),
        programs: run::versions().await,
        requests: load.fates.len(),
        doubled: record::doubled(&load.fates),
        lost,
        retries,
        staying: watches.iter().map(Watch::series).collect(),
        departures,
        summary,
        story: run::in_order(story.lines()),
        times,
    })
}

/// All of `leaving` at once.
async fn depart(plan: &Plan, stage: &Stage<'_>, leaving: &mut [Gateway]) -> Result<Vec<Departure>> {
    match leaving {
        [one] => Ok(vec![Departure::of(plan, stage, one).await?]),
        [one, other] => {
            let (one, other) = tokio::try_join!(Departure::of(plan, stage, one), Departure::of(plan, stage, other))?;
            Ok(vec![one, other])
        }
        _ => anyhow::bail!("{} pods leave, must be 1 or 2", leaving.len()),
    }
}

/// Requests in flight on a pod, as its admin counts them.
fn watch_active(pod: &Pod, clock: Clock) -> Watch {
    let admin = Admin::of(pod);
    let look = move || async move {
        let active = admin.active().await;
        active.map_or_else(|_gone| "unknown".to_owned(), |a| format!("{}+{}", a.downstream, a.upstream))
    };
    Watch::start(&format!("admin of {}", pod.name), STAYING_PACE, clock, look, |_change| {})
}

fn since(before: Retries, after: Retries) -> Retries {
    Retries {
        retries: after.retries.saturating_sub(before.retries),
        redispatches: after.redispatches.saturating_sub(before.redispatches),
    }
}
