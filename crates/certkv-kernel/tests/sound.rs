//! Every path against attention in f64: the true error is never above the bound, and agrees with the decoded records.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN has to fail")]
mod common;
use certkv_core::hash::hash64;
use certkv_kernel::{Arch, Certificate, Kernel, KernelError, Masses, Partial, Scores, Workspace, splits};
use common::{Cache, KINDS, distance, norm};

/// Formats x group sizes that the layouts allow.
const FORMATS: [&str; 70] = [
    "k8-v4g64-b64",
    "k8-v4g32-b32",
    "k8-v4g16-b32",
    "k8-v6g64-b64",
    "k8-v8g64-b32",
    "k8-v2g16-b16",
    "k8-v3g32-b16",
    "k8-v5g16-b64",
    "k8-v7g32-b32",
    "k8f32-v4g32-b32",
    "k8bf16-v4g16-b16",
    "t4-v4g32-b32",
    "t4-v4g32-b64",
    "t4g32-v8g16-b16",
    "t8-v4g16-b64",
    "t5g16-v3g64-b32",
    "t2-f16-b16",
    "tq4-tq4-b64",
    "tq4-tq4-b16",
    "tq3-tq2-b32",
    "tq6-v4g16-b32",
    "k8-tq5-b64",
    "tq1-tq6-b64",
    "ctq4-tq4-b64",
    "ctq4-v4g16-b16",
    "ctq3-v8g32-b32",
    "ctq6-f16-b32",
    "ctq1-tq2-b64",
    "gtq3-tq3-b64",
    "gtq2-v4g16-b32",
    "gtq4-f16-b16",
    "gtq2.5-tq2-b32",
    "gtq5-v8g32-b64",
    "s1-tq3-b64",
    "s1-v4g16-b16",
    "s1-f16-b32",
    "s2-v4g32-b32",
    "s3-c4-b64",
    "s3-p8-b16",
    "e4m3-e4m3-b64",
    "e4m3g32-e5m2g64-b16",
    "e5m2-v4g32-b32",
    "p8-p8-b64",
    "p4g32-p4g32-b16",
    "p3g64-p6g16-b32",
    "k8-e4m3-b32",
    "k8-c4-b64",
    "tq4-c5-b16",
    "t4-c8-b32",
    "f16-c2-b16",
    "bf16-c3-b64",
    "k4-v4g64-b64",
    "k2-c2-b16",
    "k3-v3g16-b32",
    "k6-f16-b64",
    "k0-c0-b64",
    "k0-c0-b16",
    "k0-v4g16-b32",
    "t4-c0-b64",
    "f16-c0-b32",
    "k0-f16-b16",
    "k8-v4g64-b64-r8.4",
    "k4-v4g64-b64-r4.4",
    "k4-v4g32-b32-r6.4",
    "k4-c4-b64-r4.4",
    "k2-v2g16-b16-r1.1",
    "k8f32-c3-b32-r5.8",
    "k5-v3g16-b16-r3.5",
    "f16-f16-b32",
    "bf16-bf16-b16",
];

fn archs() -> Vec<Arch> {
    Arch::ALL.into_iter().filter(|a| a.is_available()).collect()
}

struct Answer {
    partial: Partial,
    out: Vec<Vec<f32>>,
    certificates: Vec<Certificate>,
}

fn certificates(kernel: &Kernel, cache: &Cache, partial: Partial, masses: Masses) -> Answer {
    let dim = cache.layout.dim;
    let mut out = vec![vec![f32::NAN; dim]; kernel.heads()];
    let mut list = Vec::new();
    for (h, out) in out.iter_mut().enumerate() {
        partial.finish(h, out).unwrap();
        let radius = distance(&cache.centre, out) * (1.0 + 1e-6) + 1e-30;
        list.push(kernel.certify(&masses, &partial, h, radius as f32).unwrap());
    }
    Answer { partial, out, certificates: list }
}

fn pass(kernel: &Kernel, cache: &Cache) -> Result<Answer, KernelError> {
    let (source, mut work) = (cache.centred(), Workspace::new());
    let blocks = source.blocks.len();
    let mut masses = Masses::new(kernel.heads(), blocks + 1);
    let mut total: Option<Partial> = None;
    let ranges: Vec<_> = splits(blocks, cache.layout.tokens()).collect();
    let last = ranges.len() - 1;
    let mut rest = masses.as_mut();
    for (i, range) in ranges.into_iter().enumerate() {
        let mut partial = kernel.partial();
        let tail = if i == last { cache.tail() } else { None };
        let (mine, later) = rest.split_at(if i == last { usize::MAX } else { range.end });
        rest = later;
        kernel.attend(&cache.queries, &source, range, tail, &mut work, &mut partial, Some(mine))?;
        match &mut total {
            None => total = Some(partial),
            Some(t) => t.merge(&partial)?,
        }
    }
    Ok(certificates(kernel, cache, total.unwrap(), masses))
}

