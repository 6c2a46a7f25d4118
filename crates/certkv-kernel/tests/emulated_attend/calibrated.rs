//! Keys of a calibration, math.md (2.19a): queries are folded, and what the keys' centre adds is added to logits from codes alone.
use super::device_cases::{Case, Spec};
use super::emulated::Buffer;
use super::{check, checked, run, run_behind, variant, with_bulk_copies_as_without};
use certkv_core::Dtype;
use certkv_kernel::cuda::args::AttendArgs;
use certkv_kernel::cuda::{Arch, Sight, Variant};
use certkv_testkit::generate::Kind;

#[test]
fn formats_heads_and_groups_match_attention_in_f64() {
    near_and_far(&[
        ("ctq4-tq4-b64", 128, 4),
        ("ctq3-v4g32-b32", 64, 2),
        ("ctq2-f16-b16", 64, 5),
        ("ctq1-c4-b32", 64, 8),
        ("ctq4-e4m3-b32", 128, 1),
        ("ctq2-tq3-b64", 256, 2),
        ("ctq5-tq5-b64", 128, 4),
        ("ctq6-tq6-b32", 64, 2),
        ("ctq4-tq4-b64", 128, 12),
        ("ctq3-tq1-b32", 256, 16),
    ]);
    let sight = Some(Sight { tokens: 70, sinks: 20 });
    check(&Spec { sight, seed: 2, ..Spec::new("ctq4-tq4-b32", 64, 4, &[200, 90, 7]) }, 3);
}

#[test]
fn hard_data_stays_within_the_bound() {
    for kind in Kind::ALL {
        for (store, seed) in [(Dtype::F16, 41), (Dtype::Bf16, 43)] {
            check(&Spec { kind, store, seed, ..Spec::new("ctq4-tq4-b32", 64, 4, &[200, 32, 7]) }, 3);
        }
    }
    // Blocks 26 to 29 octaves below the others, whose weights thin out.
    let kind = Kind::OutlierChannels;
    check(&Spec { kind, seed: 70 + kind as u64, ..Spec::new("ctq4-tq4-b32", 128, 4, &[1500, 64, 7, 511]) }, 4);
}

#[test]
fn originals_between_codes_are_read_in_every_ring() {
    in_rings(&[("ctq4-tq4-b64", 128, 4, 4, 1), ("ctq4-v4g32-b32", 64, 6, 12, 2), ("ctq3-tq3-b32", 128, 9, 4, 1)]);
}

/// Formats, channels and query heads to a KV head, under what keys are coded by that is near, and far out.
pub(super) fn near_and_far(cases: &[(&'static str, usize, usize)]) {
    for &(format, dim, group) in cases {
        for seed in [1, 3] {
            check(&Spec { seed, ..Spec::new(format, dim, group, &[90, 40]) }, 3);
        }
    }
}

/// The same with originals between codes, in rings of so many warps and stages.
pub(super) fn in_rings(cases: &[(&'static str, usize, usize, usize, usize)]) {
    for &(format, dim, group, warps, stages) in cases {
        for (keys, values) in [(0.4, 0.2), (1.0, 0.0)] {
            let lens: &[usize] = if group > 8 { &[330, 130, 7] } else { &[900, 130, 7, 64] };
            let spec = Spec { keys, values, seed: dim as u64, ..Spec::new(format, dim, group, lens) };
            let variant =
                Variant::new(spec.layout(), spec.group, Arch::Sm80).and_then(|v| v.with_shape(warps, stages)).unwrap();
            with_bulk_copies_as_without(&spec, &variant);
        }
    }
}

/// The same queries, so much shorter that bounds are small: what rounding adds is seen beside them.
pub(super) fn shortened(spec: &Spec, by: f32) -> Case {
    let mut case = Case::new(spec);
    for head in &mut case.heads {
        let shorter = |x: &u16| Dtype::F16.encode16(Dtype::F16.decode16(*x) * by);
        head.data.queries = head.data.queries.iter().map(shorter).collect();
    }
    case
}

#[test]
fn rounding_beside_small_bounds_and_another_metric_are_seen() {
    for (format, seed, by) in
        [("ctq4-tq4-b64", 1, 0.05), ("ctq4-v4g64-b64", 2, 0.2), ("ctq4-tq4-b64", 3, 0.02), ("ctq3-f16-b64", 3, 1e-3)]
    {
        let spec = Spec { keys: 0.0, values: 0.0, seed, ..Spec::new(format, 128, 3, &[300, 128]) };
        let case = shortened(&spec, by);
        let r = run(&case, 3, |l| l.seed(5).truncating().noisy());
        let v = checked(&case, &r);
        assert!(v.arith < 3e-2, "{v:?}");
        // Planted: the values' centres for centres and scales of the keys.
        let other = |args: &AttendArgs, _: &[&Buffer]| (AttendArgs { metrics: args.centres, ..*args }, Vec::new());
        let r = run_behind(&case, &variant(&spec), true, 3, |l| l.seed(5), other).unwrap_or_else(|e| panic!("{e}"));
        assert!(!case.judge(&r.out, &r.certificates, &r.masses, &r.looks).wrong.is_empty(), "{format}");
    }
}

/// Quotients and constants that no logit can be made of: codes are as good as not there, and originals serve.
#[test]
fn what_does_not_fit_is_never_certified() {
    let spec = Spec { keys: 0.0, values: 0.0, ..Spec::new("ctq4-tq4-b32", 64, 2, &[64, 96]) };
    let untold = |args: &AttendArgs, _: &[&Buffer]| (*args, Vec::new());
    let single = |args: &AttendArgs, _: &[&Buffer]| (AttendArgs { query_type: 2, ..*args }, Vec::new());
    for (part, x, keys) in
        [(1, 1e-38, 0.0), (1, 1e-30, 0.0), (1, 1e-19, 0.0), (0, 1e12, 0.0), (0, 1e30, 0.0), (1, 1e-30, 1.0)]
    {
        let spec = Spec { keys, ..spec.clone() };
        let mut case = Case::new(&spec);
        (0..2).for_each(|head| case.metrics.put(head, part, 17, x));
        let r = run_behind(&case, &variant(&spec), true, 2, |l| l.seed(3), untold).unwrap_or_else(|e| panic!("{e}"));
        for (i, c) in r.certificates.iter().enumerate() {
            // The cap holds whatever codes say; nothing is certified by it.
            assert_eq!(c.status == 0 && !(c.e_key + c.e_val).is_finite(), keys == 0.0, "{part} {x}, head {i}: {c:?}");
        }
    }
    // Single queries of a variant that has not read them.
    let case = Case::new(&spec);
    let r = run_behind(&case, &variant(&spec), true, 2, |l| l.seed(3), single).unwrap_or_else(|e| panic!("{e}"));
    assert!(r.certificates.iter().all(|c| c.status == 0 && !(c.e_key + c.e_val).is_finite()));
}
