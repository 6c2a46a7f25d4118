//! What the kernels do that keep what records say of blocks at every level, and say what levels would lose.
use super::{arguments, host, word};
use certkv_bound::terms::{key_terms, value_term};
use certkv_core::ErrorSummary;
use certkv_kernel::cuda::args::{Certificate, MassWord};
use certkv_kernel::cuda::losses::{LossesArgs, PEAK_HEADER, ProbeArgs};
use std::ffi::c_void;

/// As `terms.rs` has them.
const NEVER: f64 = 1e30;
const CANCELLED: f64 = 0.1;

fn floats(levels: u32) -> usize {
    1 + 3 * levels as usize
}

pub(super) extern "C" fn probe(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: ProbeArgs = unsafe { arguments(raw) };
    for item in 0..(a.blocks * a.kv_heads) as usize {
        let (block, head) = (item as u64 / u64::from(a.kv_heads), item as u64 % u64::from(a.kv_heads));
        let at = a.records + block * a.page_bytes + head * u64::from(a.record_bytes) + u64::from(a.summary);
        // SAFETY: as in `word`; nothing else runs meanwhile.
        unsafe {
            let found = ErrorSummary::from_bytes(&host::<[u8; 32]>(at).read_unaligned());
            let to = host::<f32>(a.probes).add(item * floats(a.levels));
            if a.fresh != 0 {
                (0..floats(a.levels)).for_each(|i| to.add(i).write(f32::NAN));
            }
            if found.eps.is_finite() && found.eta.is_finite() {
                to.write(found.radius);
                let own = 1 + 3 * a.up as usize;
                [found.eps, found.eta, found.sop].iter().enumerate().for_each(|(i, x)| to.add(own + i).write(*x));
            }
        }
    }
}

/// One layer of a launch.
struct Layer<'a> {
    a: &'a LossesArgs,
    at: u64,
}

impl Layer<'_> {
    fn word_of(&self, block: usize, head: usize) -> MassWord {
        let (stride, group) = (self.a.stride as usize, (self.a.heads / self.a.kv_heads) as usize);
        let words = self.a.words + self.at * self.a.word_layer;
        MassWord(word(words, (head / group * stride + block) * group + head % group))
    }

    fn number(&self, block: usize, head: usize, i: usize) -> f64 {
        let kv = head / (self.a.heads / self.a.kv_heads) as usize;
        let at = (block * self.a.kv_heads as usize + kv) * floats(self.a.levels) + i;
        // SAFETY: as in `word`.
        f64::from(unsafe { host::<f32>(self.a.probes + self.at * self.a.probe_layer).add(at).read() })
    }

    /// Which level of the ladder a block has.
    fn level_of(&self, block: usize) -> usize {
        let levels = self.a.levels as usize;
        let page = word(self.a.table + self.at * self.a.table_layer, block);
        let known = block < self.a.known as usize;
        let level = if known { (1..levels).rev().find(|l| self.a.firsts[*l] <= page).unwrap_or(0) } else { 0 };
        levels - 1 - level
    }

    fn now(&self, block: usize, head: usize) -> f64 {
        self.number(block, head, 1 + 3 * self.level_of(block))
    }

    /// Adds what a head's blocks lose.
    fn add(&self, head: usize, sum: &mut [f64]) {
        let (blocks, known) = (self.a.blocks as usize, self.a.known as usize);
        // SAFETY: as in `word`.
        let c: Certificate =
            unsafe { host::<Certificate>(self.a.certificates + self.at * self.a.certificate_layer).add(head).read() };
        let total = f64::from(c.lse) / core::f64::consts::LN_2;
        let log2 = |b: usize, of: fn(MassWord) -> Option<f32>| of(self.word_of(b, head)).map_or(f64::NAN, f64::from);
        let share = |b: usize| (log2(b, MassWord::log2_mass) - total).exp2();
        let mut mass: Vec<f64> = (0..known).map(|b| if share(b) > 0.0 { share(b) } else { 0.0 }).collect();
        let rest = (1.0 - mass.iter().sum::<f64>()).max(0.0);
        mass.resize(blocks, rest);
        let even = |b: usize| if b < known { log2(b, MassWord::log2_evenness).exp2() } else { 1.0 };
        let delta = |b: usize| log2(b, MassWord::log2_share).exp2().ln_1p();
        let says = |b: usize| b < known && delta(b).is_finite() && self.now(b, head) > 0.0;
        let mut sums = [0.0; 3];
        for b in (0..known).filter(|b| says(*b)) {
            let own = [self.now(b, head), delta(b), delta(b) / even(b)];
            sums.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
        }
        let means = [sums[1], sums[2]].map(|sum| if sums[0] > 0.0 { sum / sums[0] } else { 0.0 });
        let made: f64 = (0..blocks).map(|b| mass[b] * self.number(b, head, 0)).filter(|x| x.is_finite()).sum();
        let norm = f64::from(c.norm).max(CANCELLED * made);
        for block in 0..blocks {
            let now = self.now(block, head);
            let per = match says(block) {
                true => [delta(block) / now, delta(block) / even(block) / now],
                false => means,
            };
            let root = if mass[block] > 0.0 { mass[block] * even(block) } else { 0.0 };
            let distance = self.number(block, head, 0) + f64::from(c.radius);
            for level in 0..self.a.levels as usize {
                let [eps, eta, sop] = [1, 2, 3].map(|i| self.number(block, head, i + 3 * level));
                let [delta, lambda] = per.map(|per| per * eps);
                let g = match self.a.linear {
                    0 => key_terms(mass[block], root, delta, lambda).0,
                    _ => (mass[block] * delta).min(root * lambda),
                };
                let term = (g * distance).min(distance) + value_term(mass[block], root, eta, sop);
                let loss = match () {
                    () if now.is_nan() && level == self.level_of(block) => 0.0,
                    () if eps.is_nan() => NEVER,
                    () => (term / norm).min(NEVER),
                };
                let cell = &mut sum[block * self.a.levels as usize + level];
                *cell = (*cell + loss).min(NEVER);
            }
        }
    }
}

pub(super) extern "C" fn losses(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: LossesArgs = unsafe { arguments(raw) };
    for at in 0..u64::from(a.layers) {
        let mut sum = vec![0.0; (a.blocks * a.levels) as usize];
        (0..a.heads as usize).for_each(|head| Layer { a: &a, at }.add(head, &mut sum));
        let peaks = host::<f32>(a.peaks + at * a.peak_layer);
        // SAFETY: as in `word`; nothing else runs meanwhile.
        unsafe {
            peaks.write(peaks.read() + 1.0);
            for (i, x) in sum.iter().enumerate() {
                let cell = peaks.add(PEAK_HEADER + i);
                cell.write(cell.read().max(*x as f32));
            }
        }
    }
}
