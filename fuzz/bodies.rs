//! What is done with arbitrary bytes. cargo-fuzz and the bounded runs of the ordinary tests call the same.

use std::time::Duration;

use softclose_fsm::control::{Call, HealthPaths, Rejection, WAIT_MAX};
use softclose_fsm::{
    DistrustReason, Input, Instant, LedgerKind, PROBERS_MAX, Path, Plan, Preset, Probe, Reading, Record, Registry,
    RollCall, SLOTS_MAX, Slot, StateName, Status, step,
};

/// A day: the longest span that a plan takes.
const DAY: Duration = Duration::from_secs(86_400);

/// A request on the control listener and on the health listener: two bytes for the method and the body, then the target.
pub(crate) fn control(bytes: &[u8]) {
    let Some(([how, body], target)) = bytes.split_first_chunk::<2>() else { return };
    let methods: [&[u8]; 5] = [b"POST", b"GET", b"HEAD", b"", target];
    let method = methods[usize::from(*how) % methods.len()];
    let base = Plan::preset(Preset::Haproxy);
    match Call::parse(method, target, body % 2 == 1, &base) {
        Ok(Call::Drain { plan, .. }) => {
            assert!(plan.hold_min <= plan.hold_max && plan.fall >= 1, "{plan:?}");
            let spans = [Some(plan.settle), Some(plan.margin), Some(plan.hold_max), plan.deadline];
            assert!(spans.into_iter().flatten().all(|span| span <= DAY), "{plan:?}");
            assert!(plan.soft_status.is_none_or(|status| (200..600).contains(&status)), "{plan:?}");
            assert!(
                plan.soft_body.as_ref().is_none_or(|body| plan.soft_status.is_some() && body.len() <= 64),
                "{plan:?}"
            );
            assert!((400..600).contains(&plan.refuse_status) && plan.replay_limit <= 1 << 24, "{plan:?}");
        }
        Ok(Call::Wait { timeout, .. }) => assert!(!timeout.is_zero() && timeout <= WAIT_MAX, "{timeout:?}"),
        Ok(Call::Observe(active)) => assert!(active <= u64::from(u32::MAX)),
        Ok(Call::CloseLb | Call::Close | Call::Reopen | Call::Status) => {}
        Err(rejection) => is_small(&rejection, &[400, 404, 405, 413]),
    }
    if let Err(rejection) = HealthPaths::default().parse(method, target) {
        is_small(&rejection, &[404, 405]);
    }
}

/// A hostile request must not be able to fill logs and answers.
fn is_small(rejection: &Rejection, statuses: &[u16]) {
    assert!(statuses.contains(&rejection.status), "{rejection:?}");
    assert!(rejection.reason.len() <= 2_048, "{rejection:?}");
    assert_eq!(rejection.allow.is_some(), rejection.status == 405, "{rejection:?}");
}

/// Bytes in place of the shared record, and every input on top: nine bytes for the moment and the reading, then the record.
pub(crate) fn record(bytes: &[u8]) {
    let Some((head, json)) = bytes.split_first_chunk::<10>() else { return };
    let [moment @ .., active, call] = *head;
    let Ok(record) = serde_json::from_slice::<Record>(json) else { return };
    let now = Instant::from_micros(u64::from_le_bytes(moment));
    let roll_call = RollCall {
        answered: u32::from(call & 3),
        expected: u32::from(call >> 2 & 3),
        newcomers: u32::from(call >> 4 & 1),
    };
    let reading = Reading { blind: false, admitted: 0, active: u64::from(active), roll_call };
    for input in every_input() {
        let done = step(&record, now, reading, &input);
        assert_eq!(done, step(&record, now, reading, &input), "the same twice");
        if record.state.name() == StateName::Closed {
            assert_eq!(done.record.state, record.state, "CLOSED is left by nothing");
        }
        assert!(done.record.deadline(now).is_none_or(|at| at > now));
        let _ = done.record.answer(Path::Balancer);
        let bytes = serde_json::to_vec(&done.record).unwrap();
        assert_eq!(serde_json::from_slice::<Record>(&bytes).unwrap(), done.record, "what is stored is what is read");
        let status = Status::of(&done.record, reading, now, &Plan::preset(Preset::Haproxy), LedgerKind::Gauge, 0);
        assert!(serde_json::to_vec(&status).is_ok());
    }
}

