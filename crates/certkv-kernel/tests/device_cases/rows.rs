//! Queries and outputs that need not follow each other, and outputs of 16 bits.
use certkv_core::Dtype;
use certkv_kernel::cuda::args::{Element, Strides};

/// How a case's queries and outputs lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arranged {
    /// Elements between a row and the next, a multiple of 8.
    pub gap: usize,
    /// Whether heads lie outside tokens.
    pub outside: bool,
    /// The outputs' type.
    pub out: Element,
}

impl Arranged {
    /// One after the other, in single precision.
    pub const DENSE: Self = Self { gap: 0, outside: false, out: Element::F32 };

    /// Tokens outside heads and heads outside tokens, with and without something between, with outputs of every type; all but the plain one.
    pub fn ways() -> impl Iterator<Item = Self> {
        let outs = [Element::F32, Element::F16, Element::Bf16];
        [(0, true), (8, false), (72, true), (0, false)]
            .into_iter()
            .flat_map(move |(gap, outside)| outs.map(|out| Self { gap, outside, out }))
            .filter(|way| *way != Self::DENSE)
    }

    /// Of rows of `[tokens, heads, channels]`.
    pub fn strides(&self, [tokens, heads, dim]: [usize; 3]) -> Strides {
        let row = (dim + self.gap) as u32;
        if self.outside {
            Strides { token: row, head: row * tokens as u32 }
        } else {
            Strides { token: row * heads as u32, head: row }
        }
    }

    /// Elements, and the first of each row, by token and head.
    fn places(&self, shape: [usize; 3]) -> (usize, Vec<usize>) {
        let ([tokens, heads, dim], s) = (shape, self.strides(shape));
        let at = |token: usize, head: usize| token * s.token as usize + head * s.head as usize;
        (tokens * heads * (dim + self.gap), (0..tokens * heads).map(|row| at(row / heads, row % heads)).collect())
    }

    /// Rows as they lie; what is between them is no number.
    pub fn scatter(&self, rows: &[u16], shape: [usize; 3]) -> Vec<u16> {
        let (elements, places) = self.places(shape);
        let mut all = vec![0x7fff; elements];
        for (row, at) in rows.chunks_exact(shape[2]).zip(places) {
            all[at..at + shape[2]].copy_from_slice(row);
        }
        all
    }

    /// Words of outputs.
    pub fn out_words(&self, shape: [usize; 3]) -> usize {
        (self.places(shape).0 * self.out.bytes()).div_ceil(4)
    }

    /// Outputs out of memory that was filled with ones before, one after the other.
    ///
    /// # Errors
    /// Something between them was written.
    pub fn gather(&self, words: &[u32], shape: [usize; 3]) -> Result<Vec<f32>, String> {
        let (elements, places) = self.places(shape);
        let half = |at: usize| (words[at / 2] >> (16 * (at % 2))) as u16;
        let read = |at: usize| match self.out {
            Element::F32 => f32::from_bits(words[at]),
            Element::F16 => Dtype::F16.decode16(half(at)),
            Element::Bf16 => Dtype::Bf16.decode16(half(at)),
        };
        let poison = |at: usize| if self.out == Element::F32 { words[at] == u32::MAX } else { half(at) == u16::MAX };
        let mut between = vec![true; elements];
        let mut out = Vec::with_capacity(places.len() * shape[2]);
        for at in places {
            between[at..at + shape[2]].fill(false);
            out.extend((at..at + shape[2]).map(read));
        }
        match (0..elements).find(|at| between[*at] && !poison(*at)) {
            Some(at) => Err(format!("element {at}, which is between outputs, was written")),
            None => Ok(out),
        }
    }
}
