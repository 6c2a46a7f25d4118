//! The kernel that publishes certificates, run on the emulator, against what its entries should say, read as the host reads them.
#[path = "emulated/mod.rs"]
mod emulated;
use certkv_device::mailbox::{Missed, Slots, Words};
use certkv_kernel::cuda::args::Certificate;
use certkv_kernel::cuda::publish::{
    ABSENT, ENTRY_HEAD, HeadWords, LayerSet, PublishArgs, PublishRule, head_of, slots, words_of,
};
use certkv_testkit::generate::Rng;
use core::sync::atomic::Ordering;
use emulated::{Buffer, Emulated, Launch};

struct Memory(Vec<u64>);
impl Words for Memory {
    fn load(&self, at: usize, _: Ordering) -> u64 {
        self.0[at]
    }
}

/// A step's results as the ladder leaves them.
struct World {
    rng: Rng,
    layers: usize,
    most: usize,
    kv_heads: usize,
    group: usize,
    certificates: Buffer,
    lists: Buffer,
    errors: Buffer,
    rows: Buffer,
    ring: Buffer,
    state: Buffer,
    slots: Slots,
}

/// What is published of one step.
struct Step {
    seqs: usize,
    rule: PublishRule,
    attended: Vec<bool>,
    exact: Vec<bool>,
    firsts: Vec<Certificate>,
    lists: Vec<u32>,
    errors: Vec<u32>,
    rows: Vec<u32>,
}

impl World {
    fn new(seed: u64, (layers, most, kv_heads, group): (usize, usize, usize, usize)) -> Self {
        let slots = slots(3, layers, most, kv_heads * group).unwrap();
        Self {
            rng: Rng::new(seed),
            layers,
            most,
            kv_heads,
            group,
            certificates: Buffer::zeroed(2 * layers * most * kv_heads * group * size_of::<Certificate>()),
            lists: Buffer::zeroed(2 * layers * 4 * (1 + most * kv_heads)),
            errors: Buffer::zeroed(4 * most),
            rows: Buffer::zeroed(4 * most),
            ring: Buffer::zeroed(8 * slots.len()),
            state: Buffer::zeroed(16),
            slots,
        }
    }

    fn certificate(&mut self) -> Certificate {
        let rng = &mut self.rng;
        let wild = [f32::INFINITY, f32::NAN];
        let mut number = || if rng.chance(0.05) { wild[rng.below(2)] } else { rng.uniform() as f32 };
        let [e_key, e_val, e_arith, bound, tolerance, norm] = core::array::from_fn(|_| number());
        Certificate {
            e_key,
            e_val,
            e_arith,
            bound,
            tolerance,
            norm,
            status: rng.below(4) as u32,
            ..Certificate::default()
        }
    }

    /// The next step, in device memory.
    fn step(&mut self) -> Step {
        let heads = self.most * self.kv_heads * self.group;
        let seqs = self.rng.below(self.most + 1);
        let rule = [PublishRule::Packed, PublishRule::Certified, PublishRule::Certified, PublishRule::Dense]
            [self.rng.below(4)];
        let firsts: Vec<Certificate> = (0..2 * self.layers * heads).map(|_| self.certificate()).collect();
        let mut lists = vec![u32::MAX; 2 * self.layers * (1 + self.most * self.kv_heads)];
        for layer in lists.chunks_exact_mut(2 * (1 + self.most * self.kv_heads)) {
            let (repaired, dense) = layer.split_at_mut(1 + self.most * self.kv_heads);
            (repaired[0], dense[0]) = (0, 0);
            // In any order, as CTAs end.
            for id in (0..seqs * self.kv_heads).rev() {
                if self.rng.chance(0.3) {
                    repaired[0] += 1;
                    repaired[repaired[0] as usize] = id as u32;
                    if self.rng.chance(0.4) {
                        dense[0] += 1;
                        dense[dense[0] as usize] = id as u32;
                    }
                }
            }
        }
        let errors: Vec<u32> = (0..self.most).map(|_| u32::from(self.rng.chance(0.1))).collect();
        let mut rows: Vec<u32> = (0..self.most as u32).collect();
        for i in (1..rows.len()).rev() {
            rows.swap(i, self.rng.below(i + 1));
        }
        let words = |c: &Certificate| {
            let f = [c.e_key, c.e_val, c.e_arith, c.bound, c.tolerance, c.norm, c.radius, c.lse].map(f32::to_bits);
            [f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], c.status, c.rung, 0, 0]
        };
        self.certificates.write(0, &firsts.iter().flat_map(words).collect::<Vec<_>>());
        self.lists.write(0, &lists);
        self.errors.write(0, &errors);
        self.rows.write(0, &rows);
        let attended = (0..self.layers).map(|_| !self.rng.chance(0.2)).collect();
        let exact = (0..self.layers).map(|_| self.rng.chance(0.2)).collect();
        Step { seqs, rule, attended, exact, firsts, lists, errors, rows }
    }

    fn publish(&self, kernels: Emulated, step: &Step, ctas: u32, seed: u64) {
        let set = |yes: &[bool]| LayerSet::of(yes.iter().enumerate().filter(|(_, y)| **y).map(|(i, _)| i));
        let args = PublishArgs {
            certificates: self.certificates.pointer(),
            lists: self.lists.pointer(),
            errors: self.errors.pointer(),
            rows: self.rows.pointer(),
            ring: self.ring.pointer(),
            published: self.state.pointer(),
            arrived: self.state.pointer() + 8,
            heads_most: (self.most * self.kv_heads * self.group) as u64,
            list_words: (1 + self.most * self.kv_heads) as u64,
            slot_words: self.slots.stride() as u64,
            slots: self.slots.count() as u32,
            layers: self.layers as u32,
            seqs: step.seqs as u32,
            kv_heads: self.kv_heads as u32,
            group: self.group as u32,
            rule: step.rule as u32,
            attended: set(&step.attended),
            exact: set(&step.exact),
        };
        let all = [&self.certificates, &self.lists, &self.errors, &self.rows, &self.ring, &self.state];
        kernels
            .launch("ckv_publish", Launch::new(ctas, 256, 0).seed(seed), &args, &all)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// What the entry should say of a head, by the rules of `certkv::gpu::results`.
    fn want(&self, step: &Step, layer: usize, place: usize, head: usize) -> HeadWords {
        if !step.attended[layer] {
            return HeadWords { bound: 0.0, tolerance: 0.0, norm: 0.0, status: ABSENT, rung: 0 };
        }
        let (heads, q_heads) = (self.most * self.kv_heads * self.group, self.kv_heads * self.group);
        let list_words = 1 + self.most * self.kv_heads;
        let id = (place * self.kv_heads + head / self.group) as u32;
        let listed = |which: usize| {
            let list = &step.lists[(2 * layer + which) * list_words..][..list_words];
            list[1..1 + list[0] as usize].contains(&id)
        };
        let first = &step.firsts[2 * layer * heads + place * q_heads + head];
        let repaired = step.rule == PublishRule::Certified && !step.exact[layer] && listed(0);
        let c = if repaired { &step.firsts[(2 * layer + 1) * heads + place * q_heads + head] } else { first };
        let rung = match step.rule {
            PublishRule::Dense => 4,
            _ if !repaired => 0,
            _ if listed(1) => 3,
            _ => {
                if first.e_key >= first.e_val {
                    1
                } else {
                    2
                }
            }
        };
        let sound = c.bound.is_finite() && c.e_arith.is_finite();
        let status = match (step.rule, c.status) {
            _ if step.errors[step.rows[place] as usize] != 0 => 3,
            (PublishRule::Packed, _) => 0,
            (PublishRule::Certified, 1) if sound => 1,
            (_, 2) if sound => 2,
            _ => 3,
        };
        HeadWords { bound: c.bound, tolerance: c.tolerance, norm: c.norm, status, rung }
    }
}

