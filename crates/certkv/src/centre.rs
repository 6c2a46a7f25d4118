//! The value centre `c` of math.md (3.3): one fixed vector per layer and KV head of a sequence.
//!
//! Any fixed vector keeps the bounds true; one near the mean of the values makes `R_b` and `||O' - c||` small. It is set
//! from the first rows that reach the layer, before its first block is annotated, and shared by every fork.

/// Rows that the centre is averaged over, at most.
pub(crate) const CENTRE_ROWS: usize = 256;

/// Mean of `rows` value rows of `width` elements each, decoded by `value(row, element)`.
pub(crate) fn mean(rows: usize, width: usize, value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let rows = rows.min(CENTRE_ROWS);
    (0..width).map(|c| ((0..rows).map(|r| f64::from(value(r, c))).sum::<f64>() / rows.max(1) as f64) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::mean;

    #[test]
    fn averages_each_channel_and_survives_no_rows() {
        assert_eq!(mean(2, 3, |r, c| (r * 2 + c) as f32), [1.0, 2.0, 3.0]);
        assert_eq!(mean(0, 2, |_, _| 1.0), [0.0, 0.0]);
    }
}
