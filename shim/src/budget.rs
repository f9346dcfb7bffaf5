//! How the grace period is spent. One budget: its clock starts before the preStop hook does, and what comes after the hook
//! (SIGTERM, the agent's own end) lives on the rest of it.

use std::time::{Duration, Instant};

/// Kept back from the drain and the hold: for the agent's exit after the hook, and for answers that come late.
const RESERVE: Duration = Duration::from_secs(5);

/// The command ends by itself this long before kubelet would kill it, so that its last line is written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The grace period, running.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    start: Instant,
    grace: Duration,
}

/// How what is left is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// For the requests in flight: the drain's deadline, from its beginning.
    pub(crate) drain: Duration,
    /// For the balancer to notice: the longest hold.
    pub(crate) hold: Duration,
}

impl Budget {
    /// `grace` from `start` on.
    pub(crate) fn new(start: Instant, grace: Duration) -> Self {
        Self { start, grace }
    }

    /// When everything must have ended. Half of a grace period too short for last words.
    pub(crate) fn end(&self) -> Instant {
        self.start + self.grace.saturating_sub(LAST_WORDS).max(self.grace / 2)
    }

    /// From `now` to the end.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.end().saturating_duration_since(now)
    }

    /// Shares out what is left at `now`, wanting `hold_max` for the hold.
    ///
    /// drain = grace - hold_max - 5 s. Where that leaves the requests less than a quarter, the hold gives way: a balancer
    /// that was not waited for costs new connections, which it can retry; a request cut costs the request.
    pub(crate) fn split(&self, now: Instant, hold_max: Duration) -> Split {
        let left = (self.start + self.grace).saturating_duration_since(now);
        let shared = left - RESERVE.min(left / 2);
        let hold = hold_max.min(shared / 4 * 3);
        // A drain needs a deadline of at least the millisecond that it is counted in.
        Split { drain: (shared - hold).max(Duration::from_millis(1)), hold }
    }

    /// Shares out what is left at `now` where the requests and the hold have the same time: health first.
    pub(crate) fn side_by_side(&self, now: Instant, hold_max: Duration) -> Split {
        let Split { drain, .. } = self.split(now, Duration::ZERO);
        Split { drain, hold: hold_max.min(drain) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Budget, Split};

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn split(grace: Duration, passed: Duration, hold_max: Duration) -> Split {
        let start = Instant::now();
        Budget::new(start, grace).split(start + passed, hold_max)
    }

    #[test]
    fn the_drain_gets_grace_less_the_hold_and_five_seconds() {
        assert_eq!(split(seconds(60), Duration::ZERO, seconds(10)), Split { drain: seconds(45), hold: seconds(10) });
        assert_eq!(split(seconds(30), Duration::ZERO, seconds(10)), Split { drain: seconds(15), hold: seconds(10) });
    }

    #[test]
    fn health_first_both_have_grace_less_five_seconds() {
        let budget = Budget::new(Instant::now(), seconds(60));
        let at_once = |hold_max| budget.side_by_side(budget.start, hold_max);
        assert_eq!(at_once(seconds(10)), Split { drain: seconds(55), hold: seconds(10) });
        assert_eq!(at_once(seconds(240)), Split { drain: seconds(55), hold: seconds(55) });
    }

    #[test]
    fn what_has_passed_is_gone() {
        assert_eq!(split(seconds(60), seconds(7), seconds(10)), Split { drain: seconds(38), hold: seconds(10) });
    }

    #[test]
    fn a_short_grace_shrinks_the_hold_and_leaves_the_requests_a_quarter() {
        assert_eq!(split(seconds(13), Duration::ZERO, seconds(10)), Split { drain: seconds(2), hold: seconds(6) });
        assert_eq!(
            split(seconds(4), Duration::ZERO, seconds(10)),
            Split { drain: Duration::from_millis(500), hold: Duration::from_millis(1500) }
        );
    }

    #[test]
    fn nothing_left_is_a_deadline_at_once_and_no_panic() {
        assert_eq!(
            split(seconds(5), seconds(9), seconds(10)),
            Split { drain: Duration::from_millis(1), hold: Duration::ZERO }
        );
    }

    #[test]
    fn the_end_is_a_second_before_the_grace_period_ends() {
        let start = Instant::now();
        assert_eq!(Budget::new(start, seconds(60)).left(start), seconds(59));
        assert_eq!(Budget::new(start, seconds(1)).left(start), Duration::from_millis(500));
        assert_eq!(Budget::new(start, seconds(60)).left(start + seconds(99)), Duration::ZERO);
    }
}
