//! Layers with a sliding window and sinks: the kernel attends to exactly what the query sees, certifies that, and reads no block that is
//! not seen at all. Pages of such blocks are gone in these cases: to read one is an error.
use super::device_cases::{Case, Refining, Spec};
use super::{Arch, Dtype, Kind, Run, Variant, checked, run, seeing, variant, with_bulk_copies_as_without};
use certkv_kernel::cuda::Sight;
use certkv_testkit::generate::Rng;

fn sight(tokens: u32, sinks: u32) -> Option<Sight> {
    Some(Sight { tokens, sinks })
}

fn check(spec: &Spec, ctas: usize) -> Run {
    let case = Case::new(spec);
    let r = run(&case, ctas, |l| l.seed(spec.seed).truncating().noisy());
    checked(&case, &r);
    r
}

/// Every place of both edges in a block, in blocks that are alike, next to each other and open.
#[test]
fn edges_anywhere_match_attention_over_what_is_seen() {
    let lens: Vec<usize> = (1..90).step_by(11).chain([32, 48, 64, 130]).collect();
    for (i, (tokens, sinks)) in
        [(1, 0), (1, 1), (7, 0), (16, 0), (17, 4), (16, 16), (31, 5), (40, 33), (33, 16), (100, 3), (1000, 9)]
            .into_iter()
            .enumerate()
    {
        let spec = Spec { sight: sight(tokens, sinks), seed: i as u64, ..Spec::new("k8-v4g32-b16", 64, 2, &lens) };
        check(&spec, 1 + i % 5);
    }
}

#[test]
fn windows_of_all_formats_match_attention_over_what_is_seen() {
    for (i, (format, dim, group, store)) in [
        ("k8-v4g64-b64", 128, 4, Dtype::F16),
        ("k8-v4g32-b32", 128, 4, Dtype::Bf16),
        ("k8-v6g32-b32", 96, 3, Dtype::F16),
        ("t4-v5g32-b32", 64, 2, Dtype::F16),
        ("t8g32-v4g32-b16", 64, 5, Dtype::F16),
        ("f16-f16-b16", 64, 6, Dtype::F16),
        ("f16-v8g32-b16", 96, 12, Dtype::F16),
        ("k8-v4g64-b32", 128, 16, Dtype::F16),
        ("k8-v4g32-b32", 256, 2, Dtype::F16),
        ("t4-v4g64-b16", 256, 16, Dtype::F16),
    ]
    .into_iter()
    .enumerate()
    {
        for (tokens, sinks) in [(70, 0), (51, 20), (130, 37)] {
            let spec = Spec {
                store,
                seed: i as u64,
                sight: sight(tokens, sinks),
                ..Spec::new(format, dim, group, &[300, 129, 40])
            };
            check(&spec, 3);
        }
    }
}

/// Promoted blocks that are seen in part, in rings of one slot and of more, with bulk copies and without.
#[test]
fn originals_of_blocks_seen_in_part_are_read_in_every_ring() {
    for (format, dim, group, warps, stages) in [
        ("k8-v4g64-b64", 128, 4, 4, 1),
        ("k8-v4g32-b32", 64, 6, 12, 1),
        ("t4-v5g32-b16", 64, 2, 4, 1),
        ("k8-v4g32-b32", 128, 3, 4, 2),
    ] {
        for (keys, values) in [(0.5, 0.5), (0.0, 1.0), (1.0, 0.0)] {
            let spec = Spec {
                keys,
                values,
                seed: dim as u64,
                sight: sight(450, 70),
                ..Spec::new(format, dim, group, &[1500, 130, 7, 64])
            };
            let variant =
                Variant::new(spec.layout(), spec.group, Arch::Sm80).and_then(|v| v.with_shape(warps, stages)).unwrap();
            with_bulk_copies_as_without(&spec, &seeing(variant, &spec));
        }
    }
}

#[test]
fn residuals_are_read_of_what_is_seen() {
    let modes = [
        Refining::Never,
        Refining::All,
        Refining::OnDemand(0.0),
        Refining::OnDemand(1.5),
        Refining::Picked(0.3),
        Refining::Picked(1.0),
    ];
    for (i, (format, dim, group)) in
        [("k8-v4g64-b64-r8.4", 128, 4), ("k8-v4g32-b16-r5.4", 64, 2), ("k8-v5g32-b32-r6.5", 64, 5)]
            .into_iter()
            .enumerate()
    {
        for (j, refine) in modes.into_iter().enumerate() {
            for (tokens, sinks) in [(200, 0), (150, 21), (30, 70)] {
                let promoted = if (i + j) % 2 == 0 { 0.3 } else { 0.0 };
                let (kind, relative) = [(Kind::Gaussian, 0.05), (Kind::Rope, 0.3)][j % 2];
                let spec = Spec {
                    refine,
                    kind,
                    relative,
                    keys: promoted,
                    values: promoted,
                    seed: (10 * i + j) as u64,
                    sight: sight(tokens, sinks),
                    ..Spec::new(format, dim, group, &[700, 330, 64, 33])
                };
                check(&spec, 1 + j);
            }
        }
    }
}

