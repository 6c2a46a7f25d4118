//! ckv_append, ckv_measure and ckv_close against a plain model of the tables.
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{THREADS, centre, judge, layout, macros, metric, pack_shared, uniform};
use certkv_core::{Dtype, RecordLayout, fragment::original_index};
use certkv_kernel::cuda::args::Strides;
use certkv_kernel::cuda::close::{self, CLOSE_LAYERS, CloseArgs, CloseLayer};
use certkv_kernel::cuda::encode::{AppendArgs, append_flag::BY_PLACE, append_flag::SETTLED};
use certkv_kernel::cuda::measure::MeasureArgs;

pub(super) const NONE: u32 = u32::MAX;
pub(super) const HEADS: usize = 2;
pub(super) const ROWS: usize = 4;
/// Every second block of a row is in the second half, where it is told so.
const TAILS: usize = 2 * ROWS;
pub(super) const BLOCKS: usize = 3;
pub(super) const LAYERS: usize = 2;
/// What memory holds that nothing was written to.
const BLANK: u8 = 0xee;

/// How a batch is given: where keys and values are, their types, the launch's flags.
#[derive(Clone, Copy)]
pub(super) struct Given {
    strides: [Strides; 2],
    inputs: [u32; 2],
    flags: u32,
}

impl Given {
    /// One after the other, of one type.
    pub(super) fn dense(dim: usize, input: u32, flags: u32) -> Self {
        Self { strides: [Strides::dense(HEADS, dim); 2], inputs: [input; 2], flags }
    }
}

/// One layer, on the device and in the model.
pub(super) struct Layer {
    pub(super) tail: Buffer,
    pack: Buffer,
    pub(super) norms: Buffer,
    centres: Buffer,
    metrics: Buffer,
    /// Every row stored, by table row: (keys, values), each `[HEADS * dim]`.
    pub(super) stored: Vec<Vec<(Vec<u16>, Vec<u16>)>>,
}

/// What a cache holds.
pub(super) struct World {
    l: RecordLayout,
    kernel: Emulated,
    closes: Emulated,
    measures: Emulated,
    pub(super) lens: Buffer,
    pub(super) after: Buffer,
    pub(super) errors: Buffer,
    pub(super) tails: Buffer,
    packed: Buffer,
    status: Buffer,
    /// Count of a list, which every launch empties.
    clear: Buffer,
    pub(super) layers: Vec<Layer>,
}

impl World {
    pub(super) fn new(text: &str, dim: usize, store: Dtype) -> Self {
        let l = layout(text, dim, store);
        let page = HEADS * 2 * l.original_side_bytes();
        // Slots are handed out backwards, so that a number that is taken for another shows.
        let slots = |n: usize| (0..n as u32).rev().collect::<Vec<u32>>();
        let layer = |at: usize| Layer {
            tail: Buffer::of(&vec![BLANK; TAILS * page]),
            pack: Buffer::of(&vec![BLANK; ROWS * BLOCKS * (64 + HEADS * l.bytes)]),
            norms: Buffer::of(&vec![f32::NAN; TAILS * HEADS * l.tokens() * 2]),
            centres: Buffer::of(
                &(0..ROWS * HEADS).flat_map(|i| centre((at * 64 + i) as u64, dim)).collect::<Vec<f32>>(),
            ),
            metrics: Buffer::of(&(0..HEADS).flat_map(|head| metric(&l, head)).collect::<Vec<u32>>()),
            stored: vec![Vec::new(); ROWS],
        };
        Self {
            kernel: Emulated::build("append.cu", &macros(&l)).expect("the kernel compiles"),
            closes: Emulated::build("close.cu", &macros(&l)).expect("the kernel compiles"),
            measures: Emulated::build("measure.cu", &macros(&l)).expect("the kernel compiles"),
            lens: Buffer::zeroed(4 * ROWS),
            after: Buffer::zeroed(4 * ROWS),
            errors: Buffer::zeroed(4 * ROWS),
            tails: Buffer::of(&slots(ROWS)),
            packed: Buffer::of(&slots(ROWS * BLOCKS)),
            status: Buffer::zeroed(4),
            clear: Buffer::of(&[7u32]),
            layers: (0..LAYERS).map(layer).collect(),
            l,
        }
    }

