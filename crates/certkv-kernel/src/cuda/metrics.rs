//! What keys of a calibration are coded in, math.md (2.19a), as the kernels read it: of every KV head of a layer its centre, then its balance scale; of keys
//! of unlike widths (2.19c) a table more (`grouped`); of spherical keys their directions alone (`directions`).
use super::queue::Span;
use super::touched::Touched;
use super::turbo::folds;
use super::variant::Variant;
use super::{directions, grouped};
use certkv_codec::KeyMetric;
use certkv_core::RecordLayout;
use certkv_device::cuda::CudaError;

/// Words of a KV head's, of 32 bits; 0 where keys are coded as they are.
pub const fn metric_stride(layout: &RecordLayout) -> usize {
    if directions::words(layout) > 0 {
        directions::words(layout)
    } else if grouped::halves(layout) > 0 {
        grouped::table_words(layout.dim)
    } else if folds(layout) {
        2 * layout.dim
    } else {
        0
    }
}

/// Bytes of a layer's, `u32[kv_heads][metric_stride]`.
pub const fn metric_bytes(layout: &RecordLayout, kv_heads: usize) -> usize {
    4 * kv_heads * metric_stride(layout)
}

/// One head's words.
pub fn metric_words(metric: KeyMetric<'_>) -> Vec<u32> {
    match (metric.groups(), metric.books()) {
        (_, Some(books)) => directions::table(books),
        (Some(groups), _) => grouped::table(metric, groups),
        (None, None) => metric.centre().iter().chain(metric.balance()).map(|x| x.to_bits()).collect(),
    }
}

/// Address of a layer's; 0 for a variant that has none.
pub(super) fn metrics_of(
    on: &mut Touched,
    variant: &Variant,
    metrics: Option<Span<'_>>,
    kv_heads: usize,
) -> Result<u64, CudaError> {
    if variant.is_calibrated() != metrics.is_some() {
        let needed = variant.is_calibrated();
        let why = if needed {
            "none: the variant's keys need a calibration"
        } else {
            "the variant's keys need no calibration"
        };
        return Err(CudaError::BadArgument { argument: "metrics", why });
    }
    on.may_read(metrics, "metrics", metric_bytes(variant.layout(), kv_heads))
}
