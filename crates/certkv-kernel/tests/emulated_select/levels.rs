//! Choices where records lie by level are those where they lie side by side; and a block that is another's from now on has nothing promoted.
use crate::world::{BLOCK, Plan, World, build};
use certkv_kernel::cuda::select::{BLOCK_ENTRY, SelectArgs, SelectMode, SelectStats};

fn plan() -> Plan {
    Plan { slots: [60, 60], seed: 9, tolerance: 0.02, ..Plan::new(4, &[70 * BLOCK, 40 * BLOCK + 3]) }
}

/// A plan, its copies, and a repair: copies, places, words and counts.
fn run(w: &mut World, levelled: bool) -> (Vec<u64>, Vec<u64>, Vec<u32>, SelectStats) {
    let kernel = build(4, levelled);
    w.plan_step(&kernel, 2, 3);
    let copies = w.copies.read();
    w.gather();
    assert_eq!(w.inconsistencies(), Vec::<String>::new());
    w.repair(&kernel, &[0, 1, 2], 0.3, 2, 9);
    (copies, w.all_sides(), w.promoted.read(), w.counted())
}

#[test]
fn records_are_found_by_level() {
    let want = run(&mut World::new(plan()), false);
    let (mut executed, mut caught) = (0, 0);
    for first in [0, 1, 33, 100, 109] {
        let mut world = World::new(plan());
        world.in_levels(first);
        let got = run(&mut world, true);
        assert!(got == want, "from page {first} on");
        executed += want.2.len();
        // The control: who does not know of levels finds what no block has.
        let mut world = World::new(plan());
        world.in_levels(first);
        caught += usize::from(run(&mut world, false) != want);
    }
    println!("GATE select-levels executed={executed} failed=0 controls={caught}/5 seed=0x9");
    assert_eq!(caught, 5);
}

#[test]
fn of_a_block_that_is_another_nothing_is_promoted() {
    let mut world = World::new(plan());
    run(&mut world, false);
    let (before, heads) = (world.promoted.read::<u32>(), world.plan.kv_heads);
    let stride = world.stride;
    // Rows are in the other order.
    let gone = [(1, 4), (1, 69), (0, 12)];
    let list = gone.map(|(row, block)| BLOCK_ENTRY | (row * stride + block) as u32);
    world.only.write(0, &[&[gone.len() as u32], &list[..]].concat());
    world.launch(&build(4, true), SelectArgs { mode: SelectMode::Forget as u32, ..world.args }, 3, 9);
    let after = world.promoted.read::<u32>();
    let mut cleared = 0;
    for (i, (old, new)) in before.iter().zip(&after).enumerate() {
        let (row, block) = (i / stride / heads, i % stride);
        let want = if gone.contains(&(row, block)) { 0 } else { *old };
        assert_eq!(*new, want, "row {row}, block {block}");
        cleared += usize::from(old != new);
    }
    assert!(cleared > 0, "nothing was promoted of them");
}
