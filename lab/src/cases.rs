//! `softclose-lab cases`: cases from the field, each by its name, on real Envoy.
//!
//! A number such as R05 names the case in the field's own list; several cases may share one. Each stands on a gateway of
//! its own, in a folder of its own, and collects evidence while the gateway that failed it is still up.

mod balancer;
mod counting;
mod drain;
mod exposure;
mod hold;
mod install;
mod istio;
mod odd;
mod paces;
mod pushes;
pub(crate) mod scene;
mod streams;
mod told;
pub(crate) mod traps;
mod verify;
mod window;
mod wire;

use std::pin::Pin;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::Place;
use crate::cases::pushes::Part::{Code, Plugin, Vm};
use crate::cases::scene::Scene;
use crate::cases::traps::During::{Draining, Open};
use crate::cases::traps::Victim::{Count, Gate};
use crate::cases::window::Settle;
use crate::deployed::Variant;
use crate::diagnostics;
use crate::haproxy::Api;
use crate::network::Pod;
use crate::report;

/// One case, and what it has to show beside its checks.
pub(crate) struct Case<T> {
    pub(crate) name: &'static str,
    /// In the short list.
    pub(crate) quick: bool,
    pub(crate) run: Run<T>,
}

pub(crate) type Run<T> = for<'a> fn(&'a mut Scene) -> Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

pub(crate) const QUICK: bool = true;
pub(crate) const FULL: bool = false;

macro_rules! case {
    ($name:literal, $quick:expr, $run:path $(, $argument:expr)*) => {
        $crate::cases::Case { name: $name, quick: $quick, run: |scene| Box::pin($run(scene $(, $argument)*)) }
    };
}
pub(crate) use case;

const CASES: &[Case<()>] = &[
    case!("R01-early-replies", QUICK, counting::early_replies),
    case!("R02-bytes-are-owed", QUICK, window::bytes_are_owed, Settle::None),
    case!("R02-settle-outlasts-the-reader", FULL, window::bytes_are_owed, Settle::Longer),
    case!("R03-late-requests", QUICK, window::late_requests),
    case!("R03-none-after-a-soft-answer", QUICK, window::no_late_requests_after_a_soft_answer),
    case!("R37-time-to-down", FULL, paces::time_to_down),
    case!("R38-soft-signal", FULL, paces::soft_signal),
    case!("R41-fresh-balancer", QUICK, paces::fresh_balancer),
    case!("hold-two-paces", QUICK, hold::two_paces),
    case!("hold-one-stops", FULL, hold::one_stops),
    case!("hold-one-comes-late", QUICK, hold::one_comes_late),
    case!("hold-a-stranger", QUICK, hold::a_stranger),
    case!("hold-nobody", FULL, hold::nobody),
    case!("R75-maintenance-cuts-two", QUICK, told::maintenance_cuts, 2),
    case!("R75-maintenance-cuts-one", FULL, told::maintenance_cuts, 1),
    case!("R75-nobody-cuts", FULL, told::nobody_cuts),
    case!("R80-nobody-asks", QUICK, told::nobody_asks, &["--hold-max", "1s"], 19, "nobody asked this pod for health"),
    case!("R80-nobody-is-expected", FULL, told::nobody_asks, &["--probers", "none"], 0, "done: clean; cut at most 0"),
    case!("R81-hold-too-short", QUICK, told::slow_checks, "3s", false),
    case!("R81-hold-long-enough", FULL, told::slow_checks, "20s", true),
    case!("R69-abort-matrix", QUICK, counting::abort_matrix),
    case!("R69-aborts-while-draining", QUICK, counting::aborts_while_draining),
    case!("R70-access-log-flush", QUICK, counting::access_log_flush),
    case!("R71-pipelining-and-half-heads", QUICK, counting::pipelining),
    case!("R07-no-gauge", QUICK, counting::no_gauge),
    case!("R07-no-gauge-on-the-traffic-listener", QUICK, counting::no_gauge_on_traffic),
    case!("R09-fresh-probes-agree", QUICK, counting::fresh_probes_agree),
    case!("R43-reuse-while-leaving", FULL, counting::reuse_while_leaving),
    case!("R14-idle-websocket", QUICK, streams::idle_websocket),
    case!("R14-closing-websocket", FULL, streams::closing_websocket),
    case!("R05-count-panic-open", FULL, traps::trap, Count, "panic", Open),
    case!("R05-count-panic-draining", QUICK, traps::trap, Count, "panic", Draining),
    case!("R05-count-panic-response-open", FULL, traps::trap, Count, "panic-response", Open),
    case!("R05-count-panic-response-draining", QUICK, traps::trap, Count, "panic-response", Draining),
    case!("R05-count-oom-open", QUICK, traps::trap, Count, "oom", Open),
    case!("R05-count-oom-draining", FULL, traps::trap, Count, "oom", Draining),
    case!("R05-count-stack-open", FULL, traps::trap, Count, "stack", Open),
    case!("R05-gate-panic-open", QUICK, traps::trap, Gate, "panic", Open),
    case!("R05-gate-panic-draining", FULL, traps::trap, Gate, "panic", Draining),
    case!("R05-gate-oom-open", FULL, traps::trap, Gate, "oom", Open),
    case!("R05-gate-oom-draining", FULL, traps::trap, Gate, "oom", Draining),
    case!("R05-gate-stack-open", FULL, traps::trap, Gate, "stack", Open),
    case!("R05-pre-stop-after-a-trap", FULL, traps::pre_stop_after_trap),
    case!("R05-pre-stop-while-the-gate-reloads", FULL, traps::pre_stop_while_the_gate_reloads),
    case!("R10-without-skip-exit", FULL, drain::without_skip_exit),
    case!("R10-with-skip-exit", QUICK, drain::with_skip_exit),
    case!("R25-first-response-closes", QUICK, drain::first_response_closes),
    case!("R26-idle-connections-stay", FULL, drain::idle_connections_stay),
    case!("R30-admin-verbs", QUICK, drain::admin_verbs),
    case!("R61-pre-stop-killed", QUICK, drain::pre_stop_killed),
    case!("R61-pre-stop-twice", QUICK, drain::pre_stop_twice),
    case!("R04-http-10-probes", QUICK, drain::http_10_probes),
    case!("R22-proxy-protocol", QUICK, drain::proxy_protocol),
    case!("R28-push-plugin-count", FULL, pushes::push, "count", Plugin),
    case!("R28-push-plugin-gate", QUICK, pushes::push, "gate", Plugin),
    case!("R28-push-vm-count", QUICK, pushes::push, "count", Vm),
    case!("R28-push-vm-gate", FULL, pushes::push, "gate", Vm),
    case!("R28-push-code-count", FULL, pushes::push, "count", Code),
    case!("R28-push-code-gate", QUICK, pushes::push, "gate", Code),
    case!("R28-push-listener", QUICK, pushes::listener),
    case!("R56-module-later", QUICK, install::module_later),
    case!("R56-filters-later", QUICK, install::filters_later),
    case!("verify-shipped", QUICK, verify::shipped),
    case!("verify-lacking", QUICK, verify::lacking),
    case!("R56-extensions-later", FULL, install::extensions_later),
    case!("R56-stand-in-for-count", QUICK, install::stand_in_for_count),
    case!("R56-stand-in-for-gate", QUICK, install::stand_in_for_gate),
    case!("R56-filters-removed", FULL, install::filters_removed),
    case!("R56-updated-and-rolled-back", QUICK, install::updated_and_rolled_back),
    case!("R19-paths-on-traffic", QUICK, exposure::paths),
    case!("R19-gate-on-traffic", QUICK, exposure::gate_on_traffic),
    case!("R19-forwarded-for", QUICK, exposure::forwarded_for),
    case!("R19-many-probers", FULL, exposure::many_probers),
    case!("R19-many-waiters", QUICK, exposure::many_waiters, 1000),
    case!("R19-slow-clients", QUICK, exposure::slow_clients),
    case!("Istio-main", QUICK, istio::gateway, Variant::Main),
    case!("Istio-wasmplugin", QUICK, istio::gateway, Variant::Wasmplugin),
    case!("Istio-dual-stack", QUICK, istio::gateway, Variant::DualStack),
    case!("Istio-proxy-protocol", QUICK, istio::gateway, Variant::ProxyProtocol),
    case!("Istio-unix-socket", QUICK, istio::gateway, Variant::UnixSocket),
];

