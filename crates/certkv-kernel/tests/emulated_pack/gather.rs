//! ckv_gather against a copy.
use super::emulated::{Buffer, Emulated, Launch};
use certkv_core::hash::splitmix64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    items: u64,
    count: u64,
    epoch: u32,
    unused: u32,
}

#[test]
fn pieces_of_every_size_arrive_whole_and_marked() {
    let kernel = Emulated::build("gather.cu", &[]).expect("the kernel compiles");
    let mut executed = 0;
    for (case, (ctas, threads, pieces)) in
        [(1, 128, 3), (4, 512, 1), (16, 512, 5), (2, 256, 40), (32, 512, 0), (4, 512, 64)].into_iter().enumerate()
    {
        let sizes: Vec<usize> =
            (0..pieces).map(|i| 16 * [1, 127, 128, 256, 511, 513, 1024, 2048][(i + case) % 8]).collect();
        let total: usize = sizes.iter().sum();
        let source: Vec<u8> = (0..total + 16).map(|i| splitmix64(i as u64) as u8).collect();
        let (from, to) = (Buffer::of(&source), Buffer::of(&vec![0xeeu8; total + 16]));
        let marks = Buffer::zeroed(4 * pieces + 4);
        let (mut items, mut at) = (Vec::new(), 0);
        for (i, bytes) in sizes.iter().enumerate() {
            let mark = if i % 3 == 2 { 0 } else { marks.pointer() + 4 * i as u64 };
            // Targets in the opposite order of the sources.
            let target = to.pointer() + (total - at - bytes) as u64;
            items.extend([from.pointer() + at as u64, target, *bytes as u64, mark]);
            at += bytes;
        }
        let (list, count) = (Buffer::of(&items), Buffer::of(&[pieces as u32]));
        let args = Args { items: list.pointer(), count: count.pointer(), epoch: 41, unused: 0 };
        let how = Launch::new(ctas, threads, 0).seed(case as u64);
        kernel.launch("ckv_gather", how, &args, &[&list, &count, &from, &to, &marks]).expect("the launch runs");
        let (got, marks) = (to.read::<u8>(), marks.read::<u32>());
        let mut at = 0;
        for (i, bytes) in sizes.iter().enumerate() {
            assert_eq!(got[total - at - bytes..total - at], source[at..at + bytes], "piece {i} of {pieces}");
            assert_eq!(marks[i], if i % 3 == 2 { 0 } else { 41 });
            at += bytes;
            executed += 1;
        }
        assert_eq!(got[total..], [0xee; 16], "nothing behind the last piece");
    }
    assert_eq!(executed, 113);
}
