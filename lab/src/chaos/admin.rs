//! Envoy's admin hangs or refuses: the requests must not pay for it, and what did not begin must not be said to have begun.

use std::time::Duration;

use anyhow::Result;

use crate::cases::scene::Scene;
use crate::chaos::account::Account;
use crate::chaos::leaving::{GRACE, Leaving, Reach, ground, pre_stop};
use crate::chaos::stand_in;
use crate::manifest::Overrides;
use crate::topology;

/// Longer than the preStop command waits for one answer (2 s), so that it has to ask again; shorter than HAProxy needs for two
/// checks that time out (2 s each), so that it is not the balancer that cuts.
const FROZEN: Duration = Duration::from_secs(3);

/// The preStop command gives Envoy's drain 3 s, in calls of 2 s; requests outlast that.
const OUTLASTS_ADMIN: u32 = 8;
/// What refuses costs no time.
const REQUESTS: u32 = 5;

pub(crate) async fn hangs_before(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, OUTLASTS_ADMIN).await?;
    let stopped = async |reach: &mut Reach<'_>| {
        reach.strikes("Envoy is stopped before the deletion");
        reach.signal_envoy(rustix::process::Signal::STOP)
    };
    leaving.before(scene, stopped).await?;
    let goes_on = async |reach: &mut Reach<'_>| reach.freeze_envoy(FROZEN).await;
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], goes_on).await?;
    account.kept(&mut scene.checks, 0);
    account.says(&mut scene.checks, "no answer in time; unknown, asking again");
    account.says(&mut scene.checks, "Envoy's drain has started");
    Ok(account)
}

pub(crate) async fn hangs_in_wait(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, OUTLASTS_ADMIN).await?;
    let stopped = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("Envoy is stopped in the wait");
        reach.freeze_envoy(FROZEN).await
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], stopped).await?;
    // HAProxy was about to mark it DOWN, and from inside nobody can tell that it did not.
    account.kept(&mut scene.checks, 11);
    account.says(&mut scene.checks, "unheard");
    Ok(account)
}

/// Something accepts the preStop command's calls of admin and never answers; Envoy itself is well.
pub(crate) async fn never_answers(scene: &mut Scene) -> Result<Account> {
    let _silent = stand_in::silent().await?;
    without_admin(scene, stand_in::SILENT, OUTLASTS_ADMIN, "no answer in time; unknown, asking again").await
}

pub(crate) async fn refuses(scene: &mut Scene) -> Result<Account> {
    without_admin(scene, stand_in::CLOSED, REQUESTS, "connection refused; unknown, asking again").await
}

async fn without_admin(scene: &mut Scene, port: u16, seconds: u32, why: &str) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, seconds).await?;
    let hook = pre_stop(GRACE, &["--admin", &topology::local(port).to_string()])?;
    let fault = async |reach: &mut Reach<'_>| {
        let document = reach.waited_for().await?;
        reach.strikes("the gate drains without Envoy's drain");
        let told = document.to_string().contains("envoy_drain_start");
        reach.checks.check(!told, "the gate is not told of a drain that did not begin", document.to_string());
        Ok(())
    };
    let account = leaving.delete(scene, hook, [GRACE; 2], fault).await?;
    account.kept(&mut scene.checks, 0);
    account.says(&mut scene.checks, why);
    account.says(&mut scene.checks, "Envoy's drain has not started");
    let said = account.said("Envoy's drain has started");
    scene.check(!said, "it never says that Envoy's drain has started", "");
    // After a clean end the agent begins it, in the moment before it ends Envoy.
    let told_s = account.seen.health.first(account.deletion.deleted_s, |value| value.starts_with("503"));
    let began = account.seen.drain.first(0.0, |value| value == "close");
    let missing = match (told_s, began) {
        (Some(told), Some(began)) => began.at_s > told.at_s,
        (_, None) => true,
        (None, Some(_)) => false,
    };
    scene.check(missing, "event 3 is missing from the wait", account.order.clone());
    Ok(account)
}
