use std::time::Duration;

use serde_json::{Value, to_value};
use softclose_fsm::{Arrivals, FaultReason, Order, Prober, Sockets, Status, Verdict};

use crate::control::Answer;
use crate::duration;

/// State and requests in flight on one line.
pub(super) fn line(answer: &Answer) -> String {
    match &answer.document {
        Some(document) => format!("{}: {} requests in flight\n", document.state, document.active),
        None => format!("{}\n", answer.state),
    }
}

/// The document for people.
pub(super) fn whole(answer: &Answer) -> String {
    match &answer.document {
        Some(document) => Summary(document).text(),
        None => format!("{}\n(this version does not understand the document; --json shows it)\n", answer.state),
    }
}

struct Summary<'a>(&'a Status);

impl Summary<'_> {
    fn text(&self) -> String {
        let document = self.0;
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            text.push_str(&format!("{name:<12}{value}\n"));
        };
        row("state", format!("{} for {}", document.state, self.ago(document.since_us.as_micros())));
        row("in flight", format!("{} by the {}, {} counted", document.active, document.ledger, document.counted));
        row("believed", self.belief());
        if let Some(verdict) = &document.verdict {
            row("verdict", verdict_text(verdict));
        }
        if let Some(late) = document.late {
            row("late", format!("{late} let in since the flip"));
        }
        if let Some(count) = document.cut_at_most {
            row("cut", format!("at most {count}"));
        }
        row("may exit", yes_or_no(document.may_exit).to_owned());
        row("plan", self.plan());
        if let Some(left) = document.deadline_in_ms {
            row("deadline", format!("in {}", duration::text(left)));
        }
        if document.envoy_drain_us.is_some() {
            row("envoy", "draining; only a restart ends that".to_owned());
        }
        for prober in &document.probers {
            row("prober", self.prober(prober));
        }
        for event in &document.events {
            row("event", format!("{} {} ago", name_of(to_value(event.event)), self.ago(event.at.as_micros())));
        }
        row("version", document.version.clone());
        text
    }

    fn belief(&self) -> String {
        let called = self.0.roll_call.roll_call;
        match self.0.distrust {
            Some(distrust) => format!("no: {}", distrust.reason.as_str()),
            None if self.0.roll_call.complete => {
                format!("yes: {} of {} counting VMs answered", called.answered, called.expected)
            }
            None => format!("roll call: {} of {} counting VMs answered", called.answered, called.expected),
        }
    }

    fn plan(&self) -> String {
        let plan = &self.0.plan;
        let mut text = format!(
            "{}: settle {}, fall {}, margin {}, hold {} to {}",
            name_of(to_value(plan.preset)),
            duration::text(plan.settle),
            plan.fall,
            duration::text(plan.margin),
            duration::text(plan.hold_min),
            duration::text(plan.hold_max)
        );
        if plan.order == Order::HealthFirst {
            text.push_str(", health first");
        }
        if let Some(status) = plan.soft_status {
            text.push_str(&format!(", {status} while draining"));
        }
        if plan.sockets_closing == Sockets::Close {
            text.push_str(", sockets closed after the flip");
        }
        let refuses = |arrivals| arrivals == Arrivals::Refuse;
        let refused = match (refuses(plan.arrivals), refuses(plan.arrivals_closing)) {
            (false, false) => return text,
            (true, false) => "while draining",
            (false, true) => "while closing",
            (true, true) => "from the drain on",
        };
        let (status, limit) = (plan.refuse_status, plan.replay_limit);
        format!("{text}, new requests {status} {refused} (up to {limit} bytes)")
    }

    fn prober(&self, prober: &Prober) -> String {
        let pace = match prober.interval_us {
            Some(interval) => format!("every {}", duration::text(Duration::from_micros(interval))),
            None => "once".to_owned(),
        };
        let last = self.ago(prober.last.as_micros());
        format!(
            "{} asks {pace}, {} times, last {last} ago; {} soft answers, {} hard ones since the flip",
            prober.address, prober.asked, prober.soft, prober.hard
        )
    }

    fn ago(&self, micros: u64) -> String {
        duration::text(Duration::from_micros(self.0.now_us.as_micros().saturating_sub(micros)))
    }
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Clean => "clean".to_owned(),
        Verdict::SecondOpinion { distrust } => {
            format!("not believed ({}), but Envoy's own counters read zero", distrust.as_str())
        }
        Verdict::HealthFirst { active } => format!("none yet: health first, with {active} in flight then"),
        Verdict::Operator { active } => format!("close-lb with {active} in flight"),
        Verdict::Fault { reason: FaultReason::Deadline, active } => {
            format!("deadline with {} in flight", number(*active))
        }
        Verdict::Fault { reason: FaultReason::Distrust(distrust), active } => {
            format!("deadline, not believed ({}), {} in flight", distrust.as_str(), number(*active))
        }
    }
}

fn number(count: Option<u64>) -> String {
    count.map_or_else(|| "an unknown number".to_owned(), |count| count.to_string())
}

/// As the document has it.
fn name_of(written: serde_json::Result<Value>) -> String {
    match written {
        Ok(Value::String(name)) => name,
        Ok(_) | Err(_) => String::new(),
    }
}
