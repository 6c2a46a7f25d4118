//! Rows that leave their blocks (math.md 6.9), in one pass and between two sweeps, against attention in f64.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN has to fail")]
mod common;
use certkv_core::ErrorSummary;
use certkv_core::hash::hash64;
use certkv_kernel::{
    Arch, Block, BlockSource, Certificate, Kernel, KernelError, Masses, Partial, Scores, Tail, Workspace,
};
use common::{Cache, Centred, KINDS, distance, norm};

const FORMATS: [&str; 10] = [
    "k8-v4g64-b64",
    "k8-v4g32-b32",
    "t4-v4g32-b16",
    "tq4-tq4-b64",
    "k4-v4g64-b64-r4.4",
    "k2-c2-b16",
    "k8-c4-b64",
    "p8-p8-b64",
    "e4m3-e4m3-b32",
    "k8-tq5-b32",
];

/// A cache whose rows by `left_out` stand in blocks behind the others.
struct Moved<'a> {
    blocks: Centred<'a>,
    left_out: Vec<u64>,
    list: Vec<(usize, usize)>,
    keys: Vec<u16>,
    values: Vec<u16>,
    records: Vec<Vec<u8>>,
    size: usize,
}

impl<'a> Moved<'a> {
    fn new(cache: &'a Cache, left_out: Vec<u64>) -> Self {
        let (blocks, size, dim) = (cache.centred(), cache.layout.tokens(), cache.layout.dim);
        let all = (0..blocks.blocks.len()).flat_map(|b| (0..size).map(move |t| (b, t)));
        let list: Vec<_> = all.filter(|(b, t)| left_out[*b] >> t & 1 == 1).collect();
        let (mut keys, mut values, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in list.chunks(size) {
            let mut summary = ErrorSummary::default();
            for i in 0..size {
                let (b, t) = chunk[i.min(chunk.len() - 1)];
                let stored = &cache.blocks[b];
                keys.extend_from_slice(&stored.keys[t * dim..(t + 1) * dim]);
                values.extend_from_slice(&stored.values[t * dim..(t + 1) * dim]);
                let of = ErrorSummary::from_bytes(&stored.record[cache.layout.summary.clone()]);
                summary.key_norm = summary.key_norm.max(of.key_norm);
                summary.value_norm = summary.value_norm.max(of.value_norm);
                summary.radius = summary.radius.max(of.radius);
            }
            let mut record = vec![0; cache.layout.bytes];
            record[cache.layout.summary.start..][..32].copy_from_slice(&summary.to_bytes()[..32]);
            records.push(record);
        }
        Self { blocks, left_out, list, keys, values, records, size }
    }

    fn len(&self) -> usize {
        self.blocks.blocks.len() + self.records.len()
    }
}

impl BlockSource for Moved<'_> {
    fn block(&self, index: usize) -> Block<'_> {
        let Some(behind) = index.checked_sub(self.blocks.blocks.len()) else {
            return Block { left_out: self.left_out[index], ..self.blocks.block(index) };
        };
        let words = self.keys.len() / self.records.len();
        let there = (self.list.len() - behind * self.size).min(self.size);
        Block {
            record: &self.records[behind],
            keys: Some(&self.keys[behind * words..][..words]),
            values: Some(&self.values[behind * words..][..words]),
            left_out: if there < 64 { u64::MAX << there } else { 0 },
            ..Block::default()
        }
    }

    fn centre(&self) -> &[f32] {
        self.blocks.centre()
    }

    fn key_metric(&self, format: certkv_core::KeyFormat) -> Option<certkv_codec::KeyMetric<'_>> {
        self.blocks.key_metric(format)
    }
}

type Answer = (Vec<Vec<f32>>, Vec<Certificate>);

fn answer(kernel: &Kernel, cache: &Cache, partial: &Partial, masses: &Masses) -> Answer {
    let mut out = vec![vec![f32::NAN; cache.layout.dim]; kernel.heads()];
    let finish = |(h, out): (usize, &mut Vec<f32>)| {
        partial.finish(h, out).unwrap();
        let radius = distance(&cache.centre, out) * (1.0 + 1e-6) + 1e-30;
        kernel.certify(masses, partial, h, radius as f32).unwrap()
    };
    let certificates = out.iter_mut().enumerate().map(finish).collect();
    (out, certificates)
}

