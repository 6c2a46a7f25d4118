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

/// Round numbers from at or below the least of `values` to at or above the largest, about `parts` steps apart.
pub(super) fn axis(values: impl Iterator<Item = f64>, parts: f64) -> Vec<f64> {
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
