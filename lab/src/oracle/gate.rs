//! Mode softclose: the gate's own machine, fed with the facts step by step.

use std::time::Duration;

use softclose_fsm::{Effect, Input, Instant, Path, Plan, Preset, Probe, Reading, Record, RollCall, StateName, step};

use super::estimate::Lean;
use super::requests::active;
use super::{Course, Facts, lb, tolerance};

/// The gate and the command that drives it.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) plan: Plan,
    /// From SIGTERM to the end of Envoy after anything but a clean close: Istio's terminationDrainDuration.
    pub(crate) termination_drain_s: f64,
    /// What somebody tells the gate beside, each so long after the deletion.
    pub(crate) orders: Vec<(f64, Input)>,
}

/// Before the first fact: the machine's clock has no negative times.
const LEAD_S: f64 = 1.0;
/// No drain takes so many steps; a machine that names the same deadline for ever would.
const STEPS_MAX: usize = 1_000_000;

impl Gate {
    /// As shipped, with the deadline that the preStop command derives from a grace period: whatever the longest hold (10 s) and
    /// a reserve (5 s) leave; where that is less than a quarter, the hold gives way.
    pub(crate) fn shipped(preset: Preset, grace: Duration, termination_drain: Duration) -> Self {
        let plan = Plan::preset(preset);
        let shared = grace - Duration::from_secs(5).min(grace / 2);
        let hold_max = plan.hold_max.min(shared / 4 * 3);
        let plan = Plan { hold_max, deadline: Some(shared - hold_max), ..plan };
        Self { plan, termination_drain_s: termination_drain.as_secs_f64(), orders: Vec::new() }
    }

    pub(super) fn course(&self, facts: &Facts, lean: Lean) -> Course {
        let requests: Vec<(f64, f64)> = facts.requests.iter().map(|request| request.leaning(lean)).collect();
        let drained_s = facts.deleted_s + lean.of(tolerance::SHIM_START_S);
        let deadline_s = self.plan.deadline.map_or(0.0, |deadline| deadline.as_secs_f64());
        let last_end_s = requests.iter().map(|request| request.1).fold(facts.deleted_s, f64::max);
        let end_s = last_end_s.max(drained_s + deadline_s) + self.plan.hold_max.as_secs_f64() + LEAD_S;

        let mut script = vec![(drained_s, Input::Drain(self.plan.clone()))];
        script.extend(self.orders.iter().map(|(after_s, input)| (drained_s + after_s, input.clone())));
        script.extend(requests.iter().flat_map(|(from_s, until_s)| [(*from_s, Input::Tick), (*until_s, Input::Tick)]));
        script.extend(
            lb::carried_on(&facts.checks, end_s)
                .into_iter()
                .map(|check| (check.at_s, Input::Probe(Probe { path: Path::Balancer, prober: Some(check.prober) }))),
        );
        script.sort_by(|a, b| a.0.total_cmp(&b.0));

        let start_s = script.first().map_or(facts.deleted_s, |first| first.0) - LEAD_S;
        let timer_late_s = lean.of(tolerance::TIMER_EDGE_S);
        let mut machine = Machine { start_s, requests: &requests, record: Record::open(Instant::from_micros(0)) };
        let mut now_s = start_s;
        let mut course = Course { envoy_drain_start: Some(drained_s), ..Course::default() };
        let mut inputs = script.into_iter().peekable();
        for _step in 0..STEPS_MAX {
            let tick_s = machine.deadline_s(now_s).map(|at_s| at_s + timer_late_s);
            let input = match (inputs.peek(), tick_s) {
                (Some((at_s, _)), Some(tick_s)) if tick_s < *at_s => Some((tick_s, Input::Tick)),
                (None, Some(tick_s)) => Some((tick_s, Input::Tick)),
                (Some(_), _) => inputs.next(),
                (None, None) => None,
            };
            let Some((at_s, input)) = input else { break };
            now_s = at_s;
            machine.take(at_s, &input);
            if self.note(&machine.record, at_s, lean, &mut course) {
                break;
            }
        }
        course
    }

    /// Notes what `record` brings about at `at_s`; true at the end.
    fn note(&self, record: &Record, at_s: f64, lean: Lean, course: &mut Course) -> bool {
        if record.answer(Path::Balancer).status == 503 && course.health_fail.is_none() {
            course.health_fail = Some(at_s);
        }
        if !record.may_exit() {
            return false;
        }
        let left_s = at_s + lean.of(tolerance::SHIM_END_S);
        if record.state.name() == StateName::Closed {
            // The agent was told, so SIGTERM ends Envoy at once.
            course.readiness_fail = Some(at_s);
            course.gone = Some(left_s);
        } else {
            // In FAULT readiness stays 200 until Envoy itself is gone.
            course.gone = Some(left_s + self.termination_drain_s);
            course.readiness_fail = course.gone;
        }
        true
    }
}

/// The machine under a clock in seconds.
struct Machine<'a> {
    start_s: f64,
    requests: &'a [(f64, f64)],
    record: Record,
}

impl Machine<'_> {
    /// Takes `input`, and the tick of everybody whom that wakes.
    fn take(&mut self, at_s: f64, input: &Input) {
        if self.step(at_s, input).contains(&Effect::Ring) {
            self.step(at_s, &Input::Tick);
        }
    }

    fn step(&mut self, at_s: f64, input: &Input) -> Vec<Effect> {
        // Everybody counts and has heard of the drain: nothing but that is promised of a run without faults.
        let roll_call = RollCall { answered: 1, expected: 1, newcomers: 0 };
        let reading = Reading { blind: false, active: active(self.requests, at_s), admitted: 0, roll_call };
        let next = step(&self.record, self.instant(at_s), reading, input);
        self.record = next.record;
        next.effects
    }

    fn deadline_s(&self, now_s: f64) -> Option<f64> {
        let deadline = self.record.deadline(self.instant(now_s))?;
        Some(self.start_s + Duration::from_micros(deadline.as_micros()).as_secs_f64())
    }

    fn instant(&self, at_s: f64) -> Instant {
        // Rounded: a deadline that went through seconds and back must not come a microsecond too early.
        Instant::from_micros(((at_s - self.start_s).max(0.0) * 1e6).round() as u64)
    }
}
