//! A launch over listed heads gives the same bits in whatever order they are listed: CTAs list heads as they end.
use crate::device_cases::{Case, Refining, Spec};
use crate::emulated::Buffer;
use crate::{Run, checked, run_behind, variant};
use certkv_kernel::cuda::args::AttendArgs;
use certkv_testkit::generate::Rng;

/// Attends to the heads listed, and says in which order they were written.
fn listed(case: &Case, ctas: usize, seed: u64, heads: &[u32]) -> (Run, Vec<u32>) {
    let list = |args: &AttendArgs, memory: &[&Buffer]| {
        let list = *memory.last().expect("the list of heads");
        list.write(0, &[&[heads.len() as u32], heads].concat());
        (AttendArgs { only: list.pointer(), failures: 0, ..*args }, Vec::new())
    };
    let run =
        run_behind(case, &variant(&case.spec), true, ctas, |l| l.seed(seed), list).unwrap_or_else(|e| panic!("{e}"));
    let from = 1 + case.launch_heads();
    let order = run.list[from..from + heads.len()].to_vec();
    (run, order)
}

/// Bits of the outputs and certificates of one head.
fn bits(case: &Case, run: &Run, head: u32) -> Vec<u32> {
    let (group, dim, head) = (case.spec.group, case.spec.dim, head as usize);
    let out = run.out[head * group * dim..(head + 1) * group * dim].iter().map(|x| x.to_bits());
    let of = run.certificates[head * group..(head + 1) * group].iter();
    out.chain(of.flat_map(|c| [c.bound.to_bits(), c.lse.to_bits(), c.norm.to_bits(), c.status])).collect()
}

#[test]
fn the_order_of_a_list_changes_no_bit() {
    let (mut executed, mut caught, mut controls) = (0, 0, 0);
    for (format, dim, group, lens, ctas) in [
        ("k8-v4g64-b64", 128, 4, vec![700, 64, 129, 1, 400], 5),
        ("k8-v4g32-b16", 64, 2, vec![16, 333, 7, 160], 7),
        ("k8-v4g32-b32-r5.4", 64, 4, vec![96, 320, 11], 3),
        ("f16-f16-b16", 64, 6, vec![48, 133, 90], 4),
    ] {
        let refine = if format.contains("-r") { Refining::All } else { Refining::Never };
        let spec = Spec { refine, seed: ctas as u64, ..Spec::new(format, dim, group, &lens) };
        let (case, mut r) = (Case::new(&spec), Rng::new(7));
        let all: Vec<u32> = (0..case.launch_heads() as u32).collect();
        let (want, order) = listed(&case, ctas, 1, &all);
        checked(&case, &want);
        assert_eq!(order, all);
        let mut shuffled = all.clone();
        for seed in 0..4 {
            for i in (1..shuffled.len()).rev() {
                shuffled.swap(i, r.below(i + 1));
            }
            let (got, order) = listed(&case, ctas, seed, &shuffled);
            assert_eq!(order, all);
            for head in &all {
                assert_eq!(bits(&case, &got, *head), bits(&case, &want, *head), "{spec:?}, head {head}");
                executed += 1;
            }
        }
        // Where the line is cut matters: without some of the heads others are cut elsewhere.
        let some: Vec<u32> = all.iter().copied().filter(|head| head % 3 != 0).collect();
        let (got, _) = listed(&case, ctas, 1, &some);
        controls += 1;
        caught += usize::from(some.iter().any(|head| bits(&case, &got, *head) != bits(&case, &want, *head)));
    }
    println!("GATE gpu-lists executed={executed} failed=0 controls={caught}/{controls} seed=0x7");
    assert_eq!(caught, controls);
}

/// More heads than the kernel sorts at once, of which few are listed.
#[test]
fn a_few_heads_of_a_large_batch() {
    let case = Case::new(&Spec { keys: 0.0, values: 0.0, ..Spec::new("k8-v4g32-b16", 64, 1, &[1; 4200]) });
    let mut r = Rng::new(3);
    let mut want: Vec<u32> = (0..60).map(|_| r.below(case.launch_heads()) as u32).chain([0, 8191, 8192]).collect();
    want.sort_unstable();
    want.dedup();
    let mut given = want.clone();
    given.reverse();
    let (run, order) = listed(&case, 3, 5, &given);
    assert_eq!(order, want);
    for head in 0..case.launch_heads() as u32 {
        let untouched = run.out[head as usize * 64].is_nan();
        assert_eq!(untouched, want.binary_search(&head).is_err(), "head {head}");
    }
}