fn every_input() -> Vec<Input> {
    let drain =
        Plan { settle: Duration::ZERO, deadline: Some(Duration::from_secs(1)), ..Plan::preset(Preset::Haproxy) };
    let probe = |path, prober: Option<&str>| Input::Probe(Probe { path, prober: prober.map(String::from) });
    vec![
        Input::Tick,
        Input::Drain(drain),
        Input::Drain(Plan::preset(Preset::HaproxySoft)),
        Input::Drain(Plan::preset(Preset::HaproxyRetry)),
        Input::Drain(Plan::preset(Preset::Nlb)),
        Input::CloseLb,
        Input::Close,
        Input::Reopen,
        Input::EnvoyDrainStarted,
        Input::Observe(0),
        Input::Observe(u64::MAX),
        Input::Distrust(DistrustReason::Trap),
        Input::Distrust(DistrustReason::RollCall),
        probe(Path::Balancer, Some("192.0.2.1")),
        probe(Path::Balancer, None),
        probe(Path::Readiness, Some("192.0.2.1")),
    ]
}

/// Bytes in place of the shared registry: eight for the moment, then the registry.
pub(crate) fn registry(bytes: &[u8]) {
    let Some((moment, json)) = bytes.split_first_chunk::<8>() else { return };
    let Ok(mut registry) = serde_json::from_slice::<Registry>(json) else { return };
    let now = Instant::from_micros(u64::from_le_bytes(*moment));
    let before = registry.slots().len();
    let call = registry.roll_call(1, now);
    assert!(call.newcomers <= call.answered && call.answered <= call.expected, "{call:?}");
    let generation = registry.take_generation();
    let own = Slot {
        generation,
        vm: generation,
        role: softclose_fsm::Role::Count,
        ledger: LedgerKind::Shared,
        bell: 1,
        born: now,
        alive: false,
        answered: 0,
    };
    let _ = registry.publish(own, now);
    assert!(registry.slots().len() <= before.max(SLOTS_MAX));
    registry.leave(generation);
    assert!(registry.slots().iter().all(|slot| slot.generation != generation));
    let bytes = serde_json::to_vec(&registry).unwrap();
    assert_eq!(serde_json::from_slice::<Registry>(&bytes).unwrap(), registry);
}

/// Probes by peers with arbitrary addresses through a whole drain: per probe one byte for its gap and one for the length of its
/// address, then the address.
pub(crate) fn probes(mut bytes: &[u8]) {
    let mut now = Instant::from_micros(1_000_000);
    let mut record = Record::open(now);
    let reading = Reading {
        blind: false,
        admitted: 0,
        active: 0,
        roll_call: RollCall { answered: 1, expected: 1, newcomers: 0 },
    };
    let mut probed = 0_usize;
    while let Some(([gap, length], rest)) = bytes.split_first_chunk::<2>() {
        let (address, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        // Gaps from none to nine minutes: past the slowest known health check.
        now = now.after(Duration::from_micros(1 << (gap % 30)));
        let prober = (gap % 31 != 30).then(|| String::from_utf8_lossy(address).into_owned());
        let before = record.state.name();
        record = step(&record, now, reading, &Input::Probe(Probe { path: Path::Balancer, prober })).record;
        let drained = before == StateName::Open || record.state.name() != StateName::Open;
        assert!(drained, "a probe opened the gate");
        probed += 1;
        if probed == 8 {
            record = step(&record, now, reading, &Input::Drain(Plan::preset(Preset::Haproxy))).record;
            record = step(&record, now, reading, &Input::CloseLb).record;
        }
        assert!(record.probers.iter().count() <= PROBERS_MAX);
        assert!(record.probers.iter().all(|prober| prober.address.chars().count() <= 64));
        if record.state.name() == StateName::Closing {
            let longest = record.state.since().after(Duration::from_secs(10));
            assert!(now < longest, "the hold outlasts hold_max");
        }
    }
}