#[test]
fn hard_data_behind_a_window_stays_within_the_bound() {
    for kind in Kind::ALL {
        let seed = 40 + kind as u64;
        check(&Spec { kind, seed, sight: sight(77, 9), ..Spec::new("k8-v4g32-b32", 64, 4, &[200, 32, 7]) }, 3);
    }
}

/// Shares of a ragged batch: every block that is seen belongs to one CTA.
#[test]
fn ragged_batches_behind_windows_are_cut_without_a_gap() {
    let mut r = Rng::new(0x51de);
    for i in 0..24 {
        let most = [20, 90, 400][r.below(3)];
        let lens: Vec<usize> = (0..1 + r.below(12)).map(|_| 1 + r.below(most)).collect();
        let spec = Spec {
            kv_heads: 1 + r.below(3),
            seed: i,
            sight: sight(1 + r.below(200) as u32, r.below(60) as u32),
            ..Spec::new("k8-v4g32-b16", 64, 1, &lens)
        };
        check(&spec, 1 + r.below(40));
    }
    // More sequences than a CTA keeps the places of; all alike though their lengths differ.
    let lens: Vec<usize> = (0..300).map(|i| 1 + i * 7 % 40).collect();
    check(&Spec { kv_heads: 1, sight: sight(18, 3), ..Spec::new("k8-v4g32-b16", 64, 1, &lens) }, 9);
    check(&Spec { sight: sight(64, 16), ..Spec::new("k8-v4g32-b16", 64, 1, &[160, 320, 1600, 80]) }, 132);
}

/// A window that holds everything changes no bit.
#[test]
fn a_window_that_holds_everything_changes_no_bit() {
    for format in ["k8-v4g64-b64", "t4-v5g32-b32", "k8-v4g32-b32-r5.4"] {
        let refine = if format.contains("-r") { Refining::OnDemand(1.5) } else { Refining::Never };
        let open = Spec { refine, ..Spec::new(format, 64, 4, &[300, 129, 40]) };
        let bits = |spec: &Spec| {
            let r = run(&Case::new(spec), 3, |l| l.seed(5));
            (r.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), r.masses, format!("{:?}", r.certificates))
        };
        assert!(bits(&open) == bits(&Spec { sight: sight(300, 0), ..open.clone() }), "{format}");
        assert!(bits(&open) == bits(&Spec { sight: sight(2, 298), ..open.clone() }), "{format}");
    }
}

/// Control: of a window or sinks that are one token off the judge says so, and a block behind the window that is read is an error.
#[test]
fn the_judge_sees_tokens_that_are_not_to_be_seen() {
    let (mut caught, mut executed) = (0, 0);
    for seed in 0..3 {
        let spec = Spec { seed, sight: sight(40, 5), relative: 0.01, ..Spec::new("f16-f16-b16", 64, 2, &[100, 70]) };
        let case = Case::new(&spec);
        for (tokens, sinks) in [(41, 5), (39, 5), (40, 6), (40, 4)] {
            let r = super::run_behind(
                &case,
                &variant(&spec),
                true,
                3,
                |l| l.seed(seed),
                |args, _| (certkv_kernel::cuda::args::AttendArgs { window: tokens, sinks, ..*args }, Vec::new()),
            );
            executed += 1;
            caught += usize::from(
                r.map_or(true, |r| !case.judge(&r.out, &r.certificates, &r.masses, &r.looks).wrong.is_empty()),
            );
        }
        // Two blocks more: their pages are gone.
        let far = super::run_behind(
            &case,
            &variant(&spec),
            true,
            3,
            |l| l.seed(seed),
            |args, _| (certkv_kernel::cuda::args::AttendArgs { window: 72, ..*args }, Vec::new()),
        );
        executed += 1;
        caught += usize::from(far.is_err());
    }
    println!("GATE gpu-window-judge executed={executed} failed=0 controls={caught}/{executed} seed=0x0");
    assert_eq!(caught, executed);
}
