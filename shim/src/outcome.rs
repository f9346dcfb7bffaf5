//! What a drain came to, and what that is as an exit code.

use std::fmt;

use softclose_fsm::{Audience, DistrustReason, FaultReason, PeerEnds, StateName, Status, Verdict, Watch};

use crate::exit;

/// What a drain came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing was cut.
    Clean(PeerEnds),
    /// Nothing was cut in the end.
    Reopened(PeerEnds),
    /// Nothing was cut here, but the pod left before somebody who asks was told.
    Untold(PeerEnds, Audience),
    /// Nothing was cut here, but nobody asked, so nobody was told.
    Unwatched(PeerEnds),
    /// Requests were in flight when the balancer was told.
    Cut {
        /// Who told it.
        by: &'static str,
        /// How many may have been cut.
        at_most: u64,
    },
    /// None were, but others came before it had noticed.
    Late {
        /// How many may have been cut.
        at_most: u64,
    },
    /// The count was not to be believed.
    Distrusted {
        /// Why.
        reason: &'static str,
        /// Requests in flight by Envoy's own counters when the balancer was told, if those said anything.
        opinion: Option<u64>,
        /// How many may have been cut since then, if that can be said.
        at_most: Option<u64>,
        /// Requests may have been cut before that, which no counter holds any more.
        cut_before: bool,
    },
    /// The gate's end was seen in Envoy's stats alone, or not at all.
    ByStats {
        /// Where it stood there at last.
        state: Option<StateName>,
        /// How many may have been cut, if that can be said.
        at_most: Option<u64>,
    },
    /// Fallback, and Envoy's counters read zero.
    FallbackClean,
    /// Fallback, and not that.
    FallbackUnknown {
        /// Why.
        reason: &'static str,
        /// How many may have been cut, if known.
        at_most: Option<u64>,
    },
    /// Nothing listens any more.
    EnvoyGone {
        /// Requests in flight when it last answered.
        last_seen: Option<u64>,
    },
    /// The grace period is about to end.
    BudgetSpent {
        /// Where the gate stood, if known.
        state: Option<StateName>,
        /// How many may have been cut, by a last look; none if that was not answered.
        at_most: Option<u64>,
        /// Requests in flight when it last answered.
        last_seen: Option<u64>,
    },
}

impl Outcome {
    /// What a finished drain came to by its last document. `peak` is the most that was seen in flight after the balancer was
    /// told; `reopened`, that somebody reopened the gate on the way.
    pub(crate) fn of(document: Option<&Status>, peak: u64, reopened: bool) -> Self {
        let Some((document, verdict)) = document.and_then(|document| Some((document, document.verdict.as_ref()?)))
        else {
            let reason = "the status document was not understood";
            return Self::Distrusted { reason, opinion: None, at_most: None, cut_before: true };
        };
        // A gate of another version keeps no account: then what was seen in passing has to do.
        let cut = document.cut_at_most;
        match verdict {
            Verdict::Clean if cut > Some(0) => Self::Late { at_most: cut.unwrap_or(0) },
            Verdict::Clean => Self::whole(document, reopened),
            Verdict::SecondOpinion { distrust } => {
                // What came after that zero was counted by the same count.
                let none_since = document.late.unwrap_or(0) == 0 && cut.unwrap_or(0) == 0;
                Self::distrusted(*distrust, Some(0), none_since.then_some(0))
            }
            // A zero that is not believed is no better when an operator acts on it.
            Verdict::Operator { active } => match document.distrust {
                Some(distrust) => Self::distrusted(distrust.reason, None, None),
                None if *active > 0 => Self::Cut { by: "close-lb", at_most: cut.unwrap_or(peak.max(*active)) },
                None if cut > Some(0) => Self::Late { at_most: cut.unwrap_or(0) },
                None => Self::whole(document, reopened),
            },
            // No end, so the exit is one.
            Verdict::HealthFirst { active } => Self::Cut { by: "the exit", at_most: document.active.max(*active) },
            Verdict::Fault { reason: FaultReason::Deadline, active } => {
                Self::Cut { by: "the deadline", at_most: cut.unwrap_or(peak.max(active.unwrap_or(0))) }
            }
            Verdict::Fault { reason: FaultReason::Distrust(distrust), active } => {
                Self::distrusted(*distrust, *active, active.map(|active| active.max(cut.unwrap_or(0))))
            }
        }
    }

