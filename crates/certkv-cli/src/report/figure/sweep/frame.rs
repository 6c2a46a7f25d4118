//! Axes that the charts of a sweep share: tolerance to the right, evenly by ratio.
use super::{View, words};
use crate::report::svg::{Anchor, Scale, Svg};

/// A plot area and its scales.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// Left, top, right, bottom.
    pub(super) edges: [f64; 4],
    /// From tolerance.
    pub(super) x: Scale,
    /// From the quantity shown.
    pub(super) y: Scale,
}

impl Frame {
    /// A frame in `edges` for the tolerances of `view` and its marks, and quantities between the ends of `ticks`.
    pub(super) fn new(edges: [f64; 4], view: &View<'_>, ticks: &[f64]) -> Self {
        let [left, top, right, bottom] = edges;
        let range = [ticks.first().copied().unwrap_or(0.0), ticks.last().copied().unwrap_or(1.0)];
        let all = || view.points().chain(view.marks().map(|(_, p)| p)).map(|p| p.tolerance);
        // Room for a dot at either end; a single tolerance stands in the middle.
        let (low, high) = (all().fold(f64::INFINITY, f64::min) / 1.15, all().fold(0.0, f64::max) * 1.15);
        Self { edges, x: Scale::log([low, high], [left, right]), y: Scale::linear(range, [bottom, top]) }
    }

    /// Horizontal lines at `ticks`; named by `show` at the left end unless it gives nothing.
    pub(super) fn levels(&self, svg: &mut Svg, ticks: &[f64], show: impl Fn(f64) -> String) {
        let [left, _, right, _] = self.edges;
        for &t in ticks {
            svg.line([left, self.y.at(t)], [right, self.y.at(t)], "grid");
            let label = show(t);
            if !label.is_empty() {
                svg.text([left - 8.0, self.y.at(t) + 4.0], &label, "tick", Anchor::End);
            }
        }
    }

    /// The tolerances under the lower edge.
    pub(super) fn tolerances(&self, svg: &mut Svg, tolerances: &[f64]) {
        for &t in tolerances {
            svg.text([self.x.at(t), self.edges[3] + 18.0], &words::percent(t), "tick", Anchor::Middle);
        }
    }

    /// The default tolerance, if the frame reaches it.
    pub(super) fn default_tolerance(&self, svg: &mut Svg, tolerances: &[f64]) {
        let default = crate::demo::defaults::TOLERANCE;
        if tolerances.contains(&default) {
            let x = self.x.at(default);
            svg.line([x, self.edges[1]], [x, self.edges[3]], "limit");
            svg.text([x + 8.0, self.edges[1] + 12.0], "default", "label halo", Anchor::Start);
        }
    }

    /// Where a point lies.
    pub(super) fn at(&self, tolerance: f64, value: f64) -> [f64; 2] {
        [self.x.at(tolerance), self.y.at(value)]
    }
}
