//! The shared registry of bells: who listens, and how they are woken.

use softclose_fsm::{Enrolled, Instant, Registry, Slot};

use crate::host::{self, CAS_ABSENT, Level};
use crate::json;

/// Its key.
const REGISTRY: &str = "softclose.1.registry";

/// How often a lost race for the registry is run again; as for the record, reaching it is a defect of the host.
const LOSSES_MAX: usize = 256;

/// The registry as it is now.
pub(crate) fn registry() -> Registry {
    load().0
}

/// Wakes every VM.
pub(crate) fn ring() {
    for slot in registry().slots() {
        // A queue that is gone belonged to a VM that is gone; its slot is dropped at the next roll call or publication.
        let _ = host::enqueue(slot.bell, b"");
    }
}

/// Whether `slot` is in the registry. If not, its VM is missing from the roll call, so that no drain is called clean.
pub(crate) fn publish(slot: &Slot, now: Instant) -> bool {
    let published = update(|registry| registry.publish(slot.clone(), now));
    match published {
        Some(Enrolled::Published) => {}
        Some(Enrolled::Full) => host::log(Level::Error, "softclose: the registry is full; this VM cannot be rung"),
        None => host::log(Level::Error, "softclose: the registry was not written; this VM cannot be rung"),
    }
    published == Some(Enrolled::Published)
}

fn load() -> (Registry, u32) {
    match host::shared(REGISTRY) {
        // One that does not decode is begun anew. Who is not in it is not rung, does not answer, and is missing.
        Ok(shared) => (json::from_slice(&shared.value).unwrap_or_default(), shared.cas),
        Err(_) => (Registry::default(), CAS_ABSENT),
    }
}

/// Replaces the registry by a changed one; none if that was not possible.
pub(crate) fn update<T>(change: impl Fn(&mut Registry) -> T) -> Option<T> {
    for _ in 0..LOSSES_MAX {
        let (mut registry, cas) = load();
        let changed = change(&mut registry);
        let bytes = serde_json::to_vec(&registry).ok()?;
        if host::set_shared(REGISTRY, &bytes, cas).is_ok() {
            return Some(changed);
        }
    }
    None
}
