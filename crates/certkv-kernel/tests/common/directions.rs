//! Spherical keys written and read by the reference codec, apart from what the library does.
use super::{Rng, get, put};
use certkv_codec::spherical::{self, Block, Scheme, Spherical, Tier};
use certkv_core::hash::splitmix64;
use certkv_core::layout::{read_code, write_code};
use certkv_core::{Dtype, RecordLayout};

/// Directions of a head: those of `keys`, as training begins with, or none in particular.
pub fn books(l: &RecordLayout, seed: u64, mut key: impl FnMut() -> Vec<f64>) -> Option<Spherical> {
    let (tier, mut rng) = (l.format.key.tier()?, Rng(splitmix64(seed ^ 43)));
    let (width, groups) = (tier.group(), l.dim / tier.group());
    let mut words = vec![0.0f32; groups * tier.book_len()];
    for word in 0..tier.words() {
        let mut key = key();
        for (g, part) in key.chunks_exact_mut(width).enumerate() {
            if part.iter().all(|x| x.abs() < 1e-6) || rng.below(4) == 0 {
                part.iter_mut().for_each(|x| *x = rng.normal());
            }
            let length = super::norm(part);
            let to = &mut words[g * tier.book_len() + word * width..][..width];
            to.iter_mut().zip(part).for_each(|(to, x)| *to = (*x / length) as f32);
        }
    }
    Some(Spherical::new(&Scheme::new(tier, &words)).unwrap())
}

fn place(l: &RecordLayout, tier: Tier, t: usize, g: usize) -> (usize, usize) {
    (g * l.tokens() + t, l.tokens() * (l.dim / tier.group()))
}

/// Writes keys as radii, indices and scales.
pub fn write(books: &Spherical, l: &RecordLayout, keys: &[Vec<f64>], record: &mut [u8]) {
    let (tier, coded) = (books.tier(), spherical::encode(books, &keys.concat()).unwrap());
    let groups = l.dim / tier.group();
    for (i, (index, radius)) in coded.indices.iter().zip(&coded.radii).enumerate() {
        let (at, count) = place(l, tier, i / groups, i % groups);
        let section = &mut record[l.key_codes.clone()];
        section[at] = *radius;
        write_code(&mut section[count..], tier.bits().into(), count, at, *index);
    }
    for (g, scale) in coded.scale.iter().enumerate() {
        put(&mut record[l.key_scales.clone()], Dtype::F16, g, *scale);
    }
}

/// Decoded keys.
pub fn read(books: &Spherical, l: &RecordLayout, record: &[u8]) -> Vec<Vec<f64>> {
    let (tier, groups) = (books.tier(), l.dim / books.tier().group());
    let section = &record[l.key_codes.clone()];
    let code = |i: usize| {
        let (at, count) = place(l, tier, i / groups, i % groups);
        (read_code(&section[count..], tier.bits().into(), count, at), section[at])
    };
    let (indices, radii) = (0..l.tokens() * groups).map(code).unzip();
    let scale = (0..groups).map(|g| get(&record[l.key_scales.clone()], Dtype::F16, g)).collect();
    let decoded = spherical::decode(books, &Block { indices, radii, scale }).unwrap();
    decoded.chunks_exact(l.dim).map(<[f64]>::to_vec).collect()
}
