//! Spherical keys, math.md (2.22): a query meets every direction once per call, and a key is then scored by a look-up and a product for each
//! group. No key is decoded, and there are no digits.
//!
//! Entries of the table are rounded once, and `scale u` not at all (11 bits times 8), so a logit takes at most as many further roundings
//! as there are groups, and one: within `slack::logit_chain`.
use crate::arch::generic::keys::meta_at;
use crate::attend::{Kernel, Workspace};
use crate::line::Line;
use crate::magnitude::square;
use crate::masses::Entry;
use crate::query::{GROUPS, HEADS, Shape, X_STRIDE};
use certkv_codec::spherical::Spherical;
use certkv_core::{Dtype, ErrorSummary, layout::planes};

/// Most tokens of a block, and most directions of a codebook.
const TOKENS: usize = 64;
const WORDS: usize = 64;
/// A query longer than this, in base-2 logits, has products that single precision may not hold.
const LONGEST: f64 = 1e37;

/// Codes of one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectionCodes<'a> {
    /// Radii, then the indices as bit planes, both `[group][token]`.
    pub(crate) section: &'a [u8],
    /// f16, (groups,).
    pub(crate) scales: &'a [u8],
    /// Bits of an index.
    pub(crate) bits: usize,
    pub(crate) groups: usize,
}

impl DirectionCodes<'_> {
    /// True if codes and scales are there for the shape: what wide code asserts.
    pub(crate) fn fits(&self, shape: Shape) -> bool {
        let count = self.groups * shape.tokens;
        self.bits <= 6
            && self.groups <= GROUPS
            && shape.tokens <= TOKENS
            && self.section.len() >= count * (8 + self.bits) / 8
            && self.scales.len() >= 2 * self.groups
    }
}

/// Buffers of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Directions {
    /// Products of the queries and all directions, in base-2 logits for a radius of 1; the first aligned entry is `first`. Where heads are
    /// lanes `[group][word][lane]`, otherwise `[head][group][word]`.
    table: Vec<f32>,
    first: usize,
    /// Of the present block, `[group][token]`: indices and radii.
    pub(crate) indices: Vec<u8>,
    pub(crate) radii: Vec<f32>,
}

impl Directions {
    pub(crate) fn new() -> Self {
        let table = vec![0.0f32; HEADS * GROUPS * WORDS + 32];
        let first = table.as_ptr().align_offset(64).min(16);
        Self { table, first, indices: vec![0; GROUPS * TOKENS], radii: vec![0.0; GROUPS * TOKENS] }
    }

    pub(crate) fn table(&self) -> &[f32] {
        &self.table[self.first..]
    }

    /// Indices and radii of a block.
    #[inline(always)]
    pub(crate) fn unpack(&mut self, k: &DirectionCodes<'_>, shape: Shape) {
        let count = k.groups * shape.tokens;
        let (radii, indices) = k.section.split_at(count);
        for (g, (to, from)) in
            self.radii[..count].chunks_exact_mut(shape.tokens).zip(radii.chunks_exact(shape.tokens)).enumerate()
        {
            let scale = meta_at(k.scales, Dtype::F16, g);
            to.iter_mut().zip(from).for_each(|(r, u)| *r = scale * f32::from(*u));
        }
        let out = &mut self.indices[..count];
        out.fill(0);
        for p in planes(k.bits, count) {
            let (bytes, mask) = (&indices[p.offset..p.offset + p.bytes], (1u8 << p.width) - 1);
            for (j, out) in out.chunks_exact_mut(p.bytes).enumerate() {
                let down = p.width * j;
                out.iter_mut().zip(bytes).for_each(|(code, byte)| *code |= (byte >> down & mask) << p.shift);
            }
        }
    }
}

/// Lanes for so many heads.
#[inline(always)]
const fn lanes(heads: usize) -> usize {
    match heads {
        0..=4 => 4,
        5..=8 => 8,
        _ => 16,
    }
}

/// Fills the table for queries `[head][dim / 16]`; `LANES`: heads are lanes. Compiled again with wide instructions by the instruction-set
/// folders, as the next.
#[inline(always)]
pub(crate) fn fill_body<const LANES: bool>(
    books: &Spherical,
    q: &[Line],
    unit: f32,
    shape: Shape,
    work: &mut Directions,
) {
    let (width, words, lanes) = (books.tier().group(), books.tier().words(), lanes(shape.heads));
    let table = &mut work.table[work.first..];
    for (h, q) in q.chunks_exact(shape.dim_lines()).take(shape.heads).enumerate() {
        let parts = q.chunks_exact(width / 16).zip(books.books()).enumerate();
        for (g, (part, book)) in parts {
            let mut x = [0.0f64; 32];
            x.iter_mut().zip(part.iter().flat_map(|line| &line.0)).for_each(|(x, q)| *x = f64::from(*q));
            let mut put = |word: usize, product: f64| {
                let row = g * words + word;
                let at = if LANES { row * lanes + h } else { h * books.books().len() * words + row };
                table[at] = (product * f64::from(unit)) as f32;
            };
            for (panel, products) in book.panel_products(&x[..width]).enumerate() {
                products.iter().enumerate().for_each(|(i, product)| put(8 * panel + i, *product));
            }
        }
    }
}

