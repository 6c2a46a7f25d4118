use super::*;
use certkv_core::hash::splitmix64;

const HEADS: Heads = Heads { layers: 2, q_heads: 4, kv_heads: 2, head_dim: 8, rotary: 8, pairing: Pairing::Half };

fn number(i: usize) -> f32 {
    (splitmix64(i as u64) % 2001) as f32 / 1000.0 - 1.0
}

/// Rows in which pair 1 of every key head is loud and channel 3 has a mean.
fn rows(tokens: usize, heads: usize, seed: usize) -> Vec<f32> {
    let value = |i: usize| match i % 8 {
        1 | 5 => 30.0 * number(i ^ seed),
        3 => 7.0 + 0.1 * number(i ^ seed),
        _ => number(i ^ seed),
    };
    (0..tokens * heads * 8).map(value).collect()
}

fn source() -> Source {
    Source { model: [7; 32], text: [9; 32], tokens: 96 }
}

fn seen(seed: usize) -> Vec<Seen> {
    let mut meter = Meter::new(HEADS).unwrap();
    for layer in 0..2 {
        for tokens in [64, 32] {
            let (q, k) = (rows(tokens, 4, seed + layer), rows(tokens, 2, seed + 10 * layer + tokens));
            meter.add(layer, &q, &k).unwrap();
        }
    }
    let (seen, tokens) = meter.finish().unwrap();
    assert_eq!(tokens, 96);
    seen
}

fn calibration() -> Calibration {
    Calibration::choose(HEADS, source(), Rule::new(12), seen(1 << 20)).unwrap()
}

/// As `bytes`, with a checksum that fits.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 8;
    let mut h = end as u64;
    for chunk in bytes[..end].chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = splitmix64(h ^ u64::from_le_bytes(word));
    }
    bytes[end..].copy_from_slice(&h.to_le_bytes());
    bytes
}

#[test]
fn energies_are_means_and_centring_takes_the_mean_away() {
    let (k, q) = (rows(64, 2, 3), rows(64, 4, 4));
    let mut meter = Meter::new(HEADS).unwrap();
    (0..2).for_each(|layer| meter.add(layer, &q, &k).unwrap());
    let (seen, _) = meter.finish().unwrap();
    let mean = |f: &dyn Fn(usize) -> f64, n: usize| (0..n).map(f).sum::<f64>() / n as f64;
    let x = |rows: &[f32], i: usize| f64::from(rows[i]);
    // Head 1, pair 3: channels 3 and 7.
    let centre: Vec<f32> = seen[1].mean.iter().map(|m| *m as f32).collect();
    let mu = mean(&|t| x(&k, t * 16 + 8 + 3), 64);
    assert!((seen[1].mean[3] - mu).abs() < 1e-12 && (mu - 7.0).abs() < 0.1);
    let around = seen[1].keys_around(&HEADS, &centre);
    let want = mean(
        &|t| (x(&k, t * 16 + 11) - f64::from(centre[3])).powi(2) + (x(&k, t * 16 + 15) - f64::from(centre[7])).powi(2),
        64,
    );
    assert!((around[3] - want).abs() < 1e-10 && seen[1].keys[3] > 49.0, "{} {want}", around[3]);
    // The queries of heads 2 and 3 read key head 1.
    let want = mean(
        &|i| {
            (0..2)
                .map(|h| x(&q, i * 32 + (2 + h) * 8 + 1).powi(2) + x(&q, i * 32 + (2 + h) * 8 + 5).powi(2))
                .sum::<f64>()
                / 2.0
        },
        64,
    );
    assert!((seen[1].queries[1] / want - 1.0).abs() < 1e-12);
    let reach = seen[1].reach(&centre);
    assert!((0..64).all(|t| (0..8).all(|c| (k[t * 16 + 8 + c] - centre[c]).abs() <= reach[c])));
}

#[test]
fn rules_choose_as_they_say() {
    let ours = calibration();
    let published = ours.with_rule(Rule::published(12)).unwrap();
    for layer in 0..2 {
        for head in 0..2 {
            let (seen, scheme) = ours.head(layer, head).unwrap();
            assert!(
                scheme.bits[1] > scheme.bits[0] && scheme.bits.iter().map(|b| usize::from(*b)).sum::<usize>() == 12
            );
            assert!((scheme.centre[3] - 7.0).abs() < 0.1);
            let around = seen.keys_around(&HEADS, &scheme.centre);
            let s = (seen.queries[2] / around[2]).powf(0.25) as f32;
            assert!((scheme.balance[2] / s - 1.0).abs() < 1e-6 && scheme.balance[2] == scheme.balance[6]);
            let (_, plain) = published.head(layer, head).unwrap();
            assert!(plain.balance.iter().all(|s| *s == 1.0) && plain.centre.iter().all(|c| *c == 0.0));
            // Without a centre the mean of channel 3 looks like a signal.
            assert!(plain.bits[3] > scheme.bits[3]);
        }
    }
    assert!(ours.head(2, 0).is_none() && ours.head(0, 2).is_none() && ours.head(usize::MAX, 1).is_none());
}

