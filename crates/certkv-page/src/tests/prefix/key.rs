//! Keys: every field counts, and no two lists of fields look alike.
use super::{SECRET, chain, scope};
use crate::prefix::{Chain, Mark, MarkDigest, PrefixSecret, Prompt, Scope};
use std::collections::HashSet;

#[test]
fn one_field_changed_is_another_key() {
    let base = Scope { adapter: Some(b"ab"), salt: Some(b"cd"), ..scope(b"tenant") };
    let others = [
        Scope { domain: b"tenan", ..base },
        Scope { domain: b"", ..base },
        Scope { model: b"n", ..base },
        Scope { adapter: None, ..base },
        Scope { adapter: Some(b""), ..base },
        Scope { adapter: Some(b"abc"), salt: Some(b"d"), ..base },
        // The fields of the real confusion: an adapter's name where the salt stands.
        Scope { adapter: Some(b"cd"), salt: Some(b"ab"), ..base },
        Scope { adapter: None, salt: Some(b"ab"), ..base },
        Scope { salt: None, ..base },
        Scope { salt: Some(b""), ..base },
        Scope { layout: b"k", ..base },
        Scope { tolerance: 6, ..base },
        Scope { first_position: 1, ..base },
        Scope { first_position: 1 << 32, ..base },
    ];
    let key = |secret: &PrefixSecret, scope: &Scope<'_>, tokens: &[u32]| {
        let chain = Chain::new(secret, scope);
        chain.next(&chain.root(), tokens, &MarkDigest::NONE)
    };
    let same = key(&SECRET, &base, &[1, 2, 3]);
    assert_eq!(key(&SECRET, &base, &[1, 2, 3]), same, "equal fields meet");
    let mut seen = HashSet::from([same]);
    for (i, scope) in others.iter().enumerate() {
        assert!(seen.insert(key(&SECRET, scope, &[1, 2, 3])), "scope {i} is confused with another");
    }
    for tokens in [&[1, 2][..], &[1, 2, 4], &[1, 2, 3, 0], &[0x0002_0001, 3], &[3, 2, 1], &[]] {
        assert!(seen.insert(key(&SECRET, &base, tokens)), "{tokens:?}");
    }
    assert!(seen.insert(key(&PrefixSecret::new([8; 32]), &base, &[1, 2, 3])), "the secret counts");
    assert!(seen.insert(key(&PrefixSecret::random().unwrap(), &base, &[1, 2, 3])));
}

#[test]
fn a_block_is_named_by_everything_before_it() {
    let chain = chain(b"t");
    let first = chain.next(&chain.root(), &[1, 2], &MarkDigest::NONE);
    let other = chain.next(&chain.root(), &[2, 1], &MarkDigest::NONE);
    assert_ne!(chain.next(&first, &[3, 4], &MarkDigest::NONE), chain.next(&other, &[3, 4], &MarkDigest::NONE));
    assert_ne!(first, chain.root());
}

#[test]
fn marks_count_where_they_stand() {
    let chain = chain(b"t");
    let tokens = [9; 8];
    let digest = |marks: &[Mark<'_>], start| chain.marks(&Prompt { tokens: &tokens, marks }, start, 4);
    let cat = Mark { at: 5, what: b"cat" };
    assert_eq!(digest(&[cat], 0), MarkDigest::NONE, "it stands in the other block");
    let base = digest(&[cat], 4);
    let others: [&[Mark<'_>]; 6] = [
        &[],
        &[Mark { what: b"dog", ..cat }],
        &[Mark { at: 6, ..cat }],
        &[cat, cat],
        &[Mark { what: b"ca", ..cat }, Mark { what: b"t", ..cat }],
        &[Mark { what: b"", ..cat }],
    ];
    let all: HashSet<_> = others.iter().map(|marks| format!("{:?}", digest(marks, 4))).collect();
    assert_eq!(all.len(), others.len());
    assert!(!all.contains(&format!("{base:?}")));
    assert_eq!(digest(&[Mark { at: 1, what: b"x" }, cat], 4), base, "marks of other blocks do not count");
}

#[test]
fn a_secret_is_not_shown() {
    assert_eq!(format!("{:?}", PrefixSecret::new([42; 32])), "PrefixSecret");
    assert!(!format!("{:?}", chain(b"t")).contains("42"));
}
