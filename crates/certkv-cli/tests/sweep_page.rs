//! `certkv eval --sweep --quick`, run once: the page has every section with its tables and drawings, and shows the figures of the file beside
//! it and no others. One sound run is what all checks look at; each of them is shown to see a planted fault.
#![forbid(unsafe_code)]
use certkv_cli::{
    evidence::{
        Evidence,
        data::{Cell, Figure, Section, Show, Table},
        page,
    },
    run,
};
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

const SECTIONS: [&str; 4] = ["codecs", "widths", "smartkv", "spherical"];

fn code(args: &[&str]) -> (u8, String) {
    let mut out = Vec::new();
    match run(std::iter::once("certkv").chain(args.iter().copied()).map(Into::into), &mut out) {
        Ok(()) => (0, String::from_utf8(out).unwrap()),
        Err(e) => (e.code(), e.to_string()),
    }
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sweep-page");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The page and the figures of one quick run.
fn swept() -> &'static (String, Evidence) {
    static SWEPT: OnceLock<(String, Evidence)> = OnceLock::new();
    SWEPT.get_or_init(|| {
        let path = folder().join("page.html");
        for old in [path.clone(), path.with_extension("json")] {
            let _ = std::fs::remove_file(old);
        }
        let (ok, said) = code(&["eval", "--sweep", path.to_str().unwrap(), "--quick", "--quiet"]);
        assert!(ok == 0 && said.contains("page.json"), "{said}");
        let html = std::fs::read_to_string(&path).unwrap();
        (html, serde_json::from_str(&std::fs::read_to_string(path.with_extension("json")).unwrap()).unwrap())
    })
}

/// What stands between tags, in order: `<td>` contents without their intervals, and the intervals.
fn cells(html: &str) -> Vec<(String, Option<String>)> {
    let body = |cell: &str| {
        let cell = cell.split("</td>").next().unwrap();
        match cell.split_once("<small>") {
            Some((value, ends)) => (value.to_owned(), Some(ends.trim_end_matches("</small>").to_owned())),
            None => (cell.to_owned(), None),
        }
    };
    html.split("<td>").skip(1).map(body).collect()
}

/// Whether a written number is `x` to the digits that it has.
fn is(written: &str, x: f64) -> bool {
    let (number, unit) = match written.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (written, 1.0),
    };
    let Ok(value) = number.parse::<f64>() else { return false };
    let (mantissa, power) = number.split_once('e').map_or((number, 0), |(m, p)| (m, p.parse().unwrap()));
    let digits = mantissa.split_once('.').map_or(0, |(_, after)| after.len() as i32);
    let half = 0.5000001 * 10f64.powi(power - digits) * unit;
    (value * unit - x).abs() <= half
}

/// Cells of the page that are not those of the figures, and how many were looked at.
fn differing(html: &str, e: &Evidence) -> (usize, usize) {
    let shown = cells(html);
    let figures: Vec<&Cell> =
        e.sections.iter().flat_map(|s| &s.tables).flat_map(|t| &t.rows).flat_map(|r| &r.cells).collect();
    let same = |(written, ends): &(String, Option<String>), cell: &Cell| match cell {
        Cell::Words(text) => ends.is_none() && *written == text.replace('&', "&amp;"),
        Cell::Figure(Figure { value, interval }) => {
            let both = match (ends, interval) {
                (None, None) => true,
                (Some(ends), Some([low, high])) => {
                    let (a, b) = ends.split_once(" to ").unwrap();
                    is(a, *low) && is(b, *high)
                }
                _ => false,
            };
            both && is(written, *value)
        }
    };
    let wrong = shown.iter().zip(&figures).filter(|(shown, figure)| !same(shown, figure)).count();
    (wrong + shown.len().abs_diff(figures.len()), figures.len())
}

fn part<'a>(html: &'a str, id: &str) -> &'a str {
    let from = html.split(&format!("<section id=\"{id}\">")).nth(1).unwrap_or_default();
    from.split("</section>").next().unwrap_or_default()
}

/// Sections that lack a table, a drawing or a name of a series on the page.
fn bare(html: &str, e: &Evidence) -> usize {
    let lacks = |s: &&Section| {
        let part = part(html, &s.id);
        let drawn = part.matches("<svg ").count() == s.charts.len() && !s.charts.is_empty();
        let told = part.matches("<table").count() == s.tables.len() && !s.tables.is_empty();
        // A dot for each point of each drawing.
        let points: usize = s.charts.iter().flat_map(|c| &c.series).map(|s| s.points.len()).sum();
        !(drawn && told && part.matches("<circle").count() == points && points > 0)
    };
    e.sections.iter().filter(lacks).count() + SECTIONS.len().abs_diff(e.sections.len())
}

