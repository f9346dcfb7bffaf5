//! What a run of the busy gateway left, and which of its requests were lost where.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use softclose_fsm::Preset;

use super::departure::Departure;
use super::log::{Logged, NO_SERVER};
use super::scenario::{Rate, Times};
use super::world::{World, preset_name};
use crate::curl::Protocol;
use crate::fate::Fate;
use crate::haproxy::{Retries, Reuse};
use crate::mode::Mode;
use crate::network::Kind as GroundKind;
use crate::story::Line;
use crate::traffic::Row;
use crate::watch::Series;

/// All that is known of a run; `busy.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) scenario: String,
    pub(crate) title: String,
    pub(crate) scale: String,
    pub(crate) rate: Rate,
    /// None for the scenario's mix.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) mode: Mode,
    /// Of mode softclose.
    pub(crate) preset: Option<Preset>,
    pub(crate) world: World,
    pub(crate) reuse: Reuse,
    pub(crate) replicas: u8,
    pub(crate) ground: GroundKind,
    pub(crate) programs: BTreeMap<String, String>,
    pub(crate) times: Times,
    pub(crate) requests: usize,
    /// Requests that their clients did not get whole, or that ran twice.
    pub(crate) lost: Vec<Lost>,
    /// Ids of requests that the application ran more than once, whatever their clients saw.
    pub(crate) doubled: Vec<String>,
    /// What the balancer sent again from the deletion on.
    pub(crate) retries: Retries,
    pub(crate) departures: Vec<Departure>,
    /// Requests in flight on each pod that stayed.
    pub(crate) staying: Vec<Series>,
    /// By phase: before the deletion, until the pod was gone, after it.
    pub(crate) summary: Vec<Row>,
    pub(crate) story: Vec<Line>,
}

/// A request that was lost, with all that is known of why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) fate: Fate,
    pub(crate) word: String,
    /// None if the balancer's log does not name it.
    pub(crate) logged: Option<Logged>,
    /// Where it was when it was lost.
    pub(crate) place: Place,
    /// From the (first) deletion to its end, in seconds.
    pub(crate) after_deletion_s: f64,
    /// From the balancer's DOWN, as it was seen, to its start and to its end.
    pub(crate) started_after_down_s: Option<f64>,
    pub(crate) ended_after_down_s: Option<f64>,
}

/// Where a request was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// On a pod that left, or on its way to one: nobody else was there who could have lost it.
    Leaving,
    /// On a pod that stayed.
    Staying,
    /// The balancer had no server for it, or none that took its connection (`SC` in HAProxy's log).
    NoServer,
    /// Sent back by a pod that left, and the balancer passed that on. Nothing of it was begun, so nothing was cut.
    Refused,
}

impl Record {
    /// What the mode is called in a table.
    pub(crate) fn way(&self) -> String {
        self.preset.map_or_else(|| self.mode.name().to_owned(), |preset| format!("softclose {}", preset_name(preset)))
    }

    /// Requests that their clients did not get whole.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Lost> {
        self.lost.iter().filter(|lost| !lost.fate.whole())
    }

    /// Failures by the word for each.
    pub(crate) fn failures_by_word(&self) -> BTreeMap<&str, usize> {
        let mut words = BTreeMap::new();
        for lost in self.failures() {
            *words.entry(lost.word.as_str()).or_default() += 1;
        }
        words
    }

    /// Failures on a pod that left: what it had to tell the truth about.
    pub(crate) fn cut(&self) -> usize {
        self.failures().filter(|lost| lost.place == Place::Leaving).count()
    }

    /// The most that may have been cut by what the pods said; None if one did not know, or says nothing.
    pub(crate) fn cut_at_most(&self) -> Option<u64> {
        self.departures.iter().map(|gone| gone.said.as_ref()?.cut_at_most).sum()
    }

    /// Requests a second that the load reached while the pods left, and those that it wanted.
    pub(crate) fn rates(&self) -> Option<(f64, f64)> {
        let during = self.summary.iter().find(|row| row.phase == "during" && row.stream == "all")?;
        Some((during.rate?, during.wanted_rate))
    }

    pub(crate) fn seconds_to_exit(&self) -> f64 {
        self.departures.iter().map(Departure::seconds_to_exit).fold(0.0, f64::max)
    }

    /// Of the Envoys that left.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.departures.iter().map(|gone| gone.cpu_s).sum()
    }

    /// A pod was DOWN before its health had failed; where a soft answer is a failure to the balancer, that is what it was told.
    pub(crate) fn ground_failure(&self) -> bool {
        !self.is_misunderstood() && self.departures.iter().any(Departure::ground_failure)
    }

    /// The gate was told that its balancer hears a soft answer, and it does not: to such a balancer that is a failure, and it cuts a
    /// pod that believes itself spared.
    pub(crate) fn is_misunderstood(&self) -> bool {
        self.preset == Some(Preset::HaproxySoft) && self.world != World::Soft
    }
}

