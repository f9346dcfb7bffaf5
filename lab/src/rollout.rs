//! A rolling restart under load, as a Deployment with `maxSurge: 1` and `maxUnavailable: 0` does it where each pod wants a node of
//! its own: a new pod on the free node, and when it is ready the oldest one is deleted; its node is then the free one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::evidence::{self, Leaving, Verdict, Watched, Watcher};
use crate::fate::Fate;
use crate::ground::{self, Gateway, Options};
use crate::haproxy::Api;
use crate::kubelet::{self, Deletion};
use crate::mode::Mode;
use crate::network::{Kind as GroundKind, Network};
use crate::observe::{InFlight, Observers, Seen};
use crate::oracle::requests::Request;
use crate::run::{self, Plan};
use crate::scenario::Scale;
use crate::story::{Line, Story};
use crate::timeline::{self, Clock, Event, Kind};
use crate::traffic::{self, Load, Row, Target, Traffic, Window};
use crate::{diagnostics, wait};

/// How long the answers that are still out may take after the load has ended.
const ANSWERS_LIMIT: Duration = Duration::from_secs(15);

/// All that is known of a rolling restart; `rollout.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) scenario: String,
    pub(crate) title: String,
    pub(crate) scale: String,
    pub(crate) mode: Mode,
    pub(crate) ground: GroundKind,
    pub(crate) times: Scale,
    pub(crate) programs: BTreeMap<String, String>,
    /// One for each pod that was there at the beginning, in the order of their deletion.
    pub(crate) departures: Vec<Departure>,
    pub(crate) fates: Vec<Fate>,
    /// By phase: before the first deletion, until the last of these pods was gone, after it.
    pub(crate) summary: Vec<Row>,
    pub(crate) story: Vec<Line>,
}

/// How one pod left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Departure {
    pub(crate) pod: String,
    pub(crate) deletion: Deletion,
    pub(crate) order: String,
    pub(crate) events: Vec<Event>,
    pub(crate) in_flight_at_lb_down: Option<InFlight>,
    pub(crate) seen: Seen,
    pub(crate) oracle: Verdict,
    /// Where its programs' logs are.
    pub(crate) folder: PathBuf,
}

impl Record {
    /// What clients lost, in words.
    pub(crate) fn failures(&self) -> Vec<String> {
        let lost = |fate: &Fate| {
            let word = fate.loss()?;
            let pod = fate.pod.as_deref().unwrap_or("no pod");
            Some(format!("{} at {:.2} s on {pod}: {word}", fate.id, fate.ended_s))
        };
        self.fates.iter().filter_map(lost).collect()
    }

    /// Requests that were lost while no pod was leaving: nothing that the mode did explains them.
    pub(crate) fn unexplained(&self) -> Vec<String> {
        let leaving = |at_s: f64| {
            let of = |gone: &Departure| gone.deletion.deleted_s <= at_s && at_s <= gone.deletion.gone_s;
            self.departures.iter().any(of)
        };
        let lost = self.fates.iter().filter(|fate| fate.loss().is_some() && !leaving(fate.ended_s));
        lost.map(|fate| format!("{} was lost at {:.2} s, when no pod was leaving", fate.id, fate.ended_s)).collect()
    }

    /// A server was DOWN before its health had failed: nothing that the mode did.
    pub(crate) fn ground_failure(&self) -> bool {
        self.departures.iter().any(Departure::ground_failure)
    }

    /// From a pod's deletion to its end, the longest.
    pub(crate) fn seconds_to_exit(&self) -> f64 {
        self.departures.iter().map(|gone| gone.deletion.gone_s - gone.deletion.deleted_s).fold(0.0, f64::max)
    }
}

impl Departure {
    fn ground_failure(&self) -> bool {
        let down = timeline::find(&self.events, Kind::LbDown);
        let failed = timeline::find(&self.events, Kind::HealthFail);
        match (down, failed) {
            (Some(down), Some(failed)) => down.before(failed),
            (Some(down), None) => down.at_s < self.deletion.gone_s,
            (None, _) => false,
        }
    }
}

/// Runs it; everything that the programs wrote is in `dir` afterwards.
pub(crate) async fn run(plan: &Plan, dir: &Path) -> Result<Record> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let record = play(plan, dir).await.with_context(|| diagnostics::evidence(dir))?;
    std::fs::write(dir.join("rollout.json"), serde_json::to_string_pretty(&record)?)?;
    Ok(record)
}

