//! HAProxy's log of single requests: by which server, with what termination state, after how many tries.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One request in `option httplog`'s form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Logged {
    /// `<NOSRV>` if none was found.
    pub(crate) server: String,
    pub(crate) status: String,
    /// Who ended it in which phase: `DH` is a server's DOWN before the answer began (`DC` from HAProxy 3.0 on), `----` nobody.
    pub(crate) state: String,
    /// Tries beyond the first; `+` where the last of them went to another server.
    pub(crate) retries: String,
}

/// HAProxy found no server that it might send the request to.
pub(crate) const NO_SERVER: &str = "<NOSRV>";

/// Every request that the log of the balancer in `dir` names, by its id. An h2 stream that a DOWN cut leaves no line there before
/// HAProxy 3.0.
pub(crate) fn read(dir: &Path) -> Result<HashMap<String, Logged>> {
    let path = dir.join("haproxy.log");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().filter_map(parse).collect())
}

/// `client [date] frontend backend/server times status bytes - - state connections queues {id} "request"`.
fn parse(line: &str) -> Option<(String, Logged)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    // Counted from the date, before which a log may have a head of its own.
    let date = fields.iter().position(|field| field.starts_with('['))?;
    let field = |after: usize| fields.get(date + after).copied();
    let server = field(2)?.rsplit_once('/')?.1;
    let (status, state, connections) = (field(4)?, field(8)?, field(9)?);
    let id = field(11)?.strip_prefix('{')?.strip_suffix('}')?;
    let retries = connections.rsplit('/').next()?;
    let logged = Logged {
        server: server.to_owned(),
        status: status.to_owned(),
        state: state.to_owned(),
        retries: retries.to_owned(),
    };
    (!id.is_empty()).then(|| (id.to_owned(), logged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_server_state_and_tries() {
        let line = "192.0.2.3:40126 [30/Nov/2026:15:20:00.123] https~ istio-http-backend/gw2 0/0/1/57/58 200 180 - - ---- \
                    12/12/8/4/+1 0/0 {post-4k-h1-7} \"POST https://example.local:28443/sleep?seconds=0.05 HTTP/2.0\"";
        let (id, logged) = parse(line).unwrap();
        assert_eq!(id, "post-4k-h1-7");
        let is = |server: &str, state: &str, retries: &str| {
            assert_eq!((logged.server.as_str(), logged.state.as_str()), (server, state));
            assert_eq!((logged.retries.as_str(), logged.status.as_str()), (retries, "200"));
        };
        is("gw2", "----", "+1");
    }

    #[test]
    fn what_is_no_request_is_passed_over() {
        assert_eq!(parse("Server istio-http-backend/gw is DOWN, reason: Layer7 wrong status, code: 503"), None);
        assert_eq!(parse(""), None);
    }
}
