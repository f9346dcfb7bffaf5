//! A shipped manifest, `envoyfilter.yaml` or a variant of it, read the way istiod and the agent would apply it to a gateway pod.
//!
//! Listeners, filters and plugin configuration are taken from the file as they are. Three things differ, because there is
//! no istiod here: extension configurations come from files instead of ADS, and module and sockets lie elsewhere on disk. A
//! patch that this reader does not know is an error, so that the lab never tests less than what is shipped.

pub(crate) mod agent;
mod wasm_plugin;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::deployed::{Deployed, SOCKET};

const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
const LISTENER_TYPE: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const EXTENSION_TYPE: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// The patches of the file, sorted by what they do.
#[derive(Debug)]
pub(crate) struct Manifest {
    extensions: Vec<Value>,
    first_filters: Vec<Value>,
    listeners: Vec<Value>,
}

/// Deliberate departures from the shipped file, for the runs that show what happens then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    /// Which manifest, on which kind of gateway.
    pub(crate) deployed: Deployed,
    /// Plugin configuration of the `gate` role.
    pub(crate) gate: Option<String>,
    /// Plugin configuration of the `count` role.
    pub(crate) count: Option<String>,
    /// Leaves the traffic listener without the counting filter.
    pub(crate) without_count: bool,
    /// The module of both roles.
    pub(crate) module: Option<PathBuf>,
    /// Changes to the bootstrap, made last.
    pub(crate) bootstrap: Vec<Edit>,
    /// Changes to the list of listeners, made last.
    pub(crate) listeners: Vec<Edit>,
}

/// A change to a part of the configuration.
pub(crate) type Edit = fn(&mut Value) -> Result<()>;

/// What Envoy is given.
pub(crate) struct Resolved {
    /// LDS resources: those that were there first, then the added ones.
    pub(crate) listeners: Vec<Value>,
    /// Extension configurations by name, each for a file `ecds-<name>.json`.
    pub(crate) extensions: Vec<(String, Value)>,
}

impl Manifest {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    pub(crate) fn parse(yaml: &str) -> Result<Self> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("not YAML")?;
        let mut manifest = Self { extensions: Vec::new(), first_filters: Vec::new(), listeners: Vec::new() };
        for document in &documents {
            match document.get("kind").and_then(Value::as_str) {
                Some("WasmPlugin") => {
                    manifest.extensions.push(wasm_plugin::extension(document)?);
                    manifest.first_filters.push(wasm_plugin::filter(document)?);
                }
                _ => manifest.add(document)?,
            }
        }
        Ok(manifest)
    }

    /// Sorts the patches of an EnvoyFilter in.
    fn add(&mut self, document: &Value) -> Result<()> {
        let patches = document.pointer("/spec/configPatches").and_then(Value::as_array);
        for patch in patches.context("no spec.configPatches")? {
            let field = |pointer: &str| patch.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let value = patch.pointer("/patch/value").cloned().context("a patch without value")?;
            ensure!(field("/match/context") == "GATEWAY", "a patch outside the context GATEWAY");
            match (field("/applyTo"), field("/patch/operation")) {
                ("EXTENSION_CONFIG", "ADD") => self.extensions.push(value),
                ("LISTENER", "ADD") => self.listeners.push(value),
                ("HTTP_FILTER", "INSERT_FIRST") => {
                    let to = field("/match/listener/filterChain/filter/name");
                    ensure!(to == HTTP_CONNECTION_MANAGER, "INSERT_FIRST into {to:?}, which this lab does not do");
                    self.first_filters.push(value);
                }
                (apply_to, operation) => bail!("the lab does not know the patch {apply_to} {operation}"),
            }
        }
        Ok(())
    }

    /// Applies the patches to the gateway's own listeners. Like istiod, HTTP_FILTER patches reach the listeners
    /// that were there before, not the ones that this file adds.
    pub(crate) fn resolve(
        self,
        mut listeners: Vec<Value>,
        module: &Path,
        dir: &Path,
        overrides: &Overrides,
    ) -> Result<Resolved> {
        if !overrides.without_count {
            for mut filter in self.first_filters {
                read_from_files(&mut filter, dir)?;
                insert_first(&mut listeners, &filter)?;
            }
        }
        for mut listener in self.listeners {
            ensure!(read_from_files(&mut listener, dir)? > 0, "an added listener discovers no filter");
            if let Some(path) = listener.pointer_mut("/address/pipe/path") {
                *path = json!(dir.join(SOCKET));
            }
            listener
                .as_object_mut()
                .context("a listener is not a mapping")?
                .insert("@type".into(), LISTENER_TYPE.into());
            listeners.push(listener);
        }
        let mut extensions = Vec::new();
        for mut extension in self.extensions {
            let name = extension.get("name").and_then(Value::as_str).context("an extension without name")?.to_owned();
            agent::pull(&mut extension)?;
            *at(&mut extension, "/typed_config/config/vm_config/code/local/filename")? = json!(module);
            let other = if name.ends_with("gate") { &overrides.gate } else { &overrides.count };
            if let Some(configuration) = other {
                *at(&mut extension, "/typed_config/config/configuration/value")? = json!(configuration);
            }
            extension
                .as_object_mut()
                .context("an extension is not a mapping")?
                .insert("@type".into(), EXTENSION_TYPE.into());
            extensions.push((name, extension));
        }
        Ok(Resolved { listeners, extensions })
    }
}

