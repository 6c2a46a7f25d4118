//! The codebook of one group, and the search for the nearest direction.
use crate::error::{CodecError, Input, rows};
use crate::numeric::sum_squares;

/// How far the squared length of a direction may be from 1: directions rounded to single precision are at most `2^-23` off.
pub const UNIT: f64 = 1.0 / (1u64 << 20) as f64;

/// Directions that are met at once. Their sums stay in registers.
const LANES: usize = 8;

/// Unit directions of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct Directions {
    width: usize,
    count: usize,
    /// Row-major, (count, width).
    words: Vec<f64>,
    /// The same in panels of eight directions, channel by channel; what fills up the last panel is 0.
    panels: Vec<[f64; LANES]>,
}

impl Directions {
    /// A codebook of up to 256 directions, row-major (count, width).
    ///
    /// # Errors
    /// [`CodecError::Shape`] if they are no whole number of rows or too many, [`CodecError::NotUnit`] (its group 0) for one whose
    /// length is not 1.
    pub fn new(words: &[f64], width: usize) -> Result<Self, CodecError> {
        let count = rows(Input::Codebook, words.len(), width)?;
        if count > 256 {
            return Err(CodecError::Shape { input: Input::Codebook, got: count, want: 256 });
        }
        // A NaN is not of length 1 either.
        let unit = |word: &[f64]| (sum_squares(word) - 1.0).abs() <= UNIT;
        if let Some(word) = words.chunks_exact(width).position(|word| !unit(word)) {
            return Err(CodecError::NotUnit { group: 0, word });
        }
        let mut panels = vec![[0.0; LANES]; count.div_ceil(LANES) * width];
        for (at, word) in words.chunks_exact(width).enumerate() {
            for (panel, x) in panels.iter_mut().skip(at / LANES * width).zip(word) {
                panel[at % LANES] = *x;
            }
        }
        Ok(Self { width, count, words: words.to_vec(), panels })
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The directions, row-major (count, channels).
    pub fn words(&self) -> &[f64] {
        &self.words
    }

    /// One direction; nothing past the last.
    pub fn word(&self, index: u8) -> &[f64] {
        let at = usize::from(index) * self.width;
        self.words.get(at..at + self.width).unwrap_or_default()
    }

    /// Products of `x` with eight directions after the other, in the order of [`Directions::words`], each summed from the first channel
    /// to the last; those past the last direction are 0. Made to be compiled into wide code of its caller.
    #[inline(always)]
    pub fn panel_products(&self, x: &[f64]) -> impl Iterator<Item = [f64; LANES]> {
        self.panels.chunks_exact(self.width).map(move |panel| {
            let mut sums = [0.0; LANES];
            for (x, lanes) in x.iter().zip(panel) {
                sums.iter_mut().zip(lanes).for_each(|(sum, c)| *sum += x * c);
            }
            sums
        })
    }

    /// Products of `x` (as many entries as a direction has) with every direction, each summed from the first channel to the last.
    pub fn products(&self, x: &[f64]) -> Vec<f64> {
        let mut products: Vec<f64> = self.panel_products(x).flatten().collect();
        products.truncate(self.count);
        products
    }

    /// The direction with the largest product with `x`, the first of equals, and that product, (2.20).
    pub fn nearest(&self, x: &[f64]) -> (u8, f64) {
        let (mut index, mut most) = (0, f64::NEG_INFINITY);
        for (panel, sums) in self.panel_products(x).enumerate() {
            for (lane, sum) in sums.into_iter().enumerate() {
                if sum > most && panel * LANES + lane < self.count {
                    (index, most) = (panel * LANES + lane, sum);
                }
            }
        }
        (index as u8, most)
    }
}
