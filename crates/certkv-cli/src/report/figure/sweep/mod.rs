//! Why this format and tolerance: curves of a sweep, recorded or of this run, whole and by layer.
mod frame;
mod layers;
mod lines;
mod rungs;
mod says;

use super::words;
use crate::{
    demo::defaults,
    report::{
        data::ReportData,
        svg::escape,
        sweep::{Curve, CurvePoint, Sweep},
    },
};

/// What the figures draw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// One line each.
    pub(crate) curves: &'a [Curve],
    /// Points of the present run, where the curves are of another.
    pub(crate) marks: &'a [Curve],
    /// Index of the curve that stands out: the default format, or the first.
    pub(crate) focus: usize,
}

impl<'a> View<'a> {
    fn new(curves: &'a [Curve], marks: &'a [Curve]) -> Self {
        let focus = curves.iter().position(|c| c.format == defaults::FORMAT).unwrap_or(0);
        Self { curves, marks, focus }
    }

    /// Every point of every curve.
    pub(crate) fn points(&self) -> impl Iterator<Item = &'a CurvePoint> {
        self.curves.iter().flat_map(|c| &c.points)
    }

    /// Every mark with its format.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (&'a str, &'a CurvePoint)> {
        self.marks.iter().flat_map(|c| c.points.iter().map(|p| (c.format.as_str(), p)))
    }

    /// Curves in the order of drawing: the one that stands out comes last, above the others.
    pub(crate) fn drawn(&self) -> impl Iterator<Item = (usize, &'a Curve)> {
        let focus = self.focus;
        let others = self.curves.iter().enumerate().filter(move |(i, _)| *i != focus);
        others.chain(self.curves.iter().enumerate().skip(focus).take(1))
    }

    /// Tolerances that occur, rising.
    pub(crate) fn tolerances(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.points().map(|p| p.tolerance).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }
}

/// True if `curves` are more than one point, so that there is something to choose from.
fn is_sweep(curves: &[Curve]) -> bool {
    curves.iter().map(|c| c.points.len()).sum::<usize>() > 1
}

/// The section: the run's own curves if it was a sweep, otherwise those of `recorded` with the run's points on them if
/// they are of the same model; nothing else.
pub fn draw(data: &ReportData, recorded: Option<&Sweep>) -> String {
    if is_sweep(&data.curves) {
        let view = View::new(&data.curves, &[]);
        return section(&view, "Curves of this run.");
    }
    match recorded {
        Some(sweep) if sweep.setting.model == data.setting.model && is_sweep(&sweep.curves) => {
            let view = View::new(&sweep.curves, &data.curves);
            section(&view, &says::provenance(sweep, !data.curves.is_empty()))
        }
        _ => String::new(),
    }
}

/// `origin` is markup.
fn section(view: &View<'_>, origin: &str) -> String {
    format!(
        "<section id=\"why\"><h2>Why this format and tolerance</h2><p>{}</p><p class=\"origin\">{origin}</p>\
         <div class=\"pair\"><div>{}</div><div>{}</div><div>{}</div><div>{}</div></div>\
         <h3>By layer</h3><p>{}</p><div class=\"scroll\"><div class=\"wide\">{}</div></div></section>\n",
        says::verdict(view),
        lines::read(view),
        lines::moved(view),
        lines::quality(view),
        rungs::draw(view),
        escape(&says::layers(view)),
        layers::draw(view)
    )
}