    /// The same, where the gate lost its record on the way: what a clean end says is then only half of the story.
    pub(crate) fn after_a_lost_record(self) -> Self {
        match self {
            Self::Clean(_) | Self::Reopened(_) | Self::Untold(..) | Self::Unwatched(_) => {
                let reason = "the gate's record was lost in mid-drain";
                Self::Distrusted { reason, opinion: None, at_most: None, cut_before: true }
            }
            Self::Cut { .. }
            | Self::Late { .. }
            | Self::Distrusted { .. }
            | Self::ByStats { .. }
            | Self::FallbackClean
            | Self::FallbackUnknown { .. }
            | Self::EnvoyGone { .. }
            | Self::BudgetSpent { .. } => self,
        }
    }

    /// No request was cut here, as far as anybody can tell; was the balancer told?
    fn whole(document: &Status, reopened: bool) -> Self {
        let ended = document.peer_ends;
        match document.audience {
            Some(audience) if audience.is_empty() && document.plan.probers == Watch::Expected => Self::Unwatched(ended),
            Some(audience) if audience.untold > 0 || audience.unnamed => Self::Untold(ended, audience),
            // A gate of another version keeps no account of it.
            Some(_) | None if reopened => Self::Reopened(ended),
            Some(_) | None => Self::Clean(ended),
        }
    }

    fn distrusted(reason: DistrustReason, opinion: Option<u64>, at_most: Option<u64>) -> Self {
        Self::Distrusted { reason: reason.as_str(), opinion, at_most, cut_before: reason.may_have_cut() }
    }

    /// Its exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Clean(_) => exit::CLEAN,
            Self::Reopened(_) => exit::REOPENED,
            Self::Untold(..) => exit::UNTOLD,
            Self::Unwatched(_) => exit::UNWATCHED,
            Self::Cut { .. } | Self::Late { .. } => exit::CUT,
            Self::Distrusted { .. } | Self::ByStats { .. } => exit::DISTRUSTED,
            Self::FallbackClean => exit::FALLBACK_CLEAN,
            Self::FallbackUnknown { .. } => exit::FALLBACK_UNKNOWN,
            Self::EnvoyGone { .. } => exit::ENVOY_GONE,
            Self::BudgetSpent { .. } => exit::BUDGET_SPENT,
        }
    }

    /// Whether the gate itself says that nothing was cut and that the balancer knows: only then is the agent's own drain, the second
    /// net, taken away.
    pub(crate) fn is_clean(&self) -> bool {
        matches!(self, Self::Clean(_) | Self::Reopened(_))
    }

    /// How many may have been cut; none if nobody knows.
    pub(crate) fn cut_at_most(&self) -> Option<u64> {
        match self {
            Self::Clean(ended) | Self::Reopened(ended) | Self::Untold(ended, _) | Self::Unwatched(ended) => {
                Some(ended.perhaps_cut)
            }
            Self::FallbackClean => Some(0),
            Self::Cut { at_most, .. } | Self::Late { at_most } => Some(*at_most),
            Self::Distrusted { at_most, cut_before, .. } => at_most.filter(|_| !cut_before),
            // What was last seen is no bound: more may have come since.
            Self::EnvoyGone { .. } => None,
            Self::FallbackUnknown { at_most, .. }
            | Self::BudgetSpent { at_most, .. }
            | Self::ByStats { at_most, .. } => *at_most,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean(ended) => write!(f, "clean{}", Ended(*ended)),
            Self::Reopened(ended) => write!(f, "clean, but somebody reopened the gate in between{}", Ended(*ended)),
            Self::Untold(ended, audience) => {
                let all = audience.told.saturating_add(audience.untold);
                let unnamed = if audience.unnamed { ", and of those beyond the table" } else { "" };
                write!(f, "left before {} of {all} probers{unnamed} had been told", audience.untold)?;
                write!(f, ", and what their balancer still sends is lost{}", Ended(*ended))
            }
            Self::Unwatched(ended) => {
                write!(f, "nobody asked this pod for health, so no balancer was told that it left{}", Ended(*ended))
            }
            Self::Cut { by, .. } => write!(f, "{by} came with requests in flight"),
            Self::Late { .. } => {
                f.write_str("clean when the balancer was told, but requests came before it had noticed")
            }
            Self::Distrusted { reason, opinion, .. } => {
                let opinion = match opinion {
                    Some(0) => "Envoy's own counters read zero",
                    Some(_) => "Envoy's own counters did not read zero",
                    None => "no second opinion",
                };
                write!(f, "the count was not to be believed ({reason}; {opinion})")
            }
            Self::ByStats { state, .. } => {
                let state = state.map_or("not to be read", StateName::as_str);
                write!(
                    f,
                    "control is closed with Envoy's sockets; by Envoy's stats the gate is {state}, and no more is known"
                )
            }
            Self::FallbackClean => f.write_str("degraded, no softclose here; Envoy's own counters read zero"),
            Self::FallbackUnknown { reason, .. } => {
                write!(f, "degraded, no softclose here, not known to be clean ({reason})")
            }
            Self::EnvoyGone { last_seen } => write!(f, "Envoy is gone{}", LastSeen(*last_seen)),
            Self::BudgetSpent { state, last_seen, .. } => {
                let state = state.map_or("an unknown state", StateName::as_str);
                write!(f, "budget spent in {state}{}", LastSeen(*last_seen))
            }
        }
    }
}

