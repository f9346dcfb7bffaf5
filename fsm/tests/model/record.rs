//! The shared record without stamps: what has passed and what has not is all that a decision looks at.

use std::time::Duration;

use softclose_fsm::{
    CONFIRM, Closed, Closing, Distrust, DistrustReason, Draining, Fault, FaultReason, Instant, Open, Plan, Preset,
    ROLL_CALL_WAIT, Record, State, StateName, Verdict,
};

/// The present, in every step: only distances from it mean anything.
pub(crate) const NOW: Instant = Instant::from_micros(1_000_000_000);

/// A [`Record`] in a finite space. Events, probers and what comes after the flip are left out; nobody probes, so a hold lasts its longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Rec {
    pub(crate) phase: Phase,
    pub(crate) distrust: Option<Why>,
    pub(crate) drains: u8,
    pub(crate) changes: u8,
}

/// A state and which of its instants have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    Draining { roll_call_due: bool, deadline: Deadline, zero: Zero },
    Closing { hold_over: bool, ground: Ground },
    Closed { ground: Ground },
    Fault { hold_over: bool, may_exit: bool, reason: Reason },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Deadline {
    None,
    Ahead,
    Passed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Zero {
    Not,
    Begun,
    Settled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ground {
    Clean,
    Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reason {
    Deadline,
    Distrust(Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Why {
    RollCall,
    Trap,
}

/// What may pass while nobody does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Moment {
    Settled,
    RollCall,
    Deadline,
    Hold,
}

impl Moment {
    pub(crate) const ALL: [Self; 4] = [Self::Settled, Self::RollCall, Self::Deadline, Self::Hold];

    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A drain by the plan of the model: settle is as short as can be, so that the confirmation decides.
pub(crate) fn plan(deadline: bool) -> Plan {
    let deadline = deadline.then_some(Duration::from_secs(3_600));
    Plan { settle: Duration::ZERO, deadline, ..Plan::preset(Preset::Haproxy) }
}

impl Rec {
    pub(crate) const OPEN: Self = Self { phase: Phase::Open, distrust: None, drains: 0, changes: 0 };

    pub(crate) fn name(&self) -> StateName {
        match self.phase {
            Phase::Open => StateName::Open,
            Phase::Draining { .. } => StateName::Draining,
            Phase::Closing { .. } => StateName::Closing,
            Phase::Closed { .. } => StateName::Closed,
            Phase::Fault { .. } => StateName::Fault,
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.name() == StateName::Draining
    }

    pub(crate) fn deadline_passed(&self) -> bool {
        matches!(self.phase, Phase::Draining { deadline: Deadline::Passed, .. })
    }

    /// What is still to pass, as bits of [`Moment`]: what [`Record::deadline`] takes the earliest of.
    pub(crate) fn ahead(&self) -> u8 {
        Moment::ALL.into_iter().filter(|moment| self.passed(*moment).is_some()).map(Moment::bit).sum()
    }

    /// The record after `moment` has passed; none if that is not ahead.
    pub(crate) fn passed(&self, moment: Moment) -> Option<Self> {
        let mut next = *self;
        match (moment, &mut next.phase) {
            (Moment::Settled, Phase::Draining { zero: zero @ Zero::Begun, .. }) => *zero = Zero::Settled,
            (Moment::RollCall, Phase::Draining { roll_call_due: due @ false, .. }) => *due = true,
            (Moment::Deadline, Phase::Draining { deadline: deadline @ Deadline::Ahead, .. }) => {
                *deadline = Deadline::Passed;
            }
            (Moment::Hold, Phase::Closing { hold_over: over @ false, .. })
            | (Moment::Hold, Phase::Fault { hold_over: over @ false, may_exit: false, .. }) => *over = true,
            (Moment::Settled | Moment::RollCall | Moment::Deadline | Moment::Hold, _) => return None,
        }
        Some(next)
    }

    /// A record of which exactly the same has passed at [`NOW`].
    pub(crate) fn concrete(&self) -> Record {
        let (hour, hold) = (Duration::from_secs(3_600), plan(false).hold_max);
        let ago = |passed: bool, span: Duration| if passed { before(span) } else { NOW };
        let state = match self.phase {
            Phase::Open => State::Open(Open { since: NOW }),
            Phase::Draining { roll_call_due, deadline, zero } => State::Draining(Draining {
                since: ago(roll_call_due, ROLL_CALL_WAIT),
                plan: plan(deadline != Deadline::None),
                deadline: match deadline {
                    Deadline::None => None,
                    Deadline::Ahead => Some(NOW.after(hour)),
                    Deadline::Passed => Some(NOW),
                },
                zero_since: match zero {
                    Zero::Not => None,
                    Zero::Begun => Some(NOW),
                    Zero::Settled => Some(before(CONFIRM)),
                },
                opinion: None,
            }),
            Phase::Closing { hold_over, ground } => {
                let verdict = ground.verdict();
                State::Closing(Closing { since: ago(hold_over, hold), plan: plan(false), verdict, quest: None })
            }
            Phase::Closed { ground } => {
                State::Closed(Closed { since: NOW, plan: plan(false), verdict: ground.verdict() })
            }
            Phase::Fault { hold_over, may_exit, reason } => State::Fault(Fault {
                since: ago(hold_over, hold),
                plan: plan(false),
                reason: match reason {
                    Reason::Deadline => FaultReason::Deadline,
                    Reason::Distrust(why) => FaultReason::Distrust(why.reason()),
                },
                active: None,
                may_exit,
                told: None,
            }),
        };
        let distrust = self.distrust.map(|why| Distrust { reason: why.reason(), since: NOW });
        let (drains, changes) = (u64::from(self.drains), u64::from(self.changes));
        Record { state, distrust, drains, changes, ..Record::open(NOW) }
    }

    /// What is left of a record when only what has passed at [`NOW`] is kept.
    pub(crate) fn of(record: &Record) -> Self {
        let since = record.state.since();
        let hold_over = since.after(plan(false).hold_max) <= NOW;
        let phase = match &record.state {
            State::Open(_) => Phase::Open,
            State::Draining(draining) => Phase::Draining {
                roll_call_due: since.after(ROLL_CALL_WAIT) <= NOW,
                deadline: match draining.deadline {
                    None => Deadline::None,
                    Some(at) if at <= NOW => Deadline::Passed,
                    Some(_) => Deadline::Ahead,
                },
                zero: match draining.zero_since {
                    None => Zero::Not,
                    Some(zero) if zero.after(CONFIRM) <= NOW => Zero::Settled,
                    Some(_) => Zero::Begun,
                },
            },
            State::Closing(closing) => Phase::Closing { hold_over, ground: Ground::of(&closing.verdict) },
            State::Closed(closed) => Phase::Closed { ground: Ground::of(&closed.verdict) },
            State::Fault(fault) => Phase::Fault {
                hold_over,
                may_exit: fault.may_exit,
                reason: match fault.reason {
                    FaultReason::Deadline => Reason::Deadline,
                    FaultReason::Distrust(reason) => Reason::Distrust(Why::of(reason)),
                },
            },
        };
        let distrust = record.distrust.map(|distrust| Why::of(distrust.reason));
        let small = |number: u64| u8::try_from(number).unwrap();
        Self { phase, distrust, drains: small(record.drains), changes: small(record.changes) }
    }
}

impl Ground {
    fn verdict(self) -> Verdict {
        match self {
            Self::Clean => Verdict::Clean,
            Self::Operator => Verdict::Operator { active: 0 },
        }
    }

    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Clean => Self::Clean,
            Verdict::Operator { .. } => Self::Operator,
            Verdict::SecondOpinion { .. } | Verdict::HealthFirst { .. } | Verdict::Fault { .. } => {
                panic!("nobody brings an opinion, plans health first or closes a fault")
            }
        }
    }
}

impl Why {
    fn reason(self) -> DistrustReason {
        match self {
            Self::RollCall => DistrustReason::RollCall,
            Self::Trap => DistrustReason::Trap,
        }
    }

    fn of(reason: DistrustReason) -> Self {
        [Self::RollCall, Self::Trap].into_iter().find(|why| why.reason() == reason).unwrap()
    }
}

fn before(span: Duration) -> Instant {
    Instant::from_micros(NOW.as_micros() - u64::try_from(span.as_micros()).unwrap())
}
