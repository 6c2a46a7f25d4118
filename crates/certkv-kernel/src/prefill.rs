//! Causal attention of a chunk of queries over the 16-bit originals, in f32: prefill.
//!
//! Keys and values of 64 tokens (a *stretch*) are unpacked once, keys transposed, and used by every row of every head of
//! the group. A row is one (query, head) pair; rows are taken in strips that fit the registers.
use crate::attend::Kernel;
use crate::block::{BlockSource, Rows, Tail};
use crate::error::KernelError;
use crate::line::{Line, fill};
use crate::query::Softmax;
use certkv_core::{Dtype, OutOfMemory, try_resize};

/// Tokens of a stretch.
pub(crate) const STRETCH: usize = 64;
/// Queries that one pass over the keys serves: with 4 heads their state is 128 KiB.
const QUERIES: usize = 64;

/// Unpacked keys (`[channel][64 tokens]`) and values (`[token][channel]`).
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    pub(crate) keys: Vec<Line>,
    pub(crate) values: Vec<Line>,
    pub(crate) dim: usize,
}

/// Rows and their running state.
pub(crate) struct Strip<'a> {
    /// `[row][dim/16]`, unscaled.
    pub(crate) q: &'a [Line],
    /// Base-2 logits per unit of `q.k`.
    pub(crate) unit: f32,
    /// Tokens of the stretch that each row sees: bit `t` for token `t`.
    pub(crate) visible: &'a [u64],
    pub(crate) exponent: &'a mut [f32],
    pub(crate) l: &'a mut [f32],
    /// `[row][dim/16]`.
    pub(crate) o: &'a mut [Line],
}

impl Strip<'_> {
    /// True if the stretch is full and every row has its query, output and state: what wide code asserts.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn fit(&self, s: &Stretch) -> bool {
        let (n, lines) = (self.visible.len(), s.dim / 16);
        let full = s.keys.len() >= s.dim * 4 && s.values.len() >= 64 * lines && s.dim.is_multiple_of(32);
        let states = self.l.len() >= n && self.exponent.len() >= n;
        full && states && self.q.len() >= n * lines && self.o.len() >= n * lines
    }
}

/// What prefill tasks work in, one after the other; a few hundred KiB that later ones of the same shape do not ask for again.
#[derive(Debug, Default)]
pub struct PrefillWork {
    stretch: Stretch,
    state: State,
}

/// One stretch for all rows.
pub(crate) type StripFn = fn(&Stretch, &mut Strip<'_>);
/// Unpacks `n` rows of keys and values into the stretch from token `at` on.
pub(crate) type UnpackFn = fn(Rows<'_>, Rows<'_>, Dtype, usize, usize, &mut Stretch);

/// The queries of a prefill task.
#[derive(Debug, Clone, Copy)]
pub struct Causal<'a> {
    /// Query elements; row `i`, head `h` of the group starts at `i * stride + h * dim`.
    pub queries: &'a [f32],
    /// Elements from one row to the next, at least `heads * dim`.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row: row `i` sees tokens `0 ..= first + i`.
    pub first: usize,
    /// Which of them; `None` for all.
    pub window: Option<CausalWindow>,
}

/// Of the tokens up to its own, the row at position `p` sees token `t` if `t < sinks`, or if `t + tokens > p` and `t >= after`.
/// Positions are those in the source, which may lack tokens that no row sees: `after` is then where it goes on behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CausalWindow {
    /// Newest tokens that are seen, the row's own among them.
    pub tokens: usize,
    /// First tokens that every row sees.
    pub sinks: usize,
    /// First token of the source that is not a sink and may be seen.
    pub after: usize,
}

/// Bits `from..to`, as far as they are in 0 to 64.
fn bits(from: usize, to: usize) -> u64 {
    let below = |n: usize| if n >= STRETCH { u64::MAX } else { (1 << n) - 1 };
    below(to) & !below(from)
}

impl CausalWindow {
    /// First token of the row at position `p` that is not seen as a sink.
    fn first(&self, p: usize) -> usize {
        (p + 1).saturating_sub(self.tokens).max(self.after)
    }
}

/// Tokens of the stretch from `base` on that the row at position `p` sees.
fn visible(window: Option<CausalWindow>, p: usize, base: usize) -> u64 {
    let end = (p + 1).saturating_sub(base);
    match window {
        None => bits(0, end),
        Some(w) => bits(w.first(p).saturating_sub(base), end) | bits(0, w.sinks.saturating_sub(base).min(end)),
    }
}

