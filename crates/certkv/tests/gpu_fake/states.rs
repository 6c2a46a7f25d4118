//! The program `gpu_states` over the fake driver: its host's part runs, its gates hold, its controls are caught.
#[path = "../../examples/gpu_states/bench.rs"]
mod bench;
#[path = "../../examples/gpu_states/erased.rs"]
mod erased;
#[path = "../../examples/gpu_states/far.rs"]
mod far;
#[path = "../../examples/gpu_states/limits.rs"]
mod limits;
#[path = "../../examples/gpu_states/replays.rs"]
mod replays;
#[path = "../../examples/gpu_states/unwritten.rs"]
mod unwritten;

use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS};
use crate::{alone, fake_cuda};
use bench::{Bench, Failure};
use certkv::Geometry;
use certkv::gpu::Gpu;

fn part(work: impl FnOnce(&Bench<'_>, &fake_cuda::Fake) -> Result<bool, Failure>) {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let before = fake.live();
    let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM).expect("a geometry");
    let formats = [FORMATS[0], FORMATS[1]];
    let bench = Bench { gpu: &gpu, compiler, geometry, formats, block: BLOCK, seed: 1, stubs: true };
    let held = work(&bench, fake);
    assert!(held.expect("no error"), "a gate does not hold");
    assert_eq!((fake.live(), fake.violations()), (before, 0));
}

#[test]
fn lives_over_any_memory_run_over_the_fake() {
    part(|bench, _| unwritten::run(bench));
}

#[test]
fn lives_leave_nothing_over_the_fake() {
    part(|bench, _| erased::run(bench));
}

#[test]
fn sequences_begin_at_the_pages_that_were_chosen() {
    part(|bench, _| far::run(bench, Some(&far::Places::few())));
}

#[test]
fn recordings_run_while_pages_change_hands() {
    part(|bench, _| replays::run(bench, 1000));
}

#[test]
fn configurations_for_no_machine_are_refused() {
    part(|bench, fake| {
        // The fake touches what it gives, so that it gives little.
        fake.limit_device(1 << 30);
        let held = limits::run(bench);
        fake.limit_device(usize::MAX);
        held
    });
}
