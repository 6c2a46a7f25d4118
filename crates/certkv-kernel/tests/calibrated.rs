//! Calibrated keys, math.md (2.19a): what the constant of the centre and the folded query do to bounds, and what is refused.
//! That errors are within bounds on every path is in `sound.rs`, repairs are in `exact.rs`.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN has to fail")]
mod common;
use certkv_kernel::{Arch, BlockSource, Certificate, Kernel, KernelError, Masses, Workspace};
use common::{Cache, Rng, distance, encode_in, norm};

fn archs() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|a| a.is_available())
}

/// Outputs and certificates of one pass over all blocks.
fn pass<S: BlockSource + ?Sized>(
    kernel: &Kernel,
    cache: &Cache,
    source: &S,
) -> Result<Vec<(Vec<f32>, Certificate)>, KernelError> {
    let blocks = cache.blocks.len();
    let (mut masses, mut partial) = (Masses::new(kernel.heads(), blocks + 1), kernel.partial());
    let tail = cache.tail();
    kernel.attend(
        &cache.queries,
        source,
        0..blocks,
        tail,
        &mut Workspace::new(),
        &mut partial,
        Some(masses.as_mut()),
    )?;
    let answer = |h: usize| {
        let mut out = vec![f32::NAN; cache.layout.dim];
        partial.finish(h, &mut out)?;
        let radius = distance(&cache.centre, &out) * (1.0 + 1e-6);
        Ok((out, kernel.certify(&masses, &partial, h, radius as f32)?))
    };
    (0..kernel.heads()).map(answer).collect()
}

/// Replaces the keys of every token, and the codes with them.
fn set_keys(cache: &mut Cache, mut key: impl FnMut(usize) -> Vec<f64>) {
    let (dim, store, layout) = (cache.layout.dim, cache.layout.store, cache.layout.clone());
    let words = |row: Vec<f64>| row.into_iter().map(|x| store.encode16(x as f32)).collect::<Vec<_>>();
    for t in 0..cache.tail {
        cache.tail_keys[t * dim..(t + 1) * dim].copy_from_slice(&words(key(t)));
    }
    let size = layout.tokens();
    for b in 0..cache.blocks.len() {
        let keys: Vec<u16> = (0..size).flat_map(|t| words(key(b * size + t))).collect();
        let record = encode_in(cache.key_metric(), &layout, &keys, &cache.blocks[b].values, &cache.centre);
        (cache.blocks[b].keys, cache.blocks[b].record) = (keys, record);
    }
}

/// Keys with a loud mean and channels of unlike size: the codes of their deviations, balanced, bound logits several times as
/// closely as codes of the keys themselves.
#[test]
fn offsets_and_unbalanced_channels_cost_nothing() {
    let dim = 128;
    let spread = |c: usize| if c.is_multiple_of(8) { 4.0 } else { 0.25 };
    let mean = |c: usize| if c % 16 < 2 { 8.0 } else { 0.0 };
    let mut answers = Vec::new();
    for format in ["tq4-f16-b32", "ctq4-f16-b32"] {
        let mut cache = Cache::new(format, dim, 2, 320, 0, 21);
        // Queries that listen to quiet channels, as those of a model do.
        let mut rng = Rng(3);
        cache.queries = (0..2 * dim).map(|i| (rng.normal() * 0.2 / spread(i % dim)) as f32).collect();
        if cache.metric.is_some() {
            let balance = (0..dim).map(|c| (0.2 / spread(c) / spread(c)).sqrt() as f32).collect();
            cache.metric = Some(((0..dim).map(|c| mean(c) as f32).collect(), balance));
        }
        set_keys(&mut cache, |_| (0..dim).map(|c| mean(c) + spread(c) * rng.normal()).collect());
        let (exact, kernel) = (cache.rows(false), Kernel::new(&cache.geometry, &cache.layout, Arch::detect()).unwrap());
        let bounds: Vec<f64> = pass(&kernel, &cache, &cache.centred())
            .unwrap()
            .iter()
            .enumerate()
            .map(|(h, (out, c))| {
                let error = distance(&cache.attention(&exact, h, &cache.queries).0, out);
                assert!(error <= f64::from(c.bound), "{format} {h}: {error} {c:?}");
                f64::from(c.e_quant()) / norm(&cache.attention(&exact, h, &cache.queries).0)
            })
            .collect();
        answers.push(bounds);
    }
    println!("bounds over outputs: plain {:?}, calibrated {:?}", answers[0], answers[1]);
    for (plain, calibrated) in answers[0].iter().zip(&answers[1]) {
        assert!(*calibrated > 0.0 && 3.0 * calibrated < *plain, "{plain} {calibrated}");
    }
}

