//! How connections ended, and the ending that is event 6.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::curl::Outcome;
use crate::fate::Fate;
use crate::timeline::{Event, Kind};
use crate::topology;

use super::segment::Segment;

/// A client learns of its cut by another segment of the same moment, through at most two more processes.
const SAME_MOMENT_S: f64 = 0.05;
/// A capture's stamp is the kernel's; what is left is the error of placing the wall clock on the run's.
const STAMP_S: f64 = 0.001;

/// How one connection on a port that carries requests came to its end: the first RST or FIN of either side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) at_s: f64,
    /// Who ended it.
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// It began with a FIN. HAProxy closes a session that it cuts, and only sometimes a RST follows.
    pub(crate) closed: bool,
    /// The same side sent RST, first or later.
    pub(crate) reset: bool,
    /// The last payload on this connection was a request's: no answer had begun.
    pub(crate) unanswered: bool,
}

/// A request that its client lost, and when the client learnt of it.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) id: String,
    pub(crate) after_s: f64,
    pub(crate) at_s: f64,
}

impl Cut {
    pub(crate) fn of_outcome(outcome: &Outcome) -> Option<Self> {
        let cut = || Self { id: outcome.id.clone(), after_s: outcome.over_s, at_s: outcome.ended_s };
        (!outcome.whole()).then(cut)
    }

    pub(crate) fn of_fate(fate: &Fate) -> Option<Self> {
        let cut = || Self { id: fate.id.clone(), after_s: fate.ended_s, at_s: fate.ended_s };
        (!fate.whole()).then(cut)
    }
}

/// How the connections to `ports` ended, whoever did it; checks have another port.
pub(crate) fn endings(segments: &[Segment], ports: &[u16]) -> Vec<Ending> {
    let mut endings: Vec<Ending> = Vec::new();
    // By client and server end.
    let mut connections: BTreeMap<(SocketAddr, SocketAddr), Connection> = BTreeMap::new();
    for segment in segments {
        let (ends, by_client) = if ports.contains(&segment.to.port()) {
            ((segment.from, segment.to), true)
        } else if ports.contains(&segment.from.port()) {
            ((segment.to, segment.from), false)
        } else {
            continue;
        };
        let connection = connections.entry(ends).or_default();
        // A port may be used again.
        if segment.flags.contains('S') && by_client {
            *connection = Connection::default();
        }
        if segment.payload > 0 {
            connection.unanswered = by_client;
        }
        match connection.ending {
            None if segment.ends_its_connection() => {
                connection.ending = Some(endings.len());
                endings.push(Ending {
                    at_s: segment.at_s,
                    from: segment.from,
                    to: segment.to,
                    closed: !segment.is_reset(),
                    reset: segment.is_reset(),
                    unanswered: connection.unanswered,
                });
            }
            Some(index) if segment.is_reset() => {
                let ending = endings.get_mut(index).filter(|ending| ending.from == segment.from);
                ending.into_iter().for_each(|ending| ending.reset = true);
            }
            Some(_) | None => {}
        }
    }
    endings
}

#[derive(Default)]
struct Connection {
    /// The last payload came from the client.
    unanswered: bool,
    /// Which of the endings is its own.
    ending: Option<usize>,
}

/// The first ending behind which a request was waiting: one that its client lost at the same moment, and that somebody else
/// brought about. None if nobody lost anything by an ending.
///
/// A FIN within an answer is what every good `connection: close` looks like, so it counts only where nothing else does.
pub(crate) fn event_6(endings: &[Ending], cuts: &[Cut], source: &str) -> Option<Event> {
    let behind = |ending: &Ending| -> Vec<&Cut> {
        let near = |cut: &&Cut| cut.after_s - SAME_MOMENT_S <= ending.at_s && ending.at_s <= cut.at_s + SAME_MOMENT_S;
        cuts.iter().filter(near).collect()
    };
    let by_another = endings.iter().filter(|ending| ending.to.port() != topology::LB);
    let (ending, cuts) = by_another
        .map(|ending| (ending, behind(ending)))
        .filter(|(_, cuts)| !cuts.is_empty())
        .min_by(|(a, _), (b, _)| a.is_doubtful().cmp(&b.is_doubtful()).then(a.at_s.total_cmp(&b.at_s)))?;
    let ids: Vec<&str> = cuts.iter().map(|cut| cut.id.as_str()).collect();
    let (from, to) = (machine(ending.from, ending.to), machine(ending.to, ending.from));
    let how = match (ending.closed, ending.reset) {
        (true, true) => "FIN and RST",
        (true, false) => "FIN",
        (false, _) => "RST",
    };
    let state = if ending.unanswered { "before an answer" } else { "within an answer" };
    let detail = format!("{how} from {from} to {to} {state}; lost: {}", ids.join(", "));
    Some(Event::new(Kind::Rst, ending.at_s - STAMP_S, ending.at_s + STAMP_S, source, &detail))
}

impl Ending {
    fn is_doubtful(&self) -> bool {
        !self.reset && !self.unanswered
    }
}

/// The machine at one end of a connection, by the ports of the topology: on loopback all share an address.
fn machine(end: SocketAddr, other: SocketAddr) -> String {
    let role = match (end.port(), other.port()) {
        (topology::LB, _) => "the balancer",
        (topology::TRAFFIC, _) => "the gateway",
        (topology::APP, _) => "the application",
        (_, topology::LB) => "the client",
        (_, topology::TRAFFIC) => "the balancer",
        (_, topology::APP) => "the gateway",
        (_, _) => "somebody",
    };
    format!("{role} ({end})")
}

