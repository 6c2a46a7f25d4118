//! 16-bit patterns and scales as numbers and as bytes of a record.
use certkv_core::Dtype;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Numbers of 16-bit patterns, exactly.
pub(crate) fn widen(words: &[u16], store: Dtype, single: &mut [f32], out: &mut [f64]) {
    match store {
        Dtype::Bf16 => single.iter_mut().zip(words).for_each(|(x, w)| *x = f32::from_bits(u32::from(*w) << 16)),
        _ => words.reinterpret_cast::<half::f16>().convert_to_f32_slice(single),
    }
    out.iter_mut().zip(single.iter()).for_each(|(y, x)| *y = f64::from(*x));
}

/// The patterns themselves, little-endian.
pub(crate) fn write_words(words: &[u16], section: &mut [u8]) {
    section.as_chunks_mut::<2>().0.iter_mut().zip(words).for_each(|(bytes, w)| *bytes = w.to_le_bytes());
}

/// Writes numbers that are already values of `meta`, little-endian.
pub(crate) fn write_scales<'a>(scales: impl Iterator<Item = &'a f64>, meta: Dtype, section: &mut [u8]) {
    for (bytes, s) in section.chunks_exact_mut(meta.bytes()).zip(scales) {
        match meta {
            Dtype::F16 => bytes.copy_from_slice(&half::f16::from_f64(*s).to_le_bytes()),
            Dtype::Bf16 => bytes.copy_from_slice(&half::bf16::from_f64(*s).to_le_bytes()),
            Dtype::F32 => bytes.copy_from_slice(&(*s as f32).to_le_bytes()),
        }
    }
}
