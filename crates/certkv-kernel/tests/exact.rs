//! What has to agree to the bit, or within the declared term: repair, dense, threads, prefill.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN has to fail")]
mod common;
use certkv_core::hash::hash64;
use certkv_core::{Dtype, RecordLayout};
use certkv_kernel::{
    Arch, Block, BlockSource, Causal, Kernel, Masses, Partial, Pool, PrefillWork, Repair, Scores, Workspace, splits,
};
use common::{Cache, Centred, attention, distance, geometry, norm};

fn archs() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|a| a.is_available())
}

/// All splits in order, on a pool; outputs poisoned before.
fn pass<S: BlockSource + ?Sized>(
    kernel: &Kernel,
    cache: &Cache,
    source: &S,
    pool: &Pool,
) -> (Partial, Masses, Vec<f32>) {
    let blocks = cache.blocks.len();
    let ranges: Vec<_> = splits(blocks, cache.layout.tokens()).collect();
    let mut masses = Masses::new(kernel.heads(), blocks + 1);
    let last = ranges.len() - 1;
    let mut tasks = Vec::new();
    let mut rest = masses.as_mut();
    for (i, range) in ranges.into_iter().enumerate() {
        let (mine, later) = rest.split_at(if i == last { usize::MAX } else { range.end });
        rest = later;
        let tail = if i == last { cache.tail() } else { None };
        tasks.push((range, tail, kernel.partial(), Some(mine)));
    }
    pool.run(&mut tasks, Workspace::new, |work, _, (range, tail, partial, masses)| {
        kernel.attend(&cache.queries, source, range.clone(), *tail, work, partial, masses.take()).unwrap();
    });
    let mut partials = tasks.into_iter().map(|t| t.2);
    let mut total = partials.next().unwrap();
    partials.for_each(|p| total.merge(&p).unwrap());
    let mut out = vec![f32::NAN; kernel.heads() * cache.layout.dim];
    for (h, out) in out.chunks_exact_mut(cache.layout.dim).enumerate() {
        total.finish(h, out).unwrap();
    }
    (total, masses, out)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn runs_and_threads_give_the_same_bits() {
    for (format, tokens) in
        [("k8-v4g32-b32", 9000), ("t4-v8g16-b16", 5000), ("tq4-tq4-b64", 9000), ("f16-f16-b64", 9001)]
    {
        let mut cache = Cache::new(format, 64, 4, tokens, 1, 11);
        cache.promote(5, 0.2);
        let source = cache.source();
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let one = pass(&kernel, &cache, &source, &Pool::new(1).unwrap());
            assert!(one.2.iter().all(|x| x.is_finite()));
            for threads in [1, 2, 3] {
                let other = pass(&kernel, &cache, &source, &Pool::new(threads).unwrap());
                assert_eq!(bits(&one.2), bits(&other.2), "{format} {} x{threads}", arch.name());
                for h in 0..4 {
                    let certificate = |m, p| kernel.certify(m, p, h, 1.0).unwrap();
                    assert_eq!(certificate(&one.1, &one.0), certificate(&other.1, &other.0));
                }
            }
        }
    }
}

#[test]
fn dense_has_the_same_bits_for_any_set_of_heads() {
    for (format, dim) in [("f16-f16-b32", 128), ("bf16-bf16-b16", 96), ("k8-v4g32-b32", 256), ("f16-f16-b64", 64)] {
        let mut cache = Cache::new(format, dim, 8, 777, 2, 3);
        cache.promote(0, 2.0);
        let pool = Pool::new(1).unwrap();
        let queries = cache.queries.clone();
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            cache.queries.clone_from(&queries);
            let all = pass(&kernel, &cache, &cache.source(), &pool).2;
            for set in [vec![0], vec![7], vec![1, 5], vec![2, 3, 6], vec![0, 1, 2, 3, 4], vec![7, 6, 5, 4, 3, 2, 1]] {
                let some: Vec<f32> = set.iter().flat_map(|&h| queries[h * dim..(h + 1) * dim].to_vec()).collect();
                cache.queries.clone_from(&some);
                let few = pass(&kernel.with_heads(set.len()).unwrap(), &cache, &cache.source(), &pool).2;
                for (i, h) in set.iter().enumerate() {
                    let (a, b) = (&few[i * dim..(i + 1) * dim], &all[h * dim..(h + 1) * dim]);
                    assert_eq!(bits(a), bits(b), "{format} {} head {h} of {set:?}", arch.name());
                }
            }
        }
    }
}

