//! ckv_append against a plain model of the tables.
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{THREADS, block, centre, judge, layout, macros, metric, pack_shared, uniform};
use certkv_core::{Dtype, RecordLayout, fragment::original_index};
use certkv_kernel::cuda::args::Strides;
use certkv_kernel::cuda::encode::AppendArgs;

const NONE: u32 = u32::MAX;
const ADVANCE: u32 = 1;
const FIRST_CENTRE: u32 = 2;
const HOST_ROWS: u32 = 4;
const SETTLED: u32 = 8;
const HEADS: usize = 2;
const ROWS: usize = 4;
const BLOCKS: usize = 3;

/// How a batch is given: where keys and values are, their types, the launch's flags.
#[derive(Clone, Copy)]
struct Given {
    strides: [Strides; 2],
    inputs: [u32; 2],
    flags: u32,
}

impl Given {
    /// One after the other, of one type.
    fn dense(dim: usize, input: u32, flags: u32) -> Self {
        Self { strides: [Strides::dense(HEADS, dim); 2], inputs: [input; 2], flags }
    }
}

/// What a cache holds, on the device and in the model.
struct World {
    l: RecordLayout,
    kernel: Emulated,
    lens: Buffer,
    arrived: Buffer,
    errors: Buffer,
    tails: Buffer,
    tail: Buffer,
    hosts: Buffer,
    host: Buffer,
    packed: Buffer,
    pack: Buffer,
    centres: Buffer,
    metrics: Buffer,
    status: Buffer,
    /// Count of a list, which every launch empties.
    clear: Buffer,
    /// Every row stored, by table row: (keys, values), each `[HEADS * dim]`.
    stored: Vec<Vec<(Vec<u16>, Vec<u16>)>>,
}

impl World {
    fn new(text: &str, dim: usize, store: Dtype) -> Self {
        let l = layout(text, dim, store);
        let page = HEADS * 2 * l.original_side_bytes();
        // Slots are handed out backwards, so that a number that is taken for another shows.
        let slots = |n: usize| (0..n as u32).rev().collect::<Vec<u32>>();
        let mut hosts = slots(ROWS * BLOCKS);
        hosts[BLOCKS] = NONE;
        let centres: Vec<f32> = (0..ROWS * HEADS).flat_map(|i| centre(i as u64, dim)).collect();
        Self {
            kernel: Emulated::build("append.cu", &macros(&l)).expect("the kernel compiles"),
            lens: Buffer::zeroed(4 * ROWS),
            arrived: Buffer::zeroed(4 * ROWS),
            errors: Buffer::zeroed(4 * ROWS),
            tails: Buffer::of(&slots(ROWS)),
            tail: Buffer::of(&vec![0xeeu8; ROWS * page]),
            hosts: Buffer::of(&hosts),
            host: Buffer::of(&vec![0xeeu8; ROWS * BLOCKS * page]),
            packed: Buffer::of(&slots(ROWS * BLOCKS)),
            pack: Buffer::of(&vec![0xeeu8; ROWS * BLOCKS * (64 + HEADS * l.bytes)]),
            centres: Buffer::of(&centres),
            metrics: Buffer::of(&(0..HEADS).flat_map(|head| metric(&l, head)).collect::<Vec<u32>>()),
            status: Buffer::zeroed(4),
            clear: Buffer::of(&[7u32]),
            stored: vec![Vec::new(); ROWS],
            l,
        }
    }

    /// One launch for the table rows `rows`; `keys` and `values` hold the batch.
    fn append(&self, rows: &[u32], (keys, values): (&Buffer, &Buffer), given: Given, how: Launch) {
        let Given { strides, inputs, flags } = given;
        let (count, rows) = (Buffer::of(&[rows.len() as u32]), Buffer::of(rows));
        let page = (HEADS * 2 * self.l.original_side_bytes()) as u64;
        let args = AppendArgs {
            keys: keys.pointer(),
            values: values.pointer(),
            count: count.pointer(),
            rows: rows.pointer(),
            lens: self.lens.pointer(),
            arrived: self.arrived.pointer(),
            errors: self.errors.pointer(),
            tails: self.tails.pointer(),
            tail_base: self.tail.pointer(),
            tail_stride: page,
            hosts: self.hosts.pointer(),
            host_base: self.host.pointer(),
            host_stride: page,
            packed: self.packed.pointer(),
            // A seal of 64 bytes stands in front of the records.
            packed_base: self.pack.pointer() + 64,
            packed_stride: (64 + HEADS * self.l.bytes) as u64,
            record_stride: self.l.bytes as u64,
            centres: self.centres.pointer(),
            status: self.status.pointer(),
            clear: self.clear.pointer(),
            key_strides: strides[0],
            value_strides: strides[1],
            blocks: BLOCKS as u32,
            kv_heads: HEADS as u32,
            key_input: inputs[0],
            value_input: inputs[1],
            flags,
            metrics: self.metrics.pointer(),
            ..AppendArgs::default()
        };
        let memory = [
            &self.metrics,
            &self.lens,
            &self.arrived,
            &self.errors,
            &self.tails,
            &self.tail,
            &self.hosts,
            &self.host,
            &self.packed,
            &self.pack,
            &self.centres,
            &self.status,
            &self.clear,
            keys,
            values,
            &count,
            &rows,
        ];
        // The launch ahead may still write the inputs; where the caller does not say that the rest is settled, everything.
        let late =
            [keys, values].into_iter().chain(if flags & SETTLED == 0 { &memory[..] } else { &[] }.iter().copied());
        let late: Vec<_> = late.map(|b| (b.pointer(), b.len() as u64)).collect();
        self.kernel.launch_behind("ckv_append", how, &args, &memory, &late).expect("the launch runs");
        assert_eq!(self.clear.read::<u32>(), [0]);
    }

