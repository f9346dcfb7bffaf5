use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::peer_ends::PeerEnds;
use crate::plan::{Deflection, Plan};
use crate::probers::{Audience, Probers};
use crate::state::{Closing, Draining, Open, Quest, State, StateName, Verdict};
use crate::time::Instant;

/// Everything that the workers of one process share about the gate. One of them at a time replaces it, by compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where the gate stands.
    pub state: State,
    /// Why the count is not to be believed, if so. In OPEN it changes no answer.
    pub distrust: Option<Distrust>,
    /// What lasts and is hidden by a `distrust` that ends with its drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting_distrust: Option<Distrust>,
    /// When Envoy's own drain was reported to have started. Envoy cannot undo it, so nothing clears this.
    pub envoy_drain: Option<Instant>,
    /// Drains begun since the process started; the number of the newest roll call.
    pub drains: u64,
    /// Changes that somebody who waits wants to hear of: every transition, the end of a fault's hold, the count losing or
    /// regaining belief.
    pub changes: u64,
    /// Who asks the balancer path, how often, and what it was told.
    pub probers: Probers,
    /// What happened, oldest first; the newest [`Record::EVENTS_MAX`].
    pub events: Vec<Event>,
    /// What came after the flip; none before it, and in a record of a module that kept no account of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aftermath: Option<Aftermath>,
    /// Requests of the newest drain that its peers ended.
    #[serde(default)]
    pub peer_ends: PeerEnds,
    /// What the probers had been told when the pod was free to leave; none before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<Audience>,
}

/// What came after the flip, which a balancer that cuts may have cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aftermath {
    /// Hard answers served on the balancer path, to whomever. No balancer has been served more than that, so none has marked this
    /// server DOWN before there were `fall` of them.
    pub hard: u64,
    /// What [`Reading::admitted`] was at the flip.
    pub admitted: u64,
    /// The most in flight since something could be cut, by a balancer that is what the plan says: since the `fall`-th hard answer,
    /// or since the pod may leave. None before. What was sent back to the balancer was never in flight, so one that is on its
    /// way back when the balancer cuts is not in here.
    pub peak: Option<u64>,
}

/// Why the count is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DistrustReason {
    /// Fewer VMs count than workers exist: a trapped VM, or a filter that is not attached.
    #[serde(rename = "roll call")]
    RollCall,
    /// The counting role's configuration was not understood; it counts with defaults.
    #[serde(rename = "config")]
    Config,
    /// The shared record did not decode.
    #[serde(rename = "record")]
    Record,
    /// Neither ledger counts: the gauge takes increments and reads zero, and shared data cannot be written.
    #[serde(rename = "ledger")]
    Ledger,
    /// A VM trapped and took part of the count with it.
    #[serde(rename = "trap")]
    Trap,
    /// The host itself cut a request in this drain (a changed listener's old connections are closed after its drain time), so
    /// that zero is no proof of anything.
    #[serde(rename = "cut")]
    Cut,
    /// A balancer that probed when this drain began was not heard for so long that it may have marked the server DOWN and cut
    /// what was in flight, which looks like clients that left.
    #[serde(rename = "unheard")]
    Unheard,
    /// While a soft answer was given, the last request in flight was not answered to its end: the balancer's side ended it. A
    /// balancer that takes the soft answer for a failure does that to all of them at once; so does, now and then, one client that
    /// goes away.
    #[serde(rename = "aborted")]
    Aborted,
}

/// Since when the count is not to be believed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distrust {
    /// Why.
    pub reason: DistrustReason,
    /// Since when.
    #[serde(rename = "since_us")]
    pub since: Instant,
}

/// What Envoy's own counters said, brought by the preStop command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opinion {
    /// Requests in flight.
    pub active: u64,
    /// When it was brought.
    #[serde(rename = "at_us")]
    pub at: Instant,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What.
    pub event: EventName,
    /// When.
    #[serde(rename = "at_us")]
    pub at: Instant,
}

/// What can happen; the first four and the balancer's two (mark-down, reset) are the six events that tell every story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventName {
    /// The balancer path turned 503.
    HealthFail,
    /// The readiness path turned 503.
    ReadinessFail,
    /// Envoy's own drain was reported to have started.
    EnvoyDrainStart,
    /// The last request in flight ended.
    ActiveZero,
    /// A drain began.
    Drain,
    /// The gate was opened again.
    Reopen,
    /// The count stopped being believed.
    Distrust,
    /// The count is believed again: what was missing was only late.
    Trust,
    /// The deadline came without a believed zero.
    Fault,
}