/// Requests that may have been cut by the balancer, or left by their clients.
struct Ended(PeerEnds);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.perhaps_cut {
            0 => Ok(()),
            1 => f.write_str("; 1 request was ended by its client, or cut by the balancer"),
            count => write!(f, "; {count} requests were ended by their clients, or cut by the balancer"),
        }
    }
}

struct LastSeen(Option<u64>);

impl fmt::Display for LastSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |active| write!(f, " ({active} in flight when last seen)"))
    }
}

#[cfg(test)]
mod tests {
    use softclose_fsm::{
        Audience, Distrust, DistrustReason, FaultReason, Instant, PeerEnds, Plan, Preset, Reading, Record, RollCall,
        Status, Verdict, Watch,
    };

    use super::Outcome;

    fn outcome(verdict: Verdict, distrust: Option<DistrustReason>, peak: u64, reopened: bool) -> (u8, Option<u64>) {
        let now = Instant::from_micros(1);
        let reading = Reading {
            blind: false,
            admitted: 0,
            active: 0,
            roll_call: RollCall { answered: 1, expected: 1, newcomers: 0 },
        };
        let plan = Plan::preset(Preset::Haproxy);
        let mut document = Status::of(&Record::open(now), reading, now, &plan, softclose_fsm::LedgerKind::Gauge, 0);
        document.verdict = Some(verdict);
        document.distrust = distrust.map(|reason| Distrust { reason, since: now });
        let outcome = Outcome::of(Some(&document), peak, reopened);
        (outcome.code(), outcome.cut_at_most())
    }

    #[test]
    fn each_verdict_has_its_code_and_its_bound() {
        use DistrustReason::Ledger;
        let fault = |reason, active| Verdict::Fault { reason, active };
        assert_eq!(outcome(Verdict::Clean, None, 9, false), (0, Some(0)));
        assert_eq!(outcome(Verdict::Clean, None, 9, true), (15, Some(0)));
        assert_eq!(outcome(Verdict::Operator { active: 0 }, None, 0, false), (0, Some(0)));
        assert_eq!(outcome(Verdict::Operator { active: 0 }, None, 0, true), (15, Some(0)));
        assert_eq!(outcome(Verdict::Operator { active: 3 }, None, 0, true), (10, Some(3)));
        assert_eq!(outcome(Verdict::Operator { active: 0 }, Some(Ledger), 0, false), (11, None));
        assert_eq!(outcome(fault(FaultReason::Deadline, Some(4)), None, 0, false), (10, Some(4)));
        assert_eq!(outcome(fault(FaultReason::Deadline, Some(4)), None, 6, false), (10, Some(6)));
        assert_eq!(outcome(fault(FaultReason::Distrust(Ledger), Some(4)), Some(Ledger), 0, false), (11, Some(4)));
        assert_eq!(outcome(fault(FaultReason::Distrust(Ledger), None), Some(Ledger), 0, false), (11, None));
        assert_eq!(outcome(Verdict::SecondOpinion { distrust: Ledger }, Some(Ledger), 0, false), (11, Some(0)));
    }

    #[test]
    fn what_was_cut_before_the_counters_read_zero_is_in_none_of_them() {
        use DistrustReason::{Aborted, Cut, Trap, Unheard};
        for reason in [Cut, Trap, Unheard, Aborted] {
            assert_eq!(outcome(Verdict::SecondOpinion { distrust: reason }, Some(reason), 0, false), (11, None));
            let fault = Verdict::Fault { reason: FaultReason::Distrust(reason), active: Some(4) };
            assert_eq!(outcome(fault, None, 0, false), (11, None));
        }
    }

    fn late(verdict: Verdict, late: u64, cut_at_most: u64) -> (u8, Option<u64>) {
        let now = Instant::from_micros(1);
        let roll_call = RollCall { answered: 1, expected: 1, newcomers: 0 };
        let reading = Reading { blind: false, admitted: 0, active: 0, roll_call };
        let plan = Plan::preset(Preset::Haproxy);
        let document = Status::of(&Record::open(now), reading, now, &plan, softclose_fsm::LedgerKind::Gauge, 0);
        let (late, cut_at_most) = (Some(late), Some(cut_at_most));
        let outcome = Outcome::of(Some(&Status { verdict: Some(verdict), late, cut_at_most, ..document }), 9, false);
        (outcome.code(), outcome.cut_at_most())
    }

