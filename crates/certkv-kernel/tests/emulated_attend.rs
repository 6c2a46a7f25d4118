//! The decode kernel of the GPU, run on the emulator, against attention in f64: outputs, bounds, masses.
#[path = "emulated_attend/calibrated.rs"]
mod calibrated;
#[path = "emulated_attend/closing.rs"]
mod closing;
#[path = "device_cases/mod.rs"]
mod device_cases;
#[path = "emulated_attend/directions.rs"]
mod directions;
#[path = "emulated_attend/drafts.rs"]
mod drafts;
#[path = "emulated/mod.rs"]
mod emulated;
#[path = "emulated_attend/grouped.rs"]
mod grouped;
#[path = "emulated_attend/levels.rs"]
mod levels;
#[path = "emulated_attend/lists.rs"]
mod lists;
#[path = "emulated_attend/refine.rs"]
mod refine;
#[path = "emulated_attend/rows.rs"]
mod rows;
#[path = "emulated_attend/settled.rs"]
mod settled;
#[path = "emulated_attend/window.rs"]
mod window;
use certkv_core::Dtype;
use certkv_kernel::cuda::args::{AttendArgs, Certificate};
use certkv_kernel::cuda::{Arch, Variant};
use certkv_testkit::generate::{Kind, Rng};
use device_cases::{Case, Correction, Refining, Spec, Verdict, bytes32, demand_words};
use emulated::{Buffer, Emulated, Launch};
use std::cell::RefCell;

/// Blocks of 64 tokens go through a ring of one slot, which is filled side by side; others through two.
fn variant(spec: &Spec) -> Variant {
    let stages = if spec.layout().tokens() == 64 { 1 } else { 2 };
    let of_tokens = |v: Variant| if spec.draft > 0 { v.drafting(spec.draft) } else { Ok(v) };
    let variant = Variant::new(spec.layout(), spec.heads(), Arch::Sm90a).and_then(of_tokens);
    let variant = variant.and_then(|v| v.with_shape(4, stages));
    seeing(variant.unwrap_or_else(|e| panic!("{e}")), spec)
}

/// The same for queries that see what those of the case do.
fn seeing(variant: Variant, spec: &Spec) -> Variant {
    if spec.sight.is_some() { variant.windowed() } else { variant }
}

struct Run {
    out: Vec<f32>,
    certificates: Vec<Certificate>,
    masses: Vec<u32>,
    failures: Vec<u32>,
    /// Sides whose residuals were read, keys and values.
    refined: Vec<u32>,
    demands: Vec<u32>,
    /// Which they are, `[head][stride]`; empty where nothing chooses.
    looks: Vec<u8>,
    /// Room for a list of heads to compute and their order, all zero unless the caller gave one.
    list: Vec<u32>,
    /// Of the pass, where that was corrected.
    before: Vec<Certificate>,
    correction: Correction,
}

fn run(case: &Case, ctas: usize, how: impl Fn(Launch) -> Launch) -> Run {
    run_variant(case, &variant(&case.spec), true, ctas, how)
}

/// `bulk`: as on GPUs that copy whole records at once; older ones copy 16 bytes a thread.
fn run_variant(case: &Case, variant: &Variant, bulk: bool, ctas: usize, how: impl Fn(Launch) -> Launch) -> Run {
    run_behind(case, variant, bulk, ctas, how, |args, _| (*args, Vec::new())).unwrap_or_else(|e| panic!("{e}"))
}