/// The file of an extension configuration.
pub(crate) fn extension_file(name: &str) -> String {
    format!("ecds-{}.json", name.replace('/', "_"))
}

pub(crate) fn at<'a>(value: &'a mut Value, pointer: &str) -> Result<&'a mut Value> {
    value.pointer_mut(pointer).with_context(|| format!("the manifest has no {pointer}"))
}

/// Turns every `config_discovery` over ADS into one over a file; returns how many there were.
fn read_from_files(value: &mut Value, dir: &Path) -> Result<usize> {
    let name = value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut found = 0;
    match value {
        Value::Object(fields) => {
            if let Some(source) = fields.get_mut("config_discovery").and_then(|found| found.get_mut("config_source")) {
                let source = source.as_object_mut().context("config_source is not a mapping")?;
                ensure!(source.remove("ads").is_some(), "the filter {name} is not discovered over ADS");
                let path = dir.join(extension_file(&name));
                source.insert("path_config_source".into(), json!({ "path": path }));
                found += 1;
            }
            for field in fields.values_mut() {
                found += read_from_files(field, dir)?;
            }
        }
        Value::Array(items) => {
            for item in items {
                found += read_from_files(item, dir)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(found)
}

fn insert_first(listeners: &mut [Value], filter: &Value) -> Result<()> {
    let mut inserted = 0;
    for listener in listeners {
        let chains = at(listener, "/filter_chains")?.as_array_mut().context("filter_chains is not a list")?;
        for chain in chains {
            let filters = at(chain, "/filters")?.as_array_mut().context("filters is not a list")?;
            for network in filters {
                if network.get("name").and_then(Value::as_str) == Some(HTTP_CONNECTION_MANAGER) {
                    let http = at(network, "/typed_config/http_filters")?;
                    http.as_array_mut().context("http_filters is not a list")?.insert(0, filter.clone());
                    inserted += 1;
                }
            }
        }
    }
    ensure!(inserted > 0, "no HTTP connection manager to insert into");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> (Value, Manifest) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoyfilter.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        (serde_saphyr::from_str(&text).unwrap(), Manifest::parse(&text).unwrap())
    }

    fn traffic() -> Value {
        json!({"name": "t", "filter_chains": [{"filters": [
            {"name": HTTP_CONNECTION_MANAGER, "typed_config": {"http_filters": [{"name": "router"}]}}]}]})
    }

    fn resolve(overrides: &Overrides) -> Resolved {
        shipped().1.resolve(vec![traffic()], Path::new("/m.wasm"), Path::new("/run"), overrides).unwrap()
    }

    #[test]
    fn added_listeners_are_those_of_the_file_but_for_where_filters_are_discovered() {
        let (document, _) = shipped();
        let mut expected: Vec<Value> = document["spec"]["configPatches"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|patch| patch["applyTo"] == "LISTENER")
            .map(|patch| patch["patch"]["value"].clone())
            .collect();
        assert_eq!(expected.len(), 2);
        for listener in &mut expected {
            let filter = &mut listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0];
            let source = filter["config_discovery"]["config_source"].as_object_mut().unwrap();
            source.remove("ads").unwrap();
            source.insert("path_config_source".into(), json!({"path": "/run/ecds-softclose-gate.json"}));
            listener["@type"] = json!(LISTENER_TYPE);
        }
        assert_eq!(resolve(&Overrides::default()).listeners[1..], expected[..]);
    }

    #[test]
    fn only_the_file_name_of_the_module_differs_in_the_extensions() {
        let (document, _) = shipped();
        let resolved = resolve(&Overrides::default());
        let names: Vec<&str> = resolved.extensions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["softclose-count", "softclose-gate"]);
        for ((_, got), patch) in resolved.extensions.iter().zip(document["spec"]["configPatches"].as_array().unwrap()) {
            let mut wanted = patch["patch"]["value"].clone();
            wanted["typed_config"]["config"]["vm_config"]["code"]["local"]["filename"] = json!("/m.wasm");
            wanted["@type"] = json!(EXTENSION_TYPE);
            assert_eq!(*got, wanted);
        }
    }

    #[test]
    fn counting_comes_first_on_the_traffic_listener() {
        let filters = |resolved: Resolved| {
            let http =
                resolved.listeners[0].pointer("/filter_chains/0/filters/0/typed_config/http_filters").unwrap().clone();
            http.as_array()
                .unwrap()
                .iter()
                .map(|filter| filter["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(filters(resolve(&Overrides::default())), ["softclose-count", "router"]);
        let without = Overrides { without_count: true, ..Overrides::default() };
        assert_eq!(filters(resolve(&without)), ["router"]);
    }

    #[test]
    fn a_patch_that_the_lab_does_not_know_is_refused() {
        let yaml = "spec: {configPatches: [{applyTo: CLUSTER, match: {context: GATEWAY}, patch: {operation: MERGE, value: {}}}]}";
        assert!(Manifest::parse(yaml).unwrap_err().to_string().contains("CLUSTER MERGE"));
    }

    fn variant(name: &str) -> Resolved {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../deploy/variants/{name}.yaml"));
        let manifest = Manifest::read(&path).unwrap();
        manifest.resolve(vec![traffic()], Path::new("/m.wasm"), Path::new("/run"), &Overrides::default()).unwrap()
    }

    #[test]
    fn a_pulled_module_is_to_envoy_the_same_as_one_from_a_file() {
        let (main, pulled) = (resolve(&Overrides::default()), variant("oci"));
        assert_eq!((main.listeners, main.extensions), (pulled.listeners, pulled.extensions));
    }

    #[test]
    fn a_variant_differs_from_the_main_file_in_one_listener_alone() {
        let main = resolve(&Overrides::default());
        for (name, other, at) in [
            ("dual-stack", 1, "/address/socket_address"),
            ("proxy-protocol", 1, "/listener_filters"),
            ("unix-socket", 2, "/address/pipe"),
        ] {
            let variant = variant(name);
            assert_eq!(main.extensions, variant.extensions, "{name}");
            let differ = |number: &usize| main.listeners[*number] != variant.listeners[*number];
            assert_eq!((0..3).filter(differ).collect::<Vec<_>>(), [other], "{name}");
            assert!(variant.listeners[other].pointer(at).is_some(), "{name}");
        }
    }

    #[test]
    fn beside_a_wasm_plugin_nobody_names_a_vm_and_the_roles_still_have_one_each() {
        let variant = variant("wasmplugin");
        let vm = |extension: &Value| extension["typed_config"]["config"]["vm_config"].clone();
        let vms: Vec<Value> = variant.extensions.iter().map(|(_, extension)| vm(extension)).collect();
        assert_eq!(vms.len(), 2);
        assert!(vms.iter().all(|vm| vm.get("vm_id").is_none()), "{vms:?}");
        assert_ne!(vms[0].get("configuration"), vms[1].get("configuration"));
        let counting = &variant.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0];
        assert!(variant.extensions.iter().any(|(name, _)| counting["name"] == *name));
    }
}
