//! A calibration: what queries and keys of a model looked like over a text, and the Block-GTQ scheme of every key head that was
//! chosen from it, math.md 2.8 and 9.1.
//!
//! [`Meter`] gathers, [`Calibration::choose`] decides, `to_bytes` and `from_bytes` keep it in a file, [`Distance`] compares two. A scheme
//! is a choice and no promise: whatever it is, the errors of a block are measured when it is coded.
use crate::score::Energies;
use crate::{Score, allocate_bits, allocate_tiles};
use certkv_core::Pairing;

mod distance;
mod error;
mod file;
mod meter;
pub(crate) mod sealed;

pub use distance::Distance;
pub use error::CalibrationError;
pub use file::{MAGIC, VERSION};
pub use meter::Meter;

/// The heads of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub q_heads: usize,
    /// Key heads of a layer; divides `q_heads`.
    pub kv_heads: usize,
    /// Channels of a head, an even number.
    pub head_dim: usize,
    /// Channels that positions turn, the first of the head.
    pub rotary: usize,
    /// Which of them are a pair.
    pub pairing: Pairing,
}

impl Heads {
    /// Pairs of channels of a head.
    pub const fn pairs(&self) -> usize {
        self.head_dim / 2
    }

    /// Query heads that read one key head.
    pub const fn group(&self) -> usize {
        match self.q_heads.checked_div(self.kv_heads) {
            Some(readers) => readers,
            None => 0,
        }
    }

    fn check(&self) -> Result<(), CalibrationError> {
        let field = |what, found: usize, fine: bool| {
            if fine { Ok(()) } else { Err(CalibrationError::Field { what, found: found as u64 }) }
        };
        field("layers", self.layers, (1..=4096).contains(&self.layers))?;
        field("kv_heads", self.kv_heads, (1..=1024).contains(&self.kv_heads))?;
        let group = self.q_heads.checked_rem(self.kv_heads) == Some(0);
        field("q_heads", self.q_heads, group && (1..=16384).contains(&self.q_heads))?;
        field("head_dim", self.head_dim, self.head_dim.is_multiple_of(2) && (2..=1024).contains(&self.head_dim))?;
        field("rotary", self.rotary, self.rotary.is_multiple_of(2) && self.rotary <= self.head_dim)
    }
}

/// What was read to make a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Digest of the model: configuration and weights.
    pub model: [u8; 32],
    /// Digest of the text.
    pub text: [u8; 32],
    /// Tokens of it that were run.
    pub tokens: u64,
}

/// How schemes are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Bits of the pairs of a head in all: the mean width of a channel times the pairs.
    pub budget: usize,
    /// Fewest bits of a pair.
    pub least: u8,
    /// Most bits of a pair.
    pub most: u8,
    /// What a pair counts for.
    pub score: Score,
    /// Keys are coded around their mean.
    pub centred: bool,
    /// Keys are coded in the balanced metric (9.4).
    pub balanced: bool,
}

impl Rule {
    /// The rule of the source paper: the average score, keys as they are.
    pub const fn published(budget: usize) -> Self {
        Self { budget, least: 1, most: 8, score: Score::Average, centred: false, balanced: false }
    }

    /// The rule that measures best (docs/formats.md): squared logit errors, centred and balanced.
    pub const fn new(budget: usize) -> Self {
        Self { score: Score::Logit2, centred: true, balanced: true, ..Self::published(budget) }
    }

    /// Refuses a rule that cannot be followed with these heads: [`Calibration::choose`] does so, too, but only after the text was read.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] naming widths or budget.
    pub fn check(&self, heads: &Heads) -> Result<(), CalibrationError> {
        let widths = 1 <= self.least && self.least <= self.most && self.most <= 8;
        if !widths {
            return Err(CalibrationError::Field { what: "widths", found: u64::from(self.least) });
        }
        let range = heads.pairs() * usize::from(self.least)..=heads.pairs() * usize::from(self.most);
        if range.contains(&self.budget) {
            Ok(())
        } else {
            Err(CalibrationError::Field { what: "budget", found: self.budget as u64 })
        }
    }
}

/// What one key head and the query heads that read it showed.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// `mean ||q_i||^2` over tokens and query heads, by pair.
    pub queries: Vec<f64>,
    /// `mean ||k_i||^2` over tokens, by pair, around 0.
    pub keys: Vec<f64>,
    /// Mean key, by channel.
    pub mean: Vec<f64>,
    /// Least key, by channel.
    pub low: Vec<f32>,
    /// Greatest key, by channel.
    pub high: Vec<f32>,
}

