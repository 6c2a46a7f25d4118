//! A format for every KV head of every layer, from what an evaluation of single formats read of each.
//!
//! What a head reads in its format does not depend on the formats of others, but through the outputs that later layers see, which are within the tolerance. So the
//! best list is the best choice of each head: of fewest bytes read, at one price for the bytes that it stores where these are limited (math.md 9.5).
use super::{
    mode::{Mode, Policy},
    outcome::{ModeOutcome, Outcome},
};
use certkv_control::{
    ControlError,
    allocate::{Allocator, Choices},
};
use certkv_core::{Format, Geometry, RecordLayout};

/// What was chosen at one tolerance.
#[derive(Debug, Clone, PartialEq)]
pub struct PerHead {
    /// `[layer][kv_head]`.
    pub formats: Vec<Format>,
    /// Bytes of codes of a token, in all layers.
    pub stored: f64,
    /// What they read by what each head read before, of what dense half precision reads.
    pub read: f64,
    /// The single format that read least of those within as many bytes, and what it read; `None` if there is none.
    pub single: Option<(Format, f64)>,
}

impl PerHead {
    /// The choice at `tolerance` from certified modes of single formats, within `bytes` bytes of codes a token. `None` without such modes.
    ///
    /// # Errors
    /// [`ControlError::BelowFloor`] if the smallest formats take more than `bytes`.
    pub fn choose(
        outcome: &Outcome,
        geometry: &Geometry,
        tolerance: f64,
        bytes: f64,
    ) -> Result<Option<Self>, ControlError> {
        let asked = Policy::Certified { tolerance };
        let single = |mode: &Mode| mode.policy == asked && mode.heads.is_empty() && !mode.twin;
        let modes: Vec<_> = outcome.modes.iter().filter(|m| single(&m.mode)).collect();
        let stored = |format: Format| {
            let layout = RecordLayout::new(geometry, format).ok()?;
            Some(layout.bytes as f64 / layout.tokens() as f64)
        };
        let costs: Vec<f64> = modes.iter().filter_map(|m| stored(m.mode.format)).collect();
        let heads = geometry.layers * geometry.kv_heads;
        if costs.len() != modes.len() || modes.is_empty() {
            return Ok(None);
        }
        let share = |m: &&ModeOutcome| m.gathered.read_share();
        let within = modes.iter().copied().zip(&costs).filter(|(_, cost)| **cost * heads as f64 <= bytes);
        let least = within.map(|(m, _)| m).min_by(|a, b| share(a).total_cmp(&share(b)));
        let dense = modes.iter().map(|m| m.gathered.read_dense).max().unwrap_or(0).max(1);
        let read = |head: usize| modes.iter().map(move |m| m.gathered.heads.get(head).map_or(0.0, |n| *n as f64));
        let (cost, loss): (Vec<f64>, Vec<f64>) =
            (0..heads).flat_map(|head| costs.iter().copied().zip(read(head))).unzip();
        let mut allocator = Allocator::new();
        let found = allocator.solve(&Choices { levels: modes.len(), cost: &cost, loss: &loss }, bytes)?;
        Ok(Some(Self {
            formats: found.level.iter().map(|level| modes[*level as usize].mode.format).collect(),
            stored: found.used,
            read: found.loss / dense as f64,
            single: least.map(|m| (m.mode.format, share(&m))),
        }))
    }

    /// The mode that runs it.
    pub fn mode(&self, tolerance: f64) -> Option<Mode> {
        let first = *self.formats.first()?;
        Some(Mode::of(Policy::Certified { tolerance }, first, false).with_heads(self.formats.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::Gathered;

    fn model() -> Geometry {
        Geometry::new(2, 4, 2, 64).unwrap()
    }

    /// Certified modes in three formats that read so much of each head.
    fn outcome() -> Outcome {
        let read = [("k8-v8g64-b64", [90, 80, 70, 60]), ("k4-v4g64-b64", [95, 50, 50, 90]), ("k2-v2g64-b64", [99; 4])];
        let mode = |(format, heads): (&str, [u64; 4])| ModeOutcome {
            mode: Mode::certified(format, 0.05, false).unwrap(),
            trials: Vec::new(),
            text: Vec::new(),
            gathered: Gathered {
                heads: heads.to_vec(),
                read: [heads.iter().sum(), 0, 0],
                read_dense: 1000,
                ..Gathered::new(2, 4)
            },
            footprint: Default::default(),
        };
        Outcome { modes: read.into_iter().map(mode).collect(), seconds: 0.0 }
    }

    #[test]
    fn every_head_has_the_format_that_read_least_of_it() {
        let found = PerHead::choose(&outcome(), &model(), 0.05, f64::INFINITY).unwrap().unwrap();
        let [wide, narrow] = ["k8-v8g64-b64", "k4-v4g64-b64"].map(|format| format.parse().unwrap());
        assert_eq!(found.formats, [wide, narrow, narrow, wide]);
        assert_eq!((found.read, found.single), (0.25, Some((narrow, 0.285))));
        let mode = found.mode(0.05).unwrap();
        assert_eq!(mode.written(), "k8-v8g64-b64+k4-v4g64-b64+k4-v4g64-b64+k8-v8g64-b64");
        assert_eq!(mode.to_string(), "certified 2 formats by head at 5%");
        assert_eq!(PerHead::choose(&outcome(), &model(), 0.02, f64::INFINITY), Ok(None));
    }

    #[test]
    fn few_bytes_go_where_they_save_most_and_too_few_are_refused_with_the_floor() {
        let all = PerHead::choose(&outcome(), &model(), 0.05, f64::INFINITY).unwrap().unwrap();
        let some = PerHead::choose(&outcome(), &model(), 0.05, all.stored - 1.0).unwrap().unwrap();
        assert!(some.stored < all.stored && some.read > all.read);
        // The head that the wide format saves least of goes first.
        assert_eq!(some.formats[0].to_string(), "k4-v4g64-b64");
        assert_eq!(some.formats[1..], all.formats[1..]);
        assert_eq!(some.single.unwrap().0.to_string(), "k4-v4g64-b64");
        let refused = PerHead::choose(&outcome(), &model(), 0.05, 100.0);
        assert!(matches!(refused, Err(ControlError::BelowFloor { floor, .. }) if floor > 100.0), "{refused:?}");
    }
}
