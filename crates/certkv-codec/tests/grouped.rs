//! Block-GTQ keys in records, math.md (2.19c): what is stored is what the reference codec decodes, and what does not fit is refused.
mod common;

use certkv_codec::gtq::{self, BlockGtq, Levels, Scheme};
use certkv_codec::{CodecError, Encoder, Input, KeyGroups, KeyMetric, decode, rotation};
use certkv_core::{Dtype, Geometry, GroupCode, KeyFormat, Pairing, RecordLayout, hash::hash64, tiles::gtq_tile};
use common::{block, difference, largest_norm, numbers, spectral, uniform};
use proptest::prelude::*;

fn layout(text: &str, dim: usize) -> RecordLayout {
    RecordLayout::new(&Geometry::new(1, 1, 1, dim).unwrap(), text.parse().unwrap()).unwrap()
}

/// Widths of the pairs of a head in which every width comes in tiles, and their mean is the format's.
fn schedule(l: &RecordLayout, seed: u64) -> Vec<u8> {
    let KeyFormat::Gtq { code: GroupCode::Widths { halves } } = l.format.key else { panic!("another format") };
    let below = |i: u64, n: usize| hash64(&[seed, i]) as usize % n;
    let (tile, pairs) = (gtq_tile(l.tokens()) / 2, l.dim / 2);
    let mut bits: Vec<u8> = (0..pairs / tile).map(|i| (halves + (i % 2) as u8) / 2).collect();
    for i in 0..40u64 {
        let (from, to) = (below(2 * i, bits.len()), below(2 * i + 1, bits.len()));
        if from != to && bits[from] > 1 && bits[to] < 6 {
            (bits[from], bits[to]) = (bits[from] - 1, bits[to] + 1);
        }
    }
    let mut widths: Vec<u8> = (0..pairs).map(|pair| bits[pair / tile]).collect();
    (0..pairs).for_each(|i| widths.swap(i, below(100 + i as u64, pairs)));
    widths
}

fn read(groups: &KeyGroups, l: &RecordLayout, record: &[u8]) -> Vec<f64> {
    let mut keys = vec![f64::NAN; l.count()];
    for (token, key) in keys.chunks_exact_mut(l.dim).enumerate() {
        decode::decode_key_in(groups, l, record, token, key).unwrap();
    }
    keys
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_stored_is_what_the_reference_codec_decodes(
        seed: u64,
        (dim, format) in (prop_oneof![Just(64usize), Just(96), Just(128), Just(256)], prop_oneof![
            Just("gtq3-tq3-b64"), Just("gtq2-v4g32-b32"), Just("gtq4-f16-b16"), Just("gtq2.5-f16-b32"), Just("gtq5-tq2-b16"),
        ]),
        (turned, half) in any::<(prop::sample::Index, bool)>(),
        spread in 0.0f64..4.0,
    ) {
        let l = layout(format, dim);
        let (bits, rotary) = (schedule(&l, seed), 2 * turned.index(dim / 2 + 1));
        let pairing = if half { Pairing::Half } else { Pairing::Interleaved };
        let groups = KeyGroups::new(&bits, pairing, rotary).unwrap();
        let (k, v) = (block(seed, l.tokens(), dim, Dtype::F16), block(5, l.tokens(), dim, Dtype::F16));
        let centre: Vec<f32> = (0..dim).map(|c| 2.0 * uniform(seed ^ 9, c) as f32).collect();
        let balance: Vec<f32> = (0..dim).map(|c| (spread * uniform(seed ^ 11, c)).exp2() as f32).collect();
        let scale = groups.weighted(&balance);
        let metric = KeyMetric::new(&centre, &scale).unwrap().grouped(&groups).unwrap();
        let mut record = vec![0xff; l.bytes];
        let coded = Encoder::new(&l).encode_in(Some(&metric), &k, &v, &vec![0.0; dim], &mut record);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let (scale, centre) = (wide(&scale), wide(&centre));
        let codec = BlockGtq::new(&Scheme {
            pairing,
            rotary,
            balance: Some(&scale),
            centre: Some(&centre),
            levels: Levels::Bytes,
            ..Scheme::new(&bits, rotation::SEED)
        }).unwrap();
        let keys = numbers(&k, Dtype::F16);
        let reference = match gtq::encode(&codec, &keys) {
            Ok(parts) => gtq::decode(&codec, &parts).unwrap(),
            // Blocks so loud that a radius overflows stay as they are.
            Err(refused) => {
                let loud = matches!(refused, CodecError::ScaleOverflow { .. });
                prop_assert!(loud && coded == Err(refused), "{coded:?}");
                return Ok(());
            }
        };
        prop_assert_eq!(coded, Ok(()));
        let in_metric = read(&groups, &l, &record);
        let mut stored = in_metric.clone();
        stored.chunks_exact_mut(dim).for_each(|key| metric.unfold(key));
        prop_assert_eq!(&stored, &reference);
        // Errors are those in the metric, and magnitudes at least those of what is multiplied.
        let mut folded = keys.clone();
        folded.chunks_exact_mut(dim).for_each(|key| metric.fold(key));
        let (s, errors) = (decode::read_summary(&l, &record), difference(&folded, &in_metric));
        let (eps, kappa) = (largest_norm(&errors, dim), spectral(&errors, dim));
        // What the rotation is off by is in them.
        let slack = 1e-12 * largest_norm(&folded, dim);
        prop_assert!(f64::from(s.eps) >= eps - slack && f64::from(s.eps) <= eps * (1.0 + 1e-6) + 10.0 * slack, "{s:?} {eps}");
        prop_assert!(f64::from(s.kappa) >= kappa * (1.0 - 1e-9) - slack && f64::from(s.kappa) <= 1.6 * kappa + 100.0 * slack);
        prop_assert!(f64::from(s.key_mag) * (1.0 + 1e-6) >= largest_norm(&in_metric, dim));
    }
}

