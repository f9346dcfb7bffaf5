//! One Envoy with a listener for each thing that is compared, so that all of them share one process, one allocator and
//! one moment; and what the kernel says of that process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::process::Command;

use super::instructions;
use crate::envoy::Admin;
use crate::foreign::ENVOY;
use crate::manifest::{Manifest, Overrides, extension_file};
use crate::process::{Process, cpu, log_ends};
use crate::{topology, wait};

/// The first of the compared listeners' ports.
const FIRST_PORT: u16 = 28100;
/// The application that answers `/fast` behind the gateway; the lab's own is slower than Envoy.
const APPLICATION_PORT: u16 = 29081;
const APPLICATION: &str = "outbound|8081||fast.default.svc.cluster.local";
const START_LIMIT: Duration = Duration::from_secs(60);
/// Under valgrind all is some fifty times slower; twenty seconds were measured.
const COUNTED_START_LIMIT: Duration = Duration::from_secs(180);
/// Requests that two VMs may not have reported yet: the filter reports every 64th.
const UNREPORTED_MAX: u64 = 2 * 64;
const CONNECTION_MANAGER: &str = "/filter_chains/0/filters/0/typed_config";

/// What stands first in the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Variant {
    /// Nothing: what all others are compared with.
    None,
    /// The module that is shipped.
    Shipped,
    /// The same module with all of the SDK's exports.
    AllExports,
    /// A module that is called as often as the shipped one, and does nothing.
    Empty,
    /// A counter in Lua, as a measure of what a script would cost. It counts per worker and misses resets.
    Lua,
}

/// What the listener does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Route {
    /// Answers it.
    Direct,
    /// Passes it on to another Envoy, which answers it.
    Proxied,
    /// The same, as gateways at the edge do it: TLS ends here, and each request has its line in the access log.
    Edge,
}

impl Variant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "no filter",
            Self::Shipped => "softclose",
            Self::AllExports => "all exports",
            Self::Empty => "empty calls",
            Self::Lua => "Lua counter",
        }
    }
}

impl Variant {
    /// It reports the requests that it sees.
    fn counts(self) -> bool {
        match self {
            Self::Shipped | Self::AllExports => true,
            Self::None | Self::Empty | Self::Lua => false,
        }
    }
}

impl Route {
    pub(crate) const ALL: [Self; 3] = [Self::Direct, Self::Proxied, Self::Edge];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxied => "proxied",
            Self::Edge => "edge",
        }
    }
}

/// A listener to be.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) route: Route,
    pub(crate) variant: Variant,
    /// The module of a Wasm variant.
    pub(crate) module: Option<PathBuf>,
}

/// A listener that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) route: Route,
    pub(crate) variant: Variant,
    pub(crate) port: u16,
}

/// The running gateway and the application behind it. Both end when dropped.
pub(crate) struct Gateway {
    envoy: Process,
    _application: Process,
    pub(crate) listeners: Vec<Listener>,
}

impl Gateway {
    pub(crate) async fn start(plans: &[Plan], workers: u16, dir: &Path) -> Result<Self> {
        Self::start_as(plans, dir, START_LIMIT, |bootstrap| envoy_command(bootstrap, workers)).await
    }

    /// One worker, under a valgrind that counts its instructions.
    pub(crate) async fn start_counted(plans: &[Plan], dir: &Path) -> Result<Self> {
        Self::start_as(plans, dir, COUNTED_START_LIMIT, |bootstrap| {
            instructions::counted(&envoy_command(bootstrap, 1), dir)
        })
        .await
    }

    async fn start_as(
        plans: &[Plan],
        dir: &Path,
        limit: Duration,
        command: impl FnOnce(&Path) -> Command,
    ) -> Result<Self> {
        topology::ports_are_free().await?;
        ensure!(!topology::listens(APPLICATION_PORT), "port {APPLICATION_PORT} is taken by another program");
        let mut resources = Vec::new();
        let mut listeners = Vec::new();
        let mut gate_is_there = false;
        for (plan, port) in plans.iter().zip(FIRST_PORT..) {
            let mut of_plan = plan.listeners(port, dir)?.into_iter();
            resources.extend(of_plan.next());
            // Health and control belong to the gateway, not to each listener.
            if plan.variant == Variant::Shipped && !gate_is_there {
                gate_is_there = true;
                resources.extend(of_plan);
            }
            listeners.push(Listener { route: plan.route, variant: plan.variant, port });
        }
        write(&dir.join("lds.json"), &json!({ "version_info": "1", "resources": resources }))?;
        let bootstrap = dir.join("bootstrap.json");
        write(&bootstrap, &with_application(template("bootstrap.yaml", dir)?)?)?;
        let application = application(dir).await?;
        let mut envoy = Process::start("envoy", command(&bootstrap), dir)?;
        let admin = Admin::new();
        let up = async || match envoy.assert_running(dir) {
            Err(early) => Some(Err(early)),
            Ok(()) => admin.ready().await.then_some(Ok(())),
        };
        let waited = wait::until("Envoy is LIVE", limit, up).await;
        waited.flatten().with_context(|| format!("Envoy did not start, {}", log_ends(dir, "envoy")))?;
        if gate_is_there {
            crate::ground::gate_answers().await?;
        }
        Ok(Self { envoy, _application: application, listeners })
    }

