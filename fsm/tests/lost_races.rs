//! `handle` against a host that loses a given number of races: neither the outcome nor the effects change.

use std::time::Duration;

use proptest::prelude::*;
use softclose_fsm::{
    DistrustReason, Effect, Host, Input, Instant, Loaded, Path, Plan, Preset, Probe, Reading, Record, Reply, RollCall,
    StateName, Stored, handle,
};

/// One process' shared record, and a number of races to lose at each commit.
struct RacingHost {
    record: Record,
    decodes: bool,
    now: Instant,
    reading: Reading,
    losses_each: usize,
    losses_left: usize,
    performed: Vec<Effect>,
    stores: usize,
}

impl RacingHost {
    fn new(losses_each: usize) -> Self {
        let now = Instant::from_micros(1_000_000);
        let reading = Reading {
            blind: false,
            admitted: 0,
            active: 0,
            roll_call: RollCall { answered: 1, expected: 1, newcomers: 0 },
        };
        let record = Record::open(now);
        let (performed, stores, losses_left) = (Vec::new(), 0, losses_each);
        Self { record, decodes: true, now, reading, losses_each, losses_left, performed, stores }
    }

    fn take(&mut self, input: &Input) -> Reply {
        self.losses_left = self.losses_each;
        let handled = handle(self, input);
        assert!(!handled.contended);
        handled.reply
    }
}

impl Host for RacingHost {
    type Version = ();

    fn now(&self) -> Instant {
        self.now
    }

    fn load(&mut self) -> Loaded<()> {
        let record = if self.decodes { self.record.clone() } else { Record::undecodable(self.now) };
        Loaded { record, version: (), decoded: self.decodes }
    }

    fn reading(&mut self, _record: &Record) -> Reading {
        self.reading
    }

    fn store(&mut self, record: &Record, (): ()) -> Stored {
        if self.losses_left > 0 {
            self.losses_left -= 1;
            return Stored::Lost;
        }
        self.stores += 1;
        self.decodes = true;
        self.record = record.clone();
        Stored::Done
    }

    fn perform(&mut self, effect: &Effect, _record: &Record) {
        self.performed.push(effect.clone());
    }
}

fn drain_by(preset: Preset) -> Input {
    let hold = Duration::from_millis(20);
    Input::Drain(Plan { settle: Duration::from_millis(5), hold_min: hold, hold_max: hold, ..Plan::preset(preset) })
}

fn drain() -> Input {
    Input::Drain(Plan { settle: Duration::from_millis(5), ..Plan::preset(Preset::Haproxy) })
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        2 => Just(drain()),
        2 => prop::sample::select(Preset::ALL.to_vec()).prop_map(|(_, preset)| drain_by(preset)),
        2 => prop_oneof![Just(Path::Balancer), Just(Path::Readiness)]
            .prop_map(|path| Input::Probe(Probe { path, prober: Some("10.0.0.1".to_owned()) })),
        1 => Just(Input::CloseLb),
        1 => Just(Input::Close),
        1 => Just(Input::Reopen),
        1 => Just(Input::EnvoyDrainStarted),
        1 => Just(Input::Distrust(DistrustReason::Trap)),
        1 => (0_u64..2).prop_map(Input::Observe),
        4 => Just(Input::Tick),
    ]
}

proptest! {
    #[test]
    fn lost_races_change_neither_the_outcome_nor_the_effects(
        run in prop::collection::vec((0_u64..4_000, 0_u64..2, any_input()), 1..40), losses in 1_usize..9,
    ) {
        let (mut calm, mut racing) = (RacingHost::new(0), RacingHost::new(losses));
        for (later, active, input) in run {
            for host in [&mut calm, &mut racing] {
                host.now = host.now.after(Duration::from_micros(later));
                host.reading.active = active;
            }
            prop_assert_eq!(calm.take(&input), racing.take(&input));
        }
        prop_assert_eq!(calm.record, racing.record);
        prop_assert_eq!(calm.performed, racing.performed);
    }
}

#[test]
fn one_who_loses_every_race_has_done_nothing() {
    let mut host = RacingHost::new(usize::MAX);
    let before = host.record.clone();
    let handled = handle(&mut host, &drain());
    assert!(handled.contended);
    assert_eq!((host.record, host.performed, host.stores), (before, vec![], 0));
}

#[test]
fn nothing_is_written_where_nothing_changes() {
    let mut host = RacingHost::new(0);
    host.take(&Input::Tick);
    assert_eq!(host.stores, 0);
}

#[test]
fn a_record_that_does_not_decode_is_left_alone_until_a_command() {
    let mut host = RacingHost::new(0);
    host.decodes = false;
    host.take(&Input::Tick);
    host.take(&Input::Distrust(DistrustReason::Trap));
    assert_eq!((host.stores, host.performed.len()), (0, 0));
    host.take(&drain());
    assert_eq!(host.record.state.name(), StateName::Draining);
    assert_eq!(host.record.distrust.unwrap().reason, DistrustReason::Record);
}
