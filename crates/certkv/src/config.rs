//! What a cache is made of: geometry, formats, capacity, budgets, policy.
use crate::events::MOST_EVENTS;
use crate::{Control, Error, Level, Policy, PrefixConfig, Protection, Spill, Watermarks};
use certkv_control::Calibration;
use certkv_control::scales::Scales;
use certkv_control::spherical::Codebooks;
use certkv_core::{Format, Geometry, RecordLayout};
use certkv_device::{HostMemory, SimOptions};
use certkv_page::Window;
use core::ops::Range;
use std::sync::Arc;

/// The fewest bytes stored and the quickest to attend to, within a point of the fewest bytes read at a tolerance of 5% on the
/// reference model; `docs/formats.md` has the curves behind it. See [`default_format`].
pub const DEFAULT_FORMAT: &str = "k8-v4g64-b64";

/// The default format for heads of `head_dim` channels: [`DEFAULT_FORMAT`], or the same with groups of 32 channels where 64 do
/// not divide the head.
pub const fn default_format(head_dim: usize) -> &'static str {
    if head_dim.is_multiple_of(64) { DEFAULT_FORMAT } else { "k8-v4g32-b64" }
}

/// KV heads of consecutive layers that share block tables.
#[derive(Debug, Clone)]
pub(crate) struct HeadGroup {
    pub(crate) first: usize,
    pub(crate) layers: usize,
    /// Of these layers' KV heads.
    pub(crate) heads: Range<usize>,
    pub(crate) layout: RecordLayout,
    pub(crate) window: Option<Window>,
}

