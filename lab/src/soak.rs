//! `softclose-lab run`: one scenario in one mode, once or many times, with the bound that so many runs allow.

use std::path::Path;

use anyhow::{Result, bail};

use crate::mode::Mode;
use crate::run::{self, Plan, Record};
use crate::scenario::Scenario;
use crate::{Options, chart, report, verdict};

/// A run is repeated this often at most when its ground failed.
const GROUND_RETRIES: u32 = 3;
/// More ground failures than this share, and the machine is not fit for the lab.
const GROUND_LIMIT: f64 = 0.05;

/// Runs until the ground held; with the record, how often it did not.
pub(crate) async fn grounded_run(plan: &Plan, dir: &Path) -> Result<(Record, u32)> {
    for failed in 0..=GROUND_RETRIES {
        let dir = match failed {
            0 => dir.to_path_buf(),
            again => dir.with_extension(format!("rerun-{again}")),
        };
        let record = run::run(plan, &dir).await?;
        std::fs::write(dir.join("timeline.svg"), chart::single(&record))?;
        if !record.ground_failure() {
            return Ok((record, failed));
        }
        println!("  ground failure (HAProxy DOWN before health failed), evidence in {}; again", dir.display());
    }
    bail!("the ground failed {} times in a row; is this machine very busy?", GROUND_RETRIES + 1)
}

/// True if no run lost anything (mode current: if every run showed the fault).
pub(crate) async fn run(name: &str, mode: Mode, repeat: u32, options: &Options) -> Result<bool> {
    let scenario = Scenario::read(name)?;
    let out = options.place.folder()?;
    let plan = Plan {
        scenario: scenario.clone(),
        scale: options.scale().to_owned(),
        mode,
        protocols: options.protocols(),
        concurrency: options.concurrency,
        number: 1,
        aloud: repeat <= 1,
    };
    println!("{} {}, mode {}: {}", scenario.name, options.scale(), mode.name(), mode.meaning());
    let mut tally = Tally::default();
    let mut last = None;
    for number in 1..=repeat.max(1) {
        let dir = if repeat <= 1 { out.clone() } else { out.join(format!("{number:03}")) };
        let (record, ground_failures) = grounded_run(&Plan { number, ..plan.clone() }, &dir).await?;
        let complaints = tally.add(&record, ground_failures);
        let verdict = if complaints.is_empty() { "as promised".to_owned() } else { complaints.join("; ") };
        println!("run {number:>3} of {repeat}: {:<12} {verdict}", record.order);
        if !complaints.is_empty() {
            println!("      evidence in {}", dir.display());
        }
        last = Some(record);
    }
    if let Some(record) = last {
        println!("\n{}", report::scenario_table(&scenario, std::slice::from_ref(&record)));
        println!("\n{}", report::events_table(&record));
    }
    println!("\n{}", tally.summary());
    println!("evidence: {}", out.display());
    Ok(tally.passed())
}

/// What many runs add up to.
#[derive(Default)]
struct Tally {
    runs: u32,
    requests: u32,
    failures: u32,
    unfit_runs: u32,
    ground_failures: u32,
}

impl Tally {
    /// Counts a run in; returns what is wrong with it.
    fn add(&mut self, record: &Record, ground_failures: u32) -> Vec<String> {
        self.runs += 1;
        self.ground_failures += ground_failures;
        self.requests += u32::try_from(record.clients.len()).unwrap_or(u32::MAX);
        self.failures += u32::try_from(record.failures().len()).unwrap_or(u32::MAX);
        let complaints = match record.mode {
            Mode::Current => verdict::missing_fault(record),
            Mode::Improved => record.failures(),
            Mode::Softclose => verdict::broken_promises(record),
        };
        self.unfit_runs += u32::from(!complaints.is_empty());
        complaints
    }

    fn ground_share(&self) -> f64 {
        f64::from(self.ground_failures) / f64::from((self.runs + self.ground_failures).max(1))
    }

    fn passed(&self) -> bool {
        self.runs > 0 && self.unfit_runs == 0 && self.ground_share() <= GROUND_LIMIT
    }

    fn summary(&self) -> String {
        let Self { runs, requests, failures, unfit_runs, ground_failures } = self;
        let bound = match failures {
            // The rule of three: with 0 of n, the rate is at most 3/n at 95 % confidence.
            0 => format!("so at most {:.1} % fail (95 %)", (300.0 / f64::from((*requests).max(1))).min(100.0)),
            _ => format!("{:.1} %", 100.0 * f64::from(*failures) / f64::from((*requests).max(1))),
        };
        format!(
            "{runs} runs, {requests} requests: {failures} failures, {bound}; {unfit_runs} runs not as promised; \
             {ground_failures} ground failures ({:.0} %, at most {:.0} % allowed)",
            100.0 * self.ground_share(),
            100.0 * GROUND_LIMIT
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::{cut_by_current, kept_by};

    #[test]
    fn twenty_good_runs_bound_the_failure_rate() {
        let mut tally = Tally::default();
        for _ in 0..20 {
            assert!(tally.add(&kept_by(Mode::Softclose), 0).is_empty());
        }
        assert!(tally.passed());
        assert!(tally.summary().contains("20 requests: 0 failures, so at most 15.0 % fail"));
    }

    #[test]
    fn a_soak_with_one_cut_request_fails() {
        let mut tally = Tally::default();
        tally.add(&kept_by(Mode::Softclose), 0);
        let mut cut = cut_by_current();
        cut.mode = Mode::Softclose;
        assert!(!tally.add(&cut, 0).is_empty());
        assert!(!tally.passed());
    }

    #[test]
    fn too_many_ground_failures_fail_a_soak_that_lost_nothing() {
        let mut tally = Tally::default();
        for run in 0..20 {
            tally.add(&kept_by(Mode::Softclose), u32::from(run < 2));
        }
        assert_eq!(tally.failures, 0);
        assert!(!tally.passed());
    }
}
