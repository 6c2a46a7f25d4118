//! Drafts: several new tokens of a sequence in one launch, each of which sees what lies before it and itself.

use super::device_cases::{Arranged, Case, Refining, Spec};
use super::{Arch, Dtype, Kind, Variant, check, run, run_behind, variant, with_bulk_copies_as_without};
use certkv_kernel::cuda::args::{AttendArgs, Draft};
use certkv_testkit::generate::Rng;

/// Every place of a draft among the blocks: within the open one, across the end of one, up to it, of one token, of all that there is; with others behind it.
#[test]
fn drafts_anywhere_see_what_lies_before_them() {
    for (i, heads) in [1, 2, 4].into_iter().enumerate() {
        for behind in [0, 1, 3] {
            let ends: Vec<_> = (1..40).step_by(3).map(|n| (n + 3, 1 + n % 4, behind.min(n + 2 - n % 4))).collect();
            let seed = 10 * i as u64 + behind as u64;
            let of = Spec::drafts("k8-v4g32-b16", 64, heads, 4, &ends);
            check(&Spec { seed, ..of.clone() }, 1 + i);
            check(&Spec { seed, closing: true, ..of }, 2 + i);
        }
    }
}

#[test]
fn drafts_of_all_formats_match_attention_in_f64() {
    for (i, (format, dim, heads, tokens, store)) in [
        ("k8-v4g64-b64", 128, 4, 2, Dtype::F16),
        ("k8-v4g64-b64", 128, 4, 4, Dtype::F16),
        ("k8-v4g32-b32", 128, 1, 4, Dtype::Bf16),
        ("k8-v4g32-b32", 128, 2, 8, Dtype::Bf16),
        ("k8-v6g32-b32", 96, 3, 3, Dtype::F16),
        ("t4-v5g32-b32", 64, 5, 3, Dtype::F16),
        ("f16-f16-b16", 64, 6, 2, Dtype::F16),
        ("f16-v8g32-b16", 96, 4, 3, Dtype::F16),
        ("k8-v4g32-b32", 256, 2, 4, Dtype::F16),
        ("tq4-tq4-b64", 128, 4, 4, Dtype::F16),
        ("tq3-tq3-b32", 64, 1, 3, Dtype::F16),
        ("gtq3-tq3-b32", 128, 4, 2, Dtype::F16),
        ("ctq4-tq4-b32", 128, 2, 4, Dtype::F16),
        ("s1-v4g32-b32", 64, 2, 3, Dtype::F16),
        ("p4g32-p4g32-b32", 64, 4, 4, Dtype::F16),
        ("k8-c4-b32", 64, 4, 3, Dtype::F16),
    ]
    .into_iter()
    .enumerate()
    {
        // Within blocks, across their ends and up to them; rows apart, and outputs of all types.
        let ends = [(150, tokens, 0), (130, tokens, 1), (40, 1, 0), (65, tokens, 0), (128, tokens, 0)];
        for (closing, rows) in [(false, Arranged::DENSE), (true, Arranged::ways().nth(i % 11).unwrap())] {
            let of = Spec::drafts(format, dim, heads, tokens, &ends);
            let v = check(&Spec { store, closing, rows, seed: i as u64, ..of }, 3);
            // Tokens that see nothing of a block are bounded as others.
            assert!(
                v.arith < 0.1 || !(format.starts_with("k8-v4") || format.starts_with("f16")),
                "{format}: {}",
                v.arith
            );
        }
    }
}

/// Residuals where weights ask for them, of what is seen in part, too; and corrections of it.
#[test]
fn residuals_are_read_for_all_tokens_of_a_draft() {
    let modes = [
        Refining::Never,
        Refining::All,
        Refining::OnDemand(0.0),
        Refining::OnDemand(1.5),
        Refining::Picked(0.3),
        Refining::Picked(1.0),
    ];
    for (i, (format, dim, heads, tokens)) in
        [("k8-v4g64-b64-r8.4", 128, 4, 2), ("k8-v4g32-b16-r5.4", 64, 1, 4), ("k8-v5g32-b32-r6.5", 64, 2, 3)]
            .into_iter()
            .enumerate()
    {
        for (j, refine) in modes.into_iter().enumerate() {
            let promoted = if (i + j) % 2 == 0 { 0.3 } else { 0.0 };
            let (kind, relative) = [(Kind::Gaussian, 0.05), (Kind::Rope, 0.3)][j % 2];
            let ends = [(700, tokens, 0), (330, tokens, 5), (65, tokens, 0), (33, tokens - 1, 0), (tokens, tokens, 0)];
            let seed = (10 * i + j) as u64;
            let of = Spec::drafts(format, dim, heads, tokens, &ends);
            for closing in [false, true] {
                check(
                    &Spec { refine, kind, relative, closing, keys: promoted, values: promoted, seed, ..of.clone() },
                    1 + j,
                );
            }
        }
    }
}