/// Base-2 logits of one block, heads as lanes.
#[inline(always)]
pub(crate) fn score_body<const FUSED: bool>(
    k: &DirectionCodes<'_>,
    work: &mut Directions,
    shape: Shape,
    x: &mut [Line],
) {
    work.unpack(k, shape);
    match lanes(shape.heads) {
        4 => score_lanes::<FUSED, 4>(k, work, shape, x),
        8 => score_lanes::<FUSED, 8>(k, work, shape, x),
        _ => score_lanes::<FUSED, 16>(k, work, shape, x),
    }
}

#[inline(always)]
fn score_lanes<const FUSED: bool, const LANES: usize>(
    k: &DirectionCodes<'_>,
    work: &Directions,
    shape: Shape,
    x: &mut [Line],
) {
    let rows = work.table().as_chunks::<LANES>().0;
    for t in 0..shape.tokens {
        let mut sums = [0.0f32; LANES];
        for g in 0..k.groups {
            let at = g * shape.tokens + t;
            let (r, row) = (work.radii[at], &rows[(g << k.bits) + usize::from(work.indices[at])]);
            for (sum, product) in sums.iter_mut().zip(row) {
                *sum = if FUSED { r.mul_add(*product, *sum) } else { r * product + *sum };
            }
        }
        for h in 0..shape.heads {
            x[h * X_STRIDE + t / 16].0[t % 16] = sums[h];
        }
    }
}

impl Kernel {
    /// The table of the present queries. A query that is too long for it meets codes as 0 and is bounded by infinity.
    pub(crate) fn load_directions(&self, books: &Spherical, work: &mut Workspace) {
        let lines = self.shape.dim_lines();
        let mut short = None;
        for h in 0..self.shape.heads {
            let mut reach = work.reach[h];
            let own = &work.q[h * lines..(h + 1) * lines];
            let squares: f64 = own.iter().map(|line| square(&line.0)).sum();
            // Written so that NaN is too long.
            if !(squares.sqrt() * f64::from(self.unit()).abs().max(1.0) < LONGEST) {
                short.get_or_insert_with(|| work.q.clone())[h * lines..(h + 1) * lines].fill(Line::ZERO);
                reach = f32::INFINITY;
            }
            (work.digits.l1[h], work.digits.square[h], work.digits.residual[h]) = (reach, reach, 0.0);
        }
        let q = short.as_deref().unwrap_or(&work.q);
        (self.ops.fill_directions)(books, q, self.unit(), self.shape, &mut work.directions);
        work.folded.ready = true;
    }

