use super::*;
use crate::bytes::{CodecBytes, codec_bytes};
use crate::numeric::{dot, sum_squares};
use certkv_core::hash::splitmix64;
use proptest::prelude::*;

const SCALE: f64 = 0.125;

fn number(i: usize) -> f64 {
    (splitmix64(i as u64) % 200_001) as f64 / 100_000.0 - 1.0
}

/// Directions of `groups` groups that no training chose.
fn directions(tier: Tier, groups: usize, seed: usize) -> Vec<f32> {
    let numbers: Vec<f64> = (0..groups * tier.book_len()).map(|i| number(i ^ (seed << 24))).collect();
    let unit = |word: &[f64]| {
        let length = norm(word);
        word.iter().map(|x| (x / length) as f32).collect::<Vec<f32>>()
    };
    numbers.chunks_exact(tier.group()).flat_map(unit).collect()
}

fn codec(tier: Tier, groups: usize, seed: usize) -> Spherical {
    Spherical::new(&Scheme::new(tier, &directions(tier, groups, seed))).unwrap()
}

/// Scores are those of decoded keys, and errors of single logits and of all together are inside the bounds.
fn holds(codec: &Spherical, keys: &[f64], q: &[f64]) -> Result<(), TestCaseError> {
    let dim = codec.channels();
    let block = encode(codec, keys).unwrap();
    let decoded = decode(codec, &block).unwrap();
    let errors = annotate(codec, keys, &decoded).unwrap();
    let (most, together) = (delta(codec, q, &errors, SCALE).unwrap(), lambda(codec, q, &errors, SCALE).unwrap());
    let scores = score(codec, &block, &table(codec, q).unwrap(), SCALE).unwrap();
    let mut sum = 0.0;
    for ((z, k), d) in scores.iter().zip(keys.chunks_exact(dim)).zip(decoded.chunks_exact(dim)) {
        let magnitude: f64 = q.iter().zip(d).map(|(q, d)| (q * d).abs()).sum();
        prop_assert!((z - SCALE * dot(q, d)).abs() <= 1e-13 * SCALE * magnitude, "scores are those of decoded keys");
        let error = SCALE * q.iter().zip(k.iter().zip(d)).map(|(q, (k, d))| q * (k - d)).sum::<f64>();
        prop_assert!(error.abs() <= most, "{error} over Delta {most}");
        sum += error * error;
    }
    prop_assert!(sum.sqrt() <= together, "{} over Lambda {together}", sum.sqrt());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bounds_hold_for_any_keys_and_directions(
        tier in prop_oneof![Just(Tier::B1), Just(Tier::B2), Just(Tier::B3)],
        (groups, rows, seed) in (1usize..=4, 1usize..=9, 0usize..1000),
        numbers in proptest::collection::vec(-1.0f64..1.0, 10 * 128),
        spread in 0.0f64..6.0,
        norm: bool,
    ) {
        let radius = if norm { Radius::Norm } else { Radius::LeastSquares };
        let words = directions(tier, groups, seed);
        let codec = Spherical::new(&Scheme { radius, ..Scheme::new(tier, &words) }).unwrap();
        let dim = codec.channels();
        let loud = |c: usize| (spread * (((c * 37) % 17) as f64 / 8.0 - 1.0)).exp();
        let keys: Vec<f64> = (0..rows * dim).map(|i| numbers[i % 1280] * loud(i % dim)).collect();
        let q: Vec<f64> = (0..dim).map(|c| numbers[1279 - c] * loud(c + 3)).collect();
        holds(&codec, &keys, &q)?;
        // A query along the errors of a token makes the bound of groups an equality for a block of that token alone.
        let key = &keys[..dim];
        let decoded = decode(&codec, &encode(&codec, key).unwrap()).unwrap();
        let along: Vec<f64> = key.iter().zip(&decoded).map(|(k, d)| k - d).collect();
        holds(&codec, key, &along)?;
        holds(&codec, &keys, &along)?;
        let errors = annotate(&codec, key, &decoded).unwrap();
        let most = delta(&codec, &along, &errors, SCALE).unwrap();
        prop_assert!(SCALE * sum_squares(&along) > most * (1.0 - 1e-6), "the bound is reached");
    }

    #[test]
    fn the_nearest_direction_is_the_first_of_the_best(
        count in 1usize..=64,
        width in prop_oneof![Just(1usize), Just(2), Just(16), Just(32)],
        seed in 0usize..1000,
        copied: prop::sample::Index,
    ) {
        let mut words: Vec<f64> = (0..count * width).map(|i| number(i ^ (seed << 24))).collect();
        words.chunks_exact_mut(width).for_each(|w| { let l = norm(w); w.iter_mut().for_each(|x| *x /= l); });
        // One direction twice: the first is taken.
        let again = copied.index(count);
        words.extend_from_within(again * width..(again + 1) * width);
        let book = Directions::new(&words, width).unwrap();
        prop_assert_eq!(book.count(), count + 1);
        let x: Vec<f64> = (0..width).map(|i| number(i + (seed << 10))).collect();
        for x in [&x[..], book.word(again as u8)] {
            let products: Vec<f64> = words.chunks_exact(width).map(|w| dot(x, w)).collect();
            let most = products.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let first = products.iter().position(|p| *p == most).unwrap();
            prop_assert_eq!(book.nearest(x), (first as u8, most));
            prop_assert_eq!(book.products(x), products);
        }
    }

    #[test]
    fn bytes_hold_every_code(tier in prop_oneof![Just(Tier::B1), Just(Tier::B2), Just(Tier::B3)], groups in 1usize..=9, rows in 1usize..=5, seed: u16) {
        let codec = codec(tier, groups, usize::from(seed));
        let keys: Vec<f64> = (0..rows * codec.channels()).map(|i| number(i + usize::from(seed))).collect();
        let block = encode(&codec, &keys).unwrap();
        let bytes = to_bytes(&codec, &block).unwrap();
        let counted = codec_bytes(counted(tier, Dtype::F16), rows, codec.channels());
        prop_assert_eq!(counted, CodecBytes { codes: bytes.len(), metadata: 2 * block.scale.len() });
        prop_assert_eq!(from_bytes(&codec, &bytes, &block.scale).unwrap(), block);
    }
}

