//! Which records and heads there are kernels for, and which records are transcoded.
use super::turbo;
use super::variant::{MOST_REFINED_HEADS, VariantError};
use certkv_core::{Dtype, KeyFormat, RecordLayout, ValueFormat};

fn unsupported(what: &'static str, value: usize, needs: &'static str) -> Result<(), VariantError> {
    Err(VariantError::Unsupported { what, value, needs })
}

/// [`VariantError`] names what the kernels do not support of records of `layout` and `group` query heads per KV head.
pub(super) fn check(layout: &RecordLayout, group: usize) -> Result<(), VariantError> {
    if !(1..=16).contains(&group) {
        return Err(VariantError::Group(group));
    }
    if !layout.dim.is_multiple_of(32) {
        return unsupported("head_dim", layout.dim, "a multiple of 32");
    }
    if !layout.store.is_sixteen_bit() {
        return unsupported("bits of an original", 8 * layout.store.bytes(), "16");
    }
    match layout.format.key {
        KeyFormat::Channel { bits: 0, .. } => {
            return unsupported("bits of a key's code", 0, "codes: a mean for all of a block is for the CPU");
        }
        KeyFormat::Channel { meta, .. } if meta != Dtype::F16 => {
            let what = if meta == Dtype::F32 { "f32 metadata of bits" } else { "bf16 metadata of bits" };
            return unsupported(what, 8 * meta.bytes(), "f16 metadata, as k8 has");
        }
        // A lane holds codes of 8 channels out of 32: a scale must not change among the lanes of one product.
        KeyFormat::Token { .. } | KeyFormat::Page { .. } if !layout.format.key.group(layout.dim).is_multiple_of(32) => {
            return unsupported("key group", layout.format.key.group(layout.dim), "a multiple of 32 channels");
        }
        _ => {}
    }
    if layout.format.value == (ValueFormat::Channel { bits: 0 }) {
        return unsupported("bits of a value's code", 0, "codes: a mean for all of a block is for the CPU");
    }
    // A block's sums beside those of all heads are more registers than there are.
    if layout.format.value.page().is_some() && layout.dim > 128 && group > 8 {
        return unsupported("query heads of values with one scale per block:", group, "at most 8 of 256 channels");
    }
    if turbo::rotates(layout) && !layout.dim.is_power_of_two() {
        return unsupported("head_dim of a tq format:", layout.dim, "a power of two");
    }
    if !layout.format.refine.is_none() {
        // More heads or channels leave no registers for a second look at a block.
        if group > MOST_REFINED_HEADS {
            return unsupported("group of a refinable format:", group, "at most 8 query heads per KV head");
        }
        let (key, value) = (usize::from(layout.format.refine.key), usize::from(layout.format.refine.value));
        let needs = "no more than the codes, whose place they take";
        if key > layout.format.key.bits() {
            return unsupported("key residuals of bits", key, needs);
        }
        if value > layout.format.value.bits() {
            return unsupported("value residuals of bits", value, needs);
        }
        if layout.dim > 128 {
            return unsupported("head_dim of a refinable format:", layout.dim, "at most 128");
        }
    }
    Ok(())
}

/// The same of a layout that records are transcoded from or to; `residuals` names its residual bits.
pub(super) fn transcoded(l: &RecordLayout, residuals: &'static str) -> Result<(), VariantError> {
    let bits = l.format.key.bits();
    if turbo::rotates(l) || l.format.key.is_calibrated() {
        return unsupported("tq or calibrated codes of bits", bits, "none where records are transcoded");
    }
    let channel = matches!(l.format.value, ValueFormat::Channel { .. });
    if l.format.key.page().is_some() || l.format.value.page().is_some() || channel {
        return unsupported("codes with scales per block of bits", bits, "none where records are transcoded");
    }
    if !l.format.refine.is_none() {
        return unsupported(residuals, l.format.refine.key.into(), "none: blocks are packed anew");
    }
    Ok(())
}