const FORMATS: [&str; 12] = [
    "k8-v4g32-b32",
    "t4-v4g16-b16",
    "k8-v6g64-b64",
    "k8f32-f16-b16",
    "tq4-tq4-b32",
    "ctq4-tq4-b32",
    "gtq5-tq4-b32",
    "e4m3-e5m2-b32",
    "p8-p4g32-b16",
    "s1-tq4-b32",
    "k4-v4g32-b32-r4.4",
    "k4-c4-b16-r6.4",
];

/// A cache that has read some sides exactly and skipped some values, and the blocks that a repair picks.
fn repair_case(stream: u64, case: u64) -> (Cache, Vec<usize>) {
    let (seed, i) = (hash64(&[stream, case]), case as usize);
    let format = FORMATS[i % FORMATS.len()];
    let mut cache = Cache::new(format, [64, 128][i / 4 % 2], 3, 900, (seed % 7) as usize, seed);
    cache.promote(seed, 0.1);
    cache.skip(seed, [0.0, 0.5][i % 2]);
    let count = cache.blocks.len() as u64;
    let mut list: Vec<usize> = (0..4).map(|i| (hash64(&[seed, i]) % count) as usize).collect();
    list.sort_unstable();
    list.dedup();
    (cache, list)
}

#[test]
fn repair_is_the_pass_with_the_new_sides() {
    let (mut done, mut again, mut alarms, mut planted) = (0, 0, 0, 0);
    for case in 0..96u64 {
        let (before, list) = repair_case(0xec, case);
        let format = FORMATS[case as usize % FORMATS.len()];
        let mut exact = before.exact.clone();
        for (i, &b) in list.iter().enumerate() {
            exact[b] = (exact[b].0 || i % 3 != 1, exact[b].1 || i % 3 != 0);
        }
        for arch in archs() {
            let kernel = Kernel::new(&before.geometry, &before.layout, arch).unwrap();
            let pool = Pool::new(1).unwrap();
            let (mut partial, mut masses, _) = pass(&kernel, &before, &before.centred(), &pool);
            let old = before.centred();
            let mut new = before.centred();
            for (b, block) in new.blocks.iter_mut().enumerate() {
                block.skip_values &= list.get(1) != Some(&b);
                // Without effect in a format without residuals.
                (block.fine_keys, block.fine_values) = (list.contains(&b), list.contains(&b));
                block.keys = exact[b].0.then_some(&before.blocks[b].keys[..]);
                block.values = exact[b].1.then_some(&before.blocks[b].values[..]);
            }
            let (wanted, wanted_masses, fresh) = pass(&kernel, &before, &new, &pool);
            let (mut work, mut canary) = (Workspace::new(), vec![f32::NAN; list.len()]);
            let (queries, tiles, none) = (&before.queries, masses.as_mut(), &Scores::new());
            let outcome =
                kernel.repair(queries, &old, &new, &list, none, &mut work, &mut partial, tiles, &mut canary).unwrap();
            assert!(canary.iter().all(|&c| c <= 0.0), "{format} {}: {canary:?}", arch.name());
            if outcome == Repair::NeedsRecompute {
                again += 1;
                continue;
            }
            done += 1;
            for h in 0..3 {
                let mut out = vec![f32::NAN; before.layout.dim];
                partial.finish(h, &mut out).unwrap();
                let reference: Vec<f64> =
                    fresh[h * before.layout.dim..][..before.layout.dim].iter().map(|&x| f64::from(x)).collect();
                let c = kernel.certify(&masses, &partial, h, 1.0).unwrap();
                let d = kernel.certify(&wanted_masses, &wanted, h, 1.0).unwrap();
                let gap = distance(&reference, &out);
                assert!(gap <= f64::from(c.e_arith) + f64::from(d.e_arith), "{format} {}: {gap} {c:?}", arch.name());
                assert!((c.e_quant() - d.e_quant()).abs() <= 1e-3 * d.e_quant() + 1e-5, "{c:?} {d:?}");
            }
            // The control: a record whose codes were damaged must trip the canary when its keys are promoted.
            if let Some(at) = (0..list.len()).find(|&i| !before.exact[list[i]].0 && exact[list[i]].0) {
                let b = list[at];
                let mut record = before.blocks[b].record.clone();
                record[before.layout.key_codes.clone()].iter_mut().for_each(|x| *x ^= 0x55);
                if format.starts_with("gtq") || format.starts_with("s1") {
                    // Groups of one bit and directions are off by so much that codes alone say little.
                    let radii = record[before.layout.key_scales.clone()].chunks_exact_mut(2);
                    radii.for_each(|radius| radius[1] |= 0x40);
                }
                let mut damaged = before.centred();
                damaged.blocks[b].record = &record;
                let (mut partial, mut masses, _) = pass(&kernel, &before, &damaged, &pool);
                let tiles = masses.as_mut();
                kernel
                    .repair(queries, &damaged, &new, &list, none, &mut work, &mut partial, tiles, &mut canary)
                    .unwrap();
                planted += 1;
                alarms += usize::from(!(canary[at] <= 0.0));
            }
        }
    }
    println!("GATE kernel-repair executed={done} failed=0 controls={alarms}/{planted} seed=0xec recompute={again}");
    assert!(done > 60 && planted > 20 && alarms == planted);
}