/// `behind`: the arguments, and what a launch ahead may still be writing.
fn run_behind(
    case: &Case,
    variant: &Variant,
    bulk: bool,
    ctas: usize,
    how: impl Fn(Launch) -> Launch,
    behind: impl Fn(&AttendArgs, &[&Buffer]) -> (AttendArgs, Vec<(u64, u64)>),
) -> Result<Run, String> {
    let build = |variant: &Variant| {
        let mut macros: Vec<(&str, i64)> =
            variant.macros().into_iter().map(|(name, value)| (name, value as i64)).collect();
        if !bulk {
            macros.push(("CKV_BULK", 0));
        }
        Emulated::build("attend.cu", &macros).unwrap_or_else(|e| panic!("{e}"))
    };
    let memory = RefCell::new(Vec::new());
    let keep = |buffer: Buffer| {
        let at = buffer.pointer();
        memory.borrow_mut().push(buffer);
        at
    };
    let placed = case.place(ctas, &mut |bytes| keep(Buffer::of(bytes)), &mut |n| keep(Buffer::zeroed(n)));
    let out = Buffer::of(&vec![u32::MAX; placed.outputs]);
    let certificates = Buffer::of(&vec![u32::MAX; placed.heads * Certificate::WORDS]);
    let masses = Buffer::of(&vec![u32::MAX; placed.masses]);
    let failures = Buffer::zeroed((1 + case.launch_heads()) * 4);
    let demands = case.demands();
    let before = Buffer::of(&demand_words(&demands));
    let refined = Buffer::zeroed(8);
    let kept = Buffer::of(&vec![u32::MAX; case.launch_heads() * variant.partial_stride()]);
    let looks = Buffer::of(&vec![0xffu8; case.launch_heads() * case.stride()]);
    let corrects = Case::corrects(&case.spec, variant).unwrap_or_else(|e| panic!("{e}"));
    let chooses = matches!(case.spec.refine, Refining::OnDemand(_) | Refining::Picked(_));
    let args = AttendArgs {
        kept: if corrects.is_some() { kept.pointer() } else { 0 },
        looks: if chooses { looks.pointer() } else { 0 },
        demands: if demands.is_empty() { 0 } else { before.pointer() },
        refined: refined.pointer(),
        out: out.pointer(),
        certificates: certificates.pointer(),
        masses: masses.pointer(),
        failures: failures.pointer(),
        ..placed.args
    };
    let list = Buffer::zeroed((1 + 2 * case.launch_heads()) * 4);
    let memory = memory.into_inner();
    let mut all: Vec<&Buffer> = memory.iter().collect();
    all.extend([&out, &certificates, &masses, &failures, &before, &refined, &kept, &looks, &list]);
    let launch = |of: &Variant| how(Launch::new(ctas as u32, of.shape().threads() as u32, of.shape().shared as u32));
    let (args, late) = behind(&args, &all);
    let ran = build(variant).launch_behind("ckv_attend", launch(variant), &args, &all, &late);
    ran.map_err(|e| format!("{:?}: {e}", case.spec))?;
    let said = || -> Vec<Certificate> {
        certificates.read::<u32>().as_chunks().0.iter().map(Certificate::from_words).collect()
    };
    let pass = said();
    let mut correction = Correction::default();
    if let Some((variant, c)) = corrects.zip(case.correction(&looks.read::<u8>())) {
        list.write(0, &c.only);
        let [picks, picked] = [&c.picks, &c.counts()].map(|words| Buffer::of(&bytes32(words)));
        // A list of its own.
        failures.write(0, &[0u32]);
        let args = AttendArgs {
            picks: picks.pointer(),
            picked: picked.pointer(),
            only: list.pointer(),
            demands: 0,
            looks: 0,
            masses: 0,
            promoted: 0,
            settled: 0,
            ..args
        };
        let all: Vec<&Buffer> = all.iter().copied().chain([&picks, &picked]).collect();
        let ran = build(&variant).launch_behind("ckv_attend", launch(&variant), &args, &all, &[]);
        ran.map_err(|e| format!("{:?}, the correction: {e}", case.spec))?;
        correction = c;
    }
    let looks = if !correction.looks.is_empty() {
        correction.looks.clone()
    } else if chooses {
        looks.read()
    } else {
        Vec::new()
    };
    Ok(Run {
        looks,
        list: list.read(),
        before: pass,
        correction,
        out: case.outputs(&out.read())?,
        certificates: said(),
        masses: masses.read(),
        failures: failures.read(),
        refined: refined.read(),
        demands: before.read(),
    })
}