    fn launch(&self, grid: u32) -> Launch {
        Launch::new(grid, THREADS, pack_shared(&self.l))
    }

    /// Compares everything the device holds with the model.
    fn check(&self, flags: u32) -> Result<usize, String> {
        let (l, dim, n) = (&self.l, self.l.dim, self.l.tokens());
        let (tail, host) = (self.tail.read::<u16>(), self.host.read::<u16>());
        let (pack, centres) = (self.pack.read::<u8>(), self.centres.read::<f32>());
        let (hosts, slots) = (self.hosts.read::<u32>(), self.packed.read::<u32>());
        let (first_centre, by_row) = (flags & FIRST_CENTRE != 0, flags & HOST_ROWS != 0);
        let mut judged = 0;
        if self.arrived.read::<u32>().iter().any(|a| *a != 0) {
            return Err("arrivals are left over".into());
        }
        for (row, stored) in self.stored.iter().enumerate() {
            if self.lens.read::<u32>()[row] as usize != stored.len() {
                return Err(format!("row {row} has {} tokens, not {}", self.lens.read::<u32>()[row], stored.len()));
            }
            for (b, rows) in stored.chunks(n).enumerate() {
                for (head, side) in (0..HEADS).flat_map(|h| [(h, 0), (h, 1)]) {
                    let of = |t: usize| {
                        let both = &rows[t];
                        &(if side == 0 { &both.0 } else { &both.1 })[head * dim..(head + 1) * dim]
                    };
                    let start = |slot: u32| ((slot as usize * HEADS + head) * 2 + side) * n * dim;
                    for t in 0..rows.len() {
                        let row_of = |page: &[u16], slot: u32| page[start(slot) + t * dim..][..dim].to_vec();
                        let fragment_of = |page: &[u16], slot: u32| {
                            let at = |c| start(slot) + original_index(t, c, dim, side == 0);
                            (0..dim).map(|c| page[at(c)]).collect::<Vec<u16>>()
                        };
                        let host_slot = hosts[row * BLOCKS + b];
                        let there = host_slot != NONE && (by_row || rows.len() == n);
                        let found = || if by_row { row_of(&host, host_slot) } else { fragment_of(&host, host_slot) };
                        if there && found() != of(t) {
                            return Err(format!("host row {row} block {b} head {head} side {side} token {t}"));
                        }
                        let open = b == (stored.len() - 1) / n;
                        if open && fragment_of(&tail, (ROWS - 1 - row) as u32) != of(t) {
                            return Err(format!("tail row {row} block {b} head {head} side {side} token {t}"));
                        }
                    }
                    if side == 1 && rows.len() == n {
                        let side = |s: usize| {
                            rows.iter()
                                .flat_map(|r| if s == 0 { &r.0 } else { &r.1 }[head * dim..][..dim].to_vec())
                                .collect()
                        };
                        let (k, v): (Vec<u16>, Vec<u16>) = (side(0), side(1));
                        let c = &centres[(row * HEADS + head) * dim..][..dim];
                        if first_centre && b == 0 {
                            let mean = |c: usize| {
                                (0..n).map(|t| f64::from(l.store.decode16(v[t * dim + c]))).sum::<f64>() / n as f64
                            };
                            if (0..dim).any(|i| c[i] != mean(i) as f32) {
                                return Err(format!("centre of row {row} head {head}"));
                            }
                        }
                        let at = slots[row * BLOCKS + b] as usize * (64 + HEADS * l.bytes) + 64 + head * l.bytes;
                        judge(l, head, &k, &v, c, &pack[at..at + l.bytes])?;
                        judged += 1;
                    }
                }
            }
        }
        Ok(judged)
    }
}