#[test]
fn little_text_and_bad_rows_are_refused() {
    let mut meter = Meter::new(HEADS).unwrap();
    assert_eq!(meter.clone().finish(), Err(CalibrationError::Tokens { have: 0, need: 64 }));
    assert!(matches!(meter.add(0, &[0.0; 32], &[0.0; 17]), Err(CalibrationError::Rows { what: "keys", .. })));
    assert!(matches!(meter.add(0, &[0.0; 31], &[0.0; 16]), Err(CalibrationError::Rows { what: "queries", .. })));
    assert!(matches!(meter.add(2, &[0.0; 32], &[0.0; 16]), Err(CalibrationError::Rows { what: "layer", .. })));
    let mut bad = rows(3, 2, 0);
    bad[2 * 16 + 9] = f32::NAN;
    let e = meter.add(1, &rows(3, 4, 0), &bad).unwrap_err();
    assert_eq!(e, CalibrationError::Number { layer: 1, head: 1, what: "keys", index: 2 });
    meter.add(0, &rows(64, 4, 0), &rows(64, 2, 0)).unwrap();
    meter.add(1, &rows(63, 4, 0), &rows(63, 2, 0)).unwrap();
    let e = meter.clone().finish().unwrap_err();
    assert_eq!(e.to_string(), "calibration: the text has 63 tokens; at least 64 are needed");
    meter.add(1, &rows(2, 4, 0), &rows(2, 2, 0)).unwrap();
    assert!(matches!(meter.finish(), Err(CalibrationError::Rows { what: "tokens of a layer", .. })));

    for (what, heads) in [
        ("layers", Heads { layers: 0, ..HEADS }),
        ("kv_heads", Heads { kv_heads: 0, ..HEADS }),
        ("q_heads", Heads { q_heads: 3, ..HEADS }),
        ("head_dim", Heads { head_dim: 7, ..HEADS }),
        ("rotary", Heads { rotary: 10, ..HEADS }),
    ] {
        let e = Meter::new(heads).unwrap_err();
        assert!(matches!(e, CalibrationError::Field { what: found, .. } if found == what), "{e}");
    }
    for rule in [Rule::new(3), Rule::new(33), Rule { least: 0, ..Rule::new(12) }, Rule { most: 9, ..Rule::new(12) }] {
        assert!(matches!(calibration().with_rule(rule), Err(CalibrationError::Field { .. })));
    }
    let mut nan = seen(5);
    nan[2].keys[1] = f64::NAN;
    let e = Calibration::choose(HEADS, source(), Rule::new(12), nan).unwrap_err();
    assert_eq!(e, CalibrationError::Number { layer: 1, head: 0, what: "key energies", index: 1 });
    assert!(Calibration::choose(HEADS, source(), Rule::new(12), seen(5)[1..].to_vec()).is_err());
}

#[test]
fn a_file_says_what_was_written() {
    let written = calibration();
    let bytes = written.to_bytes();
    assert_eq!(Calibration::from_bytes(&bytes).unwrap(), written);
    for rule in [Rule { score: Score::Larger, ..Rule::published(8) }, Rule { balanced: false, ..Rule::new(32) }] {
        let other = written.with_rule(rule).unwrap();
        assert_eq!(Calibration::from_bytes(&other.to_bytes()).unwrap(), other);
    }
    written.check_for(&HEADS, &[7; 32]).unwrap();
    assert_eq!(written.check_for(&HEADS, &[8; 32]), Err(CalibrationError::OtherModel));
    let e = written.check_for(&Heads { q_heads: 8, ..HEADS }, &[7; 32]).unwrap_err();
    assert_eq!(e.to_string(), "calibration: made for q_heads 4, not 8");
    assert!(written.check_for(&Heads { pairing: Pairing::Interleaved, ..HEADS }, &[7; 32]).is_err());
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let bytes = calibration().to_bytes();
    for at in 0..bytes.len() {
        for bit in [1, 0x10, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= bit;
            let e = Calibration::from_bytes(&changed).expect_err("a changed byte");
            match at {
                0..8 => assert_eq!(e, CalibrationError::Magic),
                8..12 => assert!(matches!(e, CalibrationError::Version { .. })),
                116.. => assert_eq!(e, CalibrationError::Checksum, "{at}"),
                _ => {}
            }
            // With a checksum that fits, it is an error or a calibration that can be written again.
            if let Ok(read) = Calibration::from_bytes(&sealed(changed.clone())) {
                assert_eq!(read.to_bytes(), sealed(changed));
            }
        }
    }
    for length in 0..bytes.len() {
        assert!(
            matches!(Calibration::from_bytes(&bytes[..length]), Err(CalibrationError::Truncated { .. })),
            "{length}"
        );
    }
    let longer = [&bytes[..], &[0; 3]].concat();
    assert_eq!(Calibration::from_bytes(&longer), Err(CalibrationError::Trailing { bytes: 3 }));
    assert_eq!(Calibration::from_bytes(b"{}"), Err(CalibrationError::Truncated { have: 2, need: 124 }));
}

