//! Small float64 loops shared by the codecs, written so that the compiler turns them into vector code.

/// `1 + 2^-40`: what a float64 measurement is multiplied by before it is rounded up, math.md section 3.
pub(crate) const UP: f64 = 1.0 + 1.0 / (1u64 << 40) as f64;

/// Adding and subtracting `1.5 * 2^52` rounds to the nearest integer, ties to even, for `|x| < 2^51`. Unlike
/// `round_ties_even` this is two instructions on every machine and leaves the integer in the low bits of the sum.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// Nearest integer of `x`, ties to even, as a float and as the low 8 bits of its two's complement. `|x| < 2^51`.
#[inline(always)]
pub(crate) fn rint_code(x: f64) -> (f64, u8) {
    let shifted = x + MAGIC;
    (shifted - MAGIC, shifted.to_bits() as u8)
}

/// Sum of squares, in four interleaved partial sums.
#[inline]
pub(crate) fn sum_squares(x: &[f64]) -> f64 {
    let (chunks, rest) = x.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v * v;
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|v| v * v).sum::<f64>()
}

/// Sum of squares of `x - y`.
#[inline]
pub(crate) fn sum_square_differences(x: &[f64], y: &[f64]) -> f64 {
    let ((xs, xr), (ys, yr)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (a, b) in xs.iter().zip(ys) {
        for (lane, (p, q)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += (p - q) * (p - q);
        }
    }
    lanes.iter().sum::<f64>() + xr.iter().zip(yr).map(|(p, q)| (p - q) * (p - q)).sum::<f64>()
}

/// Inner product in float64, left to right.
pub(crate) fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| a * b).sum()
}

/// Euclidean norm.
pub(crate) fn norm(x: &[f64]) -> f64 {
    sum_squares(x).sqrt()
}

/// Divisor for a scale: the scale, or 1 where it is 0 (all differences are 0 there).
#[inline(always)]
pub(crate) fn divisor(scale: f64) -> f64 {
    if scale > 0.0 { scale } else { 1.0 }
}

/// Gram matrix of the columns of a matrix held in *panels*: panel `i` holds columns `4i .. 4i + 4`, row by row, `depth`
/// rows. The result, `4 n x 4 n` for `n` panels, is held in panels too, so that powers of it need no rearranging; only
/// blocks on and above the diagonal are summed, the rest mirrored.
pub(crate) fn gram(panels: &[[f64; 4]], depth: usize, out: &mut [[f64; 4]]) {
    let columns = 4 * (panels.len() / depth);
    debug_assert!(panels.len().is_multiple_of(depth) && 4 * out.len() == columns * columns);
    for (i, left) in panels.chunks_exact(depth).enumerate() {
        for (j, right) in panels.chunks_exact(depth).enumerate().skip(i) {
            // 4 x 4 sums stay in registers while the rows run.
            let mut sums = [[0.0f64; 4]; 4];
            for (a, b) in left.iter().zip(right) {
                for (line, p) in sums.iter_mut().zip(a) {
                    for (s, q) in line.iter_mut().zip(b) {
                        *s += p * q;
                    }
                }
            }
            if let Some(block) = out.get_mut(j * columns + 4 * i..j * columns + 4 * i + 4) {
                block.copy_from_slice(&sums);
            }
            if let Some(block) = out.get_mut(i * columns + 4 * j..i * columns + 4 * j + 4) {
                for (q, line) in block.iter_mut().enumerate() {
                    *line = [sums[0][q], sums[1][q], sums[2][q], sums[3][q]];
                }
            }
        }
    }
}

/// Norm of the longest row of `dim` elements.
pub(crate) fn largest(side: &[f64], dim: usize) -> f64 {
    side.chunks_exact(dim).map(sum_squares).fold(0.0, f64::max).sqrt()
}

/// Norm of the longest row of `x` minus `centre`.
pub(crate) fn largest_difference(x: &[f64], centre: &[f64], dim: usize) -> f64 {
    x.chunks_exact(dim).map(|row| sum_square_differences(row, centre)).fold(0.0, f64::max).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    #[test]
    fn rounding_is_nearest_even_with_the_integer_in_the_low_bits() {
        for i in -600..600 {
            let x = f64::from(i) / 4.0;
            let (r, code) = rint_code(x);
            assert_eq!(r, x.round_ties_even());
            assert_eq!(code, (x.round_ties_even() as i64) as u8);
        }
    }

    #[test]
    fn gram_is_the_matrix_of_inner_products() {
        for (depth, panels) in [(1, 1), (5, 2), (16, 4), (3, 5)] {
            let n = 4 * panels;
            let x: Vec<[f64; 4]> = (0..depth * panels)
                .map(|i| std::array::from_fn(|c| (splitmix64((4 * i + c) as u64) % 1000) as f64 - 500.0))
                .collect();
            let mut g = vec![[f64::NAN; 4]; n * panels];
            gram(&x, depth, &mut g);
            for i in 0..n {
                for j in 0..n {
                    let column = |c: usize| x.iter().skip(c / 4 * depth).take(depth).map(move |row| row[c % 4]);
                    let want: f64 = column(i).zip(column(j)).map(|(a, b)| a * b).sum();
                    assert_eq!(g[j / 4 * n + i][j % 4], want, "{i} {j}");
                }
            }
        }
    }
}
