//! ckv_pack against the CPU encoder.
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{KINDS, THREADS, block, centre, judge, layout, macros, metric, pack_shared, side};
use certkv_core::{Dtype, ErrorSummary, RecordLayout, RefinedSummary};
use certkv_kernel::cuda::encode::PackArgs;
use rayon::prelude::*;

/// Blocks are those of so many heads in turn.
const HEADS: usize = 2;

/// Packs blocks (keys, values, centre) and returns their records and the status.
fn pack(
    l: &RecordLayout,
    kernel: &Emulated,
    blocks: &[(Vec<u16>, Vec<u16>, Vec<f32>)],
    how: Launch,
) -> (Vec<Vec<u8>>, u32) {
    // Many blocks come in fragment order, few as rows.
    let order = blocks.len() as u32 / 8;
    let given = |words: &[u16], keys| if order == 1 { side(words, l.dim, keys) } else { words.to_vec() };
    let inputs: Vec<(Buffer, Buffer, Buffer)> = blocks
        .iter()
        .map(|(k, v, c)| (Buffer::of(&given(k, true)), Buffer::of(&given(v, false)), Buffer::of(c)))
        .collect();
    // Poison: every byte of a record must be written.
    let records: Vec<Buffer> = blocks.iter().map(|_| Buffer::of(&vec![0xeeu8; l.bytes])).collect();
    let items: Vec<u64> =
        inputs.iter().zip(&records).flat_map(|((k, v, c), r)| [k, v, c, r].map(Buffer::pointer)).collect();
    let (items, count, status) = (Buffer::of(&items), Buffer::of(&[blocks.len() as u32]), Buffer::zeroed(4));
    let metrics = Buffer::of(&(0..HEADS).flat_map(|head| metric(l, head)).collect::<Vec<u32>>());
    let args = PackArgs {
        items: items.pointer(),
        count: count.pointer(),
        status: status.pointer(),
        order,
        kv_heads: HEADS as u32,
        metrics: metrics.pointer(),
        ..PackArgs::default()
    };
    let mut memory = vec![&items, &count, &status, &metrics];
    memory.extend(inputs.iter().flat_map(|(k, v, c)| [k, v, c]));
    memory.extend(&records);
    kernel.launch("ckv_pack", how, &args, &memory).expect("the launch runs");
    (records.iter().map(Buffer::read).collect(), status.read::<u32>()[0])
}

fn launch(l: &RecordLayout, grid: u32) -> Launch {
    Launch::new(grid, THREADS, pack_shared(l))
}

const FORMATS: [&str; 53] = [
    "k8-v4g32-b32",
    "k8-v4g64-b64",
    "k8-v8g64-b64",
    "k8-v6g64-b64",
    "k8f32-v4g16-b16",
    "t4-v4g32-b32",
    "t8-v5g32-b32",
    "f16-f16-b32",
    "k8bf16-v3g16-b16",
    "k8-v4g64-b64-r5.4",
    "k8-v4g32-b32-r8.8",
    "k8f32-v6g16-b16-r1.1",
    "k8-v2g32-b16-r3.2",
    "k8-v8g64-b64-r8.4",
    "k8bf16-v5g32-b32-r6.7",
    "tq4-tq4-b64",
    "tq3-tq2-b32",
    "tq1-v4g32-b16",
    "tq6-tq5-b64",
    "tq5-tq6-b32",
    "ctq4-tq4-b64",
    "ctq3-v4g32-b32",
    "ctq1-c4-b16",
    "ctq6-tq6-b16",
    "gtq3-tq3-b64",
    "gtq3.5-v4g32-b32",
    "gtq4-c4-b16",
    "gtq1-f16-b32",
    "gtq5-v4g32-b64",
    "gtq6-tq2-b16",
    "s1-v4g64-b64",
    "s1-tq3-b32",
    "s1-c4-b16",
    "s2-v4g32-b64",
    "s2-f16-b16",
    "s3-e4m3-b32",
    "k8-tq4-b64",
    "e4m3-e4m3-b64",
    "e5m2g32-e4m3g16-b16",
    "p8-p8-b64",
    "p4g32-p4g32-b32",
    "t4-e5m2-b32",
    "k8-c4-b64",
    "tq4-c5-b16",
    "k8-c8-b32",
    "k8-c4-b64-r8.4",
    "k8f32-c3-b16-r5.2",
    "k4-v4g64-b64",
    "k2-c2-b16",
    "k3-v3g16-b32",
    "k5-v5g32-b32-r5.5",
    "k6-tq4-b64",
    "k7-v7g32-b16-r2.7",
];

