//! The query as the integer kernels see it: 16-bit digits, and the numbers of the bound that come from the same registers.
use crate::line::Line;
use crate::parts::{Part, Parts, Run};

/// Most query heads that share a KV head.
pub(crate) const HEADS: usize = 16;
/// Bytes from one head's digits to the next: 32 low bytes, then 32 high bytes, for every 32 channels.
pub(crate) const DIGIT_STRIDE: usize = 512;
/// Lines from one head's logits to the next: 64 tokens.
pub(crate) const X_STRIDE: usize = 4;
/// Largest query digit: the high byte is then at most 127 in magnitude and the low byte is any signed byte.
pub(crate) const QUERY_LEVELS: f32 = 32512.0;
/// Most channel groups of a head: 256 / 16.
pub(crate) const GROUPS: usize = 16;

/// What all functions need to know of the loop they serve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Query heads.
    pub(crate) heads: usize,
    /// Channels per head.
    pub(crate) dim: usize,
    /// Tokens per block, 16, 32 or 64.
    pub(crate) tokens: usize,
}

impl Shape {
    /// Lines of one head's channels.
    #[inline]
    pub(crate) fn dim_lines(&self) -> usize {
        self.dim / 16
    }
}

/// Digits of `y_c = q_c sigma_c` (or of `q` itself): `y_c = step * (256 hi_c + lo_c) + r_c`.
#[derive(Debug, Clone)]
pub(crate) struct Digits {
    /// `[head][channel / 32][lo 32 | hi 32]`, signed bytes.
    pub(crate) bytes: Vec<i8>,
    /// `[head][256]`: the same digits as 16-bit words.
    pub(crate) words: Vec<i16>,
    /// Sum of the digits of each head and channel group.
    pub(crate) sums: [[i32; GROUPS]; HEADS],
    /// Value of one unit of the digits.
    pub(crate) step: [f32; HEADS],
    /// `sum_c q_c z_c`.
    pub(crate) offset: [f32; HEADS],
    /// `sum_c |y_c|`, up to `logit_chain` roundings.
    pub(crate) l1: [f32; HEADS],
    /// `sum_c y_c^2`, up to `logit_chain` roundings.
    pub(crate) square: [f32; HEADS],
    /// At least `sum_c |r_c|`, up to `logit_chain` roundings.
    pub(crate) residual: [f32; HEADS],
}

impl Digits {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; HEADS * DIGIT_STRIDE],
            words: vec![0; HEADS * 256],
            sums: [[0; GROUPS]; HEADS],
            step: [0.0; HEADS],
            offset: [0.0; HEADS],
            l1: [0.0; HEADS],
            square: [0.0; HEADS],
            residual: [0.0; HEADS],
        }
    }
}

/// How integer sums become logits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scaling<'a> {
    /// `x = mul[h] S + add[h]`: the scales are in the digits.
    Channel,
    /// `x = mul[h] sum_g scale[g][t] S_g + add[h]`: f16 scales per token and `group` channels.
    Token { scales: &'a [u8], group: usize },
    /// The same with groups of any size, each in codes of its own width: Block-GTQ, math.md (2.19c).
    Parts { scales: &'a [u8], parts: &'a Parts },
}

/// Codes to score, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyCodes<'a> {
    pub(crate) section: &'a [u8],
    pub(crate) bits: usize,
    /// Bytes that stand for the codes, 128 too large ([`certkv_codec::turboquant::level_bytes`]); `None` where codes stand for themselves.
    pub(crate) levels: Option<&'a Levels>,
    pub(crate) scaling: Scaling<'a>,
    /// Per head: value of one unit of the integer sum, in base-2 logits.
    pub(crate) mul: [f32; HEADS],
    /// Per head: constant part of the logit.
    pub(crate) add: [f32; HEADS],
}

