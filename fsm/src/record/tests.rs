#[cfg(not(target_arch = "wasm32"))]
use std::string::String;
#[cfg(not(target_arch = "wasm32"))]
use std::vec::Vec;

#[cfg(not(target_arch = "wasm32"))]
use proptest::prelude::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::{DistrustReason, Path, Record};
#[cfg(not(target_arch = "wasm32"))]
use crate::machine::tests::any_record;
use crate::plan::{Plan, Preset};
use crate::state::StateName;
use crate::time::Instant;

#[test]
fn the_balancer_hears_200_until_closing_and_readiness_until_closed() {
    for record in crate::machine::tests::one_of_each_state() {
        let state = record.state.name();
        let balancer = matches!(state, StateName::Open | StateName::Draining);
        assert_eq!(record.answer(Path::Balancer).status, if balancer { 200 } else { 503 }, "{state}");
        let readiness = state != StateName::Closed;
        assert_eq!(record.answer(Path::Readiness).status, if readiness { 200 } else { 503 }, "{state}");
    }
}

#[test]
fn an_undecodable_record_is_open_and_distrusted() {
    let record = Record::undecodable(Instant::from_micros(7));
    assert_eq!(record.answer(Path::Balancer).status, 200);
    assert_eq!(record.distrust.unwrap().reason, DistrustReason::Record);
}

/// Shared data survives a push of another module. What one wrote that knew neither presets nor an account of what came after
/// the flip is continued as it was begun.
#[test]
fn a_record_of_a_module_before_presets_is_continued_as_it_was_begun() {
    let seeds: [(&[u8], StateName); 5] = [
        (include_bytes!("../../../fuzz/seeds/record/open"), StateName::Open),
        (include_bytes!("../../../fuzz/seeds/record/draining"), StateName::Draining),
        (include_bytes!("../../../fuzz/seeds/record/closing"), StateName::Closing),
        (include_bytes!("../../../fuzz/seeds/record/closed"), StateName::Closed),
        (include_bytes!("../../../fuzz/seeds/record/fault"), StateName::Fault),
    ];
    for (seed, state) in seeds {
        // Ten bytes of something else come first.
        let text = std::str::from_utf8(&seed[10..]).unwrap();
        for field in ["order", "soft_status", "arrivals", "aftermath", "quest", "\"soft\""] {
            assert!(!text.contains(field), "{state} has {field}: no longer of an older module");
        }
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.state.name(), state);
        if let Some(plan) = record.plan() {
            let plain = Plan::preset(Preset::Haproxy);
            assert_eq!((plan.order, plan.soft_status, plan.arrivals), (plain.order, None, plain.arrivals));
            assert_eq!((plan.arrivals_closing, plan.refuse_status), (plain.arrivals_closing, plain.refuse_status));
        }
        let expected = if matches!(state, StateName::Open | StateName::Draining) { 200 } else { 503 };
        assert_eq!(record.answer(Path::Balancer).status, expected, "{state}");
        assert_eq!((record.deflection(), record.aftermath), (None, None));
        assert_eq!(record.waits_for_zero(), state == StateName::Draining);
    }
}

#[test]
fn a_record_without_what_is_known_of_unheard_probers_still_decodes() {
    const EARLIER: &str = r#"{
        "state": {"OPEN": {"since": 1}}, "distrust": {"reason": "cut", "since_us": 5}, "envoy_drain": null,
        "drains": 1, "changes": 2, "events": [],
        "probers": {"seen": [{"address": "10.0.0.1", "asked": 3, "last_us": 9, "interval_us": 4, "hard": 0, "told_us": null}],
                    "overflowed": false}
    }"#;
    let record: Record = serde_json::from_str(EARLIER).unwrap();
    assert_eq!(record.distrust.unwrap().reason, DistrustReason::Cut);
    assert_eq!((record.lasting_distrust, record.probers.unheard_from(2)), (None, None));
    assert_eq!(record.probers.iter().next().unwrap().interval_us, Some(4));
}

#[cfg(not(target_arch = "wasm32"))]
proptest! {
    #[test]
    fn a_record_survives_json(record in any_record()) {
        let text = serde_json::to_vec(&record).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn garbage_is_an_error_and_never_a_guess(bytes in any::<Vec<u8>>()) {
        prop_assert!(serde_json::from_slice::<Record>(&bytes).is_err());
    }

    #[test]
    fn a_record_cut_short_is_an_error(record in any_record(), part in 0.0..1.0_f64) {
        let text: String = serde_json::to_string(&record).unwrap();
        let cut = (text.len() as f64 * part) as usize;
        prop_assert!(serde_json::from_slice::<Record>(&text.as_bytes()[..cut]).is_err());
    }
}