#[test]
fn prefill_is_causal_attention_over_the_originals() {
    for (case, (format, dim)) in
        [("k8-v4g32-b32", 128), ("bf16-bf16-b16", 96), ("f16-f16-b64", 64), ("t4-v4g16-b16", 256)]
            .into_iter()
            .enumerate()
    {
        let mut cache = Cache::new(format, dim, 3, 300 + case, 1, 9);
        cache.promote(0, 2.0);
        let (source, total) = (cache.source(), 300 + case);
        let (heads, rows) = (3, 131);
        let mut rng = common::Rng(4);
        let stride = heads * dim + 8;
        let queries: Vec<f32> = (0..rows * stride).map(|_| rng.normal() as f32).collect();
        let (keys, values) = cache.rows(false);
        let first = total - rows;
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let (mut out, mut work) = (vec![f32::NAN; rows * heads * dim], PrefillWork::default());
            let task = Causal { queries: &queries, stride, rows, first, window: None };
            kernel.prefill(&mut work, &task, &source, source.len(), cache.tail(), &mut out).unwrap();
            for (i, row) in out.chunks_exact(dim).enumerate() {
                let (r, h) = (i / heads, i % heads);
                let n = first + r + 1;
                let q = &queries[r * stride + h * dim..][..dim];
                let exact = attention(q, &keys[..n], &values[..n], f64::from(cache.geometry.scale)).0;
                let gap = distance(&exact, row);
                assert!(gap <= 2e-4 * (1.0 + norm(&exact)), "{format} {} row {r} head {h}: {gap}", arch.name());
            }
            // A row alone has the same bits as in company.
            for r in [0, 5, 130] {
                let mut alone = vec![f32::NAN; heads * dim];
                let task = Causal { queries: &queries[r * stride..], stride, rows: 1, first: first + r, window: None };
                kernel.prefill(&mut work, &task, &source, source.len(), cache.tail(), &mut alone).unwrap();
                assert_eq!(bits(&alone), bits(&out[r * heads * dim..(r + 1) * heads * dim]), "{}", arch.name());
            }
            let short = Causal { queries: &queries, stride, rows, first: first + 1, window: None };
            assert!(kernel.prefill(&mut work, &short, &source, source.len(), cache.tail(), &mut out).is_err());
        }
    }
}

