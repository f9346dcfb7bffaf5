//! The few shapes that a timeline needs.

/// What a bar means; each has a pattern of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// A request that came back whole: solid and dark.
    Whole,
    /// A request that was cut: diagonal lines.
    Cut,
    /// Serving: plain and light.
    Good,
    /// Serving still, and about to fail: vertical lines.
    Wavering,
    /// Failing or ending: dots.
    Bad,
    /// Something under way: plain, darker.
    Busy,
    /// Nothing under way: only an outline.
    Idle,
}

impl Fill {
    pub(super) const ALL: [Self; 7] =
        [Self::Whole, Self::Cut, Self::Good, Self::Bad, Self::Busy, Self::Idle, Self::Wavering];

    /// What the legend says.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Whole => "request answered to the last byte",
            Self::Cut => "request cut",
            Self::Good => "serving, 200, UP",
            Self::Bad => "503, DOWN, ending",
            Self::Busy => "requests in flight, preStop runs",
            Self::Idle => "no request in flight",
            Self::Wavering => "UP, but a check has failed: UP 1/2",
        }
    }
}

/// Width of a character of the small font, as a rule: what decides whether a text fits into its bar.
const CHARACTER: f64 = 6.4;

const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px;fill:#1b1b1b}\
.title{font-size:18px;font-weight:600}.mode{font-size:14px;font-weight:600}.small{font-size:11.5px;fill:#333}\
.lane{font-size:12px;fill:#333}.on-dark,.bar,.cut{font-size:11.5px;paint-order:stroke;stroke-width:3px;\
stroke-linejoin:round}.on-dark{fill:#fff;font-weight:600;stroke:#2f6f4f}.bar{stroke:#fff}\
.cut{font-weight:700;stroke:#fff}.number{font-size:12px;font-weight:700}";

const PATTERNS: &str = "\
<pattern id=\"cut\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
<rect width=\"8\" height=\"8\" fill=\"#fbe3df\"/><rect width=\"3\" height=\"8\" fill=\"#d9796c\"/></pattern>\
<pattern id=\"bad\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"#f6ead2\"/><circle cx=\"1.5\" cy=\"1.5\" r=\"1\" fill=\"#b98a2f\"/></pattern>\
<pattern id=\"wavering\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"#e3efe8\"/><rect width=\"1.5\" height=\"6\" fill=\"#b98a2f\"/></pattern>";

/// A picture being drawn.
pub(super) struct Svg {
    text: String,
    width: f64,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        let head = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\">\n<style>{STYLE}</style>\n<defs>{PATTERNS}</defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        Self { text: head, width }
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "start", text);
    }

    pub(super) fn text_middle(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "middle", text);
    }

    pub(super) fn text_end(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "end", text);
    }

    pub(super) fn frame(&mut self, x: f64, y: f64, width: f64, height: f64) {
        self.push(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"6\" fill=\"none\" stroke=\"#ccc\"/>"
        ));
    }

    pub(super) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, fill: Fill) {
        let (colour, stroke) = match fill {
            Fill::Whole => ("#2f6f4f", "#1f4f38"),
            Fill::Cut => ("url(#cut)", "#a33527"),
            Fill::Good => ("#e3efe8", "#9dbfac"),
            Fill::Wavering => ("url(#wavering)", "#b98a2f"),
            Fill::Bad => ("url(#bad)", "#b98a2f"),
            Fill::Busy => ("#d3deec", "#8fa6c4"),
            Fill::Idle => ("#fff", "#bbb"),
        };
        let drawn = width.max(1.0);
        self.push(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{drawn:.1}\" height=\"{height:.1}\" fill=\"{colour}\" stroke=\"{stroke}\"/>"
        ));
    }

    /// A bar's text: whole if it fits, else its first word, else beside the bar if `free` says that nothing follows.
    #[expect(clippy::too_many_arguments, reason = "a bar is four numbers")]
    pub(super) fn bar_text(&mut self, x: f64, y: f64, width: f64, height: f64, fill: Fill, text: &str, free: bool) {
        let class = match fill {
            Fill::Whole => "on-dark",
            Fill::Cut => "cut",
            Fill::Good | Fill::Wavering | Fill::Bad | Fill::Busy | Fill::Idle => "bar",
        };
        let fits = |text: &str| !text.is_empty() && text.chars().count() as f64 * CHARACTER + 8.0 <= width;
        let word = text.split(' ').next().unwrap_or_default();
        let y = y + height / 2.0 + 4.0;
        if fits(text) {
            self.text(x + 5.0, y, class, text);
        } else if free && x + width + text.chars().count() as f64 * CHARACTER < self.width - 24.0 {
            self.text(x + width + 5.0, y, "bar", text);
        } else if fits(word) {
            self.text(x + 5.0, y, class, word);
        }
    }

    pub(super) fn grid_line(&mut self, x: f64, top: f64, bottom: f64) {
        self.push(&format!(
            "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#e4e4e4\"/>"
        ));
    }

    pub(super) fn mark_line(&mut self, x: f64, top: f64, bottom: f64) {
        self.push(&format!(
            "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#1b1b1b\" stroke-opacity=\"0.7\" stroke-dasharray=\"4 3\"/>"
        ));
    }

    /// An event's number in a circle; a filled one for the event that nobody wants.
    pub(super) fn mark(&mut self, x: f64, y: f64, radius: f64, number: u8, unwanted: bool) {
        let (fill, ink) = if unwanted { ("#a33527", "#fff") } else { ("#fff", "#1b1b1b") };
        self.push(&format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{fill}\" stroke=\"#1b1b1b\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" class=\"number\" text-anchor=\"middle\" style=\"fill:{ink}\">{number}</text>",
            y + 4.2
        ));
    }

    fn anchored(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = escape(text);
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    fn push(&mut self, element: &str) {
        self.text.push_str(element);
        self.text.push('\n');
    }
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
