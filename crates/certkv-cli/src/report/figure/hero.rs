//! The first thing seen: every answer of three caches as one square, filled if it was right.
use super::words;
use crate::report::{
    data::{ModeRow, ReportData},
    svg::{Anchor, Svg, escape},
    table::p_value,
};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 270.0;
const TOP: f64 = 46.0;
const ROW: f64 = 104.0;

/// The headline and the squares; nothing unless a dense, a naive and a certified mode answered prompts.
pub fn draw(data: &ReportData) -> String {
    let Some(trio) = words::trio(data) else { return String::new() };
    let rows = trio.map(|i| &data.modes[i]);
    let (title, line) = headline(data, rows);
    format!(
        "<header class=\"hero\"><h1>{}</h1><p class=\"lede\">{}</p>{}</header>",
        escape(&title),
        escape(&line),
        squares(rows)
    )
}

fn loss(row: &ModeRow) -> String {
    let points = row.overall.delta.map_or(0.0, |d| 100.0 * d[0]);
    match points {
        p if p <= -0.95 => format!("loses {:.0} points", -p),
        p if p <= -0.05 => format!("loses {:.1} points", -p),
        p if p < 0.05 => "loses nothing".into(),
        p => format!("is {p:.1} points above"),
    }
}

fn p_of(row: &ModeRow) -> String {
    let p = p_value(row.overall.p_value);
    if p.starts_with('<') { p.replace('<', "< ") } else { format!("= {p}") }
}

fn headline(data: &ReportData, [dense, naive, certified]: [&ModeRow; 3]) -> (String, String) {
    let title = format!("Same codes. Naive {}, certified {}.", loss(naive), loss(certified));
    let what = if dense.twin { "a model with strong outlier channels in its keys" } else { "the model" };
    let tolerance =
        certified.tolerance.map_or_else(String::new, |t| format!(" within {} of its norm", words::percent(t)));
    let line = format!(
        "{} prompts to {}, up to {} tokens. Every square is one answer, read from the cache alone: dense half precision; \
         the codes {} as they are; and the same codes when every attention output must carry a bound on its own error{}. \
         Exact McNemar against dense: p {} and p {}.",
        dense.overall.n,
        what,
        words::length(data.setting.longest),
        naive.format,
        tolerance,
        p_of(naive),
        p_of(certified),
    );
    (title, line)
}

/// Largest cell, and cells per line, with which `n` squares fit into `width` by `height`.
fn fit(n: usize, width: f64, height: f64) -> (f64, usize) {
    let mut cell = 26.0;
    while cell > 2.0 {
        let columns = ((width / cell) as usize).max(1);
        if n.div_ceil(columns) as f64 * cell <= height {
            return (cell, columns);
        }
        cell -= 0.5;
    }
    (2.0, ((width / 2.0) as usize).max(1))
}

fn squares(rows: [&ModeRow; 3]) -> String {
    let tasks = &rows[0].tasks;
    let gap = 18.0;
    let width = (WIDTH - LEFT) / tasks.len().max(1) as f64;
    let most = tasks.iter().map(|t| t.each.len()).max().unwrap_or(0);
    let (cell, columns) = fit(most, width - gap, ROW - 38.0);
    let mut svg = Svg::new(WIDTH, TOP + 3.0 * ROW, "Answers of dense, naive and certified caches, one square each");
    for (i, task) in tasks.iter().enumerate() {
        let name = words::task(&task.task);
        // Many tasks leave narrow columns: a name then takes two lines.
        let (first, second) = match name.rsplit_once(' ') {
            Some((a, b)) if width < 120.0 => (a.to_owned(), b.to_owned()),
            _ => (String::new(), name),
        };
        svg.text([LEFT + i as f64 * width, 13.0], &first, "label", Anchor::Start);
        svg.text([LEFT + i as f64 * width, 29.0], &second, "label", Anchor::Start);
    }
    for (r, row) in rows.iter().enumerate() {
        let y = TOP + r as f64 * ROW;
        let class = words::class(row.kind);
        svg.line([0.0, y - 8.0], [WIDTH, y - 8.0], "hair");
        let points = 100.0 * row.overall.accuracy();
        let figure = if points >= 99.95 { "100".into() } else { format!("{points:.1}") };
        svg.text([0.0, y + 50.0], &figure, &format!("huge {class}-ink"), Anchor::Start);
        svg.text([140.0, y + 28.0], &words::short(row), &format!("strong {class}-ink"), Anchor::Start);
        svg.text(
            [140.0, y + 48.0],
            &format!("{} of {} right", row.overall.right, row.overall.n),
            "label",
            Anchor::Start,
        );
        for (i, task) in row.tasks.iter().enumerate() {
            let x = LEFT + i as f64 * width;
            for (j, &right) in task.each.iter().enumerate() {
                let at = [x + (j % columns) as f64 * cell, y + 6.0 + (j / columns) as f64 * cell];
                let side = cell - (cell * 0.14).max(1.0);
                let tip = format!(
                    "{}, {} {}: {}",
                    words::short(row),
                    words::task(&task.task),
                    j + 1,
                    if right { "right" } else { "wrong" }
                );
                let class = if right { class.to_owned() } else { format!("{class}-hole") };
                svg.rect([at[0] + 0.5, at[1] + 0.5, side, side], side * 0.18, &class, "", &tip);
            }
            let lines = task.each.len().div_ceil(columns) as f64;
            let loss = task.right < task.n;
            let style = if loss { "label strong-ink" } else { "label" };
            svg.text([x, y + 22.0 + lines * cell], &format!("{}/{}", task.right, task.n), style, Anchor::Start);
        }
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn squares_fit_their_box() {
        for n in [1, 4, 20, 40, 500] {
            let (cell, columns) = fit(n, 110.0, 66.0);
            assert!(columns as f64 * cell <= 110.0 && n.div_ceil(columns) as f64 * cell <= 66.0, "{n}");
        }
    }
}