/// Promoted blocks that are seen in part, in rings of one slot and of more, with bulk copies and without.
#[test]
fn originals_of_blocks_seen_in_part_are_read_in_every_ring() {
    for (format, dim, heads, tokens, warps, stages) in [
        ("k8-v4g64-b64", 128, 1, 4, 4, 1),
        ("k8-v4g32-b32", 64, 3, 2, 12, 1),
        ("t4-v5g32-b16", 64, 2, 2, 4, 1),
        ("k8-v4g32-b32", 128, 1, 3, 4, 2),
    ] {
        for (keys, values) in [(0.5, 0.5), (0.0, 1.0), (1.0, 0.0)] {
            let ends = [(1500, tokens, 0), (130, tokens, 1), (tokens, tokens, 0), (65, tokens, 0)];
            let closing = keys == values;
            let spec =
                Spec { keys, values, closing, seed: dim as u64, ..Spec::drafts(format, dim, heads, tokens, &ends) };
            let variant = Variant::new(spec.layout(), heads, Arch::Sm80).and_then(|v| v.drafting(tokens));
            with_bulk_copies_as_without(&spec, &variant.and_then(|v| v.with_shape(warps, stages)).unwrap());
        }
    }
}

#[test]
fn hard_data_stays_within_the_bound() {
    for kind in Kind::ALL {
        let ends = [(200, 4, 0), (33, 4, 0), (7, 3, 1)];
        check(&Spec { kind, seed: 40 + kind as u64, ..Spec::drafts("k8-v4g32-b32", 64, 4, 4, &ends) }, 3);
    }
}

/// Shares of a ragged batch.
#[test]
fn ragged_batches_of_drafts_are_cut_without_a_gap() {
    let mut r = Rng::new(0xd4af);
    for i in 0..24 {
        let most = [20, 90, 400][r.below(3)];
        let tokens = 1 + r.below(6);
        let mut end = || {
            let count = 1 + r.below(tokens);
            let behind = if r.chance(0.5) { 0 } else { r.below(20) };
            (count + behind + r.below(most), count, behind)
        };
        let ends: Vec<_> = (0..1 + i % 12).map(|_| end()).collect();
        let of = Spec::drafts("k8-v4g32-b16", 64, 1 + i % 2, tokens, &ends);
        check(&Spec { kv_heads: 1 + i % 3, closing: i % 3 > 0, seed: i as u64, ..of }, 1 + 7 * i % 40);
    }
}

/// A draft of one token is a step.
#[test]
fn a_draft_of_one_token_changes_no_bit() {
    for format in ["k8-v4g64-b64", "t4-v5g32-b32", "k8-v4g32-b32-r5.4"] {
        let refine = if format.contains("-r") { Refining::OnDemand(1.5) } else { Refining::Never };
        let step = Spec { refine, ..Spec::new(format, 64, 4, &[300, 129, 40]) };
        let bits = |spec: &Spec| {
            let r = run(&Case::new(spec), 3, |l| l.seed(5));
            let out: Vec<u32> = r.out.iter().map(|x| x.to_bits()).collect();
            (out, r.masses, r.demands, format!("{:?}", r.certificates))
        };
        let drafted = Spec { refine, ..Spec::drafts(format, 64, 4, 1, &[(300, 1, 0), (129, 1, 0), (40, 1, 0)]) };
        assert!(bits(&step) == bits(&drafted), "{format}");
    }
}

/// A case, and a change of what its launch is told.
type Change<'a> = (&'a Spec, fn(&mut Draft));

/// Control: of a draft that begins a token earlier or later, or has another token, the judge says so.
#[test]
fn the_judge_sees_tokens_that_are_not_to_be_seen() {
    let (mut caught, mut executed) = (0, 0);
    for seed in 0..3 {
        let ends = [(100, 3, 2), (70, 3, 2)];
        // Some in two tails; told of none, a launch reads a record that is not there, or another's.
        let crossing = [(98, 3, 0), (66, 4, 0), (40, 1, 0)];
        let of = |ends, closing| Spec { seed, closing, relative: 0.01, ..Spec::drafts("f16-f16-b16", 64, 2, 4, ends) };
        let (plain, tails) = (of(&ends[..], false), of(&crossing[..], true));
        let changes: [Change<'_>; 4] = [
            (&plain, |d| d.first += 1),
            (&plain, |d| d.first -= 1),
            (&plain, |d| d.count -= 1),
            (&tails, |d| d.tail ^= if d.tail == 4 { 1 } else { 0 }),
        ];
        for (spec, change) in changes {
            let case = Case::new(spec);
            let told = |args: &AttendArgs, memory: &[&super::Buffer]| {
                let own = memory.iter().find(|buffer| buffer.pointer() == args.drafts).expect("the case's");
                let mut drafts = spec.told();
                drafts.iter_mut().for_each(change);
                own.write(0, &drafts.iter().flat_map(Draft::words).collect::<Vec<_>>());
                (*args, Vec::new())
            };
            let r = run_behind(&case, &variant(spec), true, 3, |l| l.seed(seed), told).unwrap();
            executed += 1;
            caught += usize::from(!case.judge(&r.out, &r.certificates, &r.masses, &r.looks).wrong.is_empty());
        }
    }
    println!("GATE gpu-draft-judge executed={executed} failed=0 controls={caught}/{executed} seed=0x0");
    assert_eq!(caught, executed);
}