    fn page_bytes(&self) -> u64 {
        (HEADS * 2 * self.l.original_side_bytes()) as u64
    }

    /// One launch for the table rows `rows` in a layer; `keys` and `values` hold the batch.
    pub(super) fn append(&self, at: usize, rows: &[u32], data: (&Buffer, &Buffer), given: Given, how: Launch) {
        self.append_at(at, rows, [&self.lens, &self.tails], data, given, how);
    }

    /// The same with lengths and tails of its own.
    pub(super) fn append_at(
        &self,
        at: usize,
        rows: &[u32],
        [lens, tails]: [&Buffer; 2],
        (keys, values): (&Buffer, &Buffer),
        given: Given,
        how: Launch,
    ) {
        let Given { strides, inputs, flags } = given;
        let (count, rows, layer) = (Buffer::of(&[rows.len() as u32]), Buffer::of(rows), &self.layers[at]);
        let args = AppendArgs {
            keys: keys.pointer(),
            values: values.pointer(),
            count: count.pointer(),
            rows: rows.pointer(),
            lens: lens.pointer(),
            errors: self.errors.pointer(),
            tails: tails.pointer(),
            tail_base: layer.tail.pointer(),
            tail_stride: self.page_bytes(),
            row_norms: layer.norms.pointer(),
            clear: self.clear.pointer(),
            key_strides: strides[0],
            value_strides: strides[1],
            blocks: BLOCKS as u32,
            kv_heads: HEADS as u32,
            key_input: inputs[0],
            value_input: inputs[1],
            flags,
        };
        let memory = [lens, &self.errors, tails, &layer.tail, &layer.norms, &self.clear, keys, values, &count, &rows];
        // The launch ahead may still write the inputs; where the caller does not say that the rest is settled, everything.
        let late =
            [keys, values].into_iter().chain(if flags & SETTLED == 0 { &memory[..] } else { &[] }.iter().copied());
        let late: Vec<_> = late.map(|b| (b.pointer(), b.len() as u64)).collect();
        self.kernel.launch_behind("ckv_append", how, &args, &memory, &late).expect("the launch runs");
        assert_eq!(self.clear.read::<u32>(), [0]);
    }

    /// The launch that ends a step of the table rows `rows`, in all layers.
    pub(super) fn close(&self, rows: &[u32], how: Launch) {
        self.close_at(rows, [&self.after, &self.tails], 0, how);
    }

    /// The same with lengths and tails of its own.
    fn close_at(&self, rows: &[u32], [lens, tails]: [&Buffer; 2], flags: u32, how: Launch) {
        let (count, rows) = (Buffer::of(&[rows.len() as u32]), Buffer::of(rows));
        let mut of = [CloseLayer::default(); CLOSE_LAYERS];
        for (to, layer) in of.iter_mut().zip(&self.layers) {
            *to = CloseLayer {
                tails: tails.pointer(),
                tail_base: layer.tail.pointer(),
                packed: self.packed.pointer(),
                // A seal of 64 bytes stands in front of the records.
                packed_base: layer.pack.pointer() + 64,
                centres: layer.centres.pointer(),
                metrics: layer.metrics.pointer(),
                reaches: 0,
            };
        }
        let args = CloseArgs {
            count: count.pointer(),
            rows: rows.pointer(),
            lens: lens.pointer(),
            flags,
            tail_stride: self.page_bytes(),
            packed_stride: (64 + HEADS * self.l.bytes) as u64,
            record_stride: self.l.bytes as u64,
            status: self.status.pointer(),
            blocks: BLOCKS as u32,
            kv_heads: HEADS as u32,
            layers: LAYERS as u32,
            of,
            ..CloseArgs::default()
        };
        let mut memory = vec![lens, tails, &self.packed, &self.status, &count, &rows];
        for layer in &self.layers {
            memory.extend([&layer.tail, &layer.pack, &layer.centres, &layer.metrics]);
        }
        // All of it may still be written by the launch ahead.
        let late: Vec<_> = memory.iter().map(|b| (b.pointer(), b.len() as u64)).collect();
        self.closes.launch_behind("ckv_close", how, &args, &memory, &late).expect("the launch runs");
    }