    #[test]
    fn the_gates_own_account_goes_before_what_was_seen_in_passing() {
        use DistrustReason::Ledger;
        let fault = |reason, active| Verdict::Fault { reason, active };
        assert_eq!(late(Verdict::Clean, 5, 0), (0, Some(0)), "they came and went before the balancer had noticed");
        assert_eq!(late(Verdict::Clean, 5, 2), (10, Some(2)));
        assert_eq!(late(Verdict::Operator { active: 0 }, 5, 2), (10, Some(2)));
        assert_eq!(late(Verdict::Operator { active: 4 }, 5, 2), (10, Some(2)));
        assert_eq!(late(fault(FaultReason::Deadline, Some(4)), 0, 1), (10, Some(1)));
        assert_eq!(late(fault(FaultReason::Deadline, Some(4)), 0, 0), (10, Some(0)));
        assert_eq!(late(fault(FaultReason::Distrust(Ledger), Some(4)), 0, 6), (11, Some(6)));
        assert_eq!(late(fault(FaultReason::Distrust(Ledger), None), 0, 6), (11, None));
        assert_eq!(late(Verdict::SecondOpinion { distrust: Ledger }, 0, 0), (11, Some(0)));
        assert_eq!(late(Verdict::SecondOpinion { distrust: Ledger }, 1, 0), (11, None));
        assert_eq!(late(Verdict::HealthFirst { active: 3 }, 0, 0).0, 10, "not an end");
    }

    #[test]
    fn without_a_document_or_a_verdict_nothing_is_called_clean() {
        assert_eq!(Outcome::of(None, 0, false).code(), 11);
    }

    /// How a clean end is called with that audience and those ends, by a plan that expects probers or not.
    fn watched(audience: Audience, probers: Watch, ended: PeerEnds, reopened: bool) -> (u8, Option<u64>, String) {
        let now = Instant::from_micros(1);
        let roll_call = RollCall { answered: 1, expected: 1, newcomers: 0 };
        let reading = Reading { blind: false, admitted: 0, active: 0, roll_call };
        let plan = Plan { probers, ..Plan::preset(Preset::Haproxy) };
        let document = Status::of(&Record::open(now), reading, now, &plan, softclose_fsm::LedgerKind::Gauge, 0);
        let (verdict, audience) = (Some(Verdict::Clean), Some(audience));
        let outcome = Outcome::of(Some(&Status { verdict, audience, peer_ends: ended, ..document }), 0, reopened);
        assert_eq!(outcome.is_clean(), [0, 15].contains(&outcome.code()), "{outcome}");
        (outcome.code(), outcome.cut_at_most(), outcome.to_string())
    }

    #[test]
    fn clean_is_said_only_where_every_prober_was_told_or_none_was_expected() {
        let (none, all) = (PeerEnds::default(), Audience { told: 2, ..Audience::default() });
        assert_eq!(watched(all, Watch::Expected, none, false), (0, Some(0), "clean".to_owned()));
        assert_eq!(watched(all, Watch::Expected, none, true).0, 15);
        let untold = Audience { untold: 1, ..all };
        for (reopened, probers) in [(false, Watch::Expected), (true, Watch::Expected), (false, Watch::None)] {
            let (code, at_most, said) = watched(untold, probers, none, reopened);
            assert_eq!((code, at_most), (18, Some(0)), "whoever asks is to be told, expected or not");
            assert!(said.starts_with("left before 1 of 3 probers had been told"), "{said}");
        }
        assert_eq!(watched(Audience { unnamed: true, ..all }, Watch::Expected, none, false).0, 18);
        assert_eq!(watched(Audience::default(), Watch::Expected, none, false).0, 19);
        assert_eq!(watched(Audience::default(), Watch::Expected, none, true).0, 19);
        assert_eq!(watched(Audience::default(), Watch::None, none, false).0, 0);
        let gone = Audience { gone: 1, ..Audience::default() };
        assert_eq!(watched(gone, Watch::Expected, none, false).0, 0, "nobody is there any more to be told");
    }

    #[test]
    fn a_request_that_its_peer_ended_is_named_and_bounds_what_was_cut() {
        let mut ended = PeerEnds::default();
        (ended.all, ended.perhaps_cut) = (3, 1);
        let (code, at_most, said) = watched(Audience { told: 1, ..Audience::default() }, Watch::Expected, ended, false);
        assert_eq!((code, at_most), (0, Some(1)));
        assert_eq!(said, "clean; 1 request was ended by its client, or cut by the balancer");
    }
}
