//! Records of refinable formats: residuals are those of the reference codecs, summaries of the refined block are true, and
//! the main part is that of the same format without residuals.
mod common;

use certkv_codec::{Encoder, affine, channel8, decode, refine};
use certkv_core::{Dtype, Format, Geometry, KeyFormat, RecordLayout, Refine, ValueFormat, summary::SUMMARY_BYTES};
use common::{block, difference, largest_norm, numbers, spectral, uniform};

const RESIDUALS: [(u8, u8); 7] = [(1, 1), (4, 4), (5, 4), (8, 4), (3, 2), (2, 8), (7, 6)];
const SIDES: [&str; 6] = ["k8-v4g32", "k8f32-v2g16", "k8bf16-v8g32", "k8-v3g16", "k4-v6g32", "k3-v4g32"];

fn layout(text: &str, dim: usize, store: Dtype) -> RecordLayout {
    let geometry = Geometry { store, ..Geometry::new(1, 1, 1, dim).unwrap() };
    RecordLayout::new(&geometry, text.parse().unwrap()).unwrap()
}

/// A block without anything special: sums of three uniform numbers.
fn plain(seed: u64, rows: usize, dim: usize, store: Dtype) -> Vec<u16> {
    let element = |i: usize| (0..3).map(|j| uniform(seed ^ (j << 40), i)).sum::<f64>();
    (0..rows * dim).map(|i| store.encode16(element(i) as f32)).collect()
}

type ReadRow = fn(&RecordLayout, &[u8], usize, &mut [f64]) -> Result<(), certkv_codec::CodecError>;

fn read(l: &RecordLayout, record: &[u8], row: ReadRow) -> Vec<f64> {
    let mut out = vec![f64::NAN; l.count()];
    out.chunks_exact_mut(l.dim).enumerate().for_each(|(token, x)| row(l, record, token, x).unwrap());
    out
}

/// Decoded block, refined block and the step of every element, by the reference codecs.
struct Side {
    decoded: Vec<f64>,
    refined: Vec<f64>,
    steps: Vec<f64>,
}

fn side(x: &[f64], decoded: Vec<f64>, steps: Vec<f64>, bits: u8) -> Side {
    let residuals = refine::encode(x, &decoded, &steps, bits).unwrap();
    let refined = refine::decode(&decoded, &residuals, &steps, bits).unwrap();
    Side { decoded, refined, steps }
}

fn reference(l: &RecordLayout, keys: &[f64], values: &[f64]) -> [Side; 2] {
    let Format {
        key: KeyFormat::Channel { bits: key_bits, meta },
        value: ValueFormat::Affine { bits, group },
        refine,
        ..
    } = l.format
    else {
        panic!("{} has no residuals", l.format)
    };
    let k = channel8::encode(keys, l.dim, key_bits, meta).unwrap();
    let v = affine::encode(values, l.dim, group as usize, bits, Dtype::F16).unwrap();
    let key_steps = k.sigma.iter().copied().cycle().take(l.count()).collect();
    let value_steps = v.sigma.iter().flat_map(|s| std::iter::repeat_n(*s, group as usize)).collect();
    [side(keys, k.decode(), key_steps, refine.key), side(values, v.decode(), value_steps, refine.value)]
}

/// Not below the truth, and at most `factor` times it.
fn tight(got: f32, truth: f64, factor: f64) -> bool {
    f64::from(got) >= truth && f64::from(got) <= truth * (factor + 1e-6) + 1e-44
}