#[test]
fn bad_arguments_are_named() {
    let cache = Cache::new("k8-v4g32-b32", 128, 4, 200, 0, 1);
    let kernel = Kernel::new(&cache.geometry, &cache.layout, Arch::detect()).unwrap();
    let (mut work, mut partial, source) = (Workspace::new(), kernel.partial(), cache.source());
    let mut run = |queries: &[f32], source: &[Block<'_>], partial: &mut Partial| {
        kernel.attend(queries, source, 0..source.len(), None, &mut work, partial, None).unwrap_err().to_string()
    };
    assert!(run(&cache.queries[1..], &source, &mut partial).starts_with("queries"));
    let mut bad = cache.queries.clone();
    bad[130] = f32::NAN;
    assert!(run(&bad, &source, &mut partial).contains("head 1"));
    let mut short = source.clone();
    short[3].record = &short[3].record[..100];
    assert!(run(&cache.queries, &short, &mut partial).starts_with("block 3"));
    short[3] = source[3];
    short[2].keys = Some(&cache.blocks[2].keys[..10]);
    assert!(run(&cache.queries, &short, &mut partial).contains("block 2: keys"));
    let mut other = kernel.with_heads(2).unwrap().partial();
    assert!(run(&cache.queries, &source, &mut other).starts_with("out"));
    let layout = RecordLayout::new(&geometry(4, 64, Dtype::F16), "f16-f16-b32".parse().unwrap()).unwrap();
    assert!(Kernel::new(&cache.geometry, &layout, Arch::Generic).is_err());
    let mut masses = Masses::new(4, 3);
    let out = kernel.attend(&cache.queries, &source, 0..6, None, &mut work, &mut partial, Some(masses.as_mut()));
    assert_eq!(out.is_err(), masses.capacity() < 6);
    assert!(kernel.with_heads(0).is_err() && kernel.with_heads(17).is_err());
}

/// Scores and sums in two sweeps.
fn sweeps(kernel: &Kernel, cache: &Cache, source: &Centred<'_>) -> (Partial, Masses, Scores, Workspace) {
    let (mut work, mut scores, mut partial) = (Workspace::new(), Scores::new(), kernel.partial());
    let blocks = source.blocks.len();
    let mut masses = Masses::new(kernel.heads(), blocks + 1);
    let (tail, queries) = (cache.tail(), &cache.queries);
    let (mut of, range) = (masses.as_mut(), 0..blocks);
    kernel.score(queries, source, range.clone(), tail.as_ref(), &mut work, &mut scores, &mut of).unwrap();
    kernel.total(&scores, &masses, &mut partial).unwrap();
    kernel.gather(source, range, tail.as_ref(), &mut work, &mut scores, &mut masses, &mut partial).unwrap();
    (partial, masses, scores, work)
}

/// The records of all blocks, their keys' codes harmed.
fn harmed(cache: &Cache, harm: impl Fn(usize, &mut [u8])) -> Vec<Vec<u8>> {
    let one = |(b, record): (usize, &Vec<u8>)| {
        let mut record = record.clone();
        harm(b, &mut record[cache.layout.key_codes.clone()]);
        record
    };
    cache.blocks.iter().map(|block| &block.record).enumerate().map(one).collect()
}

