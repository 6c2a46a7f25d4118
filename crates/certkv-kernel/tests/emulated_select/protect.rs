//! Blocks that are read as originals whatever was measured: which they are, that their places hold what is theirs, and that plans and repairs leave them
//! alone.
use crate::emulated::{Buffer, Emulated, Launch};
use crate::world::{BLOCK, Plan, SIDE, World, kernel};
use certkv_kernel::cuda::protect::{ProtectArgs, ProtectLayer};
use certkv_kernel::cuda::select::{ROW_ENTRY, SelectArgs, SelectMode};
use certkv_testkit::generate::Rng;

/// A world whose originals are there to be copied.
struct Ward {
    w: World,
    sinks: usize,
    recent: usize,
    places: usize,
    originals: usize,
    copies: usize,
    held: usize,
    /// What queries see: newest tokens, and first ones.
    window: Option<[usize; 2]>,
    kernel: Emulated,
}

impl Ward {
    fn new(plan: Plan, sinks: usize, recent: usize) -> Self {
        let mut w = World::new(plan);
        let newest = if recent == 0 { 0 } else { (recent - 1).div_ceil(BLOCK) + 1 };
        let (first, heads) = (sinks.div_ceil(BLOCK).min(w.stride), w.plan.kv_heads);
        let places = first + newest.min(w.stride);
        let (rows, items, pages) = (w.plan.lens.len(), w.pages * heads, 7 + w.pages);
        let (held, copies) = (Buffer::zeroed(rows * heads * places * 8), rows * heads * places * 2 * SIDE as usize);
        let (copies, originals) = (Buffer::zeroed(copies), Buffer::zeroed(pages * heads * 2 * SIDE as usize));
        // Every side has words that say whose they are, and where in it.
        let words = (0..originals.read::<u32>().len()).map(|at| at as u32 + 1).collect::<Vec<_>>();
        originals.write(0, &words);
        let address = |at: usize| originals.pointer() + at as u64 * SIDE;
        let named = (0..pages * heads * 2).map(address).collect::<Vec<_>>();
        w.rest[5].write(0, &named);
        let mut sides = vec![0u64; 4 * items];
        sides.extend((0..2 * rows * heads * places).map(|at| copies.pointer() + at as u64 * SIDE));
        w.sides = Buffer::of(&sides);
        let at = w.rest.len();
        w.args = SelectArgs { sides: w.sides.pointer(), held: held.pointer(), places: places as u32, ..w.args };
        w.rest.extend([held, copies, originals]);
        let kernel = Emulated::build("protect.cu", &[]).unwrap_or_else(|e| panic!("{e}"));
        Self { w, sinks, recent, places, held: at, copies: at + 1, originals: at + 2, window: None, kernel }
    }

    /// Protects in sequences of so many tokens; `alone`: nothing else is promoted.
    fn protect(&self, lens: &[usize], alone: bool, seed: u64) {
        self.w.set_lens(lens);
        self.protect_with(self.w.args.lens, alone, seed);
    }

    /// The same where these lengths say which blocks have records.
    fn protect_with(&self, recorded: u64, alone: bool, seed: u64) {
        let w = &self.w;
        let [window, sinks] = self.window.map_or([u32::MAX, 0], |w| w.map(|n| n as u32));
        let first = self.first();
        let layer = ProtectLayer {
            table: w.args.table,
            hosts: w.args.hosts,
            originals: w.args.originals,
            promoted: w.args.promoted,
            places: w.args.sides + 16 * u64::from(first),
            held: w.args.held,
            stats: w.args.stats,
            first,
            window,
            sinks,
            unused: 0,
        };
        let mut args = ProtectArgs {
            rows: w.args.rows,
            lens: w.args.lens,
            recorded,
            seqs: w.args.seqs,
            kv_heads: w.args.kv_heads,
            stride: w.args.table_stride,
            block: BLOCK as u32,
            side_bytes: SIDE as u32,
            places: w.args.places,
            protect_sinks: self.sinks.min(w.stride * BLOCK) as u32,
            protect_recent: self.recent.min(w.stride * BLOCK) as u32,
            alone: u32::from(alone),
            layers: 1,
            ..ProtectArgs::default()
        };
        args.of[0] = layer;
        let how = Launch::new(1 + seed as u32 % 5, 128, 0).seed(seed);
        let buffers: Vec<_> = [&w.promoted, &w.sides, &w.stats].into_iter().chain(&w.rest).collect();
        self.kernel.launch("ckv_protect", how, &args, &buffers).unwrap_or_else(|e| panic!("{:?}: {e}", w.plan));
    }

