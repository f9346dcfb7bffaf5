//! Envoy stops, dies, loses a VM, or never had the filter that counts.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::cases::scene::{LIMIT, Scene};
use crate::cases::traps::{self, Victim};
use crate::chaos::account::Account;
use crate::chaos::leaving::{GRACE, Leaving, Reach, ground, pre_stop};
use crate::manifest::Overrides;
use crate::{haproxy, wait};

/// Requests that are not over when the pod is.
const ENDLESS: u32 = 60;

/// Envoy stands still until HAProxy has marked it DOWN and cut its sessions: the balancer's doing, but no clean end.
pub(crate) async fn stops_until_down(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, ENDLESS).await?;
    let stopped = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("Envoy is stopped until HAProxy marks it DOWN");
        reach.signal_envoy(Signal::STOP)?;
        let down = async || haproxy::server().await.ok().filter(|server| server.status.starts_with("DOWN"));
        let down = wait::until("HAProxy marks it DOWN", LIMIT, down).await;
        reach.signal_envoy(Signal::CONT)?;
        down.map(|_| ())
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], stopped).await?;
    scene.check(account.cut() == account.clients.len(), "the balancer cut every request", account.clients());
    let exit = account.deletion.pre_stop_exit;
    scene.check(
        exit == Some(11),
        "which is not called clean: exit code 11",
        format!("{exit:?}: {}", account.last_words()),
    );
    account.says(&mut scene.checks, "how many were cut is not known");
    Ok(account)
}

pub(crate) async fn dies_before(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, ENDLESS).await?;
    let killed = async |reach: &mut Reach<'_>| {
        reach.strikes("Envoy is killed before the deletion");
        reach.signal_envoy(Signal::KILL)
    };
    leaving.before(scene, killed).await?;
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], async |_reach| Ok(())).await?;
    gone(scene, &account);
    Ok(account)
}

pub(crate) async fn dies_in_wait(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, ENDLESS).await?;
    let killed = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("Envoy is killed in the wait");
        reach.signal_envoy(Signal::KILL)
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], killed).await?;
    gone(scene, &account);
    account.says(&mut scene.checks, "2 in flight when last seen");
    Ok(account)
}

fn gone(scene: &mut Scene, account: &Account) {
    scene.check(account.cut() == account.clients.len(), "Envoy took every request with it", account.clients());
    account.exits(&mut scene.checks, 16);
    account.says(&mut scene.checks, "how many were cut is not known");
    let soon = Duration::from_secs(10).as_secs_f64();
    let seen = format!("{:.1} s", account.seconds());
    scene.check(account.seconds() < soon, "nobody waits for the deadline of what is gone", seen);
}

/// Four clients, so that both workers have some; a fifth request traps the counting VM of one of them.
pub(crate) async fn vm_trapped(scene: &mut Scene) -> Result<Account> {
    let options = traps::planted()?;
    let leaving = Leaving::begin(scene, ground(options.overrides), 2, 6).await?;
    let trapped = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("a counting VM traps");
        let (first, trapped) = traps::spring(reach.dir, Victim::Count, "panic").await?;
        reach.checks.check(trapped.is_ok(), "the VM traps", format!("its own request: {first}"));
        Ok(())
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], trapped).await?;
    account.kept(&mut scene.checks, 11);
    account.says(&mut scene.checks, "the count is not to be believed (trap)");
    account.says(&mut scene.checks, "how many were cut is not known");
    Ok(account)
}

/// The gate answers, and nobody counts: zero from the beginning, and never believed without Envoy's own counters.
pub(crate) async fn filter_absent(scene: &mut Scene) -> Result<Account> {
    let overrides = Overrides { without_count: true, ..Overrides::default() };
    let leaving = Leaving::begin(scene, ground(overrides), 1, 8).await?;
    let absent = async |reach: &mut Reach<'_>| {
        let document = reach.waited_for().await?;
        reach.strikes("nobody counts");
        let active = document.pointer("/active").cloned().unwrap_or_default();
        reach.checks.check(active == 0, "the gate's own count reads zero", active.to_string());
        Ok(())
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], absent).await?;
    account.kept(&mut scene.checks, 11);
    account.says(&mut scene.checks, "the count is not to be believed (roll call)");
    account.says(&mut scene.checks, "Envoy's own counters say 2 in flight");
    Ok(account)
}