/// For [`run_behind`]: the launch is told other words of what keys are coded by than its case has.
fn with_metrics(words: &[u32]) -> impl Fn(&AttendArgs, &[&Buffer]) -> (AttendArgs, Vec<(u64, u64)>) {
    |args, memory| {
        let own = memory.iter().find(|buffer| buffer.pointer() == args.metrics).expect("the case's");
        own.write(0, words);
        (*args, Vec::new())
    }
}

fn check(spec: &Spec, ctas: usize) -> Verdict {
    let case = Case::new(spec);
    let r = run(&case, ctas, |l| l.seed(spec.seed).truncating().noisy());
    checked(&case, &r)
}

fn checked(case: &Case, r: &Run) -> Verdict {
    let spec = &case.spec;
    let mut v = case.judge(&r.out, &r.certificates, &r.masses, &r.looks);
    v.wrong.extend(case.judge_refined(&r.refined, &r.demands, &r.before));
    v.wrong.extend(case.judge_picked(&r.correction.picked, &r.certificates));
    assert!(v.wrong.is_empty(), "{spec:?}: {} wrong, first {:#?}", v.wrong.len(), &v.wrong[..v.wrong.len().min(5)]);
    println!(
        "{:16} d {:3} group {:2} {:?} {:?}: rounding {:.1e}, e_arith {:.1e}, bound {:.3} of the norm, tightness {:.1}",
        spec.format,
        spec.dim,
        spec.group,
        spec.kind,
        spec.refine,
        v.rounding,
        v.arith,
        v.relative / v.finite.max(1) as f64,
        v.tightness / v.finite.max(1) as f64,
    );
    v
}

/// An output that is bounded although no square of a value is a number: rounding is relative to what is there.
#[test]
fn values_whose_squares_vanish_are_bounded() {
    for (format, lens) in
        [("bf16-bf16-b16", &[9usize, 14, 40][..]), ("k8-v4g32-b32", &[20, 100]), ("tq4-tq4-b32", &[31, 70])]
    {
        let of = Spec::new(format, 64, 4, lens);
        check(&Spec { store: Dtype::Bf16, kind: Kind::VanishingValues, ..of }, 3);
    }
}

#[test]
fn the_default_format_matches_attention_in_f64() {
    check(&Spec::new("k8-v4g32-b32", 128, 4, &[100]), 3);
    check(&Spec { keys: 0.0, values: 0.0, ..Spec::new("k8-v4g32-b32", 128, 4, &[700, 33, 1]) }, 5);
}

#[test]
fn formats_heads_and_groups_match_attention_in_f64() {
    for (format, dim) in [
        ("k8-v4g64-b64", 128),
        ("k8-v4g16-b16", 64),
        ("k8-v6g32-b32", 96),
        ("k8-v8g64-b32", 64),
        ("k8-v3g32-b16", 96),
        ("t4-v5g32-b32", 64),
        ("t8g32-v4g32-b16", 64),
        ("t6-v7g64-b16", 128),
        ("f16-f16-b16", 64),
        ("tq4-tq4-b64", 128),
        ("tq3-tq2-b32", 64),
        ("tq6-tq5-b64", 128),
        ("tq5-tq6-b32", 64),
        ("tq1-v4g32-b16", 64),
        ("k8-tq4-b32", 128),
        ("tq2-tq3-b64", 256),
        ("e4m3-e4m3-b64", 128),
        ("e5m2g32-e4m3g16-b16", 96),
        ("p8-p8-b32", 128),
        ("k8-c4-b64", 128),
        ("t4-c5-b16", 96),
        ("tq4-c8-b32", 64),
        ("p4g32-p4g32-b64", 64),
        ("k8-e5m2g64-b32", 64),
        ("k4-v4g64-b64", 128),
        ("k7-v6g32-b16", 96),
        ("k6-tq4-b32", 64),
        ("k5-c5-b32", 256),
        ("k3-v3g32-b32", 64),
        ("k2-v2g16-b16", 128),
    ] {
        check(&Spec { seed: dim as u64, ..Spec::new(format, dim, 2, &[90, 40]) }, 4);
    }
    for group in [1, 3, 5, 8, 11, 16] {
        check(&Spec { seed: group as u64, ..Spec::new("k8-v4g32-b16", 64, group, &[61]) }, 2);
    }
    check(&Spec::new("k8-v4g32-b32", 256, 2, &[75]), 2);
}