/// The two paths of the health listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// What the external balancer probes.
    Balancer,
    /// What Kubernetes may probe, for those who want to see the end there.
    Readiness,
}

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The state it speaks for, and the `x-softclose-state` header.
    pub state: StateName,
    /// The body, but for the end of its line.
    pub body: String,
}

/// A fresh reading of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Some count is kept where this host cannot read it: `active` is at least so many, and zero can be neither seen nor denied.
    pub blind: bool,
    /// Requests in flight over all workers.
    pub active: u64,
    /// Requests let in while a drain was under way or past, since the process started.
    pub admitted: u64,
    /// How far the newest roll call has come.
    pub roll_call: RollCall,
}

/// How many of the VMs that should count have answered a roll call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollCall {
    /// Counting VMs that answered.
    pub answered: u32,
    /// Counting VMs that there should be.
    pub expected: u32,
    /// Of those that answered, how many are younger than the drain: what their workers had in flight before is not counted.
    #[serde(default)]
    pub newcomers: u32,
}

impl Record {
    /// How many events are kept: three whole drains.
    pub const EVENTS_MAX: usize = 32;

    /// The record of a process that has not drained yet.
    pub fn open(now: Instant) -> Self {
        Self {
            state: State::Open(Open { since: now }),
            distrust: None,
            lasting_distrust: None,
            envoy_drain: None,
            drains: 0,
            changes: 0,
            probers: Probers::default(),
            events: Vec::new(),
            aftermath: None,
            peer_ends: PeerEnds::default(),
            audience: None,
        }
    }

    /// What stands in for a record that does not decode: OPEN, because nothing may flip by accident, and distrusted.
    pub fn undecodable(now: Instant) -> Self {
        Self { distrust: Some(Distrust { reason: DistrustReason::Record, since: now }), ..Self::open(now) }
    }

    /// What a probe of `path` is told.
    pub fn answer(&self, path: Path) -> Answer {
        let state = self.state.name();
        let soft = self.plan().filter(|_| path == Path::Balancer && state == StateName::Draining);
        let status = match (path, state) {
            (Path::Balancer, StateName::Draining) => soft.and_then(|plan| plan.soft_status).unwrap_or(200),
            (Path::Balancer, StateName::Open) => 200,
            (Path::Balancer, StateName::Closing | StateName::Closed | StateName::Fault) => 503,
            (Path::Readiness, StateName::Open | StateName::Draining | StateName::Closing | StateName::Fault) => 200,
            (Path::Readiness, StateName::Closed) => 503,
        };
        let body = soft.and_then(|plan| plan.soft_body.clone());
        Answer { status, state, body: body.unwrap_or_else(|| state.as_str().to_owned()) }
    }

    /// How a new request is sent back to the balancer; none: it is served.
    pub fn deflection(&self) -> Option<Deflection> {
        self.plan().and_then(|plan| plan.deflection(self.state.name()))
    }

    /// Whether a drain is under way that waits for zero: in DRAINING, and health first in CLOSING.
    pub fn waits_for_zero(&self) -> bool {
        self.quest().is_some()
    }

    /// Whether the balancer is being told softly: one that takes that for a failure cuts what is in flight, and zero looks the same.
    pub fn speaks_softly(&self) -> bool {
        match &self.state {
            State::Draining(draining) => draining.plan.soft_status.is_some(),
            State::Open(_) | State::Closing(_) | State::Closed(_) | State::Fault(_) => false,
        }
    }

    /// Since when every reading was a believed zero, where one is waited for.
    pub fn zero_since(&self) -> Option<Instant> {
        self.quest().and_then(|quest| quest.zero_since)
    }

    /// Requests let in since the flip by `reading`; none before the flip, or if nobody kept account of it.
    pub fn late(&self, reading: &Reading) -> Option<u64> {
        self.aftermath.map(|aftermath| reading.admitted.saturating_sub(aftermath.admitted))
    }

    /// How many requests may have been cut so far, at most; none while that is open: before the balancer can have noticed, and if
    /// nobody kept account of it.
    pub fn cut_at_most(&self) -> Option<u64> {
        self.aftermath.and_then(|aftermath| aftermath.peak)
    }