/// The status that softclose sends back with; the application of the lab never does.
const TOO_EARLY: u16 = 425;

impl Lost {
    pub(crate) fn new(fate: &Fate, logged: Option<Logged>, departures: &[Departure]) -> Self {
        let leaves = |pod: &str| departures.iter().find(|gone| gone.pod == pod);
        let server = logged.as_ref().map(|logged| logged.server.as_str());
        // The balancer's word is on the last server that it tried; the application's on the last that served it.
        let pod = server.or(fate.pod.as_deref());
        let place = match pod {
            _ if fate.status == TOO_EARLY && fate.error.is_none() => Place::Refused,
            Some(NO_SERVER) => Place::NoServer,
            _ if logged.as_ref().is_some_and(|logged| logged.state.starts_with("SC")) => Place::NoServer,
            Some(pod) if leaves(pod).is_none() => Place::Staying,
            Some(_) | None => Place::Leaving,
        };
        let gone = pod.and_then(leaves).or(departures.first());
        let down_s = gone.and_then(Departure::down_s);
        Self {
            word: fate.loss().unwrap_or_default(),
            place,
            after_deletion_s: fate.ended_s - gone.map_or(0.0, |gone| gone.deletion.deleted_s),
            started_after_down_s: down_s.map(|down_s| fate.started_s - down_s),
            ended_after_down_s: down_s.map(|down_s| fate.ended_s - down_s),
            fate: fate.clone(),
            logged,
        }
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { fate, word, place, .. } = self;
        let http = fate.protocol.name();
        write!(f, "{} ({http}): {word}, {place:?}, served by {}", fate.id, fate.pod.as_deref().unwrap_or("nobody"))?;
        if let (Some(started), Some(ended)) = (self.started_after_down_s, self.ended_after_down_s) {
            write!(f, ", {started:+.3} s to {ended:+.3} s from DOWN")?;
        }
        match &self.logged {
            Some(Logged { server, status, state, retries }) => {
                write!(f, ", HAProxy: {server} {status} {state} retries {retries}")
            }
            None => f.write_str(", not in HAProxy's log"),
        }
    }
}