    /// Logits of a block of spherical keys into `work.x`.
    pub(crate) fn direction_keys(
        &self,
        (section, scales): (&[u8], &[u8]),
        bits: usize,
        summary: &ErrorSummary,
        work: &mut Workspace,
        entry: &mut Entry,
    ) {
        // What a product loses by underflow a float of the least normal size covers (`set_keys`).
        entry.slack.set_keys(f64::from(summary.eps), 0.0, f64::from(summary.kappa));
        let groups = self.shape.dim / self.layout.format.key.group(self.shape.dim);
        let codes = DirectionCodes { section, scales, bits, groups };
        let ahead = &mut work.ahead.record;
        (self.ops.score_directions)(&codes, &mut work.directions, self.shape, &mut work.x, ahead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::line::{fill, lines};
    use crate::query::Cursor;
    use crate::slack::gamma;
    use certkv_codec::spherical::{self, Block, Scheme, Tier};
    use certkv_core::hash::hash64;
    use certkv_core::layout::write_code;

    fn number(seed: u64, i: usize) -> f64 {
        (hash64(&[seed, i as u64]) % 2001) as f64 / 1000.0 - 1.0
    }

    fn books(tier: Tier, dim: usize, seed: u64) -> Spherical {
        let numbers: Vec<f64> = (0..dim / tier.group() * tier.book_len()).map(|i| number(seed, i)).collect();
        let unit = |word: &[f64]| {
            let length = word.iter().map(|x| x * x).sum::<f64>().sqrt();
            word.iter().map(|x| (x / length) as f32).collect::<Vec<f32>>()
        };
        Spherical::new(&Scheme::new(tier, &numbers.chunks_exact(tier.group()).flat_map(unit).collect::<Vec<f32>>()))
            .unwrap()
    }

    /// A block of any codes, and its bytes.
    fn block(books: &Spherical, tokens: usize, seed: u64) -> (Block, Vec<u8>, Vec<u8>) {
        let (groups, tier) = (books.books().len(), books.tier());
        let count = tokens * groups;
        let mut section = vec![0; count * (8 + usize::from(tier.bits())) / 8];
        let (mut indices, mut radii) = (vec![0; count], vec![0; count]);
        for i in 0..count {
            let (t, g, bits) = (i / groups, i % groups, hash64(&[seed, i as u64]));
            (indices[i], radii[i]) = (bits as u8 % tier.words() as u8, (bits >> 8) as u8);
            section[g * tokens + t] = radii[i];
            write_code(&mut section[count..], tier.bits().into(), count, g * tokens + t, indices[i]);
        }
        let scale: Vec<f64> = (0..groups).map(|g| f64::from(Dtype::F16.decode16(0x1c00 + 97 * g as u16))).collect();
        let scales = scale.iter().flat_map(|s| Dtype::F16.encode16(*s as f32).to_le_bytes()).collect();
        (Block { indices, radii, scale }, section, scales)
    }

    /// Every table of functions against the codec's own scores in double precision: off by the roundings that `slack` counts, for every
    /// tier, head, block and number of heads. A code that is not the one that was scored is seen.
    #[test]
    fn logits_are_those_of_the_codec() {
        let (mut executed, mut seen, mut planted) = (0, 0, 0);
        for (case, dim) in [64, 96, 128, 256].into_iter().cycle().take(96).enumerate() {
            let (seed, tier) = (case as u64, Tier::ALL[case / 4 % 3]);
            let (tokens, heads) = ([16, 32, 64][case / 12 % 3], [1, 4, 5, 8, 9, 16, 2, 3][case / 4 % 8]);
            let (books, shape) = (books(tier, dim, seed), Shape { heads, dim, tokens });
            let (coded, section, scales) = block(&books, tokens, seed ^ 5);
            let q: Vec<f32> = (0..heads * dim).map(|i| (3.0 * number(seed ^ 9, i)) as f32).collect();
            let mut q_lines = lines(HEADS * 16);
            fill(&mut q_lines, &q);
            let (unit, groups) = (0.125f32, books.books().len());
            let most = gamma(groups + 2);
            for arch in Arch::ALL.into_iter().filter_map(Arch::ops) {
                let (mut work, mut x) = (Directions::new(), lines(HEADS * X_STRIDE));
                (arch.fill_directions)(&books, &q_lines, unit, shape, &mut work);
                let mut score = |section: &[u8], x: &mut [Line]| {
                    let codes = DirectionCodes { section, scales: &scales, bits: tier.bits().into(), groups };
                    assert!(codes.fits(shape));
                    (arch.score_directions)(&codes, &mut work, shape, x, &mut Cursor::default());
                };
                score(&section, &mut x);
                let off = |x: &[Line], h: usize| {
                    let q: Vec<f64> = q[h * dim..(h + 1) * dim].iter().map(|q| f64::from(*q)).collect();
                    let table = spherical::table(&books, &q).unwrap();
                    let want = spherical::score(&books, &coded, &table, f64::from(unit)).unwrap();
                    let long: f64 = q.iter().map(|q| q * q).sum::<f64>().sqrt();
                    let size = 255.0 * coded.scale.iter().map(|s| s * s).sum::<f64>().sqrt() * long * f64::from(unit);
                    let of_token = |(t, z): (usize, &f64)| (f64::from(x[h * X_STRIDE + t / 16].0[t % 16]) - z).abs();
                    want.iter().enumerate().map(of_token).fold(0.0, f64::max) / size
                };
                for h in 0..heads {
                    let off = off(&x, h);
                    assert!(off <= most, "{tier} {dim} {tokens} head {h} of {heads}: {off} {most}");
                    executed += 1;
                }
                // One bit of one index.
                let mut damaged = section.clone();
                let at = groups * tokens + case % (damaged.len() - groups * tokens);
                damaged[at] ^= 1;
                score(&damaged, &mut x);
                planted += 1;
                seen += usize::from((0..heads).any(|h| off(&x, h) > most));
            }
        }
        println!("GATE kernel-directions executed={executed} failed=0 controls={seen}/{planted} seed=0x0");
        // A radius of 0, or a product as large as another, hides an index.
        assert!(seen * 100 > planted * 95, "{seen} of {planted}");
    }

    #[test]
    fn what_is_too_short_does_not_fit() {
        let shape = Shape { heads: 2, dim: 64, tokens: 16 };
        let (section, scales) = (vec![0; 16 * 4 * 14 / 8], vec![0; 8]);
        let codes = DirectionCodes { section: &section, scales: &scales, bits: 6, groups: 4 };
        assert!(codes.fits(shape));
        assert!(!DirectionCodes { section: &section[1..], ..codes }.fits(shape));
        assert!(!DirectionCodes { scales: &scales[1..], ..codes }.fits(shape));
        assert!(
            !DirectionCodes { bits: 7, ..codes }.fits(shape) && !DirectionCodes { groups: 17, ..codes }.fits(shape)
        );
    }
}
