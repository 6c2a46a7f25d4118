//! What the kernel that keeps scores of blocks does, block by block.
use super::{arguments, host, word};
use certkv_kernel::cuda::args::{Certificate, MassWord};
use certkv_kernel::cuda::importance::{Heard, ImportanceArgs};
use core::f64::consts::{LN_2, LOG2_E};
use std::ffi::c_void;

fn at<T: Copy>(address: u64, index: usize) -> T {
    // SAFETY: as in `word`.
    unsafe { host::<T>(address).add(index).read() }
}

fn put<T>(address: u64, index: usize, value: T) {
    // SAFETY: as in `word`; nothing else runs meanwhile.
    unsafe { host::<T>(address).add(index).write(value) }
}

/// Without memory of the allocator's: calls that ask it for nothing are counted over this driver.
pub(super) extern "C" fn importance(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: ImportanceArgs = unsafe { arguments(raw) };
    for heard in &a.of[..a.count as usize] {
        (0..a.layers as usize).for_each(|layer| hear(&a, heard, layer));
    }
}

/// One layer of a sequence.
fn hear(a: &ImportanceArgs, of: &Heard, layer: usize) {
    let (heads, stride, blocks) = (a.heads as usize, a.stride as usize, of.blocks as usize);
    let [keep, keep_head, mix] = [a.keep, a.keep_head, a.mix].map(f64::from);
    let words = a.words + layer as u64 * a.word_layer + u64::from(of.row) * a.word_row;
    let certificates = a.certificates + layer as u64 * a.certificate_layer + u64::from(of.place) * a.certificate_place;
    let memory = a.memory + u64::from(of.row) * a.memory_row;
    let list = |first: u32| memory + 4 * (first as usize + layer * stride) as u64;
    let known = |head: usize, block: usize| -> f64 {
        let group = a.group as usize;
        let word = MassWord(word(words, (head / group * stride + block) * group + head % group));
        let total = f64::from(at::<Certificate>(certificates, head).lse) / LN_2;
        word.log2_mass().map_or(0.0, |log2| (f64::from(log2) - total).exp2())
    };
    let share = |head: usize, block: usize| match block < of.known as usize {
        true => known(head, block),
        false => (1.0 - (0..of.known as usize).map(|b| known(head, b)).sum::<f64>()).max(0.0),
    };
    let concentration = memory + 4 * u64::from(a.concentration);
    let mut mean = 1e-6;
    for head in 0..heads {
        let own = layer * heads + head;
        let was = if of.step == 0 { 1.0 } else { f64::from(at::<f32>(concentration, own)) };
        let squares: f64 = (0..blocks).map(|block| share(head, block).powi(2)).sum();
        let now = keep_head * was + (1.0 - keep_head) * squares;
        put(concentration, own, now as f32);
        mean += now / heads as f64;
    }
    for block in 0..blocks {
        let is_new = block >= of.kept as usize;
        let (mut plain, mut weighed) = (0.0, 0.0);
        for head in 0..heads {
            let weight = f64::from(at::<f32>(concentration, layer * heads + head)) / mean;
            plain += share(head, block) / heads as f64;
            weighed += weight * share(head, block) / heads as f64;
        }
        let was = if is_new { 0.0 } else { f64::from(at::<f32>(list(a.importance), block)) };
        let born = if is_new { of.step } else { word(list(a.born), block) };
        let now = keep * was + (1.0 - keep) * plain;
        put(list(a.importance), block, now as f32);
        put(list(a.born), block, born);
        if is_new {
            put(list(a.before), block, -1.0f32);
        }
        let age = f64::from(of.step - born);
        let ideal = now / (1.0 - keep.powf(age + 1.0));
        let score = (mix * ideal + (1.0 - mix) * weighed) * (-age * f64::from(a.ageing) / LOG2_E).exp();
        put(list(a.scores), block, score as f32);
    }
    if of.looks != 0 {
        let [divergence, moved] = drift(a, list(a.scores), list(a.before), (of.kept as usize).min(blocks));
        put(memory, 2 * layer, divergence as f32);
        put(memory, 2 * layer + 1, moved as f32);
    }
}

fn drift(a: &ImportanceArgs, scores: u64, before: u64, kept: usize) -> [f64; 2] {
    let n = (0..kept).take_while(|b| at::<f32>(before, *b) >= 0.0).count();
    let of = |list: u64, b: usize| f64::from(at::<f32>(list, b));
    let sum = |list: u64| (0..n).map(|b| of(list, b) + 1e-6).sum::<f64>();
    let rank = |list: u64, b: usize| (0..n).filter(|j| (of(list, *j), *j) < (of(list, b), b)).count() as f64;
    let (now, then, mut found) = (sum(scores), sum(before), [0.0; 2]);
    for b in 0..n {
        let (p, q) = ((of(scores, b) + 1e-6) / now, (of(before, b) + 1e-6) / then);
        found[0] += p * (p / q).ln();
        let far = 100.0 * (rank(scores, b) - rank(before, b)).abs() >= f64::from(a.points) * (n.max(2) - 1) as f64;
        found[1] += if far { 100.0 / n as f64 } else { 0.0 };
    }
    found
}
