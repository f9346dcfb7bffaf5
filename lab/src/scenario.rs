//! Scenarios as data: `testdata/scenarios/<name>.yaml`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::backend;
use crate::mode::Mode;
use crate::topology;

/// One scenario, in all its scales.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) replicas: u32,
    scales: BTreeMap<String, Scale>,
    /// What was measured on a real cluster at full scale, by mode.
    field: BTreeMap<Mode, String>,
}

/// The times of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
    /// Path and query of the clients' request.
    pub(crate) request: String,
    /// From the clients' start to the pod's deletion.
    pub(crate) delete_at_s: f64,
    /// HAProxy's `inter`.
    pub(crate) check_inter_ms: u64,
    /// Mode improved: from the failing health answer to the failing readiness answer.
    pub(crate) lb_buffer_s: f64,
    /// Mode current: from the failing health answer to SIGTERM.
    pub(crate) current_sleep_s: f64,
    /// Mode improved: polling ends by then.
    pub(crate) max_wait_s: u32,
    /// Istio's terminationDrainDuration.
    pub(crate) termination_drain_s: f64,
    /// The pod's terminationGracePeriodSeconds.
    pub(crate) grace_s: u32,
}

impl Scenario {
    pub(crate) fn read(name: &str) -> Result<Self> {
        let path = topology::root()?.join("testdata/scenarios").join(format!("{}.yaml", name.to_lowercase()));
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("no scenario {name} ({})", path.display()))?;
        let scenario: Self = serde_saphyr::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        for (scale, times) in &scenario.scales {
            backend::expected_bytes(&times.request)
                .with_context(|| format!("{name}, {scale}: the application has no {}", times.request))?;
        }
        Ok(scenario)
    }

    pub(crate) fn scale(&self, name: &str) -> Result<&Scale> {
        self.scales.get(name).with_context(|| format!("{} has no scale {name}", self.name))
    }

    /// The field's figure beside which ours is printed.
    pub(crate) fn field(&self, mode: Mode) -> &str {
        self.field.get(&mode).map_or("-", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_has_both_scales_and_the_fields_figures() {
        let s1 = Scenario::read("S1").unwrap();
        assert_eq!(s1.scale("full").unwrap().request, "/sleep?seconds=60");
        assert_eq!(s1.scale("scaled").unwrap().check_inter_ms, 500);
        assert_eq!(s1.field(Mode::Current), "502 after 8.25 s");
    }
}
