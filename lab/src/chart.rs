//! A run as a picture: SVG timelines as plain strings. Every meaning is carried by text or pattern as well as by colour,
//! so that print and colour-blind readers lose nothing.

mod rolling;
mod svg;

pub(crate) use rolling::rolling;
pub(crate) use svg::escape;

use crate::curl::Outcome;
use crate::kubelet::Deletion;
use crate::run::Record;
use crate::timeline::{Event, Kind};
use crate::watch::Series;

use svg::{Fill, Svg};

const WIDTH: f64 = 1120.0;
const TITLE: f64 = 46.0;
/// Room for the lanes' names.
const LEFT: f64 = 112.0;
const RIGHT: f64 = 20.0;
const LANE: f64 = 22.0;
const LANE_GAP: f64 = 6.0;
/// The title and the line of events above the marks.
const HEAD: f64 = 46.0;
const MARK_RADIUS: f64 = 9.0;
const AXIS: f64 = 26.0;
const PANEL_GAP: f64 = 26.0;
const LEGEND: f64 = 114.0;

/// One run.
pub(crate) fn single(record: &Record) -> String {
    stacked(std::slice::from_ref(record))
}

/// Several runs below each other on one scale of time.
pub(crate) fn stacked(records: &[Record]) -> String {
    let last = records.iter().map(end_of).fold(1.0, f64::max);
    let scale = Scale { seconds: last * 1.02 };
    let heights = records.iter().map(|record| panel_height(record, scale) + PANEL_GAP);
    let height = heights.sum::<f64>() + LEGEND + TITLE;
    let mut svg = Svg::new(WIDTH, height);
    let title = records.first().map(|record| format!("{}: {}", record.scenario, record.title)).unwrap_or_default();
    svg.text(16.0, 30.0, "title", &title);
    let subtitle = records.first().map(subtitle).unwrap_or_default();
    svg.text_end(WIDTH - RIGHT, 30.0, "small", &subtitle);
    let mut top = TITLE;
    for record in records {
        panel(&mut svg, record, scale, top);
        top += panel_height(record, scale) + PANEL_GAP;
    }
    legend(&mut svg, top);
    svg.finish()
}

#[derive(Clone, Copy)]
struct Scale {
    seconds: f64,
}

impl Scale {
    fn x(self, seconds: f64) -> f64 {
        LEFT + (seconds / self.seconds).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }
}

/// A stretch of a lane.
struct Span {
    from_s: f64,
    to_s: f64,
    fill: Fill,
    text: String,
}

fn subtitle(record: &Record) -> String {
    let times = &record.times;
    format!(
        "{} times: {}, balancer checks each {} ms, 2 failures = DOWN",
        record.scale, times.request, times.check_inter_ms
    )
}

fn end_of(record: &Record) -> f64 {
    record.clients.iter().map(|client| client.over_s).fold(record.deletion.gone_s, f64::max)
}

fn panel_height(record: &Record, scale: Scale) -> f64 {
    let rows = marks(&record.events, scale).into_iter().map(|(_, row)| row + 1).max().unwrap_or(0);
    HEAD + rows as f64 * 2.0 * (MARK_RADIUS + 1.0) + lanes(record).len() as f64 * (LANE + LANE_GAP) + AXIS
}

fn panel(svg: &mut Svg, record: &Record, scale: Scale, top: f64) {
    let height = panel_height(record, scale);
    svg.frame(8.0, top, WIDTH - 16.0, height);
    svg.text(16.0, top + 20.0, "mode", record.mode.name());
    svg.text(LEFT, top + 20.0, "small", record.mode.meaning());
    let verdict = match record.cut().len() {
        0 => "no request cut".to_owned(),
        1 => "1 request CUT".to_owned(),
        cut => format!("{cut} requests CUT"),
    };
    svg.text_end(WIDTH - RIGHT, top + 20.0, "mode", &verdict);
    let events =
        record.events.iter().map(|event| format!("{} {} {:.2} s", event.number, event.event.name(), event.at_s));
    svg.text(LEFT, top + 38.0, "small", &events.collect::<Vec<_>>().join("  ·  "));

    let lanes = lanes(record);
    let bottom = top + height - AXIS;
    let lanes_top = bottom - lanes.len() as f64 * (LANE + LANE_GAP);
    axis(svg, scale, lanes_top, bottom);
    // Bars below, marks over them, words on top of both.
    let mut words = Vec::new();
    for (index, (name, spans)) in lanes.iter().enumerate() {
        let y = lanes_top + index as f64 * (LANE + LANE_GAP);
        svg.text_end(LEFT - 8.0, y + 15.0, "lane", name);
        for (nth, span) in spans.iter().enumerate() {
            let (from, to) = (scale.x(span.from_s), scale.x(span.to_s));
            svg.bar(from, y, to - from, LANE, span.fill);
            words.push((from, y, to - from, span, nth + 1 == spans.len()));
        }
    }
    let marks = marks(&record.events, scale);
    let mark_y = |row: usize| top + HEAD + MARK_RADIUS + row as f64 * 2.0 * (MARK_RADIUS + 1.0);
    for (event, row) in &marks {
        svg.mark_line(scale.x(event.at_s), mark_y(*row), bottom);
    }
    for (x, y, width, span, last) in words {
        svg.bar_text(x, y, width, LANE, span.fill, &span.text, last);
    }
    for (event, row) in &marks {
        svg.mark(scale.x(event.at_s), mark_y(*row), MARK_RADIUS, event.number, event.event == Kind::Rst);
    }
}