fn table<'a>(e: &'a Evidence, section: &str, title: &str) -> &'a Table {
    let found = e.sections.iter().find(|s| s.id == section).unwrap();
    found.tables.iter().find(|t| t.title.starts_with(title)).unwrap()
}

fn value(t: &Table, row: &str, column: &str) -> f64 {
    let at = t.columns.iter().position(|c| c.name == column).unwrap();
    t.rows.iter().find(|r| r.name == row).unwrap().cells[at].value().unwrap()
}

#[test]
fn the_page_shows_the_figures_and_each_check_sees_a_planted_fault() {
    let (html, e) = swept();
    assert_eq!(e.sections.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), SECTIONS);
    assert_eq!(&page(e), html, "the page is a function of its figures");
    let (wrong, looked) = differing(html, e);
    assert!(wrong == 0 && looked > 500, "{wrong} of {looked} cells differ");
    assert_eq!(bare(html, e), 0);
    for outside in ["http", "url(", "@import", "<link", "<img", " src=", "NaN", ">inf"] {
        assert!(!html.contains(outside), "{outside}");
    }
    for (_, seeds) in &e.seeds {
        assert!(seeds.iter().all(|seed| html.contains(&seed.to_string())));
    }
    for start in e.windows.iter().flat_map(|(_, starts)| starts) {
        assert!(html.contains(&start.to_string()));
    }

    // Faults: a figure that moved, an interval that moved, a row that is missing, a drawing that is missing, a point that is missing.
    let mut caught = 0;
    let planted: [fn(&mut Evidence); 5] = [
        |e| {
            let cell = &mut e.sections[1].tables[0].rows[2].cells[3];
            *cell = Cell::plain(1.1 * cell.value().unwrap());
        },
        |e| {
            if let Cell::Figure(Figure { interval: Some([low, _]), .. }) = &mut e.sections[0].tables[0].rows[5].cells[3]
            {
                *low += 0.01;
            }
        },
        |e| drop(e.sections[2].tables[0].rows.pop()),
        |e| drop(e.sections[3].charts.pop()),
        |e| drop(e.sections[0].charts[0].series[0].points.pop()),
    ];
    for plant in planted {
        let mut other = e.clone();
        plant(&mut other);
        caught += usize::from(differing(html, &other).0 + bare(html, &other) > 0);
    }
    println!("GATE sweep-page executed={looked} failed={wrong} controls={caught}/5 seed=0x1");
    assert_eq!(caught, 5);
}

