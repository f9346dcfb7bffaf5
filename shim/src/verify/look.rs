//! Which listeners are counted, by Envoy's own configuration. That the filter runs as configured is what the roll call says.

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::dump::{Chain, DynamicListener, Extension, HttpConfig, HttpFilter, Listener, StaticListener};
use super::report::Report;

/// The filter chains by which the filter knows that it is to answer, and not to count.
const HEALTH: &str = "softclose-health";
const CONTROL: &str = "softclose-control";

/// Istio's own listeners of the bootstrap: the agent's readiness, and statistics.
const ISTIO_S_OWN: [u16; 2] = [15021, 15090];

/// Enough of a list to see what is the matter.
const NAMED: usize = 5;

/// What a filter is, by the configuration that it runs with.
#[derive(Debug, PartialEq, Eq)]
enum Is {
    Counting,
    Gate,
    /// Something else runs under the name: the agent's or our own stand-in, of this type.
    StandIn(String),
    /// It is discovered, and nothing was delivered: its default, which lets all pass.
    Undelivered,
    /// Ours, and switched off.
    Disabled,
    /// Not ours.
    Other,
}

/// What keeps a filter chain from being counted as it should be.
#[derive(Debug, PartialEq, Eq)]
enum Lack {
    /// Counted nowhere.
    Filter,
    /// Counted, but what these hold back is not in the count.
    Behind(Vec<String>),
    /// The filter is there by its name only.
    StandIn(String),
    Undelivered,
    Disabled,
}

pub(super) fn at_listeners(
    pushed: &[DynamicListener],
    fixed: &[StaticListener],
    extensions: &[Extension],
    report: &mut Report,
) {
    let (mut health, mut control, mut traffic) = (false, false, 0_usize);
    for dynamic in pushed {
        if let Some(refusal) = &dynamic.error_state {
            let details = refusal.details.lines().next().unwrap_or_default();
            // One that never was has no other name.
            let name = if dynamic.name.is_empty() { &refusal.failed_configuration.name } else { &dynamic.name };
            report.wrong.push(format!("{name}: Envoy refused its last update: {details}"));
        }
        let Some(state) = &dynamic.active_state else {
            if dynamic.warming_state.is_some() {
                report
                    .wrong
                    .push(format!("{}: does not listen yet, it waits for a part of its configuration", dynamic.name));
            }
            continue;
        };
        let listener = &state.listener;
        let named = |name: &str| listener.chains().any(|chain| chain.name == name);
        if named(HEALTH) || named(CONTROL) {
            health |= named(HEALTH);
            control |= named(CONTROL);
            at_ours(listener, extensions, report);
        } else {
            traffic += 1;
            at_traffic(listener, extensions, report);
        }
    }
    for listener in fixed.iter().map(|fixed| &fixed.listener) {
        let port = listener.address.socket_address.as_ref().map(|address| address.port_value);
        if !port.is_some_and(|port| ISTIO_S_OWN.contains(&port)) {
            traffic += 1;
            at_traffic(listener, extensions, report);
        }
    }
    for (there, name) in [(health, HEALTH), (control, CONTROL)] {
        if !there {
            report
                .wrong
                .push(format!("no listener with the filter chain {name}: is the pod's label softclose.dev/gate: v1?"));
        }
    }
    if traffic == 0 {
        report.wrong.push("no traffic listener: is there a Gateway for this pod?".to_owned());
    }
}

/// The names of those that softclose cannot count.
pub(super) fn uncounted(pushed: &[DynamicListener]) -> Vec<String> {
    let active = pushed.iter().filter_map(|dynamic| dynamic.active_state.as_ref());
    active.map(|state| &state.listener).filter(|listener| !limits(listener).is_empty()).map(Listener::place).collect()
}

fn at_ours(listener: &Listener, extensions: &[Extension], report: &mut Report) {
    let place = listener.place();
    for chain in listener.chains() {
        let first = chain.http().and_then(|http| http.http_filters.first());
        match first.map(|filter| what(filter, extensions)) {
            Some(Is::Gate) => report.good.push(format!("{place}: the gate answers there")),
            Some(Is::StandIn(of)) => report.wrong.push(format!("{place}: instead of the gate runs {of}")),
            Some(Is::Undelivered) => {
                report.wrong.push(format!("{place}: the gate was not delivered, or its module cannot be loaded"));
            }
            Some(Is::Disabled) => report.wrong.push(format!("{place}: its first HTTP filter is disabled")),
            Some(Is::Counting | Is::Other) | None => {
                report.wrong.push(format!("{place}: its first HTTP filter is not the gate"));
            }
        }
    }
}

