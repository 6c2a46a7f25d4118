//! Sizes of vectors and of stored numbers, as the bound needs them.
use crate::slack::inflate;
use certkv_core::Dtype;

/// Largest of an array of non-negative f16 values: their bit patterns are ordered like the values, and NaN comes last.
pub(crate) fn largest_f16(bytes: &[u8]) -> f32 {
    let most = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7fff).fold(0, u16::max);
    Dtype::F16.decode16(most)
}

/// Upper bound of the norm of a vector.
pub(crate) fn norm(v: &[f32]) -> f32 {
    inflate(square(v).sqrt())
}

/// Sum of squares, in eight lanes.
pub(crate) fn square(v: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let (eights, rest) = v.as_chunks::<8>();
    for eight in eights {
        for (lane, &x) in lanes.iter_mut().zip(eight) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
}

/// Upper bound of the largest row norm; NaN if an element is not finite.
pub(crate) fn row_norm(rows: &[u16], store: Dtype, n: usize, dim: usize) -> f32 {
    let most = match store {
        Dtype::Bf16 => largest_square(rows, n, dim, |bits| f64::from(f32::from_bits(u32::from(bits) << 16))),
        // The magnitude's bits as those of an f32, 2^112 too small; exact for subnormals too.
        _ => largest_square(rows, n, dim, |bits| {
            let scale = if bits & 0x7c00 == 0x7c00 { f64::NAN } else { 112f64.exp2() };
            f64::from(f32::from_bits(u32::from(bits & 0x7fff) << 13)) * scale
        }),
    };
    inflate(most.sqrt())
}

/// Largest sum of squares of a row, in sixteen lanes.
#[inline(always)]
fn largest_square(rows: &[u16], n: usize, dim: usize, value: impl Fn(u16) -> f64) -> f64 {
    let mut most = 0.0f64;
    for row in rows.chunks_exact(dim).take(n) {
        let mut lanes = [0.0f64; 16];
        for part in row.chunks_exact(16) {
            for (lane, &bits) in lanes.iter_mut().zip(part) {
                let x = value(bits);
                *lane += x * x;
            }
        }
        let square = lanes.iter().sum();
        most = if square <= most { most } else { square };
    }
    most
}
