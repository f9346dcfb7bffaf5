//! What is asked of Envoy's admin and of Istio's agent.

use std::fmt;
use std::time::Duration;

use crate::address::Address;
use crate::counters::{Counters, GateStats};
use crate::http::{Failure, exchange, stream};

/// Envoy's admin listener.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    /// Where it is.
    pub(crate) address: Address,
}

/// Why a call of admin did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminError {
    /// No answer: nothing is known.
    Failed(Failure),
    /// This Envoy does not do it, and will not when asked again.
    Unsupported(u16),
    /// Not at the moment.
    Busy(u16),
}

/// How long a call of admin may take. Admin runs on Envoy's main thread, which a configuration push may hold for a while.
const PATIENCE: Duration = Duration::from_secs(2);

/// 100,000 clusters with names of 100 bytes.
const STATS_MAX: usize = 16 * 1024 * 1024;

impl Admin {
    /// Starts Envoy's drain: responses tell clients to go elsewhere, every listener stays open. Asked again it answers the same.
    ///
    /// Only this form: without `skip_exit` Envoy closes every listener after `--drain-time-s`, health included, and without
    /// `graceful` at once.
    ///
    /// # Errors
    /// It did not happen, or is not known to have happened.
    pub(crate) fn drain(&self, left: Duration) -> Result<(), AdminError> {
        self.post("/drain_listeners?graceful&skip_exit", left)
    }

    /// Closes every listening socket now; requests in flight go on. The balancer sees connections refused.
    ///
    /// # Errors
    /// It did not happen, or is not known to have happened.
    pub(crate) fn close_listeners(&self, left: Duration) -> Result<(), AdminError> {
        self.post("/drain_listeners", left)
    }

    fn post(&self, target: &str, left: Duration) -> Result<(), AdminError> {
        let response = exchange(&self.address, "POST", target, PATIENCE.min(left)).map_err(AdminError::Failed)?;
        match response.head.status {
            200..300 => Ok(()),
            status @ 400..500 => Err(AdminError::Unsupported(status)),
            status => Err(AdminError::Busy(status)),
        }
    }

    /// Envoy's counters of requests in flight.
    ///
    /// # Errors
    /// There was no whole answer: the counters are unknown, which is not zero.
    pub(crate) fn counters(&self, left: Duration) -> Result<Counters, AdminError> {
        let mut counters = Counters::default();
        // Not `usedonly`: a listener that never had a request must read zero, not be missing.
        self.stats("downstream_rq_active", left, &mut |line| counters.add(line))?;
        Ok(counters)
    }

    /// Where the gate stands by its metrics.
    ///
    /// # Errors
    /// There was no whole answer.
    pub(crate) fn gate(&self, left: Duration) -> Result<GateStats, AdminError> {
        let mut stats = GateStats::default();
        self.stats("wasmcustom.softclose_", left, &mut |line| stats.add(line))?;
        Ok(stats)
    }

    fn stats(&self, filter: &str, left: Duration, each: &mut dyn FnMut(&str)) -> Result<(), AdminError> {
        let mut lines = Lines::default();
        let target = format!("/stats?filter={filter}");
        let head = stream(&self.address, "GET", &target, PATIENCE.min(left), STATS_MAX, &mut |part| {
            lines.take(part, each);
        })
        .map_err(AdminError::Failed)?;
        lines.end(each);
        match head.status {
            200 => Ok(()),
            status @ 400..500 => Err(AdminError::Unsupported(status)),
            status => Err(AdminError::Busy(status)),
        }
    }

    /// Envoy's version as it names itself.
    ///
    /// # Errors
    /// There was no whole answer.
    pub(crate) fn version(&self, left: Duration) -> Result<String, AdminError> {
        let response =
            exchange(&self.address, "GET", "/server_info", PATIENCE.min(left)).map_err(AdminError::Failed)?;
        let info: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
        Ok(info.get("version").and_then(|version| version.as_str()).unwrap_or("unknown").to_owned())
    }
}

/// Tells Istio's agent that the drain is done: at SIGTERM it then exits at once instead of draining once more.
///
/// # Errors
/// It was not told; it will drain by itself.
pub(crate) fn agent_drained(agent: &Address, left: Duration) -> Result<(), AdminError> {
    Admin { address: agent.clone() }.post("/drain", left)
}

/// Lines out of parts. A line longer than any stat's is dropped whole.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
}

const LINE_MAX: usize = 64 * 1024;

impl Lines {
    fn take(&mut self, part: &[u8], each: &mut dyn FnMut(&str)) {
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            if self.open.len() < LINE_MAX {
                self.open.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.end(each);
            }
        }
    }

    fn end(&mut self, each: &mut dyn FnMut(&str)) {
        if let Ok(line) = std::str::from_utf8(&self.open) {
            each(line.trim_end());
        }
        self.open.clear();
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "{failure}"),
            Self::Unsupported(status) => write!(f, "answered {status}: this Envoy does not do it"),
            Self::Busy(status) => write!(f, "answered {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn lines_are_the_same_however_the_parts_fall() {
        let text = b"a: 1\nbb: 2\r\n\nccc: 3";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for part in text.chunks(size) {
                lines.take(part, &mut |line| seen.push(line.to_owned()));
            }
            lines.end(&mut |line| seen.push(line.to_owned()));
            assert_eq!(seen, ["a: 1", "bb: 2", "", "ccc: 3"]);
        }
    }
}
