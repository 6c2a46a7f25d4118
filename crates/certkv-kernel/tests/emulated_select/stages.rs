//! `ckv_ladder` beside the launches whose stages it has: choice, pass and second pass leave the same bits in one launch.
use crate::device_cases::{Spec, side};
use crate::emulated::{Buffer, Emulated, Launch};
use crate::ladder::{CTAS, Ladder};
use certkv_kernel::cuda::Sight;
use certkv_kernel::cuda::args::{AttendArgs, Sides};
use certkv_kernel::cuda::ladder::{LadderArgs, TURN_WORDS};
use certkv_kernel::cuda::select::{SelectArgs, SelectMode};
use certkv_testkit::generate::Kind;

/// Originals of every block, as a dense rung reads them.
fn everything(l: &mut Ladder) -> AttendArgs {
    let (spec, stride) = (&l.case.spec, l.case.stride());
    let (b, d, heads) = (l.case.layout.tokens(), spec.dim, spec.kv_heads);
    let (mut words, mut sides, mut rows) = (vec![0u32; l.case.launch_heads() * stride], Vec::new(), Vec::new());
    for (i, head) in l.case.heads.iter().enumerate() {
        for j in 0..spec.lens[i / heads] / b {
            let of = |x: &[u16], keys| side(&x[j * b * d..(j + 1) * b * d], b, d, keys);
            let both = [of(&head.data.keys, true), of(&head.data.values, false)].map(|x| Buffer::of(&x));
            sides.extend(both.iter().map(Buffer::pointer));
            rows.extend(both);
            words[i * stride + j] = sides.len() as u32 / 2;
        }
    }
    let [words, sides] = [Buffer::of(&words), Buffer::of(&sides)];
    let args = AttendArgs { promoted: words.pointer(), sides: sides.pointer(), masses: 0, settled: 0, ..l.attend };
    l.memory.extend(rows.into_iter().chain([words, sides]));
    args
}

