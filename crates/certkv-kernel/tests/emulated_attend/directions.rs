//! Spherical keys, math.md 2.9: the products of queries with a head's directions are looked up by the indices of its codes.
use super::calibrated::{in_rings, near_and_far, shortened};
use super::device_cases::{Case, Spec};
use super::emulated::Buffer;
use super::{check, checked, run, run_behind, variant, with_metrics};
use certkv_core::Dtype;
use certkv_kernel::cuda::Sight;
use certkv_kernel::cuda::args::AttendArgs;
use certkv_testkit::generate::Kind;

#[test]
fn formats_heads_and_groups_match_attention_in_f64() {
    near_and_far(&[
        ("s1-v4g64-b64", 128, 4),
        ("s1-tq3-b32", 64, 2),
        ("s2-f16-b16", 64, 5),
        ("s2-c4-b64", 96, 8),
        ("s3-e4m3-b32", 128, 1),
        ("s3-v4g32-b16", 96, 3),
        ("s1-tq3-b64", 256, 2),
        ("s2-tq4-b64", 128, 12),
        ("s1-v4g32-b32", 256, 16),
    ]);
    let sight = Some(Sight { tokens: 70, sinks: 20 });
    check(&Spec { sight, seed: 2, ..Spec::new("s1-v4g32-b32", 64, 4, &[200, 90, 7]) }, 3);
}

#[test]
fn hard_data_stays_within_the_bound() {
    for kind in Kind::ALL {
        for (format, store, seed) in [("s1-tq4-b32", Dtype::F16, 41), ("s3-v4g32-b32", Dtype::Bf16, 43)] {
            check(&Spec { kind, store, seed, ..Spec::new(format, 64, 4, &[200, 32, 7]) }, 3);
        }
    }
}

#[test]
fn originals_between_codes_are_read_in_every_ring() {
    in_rings(&[("s1-tq3-b64", 128, 4, 4, 1), ("s2-v4g32-b32", 64, 6, 12, 2), ("s3-tq3-b32", 128, 9, 4, 1)]);
}

#[test]
fn rounding_beside_small_bounds_and_directions_of_another_head_are_seen() {
    for (format, seed, by) in
        [("s1-tq4-b64", 1, 0.02), ("s1-v4g64-b64", 2, 0.05), ("s2-tq4-b64", 3, 0.01), ("s3-f16-b64", 3, 1e-3)]
    {
        let spec = Spec { keys: 0.0, values: 0.0, seed, ..Spec::new(format, 128, 3, &[300, 128]) };
        let case = shortened(&spec, by);
        let r = run(&case, 3, |l| l.seed(5).truncating().noisy());
        let v = checked(&case, &r);
        assert!(v.arith < 3e-2, "{v:?}");
        // Planted: the heads' directions exchanged; the groups of each head moved by one.
        let words = case.metrics.words().expect("directions");
        let own = words.len() / 2;
        let of_group = own / (128 / spec.layout().format.key.group(128));
        let exchanged: Vec<u32> = words[own..].iter().chain(&words[..own]).copied().collect();
        let moved: Vec<u32> = words[of_group..].iter().chain(&words[..of_group]).copied().collect();
        for (i, table) in [exchanged, moved].iter().enumerate() {
            let r = run_behind(&case, &variant(&spec), true, 3, |l| l.seed(5), with_metrics(table));
            let r = r.unwrap_or_else(|e| panic!("{e}"));
            let wrong = case.judge(&r.out, &r.certificates, &r.masses, &r.looks).wrong;
            assert!(!wrong.is_empty(), "{format}, table {i}");
        }
    }
}

/// Single queries of a variant that has not read them, and numbers that are none: nothing is certified.
#[test]
fn what_was_not_read_is_never_certified() {
    let spec = Spec { keys: 0.0, values: 0.0, ..Spec::new("s1-tq4-b32", 64, 2, &[64, 96]) };
    let single = |args: &AttendArgs, _: &[&Buffer]| (AttendArgs { query_type: 2, ..*args }, Vec::new());
    let case = Case::new(&spec);
    let r = run_behind(&case, &variant(&spec), true, 2, |l| l.seed(3), single).unwrap_or_else(|e| panic!("{e}"));
    assert!(r.certificates.iter().all(|c| c.status == 0 && !(c.e_key + c.e_val).is_finite()));
    let mut words = case.metrics.words().expect("directions");
    words.fill(f32::NAN.to_bits());
    let r = run_behind(&case, &variant(&spec), true, 2, |l| l.seed(3), with_metrics(&words));
    let r = r.unwrap_or_else(|e| panic!("{e}"));
    assert!(r.certificates.iter().all(|c| c.status == 0 && !c.bound.is_finite()), "{:?}", r.certificates);
}
