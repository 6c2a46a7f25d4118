//! Fixed scales in a cache: outputs within their bounds however much saturates, which is counted; scales of another geometry, or
//! without a format that takes them, are refused.
mod common;

use certkv::calibration::{CalibrationError, Source};
use certkv::scales::{ScaleHeads, ScaleMeter, Scales};
use certkv::{Cache, Config, Dtype, Error, Geometry, Mode, Policy, SimOptions, Status};
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::distance;
use common::{Model, decode_faults, fill, original_faults, random_queries, random_rows, step};
use std::sync::Arc;

const HEADS: ScaleHeads = ScaleHeads { layers: 2, kv_heads: 2, head_dim: 64 };
const SOURCE: Source = Source { model: [7; 32], text: [8; 32], tokens: 0 };

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

/// What a meter says of these rows.
fn scales(rows: &Model, percentile: f64) -> Scales {
    let mut meter = ScaleMeter::new(HEADS, SOURCE).unwrap();
    let width = geometry().kv_width();
    let wide = |row: &[u16]| row.iter().map(|bits| Dtype::F16.decode16(*bits)).collect::<Vec<f32>>();
    for (layer, (keys, values)) in rows.keys.iter().zip(&rows.values).enumerate() {
        for (k, v) in keys.chunks_exact(width).zip(values.chunks_exact(width)) {
            meter.row(layer, &wide(k), &wide(v)).unwrap();
        }
    }
    Scales::choose(&meter, percentile).unwrap()
}

fn config(format: &str) -> Config {
    let device = SimOptions { mode: Mode::Eager, check: true };
    Config { device, ..Config::new(geometry(), 600).with_format(format.parse().unwrap()) }
}

/// Outputs against attention in f64 under both policies; what saturated of a sequence of 180 tokens.
fn lived(config: Config, seed: u64) -> u64 {
    let mut r = Rng::new(seed);
    let cache = Cache::new(config).unwrap();
    let (id, mut model) = (cache.create().unwrap(), random_rows(&geometry(), 150, &mut r));
    fill(&cache, id, &model).unwrap();
    for i in 0..30 {
        let policy = if i % 3 == 0 { Policy::Packed } else { Policy::default() };
        let (row, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let answers = step(&cache, id, &row, &queries, policy).unwrap();
        model.append(&row);
        for (layer, answer) in answers.iter().enumerate() {
            let exact = model.attend(&geometry(), layer, model.len(&geometry()), &queries);
            if policy != Policy::Packed {
                assert_eq!(decode_faults(&exact, &answer.out, &answer.certificates, 0.05), 0, "step {i}");
                continue;
            }
            for (h, c) in answer.certificates.iter().enumerate() {
                let got: Vec<f64> = answer.out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                let error = distance(&exact[h], &got);
                assert!(c.status == Status::Uncertified && error <= c.bound(), "step {i}: {error} {c:?}");
            }
        }
    }
    assert_eq!((original_faults(&cache, id, &model), cache.check_report().findings()), (0, 0));
    cache.snapshot().saturated.unwrap_or(u64::MAX)
}

#[test]
fn what_saturates_is_counted_and_inside_the_bound() {
    for format in ["e4m3-e4m3g32-b16", "p8g32-p4g32-b32", "p4-e5m2-b64"] {
        let seen = random_rows(&geometry(), 300, &mut Rng::new(40));
        let mut counts = Vec::new();
        for percentile in [100.0, 90.0, 50.0] {
            let scales = Arc::new(scales(&seen, percentile));
            counts.push(lived(config(format).with_scales(scales), 41));
        }
        // Of elements in full blocks: few beyond the largest of another text, a tenth, half.
        let all = (2 * 2 * geometry().kv_width() * (180 / 64 * 64)) as u64;
        assert!(counts[0] < all / 100 && counts[1] > all / 50 && counts[2] > all / 4, "{format}: {counts:?} of {all}");
        assert!(counts[0] < counts[1] && counts[1] < counts[2], "{format}: {counts:?}");
        // Without fixed scales nothing is counted.
        assert_eq!(lived(config(format), 42), u64::MAX);
    }
}

#[test]
fn scales_that_do_not_fit_are_refused() {
    let scales = Arc::new(scales(&random_rows(&geometry(), 20, &mut Rng::new(1)), 100.0));
    let refused = |config: Config| Cache::new(config).expect_err("a refusal");
    let none = refused(config("k8-v4g32-b32").with_scales(Arc::clone(&scales)));
    assert!(matches!(&none, Error::Config { field: "scales", .. }), "{none}");
    for (geometry, what) in [
        (Geometry::new(3, 4, 2, 64), "layers"),
        (Geometry::new(2, 4, 4, 64), "kv_heads"),
        (Geometry::new(2, 4, 2, 128), "head_dim"),
    ] {
        let other = Config { geometry: geometry.unwrap(), ..config("p8-p8-b32").with_scales(Arc::clone(&scales)) };
        let said = refused(other);
        let named = matches!(&said, Error::Calibration(CalibrationError::OtherHeads { what: w, .. }) if *w == what);
        assert!(named, "{said}");
    }
    assert!(Cache::new(config("k8-e4m3-b32").with_scales(scales)).is_ok());
}
