use softclose_fsm::{Counter, Record};

use crate::host::{self, Failure, Metric, MetricKind};

/// The metrics of one VM, but for the ledger's gauge. Names are process-wide: all VMs share one value each. Envoy shows them
/// as `wasmcustom.<name>`, and in Prometheus by their bare name.
pub(crate) struct Metrics {
    state: Metric,
    distrust: Metric,
    requests: Metric,
    drains: Metric,
    clean_closes: Metric,
    faults_deadline: Metric,
    faults_distrust: Metric,
    reopens: Metric,
    refused_commands: Metric,
    hard_answers: Metric,
}

impl Metrics {
    pub(crate) fn define() -> Result<Self, Failure> {
        let gauge = |name| host::define_metric(MetricKind::Gauge, name);
        let counter = |name| host::define_metric(MetricKind::Counter, name);
        Ok(Self {
            state: gauge("softclose_state")?,
            distrust: gauge("softclose_distrust")?,
            requests: counter("softclose_requests")?,
            drains: counter("softclose_drains")?,
            clean_closes: counter("softclose_clean_closes")?,
            faults_deadline: counter("softclose_faults_deadline")?,
            faults_distrust: counter("softclose_faults_distrust")?,
            reopens: counter("softclose_reopens")?,
            refused_commands: counter("softclose_refused_commands")?,
            hard_answers: counter("softclose_hard_answers")?,
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
