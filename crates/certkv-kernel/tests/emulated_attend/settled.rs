//! What a launch may read before the one ahead of it has ended: what it was told is settled, and nothing else.
use crate::device_cases::{Case, Refining, Spec};
use crate::emulated::Buffer;
use crate::{Run, run_behind, variant};
use certkv_kernel::cuda::args::AttendArgs;

/// Addresses and sizes of a buffer that starts at `pointer`.
fn whole(memory: &[&Buffer], pointer: u64) -> (u64, u64) {
    let buffer = memory.iter().find(|b| b.pointer() == pointer).expect("a buffer of the launch");
    (pointer, buffer.len() as u64)
}

/// A settled launch, ahead of which everything but lengths, tables and records is still being written.
fn settled(
    case: &Case,
    ctas: usize,
    bulk: bool,
    and: impl Fn(&AttendArgs, &[&Buffer]) -> Vec<(u64, u64)>,
) -> Result<Run, String> {
    run_behind(
        case,
        &variant(&case.spec),
        bulk,
        ctas,
        |l| l.seed(case.spec.seed),
        |args, memory| {
            let args = AttendArgs { settled: 1, ..*args };
            let outputs = [args.out, args.certificates, args.masses, args.failures, args.counters, args.partials];
            let inputs = [args.query, args.centres, args.tail_base, args.row_norms].into_iter().chain(outputs);
            let mut late: Vec<_> = inputs
                .chain([args.demands, args.kept, args.looks].into_iter().filter(|p| *p != 0))
                .map(|p| whole(memory, p))
                .collect();
            late.extend(and(&args, memory));
            (args, late)
        },
    )
}

fn cases() -> Vec<(Case, usize)> {
    let mut all = Vec::new();
    for (format, dim, group, lens, ctas) in [
        ("k8-v4g64-b64", 128, 4, vec![256, 100, 64], 2),
        ("k8-v4g32-b16", 64, 2, vec![16, 160, 7], 3),
        ("k8-v4g32-b32-r5.4", 64, 4, vec![96, 320], 2),
        ("f16-f16-b16", 64, 6, vec![48, 33], 1),
    ] {
        for keys in [0.0, 0.3] {
            let refine = if format.contains("-r") { Refining::Picked(0.5) } else { Refining::Never };
            for closing in [false, true] {
                let spec = Spec { keys, refine, closing, seed: ctas as u64, ..Spec::new(format, dim, group, &lens) };
                all.push((Case::new(&spec), ctas));
            }
        }
    }
    // Drafts within a block, across the end of one and up to it.
    for (format, keys) in [("k8-v4g32-b16", 0.3), ("k8-v4g32-b32-r5.4", 0.0)] {
        let of = Spec::drafts(format, 64, 2, 4, &[(100, 3, 0), (66, 4, 0), (64, 2, 0), (5, 1, 0)]);
        let refine = if format.contains("-r") { Refining::Picked(0.5) } else { Refining::Never };
        all.push((Case::new(&Spec { keys, refine, closing: true, seed: 3, ..of }), 3));
    }
    all
}

#[test]
fn what_is_not_settled_is_left_alone_until_the_launch_ahead_ends() {
    let (mut executed, mut caught) = (0, 0);
    for (case, ctas) in cases() {
        for bulk in [true, false] {
            settled(&case, ctas, bulk, |_, _| Vec::new()).unwrap_or_else(|e| panic!("{e}"));
            executed += 1;
            // What is read early is seen: the lengths, or a record.
            for early in
                [|a: &AttendArgs, m: &[&Buffer]| whole(m, a.lens), |a: &AttendArgs, m: &[&Buffer]| whole(m, a.packed)]
            {
                let said = settled(&case, ctas, bulk, |a, m| vec![early(a, m)]).err().expect("it was read before");
                assert!(said.contains("before the launch ahead has ended"), "{said}");
                caught += 1;
            }
        }
    }
    println!("GATE gpu-settled executed={executed} failed=0 controls={caught}/{caught} seed=0x2");
}

/// A launch that was told nothing reads nothing.
#[test]
fn other_launches_wait_first() {
    for (case, ctas) in cases() {
        let all = |args: &AttendArgs, memory: &[&Buffer]| {
            (AttendArgs { settled: 0, ..*args }, memory.iter().map(|b| (b.pointer(), b.len() as u64)).collect())
        };
        run_behind(&case, &variant(&case.spec), true, ctas, |l| l.seed(9), all).unwrap_or_else(|e| panic!("{e}"));
    }
}
