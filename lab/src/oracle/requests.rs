//! Requests as their clients stamped them, and what has to become of them.

use serde::{Deserialize, Serialize};

use super::estimate::{Estimate, Lean};
use super::lb::Downs;
use super::{Facts, Predicted, tolerance};
use crate::backend;
use crate::curl::Outcome;
use crate::fate::Fate;
use crate::timeline::Kind;

/// One request in flight at the gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: String,
    /// When it reached the gateway.
    pub(crate) from: Estimate,
    /// When it ended, or would have if nobody had cut it.
    pub(crate) until: Estimate,
}

impl Request {
    /// By curl, whose own clock starts a little after the process and stops a little before it.
    pub(crate) fn of_outcome(outcome: &Outcome) -> Self {
        let began = (outcome.ended_s - outcome.seconds).max(outcome.started_s);
        let from = Estimate::between(outcome.started_s, began);
        let ended = Estimate::between(outcome.over_s, outcome.ended_s);
        Self::new(&outcome.id, &outcome.path, from, ended, outcome.whole())
    }

    /// By a load's own stamps.
    pub(crate) fn of_fate(fate: &Fate) -> Self {
        let (from, ended) = (Estimate::exact(fate.started_s), Estimate::exact(fate.ended_s));
        Self::new(&fate.id, &fate.path, from, ended, fate.whole() && fate.runs <= 1)
    }

    fn new(id: &str, path: &str, from: Estimate, ended: Estimate, whole: bool) -> Self {
        // A cut request's end is what is to be predicted: without the cut it would have gone on for as long as it asked.
        let own_s = if whole { 0.0 } else { backend::nominal(path).map_or(0.0, |span| span.as_secs_f64()) };
        let until = Estimate {
            early_s: (ended.early_s - tolerance::TRANSIT_S).max(from.early_s + own_s),
            late_s: ended.late_s.max(from.late_s + own_s + tolerance::TRANSIT_S),
        };
        Self { id: id.to_owned(), from: Estimate { late_s: from.late_s + tolerance::TRANSIT_S, ..from }, until }
    }

    /// The interval in flight that makes an idle gateway come earlier or later.
    pub(super) fn leaning(&self, lean: Lean) -> (f64, f64) {
        let from_s = match lean {
            Lean::Early => self.from.late_s,
            Lean::Likely => self.from.middle_s(),
            Lean::Late => self.from.early_s,
        };
        (from_s, self.until.leaning(lean).max(from_s))
    }

    fn surely_in_flight(&self, during: Estimate) -> bool {
        self.from.late_s < during.early_s && during.late_s < self.until.early_s
    }

    fn maybe_in_flight(&self, during: Estimate) -> bool {
        self.from.early_s < during.late_s && during.early_s < self.until.late_s
    }
}

/// Requests in flight at `at_s`.
pub(super) fn active(requests: &[(f64, f64)], at_s: f64) -> u64 {
    let open = requests.iter().filter(|(from_s, until_s)| *from_s <= at_s && at_s < *until_s).count();
    u64::try_from(open).unwrap_or(u64::MAX)
}

/// Stretches without a request in flight that begin with a request's end, from `from_s` on, in order; the last one has no
/// end.
pub(super) fn gaps(requests: &[(f64, f64)], from_s: f64) -> Vec<(f64, f64)> {
    let mut ends: Vec<f64> = requests.iter().map(|request| request.1).filter(|end| *end >= from_s).collect();
    ends.sort_by(f64::total_cmp);
    ends.dedup();
    let next_start = |at_s: f64| {
        requests.iter().map(|request| request.0).filter(|start| *start > at_s).fold(f64::INFINITY, f64::min)
    };
    ends.into_iter().filter(|end| active(requests, *end) == 0).map(|end| (end, next_start(end))).collect()
}

/// Who is cut.
#[derive(Debug, Default)]
pub(super) struct Fates {
    pub(super) cut: Vec<String>,
    pub(super) either_way: Vec<String>,
    /// At DOWN, not at the gateway's end: for sure, maybe.
    at_down: (bool, bool),
}

