//! What the curves come to, in sentences made from their numbers.
use super::{View, words};
use crate::{
    demo::defaults,
    report::{
        svg::escape,
        sweep::{Curve, CurvePoint, Sweep},
    },
};

/// The point of `curve` at the default tolerance, or its tightest one.
fn at_default(curve: &Curve) -> Option<&CurvePoint> {
    curve.points.iter().find(|p| p.tolerance == defaults::TOLERANCE).or_else(|| curve.points.first())
}

/// A format's name, kept on one line.
fn name(format: &str) -> String {
    format!("<span class=\"format\">{}</span>", escape(format))
}

/// What the marked format reads and holds at the default tolerance and beside it, the cheapest of the others, and what
/// quality says; markup.
pub(super) fn verdict(view: &View<'_>) -> String {
    let Some((focus, here)) = view.curves.get(view.focus).and_then(|c| Some((c, at_default(c)?))) else {
        return String::new();
    };
    let mut text = format!(
        "The bold line is {}: at {} of the output's norm it reads {:.3} of what dense half precision reads, {:.3} of it originals, \
         and holds {:.0} bytes a token.",
        name(&focus.format),
        words::percent(here.tolerance),
        here.read.total(),
        here.read.originals(),
        focus.bytes_per_token
    );
    let same = |p: &&CurvePoint| p.tolerance == here.tolerance;
    let others = view.curves.iter().filter(|c| c.format != focus.format);
    let best = others
        .filter_map(|c| Some((c, c.points.iter().find(same)?)))
        .min_by(|a, b| a.1.read.total().total_cmp(&b.1.read.total()));
    if let Some((curve, p)) = best {
        text += &format!(
            " The cheapest of the others there, {}, reads {:.3} and holds {:.0}.",
            name(&curve.format),
            p.read.total(),
            curve.bytes_per_token
        );
    }
    let tighter = focus.points.iter().rev().find(|p| p.tolerance < here.tolerance);
    let wider = focus.points.iter().find(|p| p.tolerance > here.tolerance);
    let beside: Vec<String> = [tighter, wider]
        .into_iter()
        .flatten()
        .map(|p| format!("{:.3} at {}", p.read.total(), words::percent(p.tolerance)))
        .collect();
    if !beside.is_empty() {
        text += &format!(" It would read {}.", beside.join(" and "));
    }
    text + &quality(view)
}

fn quality(view: &View<'_>) -> String {
    let mut text = String::new();
    let asked = || view.points().filter(|p| p.prompts > 0);
    let wrong = asked().filter(|p| p.right < p.prompts).count();
    match (asked().count(), wrong) {
        (0, _) => {}
        (_, 0) => text += " Every prompt is answered right at every point.",
        (all, n) => text += &format!(" {n} of {all} points have a wrong answer."),
    }
    let largest = view.points().filter_map(|p| p.delta).map(f64::abs).reduce(f64::max);
    if let Some(d) = largest {
        text += &format!(" Bits per byte move by at most {:.2}%.", 100.0 * d);
    }
    text
}

/// Which layers pay for the promotions of the marked format.
pub(super) fn layers(view: &View<'_>) -> String {
    let rest = "Columns are layers, lines are formats as above, bars are rungs.";
    let Some(p) = view.curves.get(view.focus).and_then(at_default) else { return rest.into() };
    let dearest = |pick: fn(f64, f64) -> bool| {
        let totals = p.layers.iter().map(|l| l.read.total()).enumerate();
        totals.reduce(|a, b| if pick(b.1, a.1) { b } else { a })
    };
    match (dearest(|a, b| a > b), dearest(|a, b| a < b)) {
        (Some((most, high)), Some((least, low))) if p.layers.len() > 1 => format!(
            "At {} layer {most} reads {high:.3} of dense and layer {least} {low:.3}. {rest}",
            words::percent(p.tolerance)
        ),
        _ => rest.into(),
    }
}

/// Where recorded curves come from, as markup. `marked` if points of the present run are on them.
pub(super) fn provenance(sweep: &Sweep, marked: bool) -> String {
    let w = &sweep.work;
    let tasks: Vec<String> = w.tasks.iter().map(|(name, n)| format!("{n} {}", words::task(name))).collect();
    let mark = if marked { " The rings are this run, whose prompts and lengths are its own." } else { "" };
    format!(
        "A recorded sweep, not this run: {} at up to {} tokens, prompts {}; {} windows of text, {} bytes predicted; {} with {} threads, \
         {:.0} s, certkv {}. Recorded by <code>{}</code>.{mark}",
        escape(&sweep.setting.model),
        words::length(w.context),
        escape(&tasks.join(", ")),
        w.windows,
        w.scored,
        escape(&sweep.machine),
        sweep.setting.threads,
        sweep.setting.seconds,
        escape(&sweep.setting.version),
        escape(&sweep.command)
    )
}
