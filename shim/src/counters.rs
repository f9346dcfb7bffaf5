//! What Envoy's stats say: its own of the requests in flight, and the gate's of where it stands.

use softclose_fsm::StateName;

/// Requests that clients wait for, over the traffic listeners: the sum of `http.outbound_*.downstream_rq_active`.
///
/// The clusters' counters are left out on purpose: whatever an upstream works on for a client is in flight downstream too, and
/// what is not for a client (streams of access logs, rate limits, tracing) never ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// None if Envoy has no such stat, as under Istio's default stats matcher: unknown, not zero.
    pub(crate) requests: Option<u64>,
}

/// The gate's own metrics, as far as Envoy shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GateStats {
    /// The state's number.
    state: Option<u64>,
    /// Zero while the count is believed.
    pub(crate) distrust: Option<u64>,
    /// Requests let in since the flip.
    pub(crate) late: Option<u64>,
    /// How many requests may have been cut.
    pub(crate) cut_at_most: Option<u64>,
}

impl GateStats {
    /// Where the gate stands.
    pub(crate) fn state(&self) -> Option<StateName> {
        StateName::ALL.into_iter().find(|state| Some(state.ordinal()) == self.state)
    }

    /// Whether Envoy shows all of them.
    pub(crate) fn is_whole(&self) -> bool {
        [self.state, self.distrust, self.late, self.cut_at_most].iter().all(Option::is_some)
    }

    /// Adds one line of `GET /stats`.
    pub(crate) fn add(&mut self, line: &str) {
        let Some((name, value)) = stat(line) else { return };
        match name {
            "wasmcustom.softclose_state" => self.state = Some(value),
            "wasmcustom.softclose_distrust" => self.distrust = Some(value),
            "wasmcustom.softclose_late" => self.late = Some(value),
            "wasmcustom.softclose_cut_at_most" => self.cut_at_most = Some(value),
            _ => {}
        }
    }
}

impl Counters {
    /// Adds one line of `GET /stats`.
    pub(crate) fn add(&mut self, line: &str) {
        let Some((name, value)) = stat(line) else { return };
        let prefix = name.strip_prefix("http.").and_then(|name| name.strip_suffix(".downstream_rq_active"));
        // Istio's gateway listeners are `outbound_<address>_<port>`. Admin, the agent's, the stats and softclose's own
        // listeners have other prefixes, and a probe in flight there must not hold up the drain.
        if prefix.is_some_and(|prefix| prefix.starts_with("outbound_")) {
            self.requests = Some(self.requests.unwrap_or(0).saturating_add(value));
        }
    }
}

/// `name: value`. Names may hold any character of a listener's name, the value none.
fn stat(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.rsplit_once(": ")?;
    Some((name, value.trim_end().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use softclose_fsm::StateName;

    use super::{Counters, GateStats};

    fn requests(lines: &[&str]) -> Option<u64> {
        let mut counters = Counters::default();
        for line in lines {
            counters.add(line);
        }
        counters.requests
    }

    #[test]
    fn traffic_listeners_are_summed_and_clusters_left_out() {
        let read = requests(&[
            "cluster.outbound|8080||app.default.svc.cluster.local.upstream_rq_active: 3",
            "http.outbound_0.0.0.0_8080.downstream_rq_active: 2",
            "http.outbound_0.0.0.0_8443;.downstream_rq_active: 2",
        ]);
        assert_eq!(read, Some(4));
    }

    #[test]
    fn admin_agent_stats_and_our_own_listeners_are_not_traffic() {
        let read = requests(&[
            "http.admin.downstream_rq_active: 1",
            "http.agent.downstream_rq_active: 1",
            "http.stats.downstream_rq_active: 1",
            "http.softclose_control.downstream_rq_active: 1",
            "http.softclose_health.downstream_rq_active: 1",
        ]);
        assert_eq!(read, None);
    }

    #[test]
    fn without_a_downstream_stat_there_is_no_opinion_whatever_the_clusters_say() {
        assert_eq!(requests(&["cluster.outbound|80||a.upstream_rq_active: 0"]), None);
        assert_eq!(requests(&["http.outbound_0.0.0.0_8080.downstream_rq_active: 0"]), Some(0));
    }

    #[test]
    fn the_gates_metrics_are_known_by_their_whole_names() {
        let mut stats = GateStats::default();
        for line in ["wasmcustom.softclose_state: 3", "wasmcustom.softclose_late: 7", "http.softclose_cut_at_most: 9"] {
            stats.add(line);
        }
        assert_eq!((stats.state(), stats.late, stats.cut_at_most), (Some(StateName::Closed), Some(7), None));
        assert!(!stats.is_whole());
    }

    #[test]
    fn other_lines_are_passed_over() {
        let read = requests(&[
            "",
            "nonsense",
            "http.outbound_0.0.0.0_80.downstream_rq_total: 9",
            "http.outbound_0.0.0.0_80.downstream_rq_active: -1",
            "http.outbound_0.0.0.0_80.downstream_rq_active: x",
            "http.outbound_0.0.0.0_80.downstream_rq_active",
        ]);
        assert_eq!(read, None);
    }
}
