//! Tables for people.

use crate::backend;
use crate::curl::Outcome;
use crate::rollout;
use crate::run::Record;
use crate::scenario::Scenario;
use crate::timeline::{Event, Kind};

/// Lays rows out in columns; the first row is the head.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    let rule = format!("  {}", widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("  "));
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if lines.len() > 1 {
        lines.insert(1, rule);
    }
    lines.join("\n")
}

/// The scenario table: a row for each client of each run, the field's figure beside it.
pub(crate) fn scenario_table(scenario: &Scenario, records: &[Record]) -> String {
    let head = ["mode", "proto", "status", "seconds", "curl", "answer", "events in order", "in flight at 5", "verdict"];
    let mut rows = vec![head.iter().map(ToString::to_string).chain(["in the field".to_owned()]).collect::<Vec<_>>()];
    for record in records {
        for (index, client) in record.clients.iter().enumerate() {
            let in_flight = record.in_flight().map_or("?".to_owned(), |active| active.to_string());
            let once = |text: String| if index == 0 { text } else { String::new() };
            rows.push(vec![
                once(record.mode.name().to_owned()),
                client.protocol.name().to_owned(),
                client.status.to_string(),
                format!("{:.2}", client.seconds),
                client.curl_exit.to_string(),
                answer(client),
                once(record.order.clone()),
                once(in_flight),
                record.fate(client).to_owned(),
                once(scenario.field(record.mode).to_owned()),
            ]);
        }
    }
    table(&rows)
}

/// How much of the answer came: chunks of a stream, else bytes.
pub(crate) fn answer(client: &Outcome) -> String {
    match backend::expected_chunks(&client.path) {
        Some(chunks) if chunks > 1 => {
            let each = client.expected_bytes / chunks;
            format!("{} of {chunks} chunks", client.answer_bytes() / each.max(1))
        }
        Some(_) | None => format!("{}/{} bytes", client.answer_bytes(), client.expected_bytes),
    }
}

/// A rolling restart: a row for each pod that left.
pub(crate) fn rolling_table(scenario: &Scenario, record: &rollout::Record) -> String {
    let head = ["mode", "pod", "events in order", "in flight at 5", "deletion to exit", "in the field"];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for (index, gone) in record.departures.iter().enumerate() {
        let once = |text: &str| if index == 0 { text.to_owned() } else { String::new() };
        let in_flight = gone.in_flight_at_lb_down.as_ref();
        rows.push(vec![
            once(record.mode.name()),
            gone.pod.clone(),
            gone.order.clone(),
            in_flight.map_or("?".to_owned(), |active| active.downstream.to_string()),
            format!("{:.2} s", gone.deletion.gone_s - gone.deletion.deleted_s),
            once(scenario.field(record.mode)),
        ]);
    }
    table(&rows)
}

/// What the numbers in `events in order` mean.
pub(crate) fn legend() -> String {
    let events = Kind::ALL.iter().map(|kind| format!("{} {}", kind.number(), kind.meaning()));
    let mut lines: Vec<String> = events.map(|line| format!("  {line}")).collect();
    lines.push("  = joins events closer together than the samples can tell".to_owned());
    lines.join("\n")
}

/// One run's events with their times and how finely each was seen.
pub(crate) fn events_table(events: &[Event]) -> String {
    let head = ["event", "", "second", "seen within", "source"];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for event in events {
        rows.push(vec![
            event.number.to_string(),
            event.event.name().to_owned(),
            format!("{:.3}", event.at_s),
            format!("{:.0} ms", (event.at_s - event.after_s) * 1000.0),
            event.source.clone(),
        ]);
    }
    table(&rows)
}

/// Median, 99th percentile and maximum of what was measured.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) n: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Quantiles {
    /// Nearest rank; None of nothing.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = |q: f64| sorted.get(((sorted.len() as f64 * q).ceil() as usize).saturating_sub(1)).copied();
        Some(Self { n: sorted.len(), p50: rank(0.5)?, p99: rank(0.99)?, max: *sorted.last()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::verdict::tests::{cut_by_current, kept_by};

    #[test]
    fn the_scenario_table_shows_ours_beside_the_fields() {
        let s1 = Scenario::read("S1").unwrap();
        let text = scenario_table(&s1, &[cut_by_current(), kept_by(Mode::Softclose)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].contains("502") && lines[2].contains("CUT") && lines[2].contains("502 after 8.25 s"));
        assert!(lines[3].contains("3 4 1 5 2") && lines[3].contains("whole"));
    }

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(Quantiles::of(&values), Some(Quantiles { n: 200, p50: 100.0, p99: 198.0, max: 200.0 }));
        assert_eq!(Quantiles::of(&[]), None);
    }
}
