//! Residual planes, math.md 2.10: what is read, what is learned, and bounds that hold whatever was read.
use super::device_cases::{Case, Refining, Spec};
use super::{Arch, Dtype, Kind, Run, Variant, checked, run, run_variant};

fn run_and_check(spec: &Spec, ctas: usize) -> Run {
    let case = Case::new(spec);
    let r = run(&case, ctas, |l| l.seed(spec.seed).truncating().noisy());
    checked(&case, &r);
    r
}

const MODES: [Refining; 7] = [
    Refining::Never,
    Refining::All,
    Refining::OnDemand(0.0),
    Refining::OnDemand(1.5),
    Refining::OnDemand(6.0),
    Refining::Picked(0.2),
    Refining::Picked(1.0),
];

#[test]
fn refinable_formats_match_attention_in_f64() {
    let cases = [
        ("k8-v4g64-b64-r5.4", 128, 4),
        ("k8-v4g32-b16-r1.1", 64, 1),
        ("k8-v4g32-b32-r3.2", 96, 2),
        ("k8-v6g32-b32-r4.4", 128, 3),
        ("k8-v2g16-b16-r8.2", 96, 5),
        ("k8-v8g64-b64-r8.8", 64, 6),
        ("k8-v4g32-b64-r5.4", 96, 7),
        ("k8-v3g64-b32-r5.3", 128, 8),
        ("k8-v5g32-b16-r6.5", 128, 4),
        ("k8-v7g32-b32-r7.3", 64, 8),
        ("k8-c4-b64-r8.4", 128, 4),
        ("k8-c5-b32-r6.3", 96, 5),
        ("k4-v4g64-b64-r4.4", 128, 4),
        ("k6-v4g32-b16-r3.4", 64, 2),
        ("k2-c2-b32-r1.2", 96, 8),
    ];
    let mut between = [0; 2];
    for (i, (format, dim, group)) in cases.into_iter().enumerate() {
        for store in [Dtype::F16, Dtype::Bf16] {
            for (j, refine) in MODES.into_iter().enumerate() {
                // Long and short, without a full block, without an open one; promoted blocks in every second case.
                let lens = [vec![200, 64, 7], vec![5], vec![128, 90]][(i + j) % 3].clone();
                let promoted = if (i + j) % 2 == 0 { 0.3 } else { 0.0 };
                let spec =
                    Spec { store, refine, keys: promoted, values: promoted, ..Spec::new(format, dim, group, &lens) };
                // Peaked weights and a wide tolerance leave some sides unread.
                let (kind, relative) = [(Kind::Gaussian, 0.05), (Kind::Rope, 0.3)][i % 2];
                let spec = Spec { kind, relative, seed: (10 * i + j) as u64, ..spec };
                let (read, most) = (run_and_check(&spec, 1 + (i + j) % 5).refined, Case::new(&spec).refinable());
                (0..2).for_each(|side| between[side] += u32::from(read[side] > 0 && read[side] < most[side]));
            }
        }
    }
    println!("runs that left some sides unread: {between:?}");
    assert!(between.iter().all(|n| *n >= 5), "{between:?}");
}

#[test]
fn hard_data_stays_within_the_bound_when_it_is_refined() {
    for kind in Kind::ALL {
        for store in [Dtype::F16, Dtype::Bf16] {
            for refine in [Refining::All, Refining::OnDemand(0.0), Refining::OnDemand(1.0), Refining::Picked(0.5)] {
                let spec = Spec {
                    kind,
                    store,
                    refine,
                    seed: 40 + kind as u64,
                    ..Spec::new("k8-v4g32-b32-r5.4", 64, 4, &[200, 32, 7])
                };
                run_and_check(&spec, 3);
            }
        }
    }
}

fn bound(r: &Run) -> f64 {
    r.certificates.iter().map(|c| f64::from(c.bound)).sum()
}