fn one_pass(kernel: &Kernel, cache: &Cache, moved: &Moved<'_>) -> Answer {
    let (mut masses, mut out) = (Masses::new(kernel.heads(), moved.len() + 1), kernel.partial());
    let (range, work) = (0..moved.len(), &mut Workspace::new());
    kernel.attend(&cache.queries, moved, range, cache.tail(), work, &mut out, Some(masses.as_mut())).unwrap();
    answer(kernel, cache, &out, &masses)
}

/// Scores all blocks whole, lets the rows leave, and sums. With the largest canary of a row.
fn two_sweeps(kernel: &Kernel, cache: &Cache, moved: &Moved<'_>) -> (Answer, f32) {
    let (queries, tail, whole) = (&cache.queries, cache.tail(), &moved.blocks);
    let (blocks, work, scores) = (whole.blocks.len(), &mut Workspace::new(), &mut Scores::new());
    let (mut masses, mut out) = (Masses::new(kernel.heads(), blocks + 1), kernel.partial());
    kernel.score(queries, whole, 0..blocks, tail.as_ref(), work, scores, &mut masses.as_mut()).unwrap();
    masses.grow(moved.len() + 1);
    let behind = blocks..moved.len();
    // The tail that was scored has to come again.
    if let Some(tail) = &tail {
        let fewer = Tail { tokens: tail.tokens - 1, ..*tail };
        for other in [None, Some(&fewer)] {
            let masses = &mut masses.as_mut();
            let refused = kernel.score(queries, moved, behind.clone(), other, work, scores, masses);
            assert!(matches!(refused, Err(KernelError::Length { argument: "tail.tokens", .. })), "{refused:?}");
        }
    }
    kernel.score(queries, moved, behind.clone(), tail.as_ref(), work, scores, &mut masses.as_mut()).unwrap();
    let mut worst = f32::NEG_INFINITY;
    for (place, from) in moved.list.iter().enumerate() {
        let to = (blocks + place / moved.size, place % moved.size);
        let excess = kernel.row_excess(scores, &masses, *from, to);
        worst = if excess <= worst { worst } else { excess };
    }
    for (block, rows) in moved.left_out.iter().enumerate() {
        kernel.leave_rows_out(block, *rows, scores, &mut masses.as_mut()).unwrap();
    }
    // As if they had never been there.
    let (mut other, again) = (Masses::new(kernel.heads(), moved.len() + 1), &mut Scores::new());
    kernel.score(queries, moved, 0..blocks, None, work, again, &mut other.as_mut()).unwrap();
    for (h, b) in (0..kernel.heads()).flat_map(|h| (0..blocks).map(move |b| (h, b))) {
        let [left, never] = [&masses, &other].map(|masses| masses.get(h, b).unwrap());
        assert_eq!((left.w.to_bits(), left.p.to_bits()), (never.w.to_bits(), never.p.to_bits()));
    }
    kernel.total(scores, &masses, &mut out).unwrap();
    kernel.gather(moved, 0..blocks, None, work, scores, &mut masses, &mut out).unwrap();
    kernel.gather(moved, behind, tail.as_ref(), work, scores, &mut masses, &mut out).unwrap();
    (answer(kernel, cache, &out, &masses), worst)
}

fn cases(n: usize) -> impl Iterator<Item = (Cache, Vec<u64>, u64)> {
    (0..n).map(|i| {
        let seed = hash64(&[0x0076, i as u64]);
        let pick = |k: u64, n: usize| (hash64(&[seed, k]) % n as u64) as usize;
        let (dim, heads) = ([64, 128, 256][pick(1, 3)], [1, 2, 4, 5, 8][pick(2, 5)]);
        let mut cache = Cache::new(FORMATS[i % FORMATS.len()], dim, heads, 70 + pick(3, 500), pick(4, KINDS), seed);
        if pick(5, 2) == 0 {
            cache.promote(seed, 0.2);
            cache.skip(seed, 0.3);
            cache.refine(seed, 0.3);
        }
        // No row of some blocks, a few of others, nearly all of some.
        let size = cache.layout.tokens();
        let rows = |b: u64| {
            let share = [0.0, 0.1, 0.1, 0.9][(hash64(&[seed, 6, b]) % 4) as usize];
            let goes = |t: &usize| (hash64(&[seed, 7, b, *t as u64]) % 1000) as f64 <= 1000.0 * share - 1.0;
            (0..size - 1).filter(goes).fold(0u64, |rows, t| rows | 1 << t)
        };
        let mut left_out: Vec<u64> = (0..cache.blocks.len() as u64).map(rows).collect();
        left_out[0] |= 1;
        (cache, left_out, seed)
    })
}

