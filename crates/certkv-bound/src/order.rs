//! The one order in which certkv lists things: descending value, ties by ascending index (math.md (6.1)).
use crate::BoundError;
use core::cmp::Ordering;

/// Compares positions `i` and `j` of `values` for a descending order with ties by index. `values` holds no NaN.
#[inline]
pub fn by_descending(values: &[f64], i: usize, j: usize) -> Ordering {
    values[j].partial_cmp(&values[i]).unwrap_or(Ordering::Equal).then(i.cmp(&j))
}

/// Positions of `values` by descending value, ties by ascending index.
///
/// # Errors
/// [`BoundError::NotFinite`] names the first NaN: an order over NaN means nothing. Infinities are ordered.
pub fn descending(values: &[f64]) -> Result<Vec<usize>, BoundError> {
    let mut order = Vec::new();
    descending_into(values, &mut order)?;
    Ok(order)
}

/// The same in a list of the caller's, which is overwritten: with room for them it asks for no memory.
///
/// # Errors
/// As [`descending`].
pub fn descending_into(values: &[f64], order: &mut Vec<usize>) -> Result<(), BoundError> {
    order.clear();
    if let Some(index) = values.iter().position(|x| x.is_nan()) {
        return Err(BoundError::NotFinite { what: "values", index });
    }
    order.extend(0..values.len());
    order.sort_unstable_by(|&i, &j| by_descending(values, i, j));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_keep_the_lower_index_and_nan_is_refused() {
        assert_eq!(descending(&[1.0, 3.0, 3.0, -0.0, 0.0]).unwrap(), [1, 2, 0, 3, 4]);
        assert_eq!(descending(&[f64::NEG_INFINITY, f64::INFINITY]).unwrap(), [1, 0]);
        assert_eq!(descending(&[1.0, f64::NAN]), Err(BoundError::NotFinite { what: "values", index: 1 }));
    }
}
