//! What a run proves, and whether the lab may be believed.

use std::collections::BTreeMap;

use crate::curl::Outcome;
use crate::kubelet::Deletion;
use crate::mode::Mode;
use crate::run::Record;
use crate::timeline::{self, Event, Kind};

/// The order that softclose promises.
pub(crate) const PROMISED: [Kind; 5] =
    [Kind::EnvoyDrainStart, Kind::ActiveZero, Kind::HealthFail, Kind::LbDown, Kind::ReadinessFail];

impl Record {
    /// Requests that did not come back whole.
    pub(crate) fn cut(&self) -> Vec<&Outcome> {
        self.clients.iter().filter(|client| !client.whole()).collect()
    }

    /// Requests that the application ran more than once, although each client asked once.
    pub(crate) fn doubled(&self) -> Vec<&str> {
        let mut runs: BTreeMap<&str, u32> = BTreeMap::new();
        for visit in &self.visits {
            *runs.entry(visit.id.as_str()).or_default() += 1;
        }
        runs.into_iter().filter(|(_, runs)| *runs > 1).map(|(id, _)| id).collect()
    }

    /// One request's fate in a word.
    pub(crate) fn fate(&self, client: &Outcome) -> &'static str {
        match (client.whole(), self.doubled().contains(&client.id.as_str())) {
            (false, _) => "CUT",
            (true, true) => "ran TWICE",
            (true, false) => "whole",
        }
    }

    /// What clients lost: cut or doubled requests, in words.
    pub(crate) fn failures(&self) -> Vec<String> {
        let cut = self.cut().into_iter().map(|client| {
            let (status, exit, bytes, of) =
                (client.status, client.curl_exit, client.answer_bytes(), client.expected_bytes);
            format!("{}: status {status}, curl exit {exit}, {bytes} of {of} bytes", client.id)
        });
        cut.chain(self.doubled().into_iter().map(|id| format!("{id}: the application ran it twice"))).collect()
    }

    /// The balancer marked the gateway DOWN although health had not failed: nothing that the mode did.
    pub(crate) fn ground_failure(&self) -> bool {
        let down = timeline::find(&self.events, Kind::LbDown);
        let failed = timeline::find(&self.events, Kind::HealthFail);
        match (down, failed) {
            (Some(down), Some(failed)) => down.before(failed),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Whether the promised events came in the promised order, each certainly before the next.
    pub(crate) fn kept_order(&self) -> bool {
        let promised: Option<Vec<&Event>> = PROMISED.iter().map(|kind| timeline::find(&self.events, *kind)).collect();
        promised.is_some_and(|events| events.iter().zip(events.iter().skip(1)).all(|(a, b)| a.before(b)))
    }

    /// Requests in flight when the balancer marked the gateway DOWN; unknown without a DOWN or a sample before it.
    pub(crate) fn in_flight(&self) -> Option<u64> {
        self.in_flight_at_lb_down.as_ref().map(|active| active.downstream)
    }

    /// One word for the table.
    pub(crate) fn word(&self) -> &'static str {
        match (self.ground_failure(), self.failures().is_empty()) {
            (true, _) => "ground failure",
            (false, true) => "nothing lost",
            (false, false) => "CUT",
        }
    }
}

/// Why one run in mode softclose breaks its promise; empty when it keeps it.
pub(crate) fn broken_promises(record: &Record) -> Vec<String> {
    let mut broken: Vec<String> = record.failures().into_iter().map(|lost| format!("softclose lost {lost}")).collect();
    if !record.kept_order() {
        broken.push(format!("softclose's order is {} and not 3 4 1 5 2", record.order));
    }
    broken.extend(not_clean(&record.deletion));
    if let Some(rst) = timeline::find(&record.events, Kind::Rst) {
        broken.push(format!("a request was waiting behind event 6 in mode softclose ({})", rst.detail));
    }
    match record.in_flight() {
        Some(0) => {}
        Some(active) => broken.push(format!("{active} requests were in flight at lb_down in mode softclose")),
        None => broken.push("it is unknown how many requests were in flight at lb_down in mode softclose".to_owned()),
    }
    broken
}

/// That the preStop command did not call it clean, if so.
pub(crate) fn not_clean(deletion: &Deletion) -> Option<String> {
    let last = deletion.pre_stop_output.last().map_or("nothing", String::as_str);
    match deletion.pre_stop_exit {
        Some(0) => None,
        Some(code) => Some(format!("the preStop command exited {code} and said last: {last}")),
        None => Some(format!("the preStop command ran out of the grace period and said last: {last}")),
    }
}

/// Why one run in mode current shows no fault; empty when it does. A lab that cannot show it proves nothing.
pub(crate) fn missing_fault(record: &Record) -> Vec<String> {
    let mut missing = Vec::new();
    if record.cut().is_empty() {
        missing.push("current cut nothing, so this run proves nothing".to_owned());
    }
    if record.in_flight().unwrap_or(0) == 0 {
        missing.push("current had no request in flight at lb_down, so this run proves nothing".to_owned());
    }
    missing
}

/// Why a demo fails; empty when it shows what it claims.
pub(crate) fn demo(records: &[Record]) -> Vec<String> {
    let mut reasons = Vec::new();
    for mode in Mode::SHOWN {
        let runs: Vec<&Record> = records.iter().filter(|record| record.mode == mode).collect();
        if runs.is_empty() {
            reasons.push(format!("mode {} did not run", mode.name()));
        }
        for record in runs {
            if record.ground_failure() {
                reasons.push(format!("mode {}: HAProxy was DOWN before health failed", mode.name()));
            }
            match mode {
                Mode::Current => reasons.extend(missing_fault(record)),
                // Other people's remedies: shown beside ours, not judged.
                Mode::Improved
                | Mode::IstioDefault
                | Mode::ExitOnZero
                | Mode::NlbRecipe
                | Mode::EnvoyGateway
                | Mode::Contour => {}
                Mode::Softclose => reasons.extend(broken_promises(record)),
            }
        }
    }
    reasons
}

#[cfg(test)]
pub(crate) mod tests;