fn archs() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|arch| arch.is_available())
}

#[test]
fn rows_that_left_their_blocks_are_exact_and_the_rest_is_bounded() {
    let (mut executed, mut failed, mut caught, mut planted, mut tighter) = (0, 0, 0, 0, 0);
    for (cache, left_out, seed) in cases(160) {
        let moved = Moved::new(&cache, left_out);
        let (originals, mut used) = (cache.rows(false), cache.rows(true));
        for (b, t) in &moved.list {
            let at = b * moved.size + t;
            (used.0[at], used.1[at]) = (originals.0[at].clone(), originals.1[at].clone());
        }
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let (one, (two, canary)) = (one_pass(&kernel, &cache, &moved), two_sweeps(&kernel, &cache, &moved));
            assert!(canary <= 0.0, "{} {seed:#x}: {canary}", cache.layout.format);
            let none = one_pass(&kernel, &cache, &Moved::new(&cache, vec![0; moved.left_out.len()]));
            for (h, (out, certificates)) in (0..kernel.heads()).flat_map(|h| [(h, &one), (h, &two)]) {
                let (c, out) = (&certificates[h], &out[h]);
                let (exact, coded) =
                    (cache.attention(&originals, h, &cache.queries).0, cache.attention(&used, h, &cache.queries).0);
                let (error, arithmetic) = (distance(&exact, out), distance(&coded, out));
                let name = format!("{} {} h{h} {seed:#x}", cache.layout.format, arch.name());
                executed += 1;
                failed += usize::from(!(error <= f64::from(c.bound)));
                assert!(error <= f64::from(c.bound), "{name}: {error} > {c:?}");
                let most = f64::from(c.e_arith) + 2e-3 * f64::from(c.e_quant()) + 1e-6 * norm(&coded);
                assert!(arithmetic <= most, "{name}: {arithmetic} from what was read, {c:?}");
                tighter += usize::from(c.e_quant() <= none.1[h].e_quant());
                if error > 4.0 * f64::from(c.e_arith) && error > 1e-5 {
                    planted += 1;
                    caught += usize::from(!(error <= f64::from(c.e_arith)));
                }
            }
        }
    }
    println!("GATE kernel-rows executed={executed} failed={failed} controls={caught}/{planted} seed=0x76");
    assert!(planted > 20 && caught == planted && 2 * tighter > executed, "{tighter} of {executed}");
}

/// Damaged codes must trip the canary of a row that leaves them.
#[test]
fn damage_is_seen_when_a_row_leaves() {
    let (mut planted, mut alarms) = (0, 0);
    for seed in 0..12u64 {
        let format = ["k8-v4g32-b32", "t4-v4g16-b16", "k8-v4g64-b64"][seed as usize % 3];
        let mut cache = Cache::new(format, 128, 3, 500, seed as usize % KINDS, seed);
        let codes = cache.layout.key_codes.clone();
        cache.blocks[1].record[codes].iter_mut().for_each(|x| *x ^= 0x55);
        let mut left_out = vec![0; cache.blocks.len()];
        left_out[1] = 0xffff;
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            planted += 1;
            alarms += usize::from(!(two_sweeps(&kernel, &cache, &Moved::new(&cache, left_out.clone())).1 <= 0.0));
        }
    }
    println!("GATE kernel-rows-canary executed={planted} failed=0 controls={alarms}/{planted} seed=0x0");
    assert_eq!(alarms, planted);
}