impl KeyCodes<'_> {
    /// Groups of channels that have scales of their own.
    #[inline]
    pub(crate) fn groups(&self, dim: usize) -> usize {
        match self.scaling {
            Scaling::Channel => 1,
            Scaling::Token { group, .. } => dim / group,
            Scaling::Parts { parts, .. } => parts.count,
        }
    }

    /// Group `g`.
    #[inline]
    pub(crate) fn run(&self, g: usize, shape: Shape) -> Run {
        let all = shape.dim / 4;
        match self.scaling {
            Scaling::Channel => Run { quads: 0..all, first: 0, stride: all },
            Scaling::Token { group, .. } => Run { quads: g * group / 4..(g + 1) * group / 4, first: 0, stride: all },
            Scaling::Parts { parts, .. } => {
                let quads = parts.each[g].quads.clone();
                // All tiles of a group lie together, behind those of the groups before it.
                Run { first: (shape.tokens / 16 - 1) * quads.start, stride: quads.len(), quads }
            }
        }
    }

    /// f16 scales `[group][token]`, unless they are in the digits.
    #[inline]
    pub(crate) fn scales(&self) -> Option<&[u8]> {
        match self.scaling {
            Scaling::Channel => None,
            Scaling::Token { scales, .. } | Scaling::Parts { scales, .. } => Some(scales),
        }
    }

    /// True if scales and groups fit the shape, and codes the section: what wide code asserts.
    pub(crate) fn fits(&self, shape: Shape) -> bool {
        let of_groups = self.scales().is_none_or(|s| s.len() >= 2 * shape.tokens * self.groups(shape.dim));
        let codes = match self.scaling {
            Scaling::Parts { parts, .. } => {
                let mut at = 0;
                let follows = |part: &Part| {
                    let (from, quads) = (core::mem::replace(&mut at, part.quads.end), part.quads.len());
                    from == part.quads.start
                        && quads.is_multiple_of(4)
                        && part.codes.len() == quads * 4 * shape.tokens * part.bits / 8
                        && part.codes.end <= self.section.len()
                };
                self.levels.is_some() && parts.iter().all(follows) && at == shape.dim / 4
            }
            _ => self.section.len() >= shape.tokens * shape.dim * self.bits / 8,
        };
        of_groups && codes
    }

    /// What a stored code is too large by.
    #[inline]
    pub(crate) fn half(&self) -> i32 {
        1 << (if self.levels.is_some() { 8 } else { self.bits } - 1)
    }
}

/// A table of [`certkv_codec::turboquant::level_bytes`].
pub(crate) type Levels = [u8; 64];

/// Coded values of one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueCodes<'a> {
    pub(crate) section: &'a [u8],
    pub(crate) bits: usize,
    /// As [`KeyCodes::levels`].
    pub(crate) levels: Option<&'a Levels>,
    pub(crate) group: usize,
    /// False where what a stored code is too large by stands for 0: levels and symmetric codes.
    pub(crate) offsets: bool,
    /// f16 `sigma[group][token]`, then `z[group][token]` if there are offsets.
    pub(crate) scales: &'a [u8],
}

impl ValueCodes<'_> {
    /// Bits of a code once it is looked up.
    #[inline]
    pub(crate) fn width(&self) -> usize {
        if self.levels.is_some() { 8 } else { self.bits }
    }

    /// `2^(m-1)`, what a stored code is too large by.
    #[inline]
    pub(crate) fn half(&self) -> i32 {
        // Nothing of no codes (2.9c).
        (1 << self.width()) / 2
    }

    /// Bytes of scales that are read.
    #[inline]
    pub(crate) fn scale_bytes(&self, shape: Shape) -> usize {
        shape.tokens * (shape.dim / self.group) * if self.offsets { 4 } else { 2 }
    }
}

/// What a coded value block contributes to the bound.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ValueSlack {
    /// `(sum_g group max_t sigma[g][t]^2)^(1/2)`.
    pub(crate) sigma: f32,
    /// `max_t (sum_g group mid[g][t]^2)^(1/2)`, `mid = z + 2^(m-1) sigma`.
    pub(crate) middle: f32,
}

