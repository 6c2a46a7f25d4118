//! Every mode in numbers.
use super::words;
use crate::{
    report::{data::ReportData, svg::escape},
    stats::Quantiles,
};

fn pair(q: &Quantiles, show: impl Fn(f64) -> String) -> String {
    if q.count == 0 { "·".into() } else { format!("{}<small>{}</small>", show(q.median), show(q.p99)) }
}

/// The table.
pub fn draw(data: &ReportData) -> String {
    let mut body = String::new();
    for row in &data.modes {
        let rungs: u64 = row.rungs.iter().sum();
        let share = |n: u64| words::percent(n as f64 / rungs.max(1) as f64);
        body += &format!(
            "<tr><th><span class=\"{}-ink\">{}</span></th><td>{:.0}</td><td>{:.3}</td><td>{:.0}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            words::class(row.kind),
            escape(&row.name),
            row.bytes_per_token,
            row.read_share,
            row.tokens_per_second,
            words::percent(row.certified),
            share(row.rungs[1] + row.rungs[2]),
            share(row.rungs[3] + row.rungs[4]),
            pair(&row.e_key, words::percent),
            pair(&row.e_val, words::percent),
            pair(&row.true_error, words::percent),
            pair(&row.tightness, |x| format!("{x:.0}×")),
            row.violations
        );
    }
    format!(
        "<div class=\"scroll\"><table class=\"numbers\"><thead><tr><th></th><th>bytes a token</th><th>read of dense</th><th>tokens/s</th>\
         <th>certified</th><th>repaired</th><th>dense rungs</th><th>E<sub>key</sub></th><th>E<sub>val</sub></th><th>true error</th>\
         <th>bound ÷ error</th><th>violations</th></tr></thead><tbody>{body}</tbody></table></div>"
    )
}
