//! A bounded run of the fuzz body for the plugin configuration, from its seeds.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test file, helpers included")]

#[path = "../../fuzz/config.rs"]
mod config;
#[path = "../../fuzz/inputs.rs"]
mod inputs;

use inputs::{any_bytes, bounded, seeds};
use proptest::prelude::*;
use softclose_filter::Config;

proptest! {
    #![proptest_config(bounded())]

    #[test]
    fn no_plugin_configuration_breaks_anything(bytes in any_bytes("config")) {
        config::config(&bytes);
    }
}

#[test]
fn the_seeds_reach_a_configuration_of_either_role_and_a_refusal() {
    let outcomes: Vec<_> = seeds("config")
        .iter()
        .map(|seed| match Config::parse(&seed[1..], [&b"gate"[..], b"count"][usize::from(seed[0] % 2)]) {
            Ok(Config::Gate(_)) => "gate",
            Ok(Config::Count { .. }) => "count",
            Err(_) => "refused",
        })
        .collect();
    assert_eq!(outcomes, ["count", "gate", "refused"]);
}