/// All memory of a case: what launches leave.
fn left(l: &Ladder) -> Vec<Vec<u8>> {
    let lists = l.failures;
    let of = |(i, buffer): (usize, &Buffer)| {
        if !lists.contains(&i) {
            return buffer.read::<u8>();
        }
        // Lists are in the order in which CTAs ended; behind them is room.
        let words = buffer.read::<u32>();
        let mut listed = words[1..=words[0] as usize].to_vec();
        listed.sort_unstable();
        listed.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    l.memory.iter().enumerate().map(of).collect()
}

fn restore(l: &Ladder, before: &[Vec<u8>]) {
    l.memory.iter().zip(before).for_each(|(buffer, bytes)| buffer.write(0, bytes));
}

struct Stages {
    kernel: Emulated,
    turns: Buffer,
}

impl Stages {
    fn of(l: &Ladder, corrects: bool) -> Self {
        let variant = if corrects { l.variant.clone().correcting().unwrap() } else { l.variant.clone() };
        let macros: Vec<(&str, i64)> = variant.macros().into_iter().map(|(name, value)| (name, value as i64)).collect();
        let kernel = Emulated::build("ladder.cu", &macros).unwrap_or_else(|e| panic!("{e}"));
        Self { kernel, turns: Buffer::zeroed(4 * TURN_WORDS) }
    }

    /// Launches from `before` under several orders of threads, each of which must leave what launches `apart` did. Returns how many.
    fn repeat(&self, l: &Ladder, args: LadderArgs, before: &[Vec<u8>], apart: &[Vec<u8>]) -> usize {
        const SEEDS: u64 = 4;
        for seed in 0..SEEDS {
            restore(l, before);
            self.launch(l, args, seed);
            assert!(left(l) == apart, "{:?}: other bits than from launches apart, seed {seed}", l.case.spec);
        }
        SEEDS as usize
    }

    fn launch(&self, l: &Ladder, args: LadderArgs, seed: u64) {
        let all: Vec<&Buffer> = l.memory.iter().chain([&self.turns]).collect();
        let shape = l.variant.shape();
        let how = Launch::new(CTAS as u32, shape.threads() as u32, shape.shared as u32).seed(seed);
        let args = LadderArgs { turns: self.turns.pointer(), ..args };
        self.kernel.launch("ckv_ladder", how, &args, &all).unwrap_or_else(|e| panic!("{:?}: {e}", l.case.spec));
        assert_eq!(self.turns.read::<u32>(), [0; TURN_WORDS], "the words of its stages stay behind");
    }
}

#[test]
fn one_launch_leaves_the_bits_of_choice_repair_and_dense_rung() {
    let (mut executed, mut repaired, mut dense, mut caught, mut planted) = (0, 0, 0, 0, 0);
    for (format, dim, group) in
        [("k8-v4g32-b32", 64, 4), ("k8-v4g32-b16", 64, 2), ("t4-v5g32-b32", 64, 1), ("k8-v4g64-b32-r8.4", 128, 4)]
    {
        for (kind, relative) in
            [(Kind::Gaussian, 0.02), (Kind::Sinks, 0.05), (Kind::Rope, 0.003), (Kind::Gaussian, 50.0)]
        {
            let sight = (kind == Kind::Sinks).then_some(Sight { tokens: 300, sinks: 20 });
            let spec = Spec {
                kind,
                relative,
                keys: 0.0,
                values: 0.0,
                sight,
                seed: 11 + kind as u64,
                one_limit: true,
                ..Spec::new(format, dim, group, &[520, 200, 13])
            };
            let mut l = Ladder::cut(&spec, 8, 8, 2);
            let all = everything(&mut l);
            let refines = l.case.layout.format.refine.key > 0;
            // What of the heads over tolerance is left by too little room for originals: the dense rung's.
            if spec.relative == 0.003 {
                l.select.originals = no_originals(&mut l);
            }
            let over = l.attend(false);
            let lists = l.failures.map(|at| l.memory[at].pointer());
            l.memory[l.failures[1]].write(0, &[7u32]);
            // A repair empties the list of what it leaves, and others, also where there is nothing to repair.
            l.select.clear[2] = lists[1];
            let before: Vec<Vec<u8>> = l.memory.iter().map(Buffer::read).collect();
            let [pass, then] = [
                AttendArgs { only: lists[0], failures: lists[1], refine_all: u32::from(refines), ..l.attend },
                AttendArgs { only: lists[1], failures: 0, ..all },
            ];

            l.select(SelectMode::Repair, 0.8);
            l.pass(&pass);
            let rest = l.memory[l.failures[1]].read::<u32>()[0];
            l.pass(&then);
            let apart = left(&l);

            let stages = Stages::of(&l, false);
            let select = SelectArgs { mode: SelectMode::Repair as u32, target: 0.8, ..l.select };
            let both = LadderArgs { select, passes: [pass, then], chooses: 1, count: 2, ..LadderArgs::default() };
            executed += stages.repeat(&l, both, &before, &apart);
            // Controls: without the choice, and without the second pass.
            if !over.is_empty() {
                for (other, differs) in
                    [(LadderArgs { chooses: 0, ..both }, true), (LadderArgs { count: 1, ..both }, rest > 0)]
                {
                    restore(&l, &before);
                    l.memory[l.failures[1]].write(0, &[0u32]);
                    stages.launch(&l, other, 0);
                    planted += u32::from(differs);
                    caught += u32::from(differs && left(&l) != apart);
                }
            }
            repaired += over.len();
            dense += rest;
        }
    }
    println!("heads repaired {repaired}, of which {dense} became dense");
    println!("GATE gpu-ladder-stages executed={executed} failed=0 controls={caught}/{planted} seed=0x0");
    assert!(repaired > 30 && dense > 5 && planted > 10 && caught == planted, "{repaired} {dense} {caught}/{planted}");
}

/// A table that says originals are nowhere.
fn no_originals(l: &mut Ladder) -> u64 {
    let b = l.case.layout.tokens();
    let pages: usize = l.case.spec.lens.iter().map(|n| n / b).sum();
    l.memory.push(Buffer::of(&vec![0u64; pages * l.case.spec.kv_heads * size_of::<Sides>() / 8]));
    l.memory[l.memory.len() - 1].pointer()
}

#[test]
fn one_launch_leaves_the_bits_of_picks_and_correction() {
    let (mut executed, mut corrected, mut caught, mut planted) = (0, 0, 0, 0);
    for (format, dim, group) in [("k8-v4g64-b32-r8.4", 128, 4), ("k8-v4g32-b16-r5.4", 64, 2)] {
        for (kind, relative) in
            [(Kind::Gaussian, 0.03), (Kind::Rope, 0.1), (Kind::HeavyTailed, 0.004), (Kind::Sinks, 90.0)]
        {
            let sight = (kind == Kind::Rope).then_some(Sight { tokens: 700, sinks: 40 });
            let spec = Spec {
                kind,
                relative,
                keys: 0.0,
                values: 0.0,
                sight,
                seed: 3 + kind as u64,
                one_limit: true,
                ..Spec::new(format, dim, group, &[1100, 300, 13])
            };
            let mut l = Ladder::cut(&spec, 0, 8, 2);
            l.with_picks();
            let over = l.attend(false);
            l.memory[l.failures[1]].write(0, &[0u32]);
            let before: Vec<Vec<u8>> = l.memory.iter().map(Buffer::read).collect();
            l.select(SelectMode::Refine, 0.95);
            l.correct();
            let apart = left(&l);

            let stages = Stages::of(&l, true);
            let select = SelectArgs { mode: SelectMode::Refine as u32, target: 0.95, clear: [0; 4], ..l.select };
            let both = LadderArgs {
                select,
                passes: [l.correction(), AttendArgs::default()],
                chooses: 1,
                count: 1,
                ..LadderArgs::default()
            };
            executed += stages.repeat(&l, both, &before, &apart);
            if !over.is_empty() {
                restore(&l, &before);
                stages.launch(&l, LadderArgs { chooses: 0, ..both }, 0);
                planted += 1;
                caught += u32::from(left(&l) != apart);
            }
            corrected += over.len();
        }
    }
    println!("GATE gpu-ladder-corrections executed={executed} failed=0 controls={caught}/{planted} seed=0x0");
    assert!(corrected > 15 && planted > 4 && caught == planted, "{corrected} {caught}/{planted}");
}
