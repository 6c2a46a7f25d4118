//! The state of a pass over some of the tokens, and how two become one: math.md (1.6) with integer exponents.
use crate::arch::generic::softmax::power;
use crate::attend::Kernel;
use crate::error::KernelError;
use crate::line::{Line, lines};
use crate::query::{HEADS, Softmax};

/// Unnormalised output of a set of tokens, for all heads of a group: `o = sum_t w_t v_t`, `l = sum_t w_t`, relative to
/// `2^exponent`.
#[derive(Debug, Clone)]
pub struct Partial {
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) exponent: [f32; HEADS],
    pub(crate) l: [f32; HEADS],
    /// Sum of all weights that were ever added or taken away: the scale of the rounding errors left in `l` and `o`.
    pub(crate) gross: [f32; HEADS],
    /// Largest norm of a value among what was taken away: what it left behind in `o` is rounded relative to it.
    pub(crate) gone: f32,
    pub(crate) o: Vec<Line>,
    pub(crate) chain: usize,
    pub(crate) tokens: usize,
}

impl Kernel {
    /// An empty state of this kernel's shape.
    pub fn partial(&self) -> Partial {
        Partial::new(self.shape.heads, self.shape.dim)
    }

    /// Makes `partial` an empty state of this kernel's shape, in the memory that it has.
    pub fn empty(&self, partial: &mut Partial) {
        partial.reshape(self.shape.heads, self.shape.dim);
    }
}

impl Partial {
    /// The empty state of `heads` heads of `dim` channels.
    pub(crate) fn new(heads: usize, dim: usize) -> Self {
        Self {
            heads,
            dim,
            exponent: [Softmax::EMPTY; HEADS],
            l: [0.0; HEADS],
            gross: [0.0; HEADS],
            gone: 0.0,
            o: lines(heads * dim / 16),
            chain: 0,
            tokens: 0,
        }
    }

    /// Becomes the empty state of `heads` heads of `dim` channels, in the memory that it has.
    pub(crate) fn reshape(&mut self, heads: usize, dim: usize) {
        (self.heads, self.dim) = (heads, dim);
        self.o.resize(heads * dim / 16, Line::ZERO);
        self.clear();
    }

    /// Becomes `from`, in the memory that it has.
    pub(crate) fn copy(&mut self, from: &Self) {
        let mut o = core::mem::take(&mut self.o);
        o.clone_from(&from.o);
        *self = Self { o, ..*from };
    }

    /// Back to the empty state.
    pub fn clear(&mut self) {
        self.exponent = [Softmax::EMPTY; HEADS];
        self.l = [0.0; HEADS];
        self.gross = [0.0; HEADS];
        self.gone = 0.0;
        self.o.fill(Line::ZERO);
        self.chain = 0;
        self.tokens = 0;
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Base-2 exponent of `head`; integer-valued.
    pub fn exponent(&self, head: usize) -> f32 {
        self.exponent.get(head).copied().unwrap_or(f32::NAN)
    }

    /// Sum of weights of `head`, relative to `2^exponent`.
    pub fn weight_sum(&self, head: usize) -> f32 {
        self.l.get(head).copied().unwrap_or(f32::NAN)
    }

    /// `L = log sum_t e^{z_t}` of `head`, nats, math.md (1.2).
    pub fn log_mass(&self, head: usize) -> f64 {
        f64::from(self.exponent(head)) * core::f64::consts::LN_2 + f64::from(self.weight_sum(head)).ln()
    }

    /// Longest chain of dependent additions into `o` or `l`: `nacc` of (5.27).
    pub fn chain(&self) -> usize {
        self.chain
    }

    /// Tokens summed.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn head_lines(&mut self, head: usize) -> &mut [Line] {
        let n = self.dim / 16;
        &mut self.o[head * n..(head + 1) * n]
    }

    /// Multiplies one head's output by a power of two.
    pub(crate) fn rescale(&mut self, head: usize, by: f32) {
        for line in self.head_lines(head) {
            line.scale(by);
        }
    }

    /// Adds `sign` times `other`, head by head, at the larger exponent.
    pub(crate) fn add(&mut self, other: &Partial, sign: f32) {
        let n = self.dim / 16;
        for h in 0..self.heads {
            let m = if other.exponent[h] > self.exponent[h] { other.exponent[h] } else { self.exponent[h] };
            let (a, b) = (power(self.exponent[h] - m), power(other.exponent[h] - m));
            self.exponent[h] = m;
            self.l[h] = self.l[h] * a + sign * (other.l[h] * b);
            self.gross[h] = self.gross[h] * a + other.gross[h] * b;
            for (x, y) in self.o[h * n..(h + 1) * n].iter_mut().zip(&other.o[h * n..(h + 1) * n]) {
                for i in 0..16 {
                    x.0[i] = x.0[i] * a + sign * (y.0[i] * b);
                }
            }
        }
        self.chain = self.chain.max(other.chain) + 1;
        self.take_note(other.gone);
    }

    /// Of values of this norm that were taken away.
    pub(crate) fn take_note(&mut self, norm: f32) {
        // Nothing is larger than NaN.
        self.gone = if norm <= self.gone { self.gone } else { norm };
    }

    /// Merges the state of later tokens into this one. Merging in one fixed order gives the same bits however the
    /// splits were computed.
    ///
    /// # Errors
    /// [`KernelError::Length`] if the two have different heads or channels; nothing is changed then.
    pub fn merge(&mut self, later: &Partial) -> Result<(), KernelError> {
        if (later.heads, later.dim) != (self.heads, self.dim) {
            let (expected, given) = (self.heads * self.dim, later.heads * later.dim);
            return Err(KernelError::Length { argument: "partial", expected, given });
        }
        self.add(later, 1.0);
        self.tokens += later.tokens;
        Ok(())
    }

    /// `O = o / l` of `head` into `out[dim]`.
    ///
    /// # Errors
    /// [`KernelError::NoToken`] if nothing was summed; [`KernelError::Length`] for a wrong `out` or `head`.
    pub fn finish(&self, head: usize, out: &mut [f32]) -> Result<(), KernelError> {
        if self.tokens == 0 {
            return Err(KernelError::NoToken);
        }
        if out.len() != self.dim {
            return Err(KernelError::Length { argument: "out", expected: self.dim, given: out.len() });
        }
        if head >= self.heads {
            return Err(KernelError::Length { argument: "head", expected: self.heads, given: head });
        }
        let (n, l) = (self.dim / 16, self.l[head]);
        for (chunk, line) in out.chunks_exact_mut(16).zip(&self.o[head * n..(head + 1) * n]) {
            for (slot, x) in chunk.iter_mut().zip(line.0) {
                *slot = x / l;
            }
        }
        Ok(())
    }
}