/// A batch of rows as the caller gives them, and as they are stored.
fn inputs(batch: usize, dim: usize, strides: Strides, input: u32, store: Dtype, seed: u64) -> (Buffer, Vec<Vec<u16>>) {
    let dtype = [Dtype::F16, Dtype::Bf16, Dtype::F32][input as usize];
    let at = |i: usize, head: usize| i * strides.token as usize + head * strides.head as usize;
    let numbers: Vec<f32> = (0..at(batch - 1, HEADS - 1) + dim).map(|i| (3.0 * uniform(seed, i)) as f32).collect();
    let given: Vec<f32> =
        numbers.iter().map(|x| if input == 2 { *x } else { dtype.decode16(dtype.encode16(*x)) }).collect();
    let buffer = match input {
        2 => Buffer::of(&given),
        _ => Buffer::of(&given.iter().map(|x| dtype.encode16(*x)).collect::<Vec<u16>>()),
    };
    let row = |i, head| given[at(i, head)..][..dim].iter().map(|x| store.encode16(*x));
    let stored = (0..batch).map(|i| (0..HEADS).flat_map(|head| row(i, head)).collect()).collect();
    (buffer, stored)
}

#[test]
fn rows_go_to_their_tails_and_pages_and_full_blocks_are_coded() {
    let mut judged = 0;
    let cases = [
        ("k8-v4g32-b16", 64, Dtype::F16, 2, FIRST_CENTRE),
        ("t4-v5g16-b32", 128, Dtype::Bf16, 0, HOST_ROWS),
        ("f16-v8g32-b16", 96, Dtype::F16, 1, FIRST_CENTRE | HOST_ROWS),
        ("k8-v4g32-b16-r5.4", 64, Dtype::F16, 2, FIRST_CENTRE),
        ("k8-v3g16-b32-r8.3", 64, Dtype::Bf16, 0, HOST_ROWS),
        ("tq4-tq4-b32", 64, Dtype::F16, 0, FIRST_CENTRE),
        ("ctq4-v4g32-b16", 64, Dtype::F16, 0, FIRST_CENTRE),
        ("gtq3-tq3-b32", 64, Dtype::Bf16, 0, FIRST_CENTRE),
        ("s1-v4g32-b16", 64, Dtype::F16, 0, FIRST_CENTRE),
    ];
    for (at, (text, dim, store, input, kind)) in cases.into_iter().enumerate() {
        let mut world = World::new(text, dim, store);
        // Both of one type, or each of its own.
        let types = [input, (input + at as u32 % 2) % 3];
        let steps = 2 * world.l.tokens() + 3;
        for step in 0..steps {
            // Sequences come and go: lengths differ, the batch is in another order than the tables, a place is empty.
            let mut batch = vec![2, NONE, 0, 1];
            if step % 5 == 0 {
                batch.push(3);
            }
            // More places than are looked at at once.
            if step % 6 == 1 {
                for at in [0, 2, 4] {
                    batch.splice(at..at, [NONE; 13]);
                }
            }
            // Heads side by side, apart, and outside the batch.
            let row = (dim + 8) as u32;
            let apart = [
                Strides { token: (HEADS * dim + 24) as u32, head: dim as u32 },
                Strides { token: HEADS as u32 * row, head: row },
                Strides { token: row, head: batch.len() as u32 * row },
            ];
            let strides = [apart[step % 3], apart[(step + at) % 3]];
            let (keys, k) = inputs(batch.len(), dim, strides[0], types[0], store, 2 * step as u64);
            let (values, v) = inputs(batch.len(), dim, strides[1], types[1], store, 2 * step as u64 + 1);
            let given = |flags| Given { strides, inputs: types, flags };
            let how = world.launch(7 + step as u32 % 13).seed(step as u64).noisy();
            let flags = kind | if step % 2 == 0 { SETTLED } else { 0 };
            // Earlier layers of a step append without counting.
            if step % 7 == 3 {
                world.append(&batch, (&keys, &values), given(flags), how);
            }
            // Rows are counted by the launch or, as in the engine, by the host.
            if step % 3 == 0 {
                world.append(&batch, (&keys, &values), given(flags | ADVANCE), how);
            } else {
                world.append(&batch, (&keys, &values), given(flags), how);
                let mut lens = world.lens.read::<u32>();
                batch.iter().filter(|row| **row != NONE).for_each(|row| lens[*row as usize] += 1);
                world.lens.write(0, &lens);
            }
            for (i, row) in batch.iter().enumerate().filter(|(_, row)| **row != NONE) {
                world.stored[*row as usize].push((k[i].clone(), v[i].clone()));
            }
            if step % 8 == 7 || step + 1 == steps {
                judged += world.check(kind).unwrap();
            }
        }
        assert_eq!(world.errors.read::<u32>(), [0; ROWS]);
        // A row in the wrong place and a length that is off are seen.
        world.stored[0][1].0[3] ^= 1;
        assert!(world.check(kind).is_err());
        world.stored[0][1].0[3] ^= 1;
        world.stored[1].pop();
        assert!(world.check(kind).is_err());
    }
    assert!(judged > 30, "{judged}");
    println!("GATE gpu-append executed={judged} failed=0 controls=14/14 seed=0x0");
}

