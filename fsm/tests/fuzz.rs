//! A bounded run of the fuzz bodies, from their seeds: each input is a seed with some of its bytes changed, or noise.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test file, helpers included")]

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use proptest::prelude::*;

/// What to change: where, to what, and whether to cut there.
type Change = (prop::sample::Index, u8, bool);

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn any_bytes(target: &str) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), prop::bool::weighted(0.05)), 0..6);
    let changed = (prop::sample::select(seeds(target)), changes).prop_map(|(mut bytes, changes): (_, Vec<Change>)| {
        for (at, to, cut) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            bytes[at] = to;
            if cut {
                bytes.truncate(at);
            }
        }
        bytes
    });
    prop_oneof![4 => changed, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

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