    /// The zero that is waited for.
    pub(crate) fn quest(&self) -> Option<Quest> {
        match &self.state {
            State::Draining(Draining { deadline, zero_since, opinion, .. }) => {
                Some(Quest { deadline: *deadline, zero_since: *zero_since, opinion: *opinion })
            }
            State::Closing(closing) => closing.quest,
            State::Open(_) | State::Closed(_) | State::Fault(_) => None,
        }
    }

    /// Replaces the zero that is waited for, where one is.
    pub(crate) fn set_quest(&mut self, quest: Quest) {
        match &mut self.state {
            State::Draining(draining) => {
                draining.zero_since = quest.zero_since;
                draining.opinion = quest.opinion;
            }
            State::Closing(Closing { quest: old @ Some(_), .. }) => *old = Some(quest),
            State::Open(_) | State::Closing(_) | State::Closed(_) | State::Fault(_) => {}
        }
    }

    /// Whether the pod may leave: the balancer was given its time.
    pub fn may_exit(&self) -> bool {
        match &self.state {
            State::Open(_) | State::Draining(_) | State::Closing(_) => false,
            State::Closed(_) => true,
            State::Fault(fault) => fault.may_exit,
        }
    }

    /// On what ground the balancer was told 503; none before that.
    pub fn verdict(&self) -> Option<Verdict> {
        match &self.state {
            State::Open(_) | State::Draining(_) => None,
            State::Closing(closing) => Some(closing.verdict.clone()),
            State::Closed(closed) => Some(closed.verdict.clone()),
            State::Fault(fault) => Some(Verdict::Fault { reason: fault.reason, active: fault.active }),
        }
    }

    /// The plan of the drain under way or just ended.
    pub fn plan(&self) -> Option<&Plan> {
        match &self.state {
            State::Open(_) => None,
            State::Draining(draining) => Some(&draining.plan),
            State::Closing(closing) => Some(&closing.plan),
            State::Closed(closed) => Some(&closed.plan),
            State::Fault(fault) => Some(&fault.plan),
        }
    }

    pub(crate) fn note(&mut self, event: EventName, at: Instant) {
        if self.events.len() >= Self::EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(Event { event, at });
    }
}

impl DistrustReason {
    /// As in logs and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RollCall => "roll call",
            Self::Config => "config",
            Self::Record => "record",
            Self::Ledger => "ledger",
            Self::Trap => "trap",
            Self::Cut => "cut",
            Self::Unheard => "unheard",
            Self::Aborted => "aborted",
        }
    }

    /// Whether it speaks of one drain alone, and ends with it.
    pub(crate) fn ends_with_the_drain(self) -> bool {
        match self {
            Self::RollCall | Self::Cut | Self::Unheard | Self::Aborted => true,
            Self::Config | Self::Record | Self::Ledger | Self::Trap => false,
        }
    }

    /// Whether requests may have been cut before any counter read zero, so that no zero says how many.
    pub fn may_have_cut(self) -> bool {
        match self {
            // Where the manifest says failure_policy: FAIL_OPEN, Envoy answers what a trapped VM held 503, or resets it.
            Self::Cut | Self::Unheard | Self::Aborted | Self::Trap => true,
            Self::RollCall | Self::Config | Self::Record | Self::Ledger => false,
        }
    }

    /// What weighs more is not hidden behind what weighs less: a missing answer may only be late, a count that is wrong is not as
    /// bad as requests that were cut, and of those a trap lasts.
    pub(crate) fn weight(self) -> u8 {
        match self {
            Self::RollCall => 0,
            Self::Config | Self::Record | Self::Ledger => 1,
            Self::Cut | Self::Unheard | Self::Aborted => 2,
            Self::Trap => 3,
        }
    }
}

impl RollCall {
    /// Whether everybody who counts has heard of the drain. Nobody at all is not everybody.
    pub fn complete(&self) -> bool {
        self.expected > 0 && self.answered >= self.expected
    }

    /// Whether everybody has counted since before the drain, so that a missing answer was only a late one.
    pub fn complete_without_newcomers(&self) -> bool {
        self.complete() && self.newcomers == 0
    }
}

#[cfg(test)]
mod tests;
