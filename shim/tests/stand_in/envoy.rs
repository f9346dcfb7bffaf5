use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::server::{Reply, Server};

/// Envoy's admin.
pub(crate) struct Admin {
    pub(crate) server: Server,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stats: Mutex<String>,
    /// What the gate's metrics read.
    gate_stats: Mutex<String>,
    /// Answers to give instead, next one last.
    scripted: Mutex<Vec<Reply>>,
    /// What every `POST /drain_listeners` is answered with.
    verb: Mutex<Option<u16>>,
    /// Pages of the configuration, by what is asked for.
    pages: Mutex<BTreeMap<&'static str, String>>,
}

/// Listeners and clusters that are always busy and are none of ours to wait for.
const NOISE: &str = "cluster.agent.upstream_rq_active: 1\ncluster.prometheus_stats;.upstream_rq_active: 1\n\
    cluster.xds-grpc.upstream_rq_active: 2\nhttp.admin.downstream_rq_active: 1\nhttp.agent.downstream_rq_active: 1\n\
    http.softclose_control.downstream_rq_active: 1\nhttp.softclose_health.downstream_rq_active: 1\n\
    http.stats.downstream_rq_active: 1\nlistener.0.0.0.0_8080.downstream_cx_active: 9\n";

impl Admin {
    pub(crate) fn start(ip: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let answering = Arc::clone(&shared);
        let server = Server::start(ip, move |request| {
            let scripted = answering.scripted.lock().unwrap().pop();
            if let Some(reply) = scripted {
                return reply;
            }
            match (request.method.as_str(), request.target.as_str()) {
                ("POST", "/drain_listeners?graceful&skip_exit" | "/drain_listeners") => {
                    whole(answering.verb.lock().unwrap().unwrap_or(200), "OK\n")
                }
                ("GET", target) if answering.pages.lock().unwrap().contains_key(target) => {
                    chunked(&answering.pages.lock().unwrap()[target])
                }
                // No listener, no extension: as Envoy says it.
                ("GET", target) if target.starts_with("/config_dump?resource=") => whole(200, "{}"),
                ("GET", "/server_info") => {
                    whole(200, r#"{"version": "abc/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE"}"#)
                }
                ("GET", "/stats?filter=downstream_rq_active") => chunked(&answering.stats.lock().unwrap()),
                ("GET", "/stats?filter=wasmcustom.softclose_") => chunked(&answering.gate_stats.lock().unwrap()),
                _ => whole(404, ""),
            }
        });
        let admin = Self { server, shared };
        admin.set_stats(Some(0), 0);
        admin
    }

    /// What the counters say: of traffic listeners (none: no such stat) and of an application's cluster.
    pub(crate) fn set_stats(&self, downstream: Option<u64>, upstream: u64) {
        let mut stats =
            format!("{NOISE}cluster.outbound|80||app.default.svc.cluster.local.upstream_rq_active: {upstream}\n");
        if let Some(downstream) = downstream {
            stats.push_str(&format!("http.outbound_0.0.0.0_8080;.downstream_rq_active: {downstream}\n"));
        }
        *self.shared.stats.lock().unwrap() = stats;
    }

    /// What the gate's metrics read: its state's number, late requests, the most that may have been cut.
    pub(crate) fn set_gate_stats(&self, state: u64, late: u64, cut_at_most: u64) {
        *self.shared.gate_stats.lock().unwrap() = format!(
            "wasmcustom.softclose_cut_at_most: {cut_at_most}\nwasmcustom.softclose_distrust: 0\n\
             wasmcustom.softclose_late: {late}\nwasmcustom.softclose_state: {state}\n"
        );
    }

    /// The same with a count that is not believed.
    pub(crate) fn set_doubted_gate_stats(&self, state: u64, late: u64, cut_at_most: u64) {
        self.set_gate_stats(state, late, cut_at_most);
        let mut stats = self.shared.gate_stats.lock().unwrap();
        *stats = stats.replace("distrust: 0", "distrust: 1");
    }

    /// What a part of the configuration, or the server's information, is.
    pub(crate) fn set_page(&self, target: &'static str, json: &str) {
        self.shared.pages.lock().unwrap().insert(target, json.to_owned());
    }

    /// The next requests are answered like this, in this order.
    pub(crate) fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        let mut replies: Vec<Reply> = replies.into_iter().collect();
        replies.reverse();
        *self.shared.scripted.lock().unwrap() = replies;
    }

    /// This Envoy answers every `POST /drain_listeners` with `status`.
    pub(crate) fn refuse_to_drain(&self, status: u16) {
        *self.shared.verb.lock().unwrap() = Some(status);
    }

    /// Every `POST` so far.
    pub(crate) fn posts(&self) -> Vec<String> {
        self.server.seen().into_iter().filter(|seen| seen.starts_with("POST")).collect()
    }
}

/// Istio's agent.
pub(crate) struct Agent {
    pub(crate) server: Server,
}

impl Agent {
    pub(crate) fn start(ip: &str) -> Self {
        Self { server: Server::start(ip, |_| whole(200, "OK")) }
    }

    pub(crate) fn told(&self) -> bool {
        self.server.seen() == ["POST /drain"]
    }

    pub(crate) fn untouched(&self) -> bool {
        self.server.seen().is_empty()
    }
}

fn whole(status: u16, body: &str) -> Reply {
    Reply::Whole(status, String::new(), body.to_owned())
}

/// As Envoy sends its stats: in chunks that end anywhere.
fn chunked(body: &str) -> Reply {
    let mut bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for part in body.as_bytes().chunks(37) {
        bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    Reply::Bytes(bytes)
}
