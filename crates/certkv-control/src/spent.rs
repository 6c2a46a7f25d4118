//! What blocks at their levels take. A level at a time: bytes are compared with it several at once, where a sum over blocks waits for each addition.
use crate::ControlError;

/// Bytes of blocks at these levels, whose bytes are `cost`; no number if one has another.
pub(crate) fn spent(levels: &[u8], cost: &[f64]) -> f64 {
    let (mut bytes, mut known) = (0.0, 0);
    for (level, cost) in cost.iter().enumerate() {
        let blocks = levels.iter().filter(|of| usize::from(**of) == level).count();
        bytes += blocks as f64 * if blocks > 0 { *cost } else { 0.0 };
        known += blocks;
    }
    if known == levels.len() { bytes } else { f64::NAN }
}

/// Refuses levels that a ladder of so many does not have.
pub(crate) fn in_ladder(levels: &[u8], count: usize) -> Result<(), ControlError> {
    let missing = |level: &u8| usize::from(*level) >= count;
    match levels.iter().max().filter(|most| missing(most)).and_then(|_| levels.iter().position(missing)) {
        Some(index) => Err(ControlError::Invalid { what: "levels", index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_a_sum_over_blocks() {
        let cost = [30.0, 50.0, 100.0];
        let levels: Vec<u8> = (0..77).map(|i| (i * i % 7 % 3) as u8).collect();
        let sum: f64 = levels.iter().map(|level| cost[usize::from(*level)]).sum();
        assert_eq!((spent(&levels, &cost), spent(&[], &cost)), (sum, 0.0));
        assert_eq!(spent(&[0, 2], &[1.0, f64::INFINITY, 4.0]), 5.0, "nobody has the middle one");
        assert!(spent(&[0, 3], &cost).is_nan());
        assert!(in_ladder(&levels, 3).is_ok() && in_ladder(&[], 0).is_ok());
        assert_eq!(in_ladder(&[0, 1, 3, 9], 3), Err(ControlError::Invalid { what: "levels", index: 2 }));
    }
}