    /// Processor time that Envoy has used so far, over all of its threads.
    pub(crate) fn cpu(&mut self) -> Result<Duration> {
        cpu(self.envoy.id())
    }

    /// Resident memory, in MiB.
    pub(crate) fn resident_mib(&mut self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.pid()?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is not a number of kB")?;
        Ok(kib / 1024.0)
    }

    /// Requests that a listener has taken since the start.
    pub(crate) async fn requests(&self, listener: Listener) -> Result<u64> {
        self.stat(listener, "downstream_rq_total").await
    }

    /// A number that Envoy keeps for a listener's requests.
    pub(crate) async fn stat(&self, listener: Listener, name: &str) -> Result<u64> {
        self.number(&format!("http.{}.{name}", prefix(listener.route, listener.variant))).await
    }

    async fn number(&self, name: &str) -> Result<u64> {
        let page = Admin::new().page(&format!("/stats?filter=%5E{name}%24")).await.map_err(anyhow::Error::msg)?;
        let value = page.trim().rsplit(": ").next().and_then(|value| value.parse().ok());
        value.with_context(|| format!("no {name} in {page:?}"))
    }

    /// That the filter was there: a listener that fell back to its default configuration is a cheap one.
    pub(crate) async fn has_counted_all(&self) -> Result<()> {
        let mut sent = 0;
        for listener in self.listeners.iter().filter(|listener| listener.variant.counts()) {
            sent += self.requests(*listener).await?;
        }
        let counted = self.number("wasmcustom.softclose_requests").await?;
        // Each VM keeps up to a batch to itself; two modules, one worker.
        ensure!(sent > 0 && counted + UNREPORTED_MAX >= sent, "the filter has counted {counted} of {sent} requests");
        Ok(())
    }

    /// The process id of Envoy, or of the valgrind around it.
    pub(crate) fn envoy_id(&self) -> i32 {
        self.envoy.id()
    }

    fn pid(&mut self) -> Result<u32> {
        self.envoy.child().id().context("Envoy has ended")
    }
}

impl Listener {
    /// Where a load goes.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.route {
            Route::Direct | Route::Proxied => "http",
            Route::Edge => "https",
        };
        format!("{scheme}://{}/fast", topology::local(self.port))
    }
}

impl Plan {
    /// The listener itself, then those that come with its filter.
    fn listeners(&self, port: u16, dir: &Path) -> Result<Vec<Value>> {
        let mut listener = template("traffic-listener.yaml", dir)?;
        set(&mut listener, "/name", json!(format!("127.0.0.1_{port}")))?;
        set(&mut listener, "/address/socket_address/port_value", json!(port))?;
        set(&mut listener, &format!("{CONNECTION_MANAGER}/stat_prefix"), json!(prefix(self.route, self.variant)))?;
        let routes = format!("{CONNECTION_MANAGER}/route_config/virtual_hosts/0/routes");
        let routes = listener.pointer_mut(&routes).and_then(Value::as_array_mut).context("no routes")?;
        let mut fast = routes.first().cloned().context("no route")?;
        match self.route {
            Route::Direct => {
                let answer = json!({ "status": 200, "body": { "inline_string": "ok\n" } });
                fast = json!({ "match": { "prefix": "/fast" }, "direct_response": answer });
            }
            Route::Proxied | Route::Edge => {
                set(&mut fast, "/match/prefix", json!("/fast"))?;
                set(&mut fast, "/route/cluster", json!(APPLICATION))?;
            }
        }
        routes.insert(0, fast);
        if self.route == Route::Edge {
            let log = dir.join(format!("access-{port}.log"));
            add(&mut listener, "/filter_chains/0", "transport_socket", tls()?)?;
            add(&mut listener, CONNECTION_MANAGER, "access_log", access_log(&log))?;
        }
        match self.variant {
            Variant::None => Ok(vec![listener]),
            Variant::Shipped | Variant::AllExports | Variant::Empty => self.with_module(listener, dir),
            Variant::Lua => {
                let filters = listener.pointer_mut(&format!("{CONNECTION_MANAGER}/http_filters"));
                filters.and_then(Value::as_array_mut).context("http_filters is not a list")?.insert(0, lua_counter());
                Ok(vec![listener])
            }
        }
    }

