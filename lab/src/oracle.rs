//! The oracle: what has to happen in a run, told from outside facts alone.
//!
//! The facts are the clients' own stamps, the times at which the balancer's checks were answered, and when the pod was
//! deleted; never the gate's log, record or answers. Mode softclose is predicted by driving the gate's pure machine with
//! them ([`gate`]), every other mode by a script of its published constants ([`script`]). A run whose measured events or
//! cut requests differ by more than the stated tolerances ([`tolerance`]) proves that the lab, the gate or the prediction
//! is wrong, so it fails ([`Prediction::compare`]).
//!
//! What a stamp leaves open is carried along: each prediction is made three times, with every unknown as early as it may
//! be, as it likely is, and as late as it may be ([`estimate::Lean`]).

mod compare;
pub(crate) mod estimate;
pub(crate) mod gate;
mod lb;
pub(crate) mod requests;
pub(crate) mod script;
#[cfg(test)]
mod tests;
mod tolerance;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::estimate::{Estimate, Lean};
use self::gate::Gate;
use self::lb::{Downs, Lb};
use self::requests::{Request, Zeros};
use self::script::Script;
use crate::mode::{Mode, NLB_SLEEP};
use crate::scenario::Scale;
use crate::timeline::{self, Event, Kind};

/// What is known of a run from outside, on the run's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) deleted_s: f64,
    /// Those that reached this pod.
    pub(crate) requests: Vec<Request>,
    /// Every answered check of the balancer path, whoever asked.
    pub(crate) checks: Vec<Check>,
    pub(crate) balancer: Balancer,
}

/// One check of the balancer path. What it was told is not known here: that is to be predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) at_s: f64,
    /// Its address, without port.
    pub(crate) prober: String,
}

/// What the balancer is configured to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Balancer {
    /// The source address of its checks.
    pub(crate) address: String,
    /// `inter`: carries its checks on where nobody answered them any more.
    pub(crate) inter_s: f64,
    /// `fall`.
    pub(crate) fall: u32,
    /// `on-marked-down shutdown-sessions`.
    pub(crate) cuts_at_down: bool,
}

/// How a mode leaves its balancer.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Gate(Gate),
    Script(Script),
}

impl Way {
    /// How `mode` leaves at these times.
    pub(crate) fn of(mode: Mode, scale: &Scale) -> Self {
        match mode {
            Mode::Current => Self::Script(Script::current(scale)),
            Mode::Improved => Self::Script(Script::improved(scale)),
            Mode::IstioDefault => Self::Script(Script::istio_default(scale)),
            Mode::ExitOnZero => Self::Script(Script::exit_on_zero(scale, Duration::ZERO)),
            Mode::NlbRecipe => Self::Script(Script::exit_on_zero(scale, scale.shrunk(NLB_SLEEP))),
            Mode::EnvoyGateway | Mode::Contour => Self::Script(Script::health_check_fail(scale)),
            Mode::Softclose => {
                let grace = Duration::from_secs(scale.grace_s.into());
                let mut gate = Gate::shipped(scale.preset(), grace, Duration::from_secs_f64(scale.termination_drain_s));
                if let Some(settle) = scale.settle_ms {
                    gate.plan.settle = Duration::from_millis(settle);
                }
                Self::Gate(gate)
            }
        }
    }
}

/// What has to happen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Prediction {
    /// In order.
    pub(crate) events: Vec<Predicted>,
    /// `=` joins events whose order the facts leave open.
    pub(crate) order: String,
    /// How long one event comes after another, where that is known better than when either comes.
    pub(crate) between: Vec<Between>,
    /// Requests that must be cut.
    pub(crate) cut: Vec<String>,
    /// Requests so close to the cut that they may fall either way.
    pub(crate) either_way: Vec<String>,
}