/// True if every case that was asked for held.
pub(crate) async fn run(names: &[String], list: bool, quick: bool, place: &Place) -> Result<bool> {
    let chosen = choose(CASES, names, quick)?;
    if list {
        print_names(&chosen);
        return Ok(true);
    }
    let out = place.folder()?;
    let mut rows = vec![["case", "seconds", ""].map(String::from).to_vec()];
    let mut failed = Vec::new();
    for case in chosen {
        println!("{}", case.name);
        let began = Instant::now();
        let (held, _nothing) = one(case, &out.join(case.name)).await?;
        let (seconds, word) = (began.elapsed().as_secs_f64(), if held { "ok" } else { "FAILED" });
        rows.push(vec![case.name.to_owned(), format!("{seconds:.1}"), word.to_owned()]);
        if !held {
            failed.push(case.name);
        }
    }
    println!("\n{}", report::table(&rows));
    println!("\n{} cases, {} failed {}; {}", rows.len() - 1, failed.len(), failed.join(" "), out.display());
    Ok(failed.is_empty())
}

/// The cases whose names begin as asked for; all without a name.
pub(crate) fn choose<'a, T>(cases: &'a [Case<T>], names: &[String], quick: bool) -> Result<Vec<&'a Case<T>>> {
    if let Some(unknown) = names.iter().find(|name| !cases.iter().any(|case| case.name.starts_with(name.as_str()))) {
        bail!("no case begins with {unknown}; --list names them");
    }
    let named = |case: &&Case<T>| names.is_empty() || names.iter().any(|name| case.name.starts_with(name.as_str()));
    Ok(cases.iter().filter(|case| case.quick || !quick).filter(named).collect())
}

/// What `--list` prints.
pub(crate) fn print_names<T>(cases: &[&Case<T>]) {
    for case in cases {
        println!("{}", case.name);
    }
}

/// Runs one; says whether all its checks held, and gives what it has to show if it came to its end.
pub(crate) async fn one<T>(case: &Case<T>, dir: &std::path::Path) -> Result<(bool, Option<T>)> {
    std::fs::create_dir_all(dir)?;
    let mut scene = Scene::new(dir.to_path_buf());
    let shown = match (case.run)(&mut scene).await {
        Ok(shown) => Some(shown),
        Err(error) => {
            scene.check(false, "the case comes to its end", format!("{error:#}"));
            None
        }
    };
    if scene.checks.failed() > 0 {
        // While the gateway can still be asked.
        diagnostics::collect(&Pod::only(), Api::default(), dir, diagnostics::FAILED).await;
    }
    Ok((scene.checks.finish(&dir.join("checks.json"))?, shown))
}
