//! Blocks of several levels: a launch for each, and what they have left made one. Against attention in f64, as everything that attends.
use crate::device_cases::{Case, Spec, bytes32};
use crate::emulated::{Buffer, Emulated, Launch};
use certkv_core::Dtype;
use certkv_kernel::cuda::args::{AttendArgs, Certificate, Element};
use certkv_kernel::cuda::unite::{LevelState, UniteArgs};
use certkv_kernel::cuda::{Arch, Variant};
use certkv_testkit::generate::Rng;
use std::cell::RefCell;

/// Cases of the same data, one to a level, and the level of every block of a sequence.
struct Levels {
    cases: Vec<Case>,
    of: Vec<Vec<usize>>,
    /// And that of its open block.
    open: Vec<usize>,
}

fn variant(spec: &Spec) -> Variant {
    let stages = if spec.layout().tokens() == 64 { 1 } else { 2 };
    let variant = Variant::new(spec.layout(), spec.group, Arch::Sm90a).and_then(|v| v.with_shape(4, stages));
    variant.and_then(Variant::levelled).unwrap_or_else(|e| panic!("{e}"))
}

impl Levels {
    /// Levels of blocks are drawn; one sequence has none of the first but its open block, another nothing else.
    fn new(spec: &Spec, formats: &[&'static str]) -> Self {
        let case = |format: &&'static str| Case::new(&Spec { format, ..spec.clone() });
        let (mut r, mut open) = (Rng::new(spec.seed ^ 0x1e7e), Rng::new(spec.seed ^ 0x0be));
        let level = |s: usize, r: &mut Rng| match s {
            0 => formats.len() - 1,
            1 => 0,
            _ => r.below(formats.len()),
        };
        let of = |s: usize| (0..spec.recorded(spec.lens[s])).map(|_| level(s, &mut r)).collect();
        let of = (0..spec.lens.len()).map(of).collect();
        let open = (0..spec.lens.len()).map(|_| Rng::below(&mut open, formats.len())).collect();
        Self { of, open, cases: formats.iter().map(case).collect() }
    }

    fn blocks(&self, seq: usize, level: usize) -> Vec<usize> {
        (0..self.of[seq].len()).filter(|j| self.of[seq][*j] == level).collect()
    }
}

struct Run {
    out: Vec<f32>,
    certificates: Vec<Certificate>,
    masses: Vec<u32>,
    failures: Vec<u32>,
}

/// `spoil`: what to change of what the launches have left.
fn run(levels: &Levels, ctas: usize, how: impl Fn(Launch) -> Launch, spoil: impl Fn(&Buffer)) -> Run {
    let first = &levels.cases[0];
    let (spec, stride) = (&first.spec, first.stride());
    let (seqs, heads) = (spec.lens.len(), first.launch_heads());
    let memory = RefCell::new(Vec::new());
    let keep = |buffer: Buffer| {
        let at = buffer.pointer();
        memory.borrow_mut().push(buffer);
        at
    };
    let words = |words: &[u32]| keep(Buffer::of(&bytes32(words)));
    let mut state = UniteArgs::default();
    let mut placed = Vec::new();
    for case in &levels.cases {
        placed.push(case.place(ctas, &mut |bytes| keep(Buffer::of(bytes)), &mut |n| keep(Buffer::zeroed(n))));
    }
    let n = placed[0].masses;
    let (out, masses) = (Buffer::of(&vec![u32::MAX; placed[0].outputs]), Buffer::of(&vec![u32::MAX; n]));
    let certificates = Buffer::of(&vec![u32::MAX; placed[0].heads * Certificate::WORDS]);
    let failures = Buffer::zeroed((1 + heads) * 4);
    for (level, (case, placed)) in levels.cases.iter().zip(&placed).enumerate() {
        let variant = variant(&case.spec);
        // The tables of the level, made of those of the case, in which every block has it.
        let read = |at: u64, n: usize| -> Vec<u32> {
            let memory = memory.borrow();
            let buffer = memory.iter().find(|buffer| buffer.pointer() == at).expect("the case's");
            buffer.read::<u32>()[..n].to_vec()
        };
        let (pages, mut table) = (read(placed.args.table, seqs * stride), vec![u32::MAX; seqs * stride]);
        let (mut homes, mut lens) = (vec![u32::MAX; seqs * stride], Vec::new());
        for seq in 0..seqs {
            let blocks = levels.blocks(seq, level);
            for (at, home) in blocks.iter().enumerate() {
                table[seq * stride + at] = pages[seq * stride + home];
                homes[seq * stride + at] = *home as u32;
            }
            let open = if levels.open[seq] == level {
                spec.lens[seq] - spec.recorded(spec.lens[seq]) * case.layout.tokens()
            } else {
                0
            };
            let filled = open == case.layout.tokens();
            lens.push(2 * (blocks.len() * case.layout.tokens() + open) as u32 + u32::from(filled));
        }
        let kept = Buffer::of(&vec![u32::MAX; heads * variant.partial_stride()]);
        let args = AttendArgs {
            table: words(&table),
            homes: words(&homes),
            lens: words(&lens),
            kept: kept.pointer(),
            masses: masses.pointer(),
            // On some of the CTAs, or all.
            ctas: if spec.seed % 2 == 0 { words(&[1 + level as u32]) } else { 0 },
            settled: 1,
            beside: u32::from(level > 0),
            ..placed.args
        };
        state.levels[level] = LevelState { kept: args.kept, lens: args.lens };
        let macros: Vec<(&str, i64)> = variant.macros().into_iter().map(|(name, x)| (name, x as i64)).collect();
        let shape = variant.shape();
        let launch = how(Launch::new(ctas as u32, shape.threads() as u32, shape.shared as u32));
        keep(kept);
        let (memory, attend) =
            (memory.borrow(), Emulated::build("attend.cu", &macros).unwrap_or_else(|e| panic!("{e}")));
        let all: Vec<&Buffer> = memory.iter().chain([&masses]).collect();
        attend.launch("ckv_attend", launch, &args, &all).unwrap_or_else(|e| panic!("{:?}: {e}", case.spec));
    }
    let args = UniteArgs {
        rows: words(&(0..seqs as u32).collect::<Vec<_>>()),
        centres: placed[0].args.centres,
        out: out.pointer(),
        certificates: certificates.pointer(),
        failures: failures.pointer(),
        limits: placed[0].args.limits,
        level_count: levels.cases.len() as u32,
        seqs: seqs as u32,
        kv_heads: spec.kv_heads as u32,
        out_type: placed[0].args.out_type,
        relative: placed[0].args.relative,
        absolute: placed[0].args.absolute,
        out_strides: placed[0].args.out_strides,
        ..state
    };
    let variant = variant(spec);
    let macros: Vec<(&str, i64)> = variant.macros().into_iter().map(|(name, x)| (name, x as i64)).collect();
    let memory = memory.into_inner();
    memory.iter().filter(|buffer| buffer.pointer() == args.levels[0].kept).for_each(spoil);
    let all: Vec<&Buffer> = memory.iter().chain([&out, &certificates, &failures]).collect();
    let unite = Emulated::build("unite.cu", &macros).unwrap_or_else(|e| panic!("{e}"));
    let launch = how(Launch::new(ctas as u32, 128, 0));
    unite.launch("ckv_unite", launch, &args, &all).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
    Run {
        out: first.outputs(&out.read()).unwrap_or_else(|e| panic!("{e}")),
        certificates: certificates.read::<u32>().as_chunks().0.iter().map(Certificate::from_words).collect(),
        masses: masses.read(),
        failures: failures.read(),
    }
}

fn wrong(levels: &Levels, r: &Run) -> Vec<String> {
    let first = &levels.cases[0];
    let coded_in = |head: usize, block: usize| &levels.cases[levels.of[head / first.spec.kv_heads][block]];
    first.judge_levels(&r.out, &r.certificates, &r.masses, &[], &coded_in).wrong
}

#[test]
fn blocks_of_several_levels_match_attention_in_f64() {
    let (mut executed, mut seen, mut spoilt) = (0, 0, 0);
    for (formats, dim, group, lens, store) in [
        (&["k8-v4g64-b64", "k4-v4g64-b64"][..], 128, 4, vec![400, 270, 700, 1], Dtype::F16),
        (
            &["t8-v8g32-b32", "t4-v4g32-b32", "t3-v3g32-b32", "t2-v2g32-b32"],
            128,
            4,
            vec![200, 100, 460, 33, 310],
            Dtype::F16,
        ),
        (&["tq4-tq4-b32", "tq3-tq2-b32", "tq1-tq1-b32"], 64, 6, vec![170, 96, 200], Dtype::Bf16),
        (&["k8-v4g32-b16", "e4m3-tq3-b16", "k2-tq2-b16"], 64, 2, vec![65, 17, 300, 16, 8], Dtype::F16),
        (&["tq6-tq5-b32", "p4g32-p4g32-b32"], 256, 2, vec![100, 64, 220], Dtype::F16),
        (&["ctq4-tq4-b32", "gtq3-tq3-b32", "s1-tq2-b32"], 64, 4, vec![130, 64, 200], Dtype::F16),
        (&["k8-c4-b32", "t2-c3-b32"], 96, 12, vec![70, 40, 130], Dtype::F16),
    ] {
        for closing in [false, true] {
            // A block that the last token fills lies in its tail.
            let block: usize = if formats[0].ends_with("b64") {
                64
            } else if formats[0].ends_with("b16") {
                16
            } else {
                32
            };
            let lens: Vec<usize> =
                lens.iter().map(|n| if closing && *n > block { n / block * block } else { *n }).collect();
            let spec = Spec {
                closing,
                store,
                seed: dim as u64 + u64::from(closing),
                ..Spec::new(formats[0], dim, group, &lens)
            };
            let levels = Levels::new(&spec, formats);
            let r = run(&levels, 3, |l| l.seed(spec.seed).truncating().noisy(), |_| {});
            let found = wrong(&levels, &r);
            assert!(
                found.is_empty(),
                "{formats:?} {closing}: {} wrong, first {:#?}",
                found.len(),
                &found[..found.len().min(4)]
            );
            executed += r.certificates.len();
            let mut listed = r.failures[1..=r.failures[0] as usize].to_vec();
            listed.sort_unstable();
            let over = (0..levels.cases[0].launch_heads() as u32)
                .filter(|h| r.certificates[*h as usize * group..][..group].iter().any(|c| c.status == 0));
            assert!(listed.into_iter().eq(over), "{formats:?}");
            // Bits do not depend on the order of threads, nor on how the line is cut but for rounding.
            let again = run(&levels, 3, |l| l.seed(spec.seed + 9).truncating(), |_| {});
            let once = run(&levels, 3, |l| l.seed(spec.seed + 5).truncating(), |_| {});
            assert!(again.out.iter().map(|x| x.to_bits()).eq(once.out.iter().map(|x| x.to_bits())));
            // A state of which a tenth is missing is seen.
            let less = run(
                &levels,
                3,
                |l| l,
                |kept| {
                    let words: Vec<u32> = kept.read();
                    kept.write(0, &words.iter().map(|w| (f32::from_bits(*w) * 0.9).to_bits()).collect::<Vec<_>>());
                },
            );
            spoilt += 1;
            seen += usize::from(!wrong(&levels, &less).is_empty());
        }
    }
    println!("GATE gpu-levels executed={executed} failed=0 controls={seen}/{spoilt} seed=0x1e7e");
    assert_eq!(seen, spoilt);
}

/// Queries and outputs of every type.
#[test]
fn outputs_of_all_types_are_within_their_bounds() {
    for out in [Element::F16, Element::Bf16, Element::F32] {
        let mut spec = Spec::new("k8-v4g32-b32", 64, 4, &[300, 40]);
        spec.rows.out = out;
        let levels = Levels::new(&spec, &["k8-v4g32-b32", "tq3-tq3-b32"]);
        let r = run(&levels, 2, |l| l.seed(2), |_| {});
        let found = wrong(&levels, &r);
        assert!(found.is_empty(), "{out:?}: {found:#?}");
    }
}
