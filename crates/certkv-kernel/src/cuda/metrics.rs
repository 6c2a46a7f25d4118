//! What keys of a calibration are coded in, math.md (2.19a), as the kernels read it: of every KV head of a layer its centre, then its balance scale.
use super::queue::Span;
use super::touched::Touched;
use super::variant::Variant;
use certkv_codec::KeyMetric;
use certkv_core::RecordLayout;
use certkv_device::cuda::CudaError;

/// Bytes of a layer's, `f32[kv_heads][2][dim]`.
pub const fn metric_bytes(layout: &RecordLayout, kv_heads: usize) -> usize {
    4 * kv_heads * 2 * layout.dim
}

/// One head's of them.
pub fn metric_words<'a>(metric: KeyMetric<'a>) -> impl Iterator<Item = u32> + 'a {
    metric.centre().iter().chain(metric.balance()).map(|x| x.to_bits())
}

/// Address of a layer's; 0 for a variant that has none.
pub(super) fn metrics_of(
    on: &mut Touched,
    variant: &Variant,
    metrics: Option<Span<'_>>,
    kv_heads: usize,
) -> Result<u64, CudaError> {
    if variant.folds() != metrics.is_some() {
        let why = if variant.folds() { "none: the variant folds queries" } else { "the variant folds nothing" };
        return Err(CudaError::BadArgument { argument: "metrics", why });
    }
    on.may_read(metrics, "metrics", metric_bytes(variant.layout(), kv_heads))
}
