//! The envelope: what was sealed opens, anything else does not, nothing panics.
use super::client::{identity, key, page};
use crate::store::{Field, Identity, SEAL_BYTES, SealError, open, seal};
use proptest::prelude::*;

fn sealed(n: u64, bytes: usize) -> Vec<u8> {
    let payload = page(n, bytes);
    [&seal(&key(n), &identity(n as u32, 1), &payload)[..], &payload].concat()
}

fn any_identity() -> impl Strategy<Value = Identity> {
    (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(sequence, layer, block, generation, format, layout)| Identity {
            sequence,
            layer,
            block,
            generation,
            format,
            layout,
        },
    )
}

proptest! {
    #[test]
    fn what_was_sealed_opens(n in any::<u64>(), who in any_identity(), payload in prop::collection::vec(any::<u8>(), 0..3000)) {
        let record = [&seal(&key(n), &who, &payload)[..], &payload].concat();
        prop_assert_eq!(open(&key(n), &who, &record), Ok(&payload[..]));
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(open(&key(0), &identity(0, 0), &bytes).is_err());
    }

    /// Begins like a page, so that every check behind the magic is reached.
    #[test]
    fn a_page_with_any_stretch_replaced_is_refused(
        n in 0..4u64, at in 0..900usize, with in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        let mut record = sealed(n, 700);
        let whole = record.clone();
        let end = (at + with.len()).min(record.len());
        if at < end {
            record[at..end].copy_from_slice(&with[..end - at]);
        }
        prop_assert_eq!(open(&key(n), &identity(n as u32, 1), &record).is_ok(), record == whole);
    }

    #[test]
    fn any_other_length_is_refused(n in 0..4u64, bytes in 0..1000usize) {
        let mut record = sealed(n, 500);
        record.resize(bytes, 0);
        prop_assert_eq!(open(&key(n), &identity(n as u32, 1), &record).is_ok(), bytes == SEAL_BYTES + 500);
    }

    /// Two identities share an envelope only if they are one.
    #[test]
    fn refusals_name_the_field(n in any::<u64>(), a in any_identity(), which in 0..6usize, bit in 0..32u32) {
        let (payload, mut b) = (page(n, 100), a);
        let field = match which {
            0 => { b.sequence ^= 1 << bit; Field::Sequence }
            1 => { b.layer ^= 1 << bit; Field::Layer }
            2 => { b.block ^= 1 << bit; Field::Block }
            3 => { b.generation ^= 1 << bit; Field::Generation }
            4 => { b.format ^= 1 << bit; Field::Format }
            _ => { b.layout ^= 1 << bit; Field::Layout }
        };
        let record = [&seal(&key(n), &a, &payload)[..], &payload].concat();
        let refused = open(&key(n), &b, &record);
        let named = matches!(refused, Err(SealError::Identity { field: f, expected, found })
            if f == field && expected ^ found == 1 << bit);
        prop_assert!(named, "{:?}", refused);
        prop_assert_eq!(open(&key(n ^ 1), &a, &record), Err(SealError::Key { found: key(n) }));
    }
}

#[test]
fn every_single_bit_counts() {
    let mut record = sealed(5, 200);
    for bit in 0..record.len() * 8 {
        record[bit / 8] ^= 1 << (bit % 8);
        assert!(open(&key(5), &identity(5, 1), &record).is_err(), "bit {bit}");
        record[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(open(&key(5), &identity(5, 1), &record).is_ok());
}

/// The layout is fixed: other builds and other machines read it.
#[test]
fn the_bytes_of_an_envelope() {
    let who = Identity { sequence: 1, layer: 2, block: 3, generation: 4, format: 5, layout: 6 };
    let head = seal(&key(9), &who, &[1, 2, 3]);
    let mut wanted = b"CERTKVT3\x01\0\0\0\0\0\0\0".to_vec();
    wanted.extend(key(9).0);
    for word in [1u64, 2 | 3 << 32, 4, 5, 6, 3] {
        wanted.extend(word.to_le_bytes());
    }
    wanted.extend(blake3::hash(&[&wanted[..], &[1, 2, 3]].concat()).as_bytes());
    assert_eq!((head.len(), head.to_vec()), (SEAL_BYTES, wanted));
    let record = |at: usize, byte: u8| {
        let mut record = [&head[..], &[1, 2, 3]].concat();
        record[at] = byte;
        open(&key(9), &who, &record).map(<[u8]>::len)
    };
    assert_eq!(record(0, b'X'), Err(SealError::NotAPage));
    assert_eq!(record(8, 2), Err(SealError::Version { found: 2 }));
    assert_eq!(record(88, 4), Err(SealError::Length { sealed: SEAL_BYTES as u64 + 4, found: SEAL_BYTES as u64 + 3 }));
    assert!(matches!(record(64, 0), Err(SealError::Digest { .. })));
    assert_eq!(record(128, 1), Ok(3));
}
