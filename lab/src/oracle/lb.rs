//! When a balancer marks the gateway DOWN: at its `fall`-th failed check in a row.

use super::estimate::Estimate;
use super::{Between, Check, Facts, Predicted, tolerance};
use crate::timeline::Kind;

/// The balancer of a run.
pub(super) struct Lb<'a> {
    pub(super) facts: &'a Facts,
}

/// Every moment at which it may go DOWN.
#[derive(Clone, Debug, Default)]
pub(super) struct Downs {
    /// In order.
    pub(super) at_s: Vec<f64>,
    tolerance_s: f64,
}

impl Lb<'_> {
    /// Health fails within `failed`; a check within that time may have been told either answer.
    pub(super) fn downs(&self, failed: Estimate) -> Downs {
        let fall = self.facts.balancer.fall.max(1);
        let checks = self.checks(failed.late_s + f64::from(fall + 2) * self.facts.balancer.inter_s);
        // The first check that may have failed, and the first that must have.
        let first = checks.partition_point(|check| check.0 < failed.early_s - tolerance::STAMP_S);
        let last = checks.partition_point(|check| check.0 < failed.late_s + tolerance::STAMP_S);
        let nth = usize::try_from(fall - 1).unwrap_or(usize::MAX);
        let downs: Vec<(f64, u32)> =
            (first..=last).filter_map(|check| checks.get(check.saturating_add(nth)).copied()).collect();
        let guessed = downs.iter().map(|down| down.1).max().unwrap_or_default();
        Downs {
            at_s: downs.into_iter().map(|down| down.0 + tolerance::VERDICT_S / 2.0).collect(),
            tolerance_s: tolerance::VERDICT_S / 2.0 + tolerance::LOOK_S + f64::from(guessed) * tolerance::CHECK_DRIFT_S,
        }
    }

    /// Health fails just before the first failed check, or almost a whole interval before it.
    pub(super) fn health_to_down(&self) -> Between {
        let inter_s = self.pace_s() + tolerance::CHECK_DRIFT_S;
        let fall = f64::from(self.facts.balancer.fall.max(1));
        Between {
            from: Kind::HealthFail,
            to: Kind::LbDown,
            least_s: (fall - 1.0) * (self.pace_s() - tolerance::CHECK_DRIFT_S) - tolerance::LOOK_S,
            most_s: fall * inter_s + tolerance::VERDICT_S + tolerance::LOOK_S,
        }
    }

    fn pace_s(&self) -> f64 {
        pace(self.recorded().iter().copied()).unwrap_or(self.facts.balancer.inter_s)
    }

    fn recorded(&self) -> Vec<f64> {
        let address = &self.facts.balancer.address;
        let recorded = self.facts.checks.iter().filter(|check| check.prober == *address);
        let mut times: Vec<f64> = recorded.map(|check| check.at_s).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// Its checks until `end_s`, each with how many before it are guessed.
    fn checks(&self, end_s: f64) -> Vec<(f64, u32)> {
        let mut checks: Vec<(f64, u32)> = self.recorded().into_iter().map(|at_s| (at_s, 0)).collect();
        let Some(mut last) = checks.last().copied() else { return checks };
        let pace_s = self.pace_s();
        while last.0 < end_s {
            last = (last.0 + pace_s, last.1 + 1);
            checks.push(last);
        }
        checks
    }
}

impl Downs {
    /// A balancer that is told so, whatever it checks.
    pub(super) fn told(at: Estimate) -> Self {
        Self { at_s: vec![at.middle_s()], tolerance_s: at.half_width_s() + tolerance::LOOK_S }
    }

    pub(super) fn span(&self) -> Option<Estimate> {
        let span = Estimate::over(&self.at_s)?;
        Some(Estimate { early_s: span.early_s - self.tolerance_s, late_s: span.late_s + self.tolerance_s })
    }

    /// The likeliest: the middle one.
    pub(super) fn likely_s(&self) -> Option<f64> {
        self.at_s.get(self.at_s.len().saturating_sub(1) / 2).copied()
    }

    /// What happens at DOWN.
    pub(super) fn predicted(&self, event: Kind, sure: bool) -> Option<Predicted> {
        let at_s = self.likely_s()?;
        let or_s = self.at_s.iter().copied().filter(|other| *other != at_s).collect();
        Some(Predicted { event, at_s, tolerance_s: self.tolerance_s, or_s, sure })
    }
}

/// All checks on record and, for each prober, those that would have followed until `end_s`: a log ends with its program, and
/// what it had not yet written is lost.
pub(super) fn carried_on(checks: &[Check], end_s: f64) -> Vec<Check> {
    let mut all = checks.to_vec();
    let mut probers: Vec<&str> = checks.iter().map(|check| check.prober.as_str()).collect();
    probers.sort_unstable();
    probers.dedup();
    for prober in probers {
        let mut times: Vec<f64> =
            checks.iter().filter(|check| check.prober == prober).map(|check| check.at_s).collect();
        times.sort_by(f64::total_cmp);
        let (Some(pace), Some(mut last)) = (pace(times.iter().copied()), times.last().copied()) else { continue };
        while last < end_s {
            last += pace;
            all.push(Check { at_s: last, prober: prober.to_owned() });
        }
    }
    all.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    all
}

/// The median gap; None of fewer than two, or of many at once.
fn pace(times: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let mut gaps: Vec<f64> = times.clone().skip(1).zip(times).map(|(later, earlier)| later - earlier).collect();
    gaps.sort_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied().filter(|pace| *pace > 0.001)
}
