//! What the log says of the gate's answers, and what is remembered of them.

use std::time::Duration;

use serde_json::Value;
use softclose_fsm::{StateName, Status, Verdict};

use crate::control::Answer;
use crate::duration::{self, millis};
use crate::log::Level;
use crate::prestop::{Prestop, Understood};

/// A kubelet that was given less than we were told leaves a trail at least this dense.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

impl Prestop {
    /// Takes in an answer: a line for each change, and one now and then without.
    pub(super) fn tell(&mut self, answer: &Answer) {
        self.remember(answer);
        let changed = self.seen.state != Some(answer.state);
        self.seen.state = Some(answer.state);
        let distrust = answer.document.as_ref().and_then(|document| document.distrust).map(|distrust| distrust.reason);
        let lost = distrust.filter(|_| distrust != self.seen.distrust);
        let mended = self.seen.distrust.is_some() && distrust.is_none();
        self.seen.distrust = distrust;
        // A second without words and a bit: slices end a little after their time.
        if changed || self.log.quiet() + Duration::from_millis(50) >= PROGRESS_EVERY {
            let (message, fields) = state_line(answer);
            let level = if answer.state == StateName::Fault { Level::Error } else { Level::Info };
            self.log.line(level, &message, &fields);
        }
        if mended {
            self.log.info("the count is believed again", &[]);
        }
        if let Some(reason) = lost {
            let so = "zero is believed only if Envoy's own counters agree";
            self.log.warn(&format!("the count is not to be believed ({}): {so}", reason.as_str()), &[]);
        }
    }

    /// Somebody reopened the gate.
    pub(super) fn reopened(&mut self, message: &str) {
        self.seen.reopened = self.seen.reopened.saturating_add(1);
        self.seen.peak = 0;
        self.log.warn(message, &[("reopened", self.seen.reopened.into())]);
    }

    fn remember(&mut self, answer: &Answer) {
        let Some(document) = &answer.document else {
            self.seen.changes = None;
            return;
        };
        self.seen.changes = Some(document.changes).filter(|_| self.understood != Understood::Nothing);
        if document.drains > self.seen.drains {
            self.seen.drains = document.drains;
            self.reopened("the gate was reopened, and drained again by somebody else: joining that drain");
        }
        self.seen.active = Some(document.active);
        self.seen.audience = document.audience;
        self.seen.ended_by_peers = document.peer_ends.all;
        let health_first = is_health_first(document);
        self.seen.waits_for_zero = document.state == StateName::Draining || health_first;
        match document.state {
            StateName::Open | StateName::Draining => {}
            // For such a balancer DOWN cuts nothing.
            StateName::Closing if health_first => {}
            StateName::Closing | StateName::Closed | StateName::Fault => {
                self.seen.peak = self.seen.peak.max(document.active);
            }
        }
    }
}

/// Where the gate stands, in words and as fields.
fn state_line(answer: &Answer) -> (String, Vec<(&'static str, Value)>) {
    let state = ("state", Value::from(answer.state.as_str()));
    let Some(document) = &answer.document else {
        return (format!("the gate is {}", answer.state), vec![state]);
    };
    let mut fields = vec![state, ("active", document.active.into())];
    let in_flight = match document.distrust {
        None => requests(document.active),
        Some(_) => format!("{} (a count not to be believed)", requests(document.active)),
    };
    let message = match document.state {
        StateName::Open => format!("open: {in_flight} in flight"),
        StateName::Draining => match document.deadline_in_ms {
            Some(left) => {
                fields.push(("deadline_in_ms", millis(left).into()));
                format!("draining: {in_flight} in flight, deadline in {}", duration::text(left))
            }
            None => format!("draining: {in_flight} in flight, no deadline"),
        },
        StateName::Closing if is_health_first(document) => {
            let left = document.deadline_in_ms.map_or_else(
                || "no deadline".to_owned(),
                |left| {
                    fields.push(("deadline_in_ms", millis(left).into()));
                    format!("deadline in {}", duration::text(left))
                },
            );
            format!("closing: health is 503 already (health first), {in_flight} in flight, {left}")
        }
        StateName::Closing => {
            let probers = document.probers.len();
            fields.push(("probers", probers.into()));
            format!(
                "closing: health is 503 ({}), waiting for the balancer to notice; {probers} known to probe",
                ground(document)
            )
        }
        StateName::Closed => format!("closed: the pod may leave{}", aftermath(document, &mut fields)),
        StateName::Fault if document.may_exit => {
            let after = aftermath(document, &mut fields);
            format!("fault ({}): the pod may leave, {in_flight} in flight{after}", ground(document))
        }
        StateName::Fault => format!("fault ({}): health is 503 with {in_flight} in flight", ground(document)),
    };
    (message, fields)
}

fn is_health_first(document: &Status) -> bool {
    matches!(document.verdict, Some(Verdict::HealthFirst { .. }))
}

/// What came after the flip, where something did.
fn aftermath(document: &Status, fields: &mut Vec<(&'static str, Value)>) -> String {
    fields.extend(document.late.map(|late| ("late", late.into())));
    fields.extend(document.cut_at_most.map(|count| ("cut_at_most", count.into())));
    match document.late.filter(|late| *late > 0) {
        Some(late) => format!("; {} came after the flip", requests(late)),
        None => String::new(),
    }
}

fn requests(active: u64) -> String {
    if active == 1 { "1 request".to_owned() } else { format!("{active} requests") }
}

/// On what ground the balancer was told.
fn ground(document: &Status) -> String {
    match &document.verdict {
        None => "no verdict".to_owned(),
        Some(Verdict::Clean) => "clean".to_owned(),
        Some(Verdict::SecondOpinion { distrust }) => {
            format!("count not believed: {}; Envoy's counters read zero", distrust.as_str())
        }
        Some(Verdict::HealthFirst { active }) => format!("health first, with {} in flight", requests(*active)),
        Some(Verdict::Operator { active }) => format!("close-lb with {} in flight", requests(*active)),
        Some(Verdict::Fault { reason, .. }) => reason.to_string(),
    }
}