/// Each event with the row of its mark: marks that would touch go below each other.
fn marks(events: &[Event], scale: Scale) -> Vec<(&Event, usize)> {
    let mut ends: Vec<f64> = Vec::new();
    let mut placed = Vec::new();
    for event in events {
        let x = scale.x(event.at_s);
        let row = ends.iter().position(|end| *end <= x - MARK_RADIUS).unwrap_or(ends.len());
        let end = x + MARK_RADIUS + 3.0;
        match ends.get_mut(row) {
            Some(known) => *known = end,
            None => ends.push(end),
        }
        placed.push((event, row));
    }
    placed
}

fn lanes(record: &Record) -> Vec<(String, Vec<Span>)> {
    let end = end_of(record);
    let mut lanes: Vec<(String, Vec<Span>)> = record
        .clients
        .iter()
        .map(|client| (format!("client {}", client.protocol.name()), vec![request_span(client)]))
        .collect();
    let in_flight = spans(&record.seen.active, end, |value| {
        let (downstream, _) = value.split_once('+')?;
        let fill = if downstream == "0" { Fill::Idle } else { Fill::Busy };
        Some((fill, format!("{downstream} in flight")))
    });
    lanes.push(("gateway".to_owned(), in_flight));
    let deletion = &record.deletion;
    lanes.push(("pod".to_owned(), pod_spans(deletion)));
    // Once Envoy is gone nobody answers: no news to anybody.
    let health = spans(&record.seen.health, deletion.sigterm_s, |value| {
        let fill = if value.starts_with("200") { Fill::Good } else { Fill::Bad };
        Some((fill, value.to_owned()))
    });
    lanes.push(("health".to_owned(), health));
    lanes.push(("HAProxy".to_owned(), spans(&record.seen.balancer, end, balancer_look)));
    lanes
}

/// A pod's end, as kubelet saw it.
fn pod_spans(deletion: &Deletion) -> Vec<Span> {
    let pod = |from_s: f64, to_s: f64, fill: Fill, text: &str| Span { from_s, to_s, fill, text: text.to_owned() };
    let pre_stop = match deletion.pre_stop_exit {
        Some(code) => format!("preStop runs, exits {code}"),
        None => "preStop runs out of time".to_owned(),
    };
    let mut spans = vec![pod(0.0, deletion.deleted_s, Fill::Good, "pod running")];
    // A mode without preStop goes to SIGTERM at once.
    if deletion.sigterm_s > deletion.deleted_s {
        spans.push(pod(deletion.deleted_s, deletion.sigterm_s, Fill::Busy, &pre_stop));
    }
    spans.push(pod(deletion.sigterm_s, deletion.gone_s, Fill::Bad, "SIGTERM"));
    spans
}

/// HAProxy's word for the gateway: `UP 1/2` is UP after a failed check. A word that was not heard is no state.
fn balancer_look(value: &str) -> Option<(Fill, String)> {
    let fill = match value {
        "silent" => return None,
        "UP" => Fill::Good,
        _ if value.starts_with("UP ") => Fill::Wavering,
        _ => Fill::Bad,
    };
    // All of it or nothing: a short bar's first word alone would say UP of a server that is about to go DOWN.
    Some((fill, value.replace(' ', "\u{a0}")))
}

fn request_span(client: &Outcome) -> Span {
    let (fill, fate) = if client.whole() { (Fill::Whole, "whole") } else { (Fill::Cut, "CUT") };
    let text = format!("{} after {:.2} s, {fate}", client.status, client.seconds);
    Span { from_s: client.started_s, to_s: client.over_s, fill, text }
}