/// Groups that divide the head: a format written for 128 channels may not fit 96.
fn fits(text: &str, dim: usize) -> bool {
    !(dim == 96
        && (text.contains("g64") || text.split('-').any(|side| side.starts_with("tq") || side.starts_with("ctq"))))
}

fn of_store(text: &str, store: Dtype) -> String {
    if store == Dtype::F16 {
        return text.to_owned();
    }
    let own = |side: &str| if side == "f16" { "bf16".to_owned() } else { side.to_owned() };
    text.split('-').map(own).collect::<Vec<_>>().join("-")
}

const DIMS: [usize; 4] = [64, 96, 128, 256];

/// What is wrong with blocks of every kind in the `f`th format, of heads of the `d`th size.
fn records_of(f: usize, d: usize) -> Vec<Result<(), String>> {
    let (text, dim) = (FORMATS[f], DIMS[d]);
    let store = if (f + d / 2) % 3 == 2 { Dtype::Bf16 } else { Dtype::F16 };
    let l = layout(&of_store(text, store), dim, store);
    let kernel = Emulated::build("pack.cu", &macros(&l)).expect("the kernel compiles");
    let of_kind = |(i, kind): (usize, &&str)| {
        let seed = (100 * f + 10 * d + i) as u64;
        let other = KINDS[(i + f) % KINDS.len()];
        let keys = block(kind, seed, l.tokens(), dim, store);
        (keys, block(other, seed ^ 0xabc, l.tokens(), dim, store), centre(seed, dim))
    };
    let blocks: Vec<_> = KINDS.iter().enumerate().map(of_kind).collect();
    // Three CTAs take the sides of eight blocks in turn: nothing is carried from one to the next.
    let (records, status) = pack(&l, &kernel, &blocks, launch(&l, 3).seed(f as u64).noisy());
    assert_eq!(status, 0);
    assert_eq!(pack(&l, &kernel, &blocks[..3], launch(&l, 4)).0, records[..3]);
    let all = blocks.iter().zip(&records).enumerate();
    all.map(|(i, ((k, v, c), record))| judge(&l, i % HEADS, k, v, c, record)).collect()
}

#[test]
fn records_are_the_cpus_in_fragment_order() {
    // Half of all pairs: every format has two head sizes and every head size its formats.
    let pairs: Vec<(usize, usize)> = (0..FORMATS.len())
        .flat_map(|f| (0..DIMS.len()).map(move |d| (f, d)))
        .filter(|(f, d)| fits(FORMATS[*f], DIMS[*d]) && (f + d) % 2 == 0)
        .collect();
    let judged: Vec<Result<(), String>> = pairs.par_iter().flat_map_iter(|(f, d)| records_of(*f, *d)).collect();
    let (executed, failed) = (judged.len(), judged.into_iter().filter_map(Result::err).collect::<Vec<_>>());
    // Planted: one bit of every section, and every number of the summaries a little off.
    let l = layout("k8-v4g32-b32-r5.4", 64, Dtype::F16);
    let kernel = Emulated::build("pack.cu", &macros(&l)).expect("the kernel compiles");
    let one = (block("normal", 1, 32, 64, Dtype::F16), block("sink", 2, 32, 64, Dtype::F16), centre(3, 64));
    let (records, _) = pack(&l, &kernel, std::slice::from_ref(&one), launch(&l, 2));
    assert_eq!(judge(&l, 0, &one.0, &one.1, &one.2, &records[0]), Ok(()));
    let mut at: Vec<usize> =
        vec![l.key_codes.start + 9, l.key_scales.end - 1, l.value_codes.start + 5, l.value_scales.start];
    at.extend([l.key_residuals.start + 7, l.value_residuals.end - 1]);
    // Spectral norms, which have more room, by a thirtieth.
    at.extend((0..12).map(|i| l.summary.start + 4 * i + if [0, 5, 8, 11].contains(&i) { 2 } else { 1 }));
    let caught = at.iter().filter(|at| {
        let mut record = records[0].clone();
        record[**at] ^= 4;
        judge(&l, 0, &one.0, &one.1, &one.2, &record).is_err()
    });
    let (caught, planted) = (caught.count(), at.len());
    println!("GATE gpu-pack executed={executed} failed={} controls={caught}/{planted} seed=0x0", failed.len());
    assert!(failed.is_empty(), "{} of {executed}, first {:#?}", failed.len(), &failed[..failed.len().min(5)]);
    assert_eq!(caught, planted);
}