#[test]
fn a_header_that_lies_is_refused_before_memory_is_taken() {
    let bytes = calibration().to_bytes();
    let with = |at: usize, value: &[u8]| {
        let mut changed = bytes.clone();
        changed[at..at + value.len()].copy_from_slice(value);
        Calibration::from_bytes(&sealed(changed)).unwrap_err()
    };
    assert!(matches!(with(12, &4096u32.to_le_bytes()), CalibrationError::Truncated { .. }));
    assert!(matches!(with(12, &u32::MAX.to_le_bytes()), CalibrationError::Field { what: "layers", .. }));
    assert!(matches!(with(36, &[2]), CalibrationError::Field { what: "pairing", found: 2 }));
    assert!(matches!(with(37, &[6]), CalibrationError::Field { what: "score", found: 6 }));
    assert!(matches!(with(38, &[0]), CalibrationError::Field { what: "widths", .. }));
    assert!(matches!(with(42, &[1]), CalibrationError::Field { what: "reserved", .. }));
    assert!(matches!(with(32, &99u32.to_le_bytes()), CalibrationError::Field { what: "budget", .. }));
    // The numbers of the first head: energies, mean, range, balance, centre, bits.
    let body = 116;
    let number = |e| matches!(e, CalibrationError::Number { layer: 0, head: 0, .. });
    assert!(number(with(body, &f64::NAN.to_le_bytes())) && number(with(body + 40, &(-1.0f64).to_le_bytes())));
    assert!(number(with(body + 64, &f64::INFINITY.to_le_bytes())));
    assert!(number(with(body + 128, &1e9f32.to_le_bytes())), "least above greatest");
    assert!(number(with(body + 192, &0f32.to_le_bytes())) && number(with(body + 224, &f32::NAN.to_le_bytes())));
    assert!(number(with(body + 256, &[9])) && number(with(body + 256, &[1, 1, 1, 1])));
}

#[test]
fn distances_are_those_of_the_paper() {
    let a = calibration();
    let zero = a.distances(&a).unwrap();
    assert_eq!(zero.len(), 2);
    assert!(zero.iter().all(|d| d.hamming() == 0.0 && d.high_bits() == 1.0 && d.regret() == 0.0 && d.pairs == 8));

    let mut b = a.clone();
    b.schemes[3].bits = vec![1, 4, 4, 3];
    let mut r = a.clone();
    r.schemes[3].bits = vec![1, 5, 3, 3];
    let d = b.distances(&r).unwrap();
    assert_eq!(
        (d[0].changed, d[1].changed, d[1].high_in_both),
        (0, 2, 1 + u64::from(a.schemes[2].bits.iter().filter(|b| **b >= 4).count() as u8))
    );
    assert_eq!(d[1].high_in_either, d[1].high_in_both + 1);
    let s = r.scores(3).unwrap();
    let j = |bits: [i32; 4]| s.iter().zip(bits).map(|(s, b)| s * 4f64.powi(-b)).sum::<f64>();
    assert!((d[1].other - d[1].reference - j([1, 4, 4, 3]) + j([1, 5, 3, 3])).abs() <= 1e-12 * d[1].reference);
    assert!((d[1].regret() - (d[1].other - d[1].reference) / d[1].reference).abs() < 1e-15);
    let whole = d[0].join(d[1]);
    assert_eq!((whole.pairs, whole.hamming()), (16, 2.0 / 16.0));

    // What was chosen from other text regrets nothing less than 0 against the reference's own choice.
    let other = Calibration::choose(HEADS, source(), Rule::new(12), seen(77)).unwrap();
    assert!(other.distances(&a).unwrap().iter().all(|d| d.regret() >= -1e-12));
    let narrow = Heads { layers: 1, ..HEADS };
    let short = Calibration::choose(narrow, source(), Rule::new(12), seen(77)[..2].to_vec()).unwrap();
    assert!(matches!(short.distances(&a), Err(CalibrationError::OtherHeads { what: "layers", file: 1, wanted: 2 })));
    assert_eq!(Distance::default().high_bits(), 1.0);
}
