//! What is noted in every state: probes, the start of Envoy's own drain, a second opinion, doubt.

use super::{Next, accepted};
use crate::effect::{Counter, Effect};
use crate::input::{Probe, Reply};
use crate::record::{Distrust, DistrustReason, EventName, Opinion, Path};
use crate::state::{Quest, StateName};

impl Next {
    pub(super) fn probe(&mut self, probe: &Probe) -> Reply {
        if probe.path == Path::Readiness {
            return Reply::Answer(self.record.answer(probe.path));
        }
        if let Some(prober) = &probe.prober {
            self.record.probers.asked(prober, self.now);
            if self.record.peer_ends.last.is_some() && self.record.state.name() == StateName::Draining {
                // This may be the question that a zero has waited for; then its answer is 503 already.
                self.settle();
            }
        }
        let answer = self.record.answer(probe.path);
        let (draining, plan) = (answer.state == StateName::Draining, self.record.plan());
        let soft = draining && plan.is_some_and(|plan| plan.soft_status.is_some());
        let hard = !draining && answer.status == 503;
        if let Some(prober) = &probe.prober {
            let fall = plan.map_or(u32::MAX, |plan| plan.fall);
            if hard {
                self.record.probers.told(prober, fall, self.now);
            }
            if soft {
                self.record.probers.told_softly(prober, self.now);
            }
        }
        if hard {
            self.effects.push(Effect::Count(Counter::HardAnswers));
            if let Some(aftermath) = &mut self.record.aftermath {
                aftermath.hard = aftermath.hard.saturating_add(1);
            }
        }
        if soft {
            self.effects.push(Effect::Count(Counter::SoftAnswers));
        }
        Reply::Answer(answer)
    }

    /// Several that end in one instant are a balancer that cut; one alone waits for the balancer's next question.
    pub(super) fn peer_ended(&mut self) -> Reply {
        self.record.peer_ends.add(self.reading.active, self.now);
        if self.record.peer_ends.look_like_a_cut() {
            return self.distrust(DistrustReason::Aborted);
        }
        Reply::Noted
    }

    pub(super) fn envoy_drain_started(&mut self) -> Reply {
        if self.record.envoy_drain.is_none() {
            self.record.envoy_drain = Some(self.now);
            self.record.note(EventName::EnvoyDrainStart, self.now);
        }
        accepted()
    }

    pub(super) fn observe(&mut self, active: u64) -> Reply {
        if let Some(quest) = self.record.quest() {
            self.record.set_quest(Quest { opinion: Some(Opinion { active, at: self.now }), ..quest });
            // News of zero starts the settling now, not at the next tick; news of work ends it.
            self.settle();
        }
        accepted()
    }

    pub(super) fn distrust(&mut self, reason: DistrustReason) -> Reply {
        let distrust = Distrust { reason, since: self.now };
        let old = self.record.distrust;
        let heavier = old.is_none_or(|old| old.reason.weight() < reason.weight());
        let (shown, hidden) = if heavier { (Some(distrust), old) } else { (old, Some(distrust)) };
        if shown.is_some_and(|shown| shown.reason.ends_with_the_drain()) {
            let lasting = hidden.filter(|hidden| !hidden.reason.ends_with_the_drain());
            self.record.lasting_distrust = self.record.lasting_distrust.or(lasting);
        }
        if heavier {
            self.record.distrust = Some(distrust);
            self.record.note(EventName::Distrust, self.now);
            if let Some(quest) = self.record.quest() {
                self.record.set_quest(Quest { zero_since: None, ..quest });
            }
            self.change(Some(Effect::LogDistrust(distrust)));
        }
        Reply::Noted
    }
}