/// Running softmax of one split, per head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Softmax {
    /// Integer running exponent (base 2).
    pub(crate) exponent: [f32; HEADS],
    /// Sum of the block's weights, sum of their squares, and a power of two that none exceeds (but for the polynomial's
    /// 2.5 u).
    pub(crate) sum: [f32; HEADS],
    pub(crate) square: [f32; HEADS],
    pub(crate) max: [f32; HEADS],
    /// Power of two by which earlier sums have to be multiplied.
    pub(crate) rescale: [f32; HEADS],
    /// True if some `rescale` is not 1.
    pub(crate) moved: bool,
    /// Weights summed so far whose values were skipped.
    pub(crate) skipped: [f32; HEADS],
}

impl Softmax {
    /// Exponent of an empty sum: below every clamped logit.
    pub(crate) const EMPTY: f32 = -2.0 * crate::slack::CLAMP;

    pub(crate) fn new() -> Self {
        Self {
            exponent: [Self::EMPTY; HEADS],
            sum: [0.0; HEADS],
            square: [0.0; HEADS],
            max: [0.0; HEADS],
            rescale: [1.0; HEADS],
            moved: false,
            skipped: [0.0; HEADS],
        }
    }
}

/// Buffers of the value functions.
#[derive(Debug, Clone)]
pub(crate) struct ValueScratch {
    /// Unpacked codes, `[64-code line]`.
    pub(crate) codes: Vec<crate::line::Codes>,
    /// Digits of `w sigma`, `[group][head][lo 64 | hi 64]` bytes.
    pub(crate) bytes: Vec<crate::line::Codes>,
    /// Value of one unit of the digits, `[group][head]`.
    pub(crate) units: [[f32; HEADS]; GROUPS],
    /// The digits of one group as words, `[head][64]`.
    pub(crate) words: Vec<i16>,
    /// `sum_t w_t mid[g][t]` by lane, `[head][GROUPS]`.
    pub(crate) middle: Vec<Line>,
    /// Sums of rotated values, `[head][dim / 16]`: turned back once, when the pass is closed.
    pub(crate) turned: Vec<Line>,
}

impl ValueScratch {
    /// Nothing summed.
    pub(crate) fn clear(&mut self) {
        self.middle.fill(Line::ZERO);
        self.turned.fill(Line::ZERO);
    }

    /// Multiplies what is summed of one head by a power of two.
    pub(crate) fn rescale(&mut self, head: usize, shape: Shape, by: f32) {
        let lines = shape.dim_lines();
        let turned = self.turned[head * lines..(head + 1) * lines].iter_mut();
        turned.chain(&mut self.middle[head * GROUPS..(head + 1) * GROUPS]).for_each(|line| line.scale(by));
    }

    pub(crate) fn new() -> Self {
        Self {
            codes: vec![crate::line::Codes([0; 64]); 256],
            bytes: vec![crate::line::Codes([0; 64]); GROUPS * HEADS * 2],
            units: [[0.0; HEADS]; GROUPS],
            words: vec![0; HEADS * 64],
            middle: crate::line::lines(HEADS * GROUPS),
            turned: crate::line::lines(HEADS * 16),
        }
    }
}

/// The next block's record, asked for line by line while this block is computed: a burst of prefetches would fill the
/// miss queue and stall everything behind it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// Address of the next line to ask for.
    pub(crate) at: usize,
    /// End of the record.
    pub(crate) end: usize,
}

impl Cursor {
    /// A cursor over one value.
    pub(crate) fn of<T>(value: &T) -> Self {
        let at = core::ptr::from_ref(value) as usize;
        Self { at, end: at + size_of::<T>() }
    }

    /// A cursor over a slice.
    pub(crate) fn over<T>(slice: &[T]) -> Self {
        let at = slice.as_ptr() as usize;
        Self { at, end: at + size_of_val(slice) }
    }
}