/// Ids of requests that the application ran more than once.
pub(crate) fn doubled(fates: &[Fate]) -> Vec<String> {
    fates.iter().filter(|fate| fate.runs > 1).map(|fate| fate.id.clone()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::busy::departure::Said;
    use crate::busy::scenario::Scenario;
    use crate::fate::Error;
    use crate::kubelet::Deletion;
    use crate::observe::Seen;
    use crate::watch::Change;

    fn series(changes: &[(f64, &str)]) -> Series {
        let change = |&(at_s, value): &(f64, &str)| Change { after_s: at_s - 0.02, at_s, value: value.to_owned() };
        Series { changes: changes.iter().map(change).collect(), ..Series::default() }
    }

    /// A pod that was deleted at 4 s, got its last request at 4.5 s and was gone at 10 s.
    pub(in crate::busy) fn record(preset: Preset, world: World) -> Record {
        let deletion = Deletion {
            deleted_s: 4.0,
            pre_stop_exit: Some(0),
            pre_stop_output: Vec::new(),
            sigterm_s: 9.9,
            gone_s: 10.0,
            killed: false,
        };
        let seen = Seen {
            active: series(&[(3.9, "12+12"), (4.3, "9+9"), (8.0, "0+0")]),
            balancer: series(&[(3.9, "UP"), (4.52, if world == World::Soft { "NOLB" } else { "DOWN" })]),
            ..Seen::default()
        };
        let departure = Departure {
            pod: "gw".into(),
            deletion,
            said: Some(Said { exit: 0, cut_at_most: Some(0), message: "done: clean".into() }),
            order: String::new(),
            events: Vec::new(),
            in_flight_at_down: Some(0),
            cpu_s: 1.0,
            account: Series::default(),
            seen,
        };
        let during = Row {
            phase: "during".into(),
            stream: "all".into(),
            requests: 1000,
            failures: BTreeMap::new(),
            doubled: 0,
            latency: None,
            late: None,
            rate: Some(170.0),
            wanted_rate: 170.0,
        };
        Record {
            scenario: "busy".into(),
            title: String::new(),
            scale: "scaled".into(),
            rate: Rate::Medium,
            protocol: None,
            mode: Mode::Softclose,
            preset: Some(preset),
            world,
            reuse: Reuse::Safe,
            replicas: 2,
            ground: GroundKind::Loopback,
            programs: BTreeMap::new(),
            times: Scenario::read().unwrap().times("scaled").unwrap().clone(),
            requests: 1000,
            lost: Vec::new(),
            doubled: Vec::new(),
            retries: Retries::default(),
            departures: vec![departure],
            staying: vec![series(&[(3.9, "12+12"), (5.0, "20+20")])],
            summary: vec![during],
            story: Vec::new(),
        }
    }

    pub(in crate::busy) fn lost_on_the_way(record: &Record) -> Lost {
        let fate = Fate {
            id: "page-h1-7".into(),
            stream: "page-h1".into(),
            protocol: Protocol::H1,
            path: "/sleep?seconds=0.2".into(),
            due_s: 9.0,
            started_s: 9.0,
            ended_s: 9.02,
            status: 0,
            bytes: 0,
            expected_bytes: 35,
            chunks: 0,
            expected_chunks: 1,
            reused: true,
            error: Some(Error::Closed),
            pod: None,
            runs: 0,
        };
        Lost::new(&fate, None, &record.departures)
    }

    #[test]
    fn a_request_that_nobody_names_was_lost_by_the_pod_that_left() {
        let record = record(Preset::Haproxy, World::Plain);
        assert_eq!(lost_on_the_way(&record).place, Place::Leaving);
    }

    #[test]
    fn a_refusal_that_reached_its_client_is_a_failure_and_no_cut() {
        let mut record = record(Preset::HaproxyRetry, World::Plain);
        let fate = Fate { status: 425, error: None, ..lost_on_the_way(&record).fate };
        record.lost.push(Lost::new(&fate, None, &record.departures));
        assert_eq!((record.lost[0].place, record.failures().count(), record.cut()), (Place::Refused, 1, 0));
    }

    #[test]
    fn the_balancers_word_on_where_a_request_was_comes_before_the_applications() {
        let record = record(Preset::Haproxy, World::Plain);
        let mut fate = lost_on_the_way(&record).fate;
        fate.pod = Some("gw".into());
        let place = |server: &str, state: &str| {
            let (server, state) = (server.to_owned(), state.to_owned());
            let logged = Logged { server, status: "503".into(), state, retries: "0".into() };
            Lost::new(&fate, Some(logged), &record.departures).place
        };
        assert_eq!([place("gw", "DH--"), place("gw2", "DH--")], [Place::Leaving, Place::Staying]);
        let unserved = [place(NO_SERVER, "SC--"), place("gw", "SC--")];
        assert_eq!(unserved, [Place::NoServer; 2], "none at all, or none that took the connection");
    }
}
