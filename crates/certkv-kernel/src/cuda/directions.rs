//! What kernels have to know of spherical keys, math.md 2.9: of every KV head of a layer its directions, `f32[group][word][channel]`, as they are.
use certkv_codec::spherical::Spherical;
use certkv_core::RecordLayout;

/// Words of a head's directions; 0 for other keys.
pub(super) const fn words(layout: &RecordLayout) -> usize {
    match layout.format.key.tier() {
        Some(tier) => layout.dim << tier.bits(),
        None => 0,
    }
}

/// Bytes of the products of a group of queries with them, which a CTA of the decode kernel keeps: `TABLE_BYTES` of kernels/attend/shape.cuh.
pub(super) const fn table_bytes(layout: &RecordLayout, group: usize) -> usize {
    match layout.format.key.tier() {
        Some(tier) => 4 * columns(group) * (layout.dim / tier.group() * tier.words()) + 4 * tiles(group),
        None => 0,
    }
}

/// Bytes of them as halves, which a CTA of the extend kernel keeps.
pub(super) const fn half_bytes(layout: &RecordLayout) -> usize {
    2 * words(layout)
}

/// Columns of the matrix unit, which hold the powers of two that queries are divided by.
const fn tiles(group: usize) -> usize {
    if group > 8 { 16 } else { 8 }
}

/// Heads that a row of the products has room for.
const fn columns(group: usize) -> usize {
    if group <= 4 { 4 } else { tiles(group) }
}

/// A head's.
pub(super) fn table(books: &Spherical) -> Vec<u32> {
    let words = |group: &certkv_codec::spherical::Directions| -> Vec<u32> {
        // Given in single precision, and widened.
        group.words().iter().map(|x| (*x as f32).to_bits()).collect()
    };
    books.books().iter().flat_map(words).collect()
}
