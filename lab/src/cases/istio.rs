//! Each shipped manifest on a gateway as Istio configures it: Envoy takes it, every HTTP chain is counted and no TCP is, Istio's
//! rules for stats leave what the second opinion needs, and the preStop command of the shipped values ends clean.

use std::net::Ipv6Addr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::cases::scene::{LIMIT, Scene, balancer_probes};
use crate::cases::wire::Wire;
use crate::curl::Protocol;
use crate::deployed::{Deployed, SOCKET, Variant};
use crate::envoy::Admin;
use crate::foreign::CURL;
use crate::gate::{APART, Held};
use crate::ground::Options;
use crate::istio::{HOSTS, TCP, TLS, validated};
use crate::manifest::Overrides;
use crate::process::{Process, last_words};
use crate::{topology, wait};

pub(crate) async fn gateway(scene: &mut Scene, variant: Variant) -> Result<()> {
    let overrides = Overrides { deployed: Deployed { variant, istio: true }, ..Overrides::default() };
    scene.start(Options { overrides, ..Options::default() }).await?;
    for (filters, result) in validated(&scene.dir).await? {
        let word = result.as_ref().err().cloned().unwrap_or_else(|| "valid".to_owned());
        scene.check(result.is_ok(), format!("envoy --mode validate, filters {filters}"), word);
    }
    match variant {
        Variant::Main | Variant::Oci | Variant::Wasmplugin => {}
        Variant::DualStack => dual_stack(scene).await?,
        Variant::ProxyProtocol => super::drain::proxy_headers(scene).await?,
        Variant::UnixSocket => unix_socket(scene).await?,
    }
    let _balancer = balancer_probes();
    let plain = Held::start(scene.ground()?, 1, 120.0).await?;
    let tls = [over_tls(HOSTS[0], Protocol::H1)?, over_tls(HOSTS[0], Protocol::H2)?, over_tls(HOSTS[1], Protocol::H2)?];
    let running = async || (scene.backend().ok()?.running() == 4).then_some(());
    wait::until("the application runs four requests", LIMIT, running).await?;
    gauge_reads(scene, 4, "plain, and over TLS by h1, h2 and the second name").await;
    let mut tcp = Wire::to(TCP).await?;
    tcp.send("GET /sleep?seconds=120 HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    let running = async || (scene.backend().ok()?.running() == 5).then_some(());
    wait::until("the application runs the fifth, by TCP", LIMIT, running).await?;
    gauge_reads(scene, 4, "TCP beside them is not counted").await;
    second_opinion(scene).await?;

    let mut hook = pre_stop(scene, variant)?;
    let draining = async || (scene.health().await == "200 DRAINING").then_some(());
    let drained = wait::until("the gate drains", LIMIT, draining).await;
    scene.check(drained.is_ok(), "the shipped preStop command drains, and health stays 200", scene.health().await);
    drop(tcp);
    // One after the other: several that end in one instant are a balancer that cuts.
    let mut left = 4;
    for mut client in tls {
        client.kill().await?;
        left -= 1;
        gauge_reads(scene, left, "a client leaves").await;
        wait::pace_until(Instant::now() + APART).await;
    }
    drop(plain);
    let code = hook.exit(Duration::from_secs(30)).await.and_then(|status| status.code());
    let words = last_words(&scene.said("prestop"));
    scene.check(code == Some(0), "and ends clean", format!("exit code {code:?}: {words}"));
    Ok(())
}

/// The preStop command of the shipped values, as it is; on loopback its own defaults are where everything listens.
fn pre_stop(scene: &Scene, variant: Variant) -> Result<Process> {
    let mut command = Command::new(topology::artifact("SOFTCLOSE_BIN", "softclose")?);
    command.env_clear().args(variant.pre_stop(&std::path::absolute(&scene.dir)?)?);
    // Outside a container the first process is not the pod's.
    command.args(["--log-also", "none"]);
    Process::start("prestop", command, &scene.dir)
}

/// A request that is held, by a server name.
fn over_tls(host: &str, protocol: Protocol) -> Result<Child> {
    let mut command = Command::new(CURL.path());
    command.args(["-sk", "-o", "/dev/null", protocol.flag()]);
    command.args(["--resolve", &format!("{host}:{TLS}:127.0.0.1")]);
    command.arg(format!("https://{host}:{TLS}/sleep?seconds=120")).kill_on_drop(true);
    command.spawn().with_context(|| CURL.missing(&CURL.path()))
}

async fn gauge_reads(scene: &mut Scene, wanted: u64, when: &str) {
    let mut last = None;
    let reads = async || {
        last = scene.gauge().await;
        (last == Some(wanted)).then_some(())
    };
    let reached = wait::until("the gauge", LIMIT, reads).await;
    scene.check(reached.is_ok(), format!("{when}: {wanted} counted"), format!("{last:?}"));
}

/// Under Istio's stats matcher, with what the shipped values add: requests in flight by listener, and nothing of other listeners.
async fn second_opinion(scene: &mut Scene) -> Result<()> {
    let page = Admin::new().page("/stats?filter=downstream_rq_active").await.map_err(anyhow::Error::msg)?;
    let lines: Vec<&str> = page.lines().map(str::trim).collect();
    let wanted = [
        format!("http.outbound_0.0.0.0_{};.downstream_rq_active: 1", topology::TRAFFIC),
        format!("http.outbound_0.0.0.0_{TLS};.downstream_rq_active: 3"),
    ];
    let only = lines.len() == 2 && wanted.iter().all(|line| lines.contains(&line.as_str()));
    scene.check(only, "Envoy's own count is there for the second opinion, and no other", lines.join(", "));
    Ok(())
}

async fn dual_stack(scene: &mut Scene) -> Result<()> {
    let mut wire = TcpStream::connect((Ipv6Addr::LOCALHOST, topology::HEALTH)).await.context("health over IPv6")?;
    wire.write_all(b"GET /health_check.html HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    tokio::time::timeout(LIMIT, wire.read_to_string(&mut answer)).await.context("health over IPv6 is silent")??;
    let good = answer.starts_with("HTTP/1.1 200") && answer.contains("x-softclose-state: OPEN");
    scene.check(good, "health answers over IPv6", answer.lines().next().unwrap_or_default());
    let four = scene.health().await;
    scene.check(four == "200 OPEN", "and over IPv4", four);
    let status = scene.gate.status().await?;
    let probers = status.pointer("/probers").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    let mut addresses: Vec<&str> = probers.iter().map(|prober| crate::gate::text(prober, "/address")).collect();
    addresses.sort_unstable();
    scene.check(addresses == ["127.0.0.13", "[::1]"], "each prober by its own address", format!("{addresses:?}"));
    Ok(())
}

async fn unix_socket(scene: &mut Scene) -> Result<()> {
    let listens = topology::listens(topology::CONTROL);
    scene.check(!listens, "nobody listens on the control port", if listens { "taken" } else { "refused" });
    let socket = std::path::absolute(&scene.dir)?.join(SOCKET);
    let metadata = std::fs::metadata(&socket).with_context(|| format!("no {}", socket.display()))?;
    let mode = format!("{:o}", metadata.permissions().mode() & 0o777);
    let alone = metadata.file_type().is_socket() && mode == "600";
    scene.check(alone, "the socket is its owner's alone", format!("mode {mode}"));
    let mut command = Command::new(topology::artifact("SOFTCLOSE_BIN", "softclose")?);
    command.args(["status", "--json", "--control", &format!("unix:{}", socket.display())]).env_clear();
    let output = command.output().await?;
    let state = serde_json::from_slice::<serde_json::Value>(&output.stdout).ok();
    let state = state.map(|status| crate::gate::text(&status, "/state").to_owned());
    scene.check(state.as_deref() == Some("OPEN"), "softclose status finds the gate there", format!("{state:?}"));
    Ok(())
}
