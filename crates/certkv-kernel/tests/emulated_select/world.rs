//! A layer as select sees it: made-up masses and summaries, tables, scratch, and the rules the state has to obey.
use crate::emulated::{Buffer, Emulated, Launch};
use certkv_kernel::cuda::args::{Certificate, Draft, MassWord, Sides};
use certkv_kernel::cuda::select::{CopyItem, LevelRecords, NO_PAGE, SelectArgs, SelectMode, SelectStats, SlotPool};
use certkv_testkit::generate::Rng;
use std::collections::BTreeMap;

pub(crate) const BLOCK: usize = 32;
pub(crate) const DIM: usize = 64;
pub(crate) const SIDE: u64 = (BLOCK * DIM * 2) as u64;
const RECORD: u64 = 256;
const SUMMARY: u64 = 128;
const HOST_BASE: u64 = 1 << 40;
const KEY_BASE: u64 = 1 << 44;
const VALUE_BASE: u64 = 1 << 45;

pub(crate) fn kernel(group: usize) -> Emulated {
    build(group, false)
}

/// `levelled`: for records that lie by level.
pub(crate) fn build(group: usize, levelled: bool) -> Emulated {
    let macros = [
        ("CKV_LEVEL", i64::from(levelled)),
        ("CKV_DIM", DIM as i64),
        ("CKV_BLOCK", BLOCK as i64),
        ("CKV_GROUP", group as i64),
        ("CKV_STORE", 0),
        ("CKV_KEY", 1),
        ("CKV_VALUE", 1),
        ("CKV_SUMMARY", SUMMARY as i64),
        ("CKV_KEY_REFINE", 0),
        ("CKV_WINDOW", 0),
        ("CKV_FOLD", 0),
        ("CKV_GROUPED", 0),
    ];
    Emulated::build("select.cu", &macros).unwrap_or_else(|e| panic!("{e}"))
}

/// How a batch is made.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) group: usize,
    pub(crate) kv_heads: usize,
    pub(crate) lens: Vec<usize>,
    /// Sequences after the first share its blocks as far as they go.
    pub(crate) forked: bool,
    /// Standard deviation of a block's log2-mass, and of a head's beside it.
    pub(crate) spread: (f64, f64),
    /// Share of sides without codes.
    pub(crate) uncoded: f64,
    pub(crate) tolerance: f64,
    pub(crate) slots: [usize; 2],
    pub(crate) capacity: usize,
    pub(crate) seed: u64,
}

impl Plan {
    pub(crate) fn new(group: usize, lens: &[usize]) -> Self {
        Self {
            group,
            kv_heads: 2,
            lens: lens.to_vec(),
            forked: false,
            spread: (2.0, 0.7),
            uncoded: 0.0,
            tolerance: 0.05,
            slots: [4096, 4096],
            capacity: 4096,
            seed: 1,
        }
    }
}

