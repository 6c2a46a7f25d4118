//! Logits of codes that a sweep keeps: whoever scores a block again, with residuals or to take it out of the sums, reads its codes no more.
use crate::attend::{Kernel, Workspace};
use crate::block::Block;
use crate::line::Line;
use crate::query::X_STRIDE;
use crate::score::Scores;
use certkv_core::{OutOfMemory, reserve_total};

/// What is known of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Known {
    /// It was not read from codes alone, or its logits are not kept.
    #[default]
    No,
    /// Its weights and bounds are those of the kept logits.
    Present,
    /// It has been read otherwise since.
    Past,
}

/// Of the scored blocks of one KV head.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logits {
    /// `[block][head][tokens / 16]`.
    lines: Vec<Line>,
    /// By block.
    known: Vec<Known>,
}

impl Logits {
    pub(crate) fn reserve(&mut self, kernel: &Kernel, blocks: usize) -> Result<(), OutOfMemory> {
        if kernel.keeps_logits() {
            reserve_total(&mut self.known, blocks)?;
            reserve_total(&mut self.lines, kernel.weights_of(blocks).start)?;
        }
        Ok(())
    }

    /// Forgets all blocks from `start` on.
    pub(crate) fn forget_from(&mut self, start: usize) {
        self.known.truncate(start);
    }

    /// Room for blocks up to `end`, of which those from `start` on are about to be scored.
    pub(crate) fn begin(&mut self, kernel: &Kernel, start: usize, end: usize) {
        self.forget_from(start);
        if kernel.keeps_logits() {
            self.known.resize(end, Known::No);
            self.lines.resize(kernel.weights_of(end).start, Line::ZERO);
        }
    }

    pub(crate) fn knows(&self, block: usize) -> bool {
        self.known.get(block).is_some_and(|known| *known != Known::No)
    }

    /// `block` is read otherwise from here on.
    pub(crate) fn pass(&mut self, block: usize) {
        if let Some(known @ Known::Present) = self.known.get_mut(block) {
            *known = Known::Past;
        }
    }
}

impl Kernel {
    /// Whether logits of this kernel's codes are kept: those that integer products give.
    pub(crate) fn keeps_logits(&self) -> bool {
        let key = &self.layout.format.key;
        let floats = key.page().is_some_and(|code| code.is_float());
        !key.is_exact() && !key.is_mean() && !floats && key.tier().is_none()
    }

    /// Keeps the logits of block `index`, which is `block`, if they are of codes alone.
    pub(crate) fn keep_logits(&self, index: usize, block: &Block<'_>, work: &Workspace, to: &mut Logits) {
        if !self.keeps_logits() || block.keys.is_some() || block.fine_keys {
            return;
        }
        let (range, lines) = (self.weights_of(index), self.shape.tokens / 16);
        for (h, to) in to.lines[range].chunks_exact_mut(lines).enumerate() {
            to.copy_from_slice(&work.x[h * X_STRIDE..h * X_STRIDE + lines]);
        }
        to.known[index] = Known::Present;
    }

    /// The kept logits of the codes of block `index`, `[head][tokens / 16]`, if `block` is to be read from codes, with residuals or without.
    pub(crate) fn known_logits<'s>(&self, index: usize, block: &Block<'_>, scores: &'s Scores) -> Option<&'s [Line]> {
        let known = block.keys.is_none() && scores.logits.knows(index);
        if known { scores.logits.lines.get(self.weights_of(index)) } else { None }
    }

    /// The same, of blocks whose weights and bounds they are.
    pub(crate) fn weighed_logits<'s>(&self, index: usize, scores: &'s Scores) -> Option<&'s [Line]> {
        let present = scores.logits.known.get(index) == Some(&Known::Present);
        if present { scores.logits.lines.get(self.weights_of(index)) } else { None }
    }

    /// Kept logits, as they were.
    pub(crate) fn load_logits(&self, known: &[Line], x: &mut [Line]) {
        let lines = self.shape.tokens / 16;
        for (h, from) in known.chunks_exact(lines).enumerate() {
            x[h * X_STRIDE..h * X_STRIDE + lines].copy_from_slice(from);
        }
    }
}
