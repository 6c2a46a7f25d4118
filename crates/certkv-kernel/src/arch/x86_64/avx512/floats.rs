//! 8-bit floating-point codes as 16-bit rows.
use super::step;
use crate::page_scale::unpack_floats_body;
use crate::query::Cursor;

/// A line of codes at a time, and with each a line of the next record asked for.
pub(super) fn unpack_floats(codes: &[u8], e4m3: bool, out: &mut [u16], ahead: &mut Cursor) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn wide(codes: &[u8], e4m3: bool, out: &mut [u16], ahead: &mut Cursor) {
        let (lines, rows) = (codes.as_chunks::<64>(), out.as_chunks_mut::<64>());
        for (line, row) in lines.0.iter().zip(rows.0) {
            unpack_floats_body(line, e4m3, row);
            step(ahead);
        }
        unpack_floats_body(lines.1, e4m3, rows.1);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(codes, e4m3, out, ahead) }
}
