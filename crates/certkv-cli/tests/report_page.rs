//! The page: complete, self-contained and well formed, from made-up data that look like a run.
#![forbid(unsafe_code)]
use certkv_cli::{
    report::{
        ReportData,
        data::{Coverage, Heat, Kind, Memory, ModeRow, Setting, TaskScore, TextScore, Timeline, Transcript},
        page,
        sweep::{Curve, CurvePoint, LayerPoint, ReadShare, file},
    },
    stats::{Quantiles, mcnemar_exact, wilson},
};
use certkv_core::hash::hash64;

/// A number in 0..1 that depends on its indices only.
fn unit(words: &[u64]) -> f64 {
    (hash64(words) >> 11) as f64 / (1u64 << 53) as f64
}

fn score(task: &str, t: u64, n: u64, loss: f64, dense: bool) -> TaskScore {
    let base: Vec<bool> = (0..n).map(|i| unit(&[t, i]) > 0.02).collect();
    let each: Vec<bool> = (0..n).map(|i| base[i as usize] && unit(&[t, i, 7]) >= loss).collect();
    let right = each.iter().filter(|e| **e).count() as u64;
    let only = base.iter().zip(&each).filter(|(a, b)| **a && !**b).count() as u64;
    let (low, high) = wilson(right, n);
    let mean = -(only as f64) / n as f64;
    TaskScore {
        task: task.into(),
        right,
        n,
        each,
        interval: [low, high],
        delta: (!dense).then_some([mean, mean - 0.08, mean * 0.4]),
        discordant: [only, 0],
        p_value: mcnemar_exact(only, 0),
    }
}

fn mode(kind: Kind, format: &str, tolerance: Option<f64>, twin: bool, bytes: f64, tail: f64) -> ModeRow {
    let tasks = [
        "niah_single",
        "niah_multikey",
        "niah_grid",
        "niah_multiquery",
        "niah_multivalue",
        "passkey",
        "phrase",
        "kv",
        "kv_near",
        "vt",
        "cwe",
        "fwe",
    ];
    let loss = if kind == Kind::Naive && twin {
        [0.0, 0.05, 0.3, 0.25, 0.15, 0.0, 0.2, 0.1, 0.75, 0.3, 0.4, 0.3]
    } else {
        [0.0; 12]
    };
    let dense = kind == Kind::Dense;
    let tasks: Vec<TaskScore> =
        tasks.iter().enumerate().map(|(t, name)| score(name, t as u64, 20, loss[t], dense)).collect();
    let each: Vec<bool> = tasks.iter().flat_map(|t| t.each.iter().copied()).collect();
    let (right, only) = (tasks.iter().map(|t| t.right).sum(), tasks.iter().map(|t| t.discordant[0]).sum());
    let mean = -(only as f64) / each.len() as f64;
    let overall = TaskScore {
        task: String::new(),
        right,
        n: each.len() as u64,
        each,
        interval: [0.9, 1.0],
        delta: (!dense).then_some([mean, mean - 0.05, mean + 0.02]),
        discordant: [only, 0],
        p_value: mcnemar_exact(only, 0),
    };
    let curve = |f: &dyn Fn(f64) -> f64| (0..=100).map(|p| f(f64::from(p) / 100.0)).collect::<Vec<f64>>();
    let error = curve(&|p| 1.5e-3 * (p * (3.0 + tail.clamp(-0.5, 4.0))).exp());
    let bound = tolerance.map_or(Vec::new(), |t| curve(&|p| (t * (0.18 + 0.82 * p.powf(0.7))).min(t)));
    let q = |m: f64| Quantiles { median: m, p90: m * 1.8, p99: m * 2.6, max: m * 3.0, count: 900 };
    ModeRow {
        heads: None,
        name: format!("{}{:?} {format}", if twin { "twin " } else { "" }, kind).to_lowercase(),
        kind,
        format: format.into(),
        tolerance,
        twin,
        overall,
        tasks,
        text: if twin {
            Vec::new()
        } else {
            vec![
                TextScore { part: "prose".into(), bits: 1.053, delta: (!dense).then_some(0.0004) },
                TextScore { part: "all".into(), bits: 0.824, delta: (!dense).then_some(0.0006) },
            ]
        },
        bytes_per_token: bytes,
        memory: Memory {
            packed: if dense { 0.0 } else { bytes * 0.93 },
            scratch: if dense { bytes } else { bytes * 0.06 },
            tables: bytes * 0.01,
            host: if dense { 0.0 } else { 6144.0 },
        },
        tokens_per_second: 180.0,
        attention_share: 0.6,
        steps: 900,
        rungs: if dense { [0, 0, 0, 9000, 0] } else { [8700, 180, 90, 30, 0] },
        certified: if kind == Kind::Naive { 0.0 } else { 1.0 },
        e_key: if kind == Kind::Certified { q(0.008) } else { Quantiles::default() },
        e_val: if kind == Kind::Certified { q(0.013) } else { Quantiles::default() },
        tightness: if kind == Kind::Certified { q(6.0) } else { Quantiles::default() },
        true_error: q(0.004),
        error_curve: if kind == Kind::Dense { Vec::new() } else { error },
        bound_curve: bound,
        violations: 0,
        read_share: bytes / 6144.0,
    }
}

