//! Looking at a running system from outside: one value, sampled at a steady pace, kept as its changes.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use crate::http::AbortOnDrop;
use crate::timeline::Clock;

/// A value that became another. It changed after `after_s` and not later than `at_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) after_s: f64,
    pub(crate) at_s: f64,
    pub(crate) value: String,
}

/// All that a watch has seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Where the value comes from.
    pub(crate) source: String,
    /// The pace of looking.
    pub(crate) period_ms: u64,
    pub(crate) samples: u64,
    /// The longest time between the beginnings of two looks.
    pub(crate) longest_gap_ms: f64,
    pub(crate) changes: Vec<Change>,
    /// When the last look was over.
    pub(crate) last_s: f64,
}

impl Series {
    /// The first change at or after `from_s` whose value satisfies `wanted`.
    pub(crate) fn first(&self, from_s: f64, wanted: impl Fn(&str) -> bool) -> Option<&Change> {
        self.changes.iter().find(|change| change.at_s >= from_s && wanted(&change.value))
    }

    /// The value that the last look before `at_s` showed.
    pub(crate) fn value_at(&self, at_s: f64) -> Option<&str> {
        self.changes.iter().rev().find(|change| change.at_s <= at_s).map(|change| change.value.as_str())
    }
}

/// A running watch; it ends when dropped.
pub(crate) struct Watch {
    series: Arc<Mutex<Series>>,
    _task: AbortOnDrop<()>,
}

impl Watch {
    /// Calls `look` every `period` and keeps each change of its value; `tell` hears of each change as it is seen.
    pub(crate) fn start<F>(
        source: &str,
        period: Duration,
        clock: Clock,
        mut look: impl FnMut() -> F + Send + 'static,
        mut tell: impl FnMut(&Change) + Send + 'static,
    ) -> Self
    where
        F: Future<Output = String> + Send,
    {
        let period_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let series = Series { source: source.to_owned(), period_ms, ..Series::default() };
        let series = Arc::new(Mutex::new(series));
        let shared = Arc::clone(&series);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut previous = clock.now();
            loop {
                ticks.tick().await;
                let began = clock.now();
                let value = look().await;
                let ended = clock.now();
                let mut series = lock(&shared);
                series.samples += 1;
                series.longest_gap_ms = series.longest_gap_ms.max((began - previous) * 1000.0);
                series.last_s = ended;
                if series.changes.last().is_none_or(|last| last.value != value) {
                    let change = Change { after_s: previous, at_s: ended, value };
                    tell(&change);
                    series.changes.push(change);
                }
                previous = began;
            }
        });
        Self { series, _task: AbortOnDrop(task) }
    }

    /// What has been seen so far.
    pub(crate) fn series(&self) -> Series {
        lock(&self.series).clone()
    }
}

/// A lock whose holder panicked still guards good data: every holder here only appends.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_holds_from_the_look_that_showed_it_until_the_next_change() {
        let change = |after_s, at_s, value: &str| Change { after_s, at_s, value: value.to_owned() };
        let series = Series { changes: vec![change(0.0, 0.1, "2"), change(5.0, 5.1, "0")], ..Series::default() };
        assert_eq!(series.value_at(5.05), Some("2"));
        assert_eq!(series.value_at(5.1), Some("0"));
        assert_eq!(series.first(1.0, |value| value == "0").map(|change| change.after_s), Some(5.0));
    }
}
