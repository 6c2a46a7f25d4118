//! Annotations of a block: upper bounds of the errors of its decoded form, math.md section 3.
//!
//! Everything is measured in float64 on the decoded block, multiplied by `1 + 2^-40` and rounded up to single precision
//! (rule (0.2)); lower ends of ranges are rounded down. Blocks are row-major (rows, dim).
use crate::error::{CodecError, Input, finite, grouped, rows, sized};
use crate::numeric::{UP, divisor, gram, sum_square_differences, sum_squares};
use certkv_core::round::{F32, down, up_f32};

/// Annotations of a value block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueAnnotations {
    /// `max_t ||v_t - v^_t||`, math.md (3.1).
    pub eta: f32,
    /// `max_t ||v_t||`, math.md (3.2).
    pub nu: f32,
    /// `max_t ||v_t - c||`, math.md (3.3).
    pub radius: f32,
    /// `||[v_t - v^_t]_t||_op`, math.md (3.4), at most `rows^(1/16)` too large.
    pub sop: f32,
}

/// Annotations of a key block.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyAnnotations {
    /// `max_t ||e_t||`, math.md (3.5).
    pub eps: f32,
    /// `max_t |e_tc|` per channel, (dim,).
    pub channel_errors: Vec<f32>,
    /// `max_t ||e_t^(G)||` per group of channels, (dim / group,).
    pub group_errors: Vec<f32>,
    /// `||E_G||_op` per group, math.md (3.6), (dim / group,).
    pub group_norms: Vec<f32>,
    /// `||E diag(1/sigma)||_op`, math.md (3.6); 0 without per-channel scales.
    pub kappa: f32,
    /// `max_t max(||k_t||, ||k^_t||)`, math.md (3.8).
    pub key_norm: f32,
    /// Least key per channel, rounded down, (dim,).
    pub lo: Vec<f32>,
    /// Greatest key per channel, rounded up, (dim,).
    pub hi: Vec<f32>,
}

/// Inflates a float64 measurement and rounds it up to single precision. NaN stays NaN and so fails closed.
pub(crate) fn publish(x: f64) -> f32 {
    up_f32(x * UP)
}

/// Upper bound of the spectral norm of `e` (rows, dim), math.md (3.7); 0 for a block of zeros.
///
/// # Errors
/// [`CodecError::Shape`] if `e` is not a whole number of rows; [`CodecError::NonFinite`].
pub fn op_norm_up(e: &[f64], dim: usize) -> Result<f64, CodecError> {
    let n = rows(Input::Decoded, e.len(), dim)?;
    finite(Input::Decoded, e, dim)?;
    let mut panels = vec![[0.0; 4]; n.div_ceil(4) * dim];
    for (t, row) in e.chunks_exact(dim).enumerate() {
        for (slot, x) in panels.iter_mut().skip(t / 4 * dim).zip(row) {
            slot[t % 4] = *x;
        }
    }
    Ok(Spectral::new(4 * n.div_ceil(4)).norm(&panels, dim))
}

/// Work buffers of the spectral bound for blocks of `n` tokens, `n` a multiple of 4.
#[derive(Debug, Clone)]
pub(crate) struct Spectral {
    n: usize,
    gram: Vec<[f64; 4]>,
    square: Vec<[f64; 4]>,
}

impl Spectral {
    pub(crate) fn new(n: usize) -> Self {
        Self { n, gram: vec![[0.0; 4]; n * n / 4], square: vec![[0.0; 4]; n * n / 4] }
    }

