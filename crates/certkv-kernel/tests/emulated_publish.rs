//! The kernel that publishes certificates, run on the emulator, against what its entries should say, read as the host reads them.
#[path = "emulated/mod.rs"]
mod emulated;
use certkv_device::mailbox::{Missed, Slots, Words};
use certkv_kernel::cuda::args::{Certificate, Draft};
use certkv_kernel::cuda::publish::{
    ABSENT, ENTRY_HEAD, HeadWords, LayerSet, MOST_LAUNCHES, PublishArgs, PublishRule, head_of, slots, words_of,
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

/// How a layer's launches leave their results: one launch for a batch, or several for drafts, each with room for some tokens of a sequence.
#[derive(Clone, Copy)]
struct Launches {
    count: usize,
    each: usize,
    drafts: bool,
}

/// A step's results as the ladder leaves them.
struct World {
    rng: Rng,
    layers: usize,
    most: usize,
    kv_heads: usize,
    group: usize,
    of: Launches,
    /// By layer and launch: two sets of certificates, two lists.
    left: Buffer,
    drafts: Buffer,
    errors: Buffer,
    rows: Buffer,
    ring: Buffer,
    state: Buffer,
    slots: Slots,
}

/// What is published of one step.
struct Step {
    /// Sequences, and places of the entry.
    seqs: usize,
    places: usize,
    rule: PublishRule,
    attended: Vec<bool>,
    exact: Vec<bool>,
    /// `[layer][launch][2][place][kv_head][each][group]`.
    firsts: Vec<Certificate>,
    /// `[layer][launch][2]`.
    lists: Vec<u32>,
    drafts: Vec<Draft>,
    errors: Vec<u32>,
    rows: Vec<u32>,
}

impl World {
    fn new(seed: u64, (layers, most, kv_heads, group): (usize, usize, usize, usize), of: Launches) -> Self {
        let tokens = most * if of.drafts { of.count * of.each } else { 1 };
        let slots = slots(3, layers, tokens, kv_heads * group).unwrap();
        let mut world = Self {
            rng: Rng::new(seed),
            layers,
            most,
            kv_heads,
            group,
            of,
            left: Buffer::zeroed(16),
            drafts: Buffer::zeroed(16 * of.count * most),
            errors: Buffer::zeroed(4 * most),
            rows: Buffer::zeroed(4 * tokens),
            ring: Buffer::zeroed(8 * slots.len()),
            state: Buffer::zeroed(16),
            slots,
        };
        world.left = Buffer::zeroed(layers * of.count * world.launch_bytes());
        world
    }

    /// Heads of a launch.
    fn columns(&self) -> usize {
        self.most * self.kv_heads * self.of.each * self.group
    }

    fn list_words(&self) -> usize {
        (1 + self.most * self.kv_heads).next_multiple_of(4)
    }

    fn launch_bytes(&self) -> usize {
        2 * (self.columns() * size_of::<Certificate>() + 4 * self.list_words())
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

    /// Drafts of `seqs` sequences by launch, and the rows of their tokens, which lie in another order than the sequences.
    fn told(&mut self, seqs: usize, rows: &[u32]) -> (Vec<Draft>, Vec<u32>) {
        let (Launches { count, each, .. }, most) = (self.of, self.most);
        let (mut drafts, mut tokens) = (vec![Draft::default(); count * most], Vec::new());
        for place in (0..seqs).rev() {
            let own = 1 + self.rng.below(count * each);
            for launch in 0..own.div_ceil(each) {
                let done = launch * each;
                drafts[launch * most + place] = Draft::new(9, each.min(own - done), tokens.len() + done);
            }
            tokens.extend(vec![rows[place]; own]);
        }
        (drafts, tokens)
    }

    /// The next step, in device memory.
    fn step(&mut self) -> Step {
        let seqs = self.rng.below(self.most + 1);
        let rule = [PublishRule::Packed, PublishRule::Certified, PublishRule::Certified, PublishRule::Dense]
            [self.rng.below(4)];
        let launches = self.layers * self.of.count;
        let firsts: Vec<Certificate> = (0..2 * launches * self.columns()).map(|_| self.certificate()).collect();
        let mut lists = vec![u32::MAX; 2 * launches * self.list_words()];
        for of_launch in lists.chunks_exact_mut(2 * self.list_words()) {
            let (repaired, dense) = of_launch.split_at_mut(self.list_words());
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
        let (drafts, rows) = if self.of.drafts { self.told(seqs, &rows) } else { (Vec::new(), rows) };
        let words = |c: &Certificate| {
            let f = [c.e_key, c.e_val, c.e_arith, c.bound, c.tolerance, c.norm, c.radius, c.lse].map(f32::to_bits);
            [f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], c.status, c.rung, 0, 0]
        };
        let of_launches = firsts.chunks_exact(2 * self.columns()).zip(lists.chunks_exact(2 * self.list_words()));
        let left = of_launches.flat_map(|(c, lists)| c.iter().flat_map(words).chain(lists.iter().copied()));
        self.left.write(0, &left.collect::<Vec<u32>>());
        self.errors.write(0, &errors);
        self.rows.write(0, &rows);
        self.drafts.write(0, &drafts.iter().flat_map(Draft::words).collect::<Vec<_>>());
        let attended = (0..self.layers).map(|_| !self.rng.chance(0.2)).collect();
        let exact = (0..self.layers).map(|_| self.rng.chance(0.2)).collect();
        let places = if self.of.drafts { rows.len() } else { seqs };
        Step { seqs, places, rule, attended, exact, firsts, lists, drafts, errors, rows }
    }

    fn publish(&self, kernels: Emulated, step: &Step, ctas: u32, seed: u64) {
        let set = |yes: &[bool]| LayerSet::of(yes.iter().enumerate().filter(|(_, y)| **y).map(|(i, _)| i));
        let certificates = (self.columns() * size_of::<Certificate>()) as u64;
        let layer = (self.of.count * self.launch_bytes()) as u64;
        let args = PublishArgs {
            certificates: self.left.pointer(),
            lists: self.left.pointer() + 2 * certificates,
            errors: self.errors.pointer(),
            rows: self.rows.pointer(),
            drafts: if self.of.drafts { self.drafts.pointer() } else { 0 },
            ring: self.ring.pointer(),
            published: self.state.pointer(),
            arrived: self.state.pointer() + 8,
            certificate_bytes: certificates,
            certificate_layer: layer,
            list_bytes: 4 * self.list_words() as u64,
            list_layer: layer,
            launch_bytes: self.launch_bytes() as u64,
            slot_words: self.slots.stride() as u64,
            slots: self.slots.count() as u32,
            layers: self.layers as u32,
            seqs: step.places as u32,
            kv_heads: self.kv_heads as u32,
            group: self.group as u32,
            rule: step.rule as u32,
            launches: self.of.count as u32,
            places: step.seqs as u32,
            drafts_most: self.most as u32,
            each: [self.of.each as u32; MOST_LAUNCHES],
            attended: set(&step.attended),
            exact: set(&step.exact),
        };
        let all = [&self.left, &self.drafts, &self.errors, &self.rows, &self.ring, &self.state];
        kernels
            .launch("ckv_publish", Launch::new(ctas, 256, 0).seed(seed), &args, &all)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// The launch, the place there and the token of its group that place `at` of the entry is.
    fn origin(&self, step: &Step, at: usize) -> (usize, usize, usize) {
        let found = |i: usize| {
            let d = &step.drafts[i];
            let token = at.checked_sub(d.row as usize).filter(|token| *token < d.count as usize)?;
            Some((i / self.most, i % self.most, token))
        };
        if self.of.drafts { (0..step.drafts.len()).find_map(found).expect("a draft's") } else { (0, at, 0) }
    }

    /// What the entry should say of a head, by the rules of `certkv::gpu::results`.
    fn want(&self, step: &Step, layer: usize, at: usize, head: usize) -> HeadWords {
        if !step.attended[layer] {
            return HeadWords { bound: 0.0, tolerance: 0.0, norm: 0.0, status: ABSENT, rung: 0 };
        }
        let (launch, place, token) = self.origin(step, at);
        let (of_launch, heads) = (2 * (layer * self.of.count + launch), self.columns());
        let id = place * self.kv_heads + head / self.group;
        let listed = |which: usize| {
            let list = &step.lists[(of_launch + which) * self.list_words()..][..self.list_words()];
            list[1..1 + list[0] as usize].contains(&(id as u32))
        };
        let column = (id * self.of.each + token) * self.group + head % self.group;
        let first = &step.firsts[of_launch * heads + column];
        let repaired = step.rule == PublishRule::Certified && !step.exact[layer] && listed(0);
        let c = if repaired { &step.firsts[(of_launch + 1) * heads + column] } else { first };
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
            _ if step.errors[step.rows[at] as usize] != 0 => 3,
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
    let batch = Launches { count: 1, each: 1, drafts: false };
    let drafts = |count, each| Launches { count, each, drafts: true };
    for (seed, shape, of) in [
        (1, (3, 5, 2, 4), batch),
        (2, (1, 40, 8, 1), batch),
        (3, (40, 2, 1, 16), batch),
        (4, (2, 1, 3, 7), batch),
        (5, (3, 5, 2, 4), drafts(2, 4)),
        (6, (2, 9, 1, 3), drafts(4, 2)),
        (7, (5, 3, 2, 1), drafts(1, 8)),
    ] {
        let mut world = World::new(seed, shape, of);
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
            assert_eq!(entry.len(), ENTRY_HEAD + 2 * world.layers * step.places * q_heads);
            for layer in 0..world.layers {
                for place in 0..step.places {
                    for head in 0..q_heads {
                        let (want, got) =
                            (world.want(&step, layer, place, head), head_of(&entry, layer, place, head).unwrap());
                        assert_eq!(bits(&want), bits(&got), "step {number}, layer {layer}, place {place}, head {head}");
                        executed += 1;
                    }
                }
            }
            // The same entry with one word of one head changed is not the same.
            if step.places > 0 {
                let at = ENTRY_HEAD + world.rng.below(entry.len() - ENTRY_HEAD);
                entry[at] ^= 1 << world.rng.below(64);
                planted += 1;
                let heads = (0..world.layers)
                    .flat_map(|l| (0..step.places * q_heads).map(move |i| (l, i / q_heads, i % q_heads)));
                caught += usize::from(heads.into_iter().any(|(l, p, h)| {
                    let state = entry[ENTRY_HEAD + ((l * step.places + p) * q_heads + h) * 2 + 1] >> 48;
                    state != 0
                        || head_of(&entry, l, p, h).is_none_or(|got| bits(&got) != bits(&world.want(&step, l, p, h)))
                }));
            }
        }
    }
    println!("GATE gpu-publish executed={executed} failed=0 controls={caught}/{planted} seed=0x1");
    assert!(executed > 5000 && caught == planted, "{executed} {caught} {planted}");
}
