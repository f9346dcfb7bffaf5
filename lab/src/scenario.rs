//! Scenarios as data: `testdata/scenarios/<name>.yaml`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use softclose_fsm::Preset;

use crate::curl::Protocol;
use crate::mode::Mode;
use crate::network::PODS_MAX;
use crate::traffic::{self, Stream};
use crate::{backend, busy, topology};

/// One scenario, in all its scales.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) replicas: u8,
    /// The clients' protocols; both if none is named. A load has its own.
    #[serde(default)]
    pub(crate) protocols: Vec<Protocol>,
    scales: BTreeMap<String, Scale>,
    /// What was measured on a real cluster at full scale, by mode.
    field: BTreeMap<Mode, String>,
}

/// The times of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
    /// How much shorter than in the field the times are that belong to a mode and not to the scenario.
    pub(crate) shrink: f64,
    /// Path and query of the clients' request; empty in a rolling restart, which has a load.
    #[serde(default)]
    pub(crate) request: String,
    /// The load of a rolling restart.
    #[serde(default)]
    pub(crate) load: Vec<Stream>,
    /// From the end of a rolling restart to the end of its load.
    #[serde(default)]
    pub(crate) tail_s: f64,
    /// The balancer takes a 404 for "nothing new, finish what you have" (`http-check disable-on-404`), and softclose says so
    /// (`--preset haproxy-soft`).
    #[serde(default)]
    pub(crate) soft: bool,
    /// `softclose prestop --settle`, where it is not the default.
    #[serde(default)]
    pub(crate) settle_ms: Option<u64>,
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

impl Scale {
    /// Softclose's preset for this balancer.
    pub(crate) fn preset(&self) -> Preset {
        if self.soft { Preset::HaproxySoft } else { Preset::Haproxy }
    }

    /// A time of the field's on this scale.
    pub(crate) fn shrunk(&self, time: Duration) -> Duration {
        time.mul_f64(self.shrink)
    }
}

impl Scenario {
    pub(crate) fn read(name: &str) -> Result<Self> {
        let path = topology::root()?.join("testdata/scenarios").join(format!("{}.yaml", name.to_lowercase()));
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("no scenario {name}, there are {}", Self::names().unwrap_or_default().join(", "))
        })?;
        let scenario: Self = serde_saphyr::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        scenario.check().with_context(|| format!("in {}", path.display()))?;
        Ok(scenario)
    }

    /// Whether pods are restarted one after the other under load, as opposed to one deletion under single requests.
    pub(crate) fn is_rolling(&self) -> bool {
        self.replicas > 1
    }

    /// The names of all scenarios.
    pub(crate) fn names() -> Result<Vec<String>> {
        let folder = topology::root()?.join("testdata/scenarios");
        let entries = std::fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
        let names = entries.filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_uppercase()));
        // Its file has a form of its own.
        let mut names: Vec<String> = names.filter(|name| !name.eq_ignore_ascii_case(busy::NAME)).collect();
        names.sort();
        Ok(names)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            self.replicas < PODS_MAX,
            "replicas is {}, must be less than {PODS_MAX}: one pod is added",
            self.replicas
        );
        for (scale, times) in &self.scales {
            let shrink = times.shrink;
            ensure!(shrink > 0.0 && shrink <= 1.0, "{scale}: shrink is {shrink}, must be more than 0 and at most 1");
            if self.is_rolling() {
                ensure!(times.request.is_empty(), "{scale}: request is for one replica, a rolling restart has a load");
                ensure!(!times.load.is_empty(), "{scale}: load is empty, a rolling restart needs one");
                traffic::check(&times.load).with_context(|| scale.clone())?;
            } else {
                ensure!(
                    times.load.is_empty(),
                    "{scale}: load is for a rolling restart, and replicas is {}",
                    self.replicas
                );
                backend::expected_bytes(&times.request)
                    .with_context(|| format!("{scale}: the application has no {:?}", times.request))?;
            }
        }
        Ok(())
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
    fn every_scenario_can_be_played_in_both_scales() {
        assert_eq!(Scenario::names().unwrap(), ["S1", "S2", "S3", "S4"]);
        for name in Scenario::names().unwrap() {
            let scenario = Scenario::read(&name).unwrap();
            let (scaled, full) = (scenario.scale("scaled").unwrap(), scenario.scale("full").unwrap());
            assert!(scaled.shrink < full.shrink, "{name}");
        }
    }

    #[test]
    fn s1_has_both_scales_and_the_fields_figures() {
        let s1 = Scenario::read("S1").unwrap();
        assert_eq!(s1.scale("full").unwrap().request, "/sleep?seconds=60");
        assert_eq!(s1.scale("scaled").unwrap().check_inter_ms, 500);
        assert_eq!(s1.field(Mode::Current), "502 after 8.25 s");
    }
}