/// A centre that adds tens of thousands of nats to every logit: what single precision makes of the sum is most of the error, and
/// has to be in the arithmetic part.
#[test]
fn the_rounding_of_a_loud_constant_is_in_the_bound() {
    let (dim, mut felt) = (64, 0);
    for seed in 0..8u64 {
        let mut cache = Cache::new("ctq6-f16-b16", dim, 1, 64, 0, seed);
        let mut rng = Rng(seed ^ 9);
        // The scale keeps the loud query channel out of what codes answer for.
        let (mut centre, mut balance) = (vec![0.0; dim], vec![1.0; dim]);
        (centre[0], balance[0]) = (1000.0, 1048576.0);
        cache.metric = Some((centre, balance));
        cache.queries[0] = 300.0 + seed as f32;
        cache.queries[1..].fill(0.01);
        // The loud channel is what the centre takes away, to the bit.
        set_keys(&mut cache, |_| (0..dim).map(|c| if c == 0 { 1000.0 } else { 1e-2 * rng.normal() }).collect());
        let exact = cache.attention(&cache.rows(false), 0, &cache.queries).0;
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let (out, c) = &pass(&kernel, &cache, &cache.centred()).unwrap()[0];
            let error = distance(&exact, out);
            assert!(error <= f64::from(c.bound), "{} {seed}: {error} {c:?}", arch.name());
            felt += usize::from(error > f64::from(c.e_quant()));
            // A logit of this size is off by half a step of its own: nothing else in the block is that loud.
            let constant = f64::from(cache.geometry.scale) * f64::from(cache.queries[0]) * 1000.0;
            let (mut masses, mut partial) = (Masses::new(1, 5), kernel.partial());
            let tiles = Some(masses.as_mut());
            let (source, queries) = (cache.centred(), &cache.queries);
            kernel.attend(queries, &source, 0..4, None, &mut Workspace::new(), &mut partial, tiles).unwrap();
            let zeta = f64::from(masses.get(0, 0).unwrap().zeta);
            assert!(zeta >= constant * 2f64.powi(-24) && zeta < constant * 1e-5, "{zeta} {constant}");
        }
    }
    println!("{felt} errors beyond what codes explain");
    assert!(felt > 0);
}

#[test]
fn codes_need_a_metric_and_rows_do_not() {
    let mut cache = Cache::new("ctq4-tq4-b32", 64, 3, 200, 1, 4);
    let kernel = Kernel::new(&cache.geometry, &cache.layout, Arch::detect()).unwrap();
    let refused = pass(&kernel, &cache, &cache.source()).map(|_| ()).unwrap_err();
    assert_eq!(refused, KernelError::Metric { index: 0 });
    assert!(refused.to_string().starts_with("block 0"), "{refused}");
    let (short, mut other) = ([1.0; 32], cache.centred());
    other.metric = Some(certkv_codec::KeyMetric::new(&short, &short).unwrap());
    assert_eq!(pass(&kernel, &cache, &other).map(|_| ()).unwrap_err(), KernelError::Metric { index: 0 });
    // The kernel of a plain format takes no notice of one.
    let plain = Cache::new("tq4-tq4-b32", 64, 3, 200, 1, 4);
    let without = pass(&Kernel::new(&plain.geometry, &plain.layout, Arch::detect()).unwrap(), &plain, &plain.centred());
    let mut with = plain.centred();
    let ones = [1.0; 64];
    with.metric = Some(certkv_codec::KeyMetric::new(&ones, &ones).unwrap());
    let with = pass(&Kernel::new(&plain.geometry, &plain.layout, Arch::detect()).unwrap(), &plain, &with);
    assert_eq!(without.unwrap()[0].0, with.unwrap()[0].0);
    // Directions are needed where codes are directions, and those of another tier are none.
    let sphere = Cache::new("s1-tq4-b32", 64, 3, 200, 1, 4);
    let of_sphere = Kernel::new(&sphere.geometry, &sphere.layout, Arch::detect()).unwrap();
    let foreign = Cache::new("s2-tq4-b32", 64, 3, 200, 1, 4);
    pass(&of_sphere, &sphere, &sphere.centred()).unwrap();
    for metric in [None, foreign.key_metric(), cache.key_metric()] {
        let mut other = sphere.centred();
        other.metric = metric;
        assert_eq!(pass(&of_sphere, &sphere, &other).map(|_| ()).unwrap_err(), KernelError::Metric { index: 0 });
    }
    // All keys read exactly: a metric changes nothing, and none is needed.
    cache.exact.iter_mut().for_each(|e| e.0 = true);
    let (without, with) =
        (pass(&kernel, &cache, &cache.source()).unwrap(), pass(&kernel, &cache, &cache.centred()).unwrap());
    for (a, b) in without.iter().zip(&with) {
        assert_eq!((a.1.e_key, a.1.bound.to_bits()), (0.0, b.1.bound.to_bits()));
        assert_eq!(a.0, b.0);
    }
}