/// Configuration of a [`crate::Cache`]. All memory is taken when the cache is made; nothing grows later.
#[derive(Debug, Clone)]
pub struct Config {
    /// Shape of the model's attention.
    pub geometry: Geometry,
    /// One format for all layers, one per layer, or one per layer and KV head, `[layer][kv_head]`. Consecutive layers with the same formats and window share block
    /// tables: one for each run of KV heads of one format, in pages that hold these heads alone, so that the heads of one layer may be stored in different widths and block
    /// sizes.
    pub formats: Vec<Format>,
    /// Centres, balance scales and widths of keys, for formats that code them so (`ctq4`, `gtq3`): of this geometry, and of the model whose keys
    /// these are, which [`Calibration::check_for`] tells. There if and only if a format needs it. What is saved, published or
    /// exported names it, and is refused under another.
    pub calibration: Option<Arc<Calibration>>,
    /// Directions of spherical keys, for formats that code them so (`s1`, `s2`, `s3`): one for each of their tiers, of this geometry and
    /// of the model ([`Codebooks::check_for`]). Each is there if and only if a format needs it; named by what is kept as a calibration is.
    pub codebooks: Vec<Arc<Codebooks>>,
    /// Formats that full blocks can have besides that of `formats`, which is the first of these; empty for none. Each has fewer bytes
    /// than the one before it, all have one block size. Every block becomes full at the first and can change between steps
    /// ([`crate::Cache::change_level`]), in each layer by itself: so each layer has block tables of its own. Each level has pages of its
    /// own. Not beside windows, spilling and fixed scales in this release; cached prefixes do not go to stores.
    pub levels: Vec<Level>,
    /// Every KV head of a block has a level of its own: so each layer and head has block tables of its own, and pages that hold that head
    /// alone, a seal for each. Only with levels.
    pub levels_by_head: bool,
    /// Who decides on levels when [`crate::Cache::control`] is called; `None` for nobody.
    pub control: Option<Control>,
    /// Fixed scales for sides with one scale per block (`p8`, `e4m3g64`), of this geometry: what a block has beyond them saturates, which
    /// [`crate::Snapshot::saturated`] counts and its error summary measures. `None`: the scales of each block. There only if a format has
    /// such sides. Records hold their scales, so nothing that is saved or published depends on it.
    pub scales: Option<Arc<Scales>>,
    /// What the queries of each layer see: `None` for all tokens up to their own, else the last [`Window::tokens`] of them, their
    /// own among these, and the first [`Window::sinks`] of the sequence. One per layer, one for all, or empty, which is `None`
    /// for all. A layer with a window keeps the pages of what its next queries can see and of [`Window::slack`] tokens more, so
    /// its memory does not grow with the context; a step has at most [`Window::chunk`] tokens of a sequence.
    ///
    /// Of its sequences what is left is saved, and restored where windows and sinks are the same. With [`Config::prefixes`] the slack is
    /// at least a block of the largest size unless it is given: so a sequence that is published has the window of its last full unit.
    pub windows: Vec<Option<Window>>,
    /// Tokens that all sequences together may hold, each in every layer.
    pub max_tokens: usize,
    /// Most tokens of one sequence, in whole blocks; 0 for `max_tokens`. Budgets have room for the tables and what is remembered of `max_sequences` sequences
    /// of that length, though sequences take it as they grow.
    pub max_context: usize,
    /// Sequences that may live at once.
    pub max_sequences: usize,
    /// Bytes of device memory: packed pages, scratch and tables.
    pub device_budget: usize,
    /// Bytes of host memory: originals, and codes of sequences that are swapped out.
    pub host_budget: usize,
    /// Promoted key sides (one block of one KV head in one layer) of which 16-bit copies are kept in scratch, over all
    /// layers, up to 2^24. 0 keeps none: originals are read where they lie, without a copy. That is the best choice where
    /// scratch is the same memory as the originals, as on the CPU.
    pub scratch_keys: usize,
    /// The same for promoted value sides.
    pub scratch_values: usize,
    /// What a step does unless it is told otherwise.
    pub policy: Policy,
    /// Tokens whose blocks every decode step reads from originals, under every policy, each token of a chunk of drafts those of its own: the first of a sequence and
    /// the newest. Costs the bytes of these originals, which count towards [`Certified::k_cap`](crate::Certified::k_cap). Not beside the bound's budget.
    pub protection: Protection,
    /// Worker threads of the CPU kernels, 1 to 256; 1 runs everything on the calling thread.
    pub threads: usize,
    /// Longest chunk of several tokens of which every token is attended as a decode step of its own, over what precedes it and itself: under the step's
    /// policy, with a certificate, bit for bit as if the tokens had come one by one (where the sequence had a full block before). For
    /// drafts that are verified: it reads codes once a token, so that from about four tokens on it takes longer than a prompt's chunk, which is what
    /// longer ones are. 0 for none.
    pub chunk_tokens: usize,
    /// Full blocks that outlive their sequences, for others to continue from ([`crate::Cache::publish`],
    /// [`crate::Cache::create_from`]). They live in the same pages and give way to sequences that need them. Of a layer with a window
    /// those are few: what live sequences do not take of `max_sequences` times sinks, window, slack and chunk.
    pub prefixes: Option<PrefixConfig>,
    /// Room that cached prefixes leave at the end of every step, in tokens whose pages are free: where they are fewer than the low mark, units that nobody uses go
    /// until they are as many as the high one, so that a step which needs pages seldom has to wait for that. `None`: they go when somebody needs
    /// pages. Pages of windows and of single levels do not count.
    pub prefix_watermarks: Option<Watermarks>,
    /// Events of cached prefixes that stay readable, the latest so many, at most 2^24; 0 keeps none, and nothing is done for them
    /// ([`crate::Cache::prefix_events`]).
    pub prefix_events: usize,
    /// Events of blocks that move (swapped out and in, spilled and fetched) that stay readable, the latest so many, at most 2^24; 0 keeps none
    /// ([`crate::Cache::move_events`]).
    pub move_events: usize,
    /// Tokens whose codes sequences that are swapped out may leave in host memory ([`crate::Cache::swap_out`]), each in
    /// every layer. Originals have as much more room: others have all of `max_tokens`. Where blocks have [`Config::levels`] a page
    /// outside has the size of the first level's, whichever its block has.
    pub swap_tokens: usize,
    /// Where originals of live sequences go that host memory has no room for. `None`: all of them have their room there. Those of layers
    /// with a window stay, as their windows bound them.
    pub spill: Option<Spill>,
    /// Whether what sequences leave in memory is overwritten with zeroes: pages of codes and of originals, on the device, on the host and
    /// swapped out, and sides copied to scratch. A page is erased before it is handed out again. What a sequence had that is released, cut or swapped out
    /// is erased before that call returns, as far as no step reads it any more; the open block's scratch page once it is full with the next step.
    /// Blocks that cached prefixes keep stay, rows behind a cut stay in a block that stays open, records in a store until it has deleted them, and buffers
    /// that a call works in until the next one needs them.
    ///
    /// For servers whose tenants must not find each other's data in a dump of memory. Nobody is ever given what a page's owner has not
    /// written, with or without it. Costs a write of each page's bytes when it is given up, for which
    /// other calls that touch pages wait.
    pub erase: bool,
    /// Where pages, open blocks, originals and scratch lie; `None` for memory of the system, which is mapped when first touched. Another is
    /// touched when the cache is made.
    pub memory: Option<Arc<dyn HostMemory>>,
    /// How the simulated device runs and whether it checks ordering.
    pub device: SimOptions,
}