/// The weights of (2.19d) make one norm as close as a sum over groups, for queries that the schedule was made for.
#[test]
fn weights_make_one_norm_do() {
    let (dim, l) = (128, layout("gtq3-f16-b64", 128));
    let bits: Vec<u8> = (0..64).map(|pair| [1, 1, 2, 2, 3, 4, 5, 6][pair / 8]).collect();
    let groups = KeyGroups::new(&bits, Pairing::Half, dim).unwrap();
    // Balanced keys and queries, louder by what the widths are worth.
    let loud = |c: usize| 2f64.powf(0.5 * f64::from(bits[c % 64]));
    let keys: Vec<u16> = (0..l.count())
        .map(|i| Dtype::F16.encode16(((uniform(3, i) + uniform(4, i) + uniform(5, i)) * loud(i % dim)) as f32))
        .collect();
    let q: Vec<f64> = (0..dim).map(|c| uniform(6, c) * loud(c)).collect();
    let one = vec![1.0; dim];
    let bound = |scale: &[f32]| {
        let centre = vec![0.0; dim];
        let metric = KeyMetric::new(&centre, scale).unwrap().grouped(&groups).unwrap();
        let mut record = vec![0; l.bytes];
        Encoder::new(&l).encode_in(Some(&metric), &keys, &keys, &vec![0.0; dim], &mut record).unwrap();
        let mut query = q.clone();
        metric.fold_query(&mut query);
        largest_norm(&query, dim) * f64::from(decode::read_summary(&l, &record).eps)
    };
    let codec = BlockGtq::new(&Scheme { levels: Levels::Bytes, ..Scheme::new(&bits, rotation::SEED) }).unwrap();
    let wide = numbers(&keys, Dtype::F16);
    let decoded = gtq::decode(&codec, &gtq::encode(&codec, &wide).unwrap()).unwrap();
    let over_groups = gtq::delta(&codec, &q, &gtq::annotate(&codec, &wide, &decoded).unwrap(), 1.0).unwrap();
    let (plain, weighted) = (bound(&one), bound(&groups.weighted(&one)));
    println!("one norm {plain}, weighted {weighted}, over groups {over_groups}");
    assert!(weighted < 1.2 * over_groups && 1.5 * weighted < plain);
}

#[test]
fn groups_that_do_not_fit_are_refused_and_nothing_is_written() {
    let (l, dim) = (layout("gtq3-f16-b32", 64), 64);
    let (x, centre, scale) = (block(1, 32, dim, Dtype::F16), vec![0.0; dim], vec![1.0; dim]);
    let metric = KeyMetric::new(&centre, &scale).unwrap();
    let refused = |l: &RecordLayout, metric: Option<&KeyMetric<'_>>| {
        let mut record = vec![7; l.bytes];
        let refused = Encoder::new(l).encode_in(metric, &x, &x, &vec![0.0; dim], &mut record).unwrap_err();
        assert!(record.iter().all(|b| *b == 7));
        refused
    };
    let of = |bits: &[u8]| KeyGroups::new(bits, Pairing::Half, 2 * bits.len()).unwrap();
    assert_eq!(refused(&l, None), CodecError::Metric { needed: true });
    assert_eq!(refused(&l, Some(&metric)), CodecError::Metric { needed: true });
    // Of another head; of other bits in all; in no tiles; of a format without groups.
    assert_eq!(
        metric.grouped(&of(&[3; 64])).unwrap_err(),
        CodecError::Shape { input: Input::Schedule, got: 128, want: 64 }
    );
    let wide = of(&[4; 32]);
    assert_eq!(
        refused(&l, Some(&metric.grouped(&wide).unwrap())),
        CodecError::Shape { input: Input::Schedule, got: 1024, want: 768 }
    );
    let mut bits = [3; 32];
    (bits[0], bits[1]) = (2, 4);
    let ragged = of(&bits);
    assert_eq!(
        refused(&l, Some(&metric.grouped(&ragged).unwrap())),
        CodecError::Shape { input: Input::Schedule, got: 2, want: 16 }
    );
    let even = of(&[3; 32]);
    let whole = metric.grouped(&even).unwrap();
    assert_eq!(refused(&layout("ctq3-f16-b32", dim), Some(&whole)), CodecError::Metric { needed: false });
    // Codes mean nothing without their groups.
    let mut record = vec![0; l.bytes];
    Encoder::new(&l).encode_in(Some(&whole), &x, &x, &vec![0.0; dim], &mut record).unwrap();
    let mut key = vec![0.0; dim];
    assert_eq!(decode::decode_key(&l, &record, 0, &mut key), Err(CodecError::Metric { needed: true }));
    assert_eq!(decode::score_plain(&l, &record, &key, 1.0), Err(CodecError::Metric { needed: true }));
    assert!(decode::decode_key_in(&wide, &l, &record, 0, &mut key).is_err());
    assert!(decode::decode_key_in(&even, &l, &record, 32, &mut key).is_err());
}