/// What is wrong with a record, if anything.
fn judge(l: &RecordLayout, words: (&[u16], &[u16]), centre: &[f32], record: &[u8]) -> Result<(), String> {
    let dim = l.dim;
    let (keys, values) = (numbers(words.0, l.store), numbers(words.1, l.store));
    let [k, v] = reference(l, &keys, &values);
    for (name, x, side, bits, rows) in [
        ("keys", &keys, &k, l.format.refine.key, decode::refined_key as ReadRow),
        ("values", &values, &v, l.format.refine.value, decode::refined_value),
    ] {
        let refined = read(l, record, rows);
        if refined != side.refined {
            return Err(format!("{name} differ from the reference"));
        }
        for ((x, y), step) in x.iter().zip(&refined).zip(&side.steps) {
            // (2.23); the difference of two float64 numbers is rounded itself.
            if (x - y).abs() > refine::bound(*step, bits) * (1.0 + 1e-12) + x.abs() * f64::EPSILON {
                return Err(format!("{name}: {x} is refined to {y}, step {step}"));
            }
        }
    }

    let old = layout(&Format { refine: Refine::NONE, ..l.format }.to_string(), dim, l.store);
    let mut main = vec![0xff; old.bytes];
    Encoder::new(&old).encode(words.0, words.1, centre, &mut main).map_err(|e| e.to_string())?;
    let differs = |(i, (a, b)): (usize, (&u8, &u8))| {
        // Where the value norm stands, and what is appended to the summary.
        let own = l.summary.start + SUMMARY_BYTES - 4..l.summary.end;
        (a != b && !own.contains(&i)).then_some(i)
    };
    if let Some(at) = record[..l.main_bytes].iter().zip(&main).enumerate().find_map(differs) {
        return Err(format!("byte {at} is not that of the format without residuals"));
    }

    let (s, r) = (decode::read_summary(l, record), decode::read_refined_summary(l, record));
    let (ke, ve) = (difference(&keys, &k.refined), difference(&values, &v.refined));
    let scaled: Vec<f64> = ke.iter().zip(&k.steps).map(|(e, s)| if *s > 0.0 { e / s } else { *e }).collect();
    let norms = [&values, &v.decoded, &v.refined].map(|x| largest_norm(x, dim));
    for (name, fine) in [
        ("kappa", tight(r.kappa, spectral(&scaled, dim), 1.6)),
        ("eps", tight(r.eps, largest_norm(&ke, dim), 1.0)),
        ("eta", tight(r.eta, largest_norm(&ve, dim), 1.0)),
        ("sop", tight(r.sop, spectral(&ve, dim), 1.6)),
        ("value_norm", tight(s.value_norm, norms.into_iter().fold(0.0, f64::max), 1.0)),
    ] {
        if !fine {
            return Err(format!("{name} of {s:?} {r:?}"));
        }
    }
    Ok(())
}

#[test]
fn refined_blocks_are_the_reference_and_their_summaries_true() {
    let mut executed = 0;
    for dim in [64, 96, 128] {
        for tokens in [16, 32, 64] {
            for (i, (key, value)) in RESIDUALS.into_iter().enumerate() {
                for (j, store) in [Dtype::F16, Dtype::Bf16].into_iter().enumerate() {
                    let text = format!("{}-b{tokens}-r{key}.{value}", SIDES[(executed + i) % SIDES.len()]);
                    let l = layout(&text, dim, store);
                    let seed = (executed * 31 + dim * 7 + tokens + j) as u64;
                    let centre: Vec<f32> = (0..dim).map(|c| uniform(seed ^ 9, c) as f32).collect();
                    let mut encoder = Encoder::new(&l);
                    for make in [block, plain] {
                        let (k, v) = (make(seed, tokens, dim, store), make(seed ^ 0xabc, tokens, dim, store));
                        let mut record = vec![0xff; l.bytes];
                        encoder.encode(&k, &v, &centre, &mut record).unwrap();
                        judge(&l, (&k, &v), &centre, &record).unwrap_or_else(|e| panic!("{text} {dim} {seed:#x}: {e}"));
                        executed += 1;
                    }
                }
            }
        }
    }
    println!("GATE refined-reference executed={executed} failed=0 controls=see the_judge_sees_planted_errors seed=0x0");
    assert_eq!(executed, 3 * 3 * 7 * 2 * 2);
}