impl Kernel {
    /// Causal attention over originals: `blocks` full blocks of `source`, both sides `Some` (or an uncoded layout), then
    /// `tail`; together they must hold every visible token, `first + rows`. Writes `out[row][head][dim]`, compact.
    ///
    /// The result of a row does not depend on which other rows are in the call.
    ///
    /// # Errors
    /// A wrong length, a query that is not finite, too few tokens, a block too short, no memory for `work`. `out` is then meaningless.
    pub fn prefill<S: BlockSource + ?Sized>(
        &self,
        work: &mut PrefillWork,
        task: &Causal<'_>,
        source: &S,
        blocks: usize,
        tail: Option<Tail<'_>>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let (heads, dim, tokens) = (self.shape.heads, self.shape.dim, self.shape.tokens);
        let given = task.queries.len();
        let expected = if task.rows == 0 { 0 } else { (task.rows - 1) * task.stride + heads * dim };
        if given < expected || (task.rows > 1 && task.stride < heads * dim) {
            return Err(KernelError::Length { argument: "queries", expected, given });
        }
        if out.len() != task.rows * heads * dim {
            let expected = task.rows * heads * dim;
            return Err(KernelError::Length { argument: "out", expected, given: out.len() });
        }
        let held = blocks * tokens + tail.map_or(0, |t| t.tokens);
        if held < task.first + task.rows {
            let expected = task.first + task.rows;
            return Err(KernelError::Length { argument: "tokens", expected, given: held });
        }
        if let Some(t) = &tail {
            let expected = t.tokens * dim;
            if t.tokens > tokens || t.keys.len() < expected || t.values.len() < expected {
                let given = t.keys.len().min(t.values.len());
                return Err(KernelError::Length { argument: "tail", expected, given });
            }
        }
        let PrefillWork { stretch, state } = work;
        stretch.reset(dim)?;
        state.reset(QUERIES * heads, dim)?;
        let mut start = 0;
        for out in out.chunks_mut(QUERIES * heads * dim) {
            let rows = out.len() / (heads * dim);
            self.load_rows(task, start, rows, state)?;
            let first = task.first + start;
            let end = first + rows;
            let mut base = 0;
            while base < end {
                // What no row sees is not read.
                if let Some(w) = task.window
                    && base >= w.sinks
                    && base + STRETCH <= w.first(first)
                {
                    base += STRETCH;
                    continue;
                }
                self.unpack(source, blocks, tail.as_ref(), base, end, stretch)?;
                for (r, v) in state.visible[..rows * heads].iter_mut().enumerate() {
                    *v = visible(task.window, first + r / heads, base);
                }
                let n = rows * heads;
                let mut strip = Strip {
                    q: &state.q[..n * dim / 16],
                    unit: self.unit(),
                    visible: &state.visible[..n],
                    exponent: &mut state.exponent[..n],
                    l: &mut state.l[..n],
                    o: &mut state.o[..n * dim / 16],
                };
                (self.ops.strip)(stretch, &mut strip);
                base += STRETCH;
            }
            for (r, row) in out.chunks_exact_mut(dim).enumerate() {
                for (chunk, line) in row.chunks_exact_mut(16).zip(&state.o[r * dim / 16..]) {
                    for (slot, x) in chunk.iter_mut().zip(line.0) {
                        *slot = x / state.l[r];
                    }
                }
            }
            start += rows;
        }
        Ok(())
    }

    fn load_rows(&self, task: &Causal<'_>, start: usize, rows: usize, state: &mut State) -> Result<(), KernelError> {
        let (heads, dim) = (self.shape.heads, self.shape.dim);
        let n = dim / 16;
        for r in 0..rows {
            let at = (start + r) * task.stride;
            for h in 0..heads {
                let q = &task.queries[at + h * dim..at + (h + 1) * dim];
                if q.iter().any(|x| !x.is_finite()) {
                    return Err(KernelError::NonFiniteQuery { head: h });
                }
                fill(&mut state.q[(r * heads + h) * n..], q);
            }
        }
        state.exponent.fill(Softmax::EMPTY);
        state.l.fill(0.0);
        state.o.fill(Line::ZERO);
        Ok(())
    }

    /// Fills the stretch with tokens `base .. base + 64`, as far as they lie below `end`; the rest is zero.
    fn unpack<S: BlockSource + ?Sized>(
        &self,
        source: &S,
        blocks: usize,
        tail: Option<&Tail<'_>>,
        base: usize,
        end: usize,
        stretch: &mut Stretch,
    ) -> Result<(), KernelError> {
        let (tokens, store) = (self.shape.tokens, self.layout.store);
        if end - base < STRETCH {
            stretch.keys.fill(Line::ZERO);
            stretch.values.fill(Line::ZERO);
        }
        let mut at = 0;
        while at < STRETCH && base + at < end {
            let index = (base + at) / tokens;
            // A block may reach past `end`: unpacking all of it is harmless, rows see no further than their position.
            let n = if index < blocks {
                let block = source.block(index);
                let keys = self.rows(index, block.keys, block.record, &self.layout.key_codes, "keys")?;
                let values = self.rows(index, block.values, block.record, &self.layout.value_codes, "values")?;
                (self.ops.unpack_stretch)(keys, values, store, tokens, at, stretch);
                tokens
            } else {
                let Some(t) = tail else { break };
                let n = t.tokens;
                (self.ops.unpack_stretch)(Rows::Words(t.keys), Rows::Words(t.values), store, n, at, stretch);
                // Positions past the tail are past every row of the task.
                STRETCH
            };
            at += n;
        }
        Ok(())
    }
}

impl Stretch {
    /// Room for 64 tokens of `dim` channels; what is in it is of others.
    fn reset(&mut self, dim: usize) -> Result<(), OutOfMemory> {
        self.dim = dim;
        try_resize(&mut self.keys, dim * STRETCH / 16, Line::ZERO)?;
        try_resize(&mut self.values, STRETCH * dim / 16, Line::ZERO)
    }
}

/// Rows of one pass.
#[derive(Debug, Default)]
struct State {
    q: Vec<Line>,
    visible: Vec<u64>,
    exponent: Vec<f32>,
    l: Vec<f32>,
    o: Vec<Line>,
}

impl State {
    /// Room for `rows` rows; what is in it is of others.
    fn reset(&mut self, rows: usize, dim: usize) -> Result<(), OutOfMemory> {
        let n = rows * dim / 16;
        try_resize(&mut self.q, n, Line::ZERO)?;
        try_resize(&mut self.visible, rows, 0)?;
        try_resize(&mut self.exponent, rows, Softmax::EMPTY)?;
        try_resize(&mut self.l, rows, 0.0)?;
        try_resize(&mut self.o, n, Line::ZERO)
    }
}