#[test]
fn keys_of_128_channels_take_the_bytes_of_the_source() {
    for (tier, bits, bytes) in [(Tier::B1, 112, 14), (Tier::B2, 96, 12), (Tier::B3, 44, 6)] {
        let codec = codec(tier, 128 / tier.group(), 1);
        let groups = codec.books().len();
        assert_eq!((groups * (8 + usize::from(tier.bits())), row_bytes(&codec)), (bits, bytes), "{tier}");
        assert_eq!(tier.name().parse(), Ok(tier));
    }
    assert_eq!("b4".parse::<Tier>(), Err(UnknownTier));
}

/// (2.21a): with the projection as radius an error is what lies beside the direction, and half a step of the radius.
#[test]
fn errors_are_what_the_angle_leaves() {
    for tier in Tier::ALL {
        let (codec, width) = (codec(tier, 2, 7), tier.group());
        let keys: Vec<f64> =
            (0..64 * 2 * width).map(|i| 3.0 * number(i + 11) * if i % 5 == 0 { 9.0 } else { 1.0 }).collect();
        let block = encode(&codec, &keys).unwrap();
        let decoded = decode(&codec, &block).unwrap();
        let published = Spherical { radius: Radius::Norm, ..codec.clone() };
        let of_norms = decode(&published, &encode(&published, &keys).unwrap()).unwrap();
        let (mut ours, mut theirs) = (0.0, 0.0);
        for (at, ((k, d), n)) in
            keys.chunks_exact(width).zip(decoded.chunks_exact(width)).zip(of_norms.chunks_exact(width)).enumerate()
        {
            let off = |y: &[f64]| k.iter().zip(y).map(|(k, y)| (k - y).powi(2)).sum::<f64>();
            let (_, reach) = codec.books()[at % 2].nearest(k);
            let left = sum_squares(k) - reach.max(0.0).powi(2);
            assert!(off(d) <= (left + block.scale[at % 2].powi(2) / 4.0) * (1.0 + 1e-6), "{} {left}", off(d));
            (ours, theirs) = (ours + off(d), theirs + off(n));
        }
        assert!(ours < 0.98 * theirs, "{tier}: projections {ours}, lengths {theirs}");
    }
}