#[test]
fn every_bit_halves_the_summary_of_plain_data() {
    for (dim, tokens, store) in [(64, 16, Dtype::F16), (96, 32, Dtype::Bf16), (128, 64, Dtype::F16)] {
        for (key, value) in RESIDUALS {
            let l = layout(&format!("k8-v4g32-b{tokens}-r{key}.{value}"), dim, store);
            let (k, v) = (plain(3, tokens, dim, store), plain(4, tokens, dim, store));
            let mut record = vec![0; l.bytes];
            Encoder::new(&l).encode(&k, &v, &vec![0.0; dim], &mut record).unwrap();
            let (s, r) = (decode::read_summary(&l, &record), decode::read_refined_summary(&l, &record));
            for (name, before, after, bits) in [
                ("kappa", s.kappa, r.kappa, key),
                ("eps", s.eps, r.eps, key),
                ("eta", s.eta, r.eta, value),
                ("sop", s.sop, r.sop, value),
            ] {
                // 2^bits but for chance; half of that is asked for.
                let least = 0.5 * f32::from(1u16 << bits);
                assert!(after * least < before, "{name} {before} {after}, {bits} bits, {store} {dim} x {tokens}");
            }
        }
    }
}

#[test]
fn formats_without_residuals_refine_nothing() {
    for text in ["k8-v4g16-b16", "t4-v4g16-b16", "f16-f16-b16"] {
        let l = layout(text, 64, Dtype::F16);
        let (k, v) = (block(5, 16, 64, Dtype::F16), block(6, 16, 64, Dtype::F16));
        let mut record = vec![0; l.bytes];
        Encoder::new(&l).encode(&k, &v, &[0.0; 64], &mut record).unwrap();
        assert_eq!(read(&l, &record, decode::refined_key), read(&l, &record, decode::decode_key), "{text}");
        assert_eq!(read(&l, &record, decode::refined_value), read(&l, &record, decode::decode_value), "{text}");
        let r = decode::read_refined_summary(&l, &record);
        assert!([r.kappa, r.eps, r.eta, r.sop].iter().all(|x| x.is_nan()), "{text} {r:?}");
    }
    let l = layout("k8-v4g16-b16-r5.4", 64, Dtype::F16);
    let mut row = [0.0; 64];
    assert!(decode::refined_key(&l, &vec![0; l.main_bytes], 0, &mut row).is_err());
    assert!(decode::refined_value(&l, &vec![0; l.bytes], 16, &mut row).is_err());
    assert!(decode::read_refined_summary(&l, &vec![0; l.summary.end - 1]).sop.is_nan());
}

#[test]
fn the_judge_sees_planted_errors() {
    let l = layout("k8-v4g16-b32-r5.4", 64, Dtype::F16);
    let (k, v) = (plain(0x51, 32, 64, Dtype::F16), plain(0x52, 32, 64, Dtype::F16));
    let mut clean = vec![0; l.bytes];
    Encoder::new(&l).encode(&k, &v, &[0.0; 64], &mut clean).unwrap();
    let judge = |record: &[u8]| judge(&l, (&k, &v), &[0.0; 64], record);
    assert_eq!(judge(&clean), Ok(()));
    let mut caught = 0;
    let bytes = [l.key_codes.start, l.value_codes.end - 1, l.key_residuals.start, l.key_residuals.end - 1];
    let bytes = bytes.into_iter().chain([l.value_residuals.start + 77, l.value_residuals.end - 1]);
    let mut executed = 0;
    for at in bytes {
        let mut record = clean.clone();
        record[at] ^= 1;
        caught += usize::from(judge(&record).is_err());
        executed += 1;
    }
    // The value norm and the four numbers of the refined block, a little too small and twice too large.
    for field in 7..12 {
        for factor in [0.999f32, 2.0] {
            let mut record = clean.clone();
            let slot = &mut record[l.summary.start + 4 * field..][..4];
            let number = f32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
            // The bound of a spectral norm has room that a thousandth does not use up.
            let factor = if matches!(field, 8 | 11) && factor < 1.0 { 0.5 } else { factor };
            slot.copy_from_slice(&(number * factor).to_le_bytes());
            caught += usize::from(judge(&record).is_err());
            executed += 1;
        }
    }
    println!("GATE refined-judge executed={executed} failed=0 controls={caught}/{executed} seed=0x51");
    assert_eq!(caught, executed);
}
