//! When the balancer's checks were answered, by the word of whoever listens on the health port: an access log of Envoy's, or
//! the stand-in's. Both write the same lines, and neither is the gate.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::manifest::at;
use crate::oracle::Check;
use crate::wall::Wall;

/// In the folder of whoever listens.
pub(crate) const FILE: &str = "checks.log";
/// The balancer's path.
pub(crate) const PATH: &str = "/health_check.html";
/// The listener of `envoyfilter.yaml`.
const LISTENER: &str = "softclose-health";

/// One line of the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Seconds since 1970, with microseconds, as text: as Envoy's formatter gives it.
    pub(crate) at: String,
    /// The peer's address without port.
    pub(crate) from: String,
}

/// A change to the listeners: Envoy logs each check of the gate. The file lies in Envoy's working folder.
pub(crate) fn logged(listeners: &mut Value) -> Result<()> {
    let mut found = 0;
    for listener in listeners.as_array_mut().context("the listeners are no list")? {
        if listener.get("name").and_then(Value::as_str) == Some(LISTENER) {
            log_in(listener, PATH)?;
            found += 1;
        }
    }
    ensure!(found == 1, "{found} listeners are named {LISTENER}, 1 is to log its checks");
    Ok(())
}

/// A change to a listener: Envoy logs each request for `path`.
pub(crate) fn log_in(listener: &mut Value, path: &str) -> Result<()> {
    let log = json!([{
        "name": "envoy.access_loggers.file",
        "filter": {"header_filter": {"header": {"name": ":path", "string_match": {"exact": path}}}},
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": FILE,
            "log_format": {"json_format": {
                "at": "%START_TIME(%s.%6f)%",
                // Not the address that a header may claim.
                "from": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
            }},
        },
    }]);
    let manager = at(listener, "/filter_chains/0/filters/0/typed_config")?;
    manager.as_object_mut().context("a filter's configuration is not a mapping")?.insert("access_log".into(), log);
    Ok(())
}

/// All checks in `dir`, on the run's clock. Envoy writes each second, so up to a second before it was killed is missing.
pub(crate) fn read(dir: &Path, wall: &Wall) -> Result<Vec<Check>> {
    let path = dir.join(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, wall).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str, wall: &Wall) -> Result<Vec<Check>> {
    // A line that its writer was killed over has no end.
    let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or_default());
    let check = |line: &str| -> Result<Check> {
        let line: Line = serde_json::from_str(line).with_context(|| format!("no check: {line}"))?;
        let wall_s: f64 =
            line.at.parse().with_context(|| format!("at: got {:?}, must be seconds since 1970", line.at))?;
        Ok(Check { at_s: wall.on_clock(wall_s), prober: line.from })
    };
    let mut checks = whole.lines().map(check).collect::<Result<Vec<_>>>()?;
    checks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Clock;

    #[test]
    fn checks_come_to_lie_on_the_runs_clock_and_half_a_line_is_none() {
        let wall = Wall::read(Clock::start());
        let text = "{\"at\":\"1795987540.523000\",\"from\":\"127.0.0.2\"}\n{\"at\":\"1795987541.023500\",\"from\":\"127.0.0.9\"}\n{\"at\":\"17959";
        let checks = parse(text, &wall).unwrap();
        assert_eq!(checks.len(), 2);
        assert!((checks[1].at_s - checks[0].at_s - 0.5005).abs() < 1e-5);
        assert_eq!(checks[0].prober, "127.0.0.2");
    }

    #[test]
    fn a_line_that_is_no_check_is_named() {
        let wall = Wall::read(Clock::start());
        let error = parse("{\"at\":\"soon\",\"from\":\"127.0.0.2\"}\n", &wall).unwrap_err();
        assert!(error.to_string().contains("\"soon\""), "{error:#}");
    }

    #[test]
    fn only_the_health_listener_logs_and_it_must_be_there() {
        let listener = |name: &str| json!({"name": name, "filter_chains": [{"filters": [{"typed_config": {}}]}]});
        let mut listeners = json!([listener("0.0.0.0_28080"), listener(LISTENER)]);
        logged(&mut listeners).unwrap();
        let log = "/filter_chains/0/filters/0/typed_config/access_log/0/typed_config/path";
        assert_eq!(listeners[1].pointer(log), Some(&json!(FILE)));
        assert_eq!(listeners[0].pointer(log), None);
        assert!(logged(&mut json!([listener("other")])).unwrap_err().to_string().contains(LISTENER));
    }
}
