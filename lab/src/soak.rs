//! `softclose-lab run`: one scenario in one mode, once or many times, with the bound that so many runs allow.

use anyhow::Result;

use crate::mode::Mode;
use crate::played::Played;
use crate::run::Plan;
use crate::scenario::Scenario;
use crate::{Options, report, traffic};

/// More ground failures than this share, and the machine is not fit for the lab.
pub(crate) const GROUND_LIMIT: f64 = 0.05;

/// True if no run lost anything (mode current: if every run showed the fault).
pub(crate) async fn run(name: &str, mode: Mode, repeat: u32, options: &Options) -> Result<bool> {
    let scenario = Scenario::read(name)?;
    let out = options.place.folder()?;
    let plan = options.plan(options.network()?, &scenario, mode);
    let plan = Plan { aloud: repeat <= 1, ..plan };
    println!("{} {}, mode {}: {}", scenario.name, options.scale(), mode.name(), mode.meaning());
    let mut tally = Tally::default();
    let mut last = None;
    for number in 1..=repeat.max(1) {
        let dir = if repeat <= 1 { out.clone() } else { out.join(format!("{number:03}")) };
        let (played, ground_failures) = Played::on_firm_ground(&Plan { number, ..plan.clone() }, &dir).await?;
        let complaints = tally.add(&played, ground_failures);
        let verdict = if complaints.is_empty() { "as promised".to_owned() } else { complaints.join("; ") };
        println!("run {number:>3} of {repeat}: {:<12} {verdict}", played.order());
        if !complaints.is_empty() {
            println!("      evidence in {}", dir.display());
        }
        last = Some(played);
    }
    match last {
        Some(Played::Single(record)) => {
            println!("\n{}", report::scenario_table(&scenario, std::slice::from_ref(&record)));
            println!("\n{}", report::events_table(&record.events));
        }
        Some(Played::Rolling(record)) => {
            println!("\n{}", report::rolling_table(&scenario, &record));
            println!("\n{}", traffic::table(&record.summary));
        }
        None => {}
    }
    println!("\n{}", tally.summary());
    println!("evidence: {}", out.display());
    Ok(tally.passed())
}

/// Of all that was played, `runs` and those that were repeated, how much failed for its ground.
pub(crate) fn ground_share(runs: u32, failures: u32) -> f64 {
    f64::from(failures) / f64::from((runs + failures).max(1))
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
    fn add(&mut self, played: &Played, ground_failures: u32) -> Vec<String> {
        self.runs += 1;
        self.ground_failures += ground_failures;
        self.requests += u32::try_from(played.requests()).unwrap_or(u32::MAX);
        self.failures += u32::try_from(played.failures().len()).unwrap_or(u32::MAX);
        let complaints = played.complaints();
        self.unfit_runs += u32::from(!complaints.is_empty());
        complaints
    }

    fn ground_share(&self) -> f64 {
        ground_share(self.runs, self.ground_failures)
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
    use crate::run::Record;
    use crate::verdict::tests::{cut_by_current, kept_by};

    fn single(record: Record) -> Played {
        Played::Single(Box::new(record))
    }

    #[test]
    fn twenty_good_runs_bound_the_failure_rate() {
        let mut tally = Tally::default();
        for _ in 0..20 {
            assert!(tally.add(&single(kept_by(Mode::Softclose)), 0).is_empty());
        }
        assert!(tally.passed());
        assert!(tally.summary().contains("20 requests: 0 failures, so at most 15.0 % fail"));
    }

    #[test]
    fn a_soak_with_one_cut_request_fails() {
        let mut tally = Tally::default();
        tally.add(&single(kept_by(Mode::Softclose)), 0);
        let mut cut = cut_by_current();
        cut.mode = Mode::Softclose;
        assert!(!tally.add(&single(cut), 0).is_empty());
        assert!(!tally.passed());
    }

    #[test]
    fn too_many_ground_failures_fail_a_soak_that_lost_nothing() {
        let mut tally = Tally::default();
        for run in 0..20 {
            tally.add(&single(kept_by(Mode::Softclose)), u32::from(run < 2));
        }
        assert_eq!(tally.failures, 0);
        assert!(!tally.passed());
    }
}
