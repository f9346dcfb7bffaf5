//! Which requests a balancer can replay on another server: those that it holds whole, and whose end it knows.

/// Whether the request under way can be sent back. `bodiless`: its headers are all of it; `limit`: the longest declared body
/// that the balancer replays; `header` reads one of its headers, none where it is absent.
///
/// What is in doubt is served: a refusal that is not replayed is a failure that the client sees.
pub(crate) fn is_replayable(bodiless: bool, limit: u64, header: impl Fn(&str) -> Option<Vec<u8>>) -> bool {
    let present = |name| header(name).is_some_and(|value| !value.is_empty());
    let Some(method) = header(":method") else { return false };
    // A tunnel has no end that a balancer could wait for, and an upgrade is the beginning of one.
    if method.eq_ignore_ascii_case(b"CONNECT") || present("upgrade") {
        return false;
    }
    // Clients take any answer but gRPC's own for a broken server, and streams of it look like short requests.
    if header("content-type").is_some_and(|kind| is_grpc(&kind)) {
        return false;
    }
    // With `expect` the balancer does not have the body yet.
    bodiless
        || (!present("transfer-encoding")
            && !present("expect")
            && header("content-length").and_then(|length| whole(&length)).is_some_and(|length| length <= limit))
}

fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}

fn whole(digits: &[u8]) -> Option<u64> {
    // `u64::from_str` takes a leading `+`, which no length has.
    let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::is_replayable;

    const LIMIT: u64 = 100;

    fn replayable(bodiless: bool, headers: &[(&str, &str)]) -> bool {
        let header = |name: &str| {
            let found = headers.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_bytes().to_vec())
        };
        is_replayable(bodiless, LIMIT, header)
    }

    #[test]
    fn what_has_no_body_or_a_declared_one_within_the_limit_is_replayed() {
        for method in ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "get", "BREW"] {
            assert!(replayable(true, &[(":method", method)]), "{method}");
        }
        for (length, expected) in [("0", true), ("99", true), ("100", true), ("101", false)] {
            assert_eq!(replayable(false, &[(":method", "POST"), ("content-length", length)]), expected, "{length}");
        }
    }

    #[test]
    fn a_body_of_unknown_length_is_served() {
        assert!(!replayable(false, &[(":method", "POST")]));
        for odd in ["", "+5", "-5", " 5", "5 ", "5,5", "0x5", "99999999999999999999", "\u{fffd}"] {
            assert!(!replayable(false, &[(":method", "POST"), ("content-length", odd)]), "{odd:?}");
        }
        let chunked = [(":method", "POST"), ("content-length", "5"), ("transfer-encoding", "chunked")];
        assert!(!replayable(false, &chunked));
        assert!(!replayable(false, &[(":method", "POST"), ("content-length", "5"), ("expect", "100-continue")]));
    }

    #[test]
    fn grpc_tunnels_and_upgrades_are_served_whatever_their_body() {
        for headers in [
            [(":method", "CONNECT"), ("content-length", "0")],
            [(":method", "connect"), ("content-length", "0")],
            [(":method", "GET"), ("upgrade", "websocket")],
            [(":method", "POST"), ("content-type", "application/grpc")],
            [(":method", "POST"), ("content-type", "application/grpc+proto")],
            [(":method", "POST"), ("content-type", "Application/gRPC-Web")],
        ] {
            assert!(!replayable(true, &headers), "{headers:?}");
        }
        assert!(replayable(true, &[(":method", "POST"), ("content-type", "application/json")]));
        assert!(
            replayable(true, &[(":method", "GET"), ("upgrade", "")]),
            "some hosts answer an absent header like this"
        );
    }

    #[test]
    fn a_request_that_cannot_be_read_is_served() {
        assert!(!replayable(true, &[]));
    }
}