#[test]
fn repair_of_values_is_the_sweep_with_the_new_sides_and_reads_no_keys() {
    let (mut done, mut again, mut caught, mut planted) = (0, 0, 0, 0);
    for case in 0..120u64 {
        let (before, list) = repair_case(0xed, case);
        let format = FORMATS[case as usize % FORMATS.len()];
        // Values that are not coded cannot be repaired.
        if before.layout.format.value.is_exact() {
            continue;
        }
        for arch in archs() {
            let kernel = Kernel::new(&before.geometry, &before.layout, arch).unwrap();
            let (mut new, mut damaged) = (before.centred(), before.centred());
            let records = harmed(&before, |_, codes| codes.fill(0x5a));
            for &b in &list {
                let block = &mut new.blocks[b];
                block.skip_values = false;
                if b % 3 == 0 {
                    block.values = Some(&before.blocks[b].values[..]);
                } else {
                    block.fine_values = true;
                }
            }
            for ((to, from), record) in damaged.blocks.iter_mut().zip(&new.blocks).zip(&records) {
                *to = Block { record, keys: None, ..*from };
            }
            let (mut partial, mut masses, scores, mut work) = sweeps(&kernel, &before, &before.centred());
            let (wanted, wanted_masses, ..) = sweeps(&kernel, &before, &new);
            let first = partial.clone();
            let old = before.centred();
            let outcome =
                kernel.repair_values(&old, &damaged, &list, &mut work, &scores, &mut partial, &mut masses).unwrap();
            if outcome == Repair::NeedsRecompute {
                again += 1;
                continue;
            }
            done += 1;
            let dim = before.layout.dim;
            let out = |partial: &Partial, h: usize| -> Vec<f32> {
                let mut out = vec![f32::NAN; dim];
                partial.finish(h, &mut out).unwrap();
                out
            };
            let mut same = true;
            for h in 0..3 {
                let (a, b) = (out(&partial, h), out(&wanted, h));
                let (c, d) = [(&masses, &partial), (&wanted_masses, &wanted)]
                    .map(|(m, p)| kernel.certify(m, p, h, 1.0).unwrap())
                    .into();
                let apart = |x: &[f32]| distance(&b.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), x);
                let room = f64::from(c.e_arith) + f64::from(d.e_arith);
                assert!(apart(&a) <= room, "{format} {}: {} {c:?}", arch.name(), apart(&a));
                same &= apart(&out(&first, h)) <= room;
                // Rounding that a repair adds moves the reach of key terms.
                assert!((c.e_quant() - d.e_quant()).abs() <= 2e-3 * d.e_quant() + 1e-5, "{format}: {c:?} {d:?}");
                assert_eq!(partial.weight_sum(h), wanted.weight_sum(h));
            }
            // Control: without the repair, outputs or certificates are others.
            let stale = kernel.certify(&wanted_masses, &first, 0, 1.0).unwrap();
            let known = kernel.certify(&masses, &partial, 0, 1.0).unwrap();
            planted += 1;
            caught += usize::from(!same || stale.e_quant() != known.e_quant());
        }
    }
    println!(
        "GATE kernel-repair-values executed={done} failed=0 controls={caught}/{planted} seed=0xed recompute={again}"
    );
    assert!(done > 100 && caught * 10 > planted * 9, "{caught}/{planted}");
}