fn synthetic() -> ReportData {
    let modes = vec![
        mode(Kind::Dense, "f16-f16-b32", None, true, 6170.0, 0.0),
        mode(Kind::Naive, "t4-v4g16-b16", None, true, 2240.0, 12.0),
        mode(Kind::Certified, "t4-v4g16-b16", Some(0.05), true, 2600.0, -0.9),
        mode(Kind::Dense, "f16-f16-b32", None, false, 6170.0, 0.0),
        mode(Kind::Naive, "k8-v4g32-b32", None, false, 2700.0, 0.0),
        mode(Kind::Certified, "k8-v4g32-b32", Some(0.05), false, 2990.0, -0.9),
        mode(Kind::Seed000, "k8-v4g32-b32", None, false, 3100.0, -0.9),
    ];
    let heat = |mode: usize| Heat {
        mode,
        median: (0..6)
            .map(|l| (0..4).map(|h| Some(0.006 + 0.044 * unit(&[l, h, mode as u64]).powi(2))).collect())
            .collect(),
    };
    let timeline = |mode: usize| Timeline {
        mode,
        steps_per_bin: 7.5,
        bins: (0..120)
            .map(|i| {
                let u = |k: u64| unit(&[i, k, mode as u64]);
                let (a, b, c) = (0.03 * u(1), 0.02 * u(2) * u(2), if u(3) > 0.9 { 0.01 } else { 0.0 });
                [1.0 - a - b - c, a, b, c, 0.0]
            })
            .collect(),
    };
    let shares = vec![0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0];
    let mass = |p: f64| shares.iter().map(|s: &f64| 1.0 - (1.0 - s.powf(0.35)).powf(p)).collect::<Vec<f64>>();
    let coverage =
        Coverage { name: "model".into(), median: mass(3.0), low: mass(1.1), high: mass(9.0), shares: shares.clone() };
    let read = |packed: f64, host: f64| ReadShare { packed, scratch: 0.0, host };
    let curve = |format: &str, floor: f64, steep: f64| Curve {
        format: format.into(),
        bytes_per_token: 6144.0 * floor,
        points: [0.01, 0.02, 0.05, 0.1, 0.2]
            .into_iter()
            .map(|t| CurvePoint {
                tolerance: t,
                read: read(floor, steep * (0.004f64 / t).powf(1.2)),
                rungs: [9000, (4.0 / t) as u64, (2.0 / t) as u64, 0, 0],
                right: 40,
                prompts: 41,
                bits: Some(0.8),
                delta: Some(0.001 * (unit(&[(t * 1e3) as u64, format.len() as u64]) - 0.5)),
                layers: (0..6)
                    .map(|l| LayerPoint {
                        read: read(floor, steep * 0.02 / t * unit(&[l, 1])),
                        rungs: [1500, l, (l as f64 / t) as u64, 0, 0],
                        promoted_keys: steep * 0.02 / t * unit(&[l, 2]),
                        promoted_values: steep * 0.02 / t * unit(&[l, 3]),
                        skipped_values: 0.1 * t,
                    })
                    .collect(),
            })
            .collect(),
    };
    ReportData {
        schema: 2,
        setting: Setting {
            model: "ref-d128".into(),
            layers: 6,
            heads: 4,
            kv_heads: 2,
            head_dim: 128,
            dense_bytes_per_token: 6144,
            prompts: [120, 120],
            longest: 8192,
            seed: 1,
            threads: 2,
            seconds: 171.0,
            version: "0.1.0".into(),
        },
        modes,
        transcripts: vec![
            Transcript {
                task: "kv_near".into(),
                length: 4096,
                question: "What is the value of <nbx4kq>? Answer: The value of nbx4kq is ".into(),
                truth: "58213.".into(),
                answers: vec![(0, "58213.".into()), (1, "50713.".into()), (2, "58213.".into())],
            },
            Transcript {
                task: "niah_multiquery".into(),
                length: 4096,
                question: "What are the magic numbers for river, candle and orbit? Answer: ".into(),
                truth: "48213, 90417, 11870.".into(),
                answers: vec![
                    (0, "48213, 90417, 11870.".into()),
                    (1, "48213, 90447, 80470.".into()),
                    (2, "48213, 90417, 11870.".into()),
                ],
            },
        ],
        heat: vec![heat(2), heat(5)],
        timelines: vec![timeline(2), timeline(5)],
        coverage: vec![coverage],
        curves: vec![
            curve("k8-v4g32-b32", 0.43, 0.3),
            curve("k8-v6g32-b32", 0.49, 0.12),
            curve("k8-v8g64-b32", 0.55, 0.03),
        ],
    }
}