#[test]
fn any_order_of_threads_gives_the_same_record() {
    for format in ["k8-v4g32-b32", "k8-v4g32-b32-r5.4"] {
        let l = layout(format, 128, Dtype::F16);
        let kernel = Emulated::build("pack.cu", &macros(&l)).expect("the kernel compiles");
        let rows = |kind, seed| block(kind, seed, 32, 128, Dtype::F16);
        let blocks = [(rows("outlier", 5), rows("normal", 6), centre(7, 128))];
        let (first, _) = pack(&l, &kernel, &blocks, launch(&l, 2));
        for seed in 1..6 {
            assert_eq!(pack(&l, &kernel, &blocks, launch(&l, 2).seed(seed)).0, first, "{format} seed {seed}");
        }
    }
}

#[test]
fn a_side_that_does_not_fit_its_scales_has_no_codes_and_true_norms() {
    for format in ["k8-v4g32-b32", "k8-v4g32-b32-r5.4", "gtq3-v4g32-b32", "s1-v4g32-b32"] {
        uncoded_sides(format);
    }
}

fn uncoded_sides(format: &str) {
    let l = layout(format, 64, Dtype::Bf16);
    let kernel = Emulated::build("pack.cu", &macros(&l)).expect("the kernel compiles");
    let plain = || block("normal", 11, 32, 64, Dtype::Bf16);
    let mut wide = plain();
    wide[333] = Dtype::Bf16.encode16(1e30);
    let mut bad = plain();
    bad[77] = 0x7fc0;
    let c = centre(3, 64);
    let blocks = [
        (wide.clone(), plain(), c.clone()),
        (plain(), wide, c.clone()),
        (bad.clone(), plain(), c.clone()),
        (plain(), bad, c.clone()),
    ];
    let (records, status) = pack(&l, &kernel, &blocks, launch(&l, 4));
    assert_eq!(status, 3, "both kinds are reported");
    for (i, record) in records.iter().enumerate() {
        let clean = super::support::reference(&l, i % HEADS, &plain(), &plain(), &c);
        let s = ErrorSummary::from_bytes(&record[l.summary.clone()]);
        let want = ErrorSummary::from_bytes(&clean[l.summary.clone()]);
        let (keys, values) = (l.key_codes.start..l.value_codes.start, l.value_codes.start..l.summary.start);
        let (gone, kept) = if i % 2 == 0 { (keys, values) } else { (values, keys) };
        assert!(record[gone].iter().all(|b| *b == 0), "side {i} is zero");
        assert_eq!(record[kept.clone()], clean[kept], "the other side {i} is coded");
        if !l.format.refine.is_none() {
            let of = |record: &[u8]| RefinedSummary::from_bytes(&record[l.summary.start + 32..l.summary.end]);
            let (r, want) = (of(record), of(&clean));
            let (keys, values) = (l.key_residuals.clone(), l.value_residuals.clone());
            let (gone, kept) = if i % 2 == 0 { (keys, values) } else { (values, keys) };
            assert!(record[gone].iter().all(|b| *b == 0), "side {i} has no residuals");
            assert_eq!(record[kept.clone()], clean[kept], "those of the other side {i}");
            let inf = f32::INFINITY;
            // The coded side's spectral norm is the matrix unit's, at most 2^-7 above the CPU's.
            let near = |got: f32, want: f32| got >= want && got <= want * (1.0 + 2f32.powi(-7));
            let (key, value) = (
                RefinedSummary { kappa: inf, eps: inf, sop: r.sop, ..want },
                RefinedSummary { eta: inf, sop: inf, kappa: r.kappa, ..want },
            );
            assert_eq!(r, if i % 2 == 0 { key } else { value }, "{i}");
            assert!(if i % 2 == 0 { near(r.sop, want.sop) } else { near(r.kappa, want.kappa) }, "{i} {r:?}");
        }
        let infinite = if i % 2 == 0 { [s.kappa, s.eps, s.key_mag] } else { [s.eta, s.eta, s.sop] };
        assert_eq!(infinite, [f32::INFINITY; 3], "{i} {s:?}");
        let (norm, other, same) = if i % 2 == 0 {
            (s.key_norm, s.value_norm, want.value_norm)
        } else {
            (s.value_norm, s.key_norm, want.key_norm)
        };
        assert_eq!(other, same);
        if i < 2 {
            assert!(norm > 0.99e30 && norm < 1.01e30, "{i} {s:?}");
        } else {
            assert_eq!(norm, f32::INFINITY, "{i} {s:?}");
        }
    }
}
