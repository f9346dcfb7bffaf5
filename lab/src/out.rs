//! Folders for evidence.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::Place;
use crate::topology;

impl Place {
    /// The folder of this invocation, made if need be.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        let folder = match &self.out {
            Some(folder) => folder.clone(),
            None => topology::root()?.join("lab-runs").join(stamp(SystemTime::now())),
        };
        // Foreign programs get paths in it, whatever folder they run in.
        let folder = std::path::absolute(folder)?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }
}

/// `20261129T175310Z`: sorts by time.
fn stamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days to date by Howard Hinnant's `civil_from_days`, for dates after 1970.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_are_dates_in_utc() {
        assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(951_782_400)), "20000229T000000Z");
        assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(1_795_975_990)), "20261129T181310Z");
    }
}