#[cfg(test)]
mod tests {
    use super::super::segment::tests::parsed;
    use super::*;

    /// A check and its reset; two requests to the gateway, of which the balancer resets one with and one without an answer.
    const STORY: &str = "\
1001.000000 IP 127.0.0.2.41000 > 127.0.0.1.18180: Flags [P.], seq 1:40, ack 1, win 512, length 39
1001.001000 IP 127.0.0.1.18180 > 127.0.0.2.41000: Flags [P.], seq 1:80, ack 40, win 512, length 79
1001.002000 IP 127.0.0.2.41000 > 127.0.0.1.18180: Flags [R.], seq 40, ack 80, win 512, length 0
1002.000000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [S], seq 0, win 65495, length 0
1002.001000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [P.], seq 1:301, ack 1, win 512, length 300
1002.002000 IP 127.0.0.1.28080 > 127.0.0.2.42000: Flags [P.], seq 1:201, ack 301, win 512, length 200
1002.003000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [R.], seq 301, ack 201, win 512, length 0
1003.000000 IP 127.0.0.2.43000 > 127.0.0.1.28080: Flags [P.], seq 1:301, ack 1, win 512, length 300
1004.000000 IP 127.0.0.2.43000 > 127.0.0.1.28080: Flags [R.], seq 301, ack 1, win 512, length 0
1004.000100 IP 127.0.0.1.28080 > 127.0.0.2.43000: Flags [R], seq 1, win 0, length 0
";

    fn cut(at_s: f64) -> Cut {
        Cut { id: "s1-h1".to_owned(), after_s: at_s, at_s }
    }

    fn seen(text: &str) -> Vec<Ending> {
        endings(&parsed(text), &[topology::TRAFFIC, topology::LB])
    }

    #[test]
    fn an_ending_after_a_check_is_not_on_a_traffic_port_and_one_by_both_sides_counts_once() {
        let seen: Vec<(u16, bool)> = seen(STORY).iter().map(|end| (end.from.port(), end.unanswered)).collect();
        assert_eq!(seen, [(42000, false), (43000, true)]);
    }

    #[test]
    fn event_6_is_the_reset_that_a_client_lost_its_request_by_and_names_its_sender() {
        let event = event_6(&seen(STORY), &[cut(4.01)], "tcpdump").unwrap();
        assert!(event.after_s < 4.0 && 4.0 < event.at_s);
        let detail =
            "RST from the balancer (127.0.0.2:43000) to the gateway (127.0.0.1:28080) before an answer; lost: s1-h1";
        assert_eq!(event.detail, detail);
    }

    #[test]
    fn a_reset_that_nobody_lost_anything_by_is_not_event_6() {
        assert!(event_6(&seen(STORY), &[], "tcpdump").is_none());
        // Somebody was cut, but at another moment.
        assert!(event_6(&seen(STORY), &[cut(4.2)], "tcpdump").is_none());
    }

    /// HAProxy 2.6 at DOWN, as captured: FIN to the gateway, then the client that got its 502 goes away.
    #[test]
    fn a_cut_by_fin_is_the_balancers_and_not_the_clients_who_goes_away_after_it() {
        let text = "\
1001.000000 IP 127.0.0.1.43180 > 127.0.0.1.28443: Flags [P.], seq 1:301, ack 1, win 512, length 300
1001.001000 IP 127.0.0.2.44966 > 127.0.0.1.28080: Flags [P.], seq 1:301, ack 1, win 512, length 300
1004.000000 IP 127.0.0.2.44966 > 127.0.0.1.28080: Flags [F.], seq 301, ack 1, win 64, length 0
1004.000100 IP 127.0.0.1.28080 > 127.0.0.2.44966: Flags [F.], seq 1, ack 302, win 64, length 0
1004.000200 IP 127.0.0.1.28443 > 127.0.0.1.43180: Flags [P.], seq 1:200, ack 301, win 64, length 199
1004.001900 IP 127.0.0.1.43180 > 127.0.0.1.28443: Flags [F.], seq 301, ack 200, win 64, length 0
1004.007300 IP 127.0.0.1.43180 > 127.0.0.1.28443: Flags [R], seq 302, win 0, length 0
";
        let event = event_6(&seen(text), &[cut(4.001)], "tcpdump").unwrap();
        assert!(event.detail.starts_with("FIN from the balancer (127.0.0.2:44966)"), "{}", event.detail);
        assert!(event.after_s < 4.0 && 4.0 < event.at_s);
        let reset = "1004.000300 IP 127.0.0.2.44966 > 127.0.0.1.28080: Flags [R.], seq 302, ack 2, win 64, length 0\n";
        let event = event_6(&seen(&format!("{text}{reset}")), &[cut(4.001)], "tcpdump").unwrap();
        assert!(event.detail.starts_with("FIN and RST from the balancer"), "{}", event.detail);
    }

    #[test]
    fn a_port_that_is_used_again_is_another_connection() {
        let text = "\
1001.000000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [P.], seq 1:301, ack 1, win 512, length 300
1001.500000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [R.], seq 301, ack 1, win 512, length 0
1002.000000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [S], seq 0, win 65495, length 0
1003.000000 IP 127.0.0.2.42000 > 127.0.0.1.28080: Flags [R.], seq 1, ack 1, win 512, length 0
";
        let seen: Vec<bool> = seen(text).iter().map(|end| end.unanswered).collect();
        assert_eq!(seen, [true, false]);
    }
}
