//! Unit directions for the groups of a head, math.md (2.22b): spherical k-means, and the same for the squared error of keys.
use crate::error::ControlError;
use certkv_codec::spherical::Directions;
use certkv_core::hash::hash64;
use core::{fmt, str::FromStr};

/// What training makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// `1 - cos` to the nearest direction, every token the same: k-means on directions, as published.
    Cosine,
    /// What the codec leaves of the keys, (2.22a): `||k||^2 sin^2`.
    Energy,
}

impl Objective {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cosine, Self::Energy];

    /// The name that options and tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Energy => "energy",
        }
    }

    /// What a group of squared length `energy` loses at a cosine of `product` to its direction.
    fn loss(self, energy: f64, product: f64) -> f64 {
        match self {
            Self::Cosine => 1.0 - product,
            Self::Energy => energy * (1.0 - product.max(0.0).powi(2)),
        }
    }

    /// How far that group draws its direction towards it: the derivative of what it keeps.
    fn pull(self, energy: f64, product: f64) -> f64 {
        match self {
            Self::Cosine => 1.0,
            Self::Energy => energy * product.max(0.0),
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownObjective;

impl fmt::Display for UnknownObjective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objectives are `cosine` and `energy`")
    }
}
impl std::error::Error for UnknownObjective {}

impl FromStr for Objective {
    type Err = UnknownObjective;

    fn from_str(name: &str) -> Result<Self, UnknownObjective> {
        Self::ALL.into_iter().find(|o| o.name() == name).ok_or(UnknownObjective)
    }
}

/// How directions are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// What is made small.
    pub objective: Objective,
    /// Of the first directions.
    pub seed: u64,
    /// Most rounds; training ends earlier where a round gains less than a hundred-thousandth.
    pub rounds: usize,
}

impl Training {
    /// The squared error of keys, 40 rounds.
    pub const fn new(seed: u64) -> Self {
        Self { objective: Objective::Energy, seed, rounds: 40 }
    }
}

/// A round that gains less of the loss is the last.
const GAIN: f64 = 1e-5;

/// A trained codebook.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Unit directions, (count, width), rounded to single precision.
    pub words: Vec<f32>,
    /// Mean loss with the first directions and after each round, of the total energy for [`Objective::Energy`]. It never rises.
    pub loss: Vec<f64>,
    /// Directions that nothing was nearest to and that were put where the loss was largest.
    pub mended: usize,
}

/// The directions that training sees.
struct Sample {
    width: usize,
    /// (n, width).
    units: Vec<f64>,
    energy: Vec<f64>,
    /// What losses are divided by.
    total: f64,
    objective: Objective,
}

/// Where a codebook stands: to each direction of the sample the nearest of the codebook, and what that leaves.
struct Standing {
    nearest: Vec<(u8, f64)>,
    loss: f64,
}

/// Trains `count` directions (1 to 256) on `groups`, row-major (n, width). Rows of zeros have no direction and are left out.
///
/// # Errors
/// [`ControlError::Length`] for fewer directions than `count`, or rows that are none; [`ControlError::Invalid`] for a row that is not
/// finite.
pub fn train(groups: &[f32], width: usize, count: usize, training: &Training) -> Result<Trained, ControlError> {
    let sample = Sample::new(groups, width, training.objective)?;
    if count == 0 || count > 256 || sample.energy.len() < count {
        return Err(ControlError::Length { what: "directions", got: sample.energy.len(), need: count.clamp(1, 256) });
    }
    let first = sample.scattered(count, training.seed);
    sample.improve(first, training.rounds)
}

impl Sample {
    fn new(groups: &[f32], width: usize, objective: Objective) -> Result<Self, ControlError> {
        if width == 0 || !groups.len().is_multiple_of(width) {
            return Err(ControlError::Length { what: "groups", got: groups.len(), need: width });
        }
        let mut sample =
            Self { width, units: Vec::with_capacity(groups.len()), energy: Vec::new(), total: 0.0, objective };
        for (index, row) in groups.chunks_exact(width).enumerate() {
            let energy: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
            if !energy.is_finite() {
                return Err(ControlError::Invalid { what: "groups", index });
            }
            if energy > 0.0 {
                let length = energy.sqrt();
                sample.units.extend(row.iter().map(|x| f64::from(*x) / length));
                sample.energy.push(energy);
            }
        }
        let tokens = sample.energy.len() as f64;
        sample.total = if objective == Objective::Energy { sample.energy.iter().sum() } else { tokens };
        Ok(sample)
    }

    fn unit(&self, at: usize) -> &[f64] {
        self.units.get(at * self.width..(at + 1) * self.width).unwrap_or_default()
    }

