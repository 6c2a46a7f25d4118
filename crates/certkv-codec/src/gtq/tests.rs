use super::*;
use crate::turboquant;
use certkv_core::hash::hash64;
use proptest::prelude::*;

const SCALE: f64 = 0.125;

fn scheme(bits: &[u8]) -> Scheme<'_> {
    Scheme::new(bits, 5)
}

/// Largest and total error of logits against the bounds, for `q` of any size.
fn holds(codec: &BlockGtq, keys: &[f64], q: &[f64]) -> Result<(), TestCaseError> {
    let block = encode(codec, keys).unwrap();
    let decoded = decode(codec, &block).unwrap();
    let errors = annotate(codec, keys, &decoded).unwrap();
    let (most, together) = (delta(codec, q, &errors, SCALE).unwrap(), lambda(codec, q, &errors, SCALE).unwrap());
    let scores = score(codec, &block, q, SCALE).unwrap();
    let mut sum = 0.0;
    for ((z, k), d) in scores.iter().zip(keys.chunks_exact(codec.dim)).zip(decoded.chunks_exact(codec.dim)) {
        let magnitude: f64 = q.iter().zip(d).map(|(q, d)| (q * d).abs()).sum::<f64>()
            + q.iter().zip(&codec.centre).map(|(q, mu)| (q * mu).abs()).sum::<f64>();
        prop_assert!(
            (z - SCALE * dot(q, d)).abs() <= 1e-11 * (SCALE * magnitude + most),
            "scores are those of decoded keys"
        );
        let error = SCALE * q.iter().zip(k.iter().zip(d)).map(|(q, (k, d))| q * (k - d)).sum::<f64>();
        prop_assert!(error.abs() <= most, "{error} over Delta {most}");
        sum += error * error;
    }
    prop_assert!(sum.sqrt() <= together, "{} over Lambda {together}", sum.sqrt());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bounds_hold_for_any_schedule_metric_and_centre(
        widths in proptest::collection::vec(1u8..=6, 128),
        numbers in proptest::collection::vec(-1.0f64..1.0, 5 * 256 + 3 * 256),
        pairs in prop_oneof![Just(1usize), Just(5), Just(32), Just(48), Just(64), Just(128)],
        (half, turned, balanced, centred) in any::<(bool, prop::sample::Index, bool, bool)>(),
        norm: bool,
        spread in 0.0f64..6.0,
    ) {
        let dim = 2 * pairs;
        let (keys, rest) = numbers.split_at(5 * 256);
        let loud = |c: usize| (spread * (((c * 37) % 17) as f64 / 8.0 - 1.0)).exp();
        let keys: Vec<f64> = keys[..5 * dim].iter().enumerate().map(|(i, x)| x * loud(i % dim)).collect();
        let q: Vec<f64> = rest[..dim].iter().enumerate().map(|(c, x)| x * loud(c + 3)).collect();
        let balance: Vec<f64> = rest[256..256 + dim].iter().map(|x| (4.0 * x).exp()).collect();
        let centre: Vec<f64> = rest[512..512 + dim].iter().map(|x| 20.0 * x).collect();
        let codec = BlockGtq::new(&Scheme {
            pairing: if half { Pairing::Half } else { Pairing::Interleaved },
            rotary: 2 * turned.index(pairs + 1),
            balance: balanced.then_some(&balance[..]),
            centre: centred.then_some(&centre[..]),
            radius: if norm { Radius::Norm } else { Radius::LeastSquares },
            ..scheme(&widths[..pairs])
        }).unwrap();
        prop_assert_eq!(codec.groups().iter().map(|g| g.channels().len()).sum::<usize>(), dim);
        holds(&codec, &keys, &q)?;
    }
}

#[test]
fn one_width_is_turboquant_of_the_pairs_in_order() {
    let dim = 64;
    let keys: Vec<f64> = (0..8 * dim).map(|i| ((i * i) as f64 * 0.37).sin() * (1.0 + (i % 7) as f64)).collect();
    let bits = vec![3; dim / 2];
    let inter = BlockGtq::new(&Scheme { pairing: Pairing::Interleaved, ..scheme(&bits) }).unwrap();
    let plain = turboquant::encode(&keys, dim, 3, hash64(&[5, 3]), Radius::LeastSquares, Dtype::F16).unwrap();
    let coded = encode(&inter, &keys).unwrap();
    assert_eq!((&coded[0].codes, &coded[0].radius), (&plain.codes, &plain.radius));
    assert_eq!(decode(&inter, &coded).unwrap(), plain.decode());
    // In halves the channels of a pair come together first, so that codes are those of a permuted key.
    let half = BlockGtq::new(&scheme(&bits)).unwrap();
    assert_eq!(half.groups()[0].channels()[..4], [0, 32, 1, 33]);
    // Half of the channels turned: pairs of the rest are neighbours.
    let partial = BlockGtq::new(&Scheme { rotary: 32, ..scheme(&bits) }).unwrap();
    assert_eq!(partial.groups()[0].channels()[..2], [0, 16]);
    assert_eq!(partial.groups()[0].channels()[32..36], [32, 33, 34, 35]);
}