#[test]
fn what_points_away_from_all_directions_is_kept_as_nothing_and_bounded() {
    // All directions in one half space, a key in the other; and blocks of zeros and of the smallest originals.
    let tier = Tier::B2;
    let words: Vec<f32> = directions(tier, 1, 3)
        .chunks_exact(16)
        .flat_map(|w| {
            let turn = if w[0] < 0.0 { -1.0 } else { 1.0 };
            w.iter().map(move |x| x * turn).collect::<Vec<f32>>()
        })
        .collect();
    let codec = Spherical::new(&Scheme::new(tier, &words)).unwrap();
    let mut away = vec![0.0; 16];
    away[0] = -5.0;
    let block = encode(&codec, &away).unwrap();
    assert_eq!((&block.radii[..], &block.scale[..]), (&[0][..], &[0.0][..]));
    assert!(decode(&codec, &block).unwrap().iter().all(|x| *x == 0.0));
    for keys in [away.clone(), vec![0.0; 32], vec![2f64.powi(-133); 32], [away.clone(), vec![1e4; 16]].concat()] {
        holds(&codec, &keys, &away).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let good = directions(Tier::B3, 2, 5);
    let refused = |words: &[f32]| Spherical::new(&Scheme::new(Tier::B3, words)).unwrap_err();
    assert_eq!(refused(&good[1..]), CodecError::Shape { input: Input::Codebook, got: 511, want: 256 });
    assert_eq!(refused(&[]), CodecError::Shape { input: Input::Codebook, got: 0, want: 256 });
    for bad in [f32::NAN, f32::INFINITY, 2.0, 0.0] {
        let mut words = good.clone();
        words[256 + 3 * 32..256 + 4 * 32].iter_mut().for_each(|x| *x *= bad);
        let e = refused(&words);
        assert_eq!(e, CodecError::NotUnit { group: 1, word: 3 });
        assert_eq!(e.to_string(), "codebook: direction 3 of group 1 is not of length 1");
    }
    // Off by more than rounding, and by rounding.
    for (by, fine) in [(1.0 + 1e-5, false), (1.0 + 1e-7, true)] {
        let words: Vec<f32> = good.iter().map(|x| x * by as f32).collect();
        assert_eq!(Spherical::new(&Scheme::new(Tier::B3, &words)).is_ok(), fine);
    }
    assert!(Directions::new(&[1.0; 257], 1).is_err() && Directions::new(&[1.0; 3], 2).is_err());

    let codec = Spherical::new(&Scheme::new(Tier::B3, &good)).unwrap();
    assert!(encode(&codec, &[1.0; 63]).is_err() && encode(&codec, &[]).is_err());
    let mut keys = vec![1.0; 128];
    keys[64 + 7] = f64::NAN;
    assert_eq!(encode(&codec, &keys), Err(CodecError::NonFinite { input: Input::Keys, row: 1, channel: 7 }));
    let mut loud = vec![0.0; 64];
    loud[32..].iter_mut().zip(codec.books()[1].word(2)).for_each(|(x, c)| *x = 1e9 * c);
    assert_eq!(
        encode(&codec, &loud),
        Err(CodecError::ScaleOverflow { input: Input::Keys, row: 0, channel: 32, meta: Dtype::F16 })
    );

    let q = vec![1.0; 64];
    assert!(table(&codec, &q[1..]).is_err());
    assert!(matches!(table(&codec, &[f64::NAN; 64]), Err(CodecError::NonFinite { input: Input::Query, .. })));
    let errors = GroupErrors { largest: vec![0.0], spectral: vec![0.0; 2] };
    assert!(delta(&codec, &q, &errors, 1.0).is_err() && lambda(&codec, &q[1..], &errors, 1.0).is_err());
    assert!(annotate(&codec, &q, &q[1..]).is_err() && annotate(&codec, &q, &[f64::NAN; 64]).is_err());

    let block = encode(&codec, &q).unwrap();
    let mut other = block.clone();
    other.indices[1] = 8;
    assert_eq!(decode(&codec, &other), Err(CodecError::Shape { input: Input::Codes, got: 8, want: 8 }));
    assert!(to_bytes(&codec, &other).is_err() && score(&codec, &other, &table(&codec, &q).unwrap(), 1.0).is_err());
    let foreign = table(&super::tests::codec(Tier::B3, 1, 5), &q[..32]).unwrap();
    assert!(score(&codec, &block, &foreign, 1.0).is_err());
    let foreign = table(&super::tests::codec(Tier::B2, 4, 5), &q).unwrap();
    assert!(score(&codec, &block, &foreign, 1.0).is_err());
    for broken in [
        Block { radii: vec![0], ..block.clone() },
        Block { scale: vec![1.0], ..block.clone() },
        Block { scale: vec![1.0, f64::NAN], ..block.clone() },
        Block { indices: vec![], radii: vec![], ..block.clone() },
    ] {
        assert!(decode(&codec, &broken).is_err(), "{broken:?}");
    }
    let bytes = to_bytes(&codec, &block).unwrap();
    assert!(from_bytes(&codec, &bytes[1..], &block.scale).is_err() && from_bytes(&codec, &bytes, &[1.0]).is_err());
    assert!(from_bytes(&codec, &bytes, &[1.0, f64::INFINITY]).is_err());
}
