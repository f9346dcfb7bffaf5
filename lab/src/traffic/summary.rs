//! A load in a few lines: before, during and after what happened to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Load, Stream};
use crate::fate::Fate;
use crate::report::{self, Quantiles};

/// When something happened to the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
}

/// What is known of a stream, or of all, in one phase. A request belongs to `during` if it was under way at any moment of
/// the window: what is cut then may have begun long before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) phase: String,
    pub(crate) stream: String,
    pub(crate) requests: usize,
    /// Requests that were not answered to the last byte, by class.
    pub(crate) failures: BTreeMap<String, usize>,
    /// Requests that the application ran more than once, whatever their client saw.
    pub(crate) doubled: usize,
    /// From the moment at which a request was due to the last byte, in seconds; of whole answers only.
    pub(crate) latency: Option<Quantiles>,
    /// From the moment at which a request was due to its being sent, connecting included, in seconds.
    pub(crate) late: Option<Quantiles>,
    /// Requests a second that were sent within the phase; none for a phase of no length.
    pub(crate) rate: Option<f64>,
    pub(crate) wanted_rate: f64,
}

/// The streams' name in the row of all.
const ALL: &str = "all";

/// For each phase a row of each stream, and one of all if there are several.
pub(crate) fn summary(load: &Load, streams: &[Stream], window: Window) -> Vec<Row> {
    // A window beyond the load's ends leaves a phase without length, not one of negative length.
    let from = window.from_s.clamp(load.began_s, load.ended_s.max(load.began_s));
    let to = window.to_s.clamp(from, load.ended_s.max(from));
    let phases = [("before", load.began_s, from), ("during", from, to), ("after", to, load.ended_s)];
    let mut rows = Vec::new();
    for (phase, begins, ends) in phases {
        let mut add = |stream: &str, wanted_rate: f64, member: &dyn Fn(&Fate) -> bool| {
            let members: Vec<&Fate> = load.fates.iter().filter(|fate| member(fate)).collect();
            let sent = members.iter().filter(|fate| (begins..ends).contains(&fate.started_s)).count();
            let rate = (ends > begins).then(|| sent as f64 / (ends - begins));
            let of_phase = members.into_iter().filter(|fate| phase_of(fate, window) == phase).collect::<Vec<_>>();
            rows.push(row(phase, stream, &of_phase, rate, wanted_rate));
        };
        for stream in streams {
            add(&stream.name, stream.rate, &|fate| fate.stream == stream.name);
        }
        if streams.len() > 1 {
            add(ALL, streams.iter().map(|stream| stream.rate).sum(), &|_| true);
        }
    }
    rows
}

/// The rows for people.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = ["phase", "stream", "requests", "failures", "doubled", "p50 ms", "p99 ms", "late p99 ms", "rate/wanted"];
    let mut lines = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for row in rows {
        let failures: Vec<String> = row.failures.iter().map(|(class, count)| format!("{count} {class}")).collect();
        let ms = |value: Option<f64>| value.map_or("-".to_owned(), |seconds| format!("{:.1}", seconds * 1000.0));
        lines.push(vec![
            row.phase.to_owned(),
            row.stream.clone(),
            row.requests.to_string(),
            if failures.is_empty() { "0".to_owned() } else { failures.join(", ") },
            row.doubled.to_string(),
            ms(row.latency.map(|latency| latency.p50)),
            ms(row.latency.map(|latency| latency.p99)),
            ms(row.late.map(|late| late.p99)),
            format!("{}/{:.1}", row.rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")), row.wanted_rate),
        ]);
    }
    report::table(&lines)
}

fn phase_of(fate: &Fate, window: Window) -> &'static str {
    if fate.ended_s < window.from_s {
        "before"
    } else if fate.due_s > window.to_s {
        "after"
    } else {
        "during"
    }
}

