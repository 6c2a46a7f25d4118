//! Scales that do not come from the block: ckv_pack against the CPU encoder with the same magnitudes.
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{KINDS, THREADS, block, centre, judge, judge_beside, layout, macros, pack_shared, uniform};
use certkv_codec::{Encoder, FixedScales};
use certkv_core::{Dtype, RecordLayout, fragment};
use certkv_kernel::cuda::encode::PackArgs;

const HEADS: usize = 2;

/// Magnitudes of keys and values by piece, some of them 0, some below and some above what blocks have.
fn magnitudes(head: usize, dim: usize) -> [Vec<f32>; 2] {
    let of = |side: usize, piece: usize| {
        let x = uniform((17 * head + side) as u64, piece);
        if x < -0.8 { 0.0 } else { (4.0 * x).exp2() as f32 }
    };
    [0, 1].map(|side| (0..dim / FixedScales::PIECE).map(|piece| of(side, piece)).collect())
}

/// The CPU's record in fragment order, and how many elements its scales do not reach.
fn reference(l: &RecordLayout, head: usize, keys: &[u16], values: &[u16], centre: &[f32]) -> (Vec<u8>, u64) {
    let (mut line, mut out) = (vec![0; l.bytes], vec![0; l.bytes]);
    let [of_keys, of_values] = magnitudes(head, l.dim);
    let mut encoder = Encoder::new(l);
    encoder.fix_scales(Some(FixedScales { keys: &of_keys, values: &of_values })).expect("magnitudes");
    encoder.encode(keys, values, centre, &mut line).expect("the CPU encodes");
    fragment::to_fragment(l, &line, &mut out).expect("sizes fit");
    (out, encoder.take_saturated())
}

#[test]
fn records_of_fixed_scales_are_the_cpus_and_what_they_do_not_reach_is_counted() {
    let (mut executed, mut caught, mut all) = (0, 0, 0);
    for (f, (text, dim, store)) in [
        ("p8-p8-b64", 128, Dtype::F16),
        ("e4m3-e4m3-b64", 64, Dtype::F16),
        ("e5m2g32-e4m3g16-b16", 96, Dtype::Bf16),
        ("p4g32-p4g32-b32", 256, Dtype::F16),
        ("k8-p4g64-b32", 64, Dtype::F16),
        ("p2g32-v4g32-b16", 128, Dtype::Bf16),
    ]
    .into_iter()
    .enumerate()
    {
        let l = layout(text, dim, store);
        let kernel = Emulated::build("pack.cu", &macros(&l)).expect("the kernel compiles");
        let blocks: Vec<_> = KINDS
            .iter()
            .enumerate()
            .map(|(i, kind)| {
                let seed = (50 * f + i) as u64;
                let side = |kind, seed| block(kind, seed, l.tokens(), dim, store);
                (side(kind, seed), side(KINDS[(i + f) % KINDS.len()], seed ^ 0xabc), centre(seed, dim))
            })
            .collect();
        let inputs: Vec<_> = blocks.iter().map(|(k, v, c)| (Buffer::of(k), Buffer::of(v), Buffer::of(c))).collect();
        let records: Vec<Buffer> = blocks.iter().map(|_| Buffer::of(&vec![0xeeu8; l.bytes])).collect();
        let items: Vec<u64> =
            inputs.iter().zip(&records).flat_map(|((k, v, c), r)| [k, v, c, r].map(Buffer::pointer)).collect();
        let (items, count) = (Buffer::of(&items), Buffer::of(&[blocks.len() as u32]));
        let (status, saturated) = (Buffer::zeroed(4), Buffer::zeroed(8));
        let reaches: Vec<f32> = (0..HEADS).flat_map(|head| magnitudes(head, dim)).flatten().collect();
        let reaches = Buffer::of(&reaches);
        let args = PackArgs {
            items: items.pointer(),
            count: count.pointer(),
            status: status.pointer(),
            kv_heads: HEADS as u32,
            reaches: reaches.pointer(),
            saturated: saturated.pointer(),
            ..PackArgs::default()
        };
        let mut memory = vec![&items, &count, &status, &saturated, &reaches];
        memory.extend(inputs.iter().flat_map(|(k, v, c)| [k, v, c]));
        memory.extend(&records);
        let how = Launch::new(5, THREADS, pack_shared(&l));
        kernel.launch("ckv_pack", how, &args, &memory).expect("the launch runs");
        assert_eq!(status.read::<u32>(), [0], "{text}");
        let mut beyond = 0;
        for (i, ((k, v, c), record)) in blocks.iter().zip(&records).enumerate() {
            let (want, lost) = reference(&l, i % HEADS, k, v, c);
            let record = record.read::<u8>();
            judge_beside(&want, &l, 0, (k, v, c), &record).unwrap_or_else(|e| panic!("{text} {}: {e}", KINDS[i]));
            // The control: the block's own scales.
            caught += usize::from(judge(&l, 0, k, v, c, &record).is_err());
            (executed, beyond) = (executed + 1, beyond + lost);
        }
        assert_eq!(saturated.read::<u64>(), [beyond], "{text}");
        all += beyond;
    }
    assert!(all > 10_000 && caught * 2 > executed, "{all} {caught} of {executed}");
    println!("GATE gpu-fixed executed={executed} failed=0 controls={caught}/{executed} seed=0x0");
}