/// However far the logits' errors reach, no two convex combinations of values lie farther apart than these do: the cap holds for all that a bound
/// counts, with what rounding adds to a term that has long lost its meaning.
#[test]
fn no_bound_exceeds_the_cap() {
    for (format, longer) in
        [("t4-v4g32-b32", 8.0), ("t4-v4g32-b32", 60.0), ("k8-v4g64-b64-r5.4", 400.0), ("k8-v4g32-b32", 2000.0)]
    {
        let spec = Spec { keys: 0.0, values: 0.0, ..Spec::new(format, 64, 2, &[300, 64]) };
        let mut case = Case::new(&spec);
        for head in &mut case.heads {
            let scaled = |x: &u16| Dtype::F16.encode16(Dtype::F16.decode16(*x) * longer);
            head.data.queries = head.data.queries.iter().map(scaled).collect();
        }
        let r = run(&case, 3, |l| l.seed(5));
        for (i, c) in r.certificates.iter().enumerate() {
            let head = &case.heads[i / spec.group];
            let away = |row: &[f64]| -> f64 {
                row.iter().zip(&head.centre).map(|(v, c)| (v - f64::from(*c)).powi(2)).sum::<f64>().sqrt()
            };
            let most = head.data.values_f64().chunks_exact(spec.dim).map(away).fold(0.0, f64::max);
            let cap = most + f64::from(c.radius);
            assert!(f64::from(c.bound) <= 1.1 * cap, "{format} x {longer}, head {i}: {} above {cap}: {c:?}", c.bound);
        }
    }
}

/// Logits of thousands, larger from block to block: what a block adds to the bound is more than a float holds, and then nothing beside the next
/// one's weights. Components of the bound stay numbers, the bound does not exceed the cap, and a head with a coded block is not exact.
#[test]
fn logits_far_apart_have_bounds_that_are_numbers() {
    let mut infinite = 0;
    for (format, exact) in [
        ("k4-v4g32-b32", 0.0),
        ("k4-v4g32-b32", 0.5),
        ("k4-v4g32-b32", 1.0),
        ("t5-v8g32-b16", 0.0),
        ("tq3-tq3-b32", 0.5),
        ("s3-v4g32-b32", 0.5),
        ("k4-v4g32-b32-r4.4", 0.0),
    ] {
        let spec = Spec { keys: exact, values: exact, ..Spec::new(format, 64, 2, &[300, 64]) };
        let case = Case::with(&spec, |data| {
            let grown = |i: usize, x: &u16| Dtype::F16.encode16(Dtype::F16.decode16(*x) * (1 + i / 64 / 8) as f32);
            data.keys = data.keys.iter().enumerate().map(|(i, x)| grown(i, x)).collect();
            data.queries = data.queries.iter().map(|x| Dtype::F16.encode16(Dtype::F16.decode16(*x) * 60.0)).collect();
        });
        let r = run(&case, 3, |l| l.seed(5));
        for (i, c) in r.certificates.iter().enumerate() {
            assert!(c.e_key >= 0.0 && c.e_val >= 0.0 && c.bound.is_finite(), "{format}, head {i}: {c:?}");
            infinite += usize::from(c.e_key == f32::INFINITY);
        }
        checked(&case, &r);
    }
    assert!(infinite > 10, "{infinite}: nothing was beyond a float");
}

