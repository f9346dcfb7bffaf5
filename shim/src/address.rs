//! Where a listener is: an IP literal and a port, or a socket in the file system. Names are not resolved: the image may hold no
//! resolver and the pod's DNS may be gone before the pod is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// What an address has to look like, for error messages.
pub(crate) const EXPECTED: &str = "IP:PORT, as 127.0.0.1:15000, [::1]:15000 or localhost:15000, or unix:PATH";

/// The longest path of a socket that the kernel takes: `sun_path` holds 108 bytes, and a zero at the end (unix(7)).
const LONGEST_PATH: usize = 107;

/// Where a listener is, and how that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) place: Place,
    text: String,
}

/// Where a listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a port. `localhost` is tried as 127.0.0.1, then as ::1.
    Port {
        /// The first to try.
        first: SocketAddr,
        /// What to try when nothing listens there.
        second: Option<SocketAddr>,
    },
    /// At a path, as `address: {pipe: {path}}` of Envoy's.
    Socket(PathBuf),
}

impl Address {
    /// 127.0.0.1 with a port.
    pub(crate) fn loopback(port: u16) -> Self {
        let first = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Self { place: Place::Port { first, second: None }, text: first.to_string() }
    }

    /// `text` as an address; none if it is anything but [`EXPECTED`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let place = match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') && path.len() <= LONGEST_PATH => Place::Socket(path.into()),
            Some(("localhost", port)) => {
                let port = port.parse().ok()?;
                let second = Some((Ipv6Addr::LOCALHOST, port).into());
                Place::Port { first: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port), second }
            }
            Some(_) | None => Place::Port { first: text.parse().ok()?, second: None },
        };
        match &place {
            Place::Port { first, .. } if first.port() == 0 => None,
            Place::Port { .. } | Place::Socket(_) => Some(Self { place, text: text.to_owned() }),
        }
    }

    /// What goes into a request's `host`: a path would be none that Envoy takes.
    pub(crate) fn host(&self) -> &str {
        match self.place {
            Place::Port { .. } => &self.text,
            Place::Socket(_) => "softclose",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Address, LONGEST_PATH, Place};

    fn ports(text: &str) -> (String, Option<String>) {
        let Place::Port { first, second } = Address::parse(text).unwrap().place else { panic!("{text} is no port") };
        (first.to_string(), second.map(|second| second.to_string()))
    }

    #[test]
    fn literals_of_both_families_and_localhost_are_understood() {
        assert_eq!(Address::parse("127.0.0.1:15000"), Some(Address::loopback(15000)));
        assert_eq!(ports("[::1]:15000"), ("[::1]:15000".to_owned(), None));
        assert_eq!(ports("localhost:18181"), ("127.0.0.1:18181".to_owned(), Some("[::1]:18181".to_owned())));
        assert_eq!(Address::parse("localhost:18181").unwrap().to_string(), "localhost:18181");
    }

    #[test]
    fn a_socket_is_an_absolute_path_that_the_kernel_takes_and_never_a_host() {
        let address = Address::parse("unix:/run/a:b.sock").unwrap();
        assert_eq!(address.place, Place::Socket(PathBuf::from("/run/a:b.sock")));
        assert_eq!((address.to_string().as_str(), address.host()), ("unix:/run/a:b.sock", "softclose"));
        let longest = format!("/{}", "x".repeat(LONGEST_PATH - 1));
        assert!(Address::parse(&format!("unix:{longest}")).is_some());
        for path in [format!("{longest}x"), "run/x".to_owned(), String::new()] {
            assert_eq!(Address::parse(&format!("unix:{path}")), None, "{path:?}");
        }
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
