//! Clean is said of the balancer too: was it told, did it cut, did anybody ask at all?

use std::time::Duration;

use anyhow::Result;

use crate::cases::balancer::Balancer;
use crate::cases::scene::{LIMIT, Scene};
use crate::gate::number;
use crate::ground::Options;
use crate::network::Pod;
use crate::process::{Process, last_words};
use crate::{mode, wait};

const GRACE: Duration = Duration::from_secs(30);

/// Checks in scaled time: a gate that has heard four of them misses the fifth.
const CHECK: &str = "inter 500ms rise 1 fall 2 on-marked-down shutdown-sessions";

/// `set server ... state maint` in mid-drain, as service discovery does it: everything in flight is cut, and nobody asks any more.
pub(crate) async fn maintenance_cuts(scene: &mut Scene, requests: usize) -> Result<()> {
    let balancer = balanced(scene, CHECK, 5).await?;
    let asked: Vec<_> = (0..requests).map(|_| balancer.ask("/sleep?seconds=20")).collect();
    scene.counts(requests as u64, "before the drain").await?;
    let mut hook = pre_stop(scene, Duration::from_secs(15), &["--settle", "100ms"])?;
    scene.reaches("DRAINING", LIMIT, "the hook drains").await?;
    balancer.command("set server gateway/gw state maint").await?;
    let mut cut = 0;
    for request in asked {
        cut += usize::from(request.fate().await != "whole");
    }
    scene.check(cut == requests, "the balancer cuts all of them", format!("{cut} of {requests}"));
    ends(scene, &mut hook, 11, "how many were cut is not known").await
}

/// The same requests, answered to their end under a balancer that is left alone.
pub(crate) async fn nobody_cuts(scene: &mut Scene) -> Result<()> {
    let balancer = balanced(scene, CHECK, 5).await?;
    let asked: Vec<_> = (0..2).map(|_| balancer.ask("/sleep?seconds=3")).collect();
    scene.counts(2, "before the drain").await?;
    let mut hook = pre_stop(scene, GRACE, &["--settle", "100ms"])?;
    scene.reaches("DRAINING", LIMIT, "the hook drains").await?;
    for request in asked {
        let fate = request.fate().await;
        scene.check(fate == "whole", "a request ends by its answer", fate);
    }
    ends(scene, &mut hook, 0, "clean; 1 prober was told; cut at most 0").await
}

/// Nobody ever asks for health: a drain that is over told no balancer.
pub(crate) async fn nobody_asks(scene: &mut Scene, flags: &[&str], code: i32, words: &str) -> Result<()> {
    scene.start(Options::default()).await?;
    let mut hook = pre_stop(scene, GRACE, flags)?;
    ends(scene, &mut hook, code, words).await
}

/// A balancer that asks more slowly than the hold can wait for: it is UP when the pod leaves; with a longer hold it is DOWN.
pub(crate) async fn slow_checks(scene: &mut Scene, hold_max: &str, told: bool) -> Result<()> {
    let balancer = balanced(scene, "inter 2s rise 1 fall 3 on-marked-down shutdown-sessions", 3).await?;
    let flags = ["--settle", "100ms", "--fall", "3", "--hold-max", hold_max];
    let mut hook = pre_stop(scene, GRACE, &flags)?;
    let code = if told { 0 } else { 18 };
    let words = if told { "clean; 1 prober was told" } else { "left before 1 of 1 probers had been told" };
    ends(scene, &mut hook, code, words).await?;
    let word = balancer.server().await?.status;
    scene.check(word.starts_with("DOWN") == told, "which is what the balancer says", word);
    Ok(())
}

/// A gateway whose balancer has asked so often.
async fn balanced(scene: &mut Scene, server: &str, times: u64) -> Result<Balancer> {
    scene.start(Options::default()).await?;
    let balancer = Balancer::start(&scene.dir, 0, "", server).await?;
    balancer.up().await?;
    let gate = scene.gate;
    let known = async || {
        let status = gate.status().await.ok()?;
        let probers = status.pointer("/probers")?.as_array()?.clone();
        probers.iter().find(|prober| number(prober, "/asked") >= Some(times)).map(|_| ())
    };
    wait::until("the balancer is known", LIMIT, known).await?;
    Ok(balancer)
}

/// Starts the preStop command; of flags given twice the last counts.
fn pre_stop(scene: &Scene, grace: Duration, flags: &[&str]) -> Result<Process> {
    let mut command = mode::softclose_pre_stop(&Pod::only(), grace)?;
    command.args(flags);
    Process::start("prestop", command, &scene.dir)
}

async fn ends(scene: &mut Scene, hook: &mut Process, code: i32, words: &str) -> Result<()> {
    let ended = hook.exit(GRACE + LIMIT).await.and_then(|status| status.code());
    let said = last_words(&scene.said("prestop"));
    scene.check(ended == Some(code), format!("the command exits {code}"), format!("{ended:?}"));
    scene.check(said.contains(words), format!("and says {words:?}"), said.clone());
    Ok(())
}