    fn launch(&self, kernel: &Emulated, mode: SelectMode, seed: u64) {
        let args = SelectArgs { mode: mode as u32, ..self.w.args };
        self.w.launch(kernel, args, 1 + seed as u32 % 5, seed);
    }

    /// The first word of a protected block.
    fn first(&self) -> u32 {
        (2 * self.w.pages * self.w.plan.kv_heads) as u32
    }

    /// What is wrong in sequences of so many tokens: blocks that are protected and not promoted to a place with their originals, and others that are.
    fn wrong(&self, lens: &[usize]) -> usize {
        let (w, heads) = (&self.w, self.w.plan.kv_heads);
        let (sides, copies) = (w.all_sides(), self.w.rest[self.copies].read::<u32>());
        let (promoted, originals) = (w.promoted.read::<u32>(), w.rest[self.originals].read::<u32>());
        let (base, each) = (w.rest[self.copies].pointer(), SIDE as usize / 4);
        let mut wrong = 0;
        for entry in 0..w.entries() {
            let (row, h, _) = w.place(entry);
            let seen = lens[entry / heads] + 1;
            let sees = |t: usize| self.window.is_none_or(|[tokens, sinks]| t < sinks || t + tokens > seen - 1);
            for block in (0..(seen - 1) / BLOCK).filter(|block| (block * BLOCK..(block + 1) * BLOCK).any(sees)) {
                let word = promoted[(row * heads + h) * w.stride + block];
                let tokens = block * BLOCK..(block + 1) * BLOCK;
                let protected = tokens.into_iter().any(|t| t < self.sinks || t + self.recent > seen - 1);
                if (word > self.first()) != protected {
                    wrong += 1;
                }
                if word <= self.first() || !protected {
                    continue;
                }
                let host = 7 + w.table[row * w.stride + block] as usize;
                for side in 0..2 {
                    let at = (sides[2 * (word as usize - 1) + side] - base) as usize / 4;
                    let from = ((host * heads + h) * 2 + side) * each;
                    wrong += usize::from(copies[at..at + each] != originals[from..from + each]);
                }
            }
        }
        wrong
    }

    fn held(&self) -> Vec<u32> {
        self.w.rest[self.held].read()
    }
}

#[test]
fn what_is_protected_lies_in_its_places() {
    let (mut executed, mut failed, mut caught) = (0, 0, 0);
    let windows = [None, Some([100, 0]), Some([70, 37])];
    for (seed, (sinks, recent)) in
        [(4, 128), (0, 1), (33, 0), (64, 70), (1, 33), (100, 5000), (5000, 2)].into_iter().enumerate()
    {
        for (forked, window) in [false, true].into_iter().flat_map(|forked| windows.map(|window| (forked, window))) {
            let start = [9 * BLOCK + 5, 12 * BLOCK, 3 * BLOCK + 31];
            let room = start.map(|n| n + 3 * BLOCK);
            let mut ward = Ward::new(Plan { forked, ..Plan::new(4, &room) }, sinks, recent);
            ward.window = window;
            let mut copied = 0;
            for grown in 0..70usize {
                let lens = start.map(|n| n + grown);
                ward.protect(&lens, grown % 3 != 0, (grown + seed) as u64);
                failed += ward.wrong(&lens);
                executed += 1;
                let now = ward.w.counted();
                // A block is brought once; in most steps nothing is.
                if grown > 0 && window.is_none() && lens.iter().all(|n| n % BLOCK != 0) {
                    assert_eq!(now.copies, copied, "{sinks}, {recent}, step {grown}");
                }
                (copied, _) = (now.copies, assert_eq!(now.refused, 0));
            }
            // Controls: a place that was overwritten, or where nothing is protected just now a word that says so.
            let (lens, w) = (start.map(|n| n + 69), &ward.w);
            let words = (0..w.entries()).flat_map(|entry| w.words(entry)).filter(|word| *word > ward.first());
            match words.max() {
                Some(word) => {
                    let place = (word - 1 - ward.first()) as usize;
                    w.rest[ward.copies].write(2 * place * SIDE as usize, &[0u32]);
                }
                None => {
                    let (row, h, _) = w.place(0);
                    let last = (row * w.plan.kv_heads + h) * w.stride + lens[0] / BLOCK - 1;
                    w.promoted.write(4 * last, &[ward.first() + 1]);
                }
            }
            caught += usize::from(ward.wrong(&lens) > 0);
        }
    }
    println!("GATE gpu-protect executed={executed} failed={failed} controls={caught}/42 seed=0x0");
    assert_eq!((failed, caught), (0, 42));
}