    /// The norms of a tail's rows, found anew.
    fn measure(&self, layer: &Layer, slot: u32) -> Vec<f32> {
        let norms = Buffer::of(&vec![f32::NAN; layer.norms.len() / 4]);
        let args = MeasureArgs {
            tail_base: layer.tail.pointer(),
            tail_stride: self.page_bytes(),
            row_norms: norms.pointer(),
            slot,
            kv_heads: HEADS as u32,
        };
        self.measures
            .launch("ckv_measure", Launch::new(3, THREADS, 0), &args, &[&layer.tail, &norms])
            .expect("it runs");
        norms.read()
    }

    pub(super) fn launch(&self, grid: u32) -> Launch {
        Launch::new(grid, THREADS, pack_shared(&self.l))
    }

    /// Everything that launches write.
    pub(super) fn written(&self) -> Vec<Vec<u8>> {
        let layers = self.layers.iter();
        layers.flat_map(|l| [&l.tail, &l.pack, &l.norms, &l.centres]).map(Buffer::read::<u8>).collect()
    }

    /// Compares everything the device holds with the model.
    pub(super) fn check(&self) -> Result<usize, String> {
        let (l, dim, n) = (&self.l, self.l.dim, self.l.tokens());
        let slots = self.packed.read::<u32>();
        let mut judged = 0;
        for (at, layer) in self.layers.iter().enumerate() {
            let tail = layer.tail.read::<u16>();
            let (pack, centres) = (layer.pack.read::<u8>(), layer.centres.read::<f32>());
            let norms = layer.norms.read::<f32>();
            let page = 64 + HEADS * l.bytes;
            for (row, stored) in layer.stored.iter().enumerate() {
                if self.lens.read::<u32>()[row] as usize != stored.len() {
                    return Err(format!("row {row} has {} tokens, not {}", self.lens.read::<u32>()[row], stored.len()));
                }
                for b in stored.len() / n..BLOCKS {
                    let start = slots[row * BLOCKS + b] as usize * page;
                    if pack[start..start + page].iter().any(|x| *x != BLANK) {
                        return Err(format!("layer {at} row {row} block {b} was closed, and is not full"));
                    }
                }
                let (open, slot) = (stored.chunks(n).next_back().unwrap_or(&[]), ROWS - 1 - row);
                let again = self.measure(layer, slot as u32);
                for (t, head, side) in (0..open.len()).flat_map(|t| (0..2 * HEADS).map(move |i| (t, i / 2, i % 2))) {
                    let numbers = &(if side == 0 { &open[t].0 } else { &open[t].1 })[head * dim..][..dim];
                    let want: f64 = numbers.iter().map(|x| f64::from(l.store.decode16(*x)).powi(2)).sum();
                    let at = 2 * ((slot * HEADS + head) * n + t) + side;
                    if (f64::from(norms[at]) - want).abs() > 1e-5 * want || norms[at].to_bits() != again[at].to_bits() {
                        return Err(format!("norm of row {row} head {head} side {side} token {t}"));
                    }
                }
                for (b, rows) in stored.chunks(n).enumerate() {
                    let full = rows.len() == n;
                    for (head, side) in (0..HEADS).flat_map(|h| [(h, 0), (h, 1)]) {
                        let of = |t: usize| {
                            let both = &rows[t];
                            &(if side == 0 { &both.0 } else { &both.1 })[head * dim..(head + 1) * dim]
                        };
                        let start = |slot: u32| ((slot as usize * HEADS + head) * 2 + side) * n * dim;
                        for t in 0..rows.len() {
                            let fragment_of = |page: &[u16], slot: u32| {
                                let at = |c| start(slot) + original_index(t, c, dim, side == 0);
                                (0..dim).map(|c| page[at(c)]).collect::<Vec<u16>>()
                            };
                            let open = b == (stored.len() - 1) / n;
                            if open && fragment_of(&tail, (ROWS - 1 - row) as u32) != of(t) {
                                return Err(format!("tail row {row} block {b} head {head} side {side} token {t}"));
                            }
                        }
                        if side == 1 && full {
                            let side = |s: usize| {
                                rows.iter()
                                    .flat_map(|r| if s == 0 { &r.0 } else { &r.1 }[head * dim..][..dim].to_vec())
                                    .collect()
                            };
                            let (k, v): (Vec<u16>, Vec<u16>) = (side(0), side(1));
                            let c = &centres[(row * HEADS + head) * dim..][..dim];
                            let mean = |c: usize| {
                                (0..n).map(|t| f64::from(l.store.decode16(v[t * dim + c]))).sum::<f64>() / n as f64
                            };
                            // A first block fixes it.
                            if b == 0 && (0..dim).any(|i| c[i] != mean(i) as f32) {
                                return Err(format!("centre of row {row} head {head}"));
                            }
                            let at = slots[row * BLOCKS + b] as usize * page + 64 + head * l.bytes;
                            judge(l, head, &k, &v, c, &pack[at..at + l.bytes])?;
                            judged += 1;
                        }
                    }
                }
            }
        }
        Ok(judged)
    }
}

