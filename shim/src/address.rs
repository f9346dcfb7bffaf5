//! Where a listener is: an IP literal and a port. Names are not resolved: the image may hold no resolver and the pod's DNS
//! may be gone before the pod is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What an address has to look like, for error messages.
pub(crate) const EXPECTED: &str = "IP:PORT, as 127.0.0.1:15000, [::1]:15000 or localhost:15000";

/// Where a listener is. `localhost` is tried as 127.0.0.1, then as ::1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The first to try.
    pub(crate) first: SocketAddr,
    /// What to try when nothing listens there.
    pub(crate) second: Option<SocketAddr>,
    text: String,
}

impl Address {
    /// 127.0.0.1 with a port.
    pub(crate) fn loopback(port: u16) -> Self {
        let first = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Self { first, second: None, text: first.to_string() }
    }

    /// `text` as an address; none if it is anything but [`EXPECTED`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, second) = match text.split_once(':') {
            Some(("localhost", port)) => {
                let port = port.parse().ok()?;
                (SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port), Some((Ipv6Addr::LOCALHOST, port).into()))
            }
            Some(_) | None => (text.parse().ok()?, None),
        };
        Some(Self { first, second, text: text.to_owned() }).filter(|address| address.first.port() != 0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn literals_of_both_families_and_localhost_are_understood() {
        assert_eq!(Address::parse("127.0.0.1:15000"), Some(Address::loopback(15000)));
        assert_eq!(Address::parse("[::1]:15000").unwrap().first.to_string(), "[::1]:15000");
        let localhost = Address::parse("localhost:18181").unwrap();
        assert_eq!(localhost.first.to_string(), "127.0.0.1:18181");
        assert_eq!(localhost.second.unwrap().to_string(), "[::1]:18181");
        assert_eq!(localhost.to_string(), "localhost:18181");
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "15000",
            ":15000",
            "127.0.0.1",
            "::1:15000",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "gateway:15000",
            "localhost:",
            "localhost:x",
            "http://127.0.0.1:1",
        ] {
            assert_eq!(Address::parse(text), None, "{text:?}");
        }
    }
}
