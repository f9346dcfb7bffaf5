//! Prediction against measurement, in words.

use super::{Between, Predicted, Prediction, tolerance};
use crate::timeline::{self, Event};

impl Prediction {
    /// What disagrees; empty if the run went as it had to. `cut` are the requests that their clients lost.
    pub(crate) fn compare(&self, events: &[Event], cut: &[String]) -> Vec<String> {
        let mut wrong = Vec::new();
        for predicted in &self.events {
            let name = predicted.event.name();
            match timeline::find(events, predicted.event) {
                Some(event) => wrong.extend(predicted.against(event)),
                None if predicted.sure => wrong.push(format!("{name}: predicted {predicted}, measured never")),
                None => {}
            }
        }
        for event in events {
            if !self.events.iter().any(|predicted| predicted.event == event.event) {
                wrong.push(format!(
                    "{}: predicted never, measured {} ({})",
                    event.event.name(),
                    seen(event),
                    event.detail
                ));
            }
        }
        wrong.extend(self.between.iter().filter_map(|between| between.against(events)));
        wrong.extend(order(self, events));
        for id in self.cut.iter().filter(|id| !cut.contains(id)) {
            wrong.push(format!("request {id}: predicted cut, its client got everything"));
        }
        for id in cut.iter().filter(|id| !self.cut.contains(id) && !self.either_way.contains(id)) {
            wrong.push(format!("request {id}: predicted whole, its client lost it"));
        }
        wrong
    }
}

impl Predicted {
    /// Why `event` is not this one.
    fn against(&self, event: &Event) -> Option<String> {
        let name = self.event.name();
        if event.at_s - event.after_s > tolerance::WIDEST_LOOK_S {
            let bound = tolerance::WIDEST_LOOK_S;
            return Some(format!(
                "{name}: measured {}, which is too vague to prove anything (bound {bound} s)",
                seen(event)
            ));
        }
        let fits = |at_s: &f64| event.after_s <= at_s + self.tolerance_s && at_s - self.tolerance_s <= event.at_s;
        let agrees = self.or_s.iter().chain([&self.at_s]).any(fits);
        (!agrees).then(|| format!("{name}: predicted {self}, measured {}", seen(event)))
    }
}

impl Between {
    /// Why the measured distance is not this one; None as well where one of the two is missing.
    fn against(&self, events: &[Event]) -> Option<String> {
        let (from, to) = (timeline::find(events, self.from)?, timeline::find(events, self.to)?);
        let (least_s, most_s) = (to.after_s - from.at_s, to.at_s - from.after_s);
        let agrees = least_s <= self.most_s && self.least_s <= most_s;
        let (a, b, low, high) = (self.from.name(), self.to.name(), self.least_s, self.most_s);
        (!agrees).then(|| {
            format!("from {a} to {b}: predicted {low:.3} to {high:.3} s, measured {least_s:.3} to {most_s:.3} s")
        })
    }
}

/// Pairs that must come in one order and came in the other.
fn order(prediction: &Prediction, events: &[Event]) -> Vec<String> {
    let mut wrong = Vec::new();
    for first in &prediction.events {
        for second in prediction.events.iter().filter(|second| first.span().1 < second.span().0) {
            let (a, b) = (timeline::find(events, first.event), timeline::find(events, second.event));
            if let (Some(a), Some(b)) = (a, b)
                && b.before(a)
            {
                let (first, second, order) = (first.event.name(), second.event.name(), timeline::order(events));
                wrong.push(format!(
                    "order: predicted {}, measured {order}: {second} came before {first}",
                    prediction.order
                ));
            }
        }
    }
    wrong
}

impl std::fmt::Display for Predicted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s", self.at_s)?;
        for other in &self.or_s {
            write!(f, " or {other:.3} s")?;
        }
        write!(f, " with a tolerance of {:.3} s", self.tolerance_s)
    }
}

fn seen(event: &Event) -> String {
    format!("{:.3} to {:.3} s", event.after_s, event.at_s)
}