/// A batch of rows as the caller gives them, and as they are stored.
pub(super) fn inputs(
    batch: usize,
    dim: usize,
    strides: Strides,
    input: u32,
    store: Dtype,
    seed: u64,
) -> (Buffer, Vec<Vec<u16>>) {
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
fn rows_go_to_their_tails_and_full_blocks_are_closed_in_all_layers() {
    let mut judged = 0;
    let cases = [
        ("k8-v4g32-b16", 64, Dtype::F16, 2),
        ("t4-v5g16-b32", 128, Dtype::Bf16, 0),
        ("f16-v8g32-b16", 96, Dtype::F16, 1),
        ("k8-v4g32-b16-r5.4", 64, Dtype::F16, 2),
        ("k8-v3g16-b32-r8.3", 64, Dtype::Bf16, 0),
        ("tq4-tq4-b32", 64, Dtype::F16, 0),
        ("ctq4-v4g32-b16", 64, Dtype::F16, 0),
        ("gtq3-tq3-b32", 64, Dtype::Bf16, 0),
        ("s1-v4g32-b16", 64, Dtype::F16, 0),
    ];
    for (at, (text, dim, store, input)) in cases.into_iter().enumerate() {
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
            let flags = if step % 2 == 0 { SETTLED } else { 0 };
            let given = Given { strides, inputs: types, flags };
            let how = |grid: usize| world.launch(grid as u32).seed(step as u64).noisy();
            let mut rows = Vec::new();
            for layer in 0..LAYERS {
                let seed = (4 * step + 2 * layer) as u64;
                let (keys, k) = inputs(batch.len(), dim, strides[0], types[0], store, seed);
                let (values, v) = inputs(batch.len(), dim, strides[1], types[1], store, seed + 1);
                // A layer may be appended again.
                for _ in 0..1 + usize::from(step % 7 == 3) {
                    world.append(layer, &batch, (&keys, &values), given, how(1 + step % 7));
                }
                rows.push((k, v));
            }
            let mut lens = world.lens.read::<u32>();
            batch.iter().filter(|row| **row != NONE).for_each(|row| lens[*row as usize] += 1);
            world.after.write(0, &lens);
            world.close(&batch, how(1 + step % 11));
            world.lens.write(0, &lens);
            for (layer, (k, v)) in world.layers.iter_mut().zip(rows) {
                for (i, row) in batch.iter().enumerate().filter(|(_, row)| **row != NONE) {
                    layer.stored[*row as usize].push((k[i].clone(), v[i].clone()));
                }
            }
            if step % 8 == 7 || step + 1 == steps {
                judged += world.check().unwrap();
            }
        }
        assert_eq!(world.errors.read::<u32>(), [0; ROWS]);
        // A row in the wrong place, a length that is off, and a block that is closed too early are seen.
        let last = world.layers[0].stored[0].len() - 1;
        world.layers[0].stored[0][last].0[3] ^= 1;
        assert!(world.check().is_err());
        world.layers[0].stored[0][last].0[3] ^= 1;
        world.check().unwrap();
        let row = world.layers[1].stored[1].pop().expect("a row");
        assert!(world.check().is_err());
        world.layers[1].stored[1].push(row);
        world.check().unwrap();
        let full = world.l.tokens();
        world.layers.iter_mut().for_each(|layer| layer.stored[0].truncate(full - 1));
        world.lens.write(0, &[full as u32 - 1]);
        assert!(world.check().is_err());
    }
    assert!(judged > 60, "{judged}");
    println!("GATE gpu-append executed={judged} failed=0 controls=27/27 seed=0x0");
}

