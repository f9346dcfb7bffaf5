//! The second opinion: while the gate's count is not to be believed, Envoy's own counters are read and brought to it.

use crate::prestop::{Break, PATIENCE, Prestop};

/// What to do about it, for the one line that says so.
pub(super) const NO_COUNTERS: &str = "Envoy has no http.outbound_*.downstream_rq_active: include \
     http\\..*downstream_rq_active in proxyStatsMatcher.inclusionRegexps";

impl Prestop {
    /// Brings Envoy's own counters to a gate that drains and is in doubt. The wait's short slices make that once a second.
    pub(super) fn second_opinion(&mut self) -> Result<(), Break> {
        if !self.seen.waits_for_zero || self.seen.distrust.is_none() {
            return Ok(());
        }
        let left = self.left()?;
        let counters = match self.admin.counters(left) {
            Ok(counters) => counters,
            Err(error) => {
                // Unknown, which is not zero: the gate is told nothing.
                let answered = self.admin_failed(error);
                if answered || self.admin_link.news() {
                    self.log.warn(&format!("admin {}: {error}; no second opinion", self.admin.address), &[]);
                }
                return Ok(());
            }
        };
        self.admin_link.answered();
        self.seen.counted = counters.requests;
        let Some(requests) = counters.requests else {
            if !self.seen.said_no_counters {
                self.seen.said_no_counters = true;
                self.log.warn(&format!("no second opinion: {NO_COUNTERS}"), &[]);
            }
            return Ok(());
        };
        let observed = self.control.call("POST", &format!("/observe?active={requests}"), PATIENCE.min(self.left()?));
        match observed {
            Ok(answer) if answer.status == 200 => self.tell(&answer),
            // The wait that follows meets the same trouble and deals with it.
            Ok(_) | Err(_) => {}
        }
        if self.seen.said_opinion != Some(requests) {
            self.seen.said_opinion = Some(requests);
            let said = format!("Envoy's own counters say {requests} in flight; the gate was told");
            self.log.info(&said, &[("active", requests.into())]);
        }
        Ok(())
    }
}
