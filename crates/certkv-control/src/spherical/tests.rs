use super::*;
use crate::calibration::tests::sealed;
use certkv_core::hash::splitmix64;

const HEADS: KeyHeads = KeyHeads { layers: 2, kv_heads: 2, head_dim: 32 };
const TRAINING: Training = Training { objective: Objective::Energy, seed: 4, rounds: 6 };

fn number(i: usize) -> f32 {
    (splitmix64(i as u64) % 2001) as f32 / 1000.0 - 1.0
}

fn keys(tokens: usize, seed: usize) -> Vec<f32> {
    (0..tokens * 64).map(|i| number(i ^ (seed << 20)) * if i % 64 == 3 { 20.0 } else { 1.0 }).collect()
}

fn gathered(tokens: usize) -> Gather {
    let mut gather = Gather::new(HEADS).unwrap();
    for layer in 0..2 {
        for (part, rows) in [tokens / 2, tokens - tokens / 2].into_iter().enumerate() {
            gather.add(layer, &keys(rows, 2 * layer + part)).unwrap();
        }
    }
    gather
}

fn source() -> Source {
    Source { model: [7; 32], text: [9; 32], tokens: 200 }
}

fn codebooks(tier: Tier) -> Codebooks {
    let gather = gathered(200);
    assert_eq!(gather.tokens(), 200);
    let books = (0..4).map(|at| gather.train_head(at / 2, at % 2, tier, &TRAINING).unwrap()).collect();
    Codebooks::new(HEADS, source(), tier, TRAINING, books).unwrap()
}

#[test]
fn heads_are_trained_on_their_own_keys_and_work_in_the_codec() {
    use certkv_codec::spherical::{Scheme, Spherical, decode, encode};
    let of_head = |head: usize| -> Vec<f64> {
        let rows = [keys(100, 2), keys(100, 3)].concat();
        rows.chunks_exact(64)
            .flat_map(|row| row[head * 32..(head + 1) * 32].iter().map(|x| f64::from(*x)).collect::<Vec<_>>())
            .collect()
    };
    for tier in Tier::ALL {
        let found = codebooks(tier);
        let left = |books: &HeadBooks, keys: &[f64]| {
            let codec = Spherical::new(&Scheme::new(tier, &books.words)).unwrap();
            let decoded = decode(&codec, &encode(&codec, keys).unwrap()).unwrap();
            keys.iter().zip(decoded).map(|(k, d)| (k - d).powi(2)).sum::<f64>()
        };
        let keys = of_head(0);
        let own = left(found.head(1, 0).unwrap(), &keys);
        for (layer, head) in [(0, 0), (0, 1), (1, 1)] {
            assert!(own < 0.95 * left(found.head(layer, head).unwrap(), &keys), "{tier} {layer} {head}");
        }
        // What is left of the energy is what training said, and what radii of eight bits cost.
        let books = found.head(1, 0).unwrap();
        let energy = |group: usize| -> f64 {
            let part =
                |key: &[f64]| key[group * tier.group()..(group + 1) * tier.group()].iter().map(|x| x * x).sum::<f64>();
            keys.chunks_exact(32).map(part).sum()
        };
        let said: f64 = books.loss.iter().enumerate().map(|(group, loss)| loss * energy(group)).sum();
        assert!((own / said - 1.0).abs() < 0.01, "{tier} {own} {said}");
        assert!(found.head(2, 0).is_none() && found.head(0, 2).is_none() && found.head(usize::MAX, 1).is_none());
    }
}

#[test]
fn bad_keys_and_few_keys_are_refused() {
    let mut gather = gathered(63);
    let e = gather.train_head(1, 1, Tier::B1, &TRAINING).unwrap_err();
    assert_eq!(e, CalibrationError::Directions { layer: 1, head: 1, group: 0, have: 63, need: 64 });
    assert_eq!(
        e.to_string(),
        "calibration: layer 1, key head 1, group 0: 63 keys that are not zero; 64 directions need as many"
    );
    assert!(matches!(gather.train_head(2, 0, Tier::B1, &TRAINING), Err(CalibrationError::Rows { what: "head", .. })));
    assert!(matches!(gather.train_head(0, 2, Tier::B1, &TRAINING), Err(CalibrationError::Rows { what: "head", .. })));
    assert!(matches!(gather.add(0, &[0.0; 63]), Err(CalibrationError::Rows { what: "keys", .. })));
    assert!(matches!(gather.add(2, &[0.0; 64]), Err(CalibrationError::Rows { what: "layer", .. })));
    let mut bad = keys(3, 1);
    bad[2 * 64 + 40] = f32::NAN;
    let e = gather.add(0, &bad).unwrap_err();
    assert_eq!(e, CalibrationError::Number { layer: 0, head: 1, what: "keys", index: 2 });
    assert_eq!(gather.tokens(), 63);
    // Groups that are zero in some tokens have fewer directions than tokens.
    let mut silent = keys(64, 3);
    silent[5 * 64 + 16..5 * 64 + 32].fill(0.0);
    let mut gather = Gather::new(HEADS).unwrap();
    (0..2).for_each(|layer| gather.add(layer, &silent).unwrap());
    let e = gather.train_head(0, 0, Tier::B1, &TRAINING).unwrap_err();
    assert_eq!(e, CalibrationError::Directions { layer: 0, head: 0, group: 1, have: 63, need: 64 });
    assert!(gather.train_head(0, 1, Tier::B1, &TRAINING).is_ok());
    for (what, heads) in [
        ("layers", KeyHeads { layers: 0, ..HEADS }),
        ("kv_heads", KeyHeads { kv_heads: 0, ..HEADS }),
        ("head_dim", KeyHeads { head_dim: 0, ..HEADS }),
    ] {
        let e = Gather::new(heads).unwrap_err();
        assert!(matches!(e, CalibrationError::Field { what: found, .. } if found == what), "{e}");
    }
    let mut broken = Gather::new(KeyHeads { head_dim: 48, ..HEADS }).unwrap();
    (0..2).for_each(|layer| broken.add(layer, &[1.0; 96]).unwrap());
    let e = broken.train_head(0, 0, Tier::B3, &TRAINING).unwrap_err();
    assert_eq!(e, CalibrationError::Field { what: "head_dim", found: 48 });
}

