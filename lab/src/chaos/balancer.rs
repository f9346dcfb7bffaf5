//! HAProxy reloads while the pod leaves: a new process, which takes the gateway for UP until it has checked for itself.

use anyhow::Result;

use crate::cases::scene::{LIMIT, Scene};
use crate::chaos::account::Account;
use crate::chaos::leaving::{GRACE, Leaving, Reach, ground, pre_stop};
use crate::haproxy;
use crate::manifest::Overrides;

/// Long enough for a reload in the wait.
const REQUESTS: u32 = 5;

/// With requests in flight: those belong to the old process, which finishes them.
pub(crate) async fn reloads(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, REQUESTS).await?;
    let reloads = async |reach: &mut Reach<'_>| {
        reach.waited_for().await?;
        reach.strikes("HAProxy reloads in the wait");
        reach.reload_balancer().await
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], reloads).await?;
    account.kept(&mut scene.checks, 0);
    Ok(account)
}

/// After the flip: what the old process has heard is lost, and the hold must last until the new one has heard it as well.
pub(crate) async fn reloads_in_hold(scene: &mut Scene) -> Result<Account> {
    let leaving = Leaving::begin(scene, ground(Overrides::default()), 1, REQUESTS).await?;
    let reloads = async |reach: &mut Reach<'_>| {
        reach.gate.reaches("CLOSING", LIMIT).await?;
        reach.strikes_idle("HAProxy reloads in the hold");
        let server = haproxy::server().await?;
        let up = server.status.starts_with("UP");
        reach.checks.check(up, "the old process has not marked the gateway DOWN yet", format!("{server:?}"));
        reach.reload_balancer().await
    };
    let account = leaving.delete(scene, pre_stop(GRACE, &[])?, [GRACE; 2], reloads).await?;
    account.kept(&mut scene.checks, 0);
    Ok(account)
}