    /// The bound for finite errors held in panels of four tokens, `panels[t / 4][channel][t % 4]`; infinite if their
    /// squares overflow.
    pub(crate) fn norm(&mut self, panels: &[[f64; 4]], channels: usize) -> f64 {
        let n = self.n;
        gram(panels, channels, &mut self.gram);
        // The largest entry of a Gram matrix lies on its diagonal.
        let diagonal = self.gram.chunks_exact(n).enumerate().flat_map(|(i, panel)| panel.iter().skip(4 * i).take(4));
        let top = diagonal.enumerate().map(|(i, row)| row[i % 4]).fold(0.0, f64::max);
        if top == 0.0 || top == f64::INFINITY {
            return top;
        }
        let inverse = 1.0 / top;
        let mut row_sum = 0.0f64;
        for panel in self.gram.chunks_exact_mut(n) {
            let mut sums = [0.0f64; 4];
            for row in panel {
                for (x, sum) in row.iter_mut().zip(&mut sums) {
                    *x *= inverse;
                    *sum += x.abs();
                }
            }
            row_sum = sums.into_iter().fold(row_sum, f64::max);
        }
        // tr Gm^8 = ||Gm^4||_F^2; powers of a symmetric matrix are Gram matrices of its columns.
        gram(&self.gram, n, &mut self.square);
        gram(&self.square, n, &mut self.gram);
        let trace = sum_squares(self.gram.as_flattened());
        (row_sum.min(trace.sqrt().sqrt().sqrt()) * top).sqrt() * UP
    }
}

fn largest_norm(x: &[f64], dim: usize) -> f64 {
    x.chunks_exact(dim).map(sum_squares).fold(0.0, f64::max).sqrt()
}

/// Annotates `values` against their decoded form; `centre` is the head's fixed vector, (dim,).
///
/// # Errors
/// [`CodecError::Shape`] if the blocks or the centre do not fit; [`CodecError::NonFinite`].
pub fn annotate_values(
    values: &[f64],
    decoded: &[f64],
    centre: &[f64],
    dim: usize,
) -> Result<ValueAnnotations, CodecError> {
    rows(Input::Values, values.len(), dim)?;
    sized(Input::Decoded, decoded.len(), values.len())?;
    sized(Input::Centre, centre.len(), dim)?;
    // Maxima would pass over a NaN.
    finite(Input::Values, values, dim)?;
    finite(Input::Decoded, decoded, dim)?;
    finite(Input::Centre, centre, dim)?;
    let errors: Vec<f64> = values.iter().zip(decoded).map(|(v, d)| v - d).collect();
    let radius = values.chunks_exact(dim).map(|v| sum_square_differences(v, centre)).fold(0.0, f64::max).sqrt();
    Ok(ValueAnnotations {
        eta: publish(largest_norm(&errors, dim)),
        nu: publish(largest_norm(values, dim)),
        radius: publish(radius),
        sop: publish(op_norm_up(&errors, dim)?),
    })
}

