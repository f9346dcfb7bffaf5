//! A rolling restart as a picture: above, each request of the load as a mark at the moment when it was over; below, each pod that left.

use super::svg::{Fill, Svg};
use super::{
    AXIS, HEAD, LANE, LANE_GAP, LEFT, LEGEND, MARK_RADIUS, PANEL_GAP, RIGHT, Scale, Span, TITLE, WIDTH, axis,
    balancer_look, legend, marks, pod_spans, spans,
};
use crate::fate::Fate;
use crate::rollout::{Departure, Record};
use crate::timeline::Kind;

/// A mark of the load is at least this wide, or nobody sees it.
const TICK: f64 = 2.0;
/// A lost request is drawn wider than it lasted.
const LOST: f64 = 9.0;

/// One rolling restart.
pub(crate) fn rolling(record: &Record) -> String {
    let last = record.fates.iter().map(|fate| fate.ended_s);
    let last = last.chain(record.departures.iter().map(|gone| gone.deletion.gone_s)).fold(1.0, f64::max);
    let scale = Scale { seconds: last * 1.02 };
    let streams = streams(record);
    let load_height = HEAD + streams.len() as f64 * (LANE + LANE_GAP) + AXIS;
    let heights: f64 = record.departures.iter().map(|gone| height(gone, scale) + PANEL_GAP).sum();
    let mut svg = Svg::new(WIDTH, TITLE + load_height + PANEL_GAP + heights + LEGEND);
    svg.text(16.0, 30.0, "title", &format!("{}: {}", record.scenario, record.title));
    let checks = record.times.check_inter_ms;
    svg.text_end(WIDTH - RIGHT, 30.0, "small", &format!("{} times, balancer checks each {checks} ms", record.scale));

    svg.frame(8.0, TITLE, WIDTH - 16.0, load_height);
    svg.text(16.0, TITLE + 20.0, "mode", record.mode.name());
    svg.text(LEFT, TITLE + 20.0, "small", record.mode.meaning());
    let lost = record.failures().len();
    let verdict = format!(
        "{} requests, {}",
        record.fates.len(),
        if lost == 0 { "none lost".to_owned() } else { format!("{lost} LOST") }
    );
    svg.text_end(WIDTH - RIGHT, TITLE + 20.0, "mode", &verdict);
    svg.text(
        LEFT,
        TITLE + 38.0,
        "small",
        "each mark is a request, at the moment when it was over; a wide hatched one was lost",
    );
    let bottom = TITLE + load_height - AXIS;
    axis(&mut svg, scale, TITLE + HEAD, bottom);
    for (index, stream) in streams.iter().enumerate() {
        let y = TITLE + HEAD + index as f64 * (LANE + LANE_GAP);
        svg.text_end(LEFT - 8.0, y + 15.0, "lane", stream);
        let of_stream = || record.fates.iter().filter(|fate| fate.stream == *stream);
        for fate in of_stream().filter(|fate| fate.loss().is_none()) {
            svg.bar(scale.x(fate.ended_s), y + 4.0, TICK, LANE - 8.0, Fill::Whole);
        }
        // Over the others, and with their class beside them.
        for (fate, loss) in of_stream().filter_map(|fate| Some((fate, fate.loss()?))) {
            let x = scale.x(fate.ended_s) - LOST / 2.0;
            svg.bar(x, y, LOST, LANE, Fill::Cut);
            svg.text(x + LOST + 2.0, y + 15.0, "cut", &loss);
        }
    }
    let mut top = TITLE + load_height + PANEL_GAP;
    for gone in &record.departures {
        departure(&mut svg, gone, &record.fates, scale, top);
        top += height(gone, scale) + PANEL_GAP;
    }
    legend(&mut svg, top);
    svg.finish()
}

/// In the order of the scenario.
fn streams(record: &Record) -> Vec<String> {
    record.times.load.iter().map(|stream| stream.name.clone()).collect()
}

fn height(gone: &Departure, scale: Scale) -> f64 {
    let rows = marks(&gone.events, scale).into_iter().map(|(_, row)| row + 1).max().unwrap_or(0);
    HEAD + rows as f64 * 2.0 * (MARK_RADIUS + 1.0) + lanes(gone).len() as f64 * (LANE + LANE_GAP) + AXIS
}

fn departure(svg: &mut Svg, gone: &Departure, fates: &[Fate], scale: Scale, top: f64) {
    let height = height(gone, scale);
    svg.frame(8.0, top, WIDTH - 16.0, height);
    svg.text(16.0, top + 20.0, "mode", &format!("pod {}", gone.pod));
    let events = gone.events.iter().map(|event| format!("{} {} {:.2} s", event.number, event.event.name(), event.at_s));
    svg.text(LEFT, top + 20.0, "small", &events.collect::<Vec<_>>().join("  ·  "));
    let served = fates.iter().filter(|fate| fate.pod.as_deref() == Some(&gone.pod)).count();
    svg.text(LEFT, top + 38.0, "small", &format!("{served} requests went to this node in all"));
    let lanes = lanes(gone);
    let bottom = top + height - AXIS;
    let lanes_top = bottom - lanes.len() as f64 * (LANE + LANE_GAP);
    axis(svg, scale, lanes_top, bottom);
    for (index, (name, spans)) in lanes.iter().enumerate() {
        let y = lanes_top + index as f64 * (LANE + LANE_GAP);
        svg.text_end(LEFT - 8.0, y + 15.0, "lane", name);
        for (nth, span) in spans.iter().enumerate() {
            let (from, to) = (scale.x(span.from_s), scale.x(span.to_s));
            svg.bar(from, y, to - from, LANE, span.fill);
            svg.bar_text(from, y, to - from, LANE, span.fill, &span.text, nth + 1 == spans.len());
        }
    }
    for (event, row) in marks(&gone.events, scale) {
        let y = top + HEAD + MARK_RADIUS + row as f64 * 2.0 * (MARK_RADIUS + 1.0);
        svg.mark_line(scale.x(event.at_s), y, bottom);
        svg.mark(scale.x(event.at_s), y, MARK_RADIUS, event.number, event.event == Kind::Rst);
    }
}

fn lanes(gone: &Departure) -> Vec<(String, Vec<Span>)> {
    let end = gone.seen.balancer.last_s;
    let health = spans(&gone.seen.health, gone.deletion.sigterm_s, |value| {
        let fill = if value.starts_with("200") { Fill::Good } else { Fill::Bad };
        Some((fill, value.to_owned()))
    });
    vec![
        ("pod".to_owned(), pod_spans(&gone.deletion)),
        ("health".to_owned(), health),
        ("HAProxy".to_owned(), spans(&gone.seen.balancer, end, balancer_look)),
    ]
}
