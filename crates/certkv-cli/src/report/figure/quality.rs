//! Modes by tasks: accuracy, the difference to dense, and whether it is more than noise.
use super::words;
use crate::report::{
    data::{ModeRow, ReportData, TaskScore},
    svg::escape,
    table::p_value,
};

fn cell(score: Option<&TaskScore>) -> String {
    let Some(s) = score.filter(|s| s.n > 0) else { return "<td class=\"none\">·</td>".into() };
    let mut tip =
        format!("{} of {} right, 95% {:.0} to {:.0}", s.right, s.n, 100.0 * s.interval[0], 100.0 * s.interval[1]);
    let mut delta = String::new();
    let mut class = "";
    if let Some([mean, low, high]) = s.delta {
        let points = 100.0 * mean;
        tip += &format!(
            "; against dense {points:+.1} points, 95% {:+.1} to {:+.1}; {} only dense, {} only here; McNemar p = {}",
            100.0 * low,
            100.0 * high,
            s.discordant[0],
            s.discordant[1],
            p_value(s.p_value)
        );
        if s.discordant[0] + s.discordant[1] > 0 {
            let sure = s.p_value < 0.05;
            delta = format!("<small>{points:+.0}{}</small>", if sure { "*" } else { "" });
            class = match (sure, points < 0.0) {
                (true, true) => "worse",
                (true, false) => "better",
                _ if points < 0.0 => "slip",
                _ => "",
            };
        }
    }
    format!("<td class=\"{class}\" data-tip=\"{}\">{:.0}{delta}</td>", escape(&tip), 100.0 * s.accuracy())
}

fn text(row: &ModeRow) -> String {
    let Some(all) = row.text.iter().find(|t| t.part == "all") else { return "<td class=\"none\">·</td>".into() };
    let parts: Vec<String> =
        row.text.iter().filter(|t| t.part != "all").map(|t| format!("{} {:.4}", t.part, t.bits)).collect();
    let delta = all.delta.map_or_else(String::new, |d| format!("<small>{:+.2}%</small>", 100.0 * d));
    let class = if all.delta.is_some_and(|d| d > 0.003) { "slip" } else { "" };
    format!("<td class=\"{class}\" data-tip=\"{}\">{:.3}{delta}</td>", escape(&parts.join(", ")), all.bits)
}

/// The table; nothing when there are no modes.
pub fn draw(data: &ReportData) -> String {
    let mut tasks: Vec<&str> = Vec::new();
    for score in data.modes.iter().flat_map(|m| &m.tasks) {
        if !tasks.contains(&score.task.as_str()) {
            tasks.push(&score.task);
        }
    }
    let has_text = data.modes.iter().any(|m| !m.text.is_empty());
    let head: String = tasks.iter().map(|t| format!("<th>{}</th>", escape(&words::task(t)))).collect();
    let bits = if has_text { "<th>bits per byte</th>" } else { "" };
    let mut body = String::new();
    for (twin, title) in [(true, "Outlier twin"), (false, "Model")] {
        let rows: Vec<&ModeRow> = data.modes.iter().filter(|m| m.twin == twin).collect();
        if rows.is_empty() {
            continue;
        }
        body += &format!("<tr class=\"group\"><th colspan=\"{}\">{title}</th></tr>", tasks.len() + 3);
        for row in rows {
            let cells: String = tasks.iter().map(|t| cell(row.tasks.iter().find(|s| s.task == *t))).collect();
            let tolerance = row.tolerance.map_or_else(String::new, |t| format!(" at {}", words::percent(t)));
            let format = if row.kind == crate::report::data::Kind::Dense { "f16" } else { &row.format };
            body += &format!(
                "<tr><th><span class=\"{0}-ink\">{1}</span>{2}<small>{3}</small></th>{4}{cells}{5}</tr>",
                words::class(row.kind),
                escape(&words::short(row)),
                escape(&tolerance),
                escape(format),
                cell(Some(&row.overall)).replace("<td class=\"", "<td class=\"all "),
                if has_text { text(row) } else { String::new() }
            );
        }
    }
    format!(
        "<div class=\"scroll\"><table class=\"quality\"><thead><tr><th></th><th>all</th>{head}{bits}</tr></thead><tbody>{body}</tbody></table></div>"
    )
}