/// Where the first of two runs ends, as where blocks have several layouts; 0 for one run. A run follows the one before it, and the tail the
/// last.
fn runs(blocks: usize) -> usize {
    if blocks.is_multiple_of(3) { 0 } else { blocks / 2 }
}

/// The same in two sweeps: half of the promoted and of the refined keys are so from the start, the others after their codes were scored.
/// Returns the answer and the largest canary.
fn sweeps(kernel: &Kernel, cache: &Cache) -> Result<(Answer, f32), KernelError> {
    let (after, mut before, mut work) = (cache.centred(), cache.centred(), Workspace::new());
    let blocks = after.blocks.len();
    let late: Vec<usize> = (0..blocks).filter(|&b| cache.exact[b].0 && b % 2 == 1).collect();
    let late: Vec<usize> = (0..blocks).filter(|b| late.contains(b) || (cache.fine[*b].0 && b % 2 == 0)).collect();
    late.iter().for_each(|&b| (before.blocks[b].keys, before.blocks[b].fine_keys) = (None, false));
    let (mut masses, mut scores, mut out) = (Masses::new(kernel.heads(), blocks + 1), Scores::new(), kernel.partial());
    let tail = cache.tail();
    let queries = &cache.queries;
    let cut = runs(blocks);
    if cut > 0 {
        kernel.score(queries, &before, 0..cut, None, &mut work, &mut scores, &mut masses.as_mut())?;
        let skipped = cut + 1..blocks;
        let refused = kernel.score(queries, &before, skipped, None, &mut work, &mut scores, &mut masses.as_mut());
        assert!(matches!(refused, Err(KernelError::Length { argument: "blocks", .. })));
    }
    let tiles = &mut masses.as_mut();
    kernel.score(queries, &before, cut..blocks, tail.as_ref(), &mut work, &mut scores, tiles)?;
    let mut canary = vec![f32::NAN; late.len()];
    kernel.rescore(queries, &after, &late, &mut work, &mut scores, &mut masses.as_mut(), &mut canary)?;
    kernel.total(&scores, &masses, &mut out)?;
    if cut > 0 {
        kernel.gather(&after, 0..cut, None, &mut work, &mut scores, &mut masses, &mut out)?;
        let again = kernel.gather(
            &after,
            cut + 1..blocks,
            tail.as_ref(),
            &mut work,
            &mut scores,
            &mut masses,
            &mut out.clone(),
        );
        assert!(matches!(again, Err(KernelError::Length { argument: "blocks", .. })));
    }
    kernel.gather(&after, cut..blocks, tail.as_ref(), &mut work, &mut scores, &mut masses, &mut out)?;
    let again = kernel.gather(&after, 0..blocks, tail.as_ref(), &mut work, &mut scores, &mut masses, &mut out.clone());
    assert!(again.is_err(), "scores serve once");
    let worst = canary.into_iter().fold(f32::NEG_INFINITY, |a, b| if b <= a { a } else { b });
    Ok((certificates(kernel, cache, out, masses), worst))
}

fn cases(n: usize) -> impl Iterator<Item = (Cache, u64)> {
    (0..n).map(|i| {
        let seed = hash64(&[0x5eed, i as u64]);
        let pick = |k: u64, n: usize| (hash64(&[seed, k]) % n as u64) as usize;
        let mut format = FORMATS[i % FORMATS.len()];
        let mut dim = [64, 96, 128, 256][pick(1, 4)];
        if format.contains("g64") && dim == 96 {
            dim = 128;
        }
        if format == "t2-f16-b16" && dim == 96 {
            format = "t4-f16-b16";
        }
        let heads = [1, 2, 3, 4, 5, 6, 7, 8, 16][pick(2, 9)];
        let tokens = [0, 1, 15, 64, 65, 200, 331, 700][pick(3, 8)] + pick(4, 40);
        let mut cache = Cache::new(format, dim, heads, tokens.max(1), pick(5, KINDS), seed);
        if pick(6, 2) == 0 {
            cache.promote(seed, 0.3);
        }
        if pick(7, 2) == 0 {
            cache.skip(seed, 0.4);
        }
        if pick(8, 4) > 0 {
            cache.refine(seed, 0.5);
        }
        (cache, seed)
    })
}

