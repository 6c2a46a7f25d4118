//! The kernel that keeps scores of blocks, run on the emulator, against the same in double precision on the host.
#[path = "emulated/mod.rs"]
mod emulated;
use certkv_control::smartkv::{Importance, ImportanceRule, kl, moved};
use certkv_kernel::cuda::args::{Certificate, MassWord};
use certkv_kernel::cuda::importance::{Heard, ImportanceArgs, ImportanceOf, Remembered, Strides};
use certkv_testkit::generate::Rng;
use emulated::{Buffer, Emulated, Launch};

const LAYERS: usize = 2;
/// Rows, of which the sequence has the last, and places, of which it has the last. Another one has the first of each.
const ROWS: usize = 3;
const PLACES: usize = 2;
const POINTS: f64 = 5.0;

/// Of one shape and rule: launches over words as attention leaves them, in a sequence that grows and is cut.
struct World {
    kernel: Emulated,
    heads: usize,
    group: usize,
    stride: usize,
    rule: ImportanceRule,
    remembered: Remembered,
    memory: Buffer,
    /// By layer.
    host: Vec<Importance>,
    before: Vec<Vec<f64>>,
    rng: Rng,
    step: usize,
    compared: usize,
}

fn near(got: f64, want: f64, least: f64) -> bool {
    (got - want).abs() <= 2e-4 * want.abs() + least
}

impl World {
    fn new((heads, group, stride): (usize, usize, usize), rule: ImportanceRule, seed: u64) -> Self {
        let remembered = Remembered::new(LAYERS, heads, stride);
        let memory = Buffer::of(&vec![0xeeu8; ROWS * remembered.bytes().expect("few")]);
        Self {
            kernel: Emulated::build("importance.cu", &[]).expect("the kernel compiles"),
            heads,
            group,
            stride,
            rule,
            remembered,
            memory,
            host: (0..LAYERS).map(|_| Importance::new(heads, rule).expect("a rule")).collect(),
            before: vec![Vec::new(); LAYERS],
            rng: Rng::new(seed),
            step: 0,
            compared: 0,
        }
    }

    /// Where the sequence's memory begins.
    fn row(&self) -> usize {
        (ROWS - 1) * self.remembered.bytes().expect("few")
    }

    fn floats(&self, range: core::ops::Range<usize>) -> Vec<f64> {
        let own = &self.memory.read::<f32>()[self.row() / 4..];
        own[range.start / 4..range.end / 4].iter().map(|x| f64::from(*x)).collect()
    }

    /// Words of a layer, its certificates, and the shares that they say, `[head][block]`.
    fn attention(&mut self, blocks: usize, known: usize, lost: bool) -> (Vec<u32>, Vec<Certificate>, Vec<f64>) {
        let mut words = vec![0xdead_beefu32; self.heads * self.stride];
        let (mut certificates, mut shares) = (Vec::new(), Vec::new());
        for head in 0..self.heads {
            let total = 40.0 * self.rng.uniform() - 20.0;
            let masses: Vec<f64> = (0..known).map(|_| (2.0 * self.rng.normal()).exp()).collect();
            let sum: f64 = masses.iter().sum::<f64>() * (1.0 + 0.3 * self.rng.uniform());
            let none = lost && head == 1;
            let mut rest = 1.0;
            for (block, mass) in masses.iter().enumerate() {
                let field = ((mass / sum).log2() + total + 512.0) * 32.0;
                let empty = self.rng.chance(0.1);
                let word = if empty { MassWord(0) } else { MassWord((field.round() as u32) << 17 | 77) };
                words[((head / self.group) * self.stride + block) * self.group + head % self.group] = word.0;
                let share = word.log2_mass().map_or(0.0, |log2| (f64::from(log2) - total).exp2());
                rest -= share;
                shares.push(if none { 0.0 } else { share });
            }
            let rest = if none { 0.0 } else { f64::max(rest, 0.0) };
            shares.extend((known..blocks).map(|_| rest));
            let lse = if none { f32::NAN } else { (total * core::f64::consts::LN_2) as f32 };
            certificates.push(Certificate { lse, ..Certificate::default() });
        }
        (words, certificates, shares)
    }