/// A block that the step has filled and that has its record already is protected with the others, and none of those less.
#[test]
fn blocks_that_a_step_fills_are_protected_where_they_have_records() {
    let mut ward = Ward::new(Plan::new(1, &[8 * BLOCK]), 4, 2 * BLOCK + 8);
    ward.w.set_lens(&[7 * BLOCK - 3]);
    ward.w.rest.push(Buffer::of(&[7 * BLOCK as u32 + 4]));
    let recorded = ward.w.rest.last().unwrap().pointer();
    let protected = |ward: &Ward| -> Vec<usize> {
        let words = ward.w.promoted.read::<u32>();
        (0..ward.w.stride).filter(|block| words[*block] > ward.first()).collect()
    };
    ward.protect_with(ward.w.args.lens, true, 1);
    assert_eq!(protected(&ward), [0, 4, 5]);
    ward.protect_with(recorded, true, 2);
    assert_eq!(protected(&ward), [0, 4, 5, 6]);
}

/// Plans and repairs promote others as ever and leave the protected blocks where they are; alone, everything else is on codes again.
#[test]
fn plans_and_repairs_leave_protected_blocks_alone() {
    let kernel = kernel(4);
    let lens = [40 * BLOCK, 70 * BLOCK + 3];
    let mut ward = Ward::new(Plan { tolerance: 0.02, ..Plan::new(4, &lens) }, 4, 96);
    let mut r = Rng::new(9);
    let mut others = 0;
    for step in 1..8 {
        ward.w.set_step(step);
        ward.protect(&lens, false, u64::from(step));
        assert_eq!(ward.wrong(&lens), 0);
        let before = ward.held();
        ward.w.repair(&kernel, &[0, 3], 0.5, 2, u64::from(step));
        assert_eq!(ward.wrong(&lens), 0, "a repair");
        ward.w.plan_step(&kernel, 3, u64::from(step) + 50);
        assert_eq!(ward.wrong(&lens), 0, "a plan");
        assert_eq!(before, ward.held());
        ward.w.queue.write(0, &[0u32, 0]);
        let words = ward.w.promoted.read::<u32>();
        others += words.iter().filter(|word| **word != 0 && **word <= ward.first()).count();
        ward.w.draw(&mut r);
    }
    assert!(others > 20, "{others}");
    ward.protect(&lens, true, 4);
    assert_eq!(ward.wrong(&lens), 0);
    let words = ward.w.promoted.read::<u32>();
    assert_eq!(words.iter().filter(|word| **word != 0 && **word <= ward.first()).count(), 0);
}

/// A block in another page is brought anew, as is everything of a row that is forgotten; what is out of reach stays on codes until it is not.
#[test]
fn places_follow_their_pages_and_rows() {
    let kernel = kernel(1);
    let lens = [8 * BLOCK + 3, 8 * BLOCK + 9];
    let mut ward = Ward::new(Plan::new(1, &lens), 4, 64);
    ward.protect(&lens, true, 1);
    assert_eq!(ward.wrong(&lens), 0);
    // The last block of the sequence in row 1 moves to a page of the other's.
    ward.w.set_page(1, 7, ward.w.table[2]);
    assert!(ward.wrong(&lens) > 0, "not looked at");
    ward.protect(&lens, true, 2);
    assert_eq!(ward.wrong(&lens), 0);
    // Forgotten: words and what is held, of that row alone. Erased: its memory, too.
    for (mode, seed) in [(SelectMode::Forget, 3), (SelectMode::Erase, 4)] {
        ward.w.only.write(0, &[1u32, ROW_ENTRY | 1]);
        ward.launch(&kernel, mode, seed);
        let half = ward.w.plan.kv_heads * ward.places * 2;
        let held = ward.held();
        assert!(held[half..].iter().all(|word| *word == 0) && held[..half].iter().any(|word| *word != 0));
        let copies = ward.w.rest[ward.copies].read::<u32>();
        let erased = copies[copies.len() / 2..].iter().all(|word| *word == 0);
        assert_eq!(erased, mode == SelectMode::Erase);
        assert!(copies[..copies.len() / 2].iter().any(|word| *word != 0));
        ward.protect(&lens, true, seed);
        assert_eq!(ward.wrong(&lens), 0);
    }
    let named = ward.w.rest[5].read::<u64>();
    let host = 7 + ward.w.table[ward.w.stride + 7] as usize;
    ward.w.rest[5].write(host * ward.w.plan.kv_heads * 16, &[0u64, 0]);
    ward.w.only.write(0, &[1u32, ROW_ENTRY | 1]);
    ward.launch(&kernel, SelectMode::Forget, 5);
    ward.protect(&lens, true, 6);
    assert!(ward.wrong(&lens) == 1 && ward.w.counted().refused == 2, "{:?}", ward.w.counted());
    ward.w.rest[5].write(0, &named);
    ward.protect(&lens, true, 7);
    assert_eq!(ward.wrong(&lens), 0);
}