impl Seen {
    /// `mean ||k_i - c_i||^2` by pair for a centre by channel; channels that it does not have stay where they are. Rounding can take
    /// the difference of two large numbers below 0, which is then 0.
    pub fn keys_around(&self, heads: &Heads, centre: &[f32]) -> Vec<f64> {
        let of_channel = |c: usize| {
            let (Some(mu), Some(c)) = (self.mean.get(c), centre.get(c)) else { return 0.0 };
            f64::from(*c) * (f64::from(*c) - 2.0 * mu)
        };
        let pair = |(pair, k): (usize, &f64)| {
            let [i, j] = heads.pairing.channels(heads.rotary, pair);
            (k + of_channel(i) + of_channel(j)).max(0.0)
        };
        self.keys.iter().enumerate().map(pair).collect()
    }

    /// Largest distance of a key from `centre`, by channel.
    pub fn reach(&self, centre: &[f32]) -> Vec<f32> {
        self.low.iter().zip(&self.high).zip(centre).map(|((low, high), c)| (high - c).max(c - low)).collect()
    }
}

/// How the keys of one head are coded.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadScheme {
    /// Bits by pair.
    pub bits: Vec<u8>,
    /// Balance scale by channel; 1 everywhere without one.
    pub balance: Vec<f32>,
    /// Key centre by channel; 0 everywhere without one.
    pub centre: Vec<f32>,
}

/// Schemes for every key head of a model, and what they were chosen from.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    heads: Heads,
    source: Source,
    rule: Rule,
    seen: Vec<Seen>,
    schemes: Vec<HeadScheme>,
}

impl Calibration {
    /// Chooses schemes by `rule` from what was seen, (layers * kv_heads) in order of layer, then head.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for heads or a rule that cannot be, [`CalibrationError::Rows`] if something seen does not fit the
    /// heads, [`CalibrationError::Number`] for an energy that is negative or not finite.
    pub fn choose(heads: Heads, source: Source, rule: Rule, seen: Vec<Seen>) -> Result<Self, CalibrationError> {
        heads.check()?;
        rule.check(&heads)?;
        let want = heads.layers * heads.kv_heads;
        if seen.len() != want {
            return Err(CalibrationError::Rows { what: "heads seen", got: seen.len(), want });
        }
        for (at, head) in seen.iter().enumerate() {
            head.check(&heads, at)?;
        }
        let schemes = seen.iter().map(|head| scheme(&heads, &rule, head)).collect::<Result<_, _>>()?;
        Ok(Self { heads, source, rule, seen, schemes })
    }

    /// The same observations under another rule.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for a rule that cannot be.
    pub fn with_rule(&self, rule: Rule) -> Result<Self, CalibrationError> {
        Self::choose(self.heads, self.source, rule, self.seen.clone())
    }

    /// The heads of the model.
    pub const fn heads(&self) -> &Heads {
        &self.heads
    }

    /// What was read.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// How schemes were chosen.
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What a key head showed, and its scheme. None past the last layer or head.
    pub fn head(&self, layer: usize, kv_head: usize) -> Option<(&Seen, &HeadScheme)> {
        let at = layer.checked_mul(self.heads.kv_heads)?.checked_add(kv_head)?;
        let inside = kv_head < self.heads.kv_heads;
        inside.then(|| Some((self.seen.get(at)?, self.schemes.get(at)?))).flatten()
    }

    /// Bits of every pair of a key head for records: `budget` in all, 1 to `most` a pair, those of each width a multiple of `tile` pairs, the
    /// least (9.3) in the order of the rule's scores and in its metric, math.md (9.2a). The rule's own budget and widths are no matter.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for a head that there is not; [`CalibrationError::Rule`] for a budget or tile that cannot be.
    pub fn tiled(
        &self,
        layer: usize,
        kv_head: usize,
        tile: usize,
        budget: usize,
        most: u8,
    ) -> Result<Vec<u8>, CalibrationError> {
        let absent = CalibrationError::Field { what: "kv_head", found: kv_head as u64 };
        let (seen, scheme) = self.head(layer, kv_head).ok_or(absent)?;
        let scores = self.scores(layer * self.heads.kv_heads + kv_head)?;
        let square = |pair: usize| {
            let [c, _] = self.heads.pairing.channels(self.heads.rotary, pair);
            f64::from(scheme.balance[c]).powi(2)
        };
        let queries: Vec<f64> = seen.queries.iter().enumerate().map(|(pair, a)| a / square(pair)).collect();
        let keys = seen.keys_around(&self.heads, &scheme.centre);
        let keys: Vec<f64> = keys.iter().enumerate().map(|(pair, k)| k * square(pair)).collect();
        let (energies, mut bits) = (Energies { queries: &queries, keys: &keys }, Vec::new());
        allocate_tiles(&energies, &scores, tile, budget, most, &mut bits)?;
        Ok(bits)
    }

