//! `softclose-lab matrix`: every mode in every scenario, in one table.

use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;

use crate::mode::Mode;
use crate::played::Played;
use crate::scenario::Scenario;
use crate::{Options, busy, report};

/// What to compare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names of files in testdata/scenarios [default: S1 S3 S4]
    scenarios: Vec<String>,
    /// Modes [default: all]
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// The busy gateway instead: modes and presets by how the balancer is configured
    #[arg(long, conflicts_with_all = ["scenarios", "modes"])]
    busy: bool,
    /// Requests a second of the busy gateway
    #[arg(long, requires = "busy", default_value = "medium")]
    rate: busy::Rate,
    #[command(flatten)]
    options: Options,
}

/// One mode in one scenario.
#[derive(Debug, Serialize)]
struct Cell {
    scenario: String,
    mode: Mode,
    requests: usize,
    failures: Vec<String>,
    order: String,
    in_flight_at_down: String,
    seconds_to_exit: f64,
    seconds_wasted: f64,
    ground_failures: u32,
    /// Where the oracle and the run are apart.
    disagreements: Vec<String>,
}

/// True if softclose lost nothing anywhere, and the oracle agrees with every run.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    if args.busy {
        return busy::matrix(args.rate, &args.options).await;
    }
    let names =
        if args.scenarios.is_empty() { ["S1", "S3", "S4"].map(str::to_owned).to_vec() } else { args.scenarios.clone() };
    let modes = if args.modes.is_empty() { Mode::ALL.to_vec() } else { args.modes.clone() };
    let scenarios = names.iter().map(|name| Scenario::read(name)).collect::<Result<Vec<_>>>()?;
    let out = args.options.place.folder()?;
    let network = args.options.network()?;
    let mut cells = Vec::new();
    for scenario in &scenarios {
        for mode in &modes {
            let mut plan = args.options.plan(Arc::clone(&network), scenario, *mode);
            plan.aloud = false;
            let dir = out.join(format!("{}-{}", scenario.name.to_lowercase(), mode.name()));
            let (played, ground_failures) = Played::on_firm_ground(&plan, &dir).await?;
            let cell = Cell {
                scenario: scenario.name.clone(),
                mode: *mode,
                requests: played.requests(),
                failures: played.failures(),
                order: played.order(),
                in_flight_at_down: played.in_flight_at_down(),
                seconds_to_exit: played.seconds_to_exit(),
                seconds_wasted: played.seconds_wasted(),
                ground_failures,
                disagreements: played.disagreements(),
            };
            println!(
                "  {} {}: {} of {} lost, {:.1} s to exit",
                cell.scenario,
                mode.name(),
                cell.failures.len(),
                cell.requests,
                cell.seconds_to_exit
            );
            cells.push(cell);
        }
    }
    let rows = rows(&cells);
    println!("\n{}\n", report::table(&rows));
    std::fs::write(out.join("matrix.json"), serde_json::to_string_pretty(&rows)?)?;
    std::fs::write(out.join("cells.json"), serde_json::to_string_pretty(&cells)?)?;
    println!("{} times, ground {:?}; all runs: {}", args.options.scale(), network.kind(), out.display());
    let lost: Vec<&Cell> =
        cells.iter().filter(|cell| cell.mode == Mode::Softclose && !cell.failures.is_empty()).collect();
    for cell in &lost {
        println!("FAILED: softclose lost in {}: {}", cell.scenario, cell.failures.join("; "));
    }
    let apart: Vec<&Cell> = cells.iter().filter(|cell| !cell.disagreements.is_empty()).collect();
    for cell in &apart {
        let (scenario, mode) = (&cell.scenario, cell.mode.name());
        println!("FAILED: {scenario}, mode {mode}: the oracle disagrees: {}", cell.disagreements.join("; "));
    }
    Ok(lost.is_empty() && apart.is_empty())
}

fn rows(cells: &[Cell]) -> Vec<Vec<String>> {
    let head = [
        "scenario",
        "mode",
        "lost",
        "of",
        "events in order",
        "in flight at 5",
        "s to exit",
        "of them wasted",
        "ground",
    ];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for cell in cells {
        rows.push(vec![
            cell.scenario.clone(),
            cell.mode.name().to_owned(),
            cell.failures.len().to_string(),
            cell.requests.to_string(),
            cell.order.clone(),
            cell.in_flight_at_down.clone(),
            format!("{:.1}", cell.seconds_to_exit),
            format!("{:.1}", cell.seconds_wasted),
            if cell.ground_failures == 0 { String::new() } else { format!("{} reruns", cell.ground_failures) },
        ]);
    }
    rows
}