/// Annotates `keys` against their decoded form, with groups of `group` neighbouring channels (`dim` for one group).
/// `sigma` are the scales of a per-channel codec, (dim,).
///
/// # Errors
/// [`CodecError::Shape`] if the blocks, the group or the scales do not fit; [`CodecError::NonFinite`].
pub fn annotate_keys(
    keys: &[f64],
    decoded: &[f64],
    dim: usize,
    group: usize,
    sigma: Option<&[f64]>,
) -> Result<KeyAnnotations, CodecError> {
    let n = rows(Input::Keys, keys.len(), dim)?;
    sized(Input::Decoded, decoded.len(), keys.len())?;
    let groups = grouped(dim, group)?;
    finite(Input::Keys, keys, dim)?;
    finite(Input::Decoded, decoded, dim)?;
    let errors: Vec<f64> = keys.iter().zip(decoded).map(|(k, d)| k - d).collect();
    let (mut group_errors, mut group_norms) = (Vec::with_capacity(groups), Vec::with_capacity(groups));
    let mut part = Vec::with_capacity(n * group);
    for g in 0..groups {
        part.clear();
        for row in errors.chunks_exact(dim) {
            part.extend_from_slice(&row[g * group..(g + 1) * group]);
        }
        group_errors.push(publish(largest_norm(&part, group)));
        group_norms.push(publish(op_norm_up(&part, group)?));
    }
    let kappa = match sigma {
        None => 0.0,
        Some(sigma) => {
            sized(Input::Scale, sigma.len(), dim)?;
            finite(Input::Scale, sigma, dim)?;
            // Channels with scale 0 are exact: their errors are 0 whatever they are divided by.
            let scaled: Vec<f64> = errors.iter().zip(sigma.iter().cycle()).map(|(e, s)| e / divisor(*s)).collect();
            publish(op_norm_up(&scaled, dim)?)
        }
    };
    let by_channel = |f: fn(f64, f64) -> f64, x: &[f64]| {
        let mut out = x[..dim].to_vec();
        x.chunks_exact(dim).for_each(|row| out.iter_mut().zip(row).for_each(|(o, v)| *o = f(*o, *v)));
        out
    };
    let magnitudes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    Ok(KeyAnnotations {
        eps: publish(largest_norm(&errors, dim)),
        channel_errors: by_channel(f64::max, &magnitudes).into_iter().map(publish).collect(),
        group_errors,
        group_norms,
        kappa,
        key_norm: publish(largest_norm(keys, dim).max(largest_norm(decoded, dim))),
        lo: by_channel(f64::min, keys).into_iter().map(|x| down(x, F32) as f32).collect(),
        hi: by_channel(f64::max, keys).into_iter().map(up_f32).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    /// Largest singular value by power iteration on `E^T E`, from below.
    fn power(e: &[f64], dim: usize) -> f64 {
        let mut x = vec![1.0; dim];
        for _ in 0..300 {
            let y: Vec<f64> = e.chunks_exact(dim).map(|r| r.iter().zip(&x).map(|(a, b)| a * b).sum()).collect();
            let mut z = vec![0.0; dim];
            e.chunks_exact(dim).zip(&y).for_each(|(r, y)| z.iter_mut().zip(r).for_each(|(z, a)| *z += a * y));
            let length = sum_squares(&z).sqrt();
            x = z.iter().map(|v| v / length).collect();
        }
        let y = e.chunks_exact(dim).map(|r| r.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>());
        y.map(|v| v * v).sum::<f64>().sqrt()
    }

    #[test]
    fn spectral_bound_is_above_the_norm_and_close() {
        for (n, dim) in [(1, 8), (5, 8), (16, 64), (32, 80), (64, 64)] {
            let e: Vec<f64> = (0..n * dim).map(|i| (splitmix64(i as u64) % 2001) as f64 / 1000.0 - 1.0).collect();
            let (bound, truth) = (op_norm_up(&e, dim).unwrap(), power(&e, dim));
            assert!(bound >= truth && bound <= truth * (n as f64).powf(1.0 / 16.0) * 1.001, "{n} {bound} {truth}");
        }
        assert_eq!(op_norm_up(&[0.0; 32], 8).unwrap(), 0.0);
        // One row: the bound is the norm itself.
        assert!((op_norm_up(&[3.0, 4.0], 2).unwrap() - 5.0).abs() < 1e-9);
        assert!(op_norm_up(&[1.0; 5], 2).is_err());
        // Nothing that is not a number passes for a small one.
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(op_norm_up(&[0.0, bad], 2).is_err());
            assert!(annotate_keys(&[0.0; 2], &[bad, 0.0], 2, 2, None).is_err());
            assert!(annotate_keys(&[0.0; 2], &[0.0; 2], 2, 2, Some(&[1.0, bad])).is_err());
            assert!(annotate_values(&[0.0; 2], &[0.0; 2], &[bad, 0.0], 2).is_err());
        }
        assert_eq!(op_norm_up(&[1e200, 1.0], 2).unwrap(), f64::INFINITY);
    }

    #[test]
    fn annotations_of_a_block_worked_by_hand() {
        let keys = [3.0, 4.0, 0.0, -1.0];
        let decoded = [3.0, 4.5, 0.25, -1.0];
        let a = annotate_keys(&keys, &decoded, 2, 1, Some(&[0.5, 1.0])).unwrap();
        let close = |got: f32, want: f64| f64::from(got) >= want && f64::from(got) <= want * 1.000_001;
        assert!(close(a.eps, 0.5) && close(a.key_norm, (9.0f64 + 20.25).sqrt()) && close(a.kappa, 0.5));
        assert!(close(a.channel_errors[0], 0.25) && close(a.group_errors[1], 0.5) && close(a.group_norms[0], 0.25));
        assert_eq!((a.lo, a.hi), (vec![0.0, -1.0], vec![3.0, 4.0]));
        let v = annotate_values(&keys, &decoded, &[1.0, 0.0], 2).unwrap();
        assert!(close(v.eta, 0.5) && close(v.nu, 5.0) && close(v.radius, 20f64.sqrt()) && v.sop >= 0.5);
        assert!(annotate_values(&keys, &decoded, &[1.0], 2).is_err());
    }
}
