//! What is deployed on a gateway: which of the shipped manifests, and on what kind of gateway.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::topology;

/// Which manifest, and what is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deployed {
    pub(crate) variant: Variant,
    /// A gateway as Istio configures it ([`crate::istio`]), instead of the one plain listener.
    pub(crate) istio: bool,
}

/// A manifest that users apply: `envoyfilter.yaml`, or one of `deploy/variants`, each described at its top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Variant {
    /// envoyfilter.yaml itself
    #[default]
    Main,
    /// The module pulled by the agent
    Oci,
    /// Counting as a WasmPlugin, an empty vm_id on both sides
    Wasmplugin,
    /// Health on IPv4 and IPv6
    DualStack,
    /// Checks with a PROXY header
    ProxyProtocol,
    /// Control on a socket in the file system
    UnixSocket,
}

/// The control listener's socket in the lab, in the run's folder; the shipped path is the gateway pod's.
pub(crate) const SOCKET: &str = "control.sock";

impl Variant {
    pub(crate) fn path(self, root: &Path) -> PathBuf {
        match self {
            Self::Main => root.join("envoyfilter.yaml"),
            Self::Oci | Self::Wasmplugin | Self::DualStack | Self::ProxyProtocol | Self::UnixSocket => {
                let name = self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
                root.join(format!("deploy/variants/{name}.yaml"))
            }
        }
    }

    /// The arguments of the preStop command, as the gateway chart's values have them.
    pub(crate) fn pre_stop(self, dir: &Path) -> Result<Vec<String>> {
        let file = if self == Self::UnixSocket { "values-unix-socket.yaml" } else { "values.yaml" };
        let values = helm_values(file)?;
        let command = values.pointer("/lifecycle/preStop/exec/command").and_then(Value::as_array);
        let mut words: Vec<String> = command
            .context("no lifecycle.preStop.exec.command")?
            .iter()
            .map(|word| word.as_str().unwrap_or_default().to_owned())
            .collect();
        ensure!(words.first().is_some_and(|word| word == "/opt/softclose/softclose"), "another command: {words:?}");
        words.remove(0);
        for word in words.iter_mut().filter(|word| word.starts_with("unix:")) {
            *word = format!("unix:{}", dir.join(SOCKET).display());
        }
        Ok(words)
    }
}

/// One of `deploy/helm`.
pub(crate) fn helm_values(file: &str) -> Result<Value> {
    let path = topology::root()?.join("deploy/helm").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("in {}", path.display()))
}
