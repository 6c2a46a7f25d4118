//! A block that a step's token fills is read from its tail until the step has ended.
use crate::device_cases::{Case, Refining, closing};
use crate::{check, checked, run_behind, variant};
use certkv_kernel::cuda::args::AttendArgs;

#[test]
fn blocks_that_the_last_token_fills_are_read_from_their_tails() {
    let specs = closing::specs();
    for (i, spec) in specs.iter().enumerate() {
        for ctas in [1 + i % 5, 9] {
            check(spec, ctas);
        }
    }
    println!("GATE gpu-closing executed={} failed=0 controls=0/0 seed=0x0", 2 * specs.len());
}

/// A batch without a block that is being filled is the same to the bit, whatever is said.
#[test]
fn other_batches_do_not_notice() {
    for mut spec in closing::specs() {
        let block = spec.layout().tokens();
        spec.lens.iter_mut().for_each(|len| *len += usize::from(len.is_multiple_of(block)));
        let of = |closing| {
            let case = Case::new(&crate::Spec { closing, ..spec.clone() });
            let same = |args: &AttendArgs, _: &[&crate::Buffer]| (*args, Vec::new());
            run_behind(&case, &variant(&spec), true, 3, |l| l.seed(1), same).expect("the launch runs")
        };
        let (with, without) = (of(true), of(false));
        assert!(with.out == without.out && with.masses == without.masses, "{spec:?}");
    }
}

/// A launch that looks for the record of such a block does not find it.
#[test]
fn a_launch_that_is_not_told_is_seen() {
    // Without probes, which the emulator would let read anywhere.
    let specs: Vec<_> = closing::specs().into_iter().filter(|spec| spec.refine == Refining::Never).collect();
    let mut caught = 0;
    for spec in &specs {
        let case = Case::new(spec);
        let untold = |args: &AttendArgs, _: &[&crate::Buffer]| (AttendArgs { closing: 0, ..*args }, Vec::new());
        let seen =
            std::panic::catch_unwind(|| match run_behind(&case, &variant(spec), true, 2, |l| l.seed(1), untold) {
                Ok(run) => checked(&case, &run),
                Err(said) => panic!("{said}"),
            });
        caught += usize::from(seen.is_err());
    }
    assert_eq!(caught, specs.len());
    println!("GATE gpu-closing executed=0 failed=0 controls={caught}/{caught} seed=0x1");
}