#[test]
fn what_is_put_together_must_fit() {
    let found = codebooks(Tier::B3);
    let with = |books: Vec<HeadBooks>| Codebooks::new(HEADS, source(), Tier::B3, TRAINING, books);
    assert_eq!(with(found.books.clone()).unwrap(), found);
    assert!(matches!(with(found.books[1..].to_vec()), Err(CalibrationError::Rows { what: "heads trained", .. })));
    let mut books = found.books.clone();
    books[2].words[3 * 32 + 1] = f32::NAN;
    let e = with(books.clone()).unwrap_err();
    assert_eq!(e, CalibrationError::Number { layer: 1, head: 0, what: "directions", index: 3 });
    books[2].words.pop();
    assert!(matches!(with(books.clone()), Err(CalibrationError::Rows { what: "directions", .. })));
    books[2] = HeadBooks { loss: vec![-0.1], ..found.books[2].clone() };
    assert!(matches!(with(books), Err(CalibrationError::Number { what: "losses", index: 0, .. })));
    found.check_for(&HEADS, &[7; 32]).unwrap();
    assert_eq!(found.check_for(&HEADS, &[8; 32]), Err(CalibrationError::OtherModel));
    let e = found.check_for(&KeyHeads { layers: 3, ..HEADS }, &[7; 32]).unwrap_err();
    assert_eq!(e.to_string(), "calibration: made for layers 2, not 3");
}

#[test]
fn a_file_says_what_was_written() {
    for tier in Tier::ALL {
        let written = codebooks(tier);
        let read = Codebooks::from_bytes(&written.to_bytes()).unwrap();
        assert_eq!((read.tier(), read.training(), read.source()), (tier, &TRAINING, &source()));
        assert_eq!(read, written);
    }
    let cosine = Training { objective: Objective::Cosine, ..TRAINING };
    let other = Codebooks { training: cosine, ..codebooks(Tier::B3) };
    assert_eq!(Codebooks::from_bytes(&other.to_bytes()).unwrap(), other);
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let bytes = codebooks(Tier::B3).to_bytes();
    for at in 0..bytes.len() {
        for bit in [1, 0x10, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= bit;
            let e = Codebooks::from_bytes(&changed).expect_err("a changed byte");
            match at {
                0..8 => assert_eq!(e, CalibrationError::Magic),
                8..12 => assert!(matches!(e, CalibrationError::Version { known: 1, .. })),
                116.. => assert_eq!(e, CalibrationError::Checksum, "{at}"),
                _ => {}
            }
            // With a checksum that fits, it is an error or codebooks that can be written again.
            if (at < 200 || at % 37 == 0)
                && let Ok(read) = Codebooks::from_bytes(&sealed(changed.clone()))
            {
                assert_eq!(read.to_bytes(), sealed(changed));
            }
        }
    }
    for length in 0..bytes.len() {
        assert!(matches!(Codebooks::from_bytes(&bytes[..length]), Err(CalibrationError::Truncated { .. })), "{length}");
    }
    let longer = [&bytes[..], &[0; 3]].concat();
    assert_eq!(Codebooks::from_bytes(&longer), Err(CalibrationError::Trailing { bytes: 3 }));
    assert_eq!(Codebooks::from_bytes(b"{}"), Err(CalibrationError::Truncated { have: 2, need: 124 }));
}

#[test]
fn a_header_that_lies_is_refused_before_memory_is_taken() {
    let bytes = codebooks(Tier::B3).to_bytes();
    let with = |at: usize, value: &[u8]| {
        let mut changed = bytes.clone();
        changed[at..at + value.len()].copy_from_slice(value);
        Codebooks::from_bytes(&sealed(changed)).unwrap_err()
    };
    assert!(matches!(with(12, &4096u32.to_le_bytes()), CalibrationError::Truncated { .. }));
    assert!(matches!(with(12, &u32::MAX.to_le_bytes()), CalibrationError::Field { what: "layers", .. }));
    assert!(matches!(with(20, &33u32.to_le_bytes()), CalibrationError::Field { what: "head_dim", .. }));
    assert!(matches!(with(28, &[3]), CalibrationError::Field { what: "tier", found: 3 }));
    assert!(matches!(with(29, &[2]), CalibrationError::Field { what: "objective", found: 2 }));
    assert!(matches!(with(35, &[1]), CalibrationError::Field { what: "reserved", found: 1 }));
    // The loss of the first group, then its directions.
    let number = |e, name| matches!(e, CalibrationError::Number { layer: 0, head: 0, what, index: 0 } if what == name);
    assert!(number(with(116, &f64::NAN.to_le_bytes()), "losses") && number(with(116, &2.5f64.to_le_bytes()), "losses"));
    assert!(number(with(124, &f32::NAN.to_le_bytes()), "directions"));
    assert!(number(with(124, &1.5f32.to_le_bytes()), "directions"));
}
