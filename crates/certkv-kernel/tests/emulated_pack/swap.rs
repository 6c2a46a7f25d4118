//! ckv_swap against a copy and the digest of the host.
use super::emulated::{Buffer, Emulated, Launch};
use certkv_core::hash::splitmix64;
use certkv_kernel::cuda::swap::{SwapArgs, digest};

#[test]
fn pages_of_every_size_arrive_whole_with_their_digests() {
    let kernel = Emulated::build("swap.cu", &[]).expect("the kernel compiles");
    let mut executed = 0;
    for (case, (ctas, threads, pages)) in
        [(1, 128, 3), (4, 512, 1), (16, 512, 5), (2, 256, 40), (32, 512, 0), (4, 512, 64)].into_iter().enumerate()
    {
        let sizes: Vec<usize> =
            (0..pages).map(|i| 16 * [1, 127, 128, 256, 511, 513, 1024, 2048][(i + case) % 8]).collect();
        let total: usize = sizes.iter().sum();
        let source: Vec<u8> = (0..total + 16).map(|i| splitmix64((i + case) as u64) as u8).collect();
        let (from, to) = (Buffer::of(&source), Buffer::of(&vec![0xeeu8; total + 16]));
        let digests = Buffer::zeroed(8 * pages + 8);
        let (mut items, mut at) = (Vec::new(), 0);
        for (i, bytes) in sizes.iter().enumerate() {
            // Targets in the opposite order of the sources.
            // Some of them stay: their digests alone are asked for.
            let target = if i % 5 == 4 { 0 } else { to.pointer() + (total - at - bytes) as u64 };
            items.extend([from.pointer() + at as u64, target, *bytes as u64, digests.pointer() + 8 * i as u64]);
            at += bytes;
        }
        let list = Buffer::of(&items);
        let args = SwapArgs { items: list.pointer(), count: pages as u32, unused: 0 };
        let how = Launch::new(ctas, threads, 0).seed(case as u64);
        kernel.launch("ckv_swap", how, &args, &[&list, &from, &to, &digests]).expect("the launch runs");
        let (got, found) = (to.read::<u8>(), digests.read::<u64>());
        let mut at = 0;
        for (i, bytes) in sizes.iter().enumerate() {
            let page = &source[at..at + bytes];
            let there = &got[total - at - bytes..total - at];
            assert!(
                if i % 5 == 4 { there.iter().all(|byte| *byte == 0xee) } else { there == page },
                "page {i} of {pages}"
            );
            assert_eq!(found[i], digest(page), "page {i} of {pages}");
            at += bytes;
            executed += 1;
        }
        assert_eq!((&got[total..], found[pages]), (&[0xee; 16][..], 0), "nothing behind the last page");
    }
    assert_eq!(executed, 113);
}