#[test]
fn keys_that_are_scored_again_are_not_read_as_codes_again() {
    let (mut refined, mut repaired, mut caught, mut planted) = (0, 0, 0, 0);
    for case in 0..120u64 {
        let (before, list) = repair_case(0xee, case);
        let format = FORMATS[case as usize % FORMATS.len()];
        for arch in archs() {
            let kernel = Kernel::new(&before.geometry, &before.layout, arch).unwrap();
            let old = before.centred();
            let (partial, masses, scores, mut work) = sweeps(&kernel, &before, &old);
            // The codes of keys whose logits are known are destroyed.
            let records =
                harmed(&before, |b, codes| codes.iter_mut().for_each(|x| *x ^= 0x5a * u8::from(scores.knows(b))));
            let mut new = before.centred();
            for (i, &b) in list.iter().enumerate() {
                new.blocks[b].skip_values = false;
                new.blocks[b].fine_keys = true;
                if i % 2 == 1 {
                    new.blocks[b].keys = Some(&before.blocks[b].keys[..]);
                }
            }
            let (mut old_damaged, mut new_damaged) = (before.centred(), before.centred());
            for (damaged, of) in [(&mut old_damaged, &old), (&mut new_damaged, &new)] {
                for ((to, from), record) in damaged.blocks.iter_mut().zip(&of.blocks).zip(&records) {
                    *to = Block { record, ..*from };
                }
            }
            let mut repair = |old: &Centred<'_>, new: &Centred<'_>, scores: &Scores| {
                let (mut partial, mut masses, mut canary) =
                    (partial.clone(), masses.clone(), vec![f32::NAN; list.len()]);
                let (queries, tiles) = (&before.queries, masses.as_mut());
                kernel.repair(queries, old, new, &list, scores, &mut work, &mut partial, tiles, &mut canary).unwrap();
                let mut seen = bits(&canary);
                for h in 0..3 {
                    let mut out = vec![f32::NAN; before.layout.dim];
                    partial.finish(h, &mut out).unwrap();
                    seen.extend(bits(&out));
                    for m in list.iter().map(|b| masses.get(h, *b).unwrap()) {
                        seen.extend(bits(&[m.w, m.p, m.exponent, m.delta, m.lambda, m.zeta, m.digit]));
                    }
                }
                seen
            };
            let wanted = repair(&old, &new, &Scores::new());
            assert_eq!(repair(&old_damaged, &new_damaged, &scores), wanted, "{format} {}", arch.name());
            let known = list.iter().filter(|b| scores.knows(**b)).count();
            repaired += usize::from(known > 0);
            // Control: whoever does not know the logits sees what has become of the codes.
            if known > 0 {
                planted += 1;
                caught += usize::from(repair(&old_damaged, &new_damaged, &Scores::new()) != wanted);
            }
            if before.layout.format.refine.is_none() {
                continue;
            }
            // In a sweep: scored from codes, then with residuals, is scored with residuals.
            let range = 0..before.blocks.len();
            let score = |source: &Centred<'_>, late: Option<&Centred<'_>>| {
                let (mut work, mut scores) = (Workspace::new(), Scores::new());
                let (mut masses, tail) = (Masses::new(3, range.end + 1), before.tail());
                let (queries, mut tiles) = (&before.queries, masses.as_mut());
                kernel
                    .score(queries, source, range.clone(), tail.as_ref(), &mut work, &mut scores, &mut tiles)
                    .unwrap();
                let mut canary = vec![f32::NAN; list.len()];
                if let Some(late) = late {
                    kernel.rescore(queries, late, &list, &mut work, &mut scores, &mut tiles, &mut canary).unwrap();
                    assert!(canary.iter().all(|c| *c <= 0.0), "{format} {}: {canary:?}", arch.name());
                }
                (scores, masses)
            };
            let (at_once, early) = score(&new, None);
            let (again, late) = score(&old, Some(&new_damaged));
            // Read exactly after that, they are compared with what they were read as last.
            let (mut twice, mut masses, mut canary) = (again.clone(), late.clone(), vec![f32::NAN; list.len()]);
            let mut exact = before.centred();
            list.iter().for_each(|b| exact.blocks[*b].keys = Some(&before.blocks[*b].keys[..]));
            let (queries, tiles) = (&before.queries, &mut masses.as_mut());
            kernel.rescore(queries, &exact, &list, &mut work, &mut twice, tiles, &mut canary).unwrap();
            assert!(canary.iter().all(|c| *c <= 0.0), "{format} {}: {canary:?}", arch.name());
            for (h, &b) in (0..3).flat_map(|h| list.iter().map(move |b| (h, b))) {
                let (x, y) = (early.get(h, b).unwrap(), late.get(h, b).unwrap());
                assert_eq!(bits(&[x.delta, x.lambda, x.zeta]), bits(&[y.delta, y.lambda, y.zeta]), "{format}");
                let weights = |scores: &Scores, exponent: f32| -> Vec<f64> {
                    let lines = kernel.row_weights(scores, h, b).flatten().copied().collect::<Vec<f32>>();
                    lines.iter().map(|w| f64::from(*w) * f64::from(exponent).exp2()).collect()
                };
                let (x, y) = (weights(&at_once, x.exponent), weights(&again, y.exponent));
                // A weight is the same number whatever it is relative to, unless it is too small for one of them.
                assert!(x.iter().zip(&y).all(|(x, y)| x == y || x.max(*y) < 1e-30), "{format} {}", arch.name());
            }
            refined += 1;
        }
    }
    println!(
        "GATE kernel-known-logits executed={repaired} refined={refined} failed=0 controls={caught}/{planted} seed=0xee"
    );
    assert!(repaired > 150 && refined > 30 && caught == planted, "{repaired} {refined} {caught}/{planted}");
}