    /// First directions: members of the sample, drawn one after another by what those before leave of them.
    fn scattered(&self, count: usize, seed: u64) -> Vec<f64> {
        let mut left: Vec<f64> = self.energy.iter().map(|e| self.objective.loss(*e, 0.0)).collect();
        let mut words = Vec::with_capacity(count * self.width);
        for number in 0..count {
            // 53 bits of the hash are a number in [0, 1).
            let share = (hash64(&[seed, number as u64]) >> 11) as f64 / (1u64 << 53) as f64;
            let mut mark = share * left.iter().sum::<f64>();
            let passed = |l: &f64| {
                mark -= l;
                mark < 0.0
            };
            // Where nothing is left, or rounding runs past the end, any member does.
            let drawn = left.iter().position(passed).unwrap_or((share * left.len() as f64) as usize);
            words.extend_from_slice(self.unit(drawn));
            let word = self.unit(drawn);
            for ((left, unit), energy) in left.iter_mut().zip(self.units.chunks_exact(self.width)).zip(&self.energy) {
                let product: f64 = unit.iter().zip(word).map(|(a, b)| a * b).sum();
                *left = left.min(self.objective.loss(*energy, product).max(0.0));
            }
        }
        words
    }

    fn standing(&self, words: &[f64]) -> Result<Standing, ControlError> {
        // Directions that come from unit vectors are unit vectors.
        let book =
            Directions::new(words, self.width).map_err(|_| ControlError::Invalid { what: "directions", index: 0 })?;
        let nearest: Vec<(u8, f64)> = self.units.chunks_exact(self.width).map(|unit| book.nearest(unit)).collect();
        let lost =
            nearest.iter().zip(&self.energy).map(|((_, product), energy)| self.objective.loss(*energy, *product));
        Ok(Standing { loss: (lost.sum::<f64>() / self.total).max(0.0), nearest })
    }

    /// Rounds of (2.22b) from `words` on.
    fn improve(&self, mut words: Vec<f64>, rounds: usize) -> Result<Trained, ControlError> {
        let mut at = self.standing(&words)?;
        let (mut loss, mut mended) = (vec![at.loss], 0);
        for _ in 0..rounds {
            let (next, filled) = self.step(&words, &at.nearest);
            let then = self.standing(&next)?;
            // In real numbers it cannot rise; where rounding decides there is nothing left to gain.
            if then.loss > at.loss {
                break;
            }
            let little = at.loss - then.loss <= GAIN * at.loss;
            (words, at, mended) = (next, then, mended + filled);
            loss.push(at.loss);
            if little {
                break;
            }
        }
        Ok(Trained { words: words.into_iter().map(|x| x as f32).collect(), loss, mended })
    }

    /// Each direction where those that are nearest to it draw it; one that has none where the loss is largest. Also how many had none.
    fn step(&self, words: &[f64], nearest: &[(u8, f64)]) -> (Vec<f64>, usize) {
        let mut next = vec![0.0; words.len()];
        let mut members = vec![0usize; words.len() / self.width];
        for ((unit, energy), (index, product)) in self.units.chunks_exact(self.width).zip(&self.energy).zip(nearest) {
            let (pull, at) = (self.objective.pull(*energy, *product), usize::from(*index));
            members[at] += 1;
            next[at * self.width..(at + 1) * self.width].iter_mut().zip(unit).for_each(|(sum, x)| *sum += pull * x);
        }
        let empty: Vec<usize> = (0..members.len()).filter(|word| members[*word] == 0).collect();
        for (word, old) in next.chunks_exact_mut(self.width).zip(words.chunks_exact(self.width)) {
            let length = word.iter().map(|x| x * x).sum::<f64>().sqrt();
            // Members may cancel each other: the direction is then as good as any, and stays.
            let whole = length > f64::MIN_POSITIVE;
            word.iter_mut().zip(old).for_each(|(x, old)| *x = if whole { *x / length } else { *old });
        }
        let mut worst: Vec<(f64, usize)> = if empty.is_empty() { Vec::new() } else { self.losses(nearest) };
        worst.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (word, (_, at)) in empty.iter().zip(&worst) {
            next[word * self.width..(word + 1) * self.width].copy_from_slice(self.unit(*at));
        }
        (next, empty.len())
    }

    fn losses(&self, nearest: &[(u8, f64)]) -> Vec<(f64, usize)> {
        let lost =
            nearest.iter().zip(&self.energy).map(|((_, product), energy)| self.objective.loss(*energy, *product));
        lost.zip(0..).collect()
    }
}

#[cfg(test)]
mod tests;
