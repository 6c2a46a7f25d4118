//! A small writer of SVG: shapes take their colours from the page's style sheet, so that they follow light and dark.
use std::fmt::Write;

/// Text as it may stand between tags or in an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Where a text is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At its start.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// A drawing of fixed coordinates that scales with the page.
#[derive(Debug, Clone)]
pub struct Svg {
    width: f64,
    height: f64,
    label: String,
    body: String,
}

/// A number with at most two decimals; what is not finite is drawn at zero rather than breaking the drawing.
fn n(x: f64) -> String {
    let x = if x.is_finite() { (x * 100.0).round() / 100.0 } else { 0.0 };
    format!("{x}")
}

fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name}=\"{}\"", escape(value)) }
}

impl Svg {
    /// An empty drawing; `label` is what a screen reader says.
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        Self { width, height, label: label.into(), body: String::new() }
    }

    /// A rectangle with rounded corners of radius `r`; `style` for computed colours, `tip` for the tooltip.
    pub fn rect(&mut self, at: [f64; 4], r: f64, class: &str, style: &str, tip: &str) {
        let [x, y, w, h] = at;
        let _ = write!(
            self.body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}{}{}{}/>",
            n(x),
            n(y),
            n(w.max(0.0)),
            n(h.max(0.0)),
            if r > 0.0 { format!(" rx=\"{}\"", n(r)) } else { String::new() },
            attribute("class", class),
            attribute("style", style),
            attribute("data-tip", tip)
        );
    }

    /// A straight line.
    pub fn line(&mut self, from: [f64; 2], to: [f64; 2], class: &str) {
        let ([a, b], [c, d]) = (from, to);
        let _ = write!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"{}/>",
            n(a),
            n(b),
            n(c),
            n(d),
            attribute("class", class)
        );
    }

    /// A broken line through `points`; closed to an area if `class` fills it.
    pub fn path(&mut self, points: &[[f64; 2]], class: &str, style: &str) {
        let mut d = String::new();
        for (i, [x, y]) in points.iter().enumerate() {
            let _ = write!(d, "{}{} {}", if i == 0 { "M" } else { "L" }, n(*x), n(*y));
        }
        let _ = write!(self.body, "<path d=\"{d}\"{}{}/>", attribute("class", class), attribute("style", style));
    }

    /// A dot of radius `r`.
    pub fn dot(&mut self, at: [f64; 2], r: f64, class: &str, style: &str, tip: &str) {
        let _ = write!(
            self.body,
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{}{}{}/>",
            n(at[0]),
            n(at[1]),
            n(r),
            attribute("class", class),
            attribute("style", style),
            attribute("data-tip", tip)
        );
    }

    /// A text with its baseline at `at`.
    pub fn text(&mut self, at: [f64; 2], text: &str, class: &str, anchor: Anchor) {
        self.text_in(at, text, class, anchor, "");
    }

    /// A text with a computed style.
    pub fn text_in(&mut self, at: [f64; 2], text: &str, class: &str, anchor: Anchor, style: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            "<text x=\"{}\" y=\"{}\"{}{}{}>{}</text>",
            n(at[0]),
            n(at[1]),
            attribute("class", class),
            attribute("text-anchor", anchor),
            attribute("style", style),
            escape(text)
        );
    }

    /// The drawing as markup.
    pub fn finish(self) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
            n(self.width),
            n(self.height),
            escape(&self.label),
            self.body
        )
    }
}

/// A mapping from numbers to coordinates.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    from: [f64; 2],
    to: [f64; 2],
    log: bool,
}

impl Scale {
    /// Even steps.
    pub const fn linear(from: [f64; 2], to: [f64; 2]) -> Self {
        Self { from, to, log: false }
    }

    /// Even ratios; numbers at or below zero are drawn at the lower end.
    pub const fn log(from: [f64; 2], to: [f64; 2]) -> Self {
        Self { from, to, log: true }
    }

    /// The coordinate of `x`, kept within the ends.
    pub fn at(&self, x: f64) -> f64 {
        let f = |x: f64| if self.log { x.max(1e-300).ln() } else { x };
        let (low, high) = (f(self.from[0]), f(self.from[1]));
        let share = if high > low { ((f(x) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        self.to[0] + (self.to[1] - self.to[0]) * if share.is_nan() { 0.0 } else { share }
    }
}

/// Round numbers from at or below the least of `values` to at or above the largest, about `parts` steps apart.
pub(crate) fn axis(values: impl Iterator<Item = f64>, parts: f64) -> Vec<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if !(low.is_finite() && high.is_finite()) {
        return vec![0.0, 1.0];
    }
    let wanted = ((high - low) / parts).max(1e-6 * high.abs()).max(1e-9);
    let power = 10f64.powf(wanted.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= wanted * 0.999).unwrap_or(wanted);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let count = (last - first).clamp(1.0, 20.0) as usize;
    // `0.0 +` turns a negative zero into zero.
    (0..=count).map(|i| 0.0 + (first + i as f64) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_tag() {
        assert_eq!(escape("<a href='x'>&\"\u{1}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}");
        let mut svg = Svg::new(10.0, 10.0, "\"");
        svg.text([f64::NAN, 1.005], "</svg>", "a\"b", Anchor::End);
        let text = svg.finish();
        assert!(text.contains("x=\"0\"") && text.contains("&lt;/svg&gt;") && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn scales_clamp() {
        let log = Scale::log([0.01, 1.0], [0.0, 100.0]);
        assert!((log.at(0.1) - 50.0).abs() < 1e-9);
        assert_eq!((log.at(0.0), log.at(7.0), log.at(f64::NAN)), (0.0, 100.0, 0.0));
        assert_eq!(Scale::linear([0.0, 0.0], [5.0, 9.0]).at(3.0), 5.0);
    }

    #[test]
    fn axes_are_round_and_reach_around() {
        let near = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-9);
        let of = |v: [f64; 2], parts: f64| axis(v.into_iter(), parts);
        assert!(near(&of([0.43, 0.71], 4.0), &[0.4, 0.5, 0.6, 0.7, 0.8]));
        assert!(near(&of([-0.001, 0.001], 2.0), &[-0.001, 0.0, 0.001]));
        assert!(near(&of([0.0, 0.6], 3.0), &[0.0, 0.2, 0.4, 0.6]));
        assert_eq!(of([0.0, 0.0], 4.0).len(), 2);
        assert_eq!(of([1.0, 1.0], 4.0).len(), 2);
        assert_eq!(axis(std::iter::empty(), 5.0), [0.0, 1.0]);
        assert_eq!(of([0.0, f64::INFINITY], 5.0), [0.0, 1.0]);
    }
}
