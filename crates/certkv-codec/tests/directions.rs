//! Spherical keys in records, math.md (2.20)-(2.21): what is stored is what the reference codec decodes, and what does not fit is refused.
mod common;

use certkv_codec::spherical::{self, Scheme, Spherical, Tier};
use certkv_codec::{CodecError, Encoder, Input, KeyMetric, decode};
use certkv_core::{Dtype, Geometry, RecordLayout};
use common::{block, difference, largest_norm, numbers, spectral, uniform};
use proptest::prelude::*;

fn layout(text: &str, dim: usize) -> RecordLayout {
    RecordLayout::new(&Geometry::new(1, 1, 1, dim).unwrap(), text.parse().unwrap()).unwrap()
}

fn codec(tier: Tier, dim: usize, seed: u64) -> Spherical {
    let numbers: Vec<f64> = (0..dim / tier.group() * tier.book_len()).map(|i| uniform(seed ^ 77, i)).collect();
    let unit = |word: &[f64]| {
        let length = word.iter().map(|x| x * x).sum::<f64>().sqrt();
        word.iter().map(|x| (x / length) as f32).collect::<Vec<f32>>()
    };
    let words: Vec<f32> = numbers.chunks_exact(tier.group()).flat_map(unit).collect();
    Spherical::new(&Scheme::new(tier, &words)).unwrap()
}

fn read(books: &Spherical, l: &RecordLayout, record: &[u8]) -> Vec<f64> {
    let mut keys = vec![f64::NAN; l.count()];
    for (token, key) in keys.chunks_exact_mut(l.dim).enumerate() {
        decode::decode_key_of(books, l, record, token, key).unwrap();
    }
    keys
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_stored_is_what_the_reference_codec_decodes(
        seed: u64,
        (dim, format) in (prop_oneof![Just(64usize), Just(96), Just(128), Just(256)], prop_oneof![
            Just("s1-tq3-b64"), Just("s1-v4g32-b16"), Just("s2-f16-b32"), Just("s3-f16-b16"), Just("s3-c4-b64"),
        ]),
    ) {
        let l = layout(format, dim);
        let books = codec(l.format.key.tier().unwrap(), dim, seed);
        let (k, v) = (block(seed, l.tokens(), dim, Dtype::F16), block(5, l.tokens(), dim, Dtype::F16));
        let mut record = vec![0xff; l.bytes];
        let metric = KeyMetric::directions(&books);
        Encoder::new(&l).encode_in(Some(&metric), &k, &v, &vec![0.0; dim], &mut record).unwrap();
        let keys = numbers(&k, Dtype::F16);
        let reference = spherical::decode(&books, &spherical::encode(&books, &keys).unwrap()).unwrap();
        let stored = read(&books, &l, &record);
        prop_assert_eq!(&stored, &reference);
        // Errors are at least those of the decoded keys, and close.
        let (s, errors) = (decode::read_summary(&l, &record), difference(&keys, &stored));
        let (eps, kappa) = (largest_norm(&errors, dim), spectral(&errors, dim));
        prop_assert!(f64::from(s.eps) >= eps && f64::from(s.eps) <= eps * (1.0 + 1e-6), "{s:?} {eps}");
        prop_assert!(f64::from(s.kappa) >= kappa * (1.0 - 1e-9) && f64::from(s.kappa) <= 1.6 * kappa);
        prop_assert!(f64::from(s.key_mag) * (1.0 + 1e-6) >= largest_norm(&stored, dim));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() {
    let (l, dim) = (layout("s2-f16-b32", 64), 64);
    let (k, v) = (block(1, 32, dim, Dtype::F16), block(2, 32, dim, Dtype::F16));
    let refused = |l: &RecordLayout, metric: Option<&KeyMetric<'_>>| {
        let mut record = vec![0xab; l.bytes];
        let (keys, values) = (&k[..l.count()], &v[..l.count()]);
        let refused = Encoder::new(l).encode_in(metric, keys, values, &[0.0; 64], &mut record).unwrap_err();
        assert!(record.iter().all(|b| *b == 0xab));
        refused
    };
    let [fine, other, wide] = [(Tier::B2, 64), (Tier::B1, 64), (Tier::B2, 128)].map(|(t, dim)| codec(t, dim, 3));
    assert_eq!(refused(&l, None), CodecError::Metric { needed: true });
    let refused_in = |l: &RecordLayout, books| refused(l, Some(&KeyMetric::directions(books)));
    assert_eq!(refused_in(&l, &other), CodecError::Shape { input: Input::Codebook, got: 1024, want: 256 });
    assert_eq!(refused_in(&l, &wide), CodecError::Shape { input: Input::Codebook, got: 128, want: 64 });
    let ones = [1.0; 64];
    let plain = KeyMetric::new(&ones, &ones).unwrap();
    assert_eq!(refused(&l, Some(&plain)), CodecError::Metric { needed: true });
    // Directions for codes that have none.
    for format in ["gtq3-f16-b32", "ctq4-f16-b32", "tq4-f16-b32"] {
        assert_eq!(refused_in(&layout(format, 64), &fine), CodecError::Metric { needed: false }, "{format}");
    }
    // A radius whose scale is past f16 leaves the block as it is.
    let loud: Vec<u16> = vec![Dtype::Bf16.encode16(1e30); l.count()];
    let bf16 = Geometry { store: Dtype::Bf16, ..Geometry::new(1, 1, 1, dim).unwrap() };
    let b = RecordLayout::new(&bf16, "s2-v4g32-b32".parse().unwrap()).unwrap();
    let mut record = vec![0xab; b.bytes];
    let metric = KeyMetric::directions(&fine);
    let coded = Encoder::new(&b).encode_in(Some(&metric), &loud, &vec![0; b.count()], &[0.0; 64], &mut record);
    assert!(matches!(coded, Err(CodecError::ScaleOverflow { input: Input::Keys, meta: Dtype::F16, .. })), "{coded:?}");
    assert!(record.iter().all(|b| *b == 0xab));

    // Readers that know no directions, and directions of another tier or head.
    let (mut record, mut key) = (vec![0; l.bytes], [0.0; 64]);
    Encoder::new(&l).encode_in(Some(&metric), &k, &v, &[0.0; 64], &mut record).unwrap();
    assert_eq!(decode::decode_key(&l, &record, 0, &mut key), Err(CodecError::Metric { needed: true }));
    assert_eq!(decode::score_plain(&l, &record, &key, 1.0), Err(CodecError::Metric { needed: true }));
    assert!(decode::decode_key_of(&other, &l, &record, 0, &mut key).is_err());
    assert!(decode::decode_key_of(&wide, &l, &record, 0, &mut key).is_err());
    assert!(decode::decode_key_of(&fine, &l, &record, 32, &mut key).is_err());
    assert!(decode::decode_key_of(&fine, &l, &record[1..], 0, &mut key).is_err());
    let mut token = [0.0; 64];
    decode::decode_key_of(&fine, &l, &record, 31, &mut token).unwrap();
    assert!(token.iter().any(|x| *x != 0.0));
}
