use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use softclose_fsm::{
    DistrustReason, Input, Instant, Path, Plan, Preset, Probe, Reading, Record, Registry, RollCall, step,
};

use super::{DEPTH_MAX, from_slice, members, string};

/// All that derived code may ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Everything {
    number: u64,
    small: u16,
    yes: bool,
    text: String,
    maybe: Option<u32>,
    list: Vec<Kind>,
    map: BTreeMap<String, u64>,
    #[serde(default)]
    absent: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Unit,
    Newtype(u64),
    Struct { a: u64, b: Option<String> },
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Unit),
        any::<u64>().prop_map(Kind::Newtype),
        (any::<u64>(), any::<Option<String>>()).prop_map(|(a, b)| Kind::Struct { a, b }),
    ]
}

fn any_everything() -> impl Strategy<Value = Everything> {
    let first = (any::<u64>(), any::<u16>(), any::<bool>(), any::<String>(), any::<Option<u32>>());
    let lists =
        (prop::collection::vec(any_kind(), 0..4), prop::collection::btree_map(any::<String>(), any::<u64>(), 0..4));
    (first, lists, any::<Option<String>>()).prop_map(|((number, small, yes, text, maybe), (list, map), absent)| {
        Everything { number, small, yes, text, maybe, list, map, absent }
    })
}

fn any_prober() -> impl Strategy<Value = String> {
    prop_oneof![2 => any::<String>(), 3 => Just("10.0.0.1".to_owned())]
}

fn any_reason() -> impl Strategy<Value = DistrustReason> {
    use DistrustReason::{Config, Cut, Ledger, Record, RollCall, Trap, Unheard};
    prop::sample::select(vec![RollCall, Config, Record, Ledger, Trap, Cut, Unheard])
}

/// Records as the gate makes them, with probers of any name and one that asks often enough to be missed.
fn any_record() -> impl Strategy<Value = Record> {
    let inputs = prop_oneof![
        prop::sample::select(Preset::ALL.to_vec()).prop_map(|(_, preset)| Input::Drain(Plan::preset(preset))),
        Just(Input::CloseLb),
        Just(Input::Close),
        Just(Input::Reopen),
        Just(Input::Tick),
        Just(Input::Observe(0)),
        Just(Input::EnvoyDrainStarted),
        any_reason().prop_map(Input::Distrust),
    ];
    let probe = any_prober().prop_map(|name| Input::Probe(Probe { path: Path::Balancer, prober: Some(name) }));
    let inputs = prop_oneof![3 => inputs, 2 => probe];
    prop::collection::vec((0_u64..20_000, 0_u64..2, inputs), 0..30).prop_map(|run| {
        let mut now = Instant::from_micros(1_000_000);
        run.into_iter().fold(Record::open(now), |record, (later, active, input)| {
            now = now.after(Duration::from_millis(later));
            let roll_call = RollCall { answered: 1, expected: 1, newcomers: 0 };
            step(&record, now, Reading { blind: false, active, admitted: 0, roll_call }, &input).record
        })
    })
}