/// One batch in memory. Sequence `s` of the batch is row `seqs - 1 - s`.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) args: SelectArgs,
    pub(crate) table: Vec<u32>,
    pub(crate) stride: usize,
    pub(crate) pages: usize,
    packed: Buffer,
    pub(crate) masses: Buffer,
    pub(crate) certificates: Buffer,
    pub(crate) promoted: Buffer,
    pub(crate) sides: Buffer,
    pub(crate) resident: Buffer,
    pub(crate) owners: [Buffer; 2],
    pub(crate) stamps: [Buffer; 2],
    pub(crate) copies: Buffer,
    pub(crate) queue: Buffer,
    pub(crate) stats: Buffer,
    pub(crate) only: Buffer,
    step: Buffer,
    /// Tables, lengths and what tests add, as launches have them.
    pub(crate) rest: Vec<Buffer>,
    /// What lies at each slot's address: the item copied there.
    pub(crate) content: BTreeMap<u64, u32>,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let (seqs, heads) = (plan.lens.len(), plan.kv_heads);
        let stride = plan.lens.iter().max().unwrap() / BLOCK + 1;
        let mut r = Rng::new(plan.seed ^ 0x5e1ec7);
        let (mut table, mut pages) = (vec![u32::MAX; seqs * stride], 0);
        for s in 0..seqs {
            for j in 0..plan.lens[s] / BLOCK {
                let shared = plan.forked && s > 0 && j < plan.lens[0] / BLOCK;
                let page = if shared { table[(seqs - 1) * stride + j] } else { pages };
                pages = pages.max(page + 1);
                table[(seqs - 1 - s) * stride + j] = page;
            }
        }
        let pages = pages.max(1) as usize;
        let hosts: Vec<u32> = table.iter().map(|p| if *p == u32::MAX { NO_PAGE } else { 7 + *p }).collect();
        let (items, words) = (pages * heads, seqs * heads * stride);
        let mut rest = vec![Buffer::of(&table), Buffer::of(&hosts)];
        rest.push(Buffer::of(&(0..seqs as u32).rev().collect::<Vec<_>>()));
        rest.push(Buffer::of(&plan.lens.iter().rev().map(|n| *n as u32).collect::<Vec<_>>()));
        rest.push(Buffer::zeroed(8));
        rest.push(Buffer::zeroed((7 + pages) * heads * size_of::<Sides>()));
        let world = Self {
            packed: Buffer::zeroed(items * RECORD as usize),
            masses: Buffer::of(&vec![u32::MAX; words * plan.group]),
            certificates: Buffer::zeroed(seqs * heads * plan.group * size_of::<Certificate>()),
            promoted: Buffer::zeroed(words * 4),
            sides: Buffer::zeroed(2 * items * size_of::<Sides>()),
            resident: Buffer::zeroed(items * 8),
            owners: plan.slots.map(|n| Buffer::zeroed(n * 4)),
            stamps: plan.slots.map(|n| Buffer::zeroed(n * 4)),
            copies: Buffer::zeroed(plan.capacity.max(1) * size_of::<CopyItem>()),
            queue: Buffer::zeroed(8),
            stats: Buffer::zeroed(SelectStats::WORDS * 4),
            only: Buffer::zeroed((1 + seqs * heads + pages) * 4),
            step: Buffer::of(&[1u32]),
            args: SelectArgs::default(),
            content: BTreeMap::new(),
            table,
            stride,
            pages,
            rest,
            plan,
        };
        let mut world = world;
        world.args = world.arguments();
        world.tell(|_| false);
        for item in 0..items {
            let gone = [r.chance(world.plan.uncoded), r.chance(world.plan.uncoded)];
            let eta = 0.1 * (0.5 * r.normal()).exp();
            let mut s = [0.05, 0.05, 8.0, 8.0, eta, 0.3 * eta, 2.0 + r.uniform(), 3.0].map(|x: f64| x as f32);
            if gone[0] {
                s[0] = f32::INFINITY;
            }
            if gone[1] {
                s[4] = f32::INFINITY;
            }
            world.packed.write(item * RECORD as usize + SUMMARY as usize, &s);
        }
        world.draw(&mut r);
        world
    }

    /// Records of the pages from `first` on lie elsewhere from now on, as another level has them: longer ones, with their summaries in another place. Where they lay is
    /// what no block has.
    pub(crate) fn in_levels(&mut self, first: u32) {
        const OTHER: u64 = 384;
        let (heads, pages) = (self.plan.kv_heads, self.pages as u32);
        let (old, page_stride) = (self.packed.read::<u8>(), OTHER * heads as u64 + 64);
        let other = Buffer::zeroed(((pages - first) as u64 * page_stride).max(1) as usize);
        for (page, head) in (first..pages).flat_map(|page| (0..heads).map(move |head| (page, head))) {
            let from = (page as usize * heads + head) * RECORD as usize + SUMMARY as usize;
            let to = u64::from(page - first) * page_stride + head as u64 * OTHER + 16;
            other.write(to as usize, &old[from..from + 32]);
            self.packed.write(from, &[f32::INFINITY; 8]);
        }
        let of = |packed, page_stride, head_stride, first, summary| LevelRecords {
            packed,
            page_stride,
            head_stride,
            first,
            summary,
            unused: 0,
        };
        let levels = [
            of(self.packed.pointer(), self.args.page_stride, RECORD as u32, 0, SUMMARY as u32),
            of(other.pointer(), page_stride, OTHER as u32, first, 16),
        ];
        let words: Vec<u64> = levels.iter().flat_map(LevelRecords::words).collect();
        let list = Buffer::of(&words);
        (self.args.levels, self.args.level_count) = (list.pointer(), 2);
        self.rest.extend([other, list]);
    }

    fn arguments(&self) -> SelectArgs {
        let pool = |side: usize| SlotPool {
            base: [KEY_BASE, VALUE_BASE][side],
            owner: self.owners[side].pointer(),
            stamp: self.stamps[side].pointer(),
            hand: self.rest[4].pointer() + 4 * side as u64,
            count: self.plan.slots[side] as u32,
            unused: 0,
        };
        SelectArgs {
            packed: self.packed.pointer(),
            page_stride: RECORD * self.plan.kv_heads as u64,
            head_stride: RECORD,
            rows: self.rest[2].pointer(),
            table: self.rest[0].pointer(),
            lens: self.rest[3].pointer(),
            certificates: self.certificates.pointer(),
            masses: self.masses.pointer(),
            only: self.only.pointer(),
            promoted: self.promoted.pointer(),
            sides: self.sides.pointer(),
            resident: self.resident.pointer(),
            keys: pool(0),
            values: pool(1),
            hosts: self.rest[1].pointer(),
            originals: self.rest[5].pointer(),
            copies: self.copies.pointer(),
            queue: self.queue.pointer(),
            step: self.step.pointer(),
            stats: self.stats.pointer(),
            clear: [0; 4],
            mode: SelectMode::Plan as u32,
            seqs: self.plan.lens.len() as u32,
            kv_heads: self.plan.kv_heads as u32,
            table_stride: self.stride as u32,
            pages: self.pages as u32,
            capacity: self.plan.capacity as u32,
            target: 0.9,
            progress: 8,
            ..SelectArgs::default()
        }
    }

    /// Tells launches where each side of originals is, `[host page][head][side]`: nowhere if it is `gone`, by item.
    pub(crate) fn tell(&mut self, gone: impl Fn(usize) -> bool) {
        let first = 7 * 2 * self.plan.kv_heads;
        let address = |at: usize| HOST_BASE + at as u64 * SIDE;
        let all = (0..first + self.pages * 2 * self.plan.kv_heads)
            .map(|at| if at < first || gone(at - first) { 0 } else { address(at) });
        self.rest[5].write(0, &all.collect::<Vec<u64>>());
    }

    /// New masses and certificates.
    pub(crate) fn draw(&mut self, r: &mut Rng) {
        let (p, seqs) = (self.plan.clone(), self.plan.lens.len());
        let mut masses = vec![u32::MAX; seqs * p.kv_heads * self.stride * p.group];
        let mut certificates = Vec::new();
        for s in 0..seqs {
            let row = seqs - 1 - s;
            for h in 0..p.kv_heads {
                let line = (row * p.kv_heads + h) * self.stride;
                let mut total = vec![(0.05 * p.lens[s] as f64 + 0.01) * 2f64.powi(4); p.group];
                for j in 0..p.lens[s] / BLOCK {
                    let (base, share) = (6.0 + p.spread.0 * r.normal(), -5.0 + 0.7 * r.normal());
                    for (g, total) in total.iter_mut().enumerate() {
                        let mass = base + p.spread.1 * r.normal();
                        *total += mass.exp2();
                        let (mass, share) =
                            (((mass + 512.0) * 32.0) as u32, ((share + 0.3 * r.normal() + 32.0) * 64.0) as u32);
                        masses[(line + j) * p.group + g] =
                            if r.chance(0.01) { 0 } else { mass << 17 | share << 5 | r.below(20) as u32 };
                    }
                }
                certificates.extend(total.iter().map(|total| Certificate {
                    tolerance: (p.tolerance * (0.8 + 0.4 * r.uniform())) as f32,
                    norm: 1.0,
                    radius: 1.2,
                    lse: total.ln() as f32,
                    ..Certificate::default()
                }));
            }
        }
        self.masses.write(0, &masses);
        self.certify(&certificates);
    }

    pub(crate) fn certify(&self, certificates: &[Certificate]) {
        let words: Vec<u32> = certificates
            .iter()
            .flat_map(|c| {
                [c.e_key, c.e_val, c.e_arith, c.bound, c.tolerance, c.norm, c.radius, c.lse]
                    .map(f32::to_bits)
                    .into_iter()
                    .chain([0; 4])
            })
            .collect();
        self.certificates.write(0, &words);
    }

    pub(crate) fn certificate(&self, entry: usize, g: usize) -> Certificate {
        let words = self.certificates.read::<u32>();
        Certificate::from_words(&words.as_chunks().0[entry * self.plan.group + g])
    }

    pub(crate) fn set_certificate(&self, entry: usize, g: usize, c: Certificate) {
        let mut all: Vec<Certificate> =
            self.certificates.read::<u32>().as_chunks().0.iter().map(Certificate::from_words).collect();
        all[entry * self.plan.group + g] = c;
        self.certify(&all);
    }

    /// A token more in every sequence, and blocks that it fills still in their tails.
    pub(crate) fn grow(&mut self) {
        self.rest[3].write(0, &self.plan.lens.iter().rev().map(|n| *n as u32 + 1).collect::<Vec<_>>());
        self.args.closing = 1;
    }

    /// A draft of so many tokens more in every sequence, and a block that it fills before its last token in a tail of its own, or so the launch is `told`.
    pub(crate) fn grow_by(&mut self, tokens: usize, told: bool) {
        let lens = &self.plan.lens;
        self.rest[3].write(0, &lens.iter().rev().map(|n| (n + tokens) as u32).collect::<Vec<_>>());
        let tail = |n: usize| if told && n / BLOCK < (n + tokens - 1) / BLOCK { 3 } else { 0 };
        let drafts = lens.iter().flat_map(|n| Draft { tail: tail(*n), ..Draft::new(n + 1, tokens, 0) }.words());
        self.rest.push(Buffer::of(&drafts.collect::<Vec<_>>()));
        self.args.closing = 1;
        self.args.drafts = self.rest.last().expect("drafts").pointer();
    }

    pub(crate) fn set_step(&self, step: u32) {
        self.step.write(0, &[step]);
    }

    pub(crate) fn launch(&self, kernel: &Emulated, args: SelectArgs, grid: u32, seed: u64) {
        let mut all = vec![
            &self.packed,
            &self.masses,
            &self.certificates,
            &self.promoted,
            &self.sides,
            &self.resident,
            &self.copies,
            &self.queue,
            &self.stats,
            &self.only,
            &self.step,
        ];
        all.extend(self.owners.iter().chain(&self.stamps).chain(&self.rest));
        let how = Launch::new(grid, 256, 0).seed(seed);
        kernel.launch("ckv_select", how, &args, &all).unwrap_or_else(|e| panic!("{:?}: {e}", self.plan));
    }

    pub(crate) fn plan_step(&self, kernel: &Emulated, grid: u32, seed: u64) {
        self.launch(kernel, self.args, grid, seed);
    }

    pub(crate) fn repair(&self, kernel: &Emulated, entries: &[u32], target: f32, grid: u32, seed: u64) {
        let mut list = vec![entries.len() as u32];
        list.extend(entries);
        self.only.write(0, &list);
        self.launch(kernel, SelectArgs { mode: SelectMode::Repair as u32, target, ..self.args }, grid, seed);
    }

    /// Row of a launch's entry, its KV head, its blocks.
    pub(crate) fn place(&self, entry: usize) -> (usize, usize, usize) {
        let seqs = self.plan.lens.len();
        let (s, h) = (entry / self.plan.kv_heads, entry % self.plan.kv_heads);
        (seqs - 1 - s, h, self.plan.lens[s] / BLOCK)
    }

    pub(crate) fn entries(&self) -> usize {
        self.plan.lens.len() * self.plan.kv_heads
    }

    /// The words of an entry's blocks.
    pub(crate) fn words(&self, entry: usize) -> Vec<u32> {
        let (row, h, blocks) = self.place(entry);
        let at = (row * self.plan.kv_heads + h) * self.stride;
        self.promoted.read::<u32>()[at..at + blocks].to_vec()
    }

    /// Number of an entry's block side in `resident`.
    pub(crate) fn item(&self, entry: usize, block: usize, side: usize) -> usize {
        let (row, h, _) = self.place(entry);
        (self.table[row * self.stride + block] as usize * self.plan.kv_heads + h) * 2 + side
    }

    pub(crate) fn all_sides(&self) -> Vec<u64> {
        self.sides.read()
    }

    /// Share of each head's target that each side costs, `[2 block + side][head]`, and whether the side has codes.
    pub(crate) fn shares(&self, entry: usize, target: f64) -> Vec<(Vec<f64>, bool)> {
        let (row, h, blocks) = self.place(entry);
        let (p, masses) = (&self.plan, self.masses.read::<u32>());
        let packed = self.packed.read::<f32>();
        let mut out = Vec::new();
        for j in 0..blocks {
            let item = self.item(entry, j, 0) / 2;
            let s = &packed[item * RECORD as usize / 4 + SUMMARY as usize / 4..][..8];
            for side in 0..2 {
                let mut of = Vec::new();
                for g in 0..p.group {
                    let c = self.certificate(entry, g);
                    let word = MassWord(masses[((row * p.kv_heads + h) * self.stride + j) * p.group + g]);
                    let exp2 = |x: Option<f32>| x.map_or(0.0, |x| f64::from(x).exp2());
                    let mass = exp2(word.log2_mass()) * (-f64::from(c.lse) / std::f64::consts::LN_2).exp2();
                    let term = if side == 0 {
                        mass * exp2(word.log2_share()) * f64::from(s[6] + c.radius + c.tolerance)
                    } else {
                        mass * f64::from(s[4]).min(f64::from(s[5]) * exp2(word.log2_evenness()))
                    };
                    of.push(term / (target * f64::from(c.tolerance)));
                }
                out.push((of, if side == 0 { s[0].is_finite() && s[1].is_finite() } else { s[4].is_finite() }));
            }
        }
        out
    }

    /// Writes lengths, in the order of the batch.
    pub(crate) fn set_lens(&self, lens: &[usize]) {
        self.rest[3].write(0, &lens.iter().rev().map(|n| *n as u32).collect::<Vec<_>>());
    }

    /// Writes the page of a block, and where its originals are.
    pub(crate) fn set_page(&mut self, row: usize, block: usize, page: u32) {
        let at = row * self.stride + block;
        self.table[at] = page;
        self.rest[0].write(4 * at, &[page]);
        self.rest[1].write(4 * at, &[7 + page]);
    }

    /// Does the copies on the list, and empties it.
    pub(crate) fn gather(&mut self) -> usize {
        let count = self.queue.read::<u32>()[0] as usize;
        assert!(count <= self.plan.capacity, "{count} copies on a list of {}", self.plan.capacity);
        let mut done = 0;
        for c in self.copies.read::<u64>().as_chunks::<4>().0.iter().take(count) {
            let c = CopyItem { from: c[0], to: c[1], bytes: c[2], mark: c[3] };
            if c.bytes == 0 {
                continue;
            }
            assert_eq!((c.bytes, c.mark), (SIDE, 0));
            let at = (c.from - HOST_BASE) / SIDE;
            self.content.insert(c.to, (at - 14 * self.plan.kv_heads as u64) as u32);
            done += 1;
        }
        self.queue.write(0, &[0u32, 0]);
        done
    }

    /// After the copies: every address leads to its own item, and slots and items agree. Returns what is wrong.
    pub(crate) fn inconsistencies(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let (resident, sides) = (self.resident.read::<u32>(), self.all_sides());
        let mut slots_used = 0;
        for (item, slot) in resident.iter().enumerate() {
            let side = item % 2;
            let address = [KEY_BASE, VALUE_BASE][side] + u64::from(slot.saturating_sub(1)) * SIDE;
            if *slot == 0 {
                if sides[item] != 0 {
                    wrong.push(format!("item {item} has no slot and the address {:x}", sides[item]));
                }
                continue;
            }
            slots_used += 1;
            if *slot as usize > self.plan.slots[side] {
                wrong.push(format!("item {item} in slot {slot}"));
                continue;
            }
            if self.owners[side].read::<u32>()[*slot as usize - 1] != 1 + item as u32 {
                wrong.push(format!("item {item} does not own slot {slot}"));
            }
            if sides[item] != address {
                wrong.push(format!("item {item} in slot {slot} has the address {:x}", sides[item]));
            }
            if self.content.get(&address) != Some(&(item as u32)) {
                wrong.push(format!("slot {slot} holds {:?}, not {item}", self.content.get(&address)));
            }
        }
        let owned: usize = self.owners.iter().map(|o| o.read::<u32>().iter().filter(|x| **x != 0).count()).sum();
        if owned != slots_used {
            wrong.push(format!("{owned} slots have owners, {slots_used} items have slots"));
        }
        wrong
    }

    pub(crate) fn counted(&self) -> SelectStats {
        SelectStats::from_words(&self.stats.read::<u32>().try_into().unwrap())
    }
}
