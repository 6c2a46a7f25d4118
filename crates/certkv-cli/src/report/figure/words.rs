//! Names and colours that the figures share.
use crate::report::data::{Kind, ModeRow, ReportData};

/// A task's name for people.
pub fn task(name: &str) -> String {
    match name {
        "niah_single" => "needle".into(),
        "niah_multikey" => "needle of 8".into(),
        "niah_grid" => "needle grid".into(),
        "niah_multivalue" => "3 values".into(),
        "niah_multiquery" => "3 needles".into(),
        "passkey" => "pass key".into(),
        "phrase" => "phrase".into(),
        "kv" => "dictionary".into(),
        "kv_near" => "near misses".into(),
        "vt" => "variables".into(),
        "cwe" => "common words".into(),
        "fwe" => "frequent words".into(),
        other => other.replace('_', " "),
    }
}

/// Class that colours what belongs to a mode.
pub const fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Dense => "dense",
        Kind::Naive => "naive",
        Kind::Certified => "cert",
        Kind::Seed000 => "seed",
    }
}

/// A mode in a word or two; its format and model are said elsewhere.
pub fn short(row: &ModeRow) -> String {
    match row.kind {
        Kind::Dense => "dense".into(),
        Kind::Naive => "naive".into(),
        Kind::Certified => "certified".into(),
        Kind::Seed000 => "two-phase".into(),
    }
}

/// `1.8%`, `25%`, `0.04%`.
pub fn percent(x: f64) -> String {
    crate::report::table::percent(x)
}

/// Whole thousands as `4K`, others as they are.
pub fn length(n: usize) -> String {
    if n > 0 && n.is_multiple_of(1024) { format!("{}K", n / 1024) } else { n.to_string() }
}

/// Indices of the dense, naive and certified modes that are told apart first: those of the twin if it ran.
pub fn trio(data: &ReportData) -> Option<[usize; 3]> {
    [true, false].into_iter().find_map(|twin| {
        let find = |kind: Kind| data.modes.iter().position(|m| m.twin == twin && m.kind == kind);
        let naive = find(Kind::Naive)?;
        let same = |m: &ModeRow| m.twin == twin && m.kind == Kind::Certified && m.format == data.modes[naive].format;
        let certified = data.modes.iter().position(same).or_else(|| find(Kind::Certified))?;
        let dense = find(Kind::Dense)?;
        (data.modes[naive].overall.n > 0).then_some([dense, naive, certified])
    })
}

/// Six colours that colour-blind readers tell apart, for series that are no modes.
pub fn series(i: usize) -> &'static str {
    ["var(--s0)", "var(--s1)", "var(--s2)", "var(--s3)", "var(--s4)", "var(--s5)"][i % 6]
}