#[test]
fn residuals_make_bounds_smaller() {
    let of = |refine| Spec { refine, keys: 0.0, values: 0.0, ..Spec::new("k8-v4g64-b64-r5.4", 128, 4, &[700, 256]) };
    let bounds =
        [Refining::Never, Refining::All, Refining::OnDemand(0.0)].map(|refine| bound(&run_and_check(&of(refine), 3)));
    assert!(bounds[1] * 4.0 <= bounds[0], "{bounds:?}");
    // Rows without history read everything too; what errs at random errs otherwise.
    assert!((bounds[1] - bounds[2]).abs() <= 1e-5 * bounds[1], "{bounds:?}");
}

/// What is taken back of the certificate's sums is a little less than was added: a correction with everything ends close above the one pass that
/// reads everything.
#[test]
fn a_correction_with_all_residuals_certifies_nearly_what_one_pass_does() {
    let spec = |refine| Spec {
        kv_heads: 1,
        refine,
        kind: Kind::Rope,
        relative: 0.3,
        keys: 0.0,
        values: 0.0,
        ..Spec::new("k8-v4g64-b64-r8.4", 128, 4, &[700, 256])
    };
    let quant = |refine| -> f64 {
        let r = run_and_check(&spec(refine), 3);
        r.certificates.iter().map(|c| f64::from(c.e_key) + f64::from(c.e_val)).sum()
    };
    let [never, all, picked] = [Refining::Never, Refining::All, Refining::Picked(1.0)].map(quant);
    println!("{never:.4} {all:.4} {picked:.4}");
    assert!(
        all * 4.0 <= never && picked >= all * 0.999 && picked <= all * 1.02 + never * 0.002,
        "{never} {all} {picked}"
    );
}

/// Control: of a correction that had not happened, or had gone over other blocks, the judge says so.
#[test]
fn the_judge_sees_corrections_that_did_not_happen() {
    let (mut caught, mut executed) = (0, 0);
    for seed in 0..4 {
        let refine = Refining::Picked(0.6);
        let spec = Spec { refine, seed, keys: 0.0, values: 0.0, ..Spec::new("k8-v2g16-b16-r8.2", 64, 2, &[300, 90]) };
        let case = Case::new(&spec);
        let r = run(&case, 3, |l| l.seed(seed).truncating().noisy());
        checked(&case, &r);
        let before = vec![0u8; r.looks.len()];
        let others: Vec<u8> = r.looks.iter().map(|look| look ^ 2).collect();
        for wrong in [before, others] {
            executed += 1;
            caught += usize::from(!case.judge(&r.out, &r.certificates, &[], &wrong).wrong.is_empty());
        }
        let mut counts = r.correction.picked.clone();
        counts.iter_mut().for_each(|p| p.keys += 1);
        executed += 1;
        caught += usize::from(!case.judge_picked(&counts, &r.certificates).is_empty());
    }
    println!("GATE gpu-corrections-judge executed={executed} failed=0 controls={caught}/{executed} seed=0x0");
    assert_eq!(caught, executed);
}

#[test]
fn weights_decide_what_is_read() {
    // A few tokens hold most of the mass; the others' share of a wide tolerance is small.
    let of = |kappa| Spec {
        kind: Kind::Rope,
        refine: Refining::OnDemand(kappa),
        relative: 0.3,
        keys: 0.0,
        values: 0.0,
        ..Spec::new("k8-v4g64-b64-r5.4", 128, 4, &[2000, 640])
    };
    let most = Case::new(&of(1.0)).refinable();
    let read = [0.0, 1.0, 4.0, 12.0, 1e9].map(|kappa| run_and_check(&of(kappa), 5).refined);
    println!("{read:?} of {most:?}");
    for side in 0..2 {
        assert!(read.is_sorted_by(|a, b| a[side] >= b[side]), "more was read when more was allowed: {read:?}");
    }
    let between = |r: &Vec<u32>| (0..2).all(|side| r[side] > 0 && r[side] < most[side]);
    assert!(between(&read[2]) && between(&read[3]), "{read:?} of {most:?}");
    assert_eq!((read[0].as_slice(), read[4].as_slice()), (&most[..], &[0, 0][..]));
}

