use super::*;
use certkv_core::hash::splitmix64;

const HEADS: ScaleHeads = ScaleHeads { layers: 2, kv_heads: 2, head_dim: 32 };
const SOURCE: Source = Source { model: [1; 32], text: [2; 32], tokens: 0 };

fn uniform(seed: u64) -> f32 {
    (splitmix64(seed) >> 40) as f32 / (1u64 << 24) as f32
}

/// Piece `p` of every row is uniform in `[-(p + 1), p + 1]`.
fn metered(rows: u64) -> ScaleMeter {
    let mut meter = ScaleMeter::new(HEADS, SOURCE).unwrap();
    let width = HEADS.kv_heads * HEADS.head_dim;
    for row in 0..rows {
        for layer in 0..HEADS.layers {
            let side = |salt: u64| -> Vec<f32> {
                let x = |i: usize| 2.0 * uniform(salt ^ (row << 20) ^ ((layer as u64) << 16) ^ i as u64) - 1.0;
                (0..width).map(|i| x(i) * (i / PIECE + 1) as f32).collect()
            };
            meter.row(layer, &side(5 << 50), &side(9 << 50)).unwrap();
        }
    }
    meter
}

#[test]
fn magnitudes_are_those_of_the_text() {
    let meter = metered(400);
    for (percentile, share) in [(100.0, 1.0), (99.0, 0.99), (50.0, 0.5)] {
        let scales = Scales::choose(&meter, percentile).unwrap();
        assert_eq!((scales.source().tokens, scales.percentile()), (400, percentile));
        for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (keys, values) = scales.head(layer, head).unwrap();
            for (p, x) in keys.iter().chain(values).enumerate() {
                let want = share * (2 * head + p % 2 + 1) as f32;
                // A cell is 1/64 wide, and 6400 elements leave a percent.
                assert!((x - want).abs() <= 0.04 * want, "{percentile}: {x}, not {want}");
            }
        }
        assert!(scales.head(2, 0).is_none() && scales.head(0, 2).is_none());
    }
    // The largest is exact.
    let mut meter = ScaleMeter::new(HEADS, SOURCE).unwrap();
    let mut row = vec![0.0; 64];
    row[40] = -7.123;
    (0..2).for_each(|layer| meter.row(layer, &row, &row).unwrap());
    let scales = Scales::choose(&meter, 100.0).unwrap();
    assert_eq!(scales.head(1, 1).unwrap().0, [7.123, 0.0]);
}

#[test]
fn files_come_back_and_damage_is_refused() {
    let scales = Scales::choose(&metered(20), 99.5).unwrap();
    let bytes = scales.to_bytes();
    assert_eq!(Scales::from_bytes(&bytes), Ok(scales));
    for cut in 0..bytes.len() {
        assert!(Scales::from_bytes(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Scales::from_bytes(&damaged).is_err(), "byte {at}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(Scales::from_bytes(&longer), Err(CalibrationError::Trailing { bytes: 1 }));
    let mut other = bytes;
    other[8] = 9;
    assert_eq!(Scales::from_bytes(&other), Err(CalibrationError::Version { found: 9, known: VERSION }));
}

#[test]
fn what_cannot_be_is_refused() {
    let new =
        |heads, percentile, keys: Vec<f32>, values: Vec<f32>| Scales::new(heads, SOURCE, percentile, keys, values);
    let ones = || vec![1.0; 8];
    assert!(new(HEADS, 100.0, ones(), ones()).is_ok());
    for percentile in [0.0, -1.0, 100.5, f64::NAN] {
        assert!(matches!(
            new(HEADS, percentile, ones(), ones()),
            Err(CalibrationError::Field { what: "percentile", .. })
        ));
    }
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let mut values = ones();
        values[5] = bad;
        let refused = new(HEADS, 100.0, ones(), values);
        assert!(matches!(refused, Err(CalibrationError::Number { layer: 1, head: 0, index: 1, .. })), "{refused:?}");
    }
    assert!(matches!(new(HEADS, 100.0, vec![1.0; 7], ones()), Err(CalibrationError::Rows { got: 7, want: 8, .. })));
    let odd = ScaleHeads { head_dim: 40, ..HEADS };
    assert!(matches!(ScaleMeter::new(odd, SOURCE), Err(CalibrationError::Field { what: "head_dim", found: 40 })));
    assert!(HEADS.check_for(&HEADS).is_ok());
    let other = ScaleHeads { kv_heads: 4, ..HEADS };
    let said = HEADS.check_for(&other);
    assert_eq!(said, Err(CalibrationError::OtherHeads { what: "kv_heads", file: 2, wanted: 4 }));
    let mut meter = ScaleMeter::new(HEADS, SOURCE).unwrap();
    assert!(Scales::choose(&meter, 100.0).is_err());
    assert!(meter.row(2, &[0.0; 64], &[0.0; 64]).is_err() && meter.row(0, &[0.0; 63], &[0.0; 64]).is_err());
    let mut row = [0.0; 64];
    row[33] = f32::NAN;
    let refused = meter.row(0, &[0.0; 64], &row);
    assert_eq!(refused, Err(CalibrationError::Number { layer: 0, head: 1, what: "values", index: 1 }));
    assert_eq!(meter.tokens(), 0);
}