fn at_traffic(listener: &Listener, extensions: &[Extension], report: &mut Report) {
    let place = listener.place();
    for limit in limits(listener) {
        report.uncounted.push(format!("{place}: {limit}"));
    }
    let mut counted = 0;
    let mut lacking: Vec<(Lack, Vec<String>)> = Vec::new();
    for (number, chain) in listener.chains().enumerate() {
        let Some(http) = chain.http() else { continue };
        match lack(&http.http_filters, extensions) {
            None => counted += 1,
            Some(lack) => match lacking.iter_mut().find(|(found, _)| *found == lack) {
                Some((_, chains)) => chains.push(name(chain, number)),
                None => lacking.push((lack, vec![name(chain, number)])),
            },
        }
    }
    if counted > 0 {
        report.good.push(format!("{place}: the counting filter comes first, on {}", plural(counted, "filter chain")));
    }
    for (lack, chains) in lacking {
        report.wrong.push(format!("{place}: {}; on {}", lack.text(), some_of(&chains)));
    }
}

/// What of a listener's traffic is no HTTP that a filter sees.
fn limits(listener: &Listener) -> Vec<String> {
    if listener.is_quic() {
        return vec!["HTTP/3: its requests are counted, but a balancer's checks say nothing of UDP".to_owned()];
    }
    if listener.is_udp() {
        return vec!["UDP is not counted".to_owned()];
    }
    let raw = |(_, chain): &(usize, &Chain)| chain.http().is_none();
    let raw: Vec<String> =
        listener.chains().enumerate().filter(raw).map(|(number, chain)| name(chain, number)).collect();
    if raw.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "TCP connections (also TLS passed through) are not counted, and cut when the pod ends; on {}",
        some_of(&raw)
    )]
}

fn lack(filters: &[HttpFilter], extensions: &[Extension]) -> Option<Lack> {
    let kinds: Vec<Is> = filters.iter().map(|filter| what(filter, extensions)).collect();
    if let Some(at) = kinds.iter().position(|kind| *kind == Is::Counting) {
        let before: Vec<String> = filters.iter().take(at).map(|filter| filter.name.clone()).collect();
        return Some(before).filter(|before| !before.is_empty()).map(Lack::Behind);
    }
    kinds
        .into_iter()
        .find_map(|kind| match kind {
            Is::StandIn(of) => Some(Lack::StandIn(of)),
            Is::Undelivered => Some(Lack::Undelivered),
            Is::Disabled => Some(Lack::Disabled),
            Is::Counting | Is::Gate | Is::Other => None,
        })
        .or(Some(Lack::Filter))
}

fn what(filter: &HttpFilter, extensions: &[Extension]) -> Is {
    let is = runs(filter, extensions);
    let ours = is == Is::Counting || is == Is::Gate;
    if ours && filter.disabled { Is::Disabled } else { is }
}

/// What runs where the filter does.
fn runs(filter: &HttpFilter, extensions: &[Extension]) -> Is {
    if filter.config_discovery.is_none() {
        return filter.typed_config.as_ref().and_then(|config| role(&filter.name, config)).unwrap_or(Is::Other);
    }
    let delivered = extensions.iter().map(|extension| &extension.ecds_filter).find(|found| found.name == filter.name);
    match delivered {
        Some(delivered) => match role(&filter.name, &delivered.typed_config) {
            Some(role) => role,
            None if filter.name.contains("softclose") => {
                let of = &delivered.typed_config.of;
                Is::StandIn(of.rsplit('.').next().unwrap_or(of).to_owned())
            }
            None => Is::Other,
        },
        None if filter.name.contains("softclose") => Is::Undelivered,
        None => Is::Other,
    }
}

/// The role of a Wasm filter of ours, as the module itself reads it: its own configuration names it, else the VM's.
fn role(name: &str, config: &HttpConfig) -> Option<Is> {
    if !config.of.ends_with(".Wasm") {
        return None;
    }
    let plugin = &config.config;
    let text = |pointer: &str| plugin.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let named = match plugin.pointer("/configuration/value") {
        Some(Value::String(json)) => serde_json::from_str(json).unwrap_or_default(),
        Some(other) => other.clone(),
        None => Value::Null,
    };
    let ours = [name, text("/name"), text("/root_id"), text("/vm_config/vm_id")];
    match named.pointer("/role").and_then(Value::as_str) {
        Some("gate") => Some(Is::Gate),
        Some("count") => Some(Is::Counting),
        Some(_) | None if !ours.iter().any(|name| name.contains("softclose")) => None,
        Some(_) | None if text("/vm_config/configuration/value").trim() == "gate" => Some(Is::Gate),
        Some(_) | None => Some(Is::Counting),
    }
}

impl Lack {
    fn text(&self) -> String {
        match self {
            Self::Filter => "not counted: no counting filter".to_owned(),
            Self::Behind(filters) => {
                format!("softclose does not come first: what waits in {} is not counted", some_of(filters))
            }
            Self::StandIn(of) => {
                format!(
                    "not counted: instead of the counting filter runs {of}, the stand-in for a module that was not pulled"
                )
            }
            Self::Undelivered => {
                "not counted: the counting filter was not delivered, or its module cannot be loaded".to_owned()
            }
            Self::Disabled => "not counted: the counting filter is disabled".to_owned(),
        }
    }
}

fn name(chain: &Chain, number: usize) -> String {
    if chain.name.is_empty() { format!("filter chain {}", number + 1) } else { chain.name.clone() }
}

fn some_of(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(NAMED).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// `1 thing`, `2 things`.
pub(super) fn plural(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