#[test]
fn true_error_is_within_the_bound_on_every_path() {
    let (mut executed, mut failed, mut tight, mut finite) = (0, 0, 0.0f64, 0);
    let (mut caught, mut planted, mut compared) = (0, 0, 0);
    for (cache, seed) in cases(512) {
        let (originals, used) = (cache.rows(false), cache.rows(true));
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let (two, canary) = sweeps(&kernel, &cache).unwrap();
            assert!(canary <= 0.0, "{} {seed:#x}: {canary}", cache.layout.format);
            let one = pass(&kernel, &cache).unwrap();
            // What is certified does not depend on the way: every term is there, relative to the right exponent. Near
            // `h = 1` the quotient magnifies the sums' rounding.
            // Sums that are closed twice have longer chains.
            let near = if runs(cache.exact.len()) > 0 { 4e-4 } else { 1e-4 };
            let pairs = one.certificates.iter().zip(&two.certificates).enumerate();
            for (h, (a, b)) in pairs.filter(|(_, (a, _))| a.h < 0.9) {
                compared += 1;
                for (a, b) in [(a.e_key, b.e_key), (a.e_val, b.e_val)] {
                    let same = a == b || (a - b).abs() <= near * a.abs().max(b.abs());
                    assert!(
                        same,
                        "{} {} h{h} {seed:#x}: {a} in one pass, {b} in two sweeps",
                        cache.layout.format,
                        arch.name()
                    );
                }
            }
            for (h, a) in (0..kernel.heads()).flat_map(|h| [(h, &one), (h, &two)]) {
                let (exact, _) = cache.attention(&originals, h, &cache.queries);
                let (coded, coded_mass) = cache.attention(&used, h, &cache.queries);
                let (error, arithmetic) = (distance(&exact, &a.out[h]), distance(&coded, &a.out[h]));
                let c = &a.certificates[h];
                let name = format!("{} {} d{} h{h} {seed:#x}", cache.layout.format, arch.name(), cache.layout.dim);
                executed += 1;
                failed += usize::from(!(error <= f64::from(c.bound)));
                assert!(error <= f64::from(c.bound), "{name}: {error} > {c:?}");
                // Against the decoded records only arithmetic and digits are left.
                let value = f64::from(c.e_arith) + 2e-3 * f64::from(c.e_quant()) + 1e-6 * norm(&coded);
                assert!(arithmetic <= value, "{name}: {arithmetic} from the decoded record, {c:?}");
                let shift = (a.partial.log_mass(h) - coded_mass).abs();
                // Digits of a query whose channels a calibration makes differ widely leave a hundredth of a nat, which is in `Delta`.
                let most = if cache.layout.format.key.is_calibrated() { 5e-2 } else { 1e-2 };
                assert!(shift < most, "{name}: log-mass {coded_mass} off by {shift}");
                if c.bound < c.cap {
                    finite += 1;
                    tight = tight.max(error / f64::from(c.bound));
                }
                // The control: a certificate that forgets the codes must be caught on coded data.
                if error > 4.0 * f64::from(c.e_arith) && error > 1e-5 {
                    planted += 1;
                    caught += usize::from(!(error <= f64::from(c.e_arith)));
                }
            }
        }
    }
    println!("GATE kernel-sound executed={executed} failed={failed} controls={caught}/{planted} seed=0x5eed");
    println!("finite {finite}, largest true/bound {tight:.3}");
    assert!(planted > 50 && caught == planted && finite > executed / 4 && compared > executed / 4);
}