/// One event that has to happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Predicted {
    pub(crate) event: Kind,
    pub(crate) at_s: f64,
    pub(crate) tolerance_s: f64,
    /// Other moments, with the same tolerance, that the facts allow: a check so close to the flip that it may have been
    /// told either answer, a zero too short to be seen for sure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) or_s: Vec<f64>,
    /// Whether it must happen; otherwise the facts allow both.
    pub(crate) sure: bool,
}

/// From one event to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Between {
    pub(crate) from: Kind,
    pub(crate) to: Kind,
    pub(crate) least_s: f64,
    pub(crate) most_s: f64,
}

/// When the parts of a way out happen, with everything unknown leaning one way. Where a moment is missing, it never comes.
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    envoy_drain_start: Option<f64>,
    health_fail: Option<f64>,
    readiness_fail: Option<f64>,
    /// For a balancer that is told and does not check.
    lb_down: Option<f64>,
    /// Envoy's end.
    gone: Option<f64>,
}

/// Tells what has to happen.
pub(crate) fn predict(way: &Way, facts: &Facts) -> Prediction {
    let course = |lean: Lean| match way {
        Way::Gate(gate) => gate.course(facts, lean),
        Way::Script(script) => script.course(facts, lean),
    };
    let courses = Lean::ALL.map(course);
    let moment = |of: fn(&Course) -> Option<f64>| Moment::of(courses.map(|course| of(&course)));

    let health_fail = moment(|course| course.health_fail);
    let gone = moment(|course| course.gone);
    let told = moment(|course| course.lb_down);
    let lb = Lb { facts };
    let downs = match told.estimate {
        Some(told) => Downs::told(told),
        None => health_fail.estimate.map(|failed| lb.downs(failed)).unwrap_or_default(),
    };
    let fates = requests::cut(facts, &downs, gone.estimate);

    let mut events = Vec::new();
    events.extend(moment(|course| course.envoy_drain_start).predicted(Kind::EnvoyDrainStart));
    events.extend(health_fail.predicted(Kind::HealthFail));
    events.extend(moment(|course| course.readiness_fail).predicted(Kind::ReadinessFail));
    events.extend(downs.predicted(Kind::LbDown, true));
    events.extend(fates.rst(&downs, gone.estimate));
    events.extend(Zeros::after_deletion(facts, &downs, gone.estimate).predicted());
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let mut between = match way {
        Way::Gate(_) => Vec::new(),
        Way::Script(script) => script.between(),
    };
    if told.estimate.is_none() {
        between.push(lb.health_to_down());
    }
    Prediction { order: order(&events), events, between, cut: fates.cut, either_way: fates.either_way }
}

/// A moment by its three courses.
struct Moment {
    estimate: Option<Estimate>,
    /// Whether it comes in each of them.
    sure: bool,
}

impl Moment {
    fn of(leaning: [Option<f64>; 3]) -> Self {
        let times: Vec<f64> = leaning.into_iter().flatten().collect();
        Self { estimate: Estimate::over(&times), sure: times.len() == leaning.len() }
    }

    fn predicted(&self, event: Kind) -> Option<Predicted> {
        let estimate = self.estimate?;
        Some(Predicted {
            event,
            at_s: estimate.middle_s(),
            tolerance_s: estimate.half_width_s() + tolerance::LOOK_S,
            or_s: Vec::new(),
            sure: self.sure,
        })
    }
}

impl Predicted {
    /// The whole time in which it may happen.
    fn span(&self) -> (f64, f64) {
        let times = || self.or_s.iter().copied().chain([self.at_s]);
        let (first, last) = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
        (first - self.tolerance_s, last + self.tolerance_s)
    }
}

/// Strict only between events whose tolerances do not meet.
fn order(events: &[Predicted]) -> String {
    let as_seen = |predicted: &Predicted| {
        let (after_s, at_s) = predicted.span();
        Event::new(predicted.event, after_s, at_s, "oracle", "")
    };
    timeline::order(&events.iter().filter(|event| event.sure).map(as_seen).collect::<Vec<_>>())
}
