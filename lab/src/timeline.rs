//! The six events: typed, on one clock, each with the interval in which it must have happened.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// One monotonic clock for a run; zero is the moment when watching begins.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the run's zero.
    pub(crate) fn now(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    /// Where a moment lies on this clock; before zero it is negative.
    pub(crate) fn of(&self, moment: Instant) -> f64 {
        match moment.checked_duration_since(self.0) {
            Some(after) => after.as_secs_f64(),
            None => -self.0.duration_since(moment).as_secs_f64(),
        }
    }

    /// The instant `seconds` after zero.
    pub(crate) fn at(&self, seconds: f64) -> Instant {
        self.0 + std::time::Duration::from_secs_f64(seconds.max(0.0))
    }
}

/// What tells the story of a pod's end. The numbers are the project's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    HealthFail,
    ReadinessFail,
    EnvoyDrainStart,
    ActiveZero,
    LbDown,
    Rst,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::HealthFail, Self::ReadinessFail, Self::EnvoyDrainStart, Self::ActiveZero, Self::LbDown, Self::Rst];

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::HealthFail => 1,
            Self::ReadinessFail => 2,
            Self::EnvoyDrainStart => 3,
            Self::ActiveZero => 4,
            Self::LbDown => 5,
            Self::Rst => 6,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HealthFail => "health_fail",
            Self::ReadinessFail => "readiness_fail",
            Self::EnvoyDrainStart => "envoy_drain_start",
            Self::ActiveZero => "active_zero",
            Self::LbDown => "lb_down",
            Self::Rst => "rst",
        }
    }

    /// What the event means to a reader.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::HealthFail => "the balancer's health path fails",
            Self::ReadinessFail => "the readiness path fails",
            Self::EnvoyDrainStart => "Envoy's drain begins",
            Self::ActiveZero => "no request in flight",
            Self::LbDown => "the balancer marks the gateway DOWN",
            Self::Rst => "a waiting request is cut",
        }
    }

    /// Among events that the samples cannot tell apart: a cause before what it brings about.
    fn rank(self) -> u8 {
        match self {
            Self::EnvoyDrainStart => 0,
            Self::LbDown => 1,
            Self::Rst => 2,
            Self::ActiveZero => 3,
            Self::HealthFail => 4,
            Self::ReadinessFail => 5,
        }
    }
}

/// One event. It happened after `after_s` (the last look that did not show it began then) and not later than `at_s`
/// (the first look that showed it was over).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) number: u8,
    pub(crate) event: Kind,
    pub(crate) after_s: f64,
    pub(crate) at_s: f64,
    /// Where it was seen.
    pub(crate) source: String,
    /// What was seen.
    pub(crate) detail: String,
}

impl Event {
    pub(crate) fn new(event: Kind, after_s: f64, at_s: f64, source: &str, detail: &str) -> Self {
        Self { number: event.number(), event, after_s, at_s, source: source.to_owned(), detail: detail.to_owned() }
    }

    /// Whether this event certainly came before the other.
    pub(crate) fn before(&self, other: &Self) -> bool {
        self.at_s < other.after_s
    }
}

/// Puts events into order; among those that the samples cannot tell apart a cause comes before what it brings about.
pub(crate) fn sort(events: &mut Vec<Event>) {
    *events = groups(std::mem::take(events)).into_iter().flatten().collect();
}

/// The event of a kind, if it was seen.
pub(crate) fn find(events: &[Event], kind: Kind) -> Option<&Event> {
    events.iter().find(|event| event.event == kind)
}

/// The order as text, `3 4 1 5 2`; `=` joins events that the samples cannot tell apart.
pub(crate) fn order(events: &[Event]) -> String {
    let text = |group: Vec<Event>| group.iter().map(|event| event.number.to_string()).collect::<Vec<_>>().join("=");
    groups(events.to_vec()).into_iter().map(text).collect::<Vec<_>>().join(" ")
}

fn groups(mut events: Vec<Event>) -> Vec<Vec<Event>> {
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let mut groups: Vec<Vec<Event>> = Vec::new();
    for event in events {
        match groups.last_mut() {
            Some(group) if group.iter().any(|earlier| !earlier.before(&event)) => group.push(event),
            Some(_) | None => groups.push(vec![event]),
        }
    }
    for group in &mut groups {
        group.sort_by_key(|event| event.event.rank());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, after: f64, at: f64) -> Event {
        Event::new(kind, after, at, "test", "")
    }

    #[test]
    fn events_are_ordered_by_when_they_were_seen() {
        let events = [
            event(Kind::HealthFail, 16.0, 16.02),
            event(Kind::EnvoyDrainStart, 2.0, 2.02),
            event(Kind::ReadinessFail, 18.0, 18.02),
            event(Kind::ActiveZero, 15.0, 15.02),
            event(Kind::LbDown, 17.0, 17.02),
        ];
        assert_eq!(order(&events), "3 4 1 5 2");
    }

    #[test]
    fn what_the_samples_cannot_tell_apart_is_joined_with_the_cause_first() {
        let events = [
            event(Kind::ActiveZero, 3.97, 3.99),
            event(Kind::HealthFail, 2.0, 2.02),
            event(Kind::LbDown, 3.98, 4.0),
            event(Kind::Rst, 3.985, 3.995),
        ];
        assert_eq!(order(&events), "1 5=6=4");
    }

    #[test]
    fn one_event_is_before_another_only_when_their_intervals_are_apart() {
        let zero = event(Kind::ActiveZero, 15.0, 15.02);
        assert!(zero.before(&event(Kind::HealthFail, 15.03, 15.05)));
        assert!(!zero.before(&event(Kind::HealthFail, 15.01, 15.05)));
    }
}
