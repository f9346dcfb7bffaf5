//! A moment that is known only to lie between two others.

use serde::{Deserialize, Serialize};

/// Which way everything unknown leans in one prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lean {
    Early,
    Likely,
    Late,
}

impl Lean {
    pub(crate) const ALL: [Self; 3] = [Self::Early, Self::Likely, Self::Late];

    /// The share of a latency that passes: nothing, half, all.
    pub(crate) fn of(self, latency_s: f64) -> f64 {
        match self {
            Self::Early => 0.0,
            Self::Likely => latency_s / 2.0,
            Self::Late => latency_s,
        }
    }
}

/// Not before `early_s`, not after `late_s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Estimate {
    pub(crate) early_s: f64,
    pub(crate) late_s: f64,
}

impl Estimate {
    pub(crate) fn exact(at_s: f64) -> Self {
        Self { early_s: at_s, late_s: at_s }
    }

    /// Between two moments, given in any order.
    pub(crate) fn between(a_s: f64, b_s: f64) -> Self {
        Self { early_s: a_s.min(b_s), late_s: a_s.max(b_s) }
    }

    /// The span of several moments; None of none.
    pub(crate) fn over(times: &[f64]) -> Option<Self> {
        let early_s = times.iter().copied().reduce(f64::min)?;
        let late_s = times.iter().copied().reduce(f64::max)?;
        Some(Self { early_s, late_s })
    }

    pub(crate) fn middle_s(&self) -> f64 {
        f64::midpoint(self.early_s, self.late_s)
    }

    pub(crate) fn half_width_s(&self) -> f64 {
        (self.late_s - self.early_s) / 2.0
    }

    pub(crate) fn leaning(&self, lean: Lean) -> f64 {
        match lean {
            Lean::Early => self.early_s,
            Lean::Likely => self.middle_s(),
            Lean::Late => self.late_s,
        }
    }
}