/// A series as stretches; none where `look` sees nothing to draw.
fn spans(series: &Series, end_s: f64, look: impl Fn(&str) -> Option<(Fill, String)>) -> Vec<Span> {
    let ends = series.changes.iter().skip(1).map(|change| change.at_s).chain([series.last_s.max(end_s)]);
    let spans = series.changes.iter().zip(ends).filter(|(change, _)| change.at_s < end_s);
    spans
        .filter_map(|(change, to_s)| {
            let (fill, text) = look(&change.value)?;
            Some(Span { from_s: change.at_s, to_s: to_s.min(end_s), fill, text })
        })
        .collect()
}

fn axis(svg: &mut Svg, scale: Scale, top: f64, bottom: f64) {
    let step = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0].into_iter().find(|step| scale.seconds / step <= 16.0);
    let step = step.unwrap_or(120.0);
    let mut tick = 0.0;
    while tick <= scale.seconds {
        svg.grid_line(scale.x(tick), top - 4.0, bottom);
        let label = if tick == 0.0 { "0 s".to_owned() } else { format!("{tick}") };
        svg.text_middle(scale.x(tick), bottom + 14.0, "small", &label);
        tick += step;
    }
}

fn legend(svg: &mut Svg, top: f64) {
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let (x, y) = (24.0 + (index % 3) as f64 * 366.0, top + 14.0 + (index / 3) as f64 * 24.0);
        svg.mark(x, y, MARK_RADIUS, kind.number(), kind == Kind::Rst);
        svg.text(x + 16.0, y + 4.0, "small", &format!("{}: {}", kind.name(), kind.meaning()));
    }
    let y = top + 62.0;
    for (index, fill) in Fill::ALL.into_iter().enumerate() {
        let (x, y) = (16.0 + (index % 4) as f64 * 275.0, y + (index / 4) as f64 * 26.0);
        svg.bar(x, y, 34.0, 16.0, fill);
        svg.text(x + 42.0, y + 12.0, "small", fill.meaning());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::verdict::tests::{cut_by_current, kept_by};
    use crate::watch::Change;

    #[test]
    fn every_mode_and_every_fate_is_written_out_and_not_only_coloured() {
        let svg = stacked(&[cut_by_current(), kept_by(Mode::Improved), kept_by(Mode::Softclose)]);
        for text in
            ["current", "improved", "softclose", "502 after 2.95 s, CUT", "200 after 15.02 s, whole", "1 request CUT"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn marks_that_would_touch_are_put_below_each_other() {
        let record = cut_by_current();
        let scale = Scale { seconds: 10.0 };
        let marks = marks(&record.events, scale);
        for (index, (one, row)) in marks.iter().enumerate() {
            for (other, other_row) in marks.iter().skip(index + 1) {
                let apart = (scale.x(one.at_s) - scale.x(other.at_s)).abs() >= 2.0 * MARK_RADIUS;
                assert!(apart || row != other_row, "{:?} and {:?}", one.event, other.event);
            }
        }
    }

    #[test]
    fn a_balancer_that_has_seen_a_check_fail_is_neither_up_nor_down() {
        let looks =
            ["UP", "UP 1/2", "UP 2/3", "DOWN", "DOWN 1/2", "MAINT"].map(|value| balancer_look(value).unwrap().0);
        assert_eq!(looks, [Fill::Good, Fill::Wavering, Fill::Wavering, Fill::Bad, Fill::Bad, Fill::Bad]);
        assert!(balancer_look("silent").is_none());

        let mut record = kept_by(Mode::Softclose);
        let up = record.seen.balancer.changes[0].clone();
        let at = |at_s, value: &str| Change { after_s: at_s - 0.02, at_s, value: value.to_owned() };
        record.seen.balancer.changes = vec![up, at(16.0, "UP 1/2"), at(16.5, "DOWN")];
        let svg = single(&record);
        assert_eq!(svg.matches(">UP<").count(), 1, "a short bar of UP 1/2 is not called UP");
        assert_eq!(svg.matches(">DOWN<").count(), 1);
    }

    #[test]
    fn the_legend_explains_every_fill_and_every_event() {
        let svg = single(&kept_by(Mode::Softclose));
        for meaning in Fill::ALL.map(Fill::meaning).into_iter().chain(Kind::ALL.map(Kind::meaning)) {
            assert!(svg.contains(&svg::escape(meaning)), "{meaning}");
        }
    }

    #[test]
    fn text_from_outside_cannot_break_the_picture() {
        let mut record = kept_by(Mode::Softclose);
        record.title = "a < b & \"c\"".to_owned();
        assert!(single(&record).contains("a &lt; b &amp; &quot;c&quot;"));
    }
}
