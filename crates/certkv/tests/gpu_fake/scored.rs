//! SmartKV on the host, told all attention of a sequence's layer and what the log says, beside the one whose attention stays on the device.
use crate::alone;
use crate::kernels::{self, BLOCK, GROUP, KV_HEADS, log2_mass};
use crate::levels::{LADDERS, budget, config, page_bytes};
use crate::life::LAYERS;
use crate::model::rows;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Certified, Chunk, ControlEntry, Policy, Side, SmartKv};
use certkv_control::smartkv::{Controller, Importance, Ladder, Rule, WidthAllocator, kl, moved};

/// Of one layer.
#[derive(Clone)]
pub(crate) struct Twin {
    rule: Rule,
    controller: Controller,
    importance: Importance,
    last: Vec<f64>,
    steps: u64,
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() <= 1e-4 * want.abs() + 1e-6
}

impl Twin {
    pub(crate) fn new(layer: usize, heads: usize, rule: Rule) -> Self {
        Self {
            rule,
            controller: Controller::new(layer, heads, rule).expect("a controller"),
            importance: Importance::new(heads, rule.importance).expect("a rule"),
            last: Vec::new(),
            steps: 0,
        }
    }

    /// What is wrong with an entry of a step that gave `attention`, `[head][block]`, or with what was decided by it.
    pub(crate) fn hear(
        &mut self,
        entry: &ControlEntry,
        attention: &[f64],
        ladder: &Ladder<'_>,
        budget: f64,
    ) -> Option<String> {
        let scored = entry.scored.as_ref()?;
        self.importance.truncate(entry.kept);
        self.last.truncate(entry.kept);
        if let Err(error) = self.importance.update(attention, self.steps) {
            return Some(format!("{} blocks: {error}", scored.blocks));
        }
        let mut want = Vec::new();
        self.importance.scores(self.steps, &mut want);
        self.steps += 1;
        if scored.blocks != want.len() || entry.attention.is_some() {
            return Some(format!("{} blocks, not {}", scored.blocks, want.len()));
        }
        if let Some(got) = scored.scores.as_ref().filter(|got| !got.iter().zip(&want).all(|(a, b)| near(*a, *b))) {
            return Some(format!("scores {got:?}, not {want:?}"));
        }
        let divergence = kl(&want, &self.last).expect("scores");
        let far = moved(&want, &self.last, self.rule.points).expect("scores");
        // Equal ranks of two precisions may be in either order.
        let one = 201.0 / self.last.len().max(1) as f64;
        if let Some(got) = scored.drift.filter(|got| !near(got.divergence, divergence) || (got.moved - far).abs() > one)
        {
            return Some(format!("{got:?}, not {divergence} and {far}"));
        }
        let told = scored.told(entry.kept, &entry.levels);
        let decided = self.controller.tell_apart(&mut WidthAllocator::new(), ladder, &told, budget);
        if decided.as_ref() != Ok(&entry.decision) {
            return Some(format!("{:?}, not {decided:?}", entry.decision));
        }
        if entry.decision.is_some() {
            self.last = want;
        }
        None
    }
}

const HEADS: usize = GROUP * KV_HEADS;

/// Attention that words say, `[head][block]`: of blocks without one what the others leave.
pub(crate) fn attention(known: usize, blocks: usize) -> Vec<f64> {
    let of_head = |head: usize| {
        let share = |block| f64::exp2(f64::from(log2_mass(head, block) - kernels::LOG2_TOTAL));
        let own: Vec<f64> = (0..known.min(blocks)).map(share).collect();
        let rest = (1.0 - own.iter().sum::<f64>()).max(0.0);
        own.into_iter().chain((known.min(blocks)..blocks).map(move |_| rest))
    };
    (0..HEADS).flat_map(of_head).collect()
}

