//! How one listener has been answering. Patience differs: a refused connection is a fact, silence may be a busy moment.

use std::time::{Duration, Instant};

/// A way not to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// Nothing listens.
    Refused,
    /// Something listens that is not what should.
    Foreign,
    /// Nothing was said, or not all of it.
    Silent,
}

/// Failures of one listener since it last answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    any: Option<Run>,
    missing: Option<Run>,
    refused: Option<Run>,
    last: Option<Absence>,
    /// The last failure is of another kind than the one before.
    changed: bool,
}

/// Failures of one kind in a row.
#[derive(Clone, Copy, Debug)]
struct Run {
    since: Instant,
    tries: u32,
}

/// Envoy reloads a trapped filter after about a second, and a listener that is replaced is back sooner.
const LONG: Duration = Duration::from_secs(3);
const LONG_TRIES: u32 = 5;

/// A configuration push may hold Envoy's main thread, and a stopped process everything, for seconds.
const SILENT_LONG: Duration = Duration::from_secs(10);
const SILENT_TRIES: u32 = 3;

/// Back-off between tries: doubled from the first to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(1);

impl Link {
    /// It answered.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// It did not.
    pub(super) fn failed(&mut self, now: Instant, absence: Absence) {
        self.changed = self.last != Some(absence);
        self.last = Some(absence);
        let longer = |run: Option<Run>| {
            let run = run.unwrap_or(Run { since: now, tries: 0 });
            Some(Run { tries: run.tries.saturating_add(1), ..run })
        };
        self.any = longer(self.any);
        self.missing = if absence == Absence::Silent { None } else { longer(self.missing) };
        self.refused = if absence == Absence::Refused { longer(self.refused) } else { None };
    }

    /// Nothing listened, again and again.
    pub(super) fn refused_for_long(&self, now: Instant) -> bool {
        lasted(self.refused, now, LONG, LONG_TRIES)
    }

    /// Nothing listened, and that was not once or twice.
    pub(super) fn refused_repeatedly(&self) -> bool {
        self.refused.is_some_and(|run| run.tries >= 3)
    }

    /// Nothing listened, or something else did, again and again.
    pub(super) fn missing_for_long(&self, now: Instant) -> bool {
        lasted(self.missing, now, LONG, LONG_TRIES)
    }

    /// There was no answer, again and again, for whatever reason.
    pub(super) fn silent_for_long(&self, now: Instant) -> bool {
        lasted(self.any, now, SILENT_LONG, SILENT_TRIES)
    }

    /// Whether the last failure is worth a line: the first one, and any of another kind.
    pub(super) fn news(&self) -> bool {
        self.changed
    }

    /// Failures in a row.
    pub(super) fn tries(&self) -> u32 {
        self.any.map_or(0, |run| run.tries)
    }

    /// How long to wait before the next try.
    pub(super) fn pause(&self) -> Duration {
        let doublings = self.tries().saturating_sub(1).min(10);
        PAUSE_FIRST.saturating_mul(1 << doublings).min(PAUSE_LAST)
    }
}

fn lasted(run: Option<Run>, now: Instant, long: Duration, tries: u32) -> bool {
    run.is_some_and(|run| run.tries >= tries && now.saturating_duration_since(run.since) >= long)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Absence, Link};

    /// A link that failed so often in a row, 800 ms apart, and the time of the last.
    fn failed(start: Instant, absences: &[Absence]) -> (Link, Instant) {
        let mut link = Link::default();
        let mut now = start;
        for (nth, absence) in (0..).zip(absences) {
            now = start + Duration::from_millis(800) * nth;
            link.failed(now, *absence);
        }
        (link, now)
    }

    #[test]
    fn refused_again_and_again_is_a_fact_after_three_seconds_and_five_tries() {
        let (link, now) = failed(Instant::now(), &[Absence::Refused; 5]);
        assert!(link.refused_for_long(now) && link.missing_for_long(now));
        let (link, now) = failed(Instant::now(), &[Absence::Refused; 4]);
        assert!(!link.refused_for_long(now + Duration::from_secs(60)));
    }

    #[test]
    fn a_silence_in_between_starts_the_count_again() {
        use Absence::{Refused, Silent};
        let (link, now) = failed(Instant::now(), &[Refused, Refused, Refused, Silent, Refused, Refused]);
        assert!(!link.refused_for_long(now) && !link.missing_for_long(now));
    }

    #[test]
    fn something_foreign_is_missing_but_not_refused() {
        let (link, now) = failed(Instant::now(), &[Absence::Foreign; 5]);
        assert!(link.missing_for_long(now) && !link.refused_for_long(now));
    }

    #[test]
    fn silence_is_borne_longer() {
        let (link, now) = failed(Instant::now(), &[Absence::Silent; 5]);
        assert!(!link.missing_for_long(now) && !link.silent_for_long(now));
        assert!(link.silent_for_long(now + Duration::from_secs(7)));
    }

    #[test]
    fn an_answer_forgets_everything_and_the_pause_grows_to_a_second() {
        let (mut link, now) = failed(Instant::now(), &[Absence::Refused; 9]);
        assert_eq!(link.pause(), Duration::from_secs(1));
        link.answered();
        link.failed(now, Absence::Refused);
        assert_eq!(link.pause(), Duration::from_millis(100));
        assert!(!link.refused_for_long(now + Duration::from_secs(60)));
    }
}
