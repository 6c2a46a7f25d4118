//! The page: drawn from the figures alone, one file, no network, readable in light and dark.
use super::data::{Axis, Cell, Chart, Evidence, Figure, Line, Section, Series, Table};
use crate::report::{
    figure::words,
    page::shell,
    svg::{Anchor, Scale, Svg, axis, escape},
};

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 400.0;
const EDGES: [f64; 4] = [64.0, 34.0, WIDTH - 16.0, HEIGHT - 50.0];
/// Lines of the legend are so far apart.
const STEP: f64 = 18.0;

/// The whole page.
pub fn page(e: &Evidence) -> String {
    let quick = if e.quick {
        "<p><strong>A quick run: it shows that everything is measured, and is too short for conclusions.</strong></p>"
    } else {
        ""
    };
    let seeds = list(&e.seeds);
    let windows = list(&e.windows);
    let body = format!(
        "<header class=\"hero\"><h1>Every method under one certificate</h1><p class=\"lede\">{} measured side by side. What a certificate bounds is the distance of each \
         attention output from exact attention over the 16-bit originals; quality of text is measured, not certified.</p>{quick}</header>\n{}\
         <section id=\"origin\"><h2>To repeat it</h2><p><code>{}</code></p><p>Seeds: {seeds}. Windows begin at bytes of the bundled text: {windows}. {}, {:.0} s, certkv {}. \
         The file of figures beside this page holds every number that is shown here.</p></section>",
        escape(&e.model),
        e.sections.iter().map(section).collect::<String>(),
        escape(&e.command),
        escape(&e.machine),
        e.seconds,
        escape(&e.version),
    );
    shell("certkv: every method under one certificate", &body, "")
}

fn list(named: &[(String, Vec<u64>)]) -> String {
    let one = |(name, numbers): &(String, Vec<u64>)| {
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        format!("{} {}", escape(name), numbers.join(", "))
    };
    named.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn section(s: &Section) -> String {
    let charts: String = s.charts.iter().map(|c| format!("<div>{}</div>", chart(c))).collect();
    let notes: String = s.notes.iter().map(|note| format!("<p class=\"origin\">{}</p>", escape(note))).collect();
    format!(
        "<section id=\"{}\"><h2>{}</h2><p>{}</p><div class=\"pair\">{charts}</div>{}{notes}</section>\n",
        escape(&s.id),
        escape(&s.title),
        escape(&s.text),
        s.tables.iter().map(table).collect::<String>(),
    )
}

fn table(t: &Table) -> String {
    let heads: String = t.columns.iter().map(|c| format!("<th>{}</th>", escape(&c.name))).collect();
    let cell = |(at, cell): (usize, &Cell)| match cell {
        Cell::Words(text) => format!("<td>{}</td>", escape(text)),
        Cell::Figure(Figure { value, interval }) => {
            let show = t.columns.get(at).map(|c| c.show).unwrap_or_default();
            let ends = interval.map(|ends| {
                let [low, high] = ends.map(|end| show.write(end));
                format!("<small>{low} to {high}</small>")
            });
            format!("<td>{}{}</td>", show.write(*value), ends.unwrap_or_default())
        }
    };
    let row = |r: &super::data::Row| {
        let cells: String = r.cells.iter().enumerate().map(cell).collect();
        format!("<tr><th>{}</th>{cells}</tr>", escape(&r.name))
    };
    format!(
        "<h3>{}</h3><div class=\"scroll\"><table class=\"wide\"><thead><tr><th></th>{heads}</tr></thead><tbody>{}</tbody></table></div>\n",
        escape(&t.title),
        t.rows.iter().map(row).collect::<String>()
    )
}

/// Ticks of an axis, and the scale between its ends: where points and intervals have room.
fn scale(of: &Axis, values: &[f64], to: [f64; 2]) -> (Vec<f64>, Scale) {
    if !of.log {
        let ticks = axis(values.iter().copied(), 5.0);
        let range = [ticks.first().copied().unwrap_or(0.0), ticks.last().copied().unwrap_or(1.0)];
        return (ticks, Scale::linear(range, to));
    }
    let positive = || values.iter().copied().filter(|v| *v > 0.0);
    let (low, high) = (positive().fold(f64::INFINITY, f64::min) / 1.15, positive().fold(0.0, f64::max) * 1.15);
    if !(low > 0.0 && high > low && high.is_finite()) {
        return (Vec::new(), Scale::log([0.1, 1.0], to));
    }
    // Ones, twos and fives; only ones where those are many, and more where they are few.
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let within = |t: &f64| *t >= low && *t <= high;
    let marks = |of: &[f64]| -> Vec<f64> {
        decades.clone().flat_map(|d| of.iter().map(move |m| m * 10f64.powi(d))).filter(within).collect()
    };
    let (many, few) = (marks(&[1.0, 2.0, 5.0]), marks(&[1.0]));
    let ticks = match (many.len(), few.len()) {
        (10.., 3..) => few,
        (0..=3, _) => marks(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]),
        _ => many,
    };
    (ticks, Scale::log([low, high], to))
}