/// Two sequences, and later a fork of one, whose words are others in every step, behind which all are controlled. Layers that were told of drift, and that were told nothing; what was wrong. `late`: they are held to
/// the words of the step after.
fn life(compiler: &Compiler, late: bool) -> ([usize; 2], Vec<String>) {
    let ladder = LADDERS[1];
    let rule = Rule { points: 0.0, checks: 0, drift_every: 5, ..Rule::default() };
    let control = Some(SmartKv { rule, ..SmartKv::new(budget(ladder)) }.into());
    kernels::begin(ladder[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, GpuConfig { control, ..config(ladder, 2) }).expect("a cache");
    let mut ids = vec![cache.create().expect("a sequence"), cache.create().expect("a sequence")];
    let (mut lens, mut next, mut seen, mut wrong) = (vec![0usize; 2], 7u32, [0; 2], Vec::new());
    let fresh = core::array::from_fn::<_, LAYERS, _>(|layer| Twin::new(layer, HEADS, rule));
    let mut twins = vec![fresh.clone(), fresh];
    let bits: Vec<u8> = ladder
        .iter()
        .rev()
        .map(|f| f.parse::<certkv::Format>().map(|f| (f.key.bits() + f.value.bits()) as u8).expect("a format"))
        .collect();
    let cost: Vec<f64> = page_bytes(ladder).into_iter().rev().collect();
    let ladder_of = Ladder { bits: &bits, cost: &cost };
    for turn in 0..3 * BLOCK {
        kernels::lower_masses(turn as i32 % 4);
        let tokens = if turn == 0 { 2 * BLOCK + 3 } else { 1 };
        if turn == 2 * BLOCK + 5 {
            // What calls have left of the last step is the fork's, too.
            ids.push(cache.fork(ids[0]).expect("a fork"));
            lens.push(lens[0]);
            twins.push(twins[0].clone());
        }
        let chunks: Vec<_> = ids.iter().map(|sequence| Chunk { sequence: *sequence, tokens }).collect();
        let new: Vec<u32> = (0..(ids.len() * tokens) as u32).map(|i| next + i).collect();
        next += new.len() as u32;
        let mut step = cache.begin_with(&chunks, Policy::Certified(Certified::default())).expect("a step");
        for layer in 0..LAYERS {
            let [keys, values] = [Side::Key, Side::Value].map(|side| rows(&new, layer, side));
            step.append_bits(layer, &keys, &values).expect("rows");
            step.attend(layer, &vec![0.25; new.len() * HEADS * kernels::DIM]).expect("attention");
        }
        step.finish().expect("an end");
        for (at, id) in ids.iter().copied().enumerate() {
            let known = lens[at] / BLOCK;
            lens[at] += tokens;
            let mut log = Vec::new();
            cache.control_logged(id, Some(&mut |entry| log.push(entry))).expect("an answer");
            kernels::lower_masses((turn as i32 + i32::from(late)) % 4);
            let want = attention(known, lens[at] / BLOCK);
            for (layer, entry) in log.iter().enumerate() {
                let of = entry.scored.as_ref();
                seen[0] += usize::from(of.is_some_and(|scored| scored.drift.is_some()));
                seen[1] += usize::from(of.is_some_and(|scored| scored.drift.is_none() && scored.scores.is_none()));
                let twin = &mut twins[at][layer];
                let found = twin.hear(entry, &want, &ladder_of, budget(ladder) * BLOCK as f64);
                wrong.extend(found.map(|what| format!("turn {turn}, sequence {at}, layer {layer}: {what}")));
            }
            kernels::lower_masses(turn as i32 % 4);
        }
    }
    kernels::lower_masses(0);
    (seen, wrong)
}

/// Calls that ask for nothing leave a step to be heard when the next begins, whose words take the place of its own.
#[test]
fn steps_are_heard_before_the_next_takes_their_place() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (seen, wrong) = life(compiler, false);
    assert!(wrong.is_empty(), "{} wrong, first {}", wrong.len(), wrong[0]);
    assert!(seen.iter().all(|n| *n > 20), "{seen:?}");
    fake.reset();
    let caught = usize::from(!life(compiler, true).1.is_empty());
    println!("GATE gpu-heard executed={} failed=0 controls={caught}/1 seed=0x0", seen[0] + seen[1]);
    assert_eq!(caught, 1);
}
