//! One TCP segment, as `tcpdump -nn -tt` prints it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};

/// A segment on the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) at_s: f64,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// tcpdump's letters: `S`, `F`, `P`, `R`, `.` for ACK.
    pub(crate) flags: String,
    /// Bytes of payload.
    pub(crate) payload: u64,
}

impl Segment {
    pub(crate) fn is_reset(&self) -> bool {
        self.flags.contains('R')
    }

    pub(crate) fn ends_its_connection(&self) -> bool {
        self.is_reset() || self.flags.contains('F')
    }
}

/// Reads tcpdump's text; `on_clock` places its stamps. What is no TCP segment is left out; one that cannot be read is an
/// error, so that nothing is overlooked.
pub(super) fn parse(text: &str, on_clock: impl Fn(f64) -> f64) -> Result<Vec<Segment>> {
    let segment = |line: &str| parse_line(line, &on_clock).with_context(|| format!("tcpdump wrote {line:?}"));
    text.lines().filter(|line| line.contains(": Flags [")).map(segment).collect()
}

/// `1795987540.523456 IP 127.0.0.2.40422 > 127.0.0.1.28080: Flags [R.], seq 1, ack 1, win 512, length 0`; on `any` the
/// interface and the direction stand before `IP`.
fn parse_line(line: &str, on_clock: impl Fn(f64) -> f64) -> Option<Segment> {
    let (stamp, rest) = line.split_once(' ')?;
    let (ends, rest) = rest.split_once(": Flags [")?;
    let (flags, rest) = rest.split_once(']')?;
    let (from, to) = ends.split_once(" > ")?;
    let payload = rest.rsplit_once("length ")?.1.split(|c: char| !c.is_ascii_digit()).next()?;
    Some(Segment {
        at_s: on_clock(stamp.parse().ok()?),
        from: end(from.rsplit(' ').next()?)?,
        to: end(to)?,
        flags: flags.to_owned(),
        payload: payload.parse().ok()?,
    })
}

/// `127.0.0.1.28080`, `::1.28080`
fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once('.')?;
    Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port.parse().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::capture) fn parsed(text: &str) -> Vec<Segment> {
        parse(text, |wall_s| wall_s - 1000.0).unwrap()
    }

    #[test]
    fn a_segment_has_time_ends_flags_and_payload() {
        let text = "1003.250000 IP 127.0.0.2.40422 > 127.0.0.1.28080: Flags [P.], seq 1:301, ack 1, win 512, options [nop,nop,TS val 1 ecr 1], length 300\n";
        let expected = Segment {
            at_s: 3.25,
            from: "127.0.0.2:40422".parse().unwrap(),
            to: "127.0.0.1:28080".parse().unwrap(),
            flags: "P.".to_owned(),
            payload: 300,
        };
        assert_eq!(parsed(text), [expected]);
    }

    #[test]
    fn other_forms_of_the_line_are_read_too() {
        let text = "\
1001.000000 lo    In  IP 127.0.0.1.50000 > 127.0.0.1.8080: Flags [P.], seq 1:79, ack 1, win 512, length 78: HTTP: GET /length 7 HTTP/1.1
1002.000000 IP6 ::1.50000 > ::1.28080: Flags [R], seq 1, win 0, length 0
1003.000000 ARP, Request who-has 10.0.0.1 tell 10.0.0.2, length 28
";
        let segments = parsed(text);
        assert_eq!(segments.len(), 2);
        assert_eq!(segments[0].from.port(), 50000);
        assert_eq!(segments[1].to, "[::1]:28080".parse().unwrap());
        assert!(segments[1].is_reset());
    }

    #[test]
    fn a_segment_that_cannot_be_read_is_an_error() {
        let error = parse("1001.0 IP here > there: Flags [R], length 0\n", |s| s).unwrap_err();
        assert!(error.to_string().contains("here"));
    }
}
