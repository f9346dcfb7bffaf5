use softclose_fsm::{Counter, Record};

use crate::host::{self, Failure, Metric, MetricKind};

/// The metrics of one VM, but for the ledger's gauge. Names are process-wide: all VMs share one value each. Envoy shows them
/// as `wasmcustom.<name>`, and in Prometheus by their bare name.
pub(crate) struct Metrics {
    state: Metric,
    distrust: Metric,
    late: Metric,
    cut_at_most: Metric,
    requests: Metric,
    admitted: Metric,
    refused_requests: Metric,
    drains: Metric,
    clean_closes: Metric,
    faults_deadline: Metric,
    faults_distrust: Metric,
    reopens: Metric,
    refused_commands: Metric,
    hard_answers: Metric,
    soft_answers: Metric,
}

impl Metrics {
    pub(crate) fn define() -> Result<Self, Failure> {
        let gauge = |name| host::define_metric(MetricKind::Gauge, name);
        let counter = |name| host::define_metric(MetricKind::Counter, name);
        Ok(Self {
            state: gauge("softclose_state")?,
            distrust: gauge("softclose_distrust")?,
            late: gauge("softclose_late")?,
            cut_at_most: gauge("softclose_cut_at_most")?,
            requests: counter("softclose_requests")?,
            admitted: counter("softclose_drain_requests")?,
            refused_requests: counter("softclose_refused_requests")?,
            drains: counter("softclose_drains")?,
            clean_closes: counter("softclose_clean_closes")?,
            faults_deadline: counter("softclose_faults_deadline")?,
            faults_distrust: counter("softclose_faults_distrust")?,
            reopens: counter("softclose_reopens")?,
            refused_commands: counter("softclose_refused_commands")?,
            hard_answers: counter("softclose_hard_answers")?,
            soft_answers: counter("softclose_soft_answers")?,
        })
    }

    /// Reports `count` more requests counted.
    pub(crate) fn add_requests(&self, count: u64) {
        said(host::add(self.requests, i64::try_from(count).unwrap_or(i64::MAX)));
    }

    /// Requests counted since the process started, as far as reported.
    pub(crate) fn requests(&self) -> u64 {
        host::value(self.requests).unwrap_or(0)
    }

    /// One more request was let in while a drain is under way or past.
    pub(crate) fn add_admitted(&self) {
        said(host::add(self.admitted, 1));
    }

    /// Requests let in while a drain was under way or past, since the process started.
    pub(crate) fn admitted(&self) -> u64 {
        host::value(self.admitted).unwrap_or(0)
    }

    /// One more request was sent back to the balancer.
    pub(crate) fn add_refused(&self) {
        said(host::add(self.refused_requests, 1));
    }

    /// Hard answers served since the process started. Each is in here before it leaves.
    pub(crate) fn hard_answers(&self) -> u64 {
        host::value(self.hard_answers).unwrap_or(0)
    }

    /// Shows what came after the flip.
    pub(crate) fn show_aftermath(&self, late: u64, cut_at_most: u64) {
        said(host::record(self.late, late));
        said(host::record(self.cut_at_most, cut_at_most));
    }

    /// Shows where the gate stands.
    pub(crate) fn show(&self, record: &Record) {
        said(host::record(self.state, record.state.name().ordinal()));
        said(host::record(self.distrust, u64::from(record.distrust.is_some())));
    }

    pub(crate) fn count(&self, counter: Counter) {
        let metric = match counter {
            Counter::Drains => self.drains,
            Counter::CleanCloses => self.clean_closes,
            Counter::FaultsDeadline => self.faults_deadline,
            Counter::FaultsDistrust => self.faults_distrust,
            Counter::Reopens => self.reopens,
            Counter::RefusedCommands => self.refused_commands,
            Counter::HardAnswers => self.hard_answers,
            Counter::SoftAnswers => self.soft_answers,
        };
        said(host::add(metric, 1));
    }
}

/// A metric that cannot be written was defined by this VM, so the host is broken in a way worth a line.
fn said(result: Result<(), Failure>) {
    if let Err(status) = result {
        host::log(host::Level::Error, &format!("softclose: a metric was not written: {status:?}"));
    }
}