    /// A step. Scores and drifts that are not what they should be.
    fn run(&mut self, blocks: usize, known: usize, kept: usize, how: (bool, bool)) -> usize {
        let (looks, lost) = how;
        let (mut words, mut certificates, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..LAYERS {
            let (w, c, s) = self.attention(blocks, known, lost);
            let (other, others, _) = self.attention(blocks, known, false);
            words.extend([other, vec![0x5555_5555; self.heads * self.stride], w].concat());
            certificates.extend([others, c].concat());
            shares.push(s);
        }
        let heard = |row: usize, place: usize| Heard {
            row: row as u32,
            place: place as u32,
            known: known as u32,
            blocks: blocks as u32,
            kept: kept as u32,
            step: self.step as u32,
            looks: u32::from(looks),
            unused: 0,
        };
        let heard = [heard(0, 0), heard(ROWS - 1, PLACES - 1)];
        let of = ImportanceOf {
            keep: self.rule.keep,
            keep_head: self.rule.keep_head,
            mix: self.rule.mix,
            life: self.rule.life,
            points: POINTS,
        };
        let words = Buffer::of(&words);
        let bytes: Vec<u32> = certificates
            .iter()
            .flat_map(|c| {
                let mut words = [0u32; Certificate::WORDS];
                words[7] = c.lse.to_bits();
                words
            })
            .collect();
        let bytes = Buffer::of(&bytes);
        let at = [words.pointer(), bytes.pointer(), self.memory.pointer()];
        let (of_row, of_place) = (4 * self.heads * self.stride, self.heads * size_of::<Certificate>());
        let strides = Strides { words: [ROWS * of_row, of_row], certificates: [PLACES * of_place, of_place] };
        let args = ImportanceArgs::new(at, &strides, &self.remembered, self.group, &heard, &of).expect("small numbers");
        let ctas = (heard.len() * LAYERS) as u32;
        let how = Launch::new(ctas, 1024, args.shared_bytes().expect("few heads")).seed(self.step as u64);
        let buffers = [&words, &bytes, &self.memory];
        self.kernel.launch("ckv_importance", how, &args, &buffers).expect("the launch runs");
        let mut wrong = 0;
        for (layer, shares) in shares.iter().enumerate() {
            let host = &mut self.host[layer];
            host.truncate(kept);
            self.before[layer].truncate(kept);
            host.update(shares, self.step as u64).expect("shares");
            let mut want = Vec::new();
            host.scores(self.step as u64, &mut want);
            let all = self.floats(self.remembered.scores(layer));
            let (got, most) = (&all[..blocks], want.iter().copied().fold(0.0, f64::max));
            wrong += got.iter().zip(&want).filter(|(a, b)| !near(**a, **b, 1e-6 * most)).count();
            if looks {
                let before = &self.before[layer];
                let got = &self.floats(self.remembered.drift())[2 * layer..][..2];
                let divergence = kl(&want, before).expect("scores");
                let far = moved(&want, before, POINTS).expect("scores");
                // Equal ranks of two precisions may swap.
                let one = 200.0 / before.len().max(1) as f64;
                wrong += usize::from(!near(got[0], divergence, 2e-5) || (got[1] - far).abs() > one);
                self.compared += usize::from(!before.is_empty() && far > 0.0);
            }
            // A decision now and then, which leaves its scores to be compared with.
            if self.rng.chance(0.3) {
                let (from, to) = (self.remembered.scores(layer), self.remembered.before(layer));
                let bits = &self.memory.read::<u32>()[(self.row() + from.start) / 4..][..blocks];
                self.memory.write(self.row() + to.start, bits);
                self.before[layer] = want;
            }
        }
        // Of a row that is not among them nothing is known.
        let each = self.remembered.bytes().expect("few");
        wrong += self.memory.read::<u8>()[each..2 * each].iter().filter(|byte| **byte != 0xee).count();
        self.step += 1;
        wrong
    }
}

#[test]
fn scores_and_drift_are_those_of_the_host() {
    let usual = ImportanceRule::default();
    let slow = ImportanceRule { keep: 0.9999, keep_head: 0.5, mix: 0.9, life: 20.0 };
    let quick = ImportanceRule { keep: 0.0, keep_head: 0.0, mix: 1.0, life: f64::INFINITY };
    let (mut executed, mut compared, mut wrong) = (0, 0, 0);
    let shapes = [(8, 4, 90), (3, 1, 40), (40, 5, 2100), (34, 2, 65)];
    for (case, (shape, rule)) in shapes.into_iter().zip([usual, slow, quick, usual]).enumerate() {
        let mut world = World::new(shape, rule, 7 + case as u64);
        let mut seen = 0;
        for step in 0..if shape.2 > 1000 { 4 } else { 30 } {
            let blocks = if shape.2 > 1000 { 1500 + 200 * step } else { (step + 7).min(shape.2) };
            let cut = if step == 17 { 9 } else { seen };
            // A block that the step has filled has no word.
            let known = blocks - usize::from(step % 4 == 3);
            wrong += world.run(blocks, known, cut, (step % 2 == 1, step % 7 == 5));
            (seen, executed) = (blocks, executed + LAYERS * blocks);
        }
        compared += world.compared;
    }
    assert!(compared > 30, "{compared}");
    assert_eq!(wrong, 0);
    // A step that the device has not seen is seen to be missing.
    let mut world = World::new(shapes[0], usual, 1);
    assert_eq!(world.run(20, 20, 0, (false, false)), 0);
    let step = world.step as u64;
    world.host[0].update(&vec![0.05; world.heads * 20], step).expect("shares");
    world.step += 1;
    let other = world.run(20, 20, 20, (false, false));
    assert!(other > 0, "a control");
    println!("GATE gpu-importance executed={executed} failed={wrong} controls=1/1 seed=0x7");
}