/// Where registers are scarce the kernel keeps the query in shared memory and works off its column tiles apart.
#[test]
fn many_heads_and_channels_match_attention_in_f64() {
    for (format, dim, group, store) in [
        ("k8-v4g64-b32", 128, 16, Dtype::F16),
        ("k8-v8g64-b64", 128, 9, Dtype::F16),
        ("k8-v4g32-b32", 256, 8, Dtype::F16),
        ("t4-v4g64-b16", 256, 16, Dtype::F16),
        ("k8-v4g32-b32", 256, 12, Dtype::Bf16),
        ("bf16-bf16-b16", 128, 12, Dtype::Bf16),
        ("tq4-tq4-b64", 128, 12, Dtype::F16),
        ("tq4-tq1-b32", 256, 16, Dtype::Bf16),
        ("tq6-tq6-b32", 128, 12, Dtype::F16),
        ("e4m3-e4m3g64-b64", 128, 12, Dtype::F16),
        ("p8-e4m3-b32", 256, 6, Dtype::Bf16),
    ] {
        check(&Spec { store, seed: (dim + group) as u64, ..Spec::new(format, dim, group, &[75, 20]) }, 3);
    }
}

#[test]
fn hard_data_stays_within_the_bound() {
    for kind in Kind::ALL {
        for store in [Dtype::F16, Dtype::Bf16] {
            let seed = 40 + kind as u64;
            for format in ["k8-v4g32-b32", "k3-v4g32-b32", "tq4-tq4-b32", "tq5-tq6-b32"] {
                check(&Spec { kind, store, seed, ..Spec::new(format, 64, 4, &[200, 32, 7]) }, 3);
            }
        }
    }
}

/// A query times a scale of few bits can leave the range of halves: then nothing is certified, and nothing else is wrong.
#[test]
fn scales_beyond_the_range_of_products_are_not_certified() {
    for (format, wide) in [("k8-v4g32-b32", false), ("k5-v4g32-b32", false), ("k2-v4g32-b32", true)] {
        let spec = Spec { keys: 0.0, values: 0.0, ..Spec::new(format, 64, 2, &[96]) };
        // One channel of alternate sign as wide as halves are; where its scale times the query fits, the query hardly looks at it.
        let case = Case::with(&spec, |data| {
            for (i, key) in data.keys.iter_mut().enumerate().filter(|(i, _)| i % 64 == 5) {
                *key = Dtype::F16.encode16(if i / 64 % 2 == 0 { 6.0e4 } else { -6.0e4 });
            }
            for query in data.queries.iter_mut().skip(5).step_by(64) {
                *query = Dtype::F16.encode16(if wide { 4.0 } else { 1.0e-7 });
            }
        });
        let r = run(&case, 2, |l| l.seed(3));
        assert!(
            r.certificates.iter().all(|c| c.bound.is_finite() != wide && (c.status == 0 || !wide)),
            "{format}: {:?}",
            r.certificates
        );
        assert!(case.judge(&r.out, &r.certificates, &r.masses, &r.looks).wrong.is_empty(), "{format}");
    }
}

#[test]
fn splits_and_shared_pages_change_nothing_that_matters() {
    let spec = Spec { forked: true, ..Spec::new("k8-v4g32-b16", 64, 2, &[130, 200, 96]) };
    for ctas in [1, 2, 7, 16] {
        check(&spec, ctas);
    }
    let case = Case::new(&spec);
    let (a, b) = (run(&case, 7, |l| l.seed(1)), run(&case, 7, |l| l.seed(2)));
    let bits = |r: &Run| r.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&a), bits(&b), "the order of threads and CTAs shows in the output");
    let failed = |r: &Run| {
        let mut list = r.failures[1..=r.failures[0] as usize].to_vec();
        list.sort_unstable();
        list
    };
    let over: Vec<u32> = (0..case.launch_heads() as u32)
        .filter(|h| (0..2).any(|g| a.certificates[*h as usize * 2 + g].status == 0))
        .collect();
    assert_eq!(failed(&a), over);
    assert_eq!(failed(&b), over);
}

