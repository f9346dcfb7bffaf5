//! `softclose-lab demo`: the headline on one machine, from real processes.

use std::sync::Arc;

use anyhow::Result;

use crate::mode::{IMPROVED_POLL_S, Mode};
use crate::played::Played;
use crate::run::Record;
use crate::scenario::Scenario;
use crate::{Options, chart, report, verdict};

/// Runs S1 in the three modes; true if the demo shows what it claims.
pub(crate) async fn run(options: &Options) -> Result<bool> {
    let scenario = Scenario::read("S1")?;
    let out = options.place.folder()?;
    let times = scenario.scale(options.scale())?;
    println!("{}: {}, {} times", scenario.name, scenario.title, options.scale());
    println!(
        "{}, deleted at {} s, balancer checks each {} ms (2 failures = DOWN)\n",
        times.request, times.delete_at_s, times.check_inter_ms
    );
    let network = options.network()?;
    let mut records: Vec<Record> = Vec::new();
    let mut ground_failures = 0;
    for mode in Mode::SHOWN {
        println!("{}: {}", mode.name(), mode.meaning());
        let plan = options.plan(Arc::clone(&network), &scenario, mode);
        let (played, failed) = Played::on_firm_ground(&plan, &out.join(mode.name())).await?;
        ground_failures += failed;
        if let Played::Single(record) = played {
            println!("  {}: {}\n", record.word(), record.order);
            records.push(*record);
        }
    }
    std::fs::write(out.join("s1.svg"), chart::stacked(&records))?;

    println!("{}\n", report::scenario_table(&scenario, &records));
    println!("{}\n", report::legend());
    println!(
        "mode improved is the improved preStop script of the project's starting document: it polls Envoy's admin until"
    );
    println!("nothing is in flight. A poll each {IMPROVED_POLL_S} s is an assumption, the document names no pace.");
    if ground_failures > 0 {
        println!("{ground_failures} runs were repeated: HAProxy was DOWN before health failed.");
    }
    println!("timelines and all logs: {} (s1.svg shows the modes side by side)", out.display());
    let mut reasons = verdict::demo(&records);
    for record in &records {
        let wrong = record.oracle.disagreements.iter();
        reasons.extend(wrong.map(|wrong| format!("mode {}: the oracle disagrees: {wrong}", record.mode.name())));
    }
    for reason in &reasons {
        println!("FAILED: {reason}");
    }
    Ok(reasons.is_empty())
}