fn row(phase: &'static str, stream: &str, fates: &[&Fate], rate: Option<f64>, wanted_rate: f64) -> Row {
    let mut failures = BTreeMap::new();
    for fate in fates.iter().filter(|fate| !fate.whole()) {
        if let Some(class) = fate.loss() {
            *failures.entry(class).or_default() += 1;
        }
    }
    let seconds = |from: &dyn Fn(&Fate) -> f64, of: &dyn Fn(&Fate) -> bool| {
        Quantiles::of(&fates.iter().filter(|fate| of(fate)).map(|fate| from(fate)).collect::<Vec<_>>())
    };
    Row {
        phase: phase.to_owned(),
        stream: stream.to_owned(),
        requests: fates.len(),
        failures,
        doubled: fates.iter().filter(|fate| fate.runs > 1).count(),
        latency: seconds(&|fate| fate.ended_s - fate.due_s, &Fate::whole),
        late: seconds(&|fate| fate.started_s - fate.due_s, &|_| true),
        rate,
        wanted_rate,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::curl::Protocol;
    use crate::fate::Error;

    pub(in crate::traffic) fn whole(id: &str, due_s: f64) -> Fate {
        Fate {
            id: id.to_owned(),
            stream: id.rsplit_once('-').unwrap().0.to_owned(),
            protocol: Protocol::H1,
            path: "/fast".into(),
            due_s,
            started_s: due_s + 0.001,
            ended_s: due_s + 0.01,
            status: 200,
            bytes: 35,
            expected_bytes: 35,
            chunks: 1,
            expected_chunks: 1,
            reused: false,
            error: None,
            pod: None,
            runs: 1,
        }
    }

    fn stream(name: &str, rate: f64) -> Stream {
        let text = format!("{{name: {name}, protocol: h1, path: /fast, rate: {rate}, connection: kept}}");
        serde_saphyr::from_str(&text).unwrap()
    }

    fn load() -> Load {
        let mut fates: Vec<Fate> = (0..30).map(|n| whole(&format!("page-{n}"), f64::from(n) / 10.0)).collect();
        fates.extend((0..3).map(|n| whole(&format!("long-{n}"), f64::from(n))));
        Load { fates, began_s: 0.0, ended_s: 3.0 }
    }

    #[test]
    fn a_request_that_is_under_way_in_the_window_belongs_to_it_whenever_it_began() {
        let mut load = load();
        let cut = load.fates.iter_mut().find(|fate| fate.id == "long-0").unwrap();
        (cut.ended_s, cut.error, cut.bytes) = (1.5, Some(Error::Reset), 0);
        let rows = summary(&load, &[stream("page", 10.0), stream("long", 1.0)], Window { from_s: 0.995, to_s: 1.995 });
        let of = |phase: &str, stream: &str| {
            rows.iter().find(|row| row.phase == phase && row.stream == stream).unwrap().clone()
        };
        assert_eq!(of("before", "long").requests, 0);
        assert_eq!(of("during", "long").requests, 2);
        assert_eq!(of("during", "long").failures, BTreeMap::from([("reset".to_owned(), 1)]));
        assert_eq!(of("during", "all").failures, BTreeMap::from([("reset".to_owned(), 1)]));
        assert_eq!(of("after", "all").failures, BTreeMap::new());
        assert_eq!(of("during", "page").rate, Some(10.0));
        assert_eq!(rows.iter().filter(|row| row.stream == "all").map(|row| row.requests).sum::<usize>(), 33);
    }

    #[test]
    fn a_request_that_ran_twice_is_counted_apart_from_the_failures() {
        let mut load = load();
        load.fates[5].runs = 2;
        let rows = summary(&load, &[stream("page", 10.0)], Window { from_s: 1.0, to_s: 2.0 });
        assert_eq!((rows[0].doubled, rows[0].failures.len()), (1, 0));
    }

    #[test]
    fn a_phase_that_never_was_has_no_rate() {
        let rows = summary(&load(), &[stream("page", 10.0)], Window { from_s: 5.0, to_s: 6.0 });
        let seen: Vec<_> = rows.iter().map(|row| (row.requests, row.rate)).collect();
        assert_eq!(seen, [(30, Some(10.0)), (0, None), (0, None)]);
    }

    #[test]
    fn the_table_shows_failures_by_class_and_the_rate_beside_the_wanted_one() {
        let mut load = load();
        for (n, error) in [(0, Error::H2("CANCEL".into())), (1, Error::H2("CANCEL".into())), (2, Error::Refused)] {
            load.fates[n].error = Some(error);
        }
        let text = table(&summary(&load, &[stream("page", 10.0)], Window { from_s: 1.0, to_s: 2.0 }));
        let before = text.lines().nth(2).unwrap();
        assert!(before.contains("2 h2 CANCEL, 1 refused"), "{text}");
        let cells: Vec<&str> = before.split_whitespace().rev().take(4).collect();
        assert_eq!(cells, ["10.0/10.0", "1.0", "10.0", "10.0"], "{text}");
    }
}