fn bits(h: &HeadWords) -> (u32, u32, u32, u8, u8) {
    (h.bound.to_bits(), h.tolerance.to_bits(), h.norm.to_bits(), h.status, h.rung)
}

#[test]
fn entries_say_what_the_ladder_left() {
    let kernels = Emulated::build("publish.cu", &[]).unwrap_or_else(|e| panic!("{e}"));
    let (mut executed, mut caught, mut planted) = (0, 0, 0);
    for (seed, shape) in [(1, (3, 5, 2, 4)), (2, (1, 40, 8, 1)), (3, (40, 2, 1, 16)), (4, (2, 1, 3, 7))] {
        let mut world = World::new(seed, shape);
        let mut entry = Vec::new();
        for number in 0..8u64 {
            let step = world.step();
            let ctas = 1 + (number as u32 * 3) % 7;
            world.publish(kernels, &step, ctas, seed * 100 + number);
            let memory = Memory(world.ring.read());
            assert_eq!(Slots::published(&memory), number + 1);
            assert_eq!(world.state.read::<u64>(), [number + 1, 0]);
            let read = |number, into: &mut Vec<u64>| world.slots.read(&memory, number, into, ENTRY_HEAD, words_of);
            assert_eq!(read(number + 1, &mut entry), Err(Missed::NotYet));
            if number >= 3 {
                assert_eq!(read(number - 3, &mut entry), Err(Missed::Overwritten));
            }
            read(number, &mut entry).unwrap();
            let q_heads = world.kv_heads * world.group;
            assert_eq!(entry.len(), ENTRY_HEAD + 2 * world.layers * step.seqs * q_heads);
            for layer in 0..world.layers {
                for place in 0..step.seqs {
                    for head in 0..q_heads {
                        let (want, got) =
                            (world.want(&step, layer, place, head), head_of(&entry, layer, place, head).unwrap());
                        assert_eq!(bits(&want), bits(&got), "step {number}, layer {layer}, place {place}, head {head}");
                        executed += 1;
                    }
                }
            }
            // The same entry with one word of one head changed is not the same.
            if step.seqs > 0 {
                let at = ENTRY_HEAD + world.rng.below(entry.len() - ENTRY_HEAD);
                entry[at] ^= 1 << world.rng.below(64);
                planted += 1;
                let heads = (0..world.layers)
                    .flat_map(|l| (0..step.seqs * q_heads).map(move |i| (l, i / q_heads, i % q_heads)));
                caught += usize::from(heads.into_iter().any(|(l, p, h)| {
                    let state = entry[ENTRY_HEAD + ((l * step.seqs + p) * q_heads + h) * 2 + 1] >> 48;
                    state != 0
                        || head_of(&entry, l, p, h).is_none_or(|got| bits(&got) != bits(&world.want(&step, l, p, h)))
                }));
            }
        }
    }
    println!("GATE gpu-publish executed={executed} failed=0 controls={caught}/{planted} seed=0x1");
    assert!(executed > 3000 && caught == planted, "{executed} {caught} {planted}");
}
