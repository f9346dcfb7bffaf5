//! The preStop command is killed, doubled, misinformed, or meets somebody else: at its control port, or at the gate.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cases::scene::{LIMIT, Scene, control_holds, field};
use crate::chaos::account::Account;
use crate::chaos::leaving::{GRACE, Leaving, Reach, ground, pre_stop};
use crate::chaos::stand_in;
use crate::gate::{number, text};
use crate::manifest::Overrides;
use crate::process::Process;
use crate::topology;

/// Long enough for a fault to strike in the wait.
const REQUESTS: u32 = 5;
/// The preStop command gives the filter 3 s before it falls back; requests outlast that.
const OUTLASTS_DOUBT: u32 = 6;
/// Requests that are not over when the pod is.
const ENDLESS: u32 = 60;

/// A kubelet that restarts in mid-wait loses its hook and runs it again.
pub(crate) async fn killed_and_again(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, REQUESTS).await?;
    let mut first = Process::start("prestop-1", pre_stop(GRACE, &[])?, &scene.dir)?;
    let mut draining = Value::Null;
    let killed = async |reach: &mut Reach<'_>| {
        draining = reach.waited_for().await?;
        reach.strikes("the preStop command is killed in the wait");
        kill_process(Pid::from_raw(first.id()).context("no process id")?, Signal::KILL)?;
        let status = first.exit(LIMIT).await;
        reach.checks.check(status.is_some_and(|status| status.code().is_none()), "it is killed", format!("{status:?}"));
        Ok(())
    };
    leaving.before(scene, killed).await?;
    let resumed = async |reach: &mut Reach<'_>| {
        control_holds(1).await?;
        let document = reach.gate.status().await?;
        let kept = |at: &&str| document.pointer(at).is_some() && document.pointer(at) == draining.pointer(at);
        let same = ["/since_us", "/drains", "/plan"].iter().all(kept);
        let left = (number(&document, "/deadline_in_ms"), number(&draining, "/deadline_in_ms"));
        let sooner = matches!(left, (Some(now), Some(before)) if now < before);
        let seen =
            format!("drains {}, deadline in {} ms", field(&document, "/drains"), field(&document, "/deadline_in_ms"));
        reach.checks.check(same && sooner, "run again, it goes on with the same drain", seen);
        Ok(())
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], resumed).await?;
    account.kept(&mut scene.checks, 0);
    account.says(&mut scene.checks, "joining the drain under way; its deadline stands");
    Ok(account)
}

/// The hook runs it twice at once, and ends when both have.
pub(crate) async fn two_at_once(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, REQUESTS).await?;
    let both = async |reach: &mut Reach<'_>| {
        control_holds(2).await?;
        reach.strikes("two preStop commands wait");
        let document = reach.gate.status().await?;
        let drains = number(&document, "/drains");
        reach.checks.check(drains == Some(1), "two commands, one drain", field(&document, "/drains"));
        Ok(())
    };
    let account = leaving.delete(scene, twice(&pre_stop(GRACE, &[])?), [GRACE; 2], both).await?;
    account.kept(&mut scene.checks, 0);
    account.says(&mut scene.checks, "the other: 0");
    let lines = account.deletion.pre_stop_output.iter().filter_map(|line| line.split_once("done: "));
    let ends: Vec<&str> = lines.map(|(_, end)| end).collect();
    let alike = matches!(ends.as_slice(), [one, other] if one == other);
    scene.check(alike, "both end with the same words", ends.join(" | "));
    Ok(account)
}

/// `command` twice at once by a shell. The exit code is the second one's, and so is the last line.
fn twice(command: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.env_clear();
    let script =
        r#""$@" & other=$!; said=$("$@"); code=$?; wait $other; echo "the other: $?"; echo "$said"; exit $code"#;
    shell.args(["-c", script, "sh"]).arg(command.as_std().get_program()).args(command.as_std().get_args());
    shell
}