#[test]
fn the_order_of_threads_does_not_show_when_blocks_are_refined() {
    for refine in [Refining::OnDemand(4.0), Refining::Picked(0.3)] {
        let spec = Spec {
            kind: Kind::Rope,
            refine,
            relative: 0.3,
            keys: 0.1,
            ..Spec::new("k8-v4g64-b64-r5.4", 128, 4, &[1000, 300, 64])
        };
        let case = Case::new(&spec);
        let (a, b) = (run(&case, 5, |l| l.seed(1)), run(&case, 5, |l| l.seed(2)));
        assert_ne!(a.refined, case.refinable(), "some blocks are not refined");
        let bits = |r: &Run| r.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let words = |r: &Run| r.certificates.iter().map(|c| format!("{c:?}")).collect::<Vec<_>>();
        assert_eq!(bits(&a), bits(&b));
        assert_eq!(words(&a), words(&b));
        assert_eq!((a.refined, a.demands, a.masses, a.looks), (b.refined, b.demands, b.masses, b.looks));
    }
}

/// GPUs before 9.0 copy 16 bytes a thread, and wait for groups of copies instead of barriers.
#[test]
fn refinement_works_without_bulk_copies() {
    for (format, dim, stages) in
        [("k8-v4g64-b64-r5.4", 128, 1), ("k8-v4g32-b32-r5.4", 64, 2), ("k8-v4g32-b16-r3.2", 96, 3)]
    {
        for refine in MODES {
            let spec = Spec { refine, ..Spec::new(format, dim, 4, &[700, 130, 7]) };
            let case = Case::new(&spec);
            let variant =
                Variant::new(spec.layout(), spec.group, Arch::Sm80).and_then(|v| v.with_shape(4, stages)).unwrap();
            let old = run_variant(&case, &variant, false, 3, |l| l.seed(7).truncating());
            checked(&case, &old);
            let new = run_variant(&case, &variant, true, 3, |l| l.seed(7).truncating());
            assert_eq!(old.refined, new.refined);
            let bits = |r: &Run| r.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&old), bits(&new), "{spec:?}");
        }
    }
}

/// Residuals move logits of long queries by octaves: weights that were made from codes must not overflow when they are made again.
#[test]
fn logits_that_move_far_stay_within_the_halves() {
    for seed in 0..4 {
        for refine in [Refining::All, Refining::OnDemand(3.0), Refining::Picked(0.5)] {
            let spec =
                Spec { refine, seed, keys: 0.0, values: 0.0, ..Spec::new("k8-v4g64-b64-r5.4", 128, 4, &[700, 64]) };
            let mut case = Case::new(&spec);
            for head in &mut case.heads {
                let longer = |x: &u16| Dtype::F16.encode16(Dtype::F16.decode16(*x) * 400.0);
                head.data.queries = head.data.queries.iter().map(longer).collect();
            }
            let r = run(&case, 3, |l| l.seed(seed));
            assert!(r.out.iter().all(|x| x.is_finite()), "{spec:?}");
            // Such masses lie beyond what their words say.
            let mut v = case.judge(&r.out, &r.certificates, &[], &r.looks);
            // Coded blocks may lie so far below the open one that no float holds what they add.
            v.wrong.retain(|w| !w.contains("status 2 instead of"));
            assert!(v.wrong.is_empty(), "{spec:?}: {:#?}", v.wrong);
        }
    }
}

/// Where codes happen to be exact, residuals would make them worse.
#[test]
fn sides_that_residuals_do_not_improve_are_left_alone() {
    for refine in MODES {
        let spec = Spec { refine, keys: 0.0, values: 0.0, ..Spec::new("k8-v4g64-b64-r5.4", 128, 4, &[700, 64]) };
        let mut case = Case::new(&spec);
        let (whole, at) = (case.refinable(), case.layout.summary.start);
        for head in &mut case.heads {
            for (j, record) in head.records.iter_mut().enumerate() {
                // Words of the summary: eps, eta, and those of the refined block.
                let (plain, fine) = if j % 2 == 0 { (1, 9) } else { (4, 10) };
                record.copy_within(at + 4 * plain..at + 4 * plain + 4, at + 4 * fine);
            }
        }
        assert!(case.refinable()[0] < whole[0] && case.refinable()[1] < whole[1]);
        checked(&case, &run(&case, 3, |l| l.seed(3).truncating().noisy()));
    }
}
