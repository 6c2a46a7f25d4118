//! Originals of which a table says where they are: there they are read, and what is nowhere stays on codes.
use crate::world::{BLOCK, Plan, World, kernel};
use certkv_kernel::cuda::select::SelectStats;

const ENTRIES: [u32; 3] = [0, 1, 2];

fn plan(slots: usize) -> Plan {
    Plan { slots: [slots, slots], seed: 5, tolerance: 0.02, ..Plan::new(4, &[70 * BLOCK, 40 * BLOCK + 3]) }
}

/// A plan, its copies, and a repair: copies, places, words and counts.
fn run(w: &mut World) -> (Vec<u64>, Vec<u64>, Vec<u32>, SelectStats) {
    let kernel = kernel(4);
    w.plan_step(&kernel, 2, 3);
    let copies = w.copies.read();
    w.gather();
    assert_eq!(w.inconsistencies(), Vec::<String>::new());
    w.repair(&kernel, &ENTRIES, 0.3, 2, 9);
    (copies, w.all_sides(), w.promoted.read(), w.counted())
}

#[test]
fn what_is_nowhere_is_neither_copied_nor_lent() {
    let gone = |item: usize| item % 3 == 1;
    let (mut executed, mut failed, mut planted) = (0, 0, 0);
    for slots in [4096, 30, 0] {
        let (mut all, mut some) = (World::new(plan(slots)), World::new(plan(slots)));
        some.tell(gone);
        let (all, some) = (run(&mut all), run(&mut some));
        let items = some.1.len() / 2;
        let there = |run: &(Vec<u64>, Vec<u64>, Vec<u32>, SelectStats), item: usize| {
            [run.1[item], run.1[items + item]].into_iter().filter(|address| *address != 0).count()
        };
        for item in (0..items).filter(|item| gone(*item)) {
            executed += 1;
            failed += there(&some, item);
            // The control: told of all, they are there.
            planted += there(&all, item);
        }
        let reached: usize = (0..items).filter(|item| !gone(*item)).map(|item| there(&some, item)).sum();
        assert!(reached > 20 && some.3.refused > all.3.refused, "{:?}", some.3);
        assert!(some.0.as_chunks::<4>().0.iter().all(|[from, _, bytes, _]| *bytes == 0 || *from != 0));
    }
    println!(
        "GATE select-elsewhere executed={executed} failed={failed} controls={}/1 seed=0x5",
        u8::from(planted > 20)
    );
    assert!(failed == 0 && planted > 20);
}