/// Requests in flight when the balancer cuts its sessions, or when the gateway ends.
pub(super) fn cut(facts: &Facts, downs: &Downs, gone: Option<Estimate>) -> Fates {
    let down = downs.span().filter(|_| facts.balancer.cuts_at_down);
    let mut fates = Fates::default();
    // What comes after DOWN reaches this gateway no more.
    let arrives = |request: &&Request| down.is_none_or(|down| request.from.early_s < down.late_s);
    for request in facts.requests.iter().filter(arrives) {
        let surely = |at: Option<Estimate>| at.is_some_and(|at| request.surely_in_flight(at));
        let maybe = |at: Option<Estimate>| at.is_some_and(|at| request.maybe_in_flight(at));
        fates.at_down.0 |= surely(down);
        fates.at_down.1 |= maybe(down);
        if surely(down) || surely(gone) {
            fates.cut.push(request.id.clone());
        } else if maybe(down) || maybe(gone) {
            fates.either_way.push(request.id.clone());
        }
    }
    fates
}

impl Fates {
    /// Event 6: the first cut that somebody waits behind.
    pub(super) fn rst(&self, downs: &Downs, gone: Option<Estimate>) -> Option<Predicted> {
        let sure = !self.cut.is_empty();
        if !sure && self.either_way.is_empty() {
            return None;
        }
        let at_gone = gone.map(|gone| Predicted {
            event: Kind::Rst,
            at_s: gone.middle_s(),
            tolerance_s: gone.half_width_s() + tolerance::LOOK_S,
            or_s: Vec::new(),
            sure,
        });
        let at_down = downs.predicted(Kind::Rst, sure);
        match (self.at_down, at_down, at_gone) {
            ((true, _), at_down, _) => at_down,
            ((false, false), _, at_gone) => at_gone,
            ((false, true), Some(at_down), Some(at_gone)) => {
                // Whoever is not cut at DOWN may be at the end, or nobody is.
                let or_s = at_down.or_s.iter().copied().chain([at_gone.at_s]).collect();
                Some(Predicted { or_s, tolerance_s: at_down.tolerance_s.max(at_gone.tolerance_s), ..at_down })
            }
            ((false, true), at_down, at_gone) => at_down.or(at_gone),
        }
    }
}

/// Event 4 as the lab sees it: the first time after the deletion that Envoy's admin counts nobody, having counted somebody.
pub(super) struct Zeros {
    at: Option<Estimate>,
    or_s: Vec<f64>,
    sure: bool,
}

impl Zeros {
    pub(super) fn after_deletion(facts: &Facts, downs: &Downs, gone: Option<Estimate>) -> Self {
        let down = downs.span().filter(|_| facts.balancer.cuts_at_down);
        let mut or_s = Vec::new();
        let mut first = Vec::new();
        for lean in Lean::ALL {
            let down_s = down.map_or(f64::INFINITY, |down| down.leaning(lean));
            let gone_s = gone.map_or(f64::INFINITY, |gone| gone.leaning(lean));
            let ended = |request: &Request| {
                let (from_s, until_s) = request.leaning(lean);
                // Whatever comes after DOWN reaches this gateway no more.
                if from_s < down_s { (from_s, until_s.min(down_s)) } else { (down_s, down_s) }
            };
            let requests: Vec<(f64, f64)> = facts.requests.iter().map(ended).filter(|(a, b)| a < b).collect();
            // Admin counts nothing once it is gone.
            let seen = gaps(&requests, facts.deleted_s).into_iter().map(|(from_s, to_s)| (from_s, to_s.min(gone_s)));
            for (from_s, to_s) in seen.filter(|(from_s, to_s)| from_s < to_s) {
                if to_s - from_s >= tolerance::ZERO_SEEN_S {
                    first.push(from_s);
                    break;
                }
                or_s.push(from_s);
            }
        }
        let at = Estimate::over(&first).or_else(|| Estimate::over(&or_s));
        Self { at, or_s, sure: first.len() == Lean::ALL.len() }
    }

    pub(super) fn predicted(&self) -> Option<Predicted> {
        let at = self.at?;
        let tolerance_s = at.half_width_s() + tolerance::LOOK_S;
        Some(Predicted {
            event: Kind::ActiveZero,
            at_s: at.middle_s(),
            tolerance_s,
            or_s: self.or_s.clone(),
            sure: self.sure,
        })
    }
}
