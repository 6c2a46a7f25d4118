//! The kernels that say what levels would lose of blocks, run on the emulator, against the formulas in double precision.
#[path = "emulated/mod.rs"]
mod emulated;
use certkv_core::{ErrorSummary, Geometry, RecordLayout};
use certkv_kernel::cuda::args::Certificate;
use certkv_kernel::cuda::losses::{LOSSES_THREADS, LossesArgs, PEAK_HEADER, ProbeArgs, ProbeSizes};
use certkv_testkit::generate::Rng;
use emulated::{Buffer, Emulated, Launch};

/// As `terms.rs` has them.
const NEVER: f64 = 1e30;
const CANCELLED: f64 = 0.1;
const LAYERS: usize = 2;

/// One layer of a sequence.
struct Layer {
    words: Vec<u32>,
    certificates: Vec<Certificate>,
    /// `[block][kv_head][level of the ladder]`; `None`: the level cannot hold it.
    summaries: Vec<Option<ErrorSummary>>,
    table: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Shape {
    kv_heads: usize,
    group: usize,
    stride: usize,
    levels: usize,
    blocks: usize,
    known: usize,
}

/// First pages of levels, as far apart as that.
const PAGES: u32 = 50;

fn layer(s: &Shape, rng: &mut Rng, lost: bool) -> Layer {
    let heads = s.kv_heads * s.group;
    let mut words = vec![0xdead_beef; heads * s.stride];
    let mut certificates = Vec::new();
    for head in 0..heads {
        let total = 30.0 * rng.uniform() - 15.0;
        for block in 0..s.known {
            let mass = total - 1.0 - 9.0 * rng.uniform();
            let share = 14.0 * rng.uniform() - 11.0;
            let fields = [(mass + 512.0) * 32.0, (share + 32.0) * 64.0, 20.0 * rng.uniform()].map(|x| x.round() as u32);
            let word = if rng.chance(0.1) { 0 } else { fields[0] << 17 | fields[1] << 5 | fields[2] };
            words[((head / s.group) * s.stride + block) * s.group + head % s.group] = word;
        }
        let lse = if lost && head == 1 { f32::NAN } else { (total * core::f64::consts::LN_2) as f32 };
        let [norm, radius] = [rng.uniform() as f32, 1.0 + rng.uniform() as f32];
        // Outputs that cancel, and one that is none.
        let norm = if head % 3 == 2 { 0.0 } else { norm };
        certificates.push(Certificate { lse, norm, radius, ..Certificate::default() });
    }
    let mut summaries = Vec::new();
    for _ in 0..s.blocks * s.kv_heads {
        let radius = 0.5 + rng.uniform() as f32;
        for up in 0..s.levels {
            let fine = 2f32.powi(-2 * up as i32) * (0.5 + rng.uniform() as f32);
            let exact = if up + 1 == s.levels && rng.chance(0.2) { 0.0 } else { 1.0 };
            let [eps, eta, sop] = [0.2 * fine * exact, 0.1 * fine * exact, 0.3 * fine * exact];
            let found =
                ErrorSummary { eps, eta, sop, radius, kappa: 9.0, key_mag: 9.0, key_norm: 9.0, value_norm: 9.0 };
            summaries.push((!rng.chance(0.07)).then_some(found));
        }
    }
    let page = |_| PAGES * rng.below(s.levels) as u32 + rng.below(PAGES as usize) as u32;
    Layer { words, certificates, summaries, table: (0..s.stride).map(page).collect() }
}

/// (9.17a) or (9.17) of a layer, `[block][level]`.
fn wanted(s: &Shape, of: &Layer, linear: bool) -> Vec<f64> {
    let mut sum = vec![0.0f64; s.blocks * s.levels];
    let summary = |block: usize, kv: usize, level: usize| of.summaries[(block * s.kv_heads + kv) * s.levels + level];
    let has = |block: usize| match block < s.known {
        true => s.levels - 1 - (of.table[block] / PAGES) as usize,
        false => s.levels - 1,
    };
    for (head, c) in of.certificates.iter().enumerate() {
        let kv = head / s.group;
        let total = f64::from(c.lse) / core::f64::consts::LN_2;
        let word = |block: usize| of.words[(kv * s.stride + block) * s.group + head % s.group];
        let mut mass: Vec<f64> = (0..s.known)
            .map(|b| if word(b) == 0 { 0.0 } else { (f64::from(word(b) >> 17) / 32.0 - 512.0 - total).exp2() })
            .collect();
        let rest = (1.0 - mass.iter().sum::<f64>()).max(0.0);
        mass.resize(s.blocks, rest);
        let even = |b: usize| if b < s.known { (-f64::from(word(b) & 31) / 8.0).exp2() } else { 1.0 };
        let delta = |b: usize| (f64::from(word(b) >> 5 & 0xfff) / 64.0 - 32.0).exp2().ln_1p();
        let now = |b: usize| summary(b, kv, has(b)).map(|s| f64::from(s.eps));
        let with: Vec<usize> = (0..s.known).filter(|b| word(*b) != 0 && now(*b).is_some_and(|eps| eps > 0.0)).collect();
        let eps: f64 = with.iter().filter_map(|b| now(*b)).sum();
        let mean =
            |x: &dyn Fn(usize) -> f64| if eps > 0.0 { with.iter().map(|b| x(*b)).sum::<f64>() / eps } else { 0.0 };
        let means = [mean(&delta), mean(&|b| delta(b) / even(b))];
        let radius = |b: usize| (0..s.levels).find_map(|l| summary(b, kv, l)).map_or(f64::NAN, |s| f64::from(s.radius));
        let made: f64 = (0..s.blocks).map(|b| mass[b] * radius(b)).filter(|x| x.is_finite()).sum();
        let norm = f64::from(c.norm).max(CANCELLED * made);
        for block in 0..s.blocks {
            let (root, distance) = (mass[block] * even(block), radius(block) + f64::from(c.radius));
            let own = now(block).filter(|_| with.contains(&block));
            let per = own.map_or(means, |own| [delta(block) / own, delta(block) / even(block) / own]);
            for level in 0..s.levels {
                let loss = match summary(block, kv, level) {
                    None if level == has(block) => 0.0,
                    None => NEVER,
                    Some(of) => {
                        let [delta, lambda] = per.map(|per| per * f64::from(of.eps));
                        let g = match linear {
                            true => (mass[block] * delta).min(root * lambda),
                            false if mass[block] == 0.0 => 0.0,
                            false => {
                                let phi = if delta > 0.0 { delta.exp_m1() / delta } else { 1.0 };
                                (mass[block] * delta.exp_m1()).min(phi * root * lambda)
                            }
                        };
                        let value = (mass[block] * f64::from(of.eta)).min(root * f64::from(of.sop));
                        let term = (g * distance).min(distance) + value;
                        if norm > 0.0 { (term / norm).min(NEVER) } else { 0.0 }
                    }
                };
                let cell = &mut sum[block * s.levels + level];
                *cell = (*cell + loss).min(NEVER);
            }
        }
    }
    sum
}

struct Kernels {
    probe: Emulated,
    losses: Emulated,
}

/// Compared with one of the measures, where the kernel is told one of them; and wrong.
fn run(kernels: &Kernels, s: &Shape, seed: u64, [linear, told]: [bool; 2], lost: bool) -> [usize; 2] {
    let mut rng = Rng::new(seed);
    let sizes = ProbeSizes { stride: s.stride, kv_heads: s.kv_heads, levels: s.levels };
    let layers: Vec<Layer> = (0..LAYERS).map(|_| layer(s, &mut rng, lost)).collect();
    let of_layer = sizes.bytes().expect("few");
    let probes = Buffer::of(&vec![0x55u8; LAYERS * of_layer]);
    let geometry = Geometry::new(LAYERS, s.kv_heads * s.group, s.kv_heads, 64).expect("a geometry");
    let layout = RecordLayout::new(&geometry, "k8-v4g32-b16".parse().expect("a format")).expect("a layout");
    let page_bytes = s.kv_heads * layout.bytes;
    // Some blocks, then the others; every level in turn.
    for (at, of) in layers.iter().enumerate() {
        for (first, blocks) in [(0, s.blocks / 3), (s.blocks / 3, s.blocks - s.blocks / 3)] {
            for level in 0..s.levels {
                let up = s.levels - 1 - level;
                let mut records = vec![0u8; blocks * page_bytes];
                for (record, bytes) in records.chunks_exact_mut(layout.bytes).enumerate() {
                    let found = of.summaries[(first * s.kv_heads + record) * s.levels + up];
                    let none = ErrorSummary { eps: f32::INFINITY, ..ErrorSummary::from_bytes(&[0; 32]) };
                    bytes[layout.summary.start..][..32].copy_from_slice(&found.unwrap_or(none).to_bytes());
                }
                let records = Buffer::of(&records);
                let args = ProbeArgs {
                    records: records.pointer(),
                    probes: probes.pointer() + (at * of_layer + 4 * sizes.of_block() * first) as u64,
                    page_bytes: page_bytes as u64,
                    record_bytes: layout.bytes as u32,
                    summary: layout.summary.start as u32,
                    blocks: blocks as u32,
                    kv_heads: s.kv_heads as u32,
                    levels: s.levels as u32,
                    up: up as u32,
                    fresh: u32::from(level == 0),
                    unused: 0,
                };
                let grid = (blocks * s.kv_heads).div_ceil(128).max(1) as u32;
                let how = Launch::new(grid, 128, 0).seed(seed);
                kernels.probe.launch("ckv_probe", how, &args, &[&records, &probes]).expect("the launch runs");
            }
        }
    }
    let heads = s.kv_heads * s.group;
    let words = Buffer::of(&layers.iter().flat_map(|l| l.words.clone()).collect::<Vec<_>>());
    let bits = |c: &Certificate| {
        let mut words = [0u32; Certificate::WORDS];
        (words[5], words[6], words[7]) = (c.norm.to_bits(), c.radius.to_bits(), c.lse.to_bits());
        words
    };
    let certificates =
        Buffer::of(&layers.iter().flat_map(|l| l.certificates.iter().flat_map(bits)).collect::<Vec<_>>());
    let table = Buffer::of(&layers.iter().flat_map(|l| l.table.clone()).collect::<Vec<_>>());
    // Of two steps before some cells have more, others less.
    let before: Vec<f32> = (0..s.stride * s.levels)
        .map(|cell| {
            if cell >= s.blocks * s.levels {
                7.0
            } else if cell % 5 == 0 {
                1e3
            } else {
                0.0
            }
        })
        .collect();
    let of_row: Vec<f32> = [2.0, 7.0, 7.0, 7.0].into_iter().chain(before.iter().copied()).collect();
    assert_eq!(sizes.peak_bytes(), Some(4 * of_row.len()));
    let peaks = Buffer::of(&of_row.repeat(LAYERS));
    let mut firsts = [u32::MAX; 8];
    (0..s.levels).for_each(|level| firsts[level] = PAGES * level as u32);
    let args = LossesArgs {
        words: words.pointer(),
        certificates: certificates.pointer(),
        probes: probes.pointer(),
        table: table.pointer(),
        peaks: peaks.pointer(),
        word_layer: (4 * heads * s.stride) as u64,
        certificate_layer: (heads * size_of::<Certificate>()) as u64,
        probe_layer: of_layer as u64,
        table_layer: (4 * s.stride) as u64,
        peak_layer: 4 * of_row.len() as u64,
        heads: heads as u32,
        kv_heads: s.kv_heads as u32,
        stride: s.stride as u32,
        known: s.known as u32,
        blocks: s.blocks as u32,
        levels: s.levels as u32,
        linear: u32::from(told),
        layers: LAYERS as u32,
        firsts,
    };
    let buffers = [&words, &certificates, &probes, &table, &peaks];
    let how = Launch::new(args.ctas(), LOSSES_THREADS, args.shared_bytes().expect("few")).seed(seed);
    kernels.losses.launch("ckv_losses", how, &args, &buffers).expect("the launch runs");
    let found = peaks.read::<f32>();
    let mut counts = [0; 2];
    for (at, of) in layers.iter().enumerate() {
        let (header, got) = found[at * of_row.len()..][..of_row.len()].split_at(PEAK_HEADER);
        counts[1] += usize::from(header != [if lost { 2.0 } else { 3.0 }, 7.0, 7.0, 7.0]);
        for ((got, want), before) in got.iter().zip(wanted(s, of, linear)).zip(&before) {
            // What is no number is of no step.
            let want = if lost { f64::from(*before) } else { want.max((*before).into()) };
            counts[0] += 1;
            let same = (f64::from(*got) - want).abs() <= 2e-4 * want.abs() + 1e-9;
            counts[1] += usize::from(!same);
        }
        counts[1] += got[s.blocks * s.levels..].iter().filter(|x| **x != 7.0).count();
    }
    counts
}

#[test]
fn losses_are_what_the_formulas_say() {
    let build = |file| Emulated::build(file, &[]).expect("the kernel compiles");
    let kernels = Kernels { probe: build("probe.cu"), losses: build("losses.cu") };
    let (mut executed, mut failed) = (0, 0);
    let shapes = [
        Shape { kv_heads: 2, group: 4, stride: 50, levels: 2, blocks: 40, known: 39 },
        Shape { kv_heads: 3, group: 1, stride: 33, levels: 8, blocks: 33, known: 33 },
        Shape { kv_heads: 8, group: 5, stride: 1300, levels: 3, blocks: 1200, known: 1199 },
        Shape { kv_heads: 1, group: 1, stride: 9, levels: 4, blocks: 1, known: 0 },
    ];
    for (case, shape) in shapes.iter().enumerate() {
        for (linear, lost) in [(true, false), (false, false), (true, true)] {
            // Of one head none is lost.
            if lost && shape.kv_heads * shape.group == 1 {
                continue;
            }
            let [n, wrong] = run(&kernels, shape, 11 + case as u64, [linear; 2], lost);
            (executed, failed) = (executed + n, failed + wrong);
        }
    }
    assert_eq!(failed, 0, "of {executed}");
    // The other measure's losses are not these.
    let [n, wrong] = run(&kernels, &shapes[0], 3, [true, false], false);
    assert!(wrong > n / 2, "a control: {wrong} of {n}");
    println!("GATE gpu-losses executed={executed} failed={failed} controls=1/1 seed=0xb");
}
