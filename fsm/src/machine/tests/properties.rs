//! What holds for any run.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::{MICROSECOND, MISSING, SECOND, START, WHOLE, after, busy, closing, step, tick};
use crate::effect::{Counter, Effect};
use crate::input::{Input, Probe, Reply};
use crate::plan::{Order, Plan, Preset, Sockets};
use crate::record::{Distrust, DistrustReason, Path, Reading, Record};
use crate::state::{State, StateName, Verdict};

fn any_reading() -> impl Strategy<Value = Reading> {
    (prop_oneof![3 => Just(0_u64), 2 => 1_u64..4], prop_oneof![4 => Just(WHOLE), 1 => Just(MISSING)])
        .prop_map(|(active, roll_call)| Reading { blind: false, admitted: 0, active, roll_call })
}

fn any_preset() -> impl Strategy<Value = Preset> {
    prop::sample::select(Preset::ALL.map(|(_, preset)| preset).to_vec())
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let settle = prop_oneof![Just(0_u64), 1_u64..3_000];
    let deadline = prop_oneof![Just(None), (1_u64..8_000).prop_map(Some)];
    (any_preset(), settle, deadline, 1_u64..6_000).prop_map(|(preset, settle, deadline, hold_max)| Plan {
        settle: Duration::from_millis(settle),
        deadline: deadline.map(Duration::from_millis),
        hold_min: Duration::ZERO,
        hold_max: Duration::from_millis(hold_max),
        ..Plan::preset(preset)
    })
}

fn any_input() -> impl Strategy<Value = Input> {
    let probe = (prop_oneof![Just(Path::Balancer), Just(Path::Readiness)], prop::option::of(0..4))
        .prop_map(|(path, prober)| Input::Probe(Probe { path, prober: prober.map(|at: i32| at.to_string()) }));
    prop_oneof![
        3 => any_plan().prop_map(Input::Drain),
        1 => Just(Input::CloseLb),
        1 => Just(Input::Close),
        1 => Just(Input::Reopen),
        4 => probe,
        1 => Just(Input::EnvoyDrainStarted),
        2 => (0_u64..3).prop_map(Input::Observe),
        1 => any_reason().prop_map(Input::Distrust),
        8 => Just(Input::Tick),
    ]
}

fn any_reason() -> impl Strategy<Value = DistrustReason> {
    use DistrustReason::{Config, Cut, RollCall, Trap, Unheard};
    prop::sample::select([RollCall, Config, Cut, Unheard, Trap].as_slice())
}

/// A run: how much later, with which reading, what.
fn any_run() -> impl Strategy<Value = Vec<(Duration, Reading, Input)>> {
    let later = prop_oneof![Just(0_u64), 1_u64..2_000, 1_u64..3_000_000].prop_map(Duration::from_micros);
    prop::collection::vec((later, any_reading(), any_input()), 1..60)
}