/// Quotients and constants that single precision does not hold promise nothing, and are no NaN where exact keys answer.
#[test]
fn a_query_without_a_quotient_promises_nothing() {
    for (query, scale, centre) in [(1e30, 1e-20, 0.0), (3e38, 1.0, 1e10), (1e20, 1.0, 1e20)] {
        let mut cache = Cache::new("ctq4-f16-b16", 64, 2, 70, 0, 8);
        cache.queries[5] = query;
        let (mut c, mut b) = (vec![0.0; 64], vec![1.0; 64]);
        (c[5], b[5]) = (centre, scale);
        cache.metric = Some((c, b));
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let found = pass(&kernel, &cache, &cache.centred()).unwrap();
            assert!(!(found[0].1.e_quant() < f32::INFINITY) || found[0].1.bound >= found[0].1.cap, "{:?}", found[0].1);
            // The other head has its own query.
            assert!(found[1].1.bound.is_finite() && found[1].0.iter().all(|x| x.is_finite()), "{:?}", found[1].1);
        }
    }
    // Products with directions, too.
    for query in [1e38, 3e38] {
        let mut cache = Cache::new("s1-f16-b16", 64, 2, 70, 0, 8);
        cache.queries[..64].fill(query);
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let found = pass(&kernel, &cache, &cache.centred()).unwrap();
            assert!(!(found[0].1.e_quant() < f32::INFINITY) || found[0].1.bound >= found[0].1.cap, "{:?}", found[0].1);
            assert!(found[1].1.bound.is_finite() && found[1].0.iter().all(|x| x.is_finite()), "{:?}", found[1].1);
        }
    }
}

/// Tokens that are all off by the same, and a query along that: the mass of the block is off by `Delta` itself (2.22c), which is then neither less
/// than what happened nor more. `Delta` with a hundredth less is seen.
#[test]
fn the_bound_of_directions_is_reached() {
    let (mut executed, mut seen) = (0, 0);
    for (case, format) in ["s1-f16-b16", "s2-f16-b32", "s3-f16-b64"].into_iter().cycle().take(12).enumerate() {
        let dim = [64, 96, 128, 256][case / 3];
        let mut cache = Cache::new(format, dim, 1, format[8..].parse().unwrap(), 0, case as u64);
        let mut rng = Rng(case as u64 + 100);
        let key: Vec<f64> = (0..dim).map(|_| rng.normal()).collect();
        set_keys(&mut cache, |_| key.clone());
        let (originals, coded) = (cache.rows(false).0, cache.rows(true).0);
        let error: Vec<f64> = originals[0].iter().zip(&coded[0]).map(|(k, d)| k - d).collect();
        assert!(norm(&error) > 0.1 * norm(&key));
        cache.queries = error.iter().map(|e| (4.0 * e / norm(&error)) as f32).collect();
        for arch in archs() {
            let kernel = Kernel::new(&cache.geometry, &cache.layout, arch).unwrap();
            let (mut masses, mut partial) = (Masses::new(1, 1), kernel.partial());
            let tiles = Some(masses.as_mut());
            let queries = &cache.queries;
            kernel.attend(queries, &cache.centred(), 0..1, None, &mut Workspace::new(), &mut partial, tiles).unwrap();
            let (_, exact) = cache.attention(&cache.rows(false), 0, queries);
            let (off, mass) = ((exact - partial.log_mass(0)).abs(), masses.get(0, 0).unwrap());
            let (delta, zeta) = (f64::from(mass.delta), f64::from(mass.zeta));
            assert!(off <= delta + zeta, "{format} {dim} {}: {off} over {delta} + {zeta}", arch.name());
            assert!(delta <= off * 1.0001 + zeta, "{format} {dim} {}: {off} under {delta}", arch.name());
            executed += 1;
            seen += usize::from(!(off <= 0.99 * delta + zeta));
        }
    }
    println!("GATE directions-tight executed={executed} failed=0 controls={seen}/{executed} seed=0x0");
    assert_eq!(seen, executed);
}