/// Half-way through the requests kubelet is out of patience: what is cut then is beyond the command, but it must leave a
/// trail that says how many there were, and none that says it was done.
pub(crate) async fn grace_shorter(scene: &mut Scene) -> Result<Account> {
    const GIVEN: Duration = Duration::from_secs(5);
    const TOLD: Duration = Duration::from_secs(60);
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, ENDLESS).await?;
    let short = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("kubelet gives 5 s, the command was told of 60 s");
        Ok(())
    };
    let account = leaving.delete(scene, pre_stop(TOLD, &[])?, [TOLD, GIVEN], short).await?;
    let exit = account.deletion.pre_stop_exit;
    scene.check(exit.is_none(), "kubelet kills the command", format!("{exit:?}"));
    scene.check(account.cut() == account.clients.len(), "every request is cut", account.clients());
    scene.check(!account.said("done: "), "it does not say that it was done", account.last_words());
    account.says(&mut scene.checks, "draining: 2 requests in flight");
    let cut_s = account.clients.iter().map(|client| client.over_s).fold(f64::MAX, f64::min);
    let seen = format!("first cut at {cut_s:.2} s, SIGTERM at {:.2} s", account.deletion.sigterm_s);
    scene.check(cut_s >= account.deletion.sigterm_s, "nobody is cut before kubelet's SIGTERM", seen);
    Ok(account)
}

/// Something else answers 200 at the control port. It is not softclose, and Envoy's counters have to do.
pub(crate) async fn control_port_taken(scene: &mut Scene) -> Result<Account> {
    let account = at_a_foreign_port(scene, GRACE, OUTLASTS_DOUBT).await?;
    account.kept(&mut scene.checks, 12);
    Ok(account)
}

/// The same with requests that outlast the deadline.
pub(crate) async fn control_port_taken_and_late(scene: &mut Scene) -> Result<Account> {
    let account = at_a_foreign_port(scene, Duration::from_secs(14), ENDLESS).await?;
    account.exits(&mut scene.checks, 13);
    scene.check(account.cut() == account.clients.len(), "every request is cut", account.clients());
    account.says(&mut scene.checks, "the deadline came with requests in flight");
    Ok(account)
}

async fn at_a_foreign_port(scene: &mut Scene, grace: Duration, seconds: u32) -> Result<Account> {
    let overrides = Overrides { listeners: vec![without_control], ..Overrides::default() };
    let leaving = Leaving::begin(scene, ground(overrides), 1, seconds).await?;
    let _foreign = stand_in::foreign(topology::CONTROL).await?;
    let taken = async |reach: &mut Reach<'_>| {
        reach.strikes("something else answers at the control port");
        let answer = reach.gate.send("GET", "/status", "").await;
        let word = answer.map(|answer| (answer.status, answer.state().map(str::to_owned)));
        let foreign = matches!(word, Ok((200, None)));
        reach.checks.check(foreign, "it answers 200, without x-softclose-state", format!("{word:?}"));
        Ok(())
    };
    leaving.before(scene, taken).await?;
    let hook = pre_stop(grace, &["--hold-max", "2s"])?;
    let account = leaving.delete(scene, hook, [grace; 2], async |_reach| Ok(())).await?;
    account.says(&mut scene.checks, "answered 200 without x-softclose-state: not softclose");
    account.says(&mut scene.checks, "DEGRADED");
    Ok(account)
}

fn without_control(listeners: &mut Value) -> Result<()> {
    let list = listeners.as_array_mut().context("no list of listeners")?;
    let before = list.len();
    list.retain(|listener| listener.get("name") != Some(&json!("softclose-control")));
    anyhow::ensure!(list.len() + 1 == before, "there is not one softclose-control among {before} listeners");
    Ok(())
}

/// Somebody turns the gate back while requests are in flight; the pod is leaving all the same.
pub(crate) async fn reopened(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, REQUESTS).await?;
    let reopened = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("a third party reopens the gate in the wait");
        reach.gate.command("/reopen").await?;
        drains_again(reach).await
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], reopened).await?;
    account.kept(&mut scene.checks, 15);
    account.says(&mut scene.checks, "reopened by somebody; draining again");
    Ok(account)
}

/// Somebody turns the gate back when the balancer has been told.
pub(crate) async fn reopened_after_flip(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, REQUESTS).await?;
    let reopened = async |reach: &mut Reach<'_>| {
        reach.gate.reaches("CLOSING", LIMIT).await?;
        reach.strikes_idle("a third party reopens the gate after the flip");
        reach.gate.command("/reopen").await?;
        drains_again(reach).await
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], reopened).await?;
    account.kept(&mut scene.checks, 15);
    Ok(account)
}

async fn drains_again(reach: &mut Reach<'_>) -> Result<()> {
    let again = async || reach.gate.status().await.ok().filter(|status| number(status, "/drains") == Some(2));
    let document = crate::wait::until("the gate drains again", LIMIT, again).await;
    let seen = document.map_or_else(|error| error.to_string(), |document| text(&document, "/state").to_owned());
    reach.checks.check(!seen.contains("in vain") && seen != "OPEN", "the command has it drain again", seen.clone());
    Ok(())
}