async fn play(plan: &Plan, dir: &Path) -> Result<Record> {
    let times = plan.scenario.scale(&plan.scale)?.clone();
    let mut options = run::options(plan.mode, &times, plan.concurrency);
    options.overrides.deployed = plan.deployed;
    let network = &plan.network;
    network.is_free().await?;
    let backend = Backend::start(network.application())?;
    let replicas = plan.scenario.replicas;
    let nodes = network.pods(replicas + 1);
    let mut gateways = Vec::new();
    for node in nodes.iter().take(replicas.into()) {
        gateways.push(start(network, dir, node.clone(), 1, &options).await?);
    }
    let free = nodes.last().cloned().context("no node is free")?;
    let balancer = ground::balancer(network, dir, &nodes, replicas.into(), &options).await?;
    let api = balancer.as_ref().context("a rolling restart needs a balancer")?.api;

    run::check_phase(plan, &times).await;
    let clock = Clock::start();
    let story = Story::start(clock, plan.aloud);
    let watcher = Watcher::start(network, dir, clock).await?;
    let load = Traffic::start(&times.load, &target(network, dir)?, plan.number.into(), clock)?;
    let streams =
        times.load.iter().map(|stream| format!("{} a second of {} ({})", stream.rate, stream.path, stream.name));
    story.tell(format!("load: {}", streams.collect::<Vec<_>>().join(", ")));
    let rolling = Rolling { plan, times: &times, options: &options, dir, api, clock, story: &story, load: &load };
    let played = rolling.roll(&mut gateways, free).await;
    for gateway in &gateways {
        let moment = if played.is_ok() { "after" } else { diagnostics::FAILED };
        diagnostics::collect(&gateway.pod, api, &gateway.dir, moment).await;
    }
    let departures = played?;
    wait::pace_until(std::time::Instant::now() + Duration::from_secs_f64(times.tail_s)).await;
    let Load { mut fates, began_s, ended_s } = load.stop(ANSWERS_LIMIT).await?;
    traffic::join(&mut fates, &backend.visits(clock));
    let window = Window {
        from_s: departures.first().map_or(0.0, |first| first.deletion.deleted_s),
        to_s: departures.last().map_or(0.0, |last| last.deletion.gone_s),
    };
    let load = Load { fates, began_s, ended_s };
    let summary = traffic::summary(&load, &times.load, window);
    let watched = watcher.end().await?;
    let judged = departures.into_iter().map(|departure| departure.judged(plan, &times, &load.fates, &watched));
    let departures = judged.collect::<Result<Vec<_>>>()?;
    Ok(Record {
        scenario: plan.scenario.name.clone(),
        title: plan.scenario.title.clone(),
        scale: plan.scale.clone(),
        mode: plan.mode,
        ground: network.kind(),
        programs: run::versions().await,
        departures,
        fates: load.fates,
        summary,
        story: run::in_order(story.lines()),
        times,
    })
}

/// The pod's folder names its node and its generation there.
pub(crate) async fn start(
    network: &Network,
    dir: &Path,
    node: crate::network::Pod,
    generation: u32,
    options: &Options,
) -> Result<Gateway> {
    let dir = dir.join(format!("{}-{generation}", node.name));
    let gateway = Gateway::start(&dir, node, network.application().address, options).await?;
    ground::healthy(&gateway.pod, options.answers.readiness()).await?;
    Ok(gateway)
}

/// The balancer, as the clients' machine finds it.
pub(crate) fn target(network: &Network, dir: &Path) -> Result<Target> {
    let (clients, at) = (network.clients(), std::net::SocketAddr::new(network.front(), crate::topology::LB));
    Ok(Target::balancer(dir)?.by(Arc::new(move || Box::pin(async move { clients.site.connect(at).await }))))
}

/// The restart itself.
struct Rolling<'a> {
    plan: &'a Plan,
    times: &'a Scale,
    options: &'a Options,
    dir: &'a Path,
    api: Api,
    clock: Clock,
    story: &'a Story,
    load: &'a Traffic,
}

