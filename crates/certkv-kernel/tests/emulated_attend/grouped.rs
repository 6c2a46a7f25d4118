//! Keys in groups of unlike width, math.md (2.19c): widths are data, drawn anew for every head of every case.
use super::calibrated::{in_rings, near_and_far, shortened};
use super::device_cases::Spec;
use super::{check, checked, run, run_behind, variant, with_metrics};
use certkv_core::Dtype;
use certkv_kernel::cuda::Sight;
use certkv_kernel::cuda::args::AttendArgs;
use certkv_testkit::generate::Kind;

#[test]
fn formats_heads_and_groups_match_attention_in_f64() {
    near_and_far(&[
        ("gtq3-tq3-b64", 128, 4),
        ("gtq2.5-v4g32-b32", 64, 2),
        ("gtq2-f16-b16", 64, 5),
        ("gtq1-c4-b32", 96, 8),
        ("gtq4-e4m3-b32", 128, 1),
        ("gtq5-tq3-b64", 256, 2),
        ("gtq6-v4g32-b16", 96, 3),
        ("gtq3.5-tq4-b64", 128, 12),
        ("gtq4-tq1-b32", 256, 16),
    ]);
    let sight = Some(Sight { tokens: 70, sinks: 20 });
    check(&Spec { sight, seed: 2, ..Spec::new("gtq3-tq3-b32", 64, 4, &[200, 90, 7]) }, 3);
}

#[test]
fn hard_data_stays_within_the_bound() {
    for kind in Kind::ALL {
        for (store, seed) in [(Dtype::F16, 41), (Dtype::Bf16, 43)] {
            check(&Spec { kind, store, seed, ..Spec::new("gtq4-tq4-b32", 64, 4, &[200, 32, 7]) }, 3);
        }
    }
}

#[test]
fn originals_between_codes_are_read_in_every_ring() {
    in_rings(&[("gtq3-tq3-b64", 128, 4, 4, 1), ("gtq4-v4g32-b32", 64, 6, 12, 2), ("gtq3-tq3-b16", 128, 9, 4, 1)]);
}

#[test]
fn rounding_beside_small_bounds_and_widths_of_another_head_are_seen() {
    for (format, seed, by) in
        [("gtq5-tq4-b64", 1, 0.05), ("gtq4-v4g64-b64", 2, 0.2), ("gtq3-tq4-b64", 3, 0.02), ("gtq3-f16-b16", 3, 5e-3)]
    {
        let spec = Spec { keys: 0.0, values: 0.0, seed, ..Spec::new(format, 128, 3, &[300, 128]) };
        let case = shortened(&spec, by);
        let r = run(&case, 3, |l| l.seed(5).truncating().noisy());
        let v = checked(&case, &r);
        assert!(v.arith < 3e-2, "{v:?}");
        // Planted: the heads' tables exchanged; one word of a head's with another bit, in every part but the thresholds, which the decode kernel has no use for.
        let words = case.metrics.words().expect("tables");
        let own = words.len() / 2;
        let exchanged: Vec<u32> = words[own..].iter().chain(&words[..own]).copied().collect();
        let mut tables = vec![exchanged];
        for at in [17, 128 + 9, 2 * 128 + 5, 2 * 128 + 64, 2 * 128 + 64 + 8 + 3, 2 * 128 + 64 + 8 + 8] {
            let mut table = words.clone();
            // Centre and scale: a large step; channels, signs, tiles and levels: some bit that matters.
            table[at] ^= if at < 2 * 128 { 0x0700_0000 } else { 0x0000_0010 };
            tables.push(table);
        }
        let mut seen = 0;
        for (i, table) in tables.iter().enumerate() {
            match run_behind(&case, &variant(&spec), true, 3, |l| l.seed(5), with_metrics(table)) {
                Ok(r) => {
                    let wrong = case.judge(&r.out, &r.certificates, &r.masses, &r.looks).wrong;
                    assert!(i > 0 || !wrong.is_empty(), "{format}: exchanged tables");
                    seen += usize::from(!wrong.is_empty());
                }
                // Codes, or places of a head, that are not there: the emulator refuses to read them.
                Err(why) => {
                    assert!(i > 2 && why.contains("out of bounds"), "{format}, table {i}: {why}");
                    seen += 1;
                }
            }
        }
        // Of the shortest queries one channel's centre may be nothing.
        assert!(seen + 1 >= tables.len(), "{format}: {seen} of {}", tables.len());
    }
}

/// Quotients and constants that no logit can be made of: codes are as good as not there, and originals serve.
#[test]
fn what_does_not_fit_is_never_certified() {
    let spec = Spec { keys: 0.0, values: 0.0, ..Spec::new("gtq4-tq4-b32", 64, 2, &[64, 96]) };
    let untold = |args: &AttendArgs, _: &[&super::emulated::Buffer]| (*args, Vec::new());
    for (part, x, keys) in [(1, 1e-38, 0.0), (1, 1e-30, 0.0), (0, 1e12, 0.0), (0, 1e30, 0.0), (1, 1e-30, 1.0)] {
        let spec = Spec { keys, ..spec.clone() };
        let mut case = super::device_cases::Case::new(&spec);
        (0..2).for_each(|head| case.metrics.put(head, part, 17, x));
        let r = run_behind(&case, &variant(&spec), true, 2, |l| l.seed(3), untold).unwrap_or_else(|e| panic!("{e}"));
        for (i, c) in r.certificates.iter().enumerate() {
            // The cap holds whatever codes say; nothing is certified by it.
            assert_eq!(c.status == 0 && !(c.e_key + c.e_val).is_finite(), keys == 0.0, "{part} {x}, head {i}: {c:?}");
        }
    }
}
