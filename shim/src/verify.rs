//! `softclose status --verify`: whether a drain of this gateway would be counted whole, asked before anybody needs it.
//!
//! Envoy's admin says how it is configured, the gate says whether it is there and heard by every worker.

mod dump;
mod look;
mod report;

use std::time::Duration;

use serde::de::DeserializeOwned;
use softclose_fsm::{LedgerKind, Prober, StateName, Watch};

use crate::address::Address;
use crate::admin::{Admin, AdminError};
use crate::control::{Answer, Control};
use crate::http::document;
use crate::verify::dump::{Dump, DynamicListener, Extension, Options, ServerInfo, StaticListener};
use crate::verify::report::Report;
use crate::{complain, exit, print};

/// Whom to ask, and how to answer.
#[derive(Clone, Debug)]
pub(crate) struct Verify {
    /// Envoy's admin.
    pub(crate) admin: Address,
    /// softclose's control listener.
    pub(crate) control: Address,
    /// For machines.
    pub(crate) json: bool,
}

/// Admin writes a page on Envoy's main thread, and some megabytes take a while.
const PATIENCE: Duration = Duration::from_secs(15);

/// A filter chain with its routes inlined takes some 10 kB, one of Istio's 5 kB: 10,000 chains and more.
const DUMP_MAX: usize = 128 * 1024 * 1024;

/// Looks, prints what it saw, and says the exit code.
pub(crate) fn run(verify: &Verify) -> u8 {
    match verify.look() {
        Ok(report) => {
            print(&if verify.json { report.json() } else { report.text() });
            if report.wrong.is_empty() { exit::CLEAN } else { exit::NOT_AS_IT_SHOULD_BE }
        }
        Err((target, error)) => {
            complain(&format!("admin {}{target}: {error}; nothing is known", verify.admin));
            exit::UNAVAILABLE
        }
    }
}

/// The listeners that nobody counts, by name: one call of admin, within `left`.
///
/// # Errors
/// There was no whole answer.
pub(crate) fn uncounted(admin: &Address, left: Duration) -> Result<Vec<String>, AdminError> {
    let pushed: Dump<DynamicListener> = ask(admin, PUSHED, left.min(PATIENCE))?;
    Ok(look::uncounted(&pushed.configs))
}

const PUSHED: &str = "/config_dump?resource=dynamic_listeners";

type Asked<T> = Result<T, (&'static str, AdminError)>;

impl Verify {
    fn look(&self) -> Asked<Report> {
        // Only the parts of the dump that matter: clusters, endpoints, routes and secrets stay in Envoy.
        let fixed: Dump<StaticListener> = self.ask("/config_dump?resource=static_listeners")?;
        let pushed: Dump<DynamicListener> = self.ask(PUSHED)?;
        let extensions: Dump<Extension> = self.ask("/config_dump?resource=ecds_filters")?;
        let server: ServerInfo = self.ask("/server_info")?;
        let mut report = Report::default();
        look::at_listeners(&pushed.configs, &fixed.configs, &extensions.configs, &mut report);
        at_the_gate(&Control { address: self.control.clone() }, server.command_line_options.concurrency, &mut report);
        at_the_drain(&server.command_line_options, &mut report);
        self.at_the_counters(&mut report);
        Ok(report)
    }

    fn ask<T: DeserializeOwned>(&self, target: &'static str) -> Asked<T> {
        ask(&self.admin, target, PATIENCE).map_err(|error| (target, error))
    }

    /// Whether the preStop command would have a second opinion.
    fn at_the_counters(&self, report: &mut Report) {
        match (Admin { address: self.admin.clone() }).counters(PATIENCE) {
            Ok(counters) if counters.requests.is_some() => {
                report.good.push("Envoy's own counters are there, for a second opinion".to_owned());
            }
            Ok(_) => report.hints.push(
                "Envoy's own counters are hidden: without the filter, or when its count is not believed, prestop cannot tell \
                 whether requests are in flight; proxyStatsMatcher.inclusionRegexps: [\"http\\\\.outbound_.*downstream_rq_active\"]"
                    .to_owned(),
            ),
            Err(error) => report.hints.push(format!("Envoy's own counters are not known: {error}")),
        }
    }
}

fn ask<T: DeserializeOwned>(admin: &Address, target: &str, patience: Duration) -> Result<T, AdminError> {
    document(admin, target, patience, DUMP_MAX).map_err(AdminError::Failed)?.map_err(AdminError::Unsupported)
}

fn at_the_gate(control: &Control, workers: u32, report: &mut Report) {
    let place = format!("control {}", control.address);
    match control.call("GET", "/status", PATIENCE) {
        Ok(answer) if answer.status == 200 => of_the_gate(&place, &answer, workers, report),
        Ok(answer) => report.wrong.push(format!("{place}: answered {}: {}", answer.status, answer.reason())),
        Err(trouble) => report.wrong.push(format!("{place}: {trouble}")),
    }
}

fn of_the_gate(place: &str, answer: &Answer, workers: u32, report: &mut Report) {
    report.good.push(format!("{place}: softclose answers, {}", answer.state));
    let Some(status) = &answer.document else {
        report.wrong.push(format!("{place}: this version does not understand its status document"));
        return;
    };
    if status.version != env!("CARGO_PKG_VERSION") {
        let own = env!("CARGO_PKG_VERSION");
        report.hints.push(format!("the module is of version {}, this binary of {own}: install both", status.version));
    }
    if answer.state != StateName::Open {
        report.hints.push(format!("a drain is under way, or over: the gate is {}", answer.state));
    }
    if !status.probers.iter().any(Prober::known) && status.plan.probers == Watch::Expected {
        report.hints.push(
            "nobody has asked for health twice: does the balancer check this port? A drain that nobody watched ends with exit code \
             19; --probers none where there is no such balancer"
                .to_owned(),
        );
    }
    if let Some(distrust) = status.distrust {
        report.wrong.push(format!("the count is not believed: {}", distrust.reason.as_str()));
    }
    // Envoy runs each role once for each worker, and once on its main thread.
    let expected = workers.saturating_add(1);
    let called = status.roll_call.roll_call;
    if status.roll_call.complete && called.answered == expected {
        report.good.push(format!("roll call: {} of {expected} counting VMs are there", called.answered));
    } else {
        report.wrong.push(format!(
            "roll call: {} of {expected} counting VMs are there ({workers} workers and the main thread); the others have \
             trapped, or count on no listener",
            called.answered
        ));
    }
    if status.ledger == LedgerKind::Shared {
        report.hints.push(
            "Envoy has no gauge for the count (wasmcustom.* is hidden by a stats matcher), so it is kept in shared data, at \
             more cost for each request"
                .to_owned(),
        );
    }
}

fn at_the_drain(options: &Options, report: &mut Report) {
    let (strategy, time) = (&options.drain_strategy, &options.drain_time);
    if strategy.eq_ignore_ascii_case("immediate") {
        report.good.push(format!("Envoy's drain is immediate, its time {time}"));
    } else {
        report.hints.push(format!(
            "Envoy's drain is {}: over {time} ever more of its responses tell clients to go; --drain-strategy immediate, which \
             Istio sets, lets all do so",
            if strategy.is_empty() { "of an unknown strategy" } else { "gradual" }
        ));
    }
}
