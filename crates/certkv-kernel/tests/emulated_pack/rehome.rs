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
    let (mut executed, mut kept, mut followed, mut planted, mut caught) = (0, 0, 0, 0, 0);
    for (case, (heads, count, ctas)) in
        [(1, 1, 1), (2, 7, 1), (8, 9, 2), (16, 8, 1), (33, 3, 4), (5, 0, 1)].into_iter().enumerate()
    {
        let sides = 2 * heads;
        let random = |at: usize| splitmix64((case << 32 | at) as u64);
        // Addresses are told apart, and never read.
        let from = |page: usize| (1 << 40) + (page * sides) as u64 * SIDE;
        let to = |page: usize| (1 << 50) + ((PAGES - page) * sides) as u64 * SIDE;
        let before: Vec<u64> = (0..PAGES * sides).map(|i| from(i / sides) + (i % sides) as u64 * SIDE).collect();
        // Nothing, another place, just before and behind the page, the side itself.
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
        // What launches leave, that are told of places `off` bytes from where the pages were.
        let moved_from = |off: u64| {
            let (table, loans) = (Buffer::of(&before), Buffer::of(&lent));
            let at = |buffer: &Buffer, page: usize| buffer.pointer() + (page * sides * 8) as u64;
            let of = |p: &usize| Move { named: at(&table, *p), lent: at(&loans, *p), from: from(*p) + off, to: to(*p) };
            let list = Buffer::of(&moved.iter().flat_map(|p| of(p).words()).collect::<Vec<u64>>());
            let args = RehomeArgs {
                moves: list.pointer(),
                count: count as u32,
                sides: sides as u32,
                side_bytes: SIDE as u32,
                unused: 0,
            };
            let how = Launch::new(ctas, 256, 0).seed(case as u64);
            kernel.launch("ckv_rehome", how, &args, &[&list, &table, &loans]).expect("the launch runs");
            (table.read::<u64>(), loans.read::<u64>())
        };
        let there = |i: usize| to(i / sides) + (i % sides) as u64 * SIDE;
        let moves = |i: usize| moved.contains(&(i / sides));
        let named: Vec<u64> = (0..before.len()).map(|i| if moves(i) { there(i) } else { before[i] }).collect();
        let lends: Vec<u64> =
            (0..lent.len()).map(|i| if moves(i) && lent[i] == before[i] { there(i) } else { lent[i] }).collect();
        assert!(moved_from(0) == (named.clone(), lends.clone()), "case {case}");
        executed += before.len();
        followed += (0..lent.len()).filter(|i| lends[*i] != lent[*i]).count();
        kept += (0..lent.len()).filter(|i| moves(*i) && lends[*i] == lent[*i]).count();
        // The control: told of places behind the pages.
        if count > 0 {
            planted += 1;
            caught += usize::from(moved_from(sides as u64 * SIDE) != (named, lends));
        }
    }
    assert!(kept > 50 && followed > 50, "{kept} {followed}");
    println!("GATE gpu-rehome executed={executed} failed=0 controls={caught}/{planted} seed=0x0");
    assert_eq!(caught, planted);
}
