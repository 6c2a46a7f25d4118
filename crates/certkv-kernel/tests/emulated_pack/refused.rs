//! Tokens that ckv_append refuses, and ckv_forgive.
use super::append::{BLOCKS, Given, HEADS, LAYERS, NONE, ROWS, World, inputs};
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{block, layout, macros};
use certkv_core::Dtype;
use certkv_kernel::cuda::args::Strides;
use certkv_kernel::cuda::encode::append_error::{refused, word};
use certkv_kernel::cuda::encode::append_flag::BY_PLACE;
use certkv_kernel::cuda::forgive::ForgiveArgs;

/// The number of a half that is 1.
const ONE: u16 = 0x3c00;

/// Tails whose rows are all ones, with norms that say so.
fn full_of_ones(world: &World, dim: usize) {
    for layer in &world.layers {
        layer.tail.write(0, &vec![ONE; layer.tail.len() / 2]);
        layer.norms.write(0, &vec![dim as f32; layer.norms.len() / 4]);
    }
}

#[test]
fn a_token_with_a_bad_number_in_any_head_is_zeros() {
    for (input, at, value, bit) in [
        (2u32, 0usize, f32::NAN, 1u32),
        (2, 127, f32::INFINITY, 1),
        (2, 77, 7e4, 2),
        (1, 100, 7e4, 2),
        (0, 65, f32::NEG_INFINITY, 1),
        (1, 3, f32::NAN, 1),
    ] {
        for (side, len) in [(0, 15u32), (1, 15), (0, 6), (1, 6)] {
            let (dim, store) = (64, Dtype::F16);
            let (given, dense) = (Given::dense(dim, input, 0), Strides::dense(HEADS, dim));
            let mut world = World::new("k8-v4g32-b16", dim, store);
            world.lens.write(0, &[0, len, 0, 0]);
            world.after.write(0, &[0, len + 1, 0, 0]);
            let dtype = [Dtype::F16, Dtype::Bf16, Dtype::F32][input as usize];
            let (keys, k) = inputs(1, dim, dense, input, store, 5);
            let (values, v) = inputs(1, dim, dense, input, store, 6);
            let (clean_keys, clean_values) = (keys.read::<u8>(), values.read::<u8>());
            let spoilt = [&keys, &values][side];
            match input {
                2 => spoilt.write(4 * at, &[value]),
                _ => spoilt.write(2 * at, &[dtype.encode16(value)]),
            }
            // The rows before it are there, and so are those that the sequence should have.
            let step = |world: &mut World, row: (Vec<u16>, Vec<u16>)| {
                full_of_ones(world, dim);
                for layer in 0..LAYERS {
                    world.append(layer, &[1], (&keys, &values), given, world.launch(4));
                }
                world.close(&[1], world.launch(4));
                let ones = (vec![ONE; HEADS * dim], vec![ONE; HEADS * dim]);
                for layer in &mut world.layers {
                    layer.stored[1] = vec![ones.clone(); len as usize];
                    layer.stored[1].push(row.clone());
                }
                world.lens.write(0, &[0, len + 1]);
                // A block that it fills is coded.
                let checked = world.check();
                world.lens.write(0, &[0, len]);
                checked
            };
            let judged = Ok(if len == 15 { LAYERS * HEADS } else { 0 });
            let zeros = vec![0u16; HEADS * dim];
            assert_eq!(step(&mut world, (zeros.clone(), zeros)), judged, "input {input} at {at}");
            assert_eq!(world.errors.read::<u32>(), [0, word(len, bit), 0, 0], "input {input} at {at}");
            // Without the bad number the same launches store the token; that one was refused stays said.
            keys.write(0, &clean_keys);
            values.write(0, &clean_values);
            assert_eq!(step(&mut world, (k[0].clone(), v[0].clone())), judged);
            assert_eq!(world.errors.read::<u32>(), [0, word(len, bit), 0, 0]);
        }
    }
}

/// Of a draft's tokens the first that was refused is remembered, whichever CTA comes first.
#[test]
fn the_first_token_that_is_refused_is_remembered() {
    let (dim, store) = (64, Dtype::F16);
    let world = World::new("k8-v4g32-b16", dim, store);
    let tokens = 6u32;
    for (seed, bad) in [vec![4u32, 2, 5], vec![5], vec![0, 5], vec![]].into_iter().enumerate() {
        world.errors.write(0, &[0u32; ROWS]);
        full_of_ones(&world, dim);
        let rows = Buffer::of(&vec![ONE; tokens as usize * HEADS * dim]);
        bad.iter().for_each(|t| rows.write(2 * (*t as usize * HEADS * dim + 7), &[0x7e00u16]));
        let places = [Buffer::of(&(3..3 + tokens).collect::<Vec<_>>()), Buffer::of(&vec![2u32; tokens as usize])];
        let how = world.launch(5).seed(seed as u64).noisy();
        let given = Given::dense(dim, 0, BY_PLACE);
        world.append_at(0, &vec![1; tokens as usize], places.each_ref(), (&rows, &rows), given, how);
        let first = bad.iter().min().map(|t| (3 + t, 1));
        assert_eq!(refused(world.errors.read::<u32>()[1]), first);
    }
}

#[test]
fn a_sequence_without_a_place_writes_nothing() {
    let world = World::new("k8-v4g32-b16", 64, Dtype::F16);
    let end = (16 * BLOCKS) as u32;
    world.lens.write(0, &[end, 15, 0, 0]);
    world.after.write(0, &[end + 1, 16, 0, 0]);
    world.tails.write(4, &[NONE]);
    let words = Buffer::of(&block("normal", 1, 2 * HEADS, 64, Dtype::F16));
    let before = world.written();
    for layer in 0..LAYERS {
        world.append(layer, &[0, 1], (&words, &words), Given::dense(64, 0, 0), world.launch(3));
    }
    assert_eq!(world.errors.read::<u32>(), [word(end, 4), word(15, 4), 0, 0]);
    // Nor is one closed that has no tail.
    world.close(&[0, 1], world.launch(3));
    assert_eq!(world.written(), before);
}

#[test]
fn a_cut_forgives_what_lies_behind_it() {
    let kernel = Emulated::build("forgive.cu", &macros(&layout("k8-v4g32-b16", 64, Dtype::F16))).expect("it compiles");
    let mut executed = 0;
    for (position, causes) in [(0u32, 1u32), (7, 2), (1 << 20, 4), ((1 << 29) - 1, 7), (u32::MAX, 1)] {
        for len in [0, 1, 6, 7, 8, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 29) - 1] {
            let words = Buffer::of(&[1u32, word(position, causes), 3]);
            let args = ForgiveArgs { refused: words.pointer() + 4, len, unused: 0 };
            kernel.launch("ckv_forgive", Launch::new(1, 32, 0), &args, &[&words]).expect("it runs");
            let left = if position.min((1 << 29) - 1) >= len { 0 } else { word(position, causes) };
            assert_eq!(words.read::<u32>(), [1, left, 3], "{position} cut to {len}");
            executed += 1;
        }
    }
    println!("GATE gpu-refused executed={executed} failed=0 controls=1/1 seed=0x0");
}
