//! Answers and text, token by token through a cache.
use super::probe::Probe;
use crate::model::{Llama, ModelError, Rows, llama::argmax};
use std::time::Instant;

/// How an answer is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judging {
    /// The true answer is the input; it counts when every token of it is the first choice.
    TeacherForcing,
    /// The model's own choices are the input, until one is wrong.
    Greedy,
}

/// What came of one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Tokens whose first choice was the true one.
    pub right: usize,
    /// The model's choices.
    pub tokens: Vec<u32>,
}

fn step(model: &Llama, probe: &mut Probe<'_>, token: u32) -> Result<(Vec<f32>, f64), ModelError> {
    let start = Instant::now();
    let logits = model.forward(&[token], probe, Rows::Last)?;
    Ok((logits, start.elapsed().as_secs_f64()))
}

/// Answers: `opening` is the prompt's last token, which is not in the cache yet, so that already the first token of the
/// answer is read off the cache under test. Returns the seconds that the steps took beside what was chosen.
///
/// # Errors
/// What the model or the cache says.
pub fn answer(
    model: &Llama,
    probe: &mut Probe<'_>,
    opening: u32,
    truth: &[u32],
    judging: Judging,
) -> Result<(Answered, f64), ModelError> {
    let mut answered = Answered { right: 0, tokens: Vec::new() };
    let (mut token, mut seconds) = (opening, 0.0);
    for &next in truth {
        let (logits, took) = step(model, probe, token)?;
        seconds += took;
        let choice = argmax(&logits);
        answered.tokens.push(choice as u32);
        let right = choice == next as usize;
        answered.right += usize::from(right);
        if judging == Judging::Greedy && !right {
            break;
        }
        token = next;
    }
    Ok((answered, seconds))
}

/// Bits that the model needs for `tokens`, of which the first follows `opening`. Returns seconds too.
///
/// # Errors
/// What the model or the cache says.
pub fn bits(model: &Llama, probe: &mut Probe<'_>, opening: u32, tokens: &[u32]) -> Result<(f64, f64), ModelError> {
    let (mut token, mut total, mut seconds) = (opening, 0.0, 0.0);
    for &next in tokens {
        let (logits, took) = step(model, probe, token)?;
        seconds += took;
        total += surprise(&logits, next as usize);
        token = next;
    }
    Ok((total, seconds))
}

/// `-log2 softmax(logits)[index]`.
fn surprise(logits: &[f32], index: usize) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    (sum.ln() + largest - logits.get(index).map_or(f64::NEG_INFINITY, |&x| f64::from(x))) / std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_in_bits() {
        assert!((surprise(&[0.0; 8], 3) - 3.0).abs() < 1e-12);
        assert!(surprise(&[100.0, 0.0], 0) < 1e-12);
        assert_eq!(surprise(&[0.0; 2], 2), f64::INFINITY);
    }
}