    /// Scores of the pairs of head number `at` under the rule.
    fn scores(&self, at: usize) -> Result<Vec<f64>, CalibrationError> {
        let keys = self.seen[at].keys_around(&self.heads, &self.schemes[at].centre);
        Ok(Energies { queries: &self.seen[at].queries, keys: &keys }.scores(self.rule.score)?)
    }

    /// Refuses a calibration that was made for other heads or another model.
    ///
    /// # Errors
    /// [`CalibrationError::OtherHeads`] naming the first difference, or [`CalibrationError::OtherModel`].
    pub fn check_for(&self, heads: &Heads, model: &[u8; 32]) -> Result<(), CalibrationError> {
        let (file, wanted) = (self.heads.named(), heads.named());
        for ((what, file), (_, wanted)) in file.into_iter().zip(wanted) {
            if file != wanted {
                return Err(CalibrationError::OtherHeads { what, file, wanted });
            }
        }
        if self.source.model == *model { Ok(()) } else { Err(CalibrationError::OtherModel) }
    }
}

impl Heads {
    fn named(&self) -> [(&'static str, usize); 6] {
        let interleaved = usize::from(self.pairing == Pairing::Interleaved);
        [
            ("layers", self.layers),
            ("q_heads", self.q_heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("rotary", self.rotary),
            ("pairing (0 is half, 1 inter)", interleaved),
        ]
    }
}

impl Seen {
    fn check(&self, heads: &Heads, at: usize) -> Result<(), CalibrationError> {
        let (layer, head) = (at / heads.kv_heads, at % heads.kv_heads);
        let lengths = [
            ("query energies", self.queries.len(), heads.pairs()),
            ("key energies", self.keys.len(), heads.pairs()),
            ("mean key", self.mean.len(), heads.head_dim),
            ("least key", self.low.len(), heads.head_dim),
            ("greatest key", self.high.len(), heads.head_dim),
        ];
        if let Some((what, got, want)) = lengths.into_iter().find(|(_, got, want)| got != want) {
            return Err(CalibrationError::Rows { what, got, want });
        }
        let refuse = |what, index| Err(CalibrationError::Number { layer, head, what, index });
        for (what, energies) in [("query energies", &self.queries), ("key energies", &self.keys)] {
            if let Some(index) = energies.iter().position(|e| !(*e >= 0.0 && e.is_finite())) {
                return refuse(what, index);
            }
        }
        if let Some(index) = self.mean.iter().position(|m| !(*m as f32).is_finite()) {
            return refuse("mean key", index);
        }
        let range = |(low, high): (&f32, &f32)| low.is_finite() && high.is_finite() && low <= high;
        match self.low.iter().zip(&self.high).position(|pair| !range(pair)) {
            Some(index) => refuse("range of keys", index),
            None => Ok(()),
        }
    }
}

fn scheme(heads: &Heads, rule: &Rule, seen: &Seen) -> Result<HeadScheme, CalibrationError> {
    let centre: Vec<f32> =
        if rule.centred { seen.mean.iter().map(|m| *m as f32).collect() } else { vec![0.0; heads.head_dim] };
    let keys = seen.keys_around(heads, &centre);
    let energies = Energies { queries: &seen.queries, keys: &keys };
    let mut balance = vec![1.0; heads.head_dim];
    if rule.balanced {
        for (pair, scale) in energies.balance()?.into_iter().enumerate() {
            // Numbers whose reciprocal is one, too: queries are divided by the scale.
            let scale = (scale as f32).clamp(f32::MIN_POSITIVE, f32::MIN_POSITIVE.recip());
            heads.pairing.channels(heads.rotary, pair).into_iter().for_each(|c| balance[c] = scale);
        }
    }
    let mut bits = Vec::new();
    allocate_bits(&energies.scores(rule.score)?, rule.budget, rule.least, rule.most, &mut bits)?;
    Ok(HeadScheme { bits, balance, centre })
}

#[cfg(test)]
pub(crate) mod tests;