/// Several tokens of a sequence in one launch, across the ends of blocks, are what as many launches of one token each make of them.
#[test]
fn tokens_of_drafts_are_stored_and_closed_as_tokens_of_steps() {
    let (mut closed, mut executed, mut caught) = (0, 0, 0);
    for (text, dim, store) in
        [("k8-v4g32-b16", 64, Dtype::F16), ("t4-v5g16-b16", 128, Dtype::Bf16), ("f16-v8g32-b16", 96, Dtype::F16)]
    {
        let [one, all] = [(); 2].map(|()| World::new(text, dim, store));
        let n = one.l.tokens();
        let slot = |row: usize, block: usize| (ROWS - 1 - row + block % 2 * ROWS) as u32;
        let mut lens = [0usize; ROWS];
        for step in 0..6 {
            let counts: [usize; ROWS] = core::array::from_fn(|row| (3 * step + 5 * row) % 9);
            // Token by token of all sequences, in the order of the tables or the other way round.
            let mut order: Vec<usize> = (0..ROWS).collect();
            if step % 2 == 1 {
                order.reverse();
            }
            let tokens: Vec<(usize, usize)> =
                order.iter().flat_map(|row| (0..counts[*row]).map(|t| (*row, lens[*row] + t))).collect();
            let rows: Vec<u32> = tokens.iter().map(|(row, _)| *row as u32).collect();
            let input = if store == Dtype::F16 { 0 } else { 1 };
            let dense = Strides::dense(HEADS, dim);
            let how = |world: &World, grid: usize| world.launch(grid as u32).seed(step as u64).noisy();
            let of = |layer: usize| {
                let of = |side| inputs(rows.len(), dim, dense, input, store, (8 * step + 2 * layer + side) as u64);
                [of(0), of(1)]
            };
            let data: Vec<_> = (0..LAYERS).map(of).collect();
            let own = |word: &dyn Fn(usize, usize) -> u32| {
                Buffer::of(&tokens.iter().map(|(row, at)| word(*row, *at)).collect::<Vec<_>>())
            };
            let (places, tails) = (own(&|_, at| at as u32), own(&|row, at| slot(row, at / n)));
            let flags = BY_PLACE | if step % 3 == 0 { SETTLED } else { 0 };
            let given = |flags| Given::dense(dim, input, flags);
            for (layer, [(keys, _), (values, _)]) in data.iter().enumerate() {
                all.append_at(layer, &rows, [&places, &tails], (keys, values), given(flags), how(&all, 1 + step));
            }
            for (i, (row, at)) in tokens.iter().enumerate() {
                one.lens.write(4 * row, &[*at as u32]);
                for (layer, [(_, k), (_, v)]) in data.iter().enumerate() {
                    let (keys, values) = (Buffer::of(&k[i]), Buffer::of(&v[i]));
                    one.append(layer, &[*row as u32], (&keys, &values), given(0), how(&one, 2));
                }
                one.after.write(4 * row, &[*at as u32 + 1]);
                one.close(&[*row as u32], how(&one, 3));
                executed += usize::from((at + 1) % n == 0);
            }
            let filled: Vec<(usize, usize)> =
                tokens.iter().filter(|(_, at)| (at + 1) % n == 0).map(|(row, at)| (*row, at + 1)).collect();
            let of = |word: &dyn Fn(usize, usize) -> u32| {
                Buffer::of(&filled.iter().map(|(row, end)| word(*row, *end)).collect::<Vec<_>>())
            };
            let rows: Vec<u32> = filled.iter().map(|(row, _)| *row as u32).collect();
            if !filled.is_empty() {
                let (ends, tails) = (of(&|_, end| end as u32), of(&|row, end| slot(row, end / n - 1)));
                all.close_at(&rows, [&ends, &tails], close::BY_PLACE, how(&all, 1 + 2 * step));
                closed += filled.len();
            }
            (0..ROWS).for_each(|row| lens[row] += counts[row]);
            for (a, b) in one.layers.iter().zip(&all.layers) {
                let bytes = |layer: &Layer| [&layer.pack, &layer.centres].map(Buffer::read::<u8>);
                assert!(bytes(a) == bytes(b), "{text}: codes or centres after step {step}");
                for row in (0..ROWS).filter(|row| lens[*row] % n > 0) {
                    let (open, page) = (lens[row] / n, one.page_bytes() as usize / 2);
                    let at = |slot: u32, i: usize| slot as usize * page + i;
                    let (x, y) = (a.tail.read::<u16>(), b.tail.read::<u16>());
                    let norms = [a.norms.read::<f32>(), b.norms.read::<f32>()];
                    for (head, side) in (0..HEADS).flat_map(|h| [(h, 0), (h, 1)]) {
                        for t in 0..lens[row] % n {
                            let same = (0..dim).all(|c| {
                                let i = (2 * head + side) * n * dim + original_index(t, c, dim, side == 0);
                                x[at(slot(row, 0), i)] == y[at(slot(row, open), i)]
                            });
                            let norm =
                                |norms: &[f32], slot: u32| norms[2 * ((slot as usize * HEADS + head) * n + t) + side];
                            assert!(same, "{text}: row {row} token {t} after step {step}");
                            assert_eq!(norm(&norms[0], slot(row, 0)), norm(&norms[1], slot(row, open)));
                        }
                    }
                }
            }
        }
        assert_eq!(all.errors.read::<u32>(), [0; ROWS]);
        // Control: lengths and tails by row are others.
        let (keys, _) = inputs(1, dim, Strides::dense(HEADS, dim), 0, store, 99);
        let before = all.written();
        let own = [Buffer::of(&[0u32, 0, 0, 5]), Buffer::of(&[0u32, 0, 0, 7])];
        let given = |flags| Given::dense(dim, if store == Dtype::F16 { 0 } else { 1 }, flags);
        all.append_at(0, &[3], [&own[0], &own[1]], (&keys, &keys), given(0), all.launch(1));
        let by_row = all.written();
        all.append_at(0, &[3], [&own[0], &own[1]], (&keys, &keys), given(BY_PLACE), all.launch(1));
        caught += usize::from(by_row != before && all.written() != by_row);
    }
    println!("GATE gpu-append-drafts executed={executed} failed=0 controls={caught}/3 seed=0x0");
    assert!(closed == executed && closed >= 12 && caught == 3, "{closed} {executed} {caught}");
}
