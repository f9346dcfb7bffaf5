//! The wall clock, on which other programs stamp their logs, and the run's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};

use crate::timeline::Clock;

/// How far the two clocks may come apart within a run. A step of the wall clock (an NTP correction, a suspended machine) is
/// far more, and would put foreign stamps at the wrong moment.
const APART_MAX_S: f64 = 0.005;
/// A reading that is interrupted is useless; of so many, the quickest is taken.
const READINGS: u32 = 9;

/// Both clocks, read at the same moment.
#[derive(Clone, Copy)]
pub(crate) struct Wall {
    clock: Clock,
    /// What the wall clock showed at the run's zero, in seconds since 1970.
    zero_s: f64,
}

impl Wall {
    /// To be read when the run begins.
    pub(crate) fn read(clock: Clock) -> Self {
        let readings = (0..READINGS).map(|_reading| {
            let before_s = clock.now();
            let wall_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let after_s = clock.now();
            (after_s - before_s, wall_s - f64::midpoint(before_s, after_s))
        });
        let quickest = readings.min_by(|a, b| a.0.total_cmp(&b.0));
        Self { clock, zero_s: quickest.map_or(0.0, |reading| reading.1) }
    }

    /// Where a stamp of the wall clock, in seconds since 1970, lies on the run's clock.
    pub(crate) fn on_clock(&self, wall_s: f64) -> f64 {
        wall_s - self.zero_s
    }

    /// To be asked when the run is over: an error if the wall clock did not go with the run's.
    pub(crate) fn held(&self) -> Result<()> {
        let apart_s = Self::read(self.clock).zero_s - self.zero_s;
        let (apart_ms, bound_ms) = (apart_s * 1000.0, APART_MAX_S * 1000.0);
        ensure!(
            apart_s.abs() <= APART_MAX_S,
            "the wall clock moved by {apart_ms:.1} ms against the run's clock, at most {bound_ms:.0} ms is allowed: \
             stamps of logs and captures cannot be placed"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_the_wall_clock_comes_to_lie_where_the_runs_clock_was() {
        let clock = Clock::start();
        let wall = Wall::read(clock);
        let stamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((wall.on_clock(stamp) - clock.now()).abs() < 0.05);
        wall.held().unwrap();
    }

    #[test]
    fn a_wall_clock_that_was_set_during_the_run_is_noticed() {
        let wall = Wall::read(Clock::start());
        let set = Wall { zero_s: wall.zero_s - 1.0, ..wall };
        assert!(set.held().unwrap_err().to_string().contains("moved by 1000"));
    }
}
