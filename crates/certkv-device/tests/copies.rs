//! Random copies against plain vectors: what is accepted moves exactly the bytes named, what is refused moves none.
use certkv_device::*;
use proptest::prelude::*;

const BYTES: usize = 96;

#[derive(Debug, Clone)]
struct Op {
    arenas: [usize; 2],
    slots: [u32; 2],
    start: usize,
    width: usize,
    offset: usize,
    rows: Copy2d,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![8 => 0..BYTES + 2, 1 => Just(usize::MAX), 1 => Just(usize::MAX / 2)];
    let places = ([0..2usize, 0..2usize], [0..4u32, 0..4u32]);
    let count = prop_oneof![Just(1usize), 0..6usize];
    (places, 0..BYTES + 2, 0..40usize, size.clone(), count, size).prop_map(
        |(places, start, width, offset, count, pitch)| Op {
            arenas: places.0,
            slots: places.1,
            start,
            width,
            offset,
            rows: Copy2d { count, pitch },
        },
    )
}

/// Slots 0..3 exist; slot 3 does not.
fn model(memory: &mut [Vec<Vec<u8>>], op: &Op) -> bool {
    let ([a, b], [from, to]) = (op.arenas, op.slots);
    let fits = |start: usize| {
        let first = start.checked_add(op.width).is_some_and(|end| end <= BYTES);
        let last = op.rows.count.saturating_sub(1) as u128 * op.rows.pitch as u128 + start as u128;
        let rows = op.rows.count == 0 || last + op.width as u128 <= BYTES as u128;
        first && rows && start <= BYTES
    };
    let start_fits = op.start + op.width <= BYTES && fits(op.start);
    let end_fits = op.offset <= BYTES && (op.rows.count == 0 || fits(op.offset));
    if from > 2 || to > 2 || (a, from) == (b, to) || !start_fits || !end_fits {
        return false;
    }
    let source = memory[a][from as usize].clone();
    for skip in (0..op.rows.count).map(|row| row * op.rows.pitch) {
        let bytes = &source[op.start + skip..op.start + skip + op.width];
        memory[b][to as usize][op.offset + skip..op.offset + skip + op.width].copy_from_slice(bytes);
    }
    true
}

proptest! {
    #[test]
    fn copies_agree_with_vectors(ops in proptest::collection::vec(op(), 1..30), seed: u64, eager: bool, check: bool) {
        let mode = if eager { Mode::Eager } else { Mode::Adversarial { seed } };
        let device = SimDevice::new(SimOptions { mode, check });
        let arenas = [device.arena("a", 3, BYTES).unwrap(), device.arena("b", 3, BYTES).unwrap()];
        let stream = device.stream("lane");
        let mut memory = vec![vec![vec![0u8; BYTES]; 3]; 2];
        for (a, arena) in arenas.iter().enumerate() {
            for slot in 0..3 {
                let mut guard = arena.write(slot, &stream).unwrap();
                guard.bytes_mut().iter_mut().enumerate().for_each(|(i, x)| *x = (i * 7 + slot as usize * 31 + a * 101) as u8);
                memory[a][slot as usize].copy_from_slice(guard.bytes());
            }
        }
        for op in &ops {
            let ([a, b], [from, to]) = (op.arenas, op.slots);
            let src = Src { arena: &arenas[a], slot: from, range: op.start..op.start + op.width, expect: None };
            let dst = Dst { arena: &arenas[b], slot: to, offset: op.offset };
            let accepted = device.copy_2d(&stream, src, dst, op.rows).is_ok();
            prop_assert_eq!(accepted, model(&mut memory, op), "{:?}", op);
        }
        stream.synchronize().unwrap();
        for (arena, slots) in arenas.iter().zip(&memory) {
            for (slot, bytes) in slots.iter().enumerate() {
                let guard = arena.read(slot as u32, &stream).unwrap();
                prop_assert_eq!(guard.bytes(), &bytes[..]);
            }
        }
        prop_assert_eq!(device.report().findings(), 0);
    }
}
