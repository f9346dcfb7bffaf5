//! `softclose-lab chaos`: a pod's deletion with a fault in it, each fault by its name, on real Envoy and real HAProxy.
//!
//! What is asserted is truth, not luck: exit code 0 only if every client was answered whole, a cut with its reason, no end
//! later than the grace period, and the balancer never told while a request was left. A fault may cost requests; softclose
//! may not, and it may not say that nothing was lost.

mod account;
mod admin;
mod balancer;
mod envoy;
mod hook;
mod leaving;
mod stand_in;

use anyhow::Result;

use crate::Place;
use crate::cases::{self, Case, FULL, QUICK, case};
use crate::chaos::account::Account;
use crate::report;

const FAULTS: &[Case<Account>] = &[
    case!("admin-hangs-before", FULL, admin::hangs_before),
    case!("admin-hangs-in-wait", FULL, admin::hangs_in_wait),
    case!("admin-never-answers", FULL, admin::never_answers),
    case!("admin-refuses", QUICK, admin::refuses),
    case!("envoy-stops-until-down", QUICK, envoy::stops_until_down),
    case!("envoy-dies-before", FULL, envoy::dies_before),
    case!("envoy-dies-in-wait", QUICK, envoy::dies_in_wait),
    case!("vm-trapped", QUICK, envoy::vm_trapped),
    case!("traffic-filter-absent", FULL, envoy::filter_absent),
    case!("shim-killed-and-again", QUICK, hook::killed_and_again),
    case!("two-shims", FULL, hook::two_at_once),
    case!("grace-shorter-than-told", FULL, hook::grace_shorter),
    case!("control-port-taken", QUICK, hook::control_port_taken),
    case!("control-port-taken-and-late", FULL, hook::control_port_taken_and_late),
    case!("reopened-by-a-third-party", QUICK, hook::reopened),
    case!("reopened-after-the-flip", FULL, hook::reopened_after_flip),
    case!("haproxy-reloads", QUICK, balancer::reloads),
    case!("haproxy-reloads-in-the-hold", FULL, balancer::reloads_in_hold),
];

/// True if every fault that was asked for ended in the truth.
pub(crate) async fn run(names: &[String], list: bool, quick: bool, place: &Place) -> Result<bool> {
    let chosen = cases::choose(FAULTS, names, quick)?;
    if list {
        cases::print_names(&chosen);
        return Ok(true);
    }
    let out = place.folder()?;
    let head = ["fault", "clients", "state at end", "exit", "last words", "seconds", ""];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut failed = Vec::new();
    for case in chosen {
        println!("{}", case.name);
        let (held, account) = cases::one(case, &out.join(case.name)).await?;
        let cells = account.map_or_else(|| vec!["did not come to its end".to_owned()], |account| account.cells());
        let word = if held { "ok" } else { "FAILED" };
        let mut row = [vec![case.name.to_owned()], cells].concat();
        row.resize(head.len() - 1, String::new());
        row.push(word.to_owned());
        rows.push(row);
        if !held {
            failed.push(case.name);
        }
    }
    let table = report::table(&rows);
    std::fs::write(out.join("chaos.md"), markdown(&rows))?;
    std::fs::write(out.join("chaos.json"), serde_json::to_string_pretty(&rows)?)?;
    println!("\n{table}");
    println!("\n{} faults, {} failed {}; {}", rows.len() - 1, failed.len(), failed.join(" "), out.display());
    Ok(failed.is_empty())
}

/// The same rows for a document.
fn markdown(rows: &[Vec<String>]) -> String {
    let mut lines: Vec<String> = rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect();
    let columns = rows.first().map_or(0, Vec::len);
    lines.insert(1.min(lines.len()), format!("|{}", "---|".repeat(columns)));
    lines.join("\n") + "\n"
}