/// Blocks of which originals are read stand between coded ones, in rings of one slot and of more, with bulk copies and, before 9.0, without.
#[test]
fn originals_between_codes_are_read_in_every_ring() {
    for (format, dim, group, warps, stages) in [
        ("k8-v4g64-b64", 128, 4, 4, 1),
        ("k8-v4g32-b32", 64, 6, 12, 1),
        ("t4-v5g32-b16", 64, 2, 4, 1),
        ("f16-v8g32-b16", 96, 12, 4, 1),
        ("k8-v4g32-b32", 128, 3, 4, 2),
        ("tq4-tq4-b64", 128, 4, 4, 1),
        ("tq4-tq3-b32", 64, 6, 12, 2),
        ("k8-tq4-b32", 256, 9, 4, 1),
        ("k8-v4g64-b64", 128, 12, 4, 1),
    ] {
        for (keys, values) in [(0.4, 0.2), (0.0, 1.0), (1.0, 0.0)] {
            // Several blocks to each warp; large groups take long to emulate.
            let lens: &[usize] = if group > 8 { &[330, 130, 7] } else { &[1500, 130, 7, 64] };
            let spec = Spec { keys, values, seed: dim as u64, ..Spec::new(format, dim, group, lens) };
            let variant =
                Variant::new(spec.layout(), spec.group, Arch::Sm80).and_then(|v| v.with_shape(warps, stages)).unwrap();
            with_bulk_copies_as_without(&spec, &variant);
        }
    }
}

/// Runs a case either way, against float64 and bit for bit.
fn with_bulk_copies_as_without(spec: &Spec, variant: &Variant) {
    let case = Case::new(spec);
    let [old, new] = [false, true].map(|bulk| run_variant(&case, variant, bulk, 3, |l| l.seed(7).truncating()));
    checked(&case, &old);
    let bits = |r: &Run| r.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&old), bits(&new), "{spec:?}");
    assert_eq!(old.masses, new.masses, "{spec:?}");
}

/// A launch that is not told of the heads' own tolerances holds them to others, which is seen; cases of other seeds have one for all.
#[test]
fn the_judge_sees_tolerances_of_other_heads() {
    for (seed, own) in [(1, false), (2, false), (3, true)] {
        let case = Case::new(&Spec { seed, ..Spec::new("k8-v4g32-b32", 64, 2, &[70, 40]) });
        let untold = |args: &AttendArgs, _: &[&Buffer]| (AttendArgs { limits: 0, ..*args }, Vec::new());
        let run =
            run_behind(&case, &variant(&case.spec), true, 3, |l| l.seed(5), untold).unwrap_or_else(|e| panic!("{e}"));
        let wrong = case.judge(&run.out, &run.certificates, &run.masses, &run.looks).wrong;
        assert_eq!(wrong.iter().any(|w| w.contains("held to")), own, "{wrong:?}");
        checked(&case, &run_variant(&case, &variant(&case.spec), true, 3, |l| l.seed(5)));
    }
}

/// Shares of a ragged batch: every block belongs to one CTA, whatever the lengths and the number of CTAs.
#[test]
fn ragged_batches_are_cut_without_a_gap() {
    let mut r = Rng::new(0x7a66);
    let mut cases: Vec<(Vec<usize>, usize, usize)> = (0..24)
        .map(|_| {
            let seqs = 1 + r.below(12);
            let most = [20, 90, 400][r.below(3)];
            ((0..seqs).map(|_| 1 + r.below(most)).collect(), 1 + r.below(3), 1 + r.below(40))
        })
        .collect();
    // More sequences than a CTA keeps the places of; one long among many short; all alike.
    cases.push(((0..300).map(|i| 1 + i * 7 % 40).collect(), 1, 9));
    cases.push((vec![1, 1, 600, 1, 1, 1], 2, 7));
    cases.push((vec![64; 5], 3, 4));
    cases.push((vec![160; 3], 2, 132));
    for (i, (lens, kv_heads, ctas)) in cases.into_iter().enumerate() {
        check(&Spec { kv_heads, seed: i as u64, ..Spec::new("k8-v4g32-b16", 64, 1, &lens) }, ctas);
    }
}