    fn with_module(&self, listener: Value, dir: &Path) -> Result<Vec<Value>> {
        // Extension configurations of a folder of its own: they bear the same names whatever the module.
        let dir = dir.join(format!("{:?}", self.variant).to_lowercase());
        std::fs::create_dir_all(&dir)?;
        let module = self.module.as_deref().context("a Wasm listener without a module")?;
        let manifest = Manifest::read(&topology::root()?.join("envoyfilter.yaml"))?;
        let resolved = manifest.resolve(vec![listener], module, &dir, &Overrides::default())?;
        for (name, mut extension) in resolved.extensions {
            if self.variant != Variant::Shipped {
                // Apart from the shipped module's shared data, as it would be in a gateway of its own.
                let vm = format!("bench-{:?}", self.variant);
                set(&mut extension, "/typed_config/config/vm_config/vm_id", json!(vm))?;
            }
            let response = json!({ "version_info": "1", "resources": [extension] });
            write(&dir.join(extension_file(&name)), &response)?;
        }
        Ok(resolved.listeners)
    }
}

/// A server's side of TLS, with a certificate that nobody but this run knows.
fn tls() -> Result<Value> {
    let named = rcgen::generate_simple_self_signed(vec![topology::HOST.to_owned()])?;
    let certificate = json!([{
        "certificate_chain": {"inline_string": named.cert.pem()},
        "private_key": {"inline_string": named.signing_key.serialize_pem()},
    }]);
    Ok(json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": certificate},
        },
    }))
}

/// A line for each request, in Envoy's own format.
fn access_log(path: &Path) -> Value {
    json!([{
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": path,
        },
    }])
}

/// What people write when they want to know how busy a gateway is.
fn lua_counter() -> Value {
    const SCRIPT: &str = "local active = 0\n\
        function envoy_on_request(handle) active = active + 1 end\n\
        function envoy_on_response(handle) active = active - 1 end\n";
    json!({
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": { "inline_string": SCRIPT },
        },
    })
}

/// The lab's bootstrap with a second cluster, set up as the first is.
fn with_application(mut bootstrap: Value) -> Result<Value> {
    let clusters = bootstrap.pointer_mut("/static_resources/clusters").and_then(Value::as_array_mut);
    let clusters = clusters.context("no clusters")?;
    let mut cluster = clusters.first().cloned().context("no cluster")?;
    set(&mut cluster, "/name", json!(APPLICATION))?;
    set(&mut cluster, "/load_assignment/cluster_name", json!(APPLICATION))?;
    let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value";
    set(&mut cluster, endpoint, json!(APPLICATION_PORT))?;
    clusters.push(cluster);
    Ok(bootstrap)
}

/// An Envoy that answers `/fast` itself: the cheapest application there is.
async fn application(dir: &Path) -> Result<Process> {
    let dir = dir.join("application");
    std::fs::create_dir_all(&dir)?;
    let plan = Plan { route: Route::Direct, variant: Variant::None, module: None };
    let mut listener = plan.listeners(APPLICATION_PORT, &dir)?.into_iter().next().context("no listener")?;
    listener.as_object_mut().context("a listener is a mapping")?.remove("@type");
    let bootstrap = dir.join("bootstrap.json");
    write(&bootstrap, &json!({ "static_resources": { "listeners": [listener] } }))?;
    let mut process = Process::start("application", envoy_command(&bootstrap, 1), &dir)?;
    let up = async || match process.assert_running(&dir) {
        Err(early) => Some(Err(early)),
        Ok(()) => topology::listens(APPLICATION_PORT).then_some(Ok(())),
    };
    let waited = wait::until("the application listens", START_LIMIT, up).await;
    waited.flatten().with_context(|| format!("the application did not start, {}", log_ends(&dir, "application")))?;
    Ok(process)
}

fn envoy_command(bootstrap: &Path, workers: u16) -> Command {
    let mut command = Command::new(ENVOY.path());
    command.arg("-c").arg(bootstrap).args(["--disable-hot-restart", "--log-level", "warning"]);
    command.args(["--concurrency", &workers.to_string(), "--local-address-ip-version", "v4"]);
    command
}

/// The stat prefix of a listener.
fn prefix(route: Route, variant: Variant) -> String {
    format!("bench_{}_{variant:?}", route.name()).to_lowercase()
}

fn template(name: &str, dir: &Path) -> Result<Value> {
    let path = topology::root()?.join("testdata/envoy").join(name);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = topology::fill(&text, dir, &[]).with_context(|| format!("in {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("in {}", path.display()))
}

fn set(value: &mut Value, pointer: &str, to: Value) -> Result<()> {
    let place = value.pointer_mut(pointer);
    ensure!(place.is_some(), "there is no {pointer}");
    if let Some(place) = place {
        *place = to;
    }
    Ok(())
}

/// Adds a field to the mapping at `pointer`.
fn add(value: &mut Value, pointer: &str, name: &str, to: Value) -> Result<()> {
    let mapping = value.pointer_mut(pointer).and_then(Value::as_object_mut);
    mapping.with_context(|| format!("{pointer} is not a mapping"))?.insert(name.to_owned(), to);
    Ok(())
}

fn write(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
