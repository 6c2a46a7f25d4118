//! ckv_rehome against its sentence: what is named is elsewhere, and what was lent of it; all else stays.
use super::emulated::{Buffer, Emulated, Launch};
use certkv_core::hash::splitmix64;
use certkv_kernel::cuda::rehome::{Move, RehomeArgs};

/// Pages of a table, some of which move.
const PAGES: usize = 40;
const SIDE: u64 = 2048;

#[test]
fn what_has_moved_is_named_and_lent_where_it_is() {
    let kernel = Emulated::build("rehome.cu", &[]).expect("the kernel compiles");
    let (mut executed, mut kept, mut followed) = (0, 0, 0);
    for (case, (heads, count, ctas)) in
        [(1, 1, 1), (2, 7, 1), (8, 9, 2), (16, 8, 1), (33, 3, 4), (5, 0, 1)].into_iter().enumerate()
    {
        let sides = 2 * heads;
        let random = |at: usize| splitmix64((case << 32 | at) as u64);
        // Addresses are told apart, and never read.
        let from = |page: usize| (1 << 40) + (page * sides) as u64 * SIDE;
        let to = |page: usize| (1 << 50) + ((PAGES - page) * sides) as u64 * SIDE;
        let before: Vec<u64> = (0..PAGES * sides).map(|i| from(i / sides) + (i % sides) as u64 * SIDE).collect();
        // Nothing, another place, just before and behind the page, one of its sides.
        let lent: Vec<u64> = (0..PAGES * sides)
            .map(|i| match random(i) % 6 {
                0 => 0,
                1 => u64::MAX,
                2 => from(i / sides) - SIDE,
                3 => from(i / sides) + sides as u64 * SIDE,
                _ => before[i],
            })
            .collect();
        let moved: Vec<usize> = (0..count).map(|i| (i * 3 + case) % PAGES).collect();
        let (table, loans) = (Buffer::of(&before), Buffer::of(&lent));
        let at = |buffer: &Buffer, page: usize| buffer.pointer() + (page * sides * 8) as u64;
        let moves: Vec<u64> = moved
            .iter()
            .flat_map(|p| Move { named: at(&table, *p), lent: at(&loans, *p), from: from(*p), to: to(*p) }.words())
            .collect();
        let list = Buffer::of(&moves);
        let args = RehomeArgs {
            moves: list.pointer(),
            count: count as u32,
            sides: sides as u32,
            side_bytes: SIDE as u32,
            unused: 0,
        };
        let how = Launch::new(ctas, 256, 0).seed(case as u64);
        kernel.launch("ckv_rehome", how, &args, &[&list, &table, &loans]).expect("the launch runs");
        let (named, lends) = (table.read::<u64>(), loans.read::<u64>());
        for i in 0..PAGES * sides {
            let (page, there) = (i / sides, to(i / sides) + (i % sides) as u64 * SIDE);
            let moves = moved.contains(&page);
            assert_eq!(named[i], if moves { there } else { before[i] }, "case {case} page {page}");
            let follows = moves && lent[i] == before[i];
            assert_eq!(lends[i], if follows { there } else { lent[i] }, "case {case} page {page}");
            (kept, followed) = (kept + usize::from(moves && !follows), followed + usize::from(follows));
            executed += 1;
        }
    }
    assert!(kept > 50 && followed > 50, "{kept} {followed}");
    println!("GATE gpu-rehome executed={executed} failed=0 controls={0}/{0} seed=0x0", kept + followed);
}