/// With exact keys what is certified is what values are off by: with residuals by their bounds, which are so many times smaller than
/// those of the codes, and no more than a hundred times the error.
#[test]
fn refined_values_have_bounds_of_their_own() {
    let (mut executed, mut failed, mut caught, mut finer) = (0, 0, 0, 0);
    for (case, format) in
        ["k4-v4g32-b32-r4.4", "k4-c4-b32-r4.4", "k8-v3g64-b64-r1.3", "k2-c2-b16-r8.6"].into_iter().enumerate()
    {
        let mut cache = Cache::new(format, 128, 4, 640, 0, case as u64);
        cache.exact.iter_mut().for_each(|e| e.0 = true);
        let originals = cache.rows(false);
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            cache.fine.fill((false, false));
            let codes = pass(&kernel, &cache).unwrap();
            cache.fine.fill((false, true));
            let refined = pass(&kernel, &cache).unwrap();
            for (h, (a, b)) in codes.certificates.iter().zip(&refined.certificates).enumerate() {
                let error = distance(&cache.attention(&originals, h, &cache.queries).0, &refined.out[h]);
                executed += 1;
                failed += usize::from(!(error <= f64::from(b.bound)));
                caught += usize::from(!(error <= 0.01 * f64::from(b.bound)));
                finer += usize::from(4.0 * b.e_val < a.e_val && b.e_key == 0.0);
            }
        }
    }
    println!("GATE kernel-refined-values executed={executed} failed={failed} controls={caught}/{executed} seed=0x0");
    assert_eq!((failed, caught, finer), (0, executed, executed));
}

/// Damaged codes must trip the canary when their keys are scored again.
#[test]
fn damage_is_seen_when_keys_are_scored_again() {
    let (mut planted, mut alarms) = (0, 0);
    for seed in 0..12u64 {
        let format = ["k8-v4g32-b32", "t4-v4g16-b16", "k8-v4g64-b64"][seed as usize % 3];
        let mut cache = Cache::new(format, 128, 3, 500, seed as usize % KINDS, seed);
        cache.exact[1].0 = true;
        let codes = cache.layout.key_codes.clone();
        cache.blocks[1].record[codes].iter_mut().for_each(|x| *x ^= 0x55);
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            planted += 1;
            alarms += usize::from(!(sweeps(&kernel, &cache).unwrap().1 <= 0.0));
        }
    }
    println!("GATE kernel-rescore executed={planted} failed=0 controls={alarms}/{planted} seed=0x0");
    assert_eq!(alarms, planted);
}

#[test]
fn an_empty_pass_has_no_output() {
    let cache = Cache::new("k8-v4g32-b32", 128, 4, 5, 0, 1);
    let kernel = Kernel::new(&cache.geometry, &cache.layout, Arch::detect()).unwrap();
    let mut partial = kernel.partial();
    let mut work = Workspace::new();
    kernel.attend(&cache.queries, &cache.source(), 0..0, None, &mut work, &mut partial, None).unwrap();
    let mut out = vec![0.0; 128];
    assert_eq!(partial.finish(0, &mut out), Err(KernelError::NoToken));
}

/// One token of a coded block, all of whose channels sit half a step from their code, against an exact token of the same
/// coded logit and the opposite value: the true error reaches the key bound, so half of the bound must be exceeded.
#[test]
fn the_key_bound_is_reached() {
    let (mut caught, mut failed, mut executed) = (0, 0, 0);
    for dim in [64, 128, 256] {
        let mut cache = Cache::new("k8-f16-b16", dim, 1, 17, 0, 1);
        let encode = |x: f64| cache.layout.store.encode16(x as f32);
        let (mut keys, mut values) = (vec![encode(-1.0); 16 * dim], vec![0; 16 * dim]);
        let sigma = 2.0 / 255.0f64;
        for c in 0..dim {
            keys[(1 + c % 15) * dim + c] = encode(1.0);
            // Midway between two codes.
            keys[c] = encode((0.6 / sigma).floor() * sigma + 0.495 * sigma + 1.0 / 255.0);
            values[c] = encode(1.0);
            cache.tail_values[c] = encode(-1.0);
        }
        cache.centre = vec![0.0; dim];
        cache.queries = vec![(0.6 / (f64::from(cache.geometry.scale) * dim as f64 * sigma)) as f32; dim];
        let record = common::encode(&cache.layout, &keys, &values, &cache.centre);
        let decoded = common::decode(None, &cache.layout, &record).0;
        for (c, x) in decoded[0].iter().enumerate() {
            cache.tail_keys[c] = encode(*x);
        }
        (cache.blocks[0].keys, cache.blocks[0].values, cache.blocks[0].record) = (keys, values, record);
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let a = pass(&kernel, &cache).unwrap();
            let error = distance(&cache.attention(&cache.rows(false), 0, &cache.queries).0, &a.out[0]);
            let bound = f64::from(a.certificates[0].bound);
            executed += 1;
            failed += usize::from(!(error <= bound));
            caught += usize::from(!(error <= 0.5 * bound));
            assert!(error <= bound, "{error} {bound}");
        }
    }
    println!("GATE kernel-key-bound executed={executed} failed={failed} controls={caught}/{executed} seed=0x1");
    assert_eq!(caught, executed);
}