#[test]
fn widths_ascend_and_more_bits_are_closer() {
    let keys: Vec<f64> = (0..16 * 16).map(|i| (i as f64 * 1.7).sin() * if i % 16 == 2 { 30.0 } else { 1.0 }).collect();
    let error = |bits: &[u8]| {
        let codec = BlockGtq::new(&scheme(bits)).unwrap();
        assert!(codec.groups().windows(2).all(|w| w[0].bits() < w[1].bits()));
        let decoded = decode(&codec, &encode(&codec, &keys).unwrap()).unwrap();
        keys.iter().zip(decoded).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
    };
    // One loud pair: bits there count, bits elsewhere do not.
    let uniform = error(&[3; 8]);
    assert!(error(&[2, 2, 8, 2, 3, 3, 2, 2]) < 0.2 * uniform);
    assert!(error(&[4; 8]) < uniform && uniform < error(&[2; 8]));
}

#[test]
fn a_centre_takes_away_what_all_keys_share() {
    let dim = 32;
    let keys: Vec<f64> = (0..16 * dim).map(|i| 50.0 + (i as f64 * 0.9).sin()).collect();
    let centre = vec![50.0; dim];
    let bits = vec![3; dim / 2];
    let error = |centre: Option<&[f64]>| {
        let codec = BlockGtq::new(&Scheme { centre, ..scheme(&bits) }).unwrap();
        let decoded = decode(&codec, &encode(&codec, &keys).unwrap()).unwrap();
        keys.iter().zip(decoded).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
    };
    assert!(error(Some(&centre)) < 0.01 * error(None));
    let codec = BlockGtq::new(&Scheme { centre: Some(&centre), ..scheme(&bits) }).unwrap();
    assert_eq!(shift(&codec, &vec![0.5; dim], 0.1).unwrap(), 0.1 * 0.5 * 50.0 * dim as f64);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let ok = [3u8, 4];
    let refused = |scheme: Scheme<'_>| BlockGtq::new(&scheme).unwrap_err();
    assert_eq!(refused(scheme(&[3, 0])), CodecError::Width { pair: 1, bits: 0, most: 8 });
    assert_eq!(refused(scheme(&[9, 3])), CodecError::Width { pair: 0, bits: 9, most: 8 });
    assert_eq!(refused(scheme(&[])), CodecError::Shape { input: Input::Schedule, got: 0, want: 1 });
    for rotary in [3, 6] {
        assert!(matches!(
            refused(Scheme { rotary, ..scheme(&ok) }),
            CodecError::Shape { input: Input::Parameters, .. }
        ));
    }
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE / 16.0] {
        let e = refused(Scheme { balance: Some(&[1.0, 1.0, bad, 1.0]), ..scheme(&ok) });
        assert_eq!(e, CodecError::NotPositive { input: Input::Balance, channel: 2 });
    }
    let e = refused(Scheme { balance: Some(&[1.0]), ..scheme(&ok) });
    assert_eq!(e, CodecError::Shape { input: Input::Balance, got: 1, want: 4 });
    let e = refused(Scheme { centre: Some(&[0.0, f64::NAN, 0.0, 0.0]), ..scheme(&ok) });
    assert_eq!(e, CodecError::NonFinite { input: Input::KeyCentre, row: 0, channel: 1 });
    assert!(refused(Scheme { centre: Some(&[0.0; 5]), ..scheme(&ok) }).to_string().starts_with("key centre"));

    let codec = BlockGtq::new(&scheme(&ok)).unwrap();
    assert!(encode(&codec, &[1.0; 6]).is_err() && encode(&codec, &[]).is_err());
    assert!(matches!(encode(&codec, &[1.0, f64::NAN, 0.0, 0.0]), Err(CodecError::NonFinite { channel: 1, .. })));
    assert!(matches!(encode(&codec, &[1e9; 4]), Err(CodecError::ScaleOverflow { .. })));
    let loud = BlockGtq::new(&Scheme { balance: Some(&[1e300; 4]), ..scheme(&ok) }).unwrap();
    assert!(matches!(encode(&loud, &[1e10; 4]), Err(CodecError::NonFinite { .. })));

    let mut block = encode(&codec, &[1.0; 8]).unwrap();
    assert!(score(&codec, &block, &[1.0; 3], 1.0).is_err() && shift(&codec, &[1.0; 5], 1.0).is_err());
    let errors = GroupErrors { largest: vec![0.0], spectral: vec![0.0] };
    assert!(delta(&codec, &[1.0; 4], &errors, 1.0).is_err() && lambda(&codec, &[1.0; 4], &errors, 1.0).is_err());
    assert!(annotate(&codec, &[1.0; 8], &[1.0; 4]).is_err() && annotate(&codec, &[1.0; 4], &[f64::NAN; 4]).is_err());
    block[0].codes[1] = 8;
    assert!(matches!(decode(&codec, &block), Err(CodecError::Shape { input: Input::Codes, got: 8, want: 8 })));
    block[0].codes.pop();
    assert!(score(&codec, &block, &[1.0; 4], 1.0).is_err());
    block.pop();
    assert!(decode(&codec, &block).is_err());
}