impl Config {
    /// A cache of `max_tokens` tokens and up to 16 sequences in the default format under the default policy, without
    /// limits on bytes, on one thread.
    pub fn new(geometry: Geometry, max_tokens: usize) -> Self {
        let format = default_format(geometry.head_dim).parse().unwrap_or(Format::DENSE_F16);
        Self {
            geometry,
            formats: vec![format],
            calibration: None,
            codebooks: Vec::new(),
            levels: Vec::new(),
            levels_by_head: false,
            control: None,
            scales: None,
            windows: Vec::new(),
            max_tokens,
            max_context: 0,
            max_sequences: 16,
            device_budget: usize::MAX,
            host_budget: usize::MAX,
            scratch_keys: 0,
            scratch_values: 0,
            policy: Policy::default(),
            protection: Protection::NONE,
            threads: 1,
            chunk_tokens: 0,
            prefixes: None,
            prefix_watermarks: None,
            prefix_events: 0,
            move_events: 0,
            swap_tokens: 0,
            spill: None,
            erase: false,
            memory: None,
            device: SimOptions::default(),
        }
    }

    /// The same with another format for every layer.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.formats = vec![format];
        self
    }

    /// The same with a calibration, for formats that need one.
    #[must_use]
    pub fn with_calibration(mut self, calibration: Arc<Calibration>) -> Self {
        self.calibration = Some(calibration);
        self
    }

    /// The same with codebooks more, for formats with spherical keys of their tier.
    #[must_use]
    pub fn with_codebooks(mut self, codebooks: Arc<Codebooks>) -> Self {
        self.codebooks.push(codebooks);
        self
    }

    /// The same with fixed scales, for formats that have one per block.
    #[must_use]
    pub fn with_scales(mut self, scales: Arc<Scales>) -> Self {
        self.scales = Some(scales);
        self
    }

    /// The same with tokens that are always read exactly.
    #[must_use]
    pub fn with_protection(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// The same with one window for every layer.
    #[must_use]
    pub fn with_window(mut self, window: Window) -> Self {
        self.windows = vec![Some(window)];
        self
    }

    /// Checks the windows by themselves and beside what they do not go with.
    fn check_windows(&self) -> Result<(), Error> {
        let wrong = |field, why: String| Err(Error::Config { field, why });
        let (given, layers) = (self.windows.len(), self.geometry.layers);
        if given > 1 && given != layers {
            return wrong("windows", format!("{given} windows for {layers} layers; give none, one, or one per layer"));
        }
        for window in self.windows.iter().flatten() {
            for (what, n) in [("window", window.tokens), ("chunk", window.chunk)] {
                if n == 0 || n > 1 << 31 {
                    return wrong("windows", format!("a {what} of {n} tokens; must be 1 to 2^31"));
                }
            }
            if window.sinks > 1 << 31 || window.slack.is_some_and(|slack| slack > 1 << 31) {
                return wrong("windows", "sinks and slack must be at most 2^31 tokens".to_owned());
            }
        }
        if self.spill.is_some() && !self.windows.is_empty() && self.windows.iter().all(Option::is_some) {
            let why = "every layer has a window, which bounds its originals: there is nothing to spill";
            return wrong("spill", why.to_owned());
        }
        Ok(())
    }

    /// The format of one KV head; the last one there is where there are too few.
    pub(crate) fn format_of(&self, layer: usize, kv_head: usize) -> Format {
        let at = match self.formats.len() {
            1 => 0,
            n if n == self.geometry.layers => layer,
            _ => layer * self.geometry.kv_heads + kv_head,
        };
        self.formats.get(at).or(self.formats.last()).copied().unwrap_or(Format::DENSE_F16)
    }

    /// The same at one of the levels, of which there is one where there are none.
    pub(crate) fn format_at(&self, level: usize, layer: usize, kv_head: usize) -> Format {
        self.levels.get(level).map_or_else(|| self.format_of(layer, kv_head), |level| level.format)
    }

    /// Every format that a block can have, some more than once.
    pub(crate) fn all_formats(&self) -> impl Iterator<Item = Format> {
        self.formats.iter().copied().chain(self.levels.iter().map(|level| level.format))
    }

    /// What of one layer has levels of its own: its KV heads, or all of them together.
    pub(crate) const fn leveled_heads(&self) -> usize {
        if self.levels_by_head { self.geometry.kv_heads } else { 1 }
    }

    /// Runs of KV heads in a layer that share pages: of one format, unless each has levels of its own.
    fn runs(&self, layer: usize) -> Vec<(Format, Range<usize>)> {
        let mut runs: Vec<(Format, Range<usize>)> = Vec::new();
        for head in 0..self.geometry.kv_heads {
            let format = self.format_of(layer, head);
            match runs.last_mut() {
                Some((of, run)) if *of == format && !self.levels_by_head => run.end += 1,
                _ => runs.push((format, head..head + 1)),
            }
        }
        runs
    }

    /// Checks every field and spreads the formats and windows over layers and KV heads. Groups are in the order of their first layers, those of the same layers in
    /// the order of their heads.
    pub(crate) fn groups(&self) -> Result<Vec<HeadGroup>, Error> {
        let geometry = self.geometry.validated()?;
        let wrong = |field, why: String| Err(Error::Config { field, why });
        let (given, layers, heads) = (self.formats.len(), geometry.layers, geometry.kv_heads);
        if ![1, layers, layers * heads].contains(&given) {
            let why = format!(
                "{given} formats for {layers} layers; give one, or one per layer, or one per layer and KV head ({})",
                layers * heads
            );
            return wrong("formats", why);
        }
        if self.max_tokens == 0 || self.max_tokens > 1 << 31 {
            return wrong("max_tokens", format!("{} tokens; must be 1 to 2^31", self.max_tokens));
        }
        if self.max_context > 1 << 31 {
            return wrong("max_context", format!("{} tokens; must be at most 2^31", self.max_context));
        }
        if self.max_sequences == 0 || self.max_sequences > 1 << 20 {
            return wrong("max_sequences", format!("{} sequences; must be 1 to 2^20", self.max_sequences));
        }
        if self.threads == 0 || self.threads > 256 {
            return wrong("threads", format!("{} threads; must be 1 to 256", self.threads));
        }
        for (field, slots) in [("scratch_keys", self.scratch_keys), ("scratch_values", self.scratch_values)] {
            if slots > 1 << 24 {
                return wrong(field, format!("{slots} sides; must be at most 2^24"));
            }
        }
        if self.swap_tokens > 1 << 31 {
            return wrong("swap_tokens", format!("{} tokens; must be at most 2^31", self.swap_tokens));
        }
        if self.chunk_tokens > 1 << 31 {
            return wrong("chunk_tokens", format!("{} tokens; must be at most 2^31", self.chunk_tokens));
        }
        if self.move_events > MOST_EVENTS {
            return wrong("move_events", format!("{} events; must be at most 2^24", self.move_events));
        }
        match self.prefix_events {
            0 => {}
            n if n > MOST_EVENTS => return wrong("prefix_events", format!("{n} events; must be at most 2^24")),
            n if self.prefixes.is_none() => {
                return wrong("prefix_events", format!("{n} events of prefixes, and none are cached"));
            }
            _ => {}
        }
        if let Some(Watermarks { low, high }) = self.prefix_watermarks {
            if self.prefixes.is_none() {
                return wrong("prefix_watermarks", "no prefixes are cached".to_owned());
            }
            if low > high || high > self.max_tokens {
                let why =
                    format!("{low} and {high} tokens; must be in order and at most max_tokens = {}", self.max_tokens);
                return wrong("prefix_watermarks", why);
            }
        }
        self.spill.as_ref().map_or(Ok(()), Spill::validated)?;
        self.policy.validated().map_err(|e| Error::Policy(e.to_string()))?;
        self.check_protection()?;
        self.check_windows()?;
        self.check_levels()?;
        self.check_control()?;
        // A block has a level in each layer, and a table one in each block.
        let alone = !self.levels.is_empty();
        let mut groups: Vec<HeadGroup> = Vec::new();
        // Where the groups of the layer before begin.
        let mut before = 0;
        for layer in 0..geometry.layers {
            let runs = self.runs(layer);
            let mut window = self.windows.get(if self.windows.len() == 1 { 0 } else { layer }).copied().flatten();
            if let (Some(window), Some(_)) = (&mut window, &self.prefixes) {
                // Up to a unit is between the end of a sequence and that of its last full unit.
                window.slack = window.slack.or(self.formats.iter().map(|format| format.block).max());
            }
            let same = |(group, (format, heads)): (&HeadGroup, &(Format, Range<usize>))| {
                group.layout.format == *format && group.heads == *heads && group.window == window
            };
            let last = &mut groups[before..];
            if !alone && last.len() == runs.len() && last.iter().zip(&runs).all(same) {
                last.iter_mut().for_each(|group| group.layers += 1);
                continue;
            }
            before = groups.len();
            for (format, heads) in runs {
                let layout = RecordLayout::new(&geometry, format)?;
                groups.push(HeadGroup { first: layer, layers: 1, heads, layout, window });
            }
        }
        Ok(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::geometry::HEAD_DIMS;

    #[test]
    fn every_head_has_a_default_format_that_fits_it() {
        for dim in HEAD_DIMS {
            let config = Config::new(Geometry::new(1, 4, 2, dim).unwrap(), 256);
            assert_eq!(config.formats, [default_format(dim).parse().unwrap()]);
            let groups = config.groups().unwrap();
            assert_eq!((groups.len(), groups[0].layout.tokens()), (1, 64), "{dim}");
        }
        assert_ne!(default_format(96), DEFAULT_FORMAT);
    }
}