#[test]
fn a_sequence_with_a_bad_number_in_any_head_writes_nothing() {
    for (input, at, value, bit) in [
        (2u32, 0usize, f32::NAN, 1u32),
        (2, 127, f32::INFINITY, 1),
        (2, 77, 7e4, 2),
        (1, 100, 7e4, 2),
        (0, 65, f32::NEG_INFINITY, 1),
        (1, 3, f32::NAN, 1),
    ] {
        for (side, flags, len) in [(0, ADVANCE, 15u32), (1, ADVANCE, 15), (0, 0, 15), (1, 0, 15), (0, 0, 6), (1, 0, 6)]
        {
            let (dim, store) = (64, Dtype::F16);
            let (given, dense) = (Given::dense(dim, input, flags), Strides::dense(HEADS, dim));
            let mut world = World::new("k8-v4g32-b16", dim, store);
            world.lens.write(0, &[len, len, 0, 0]);
            let (tail, host, pack) = (world.tail.read::<u8>(), world.host.read::<u8>(), world.pack.read::<u8>());
            let dtype = [Dtype::F16, Dtype::Bf16, Dtype::F32][input as usize];
            let (keys, k) = inputs(1, dim, dense, input, store, 5);
            let (values, v) = inputs(1, dim, dense, input, store, 6);
            let (clean_keys, clean_values) = (keys.read::<u8>(), values.read::<u8>());
            let spoilt = [&keys, &values][side];
            match input {
                2 => spoilt.write(4 * at, &[value]),
                _ => spoilt.write(2 * at, &[dtype.encode16(value)]),
            }
            world.append(&[1], (&keys, &values), given, world.launch(4));
            assert_eq!(world.errors.read::<u32>(), [0, bit, 0, 0], "input {input} at {at}");
            assert_eq!(world.lens.read::<u32>(), [len, len, 0, 0]);
            assert_eq!((world.tail.read::<u8>(), world.host.read::<u8>(), world.pack.read::<u8>()), (tail, host, pack));
            // Without the bad number the same launch goes through.
            world.tail.write(0, &vec![0u8; world.tail.len()]);
            keys.write(0, &clean_keys);
            values.write(0, &clean_values);
            world.append(&[1], (&keys, &values), given, world.launch(4));
            assert_eq!(world.lens.read::<u32>(), [len, len + u32::from(flags == ADVANCE), 0, 0]);
            let zeros = (vec![0; HEADS * dim], vec![0; HEADS * dim]);
            world.stored[1] = vec![zeros; len as usize];
            world.stored[1].push((k[0].clone(), v[0].clone()));
            world.lens.write(0, &[0, len + 1]);
            assert_eq!(world.check(0), Ok(if len == 15 { HEADS } else { 0 }));
        }
    }
}

#[test]
fn a_sequence_without_a_place_writes_nothing() {
    let world = World::new("k8-v4g32-b16", 64, Dtype::F16);
    world.lens.write(0, &[(16 * BLOCKS) as u32, 3, 0, 0]);
    world.tails.write(4, &[NONE]);
    let words = Buffer::of(&block("normal", 1, 2 * HEADS, 64, Dtype::F16));
    let (tail, host) = (world.tail.read::<u8>(), world.host.read::<u8>());
    for flags in [ADVANCE, 0] {
        world.errors.write(0, &[0u32; ROWS]);
        world.append(&[0, 1], (&words, &words), Given::dense(64, 0, flags), world.launch(3));
        assert_eq!(world.errors.read::<u32>(), [4, 4, 0, 0]);
        assert_eq!(world.lens.read::<u32>(), [(16 * BLOCKS) as u32, 3, 0, 0]);
        assert_eq!((world.tail.read::<u8>(), world.host.read::<u8>()), (tail.clone(), host.clone()));
    }
}
