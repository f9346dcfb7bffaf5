//! An application that behaves badly on purpose, beside the lab's own, and the routes that lead to it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::http::AbortOnDrop;
use crate::manifest::{Overrides, at};
use crate::topology;

/// Below the ephemeral range, like the lab's other ports.
const PORT: u16 = 29081;

/// How long a request is looked at before its connection is reset.
const RESET_AFTER: Duration = Duration::from_millis(300);

/// The running application. Dropping it ends its connections as the kernel does for a process that was killed.
pub(crate) struct Odd {
    _task: AbortOnDrop<()>,
}

impl Odd {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind(topology::local(PORT)).await.context("the odd application cannot listen")?;
        let task = tokio::spawn(async move {
            // Its tasks end with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _peer)) = listener.accept().await {
                connections.spawn(async move {
                    // Whoever goes away is what this is about.
                    let _gone = serve(stream).await;
                });
            }
        });
        Ok(Self { _task: AbortOnDrop(task) })
    }
}

/// `/odd/silent` never answers, `/odd/reset` resets, `/odd/body` takes a body of ten bytes, `/odd/ws` upgrades.
async fn serve(mut stream: TcpStream) -> Result<()> {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).await?;
        seen.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let text = String::from_utf8_lossy(&seen).into_owned();
        if read == 0 {
            return Ok(());
        }
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        match head.split_whitespace().nth(1).unwrap_or_default() {
            "/odd/reset" => {
                tokio::time::sleep(RESET_AFTER).await;
                stream.set_zero_linger()?;
                return Ok(());
            }
            "/odd/body" if body.len() >= 10 => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
                seen.clear();
            }
            "/odd/ws" => {
                let upgrade = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                stream.write_all(upgrade.as_bytes()).await?;
                seen.clear();
            }
            _ => {}
        }
    }
}

/// Overrides that add the odd application, and `/direct`, which Envoy answers by itself.
pub(crate) fn overrides() -> Overrides {
    Overrides { bootstrap: vec![add_cluster], listeners: vec![add_routes], ..Overrides::default() }
}

fn add_cluster(bootstrap: &mut Value) -> Result<()> {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": PORT}});
    let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": address}}]}]);
    let clusters = at(bootstrap, "/static_resources/clusters")?.as_array_mut().context("clusters is not a list")?;
    clusters.push(json!({
        "name": "outbound|80||odd", "type": "STATIC", "connect_timeout": "2s",
        "load_assignment": {"cluster_name": "outbound|80||odd", "endpoints": endpoints}
    }));
    Ok(())
}

fn add_routes(listeners: &mut Value) -> Result<()> {
    let manager = manager(listeners, 0)?;
    let routes = at(manager, "/route_config/virtual_hosts/0/routes")?.as_array_mut().context("routes is not a list")?;
    let retries = json!({"retry_on": "reset", "num_retries": 3});
    let odd = |timeout: &str| json!({"cluster": "outbound|80||odd", "timeout": timeout, "retry_policy": retries});
    let impatient = json!({"cluster": "outbound|80||odd", "timeout": "0.7s", "prefix_rewrite": "/odd/silent"});
    routes.insert(0, json!({"match": {"prefix": "/odd/"}, "route": odd("0s")}));
    routes.insert(0, json!({"match": {"prefix": "/impatient"}, "route": impatient}));
    let direct = json!({"status": 200, "body": {"inline_string": "direct\n"}});
    routes.insert(0, json!({"match": {"prefix": "/direct"}, "direct_response": direct}));
    Ok(())
}

/// The HTTP connection manager of a listener.
pub(crate) fn manager(listeners: &mut Value, listener: usize) -> Result<&mut Value> {
    at(listeners, &format!("/{listener}/filter_chains/0/filters/0/typed_config"))
}
