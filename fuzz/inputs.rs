//! Inputs for a bounded run of the fuzz bodies: each is a seed with some of its bytes changed, or noise.

use std::path::Path;

use proptest::prelude::*;

/// What to change: where, to what, and whether to cut there.
type Change = (prop::sample::Index, u8, bool);

/// What a target's corpus begins with.
pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
    // Each package that includes this file lies beside `fuzz/`.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

pub(crate) fn any_bytes(target: &str) -> impl Strategy<Value = Vec<u8>> {
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

/// Thousands of inputs, and no file for those that fail: shrinking names them.
pub(crate) fn bounded() -> ProptestConfig {
    ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() }
}