proptest! {
    #[test]
    fn what_serde_json_writes_is_read(everything in any_everything()) {
        let compact = serde_json::to_vec(&everything).unwrap();
        let pretty = serde_json::to_vec_pretty(&everything).unwrap();
        prop_assert_eq!(from_slice::<Everything>(&compact), Some(everything.clone()));
        prop_assert_eq!(from_slice::<Everything>(&pretty), Some(everything));
    }

    #[test]
    fn a_record_is_read_as_it_was_written(record in any_record()) {
        let written = serde_json::to_vec(&record).unwrap();
        prop_assert_eq!(from_slice::<Record>(&written), Some(record));
    }

    #[test]
    fn a_damaged_record_is_read_as_serde_json_reads_it(
        record in any_record(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut written = serde_json::to_vec(&record).unwrap();
        let at = at.index(written.len());
        if cut { written.truncate(at) } else { written[at] = byte }
        prop_assert_eq!(from_slice::<Record>(&written), serde_json::from_slice::<Record>(&written).ok());
    }

    #[test]
    fn garbage_is_read_as_serde_json_reads_it(text in "[\\[\\]{}\",:0-9a-fnrtul\\\\eE.+ -]{0,24}") {
        let ours = from_slice::<serde::de::IgnoredAny>(text.as_bytes()).is_some();
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        // serde_json's own bound on what a float can hold is none of ours.
        let too_large = theirs.as_ref().is_err_and(|error| error.to_string().starts_with("number out of range"));
        prop_assert!(ours == theirs.is_ok() || too_large, "{:?}: {:?}", text, theirs);
        prop_assert_eq!(from_slice::<u64>(text.as_bytes()), serde_json::from_str::<u64>(&text).ok());
        prop_assert_eq!(from_slice::<String>(text.as_bytes()), serde_json::from_str::<String>(&text).ok());
        prop_assert_eq!(from_slice::<Kind>(text.as_bytes()), serde_json::from_str::<Kind>(&text).ok());
    }

    #[test]
    fn any_string_is_read_as_it_was_written(text: String) {
        let written = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(string(&written), Some(text));
    }

    #[test]
    fn bytes_break_nothing(bytes: Vec<u8>) {
        let _ = from_slice::<Record>(&bytes);
        let _ = from_slice::<Registry>(&bytes);
        let _ = std::str::from_utf8(&bytes).ok().and_then(members);
    }
}

/// Every field that a record of an older module lacks, and every one that it may have.
#[test]
fn a_record_of_a_missed_balancer_is_read_as_it_was_written() {
    let reading = Reading {
        blind: false,
        active: 1,
        admitted: 0,
        roll_call: RollCall { answered: 1, expected: 1, newcomers: 0 },
    };
    let probe = Input::Probe(Probe { path: Path::Balancer, prober: Some("10.0.0.1".to_owned()) });
    let run = (1..=6).map(|second| (second, probe.clone())).chain([
        (6, Input::Drain(Plan::preset(Preset::HaproxySoft))),
        (6, Input::Distrust(DistrustReason::Config)),
        (9, Input::Tick),
    ]);
    let record = run.fold(Record::open(Instant::from_micros(0)), |record, (second, input)| {
        step(&record, Instant::from_micros(second * 1_000_000), reading, &input).record
    });
    let written = serde_json::to_string(&record).unwrap();
    for part in [
        r#""distrust":{"reason":"unheard""#,
        r#""lasting_distrust":{"reason":"config""#,
        r#""gaps_us":[1000000,"#,
        r#""pace_us":1000000"#,
    ] {
        assert!(written.contains(part), "{part} is not in {written}");
    }
    assert_eq!(from_slice(written.as_bytes()), Some(record));
    let older = written.replace(r#""gaps_us""#, r#""unknown""#).replace(r#""pace_us""#, r#""unknown too""#);
    let read = from_slice::<Record>(older.as_bytes());
    assert_eq!(read, serde_json::from_str(&older).ok());
    assert!(read.is_some());
}

#[test]
fn escapes_of_every_kind_are_read() {
    assert_eq!(string(r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00""#), Some("\"\\/\u{8}\u{c}\n\r\té😀".to_owned()));
    for bad in [
        r#""\x""#,
        r#""\u12""#,
        r#""\u+123""#,
        r#""\ud83d""#,
        r#""\ud83dx""#,
        r#""\ud83d\u0041""#,
        r#""\ude00""#,
        "\"\n\"",
        "\"",
        "",
    ] {
        assert_eq!(string(bad), None, "{bad:?}");
    }
}

#[test]
fn members_are_as_they_stand() {
    let text = r#" {"a": 1.5, "b" : [1, {"c": "}"}] ,"\u0063":"x\"y", "d": -1e9} "#;
    let expected = [("a", "1.5"), ("b", r#"[1, {"c": "}"}]"#), ("c", r#""x\"y""#), ("d", "-1e9")];
    let found = members(text).unwrap();
    assert_eq!(found.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(), expected);
    assert_eq!(members("{}"), Some(Vec::new()));
    for bad in
        ["", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\":1 \"b\":2}", "{} x", "{a:1}", "{\"a\":01}"]
    {
        assert_eq!(members(bad), None, "{bad:?}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(from_slice::<serde::de::IgnoredAny>(nested(DEPTH_MAX as usize).as_bytes()).is_some());
    assert!(from_slice::<serde::de::IgnoredAny>(nested(DEPTH_MAX as usize + 1).as_bytes()).is_none());
    assert!(from_slice::<serde::de::IgnoredAny>(nested(1_000_000).as_bytes()).is_none());
}
