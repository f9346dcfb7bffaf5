//! Evidence: what every program has to say, in the run's folder.

use std::path::Path;

use crate::envoy::Admin;
use crate::haproxy::Api;
use crate::http::Client;
use crate::network::Pod;

/// The moment of a failure.
pub(crate) const FAILED: &str = "failed";

/// Writes whatever can still be reached, each file named after `moment`. Best effort: it must not hide the failure that
/// it documents, so what cannot be reached is written down as such.
pub(crate) async fn collect(pod: &Pod, balancer: Api, dir: &Path, moment: &str) {
    let admin = Admin::of(pod);
    for page in ["stats", "config_dump", "clusters", "listeners"] {
        keep(dir, moment, &format!("envoy-{page}"), admin.page(&format!("/{page}")).await);
    }
    for command in ["show stat", "show info", "show errors"] {
        let answer = balancer.ask(command).await.map_err(|error| error.to_string());
        keep(dir, moment, &format!("haproxy-{}", command.replace(' ', "-")), answer);
    }
    let client = Client::on(pod.operator(), std::time::Duration::from_secs(1));
    let status = client.get(pod.control(), "/status").await;
    keep(dir, moment, "gate-status", status.map(|answer| answer.body).map_err(|failure| failure.to_string()));
}

/// Where to look, for the message of a failure.
pub(crate) fn evidence(dir: &Path) -> String {
    format!("evidence is in {}", dir.display())
}

fn keep(dir: &Path, moment: &str, name: &str, text: Result<String, String>) {
    let text = match text {
        Ok(text) => text,
        // That nobody answers is news only where something has failed.
        Err(why) if moment == FAILED => format!("not reached: {why}\n"),
        Err(_gone) => return,
    };
    let path = dir.join(format!("{moment}-{name}.txt"));
    if let Err(error) = std::fs::write(&path, text) {
        eprintln!("cannot write {}: {error}", path.display());
    }
}