pub(crate) fn any_record() -> impl Strategy<Value = Record> {
    any_run().prop_map(|run| {
        let mut now = START;
        run.into_iter().fold(Record::open(START), |record, (later, reading, input)| {
            now = now.after(later);
            after(&record, now, reading, input)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_verdict_has_its_ground(run in any_run()) {
        let (mut now, mut record) = (START, Record::open(START));
        for (later, reading, input) in run {
            now = now.after(later);
            let next = step(&record, now, reading, &input).record;
            if let Some(verdict) = next.verdict().filter(|verdict| record.verdict().as_ref() != Some(verdict)) {
                match verdict {
                    Verdict::Clean => {
                        prop_assert_eq!(reading.active, 0);
                        prop_assert!(reading.roll_call.complete());
                        let mended = reading.roll_call.complete_without_newcomers();
                        let late = |distrust: Distrust| distrust.reason == DistrustReason::RollCall && mended;
                        prop_assert!(record.distrust.is_none_or(late));
                    }
                    Verdict::SecondOpinion { .. } => prop_assert!(next.distrust.is_some()),
                    Verdict::Operator { .. } => prop_assert!(matches!(input, Input::CloseLb | Input::Close)),
                    Verdict::HealthFirst { .. } => {
                        let Input::Drain(plan) = &input else { panic!("health first by {input:?}") };
                        prop_assert_eq!(plan.order, Order::HealthFirst);
                    }
                    Verdict::Fault { .. } => {
                        let Some(quest) = record.quest() else { panic!("a fault from {:?}", record.state) };
                        prop_assert!(quest.deadline.is_some_and(|deadline| deadline <= now));
                    }
                }
            }
            record = next;
        }
    }

    #[test]
    fn a_deadline_is_kept(record in any_record(), reading in any_reading()) {
        if let Some(quest) = record.quest()
            && let Some(deadline) = quest.deadline
        {
            let end = tick(&record, deadline, reading);
            if record.state.name() == StateName::Draining {
                prop_assert!(!end.waits_for_zero(), "{:?}", end);
            }
            let longest = record.state.since().after(record.plan().unwrap().hold_max);
            prop_assert!(!tick(&end, deadline.max(longest), reading).waits_for_zero(), "{:?}", end);
        }
    }

    #[test]
    fn what_may_have_been_cut_is_the_most_in_flight_since_it_could_be(run in any_run()) {
        let (mut now, mut record) = (START, Record::open(START));
        let (mut hard, mut most) = (0, None);
        for (later, reading, input) in run {
            now = now.after(later);
            let done = step(&record, now, reading, &input);
            let moved = done.effects.iter().any(|effect| matches!(effect, Effect::Count(Counter::Drains)));
            if moved || done.record.state.name() == StateName::Open {
                (hard, most) = (0, None);
            }
            hard += done.effects.iter().filter(|effect| **effect == Effect::Count(Counter::HardAnswers)).count() as u32;
            let noticed =
                done.record.plan().is_some_and(|plan| hard >= plan.fall || plan.sockets_closing == Sockets::Close);
            let may_be_cut = match &done.record.state {
                State::Open(_) | State::Draining(_) => false,
                State::Closing(closing) => closing.plan.order == Order::IdleFirst && noticed,
                State::Closed(_) => true,
                State::Fault(fault) => noticed || fault.may_exit || fault.plan.order == Order::HealthFirst,
            };
            if may_be_cut {
                most = most.max(Some(reading.active));
            }
            prop_assert_eq!(done.record.cut_at_most(), most);
            record = done.record;
        }
    }

    #[test]
    fn a_tick_with_the_same_reading_just_before_changes_nothing(
        record in any_record(), later in 0_u64..5_000_000, reading in any_reading(), input in any_input(),
    ) {
        let now = record.state.since().after(Duration::from_micros(later));
        let direct = step(&record, now, reading, &input);
        let first = step(&record, now, reading, &Input::Tick);
        let second = step(&first.record, now, reading, &input);
        prop_assert_eq!(&direct.record, &second.record);
        prop_assert_eq!(&direct.reply, &second.reply);
        let both: Vec<Effect> = first.effects.into_iter().chain(second.effects).collect();
        prop_assert_eq!(direct.effects, both);
    }

    #[test]
    fn closed_is_left_by_nothing(run in any_run()) {
        let mut now = START;
        let mut record = after(&closing(&[]), START, busy(1), Input::Close);
        for (later, reading, input) in run {
            now = now.after(later);
            record = after(&record, now, reading, input);
            prop_assert_eq!(record.state.name(), StateName::Closed);
            prop_assert_eq!(record.answer(Path::Readiness).status, 503);
        }
    }

    #[test]
    fn only_a_reopen_turns_the_answer_back_into_200(run in any_run()) {
        let (mut now, mut record) = (START, Record::open(START));
        for (later, reading, input) in run {
            now = now.after(later);
            let next = step(&record, now, reading, &input).record;
            if record.answer(Path::Balancer).status != 200 && next.answer(Path::Balancer).status == 200 {
                prop_assert_eq!(&input, &Input::Reopen);
            }
            record = next;
        }
    }

    #[test]
    fn the_next_deadline_lies_ahead_and_nothing_is_decided_before_it(
        record in any_record(), reading in any_reading(), part in 0.0..1.0_f64,
    ) {
        let now = record.state.since().after(SECOND);
        let record = tick(&record, now, reading);
        if let Some(deadline) = record.deadline(now) {
            prop_assert!(deadline > now);
            let wait = deadline.since(now).mul_f64(part).saturating_sub(MICROSECOND);
            let next = tick(&record, now.after(wait), reading);
            prop_assert_eq!(next.state.name(), record.state.name());
        }
    }

    #[test]
    fn who_is_counted_as_served_a_hard_answer_was(run in any_run()) {
        let (mut now, mut record) = (START, Record::open(START));
        for (later, reading, input) in run {
            now = now.after(later);
            let done = step(&record, now, reading, &input);
            let counted = done.effects.contains(&Effect::Count(Counter::HardAnswers));
            let served = matches!(&done.reply, Reply::Answer(answer) if answer.status == 503)
                && matches!(&input, Input::Probe(probe) if probe.path == Path::Balancer);
            prop_assert_eq!(counted, served);
            record = done.record;
        }
    }
}
