//! Bits for the pairs of channels of a head: Block-GTQ, math.md (9.1), (9.2).
use crate::ControlError;
use crate::error::{countable, finite};
use std::collections::BinaryHeap;

/// What the next bit of a pair saves; the largest first, of equal ones the lowest pair.
#[derive(Debug, Clone, Copy)]
struct Next {
    saves: f64,
    pair: u32,
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.saves.total_cmp(&other.saves).then(other.pair.cmp(&self.pair))
    }
}
impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Next {}

/// Bits of every pair, from `least` to `most`, that minimise `sum score 4^-bits` with `budget` bits in all (Theorem 9.1). Ties go to
/// the lowest pair. `bits` is overwritten. Costs a logarithm a bit.
///
/// # Errors
/// [`ControlError::Bits`] if no widths between the two have that sum; [`ControlError::Invalid`] for a score that is negative or not
/// finite; [`ControlError::TooMany`]. `bits` is unchanged.
pub fn allocate_bits(
    score: &[f64],
    budget: usize,
    least: u8,
    most: u8,
    bits: &mut Vec<u8>,
) -> Result<(), ControlError> {
    countable(score.len())?;
    finite("score", score)?;
    let (floor, ceiling) = (score.len() * usize::from(least), score.len() * usize::from(most));
    if least > most || budget < floor || budget > ceiling {
        return Err(ControlError::Bits { budget, floor, ceiling });
    }
    bits.clear();
    bits.resize(score.len(), least);
    let saves =
        |pair: usize, bits: u8| Next { saves: 0.75 * score[pair] * 4f64.powi(-i32::from(bits)), pair: pair as u32 };
    let mut heap: BinaryHeap<Next> = (0..score.len()).filter(|_| least < most).map(|pair| saves(pair, least)).collect();
    for _ in floor..budget {
        let Some(Next { pair, .. }) = heap.pop() else { break };
        let of_pair = &mut bits[pair as usize];
        *of_pair += 1;
        if *of_pair < most {
            heap.push(saves(pair as usize, *of_pair));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loss(score: &[f64], bits: &[u8]) -> f64 {
        score.iter().zip(bits).map(|(s, b)| s * 4f64.powi(-i32::from(*b))).sum()
    }

    proptest! {
        #[test]
        fn nothing_is_better(
            score in proptest::collection::vec(prop_oneof![Just(0.0), Just(1.0), 0.001f64..50.0], 1..6),
            (least, more) in (1u8..4, 0u8..4), share in 0.0f64..1.0,
        ) {
            let (n, most) = (score.len(), least + more);
            let budget = n * usize::from(least) + (share * (n * usize::from(more)) as f64) as usize;
            let mut bits = Vec::new();
            allocate_bits(&score, budget, least, most, &mut bits).unwrap();
            prop_assert!(bits.iter().all(|b| (least..=most).contains(b)));
            prop_assert_eq!(bits.iter().map(|b| usize::from(*b)).sum::<usize>(), budget);
            let widths = usize::from(more) + 1;
            let found = loss(&score, &bits);
            for mut code in 0..widths.pow(n as u32) {
                let other: Vec<u8> = (0..n).map(|_| { let b = least + (code % widths) as u8; code /= widths; b }).collect();
                if other.iter().map(|b| usize::from(*b)).sum::<usize>() == budget {
                    prop_assert!(found <= loss(&score, &other) * (1.0 + 1e-12), "{bits:?} against {other:?}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_ties_go_to_the_lowest() {
        let mut bits = vec![9];
        for (budget, least, most) in [(2, 1, 8), (25, 1, 8), (9, 4, 3)] {
            let refused = allocate_bits(&[1.0; 3], budget, least, most, &mut bits).unwrap_err();
            assert!(matches!(refused, ControlError::Bits { .. }), "{refused}");
        }
        for bad in [f64::NAN, -0.5, f64::INFINITY] {
            let refused = allocate_bits(&[1.0, bad], 4, 1, 8, &mut bits).unwrap_err();
            assert_eq!(refused, ControlError::Invalid { what: "score", index: 1 });
        }
        assert_eq!(bits, [9]);
        allocate_bits(&[1.0; 4], 6, 1, 2, &mut bits).unwrap();
        assert_eq!(bits, [2, 2, 1, 1]);
        allocate_bits(&[], 0, 1, 8, &mut bits).unwrap();
        assert!(bits.is_empty());
    }
}
