//! Directions of spherical keys, drawn: unit vectors, some of them alike, so that nearest ones tie.
use certkv_codec::spherical::{Scheme, Spherical};
use certkv_core::RecordLayout;
use certkv_testkit::generate::Rng;

/// Those of a head; none for other formats.
pub fn of(layout: &RecordLayout, seed: u64) -> Option<Spherical> {
    let (tier, mut r) = (layout.format.key.tier()?, Rng::new(seed ^ 0xd12e));
    let (width, groups) = (tier.group(), layout.dim / tier.group());
    let mut words: Vec<f32> = Vec::with_capacity(groups * tier.book_len());
    for word in 0..groups * tier.words() {
        // One of eight again is one that was there before, and one of eight has few channels.
        let first = words.len() - word % tier.words() * width;
        let drawn: Vec<f64> = match r.below(8) {
            0 if words.len() > first => {
                let at = first + r.below((words.len() - first) / width) * width;
                words[at..at + width].iter().map(|x| f64::from(*x)).collect()
            }
            1 => (0..width).map(|c| if c == word % width { 1.0 } else { 0.0 }).collect(),
            _ => (0..width).map(|_| r.normal()).collect(),
        };
        let length = drawn.iter().map(|x| x * x).sum::<f64>().sqrt();
        words.extend(drawn.iter().map(|x| (x / length) as f32));
    }
    Some(Spherical::new(&Scheme::new(tier, &words)).unwrap())
}