impl Rolling<'_> {
    async fn roll(&self, gateways: &mut Vec<Gateway>, mut free: crate::network::Pod) -> Result<Vec<Departure>> {
        wait::pace_until(self.clock.at(self.times.delete_at_s)).await;
        let mut departures = Vec::new();
        for generation in 0..gateways.len() {
            let node = free.name.clone();
            let new = start(&self.plan.network, self.dir, free, 2, self.options).await?;
            if self.plan.mode.deregistered_after(self.plan.nlb_lag).is_some() {
                self.api.ask(&format!("set server istio-http-backend/{node} state ready")).await?;
            }
            self.story.tell(format!("kubelet: a new pod is ready on {node}"));
            // Kubernetes takes the oldest; those that came since are at the end.
            let mut old = gateways.remove(0);
            gateways.push(new);
            ensure!(self.load.started() > 0, "no request was sent before deletion {generation}");
            let (started, in_flight) = (self.load.started(), self.load.in_flight());
            self.story.tell(format!("load: {started} requests so far, {in_flight} in flight"));
            departures.push(self.delete(&mut old).await?);
            free = old.pod.clone();
        }
        Ok(departures)
    }

    /// Deletes a pod; returns when it is gone and the balancer has noticed, or had the time to.
    async fn delete(&self, old: &mut Gateway) -> Result<Departure> {
        let (mode, network) = (self.plan.mode, &self.plan.network);
        let observers = Observers::start(network, &old.pod, mode.answers(), self.api, self.clock, self.story);
        observers.have_looked().await?;
        let pod = old.pod.clone();
        let deletion = kubelet::delete(mode, self.times, old, self.clock, self.story);
        let lag = self.plan.nlb_lag;
        let deregistration = run::deregister(mode, lag, &pod, self.api, self.story);
        let (deletion, ()) = tokio::try_join!(deletion, deregistration)?;
        let down = async || observers.seen().balancer.first(0.0, |value| value.starts_with("DOWN")).map(|_| ());
        let detection = Duration::from_millis(4 * self.times.check_inter_ms) + Duration::from_secs(2);
        // A pod that takes less time to come up than the balancer to notice is no failure.
        let _noticed = wait::until("HAProxy notices that the pod is gone", detection, down).await;
        let seen = observers.seen();
        let events = seen.events(deletion.deleted_s, &[]);
        Ok(Departure {
            pod: pod.name,
            order: timeline::order(&events),
            in_flight_at_lb_down: seen.in_flight_at_lb_down(&events),
            events,
            deletion,
            seen,
            oracle: Verdict::default(),
            folder: old.dir.clone(),
        })
    }
}

impl Departure {
    /// With event 6, by the wire or else by the first request on this pod that was cut after its deletion, and with the
    /// oracle's word.
    fn judged(mut self, plan: &Plan, times: &Scale, fates: &[Fate], watched: &Watched) -> Result<Self> {
        // The node's next pod has the same name; its requests begin when this one is gone.
        let on_this = |fate: &&Fate| match fate.pod.as_deref() {
            Some(pod) => pod == self.pod && fate.started_s < self.deletion.gone_s,
            // Cut before the application saw it: one pod leaves at a time, so it was on its way to this one.
            None => fate.ended_s >= self.deletion.deleted_s && fate.ended_s <= self.deletion.gone_s,
        };
        let cut = || {
            let lost = |fate: &&Fate| !fate.whole() && fate.ended_s >= self.deletion.deleted_s;
            fates.iter().filter(on_this).filter(lost)
        };
        let mut events = self.events.clone();
        if let Some(cut) = cut().min_by(|a, b| a.ended_s.total_cmp(&b.ended_s)) {
            let detail = format!("{}: {}", cut.id, cut.loss().unwrap_or_default());
            events.push(Event::new(Kind::Rst, cut.ended_s, cut.ended_s, "the client's own failure", &detail));
            timeline::sort(&mut events);
        }
        let events = evidence::with_event_6(events, watched.event_6(&evidence::cuts_of_fates(cut())));
        let lost: Vec<String> = cut().map(|fate| fate.id.clone()).collect();
        let leaving = Leaving {
            deleted_s: self.deletion.deleted_s,
            under_load: true,
            requests: fates.iter().filter(on_this).map(Request::of_fate).collect(),
            events: &events,
            cut: &lost,
        };
        self.oracle = evidence::judge(plan.mode, times, &plan.network, &watched.wall, &self.folder, &leaving)?;
        self.order = timeline::order(&events);
        self.events = events;
        Ok(self)
    }
}