#[test]
fn what_is_shown_is_what_was_promised() {
    let (html, e) = swept();
    // Soundness of all outputs that were recomputed, in both ways of every format.
    let sections = &e.sections;
    for t in &sections[0].tables {
        assert_eq!(t.rows.len(), 34);
        for row in &t.rows {
            assert!(value(t, &row.name, "checked") > 0.0 && value(t, &row.name, "beyond the bound") == 0.0, "{row:?}");
            assert!(value(t, &row.name, "bound / error, median") >= 1.0, "{row:?}");
        }
    }
    // What the ladder moves is counted: certified reads more than its codes, and the originals are among what is read.
    let certified = table(e, "codecs", "Certified");
    let packed = table(e, "codecs", "From codes");
    for row in &certified.rows {
        assert!(value(certified, &row.name, "of it originals") < value(certified, &row.name, "read a step"));
    }
    let (a, b) = (value(certified, "tq2-tq2-b64", "read a step"), value(packed, "tq2-tq2-b64", "read a step"));
    assert!(a > b, "{a} {b}");
    // Block-GTQ has the smaller error of logits in every layer, at both widths.
    let ratios = table(e, "widths", "Block-GTQ over");
    for name in ["gtq2 over tq2", "gtq3 over tq3"] {
        assert_eq!(value(ratios, name, "layers that are smaller"), 6.0, "{name}");
    }
    // SmartKV is at equal bytes, and hysteresis takes flips away.
    let equal = table(e, "smartkv", "At equal bytes");
    let (one, many) =
        (value(equal, "4 bits everywhere", "bytes stored"), value(equal, "SmartKV 8, 4, 3", "bytes stored"));
    assert!(many <= 1.01 * one, "{many} {one}");
    let flips = table(e, "smartkv", "Changes of level");
    let rate = |name| value(flips, name, "a block and 100 steps");
    assert!(rate("SmartKV 8, 4, 3") < rate("SmartKV 8, 4, 3, no hysteresis"));
    let heap = table(e, "smartkv", "Utility of the heap");
    assert!(heap.rows.iter().all(|r| value(heap, &r.name, "95%") < 0.01), "{heap:?}");
    // What this model cannot show is said, and a policy below its floor has no figures.
    let witnesses = table(e, "spherical", "Witnesses");
    let refusals = witnesses.rows.iter().find(|r| r.name.starts_with("W4")).unwrap();
    assert!(matches!(&refusals.cells[0], Cell::Words(text) if text.starts_with("not measured")), "{refusals:?}");
    let lengths = |policy| {
        ["tokens until a sentence ends", "difference from dense, 95%"]
            .map(|row| {
                witnesses.rows.iter().find(|r| r.name == format!("W1 length: {row}") || r.name == format!("W1 {row}"))
            })
            .map(|row| value(witnesses, &row.unwrap().name, policy))
    };
    assert!(lengths("dense")[0] >= 1.0 && lengths("dense")[1] == 0.0);
    assert_eq!(lengths("TurboQuant 4 bits"), lengths("dense"));
    // By need heads are unlike; even, none has more than its share.
    let heads = table(e, "spherical", "A3: heads");
    for keys in ["TurboQuant 4, 2, drop", "spherical b1, b2, b3, drop"] {
        let [need, even] = ["by need", "even"].map(|who| {
            ["bytes", "most", "Gini", "correlation with far attention"]
                .map(|column| value(heads, &format!("{keys}, {who}"), column))
        });
        assert!(need[0] <= 50.0 && need[1] > 50.0 && even[1] <= 50.0, "{keys}: {need:?} {even:?}");
        assert!(
            need[2] > even[2] && (0.0..1.0).contains(&even[2]) && need[3].abs() <= 1.0,
            "{keys}: {need:?} {even:?}"
        );
    }
    // Told what the passage is, retention keeps it, within the same bytes.
    let segments = table(e, "spherical", "A4: segments");
    let [blind, told] = ["no segment known", "the retrieved passage protected"]
        .map(|name| ["passage kept", "drift of the answer, nats", "bytes"].map(|column| value(segments, name, column)));
    assert!(
        told[0] == 1.0 && blind[0] < 1.0 && told[1] < blind[1] && told[2].max(blind[2]) <= 50.0,
        "{blind:?} {told:?}"
    );
    for w in 1..=6 {
        assert!(witnesses.rows.iter().any(|r| r.name.starts_with(&format!("W{w} "))), "W{w}");
    }
    assert_eq!(value(witnesses, "W2 logits: drift, nats", "dense"), 0.0);
    let four = value(witnesses, "W2 logits: drift, nats", "TurboQuant 4 bits");
    assert!(four > 0.0 && four < 0.02, "codes of 4 bits move the model little: {four}");
    let ablation = table(e, "spherical", "Ablation");
    let below = ablation.rows.iter().find(|r| r.name == "tier only, 25").unwrap();
    assert!(matches!(&below.cells[0], Cell::Words(text) if text.starts_with("below its floor")));
    for row in ablation.rows.iter().filter(|r| r.name.ends_with(", 50") && r.cells[0].value().is_some()) {
        assert!(value(ablation, &row.name, "bytes") <= 50.0, "{row:?}");
    }
    assert!(html.contains("A quick run"));
}

#[test]
fn written_numbers_are_compared_to_their_digits() {
    assert!(is("0.46", 0.456) && is("45.6%", 0.456) && is("5e-1", 0.456) && is("-3", -3.4));
    assert!(!is("0.46", 0.466) && !is("45.6%", 0.4567) && !is("4e-1", 0.456) && !is("–", 0.0));
    assert_eq!(Show::Percent(1).write(0.456), "45.6%");
}

#[test]
fn sweeps_that_cannot_be_are_refused_before_anything_is_measured() {
    let page = folder().join("refused.html");
    let name = page.to_str().unwrap();
    for (line, part) in [
        (&["eval", "--sweep", "figures.json"][..], "beside the page"),
        (&["eval", "--sweep", name, "--format", "k8-v4g64-b64"], "--format is not for --sweep"),
        (&["eval", "--curves", "c.json", "--sweep", name], "--curves is not for --sweep"),
        (&["eval", "--quick"], "--quick needs --sweep"),
    ] {
        let (found, said) = code(line);
        assert!(found == 2 && said.contains(part), "{found}: {said}");
    }
    let (found, said) = code(&["eval", "--sweep", name, "--quick", "--model", "no/such/model", "--quiet"]);
    assert!(found == 3 && !page.exists(), "{found}: {said}");
}
