//! A bounded run of the fuzz bodies, from their seeds.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test file, helpers included")]

#[path = "../../fuzz/bodies.rs"]
mod bodies;
#[path = "../../fuzz/inputs.rs"]
mod inputs;

use inputs::{any_bytes, bounded, seeds};
use proptest::prelude::*;

proptest! {
    #![proptest_config(bounded())]

    #[test]
    fn no_request_on_the_control_or_health_listener_breaks_anything(bytes in any_bytes("control")) {
        bodies::control(&bytes);
    }

    #[test]
    fn no_bytes_in_place_of_the_record_break_anything(bytes in any_bytes("record")) {
        bodies::record(&bytes);
    }

    #[test]
    fn no_bytes_in_place_of_the_registry_break_anything(bytes in any_bytes("registry")) {
        bodies::registry(&bytes);
    }

    #[test]
    fn no_peer_address_breaks_anything(bytes in any_bytes("probes")) {
        bodies::probes(&bytes);
    }
}

#[test]
fn every_seed_of_a_record_and_a_registry_decodes() {
    for seed in seeds("record") {
        serde_json::from_slice::<softclose_fsm::Record>(&seed[10..]).unwrap();
    }
    for seed in seeds("registry") {
        serde_json::from_slice::<softclose_fsm::Registry>(&seed[8..]).unwrap();
    }
}