/// Every tag is closed in order; void elements and self-closed shapes aside.
fn check_nesting(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = html.split_once("</style>").unwrap().1.split_once("<script>").unwrap();
    let text = format!("{}{}", body.0, body.1.split_once("</script>").unwrap().1);
    for piece in text.split('<').skip(1) {
        let tag = piece.split_once('>').unwrap_or_else(|| panic!("unclosed `<{piece}`")).0;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            let last = if ["head", "html"].contains(&name) { continue } else { open.pop() };
            assert_eq!(last, Some(name));
        } else if !tag.ends_with('/') {
            open.push(text[text.find(name).unwrap()..].split_at(name.len()).0);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let html = page(&synthetic());
    std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html"), &html).unwrap();
    for outside in ["http", "url(", "@import", "<link", "<img", " src=", "NaN", "inf"] {
        let found = html.match_indices(outside).find(|(i, _)| !html[*i..].starts_with("info"));
        assert!(found.is_none(), "`{outside}` at {found:?}: {}", &html[found.unwrap().0.saturating_sub(60)..][..120]);
    }
    for part in [
        "What the model said",
        "certificate",
        "Rungs",
        "mass",
        "Bytes of a token",
        "Quality",
        "Why this format",
        "In numbers",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(html.contains("&lt;nbx4kq&gt;") && !html.contains("<nbx4kq>"));
    assert!(html.contains("50<mark>7</mark>13") || html.contains("5<mark>07</mark>13"));
    check_nesting(&html);
}

#[test]
fn an_empty_run_still_gives_a_page() {
    let html = page(&ReportData::default());
    check_nesting(&html);
    assert!(!html.contains("NaN"));
}

/// The section on format and tolerance.
fn why(html: &str) -> &str {
    let from = html.split_once("<section id=\"why\">").expect("the section is there").1;
    from.split_once("</section>").unwrap().0
}

#[test]
fn a_sweep_draws_its_own_curves() {
    let data = synthetic();
    let html = page(&data);
    let why = why(&html);
    assert!(why.contains("Curves of this run") && !why.contains("recorded sweep"));
    // Two charts whole, one of quality, one of rungs, and the matrix by layer.
    assert_eq!(why.matches("<svg").count(), 5);
    for layer in 0..6 {
        assert!(why.contains(&format!(">layer {layer}<")), "{layer}");
    }
    for part in ["k8-v8g64-b32 at 20%", "Bytes read", "originals", "values were not read", "default"] {
        assert!(why.contains(part), "{part}");
    }
    // The same run without skipped values has no row for them.
    let mut fewer = data;
    let layers = fewer.curves.iter_mut().flat_map(|c| &mut c.points).flat_map(|p| &mut p.layers);
    layers.for_each(|l| l.skipped_values = 0.0);
    assert!(!self::why(&page(&fewer)).contains("values were not read"));
}

#[test]
fn a_single_point_is_marked_on_the_recorded_curves() {
    let recorded = file::recorded().unwrap();
    let mut data = synthetic();
    data.curves.truncate(1);
    data.curves[0].points.truncate(1);
    let html = page(&data);
    check_nesting(&html);
    let shown = why(&html);
    assert!(shown.contains("A recorded sweep, not this run") && shown.contains("certkv eval --curves"));
    assert!(recorded.curves.iter().all(|c| shown.contains(&c.format)));
    // One ring in each of three charts, and one in each cell of the four rows of curves by layer.
    assert_eq!(shown.matches("data-tip=\"this run: ").count(), 3 + 6 * 4);
    // Another model has other curves: none are shown for it.
    data.setting.model = "another".into();
    assert!(!page(&data).contains("id=\"why\""));
}

#[test]
fn odd_curves_are_still_drawn() {
    let mut data = synthetic();
    // Many layers go into even bands; a lone format, equal numbers and no text are no trouble.
    data.curves.truncate(1);
    for p in &mut data.curves[0].points {
        p.layers = vec![p.layers[0].clone(); 33];
        (p.delta, p.bits, p.rungs) = (None, None, [0; 5]);
        p.read = ReadShare::default();
    }
    let html = page(&data);
    check_nesting(&html);
    assert!(why(&html).contains(">layer 32<") && why(&html).contains("Right answers"));
    data.curves[0].points.iter_mut().for_each(|p| p.layers.clear());
    check_nesting(&page(&data));
}

#[test]
fn data_survive_json() {
    let data = synthetic();
    let text = serde_json::to_string(&data).unwrap();
    assert_eq!(serde_json::from_str::<ReportData>(&text).unwrap(), data);
}