/// Points that no other beats on both axes, by rising x.
fn frontier(series: &Series) -> Vec<usize> {
    let p = &series.points;
    let beaten = |i: usize| {
        (0..p.len()).any(|j| {
            p[j].x <= p[i].x && p[j].y.value <= p[i].y.value && (p[j].x < p[i].x || p[j].y.value < p[i].y.value)
        })
    };
    let mut left: Vec<usize> = (0..p.len()).filter(|i| !beaten(*i)).collect();
    left.sort_by(|a, b| p[*a].x.total_cmp(&p[*b].x));
    left
}

fn chart(c: &Chart) -> String {
    let [left, top, right, edge] = EDGES;
    // The legend stands under the plot.
    let rows = c.series.len().div_ceil(2) as f64;
    let points = || c.series.iter().flat_map(|s| &s.points);
    let xs: Vec<f64> = points().map(|p| p.x).collect();
    let ys: Vec<f64> = points()
        .flat_map(|p| [Some(p.y.value), p.y.interval.map(|i| i[0]), p.y.interval.map(|i| i[1])])
        .flatten()
        .collect();
    let (x_ticks, x) = scale(&c.x, &xs, [left + 10.0, right - 10.0]);
    let (y_ticks, y) = scale(&c.y, &ys, [edge, top]);
    let mut svg = Svg::new(WIDTH, HEIGHT + rows * STEP, &c.title);
    svg.text([0.0, 14.0], &c.title, "strong", Anchor::Start);
    for t in &y_ticks {
        svg.line([left, y.at(*t)], [right, y.at(*t)], "grid");
        svg.text([left - 8.0, y.at(*t) + 4.0], &c.y.show.write(*t), "tick", Anchor::End);
    }
    for t in &x_ticks {
        svg.text([x.at(*t), edge + 18.0], &c.x.show.write(*t), "tick", Anchor::Middle);
    }
    svg.text([right, edge + 36.0], &c.x.name, "tick", Anchor::End);
    svg.text([right, 14.0], &c.y.name, "tick", Anchor::End);
    let mut named: Vec<([f64; 2], &str)> = Vec::new();
    for (i, series) in c.series.iter().enumerate() {
        let at = |p: &super::data::Point| [x.at(p.x), y.at(p.y.value)];
        let joined: Vec<usize> = match series.line {
            Line::All => (0..series.points.len()).collect(),
            Line::Frontier => frontier(series),
        };
        let stroke = format!("stroke:{}", words::series(i));
        // Colours come round again after six; dashes tell the second round apart.
        let stroke = if i < 6 { stroke } else { format!("{stroke};stroke-dasharray:4 4") };
        svg.path(&joined.iter().map(|p| at(&series.points[*p])).collect::<Vec<_>>(), "series", &stroke);
        for p in &series.points {
            let [px, py] = at(p);
            if let Some([low, high]) = p.y.interval {
                svg.path(&[[px, y.at(low)], [px, y.at(high)]], "series thin", &stroke);
            }
            let ends = p.y.interval.map_or_else(String::new, |[low, high]| {
                format!(" ({} to {})", c.y.show.write(low), c.y.show.write(high))
            });
            let tip = format!("{}: {} at {}{ends}", p.name, c.y.show.write(p.y.value), c.x.show.write(p.x));
            svg.dot([px, py], 4.0, "", &format!("fill:{}", words::series(i)), &tip);
        }
        if series.line == Line::Frontier {
            for p in joined {
                let [px, py] = at(&series.points[p]);
                // A name that would cover another is left to the tooltip.
                let free = |([x, y], _): &([f64; 2], &str)| (x - px).abs() > 96.0 || (y - py).abs() > 14.0;
                if named.iter().all(free) {
                    named.push(([px, py], &series.points[p].name));
                }
            }
        }
        let key = [left + (i % 2) as f64 * (right - left) / 2.0, HEIGHT + (i / 2) as f64 * STEP];
        svg.path(&[[key[0], key[1] - 4.0], [key[0] + 18.0, key[1] - 4.0]], "series", &stroke);
        svg.text([key[0] + 25.0, key[1]], &series.name, "label", Anchor::Start);
    }
    // Above all dots.
    for ([px, py], name) in named {
        let fits = px + 8.0 * name.chars().count() as f64 <= right;
        let (dx, anchor) = if fits { (7.0, Anchor::Start) } else { (-7.0, Anchor::End) };
        svg.text([px + dx, py - 7.0], name, "label", anchor);
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::data::Point;

    #[test]
    fn frontiers_have_what_nothing_beats() {
        let point = |x, y| Point { name: String::new(), x, y: Figure::plain(y) };
        let points = vec![point(2.0, 2.0), point(1.0, 3.0), point(2.0, 1.0), point(3.0, 1.0), point(4.0, 0.5)];
        let series = Series { points, ..Series::default() };
        assert_eq!(frontier(&series), [1, 2, 4]);
        let (ticks, scale) = scale(&Axis::log("", Default::default()), &[0.02, 3.0], [0.0, 1.0]);
        assert!(ticks.contains(&0.05) && ticks.contains(&1.0), "{ticks:?}");
        assert!(scale.at(0.02) > 0.0 && scale.at(3.0) < 1.0);
    }
}
