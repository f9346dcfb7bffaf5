//! The parts of Envoy's `/config_dump` and `/server_info` that matter. What has no place here is read past.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// `/config_dump?resource=..`: the elements of one list.
#[derive(Debug, Deserialize)]
pub(super) struct Dump<T> {
    /// Absent where there is none.
    #[serde(default = "Vec::new")]
    pub(super) configs: Vec<T>,
}

/// A listener that the control plane has pushed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DynamicListener {
    pub(super) name: String,
    pub(super) active_state: Option<State>,
    pub(super) warming_state: Option<State>,
    /// Why its last update was refused.
    pub(super) error_state: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
pub(super) struct State {
    pub(super) listener: Listener,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) details: String,
    pub(super) failed_configuration: Named,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) name: String,
}

/// A listener of the bootstrap.
#[derive(Debug, Deserialize)]
pub(super) struct StaticListener {
    pub(super) listener: Listener,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) filter_chains: Vec<Chain>,
    pub(super) default_filter_chain: Option<Chain>,
    pub(super) udp_listener_config: Option<Udp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Address {
    pub(super) socket_address: Option<SocketAddress>,
    pub(super) pipe: Option<Pipe>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SocketAddress {
    pub(super) protocol: String,
    pub(super) address: String,
    pub(super) port_value: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pipe {
    pub(super) path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Udp {
    pub(super) quic_options: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) filters: Vec<NetworkFilter>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NetworkFilter {
    pub(super) name: String,
    pub(super) typed_config: NetworkConfig,
}

/// Of the HTTP connection manager, or of another whose fields are read past.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NetworkConfig {
    #[serde(rename = "@type")]
    pub(super) of: String,
    pub(super) http_filters: Vec<HttpFilter>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HttpFilter {
    pub(super) name: String,
    /// Its configuration is one of the [`Extension`]s.
    pub(super) config_discovery: Option<IgnoredAny>,
    pub(super) typed_config: Option<HttpConfig>,
    /// It runs nowhere but where a route asks for it.
    #[serde(default)]
    pub(super) disabled: bool,
}

/// The configuration of an HTTP filter.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HttpConfig {
    #[serde(rename = "@type")]
    pub(super) of: String,
    /// Of a Wasm filter its plugin; in others anything.
    pub(super) config: Value,
}

/// The configuration of a discovered filter, as it was delivered. Envoy shows it also where it could not make a filter of it.
#[derive(Debug, Deserialize)]
pub(super) struct Extension {
    pub(super) ecds_filter: NamedConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedConfig {
    pub(super) name: String,
    pub(super) typed_config: HttpConfig,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServerInfo {
    #[serde(default)]
    pub(super) command_line_options: Options,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Options {
    pub(super) concurrency: u32,
    pub(super) drain_time: String,
    pub(super) drain_strategy: String,
}

impl Listener {
    /// Every filter chain.
    pub(super) fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.filter_chains.iter().chain(&self.default_filter_chain)
    }

    /// Whether UDP arrives there: HTTP/3, or something that is not HTTP at all.
    pub(super) fn is_udp(&self) -> bool {
        self.udp_listener_config.is_some()
            || self.address.socket_address.as_ref().is_some_and(|address| address.protocol == "UDP")
    }

    /// Whether HTTP/3 does.
    pub(super) fn is_quic(&self) -> bool {
        self.udp_listener_config.as_ref().is_some_and(|udp| udp.quic_options.is_some())
    }

    /// Name and address.
    pub(super) fn place(&self) -> String {
        let address = match (&self.address.socket_address, &self.address.pipe) {
            (Some(SocketAddress { address, port_value, .. }), _) if address.contains(':') => {
                format!("[{address}]:{port_value}")
            }
            (Some(SocketAddress { address, port_value, .. }), _) => format!("{address}:{port_value}"),
            (None, Some(pipe)) => pipe.path.clone(),
            (None, None) => return self.name.clone(),
        };
        if self.name.is_empty() { address } else { format!("{} ({address})", self.name) }
    }
}

impl Chain {
    /// Its HTTP connection manager.
    pub(super) fn http(&self) -> Option<&NetworkConfig> {
        let manager = |filter: &&NetworkFilter| filter.typed_config.of.ends_with(".HttpConnectionManager");
        self.filters.iter().find(manager).map(|filter| &filter.typed_config)
    }
}
