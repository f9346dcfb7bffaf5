//! What each preset answers, as a table for the documentation: `testdata/answers.md`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test file, helpers included")]

use std::fmt::Write;

use softclose_fsm::control::{REFUSED, STATE_HEADER};
use softclose_fsm::{
    Input, Instant, Order, Path, Plan, Preset, Probe, Reading, Record, Reply, RollCall, StateName, step,
};

const START: Instant = Instant::from_micros(1_000_000);

/// With `UPDATE_GOLDEN=1` in the environment the file is written instead.
#[test]
fn what_each_preset_answers_is_as_the_golden_file_says() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/answers.md");
    let mut text = String::new();
    for (name, preset) in Preset::ALL {
        let plan = Plan::preset(preset);
        writeln!(text, "## {name}\n\n{}\n", fields(&plan)).unwrap();
        writeln!(text, "| state | balancer path | readiness path | new request, replayable | any other |").unwrap();
        writeln!(text, "|---|---|---|---|---|").unwrap();
        for (record, reading) in states(&plan) {
            let state = record.state.name();
            let (balancer, readiness) =
                (answer(&record, reading, Path::Balancer), answer(&record, reading, Path::Readiness));
            writeln!(text, "| {state} | {balancer} | {readiness} | {} | served |", new_request(&record)).unwrap();
        }
        text.push('\n');
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}

/// Every field as a query or a configuration has it, but for the name of the preset.
fn fields(plan: &Plan) -> String {
    let document = serde_json::to_value(plan).unwrap();
    let named = Plan::FIELDS.into_iter().filter(|field| *field != "preset").map(|field| {
        let value = &document[field];
        let value = if value.is_null() { "none".to_owned() } else { value.to_string().replace('"', "") };
        format!("`{field}` {value}")
    });
    named.collect::<Vec<_>>().join(", ")
}

/// The states that a drain by `plan` comes through, each with a reading that leaves it there.
fn states(plan: &Plan) -> Vec<(Record, Reading)> {
    let roll_call = RollCall { answered: 1, expected: 1, newcomers: 0 };
    let busy = Reading { blind: false, active: 1, admitted: 0, roll_call };
    let then = |record: &Record, now, input| step(record, now, busy, &input).record;
    let second = std::time::Duration::from_secs(1);
    let plan = Plan { deadline: Some(second), ..plan.clone() };
    let open = Record::open(START);
    let drained = then(&open, START, Input::Drain(plan.clone()));
    let closing = then(&drained, START, Input::CloseLb);
    let closed = then(&closing, START, Input::Close);
    let fault = then(&drained, START.after(second), Input::Tick);
    let mut records = vec![open, drained, closing, closed, fault];
    let expected: Vec<StateName> = StateName::ALL
        .into_iter()
        .filter(|state| plan.order == Order::IdleFirst || *state != StateName::Draining)
        .collect();
    records.dedup_by_key(|record| record.state.name());
    assert_eq!(records.iter().map(|record| record.state.name()).collect::<Vec<_>>(), expected);
    records.into_iter().map(|record| (record, busy)).collect()
}

/// Status, body and the header that says it is ours, by the step that a host takes for a probe.
fn answer(record: &Record, reading: Reading, path: Path) -> String {
    let probe = Input::Probe(Probe { path, prober: Some("192.0.2.1".to_owned()) });
    let Reply::Answer(answer) = step(record, record.state.since(), reading, &probe).reply else {
        return "nothing".to_owned();
    };
    assert_eq!(answer, record.answer(path));
    format!("{} `{}`, `{STATE_HEADER}: {}`", answer.status, answer.body, answer.state)
}

fn new_request(record: &Record) -> String {
    match record.deflection() {
        None => "served".to_owned(),
        Some(deflection) => format!("{} `refused`, `{}: {}`", deflection.status, REFUSED.0, REFUSED.1),
    }
}
