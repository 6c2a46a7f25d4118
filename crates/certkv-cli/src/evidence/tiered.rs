//! A cache of single-precision rows whose full blocks are coded, tiered or dropped one by one, by layer and key head: what a policy of
//! retention does to the model, before there are pages for it. Originals are kept: a block can come back.
use crate::{
    calibrate::{BLOCK, Rows as Sees, Watch, Way, log_sum, logits, originals, stored_values},
    model::{AttentionError, Config, Llama, Rows, flat::Flat},
};
use certkv_control::{
    BitSet, ControlError, Retention,
    retention::{Limits, RetentionRule, drop_distortion, mass},
};
use certkv_core::ValueFormat;
use rayon::prelude::*;
use std::error::Error;

pub(super) type Boxed = Box<dyn Error + Send + Sync>;

/// How values of full blocks are coded under every policy but dense.
pub(super) const VALUES: ValueFormat = ValueFormat::Turbo { bits: 4 };
/// Queries at the end of a block whose attention is looked at (9.16).
const WINDOW: usize = 8;
/// Share of a mass that stays from update to update.
const KEEP: f64 = 0.5;

/// A level that a block can have.
pub(super) struct Rung<'a> {
    /// Bytes of a token, keys and values.
    pub(super) bytes: f64,
    /// How its keys are coded; not at all if it is dropped.
    pub(super) way: Option<&'a Way<'a>>,
    /// Share of the attention to a coded block that goes elsewhere, by layer, from calibration.
    pub(super) moved: Vec<f64>,
}

/// Who decides levels.
#[derive(Debug, Clone, Copy)]
pub(super) enum Choice {
    /// Nobody: nothing is coded.
    Dense,
    /// All blocks have the first level.
    First,
    /// Retention within so many bytes of a token, key head and layer; `blind` to what codes do, so that it ranks by attention alone; `even`: every key
    /// head within these bytes by itself.
    Retained { budget: f64, rule: RetentionRule, blind: bool, even: bool },
}

/// What the controller did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Deeds {
    /// Changes of blocks that had a level before.
    pub(super) changed: u64,
    /// Of these, back to the level before the last change.
    pub(super) returned: u64,
    /// Blocks times updates.
    pub(super) held: u64,
    /// Blocks that should have rested, and went down because a limit asked for it.
    pub(super) forced: u64,
    /// Bytes of a token, key head and layer, at the end.
    pub(super) bytes: f64,
    /// Share of blocks that are not dropped, at the end.
    pub(super) kept: f64,
    /// Share of blocks at the first level, at the end.
    pub(super) first: f64,
}

/// What a key head of a layer came to have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeadUse {
    /// Bytes of a token.
    pub(super) bytes: f64,
    /// Share of its blocks' masses (9.16) that lies behind the newest [`RECENT`].
    pub(super) far: f64,
}

/// Newest full blocks that count as recent.
pub(super) const RECENT: usize = 2;

/// Blocks that retention is told to hold above others.
#[derive(Debug, Clone, Default)]
pub(super) struct Protected {
    /// By number.
    pub(super) blocks: Vec<usize>,
    /// So many of the newest at the time.
    pub(super) recent: usize,
}

impl Protected {
    fn holds(&self, block: usize, last: usize) -> bool {
        self.blocks.contains(&block) || block + self.recent > last
    }
}

/// What a protected block loses besides where it is not at the first level: more than nearly all that others lose by being dropped.
const PROTECTION: f64 = 1.0;

/// What gives way loses at most so much of what a block has to save per byte to go up.
const GIVE: f64 = 0.9;

/// The cache.
#[derive(Clone)]
pub(super) struct Tiered<'a> {
    model: &'a Llama,
    rungs: &'a [Rung<'a>],
    choice: Choice,
    cache: Flat,
    /// Keys as they were, by layer and head.
    keys: Vec<Vec<f32>>,
    retention: Option<Retention>,
    /// By layer, head and block, most blocks that there can be.
    masses: Vec<f64>,
    levels: Vec<[u32; 2]>,
    most: usize,
    protected: Protected,
    deeds: Deeds,
}

/// Queries of the last tokens of a chunk, by layer.
struct Queries {
    width: usize,
    layers: Vec<Vec<f32>>,
}

impl Sees for Queries {
    fn see(&mut self, layer: usize, q: &[f32], _: &[f32], _: &[f32]) -> Result<(), AttentionError> {
        let rows = self.layers.get_mut(layer).ok_or(AttentionError::Order("layer past the end"))?;
        rows.extend_from_slice(q);
        rows.drain(..rows.len().saturating_sub(WINDOW * self.width));
        Ok(())
    }
}

impl<'a> Tiered<'a> {
    /// Nothing stored, room for `tokens`.
    pub(super) fn new(
        model: &'a Llama,
        rungs: &'a [Rung<'a>],
        choice: Choice,
        tokens: usize,
    ) -> Result<Self, ControlError> {
        let Config { layers, kv_heads, .. } = *model.config();
        let (heads, most) = (layers * kv_heads, tokens / BLOCK);
        let names = (0..layers).flat_map(|l| (0..kv_heads).map(move |h| (l as u32, h as u32)));
        let items = names.flat_map(|name| std::iter::repeat_n(name, most)).collect();
        let retention = match choice {
            Choice::Retained { rule, .. } => Some(Retention::new(items, rungs.len(), rule)?),
            _ => None,
        };
        Ok(Self {
            model,
            rungs,
            choice,
            cache: Flat::new(model.config()),
            keys: vec![Vec::new(); heads],
            retention,
            masses: vec![0.0; heads * most],
            levels: vec![[0; 2]; heads * most],
            most,
            protected: Protected::default(),
            deeds: Deeds { kept: 1.0, first: 1.0, ..Deeds::default() },
        })
    }

    /// The same, told of blocks that matter more; others give way to what may come back.
    pub(super) fn protecting(mut self, protected: Protected) -> Self {
        if let (Some(retention), Choice::Retained { rule, .. }) = (&mut self.retention, self.choice) {
            retention.give(GIVE * rule.up);
        }
        Self { protected, ..self }
    }

    /// Share of the full blocks that `is` names, over all layers and key heads, that are not dropped; of those of a dense cache all.
    pub(super) fn kept(&self, is: &dyn Fn(usize) -> bool) -> f64 {
        let full = crate::model::Attention::length(&self.cache) / BLOCK;
        let of_head =
            |head: &[[u32; 2]]| head.iter().take(full).map(|[level, _]| *level).enumerate().collect::<Vec<_>>();
        let named = self.levels.chunks(self.most).flat_map(of_head).filter(|(block, _)| is(*block));
        let (mut kept, mut count) = (0, 0);
        for (_, level) in named {
            count += 1;
            kept += usize::from(self.rungs.get(level as usize).is_none_or(|rung| rung.way.is_some()));
        }
        kept as f64 / count.max(1) as f64
    }

    /// What every key head has, layer by layer; of masses, what [`Choice::Retained`] looks at.
    pub(super) fn heads(&self) -> Vec<HeadUse> {
        let full = crate::model::Attention::length(&self.cache) / BLOCK;
        let of = |(levels, masses): (&[[u32; 2]], &[f64])| {
            let bytes = levels[..full].iter().filter_map(|[level, _]| self.rungs.get(*level as usize)).map(|r| r.bytes);
            let (far, all) =
                (masses[..full.saturating_sub(RECENT)].iter().sum::<f64>(), masses[..full].iter().sum::<f64>());
            HeadUse { bytes: bytes.sum::<f64>() / full.max(1) as f64, far: far / all.max(f64::MIN_POSITIVE) }
        };
        if self.most == 0 {
            return Vec::new();
        }
        self.levels.chunks(self.most).zip(self.masses.chunks(self.most)).map(of).collect()
    }

    /// What was done so far.
    pub(super) fn deeds(&self) -> Deeds {
        self.deeds
    }

    /// Feeds tokens; `sink` is given the position and the logits of each. A block that gets full is coded, and the policy decides anew.
    pub(super) fn feed(&mut self, tokens: &[u32], mut sink: impl FnMut(usize, &[f32])) -> Result<(), Boxed> {
        let Config { layers, vocabulary, .. } = *self.model.config();
        let (mut left, mut queries) = (tokens, Queries { width: self.model.config().q_width(), layers: vec![] });
        while !left.is_empty() {
            let at = crate::model::Attention::length(&self.cache);
            let (chunk, rest) = left.split_at(left.len().min(BLOCK - at % BLOCK));
            queries.layers = vec![Vec::new(); layers];
            let mut watched = Watch::new(&mut self.cache, &mut queries);
            let found = self.model.forward(chunk, &mut watched, Rows::All).map_err(Box::new)?;
            found.chunks_exact(vocabulary).zip(at..).for_each(|(logits, at)| sink(at, logits));
            if (at + chunk.len()).is_multiple_of(BLOCK) && !matches!(self.choice, Choice::Dense) {
                self.close(at + chunk.len() - BLOCK, &queries)?;
            }
            left = rest;
        }
        Ok(())
    }

    /// Codes the block from token `from` on, and gives levels anew.
    fn close(&mut self, from: usize, queries: &Queries) -> Result<(), Boxed> {
        let Config { layers, kv_heads, head_dim: dim, .. } = *self.model.config();
        let block = from / BLOCK;
        if block >= self.most {
            return Err("more tokens than there is room for".into());
        }
        for (layer, head) in (0..layers).flat_map(|layer| (0..kv_heads).map(move |head| (layer, head))) {
            self.keys[layer * kv_heads + head].extend(originals(&self.cache.keys(layer, head)[from * dim..]));
            let values: Vec<f64> = originals(&self.cache.values(layer, head)[from * dim..]).map(f64::from).collect();
            let (coded, _) = stored_values(VALUES, dim, &values)?;
            let coded: Vec<f32> = coded.iter().map(|x| *x as f32).collect();
            self.cache.replace_values(layer, head, from, &coded);
        }
        if let Choice::Retained { budget, blind, even, .. } = self.choice {
            self.look(block, queries);
            self.decide(block, budget, blind, even)?;
        }
        for head in 0..layers * kv_heads {
            let item = head * self.most + block;
            self.apply(item, self.levels[item][0])?;
        }
        [self.deeds.bytes, self.deeds.kept, self.deeds.first] = self.taken(block);
        Ok(())
    }

    /// Bytes of a token, share of blocks that are kept and of those at the first level, of blocks up to `block`.
    fn taken(&self, block: usize) -> [f64; 3] {
        let full = self.levels.chunks(self.most).flat_map(|head| &head[..=block]);
        let (mut sums, mut count) = ([0.0; 3], 0.0);
        for [level, _] in full {
            let rung = &self.rungs[*level as usize];
            let one = |yes: bool| f64::from(u8::from(yes));
            let adds = [rung.bytes, one(rung.way.is_some()), one(*level == 0)];
            sums.iter_mut().zip(adds).for_each(|(sum, x)| *sum += x);
            count += 1.0;
        }
        sums.map(|sum| sum / count)
    }

    /// Masses of all blocks from the attention of the last queries.
    fn look(&mut self, block: usize, queries: &Queries) {
        let Config { heads, kv_heads, head_dim: dim, .. } = *self.model.config();
        let (cache, rungs, levels, most) = (&self.cache, self.rungs, &self.levels, self.most);
        let group = heads / kv_heads;
        self.masses.par_chunks_mut(most).enumerate().for_each(|(at, masses)| {
            let (layer, head) = (at / kv_heads, at % kv_heads);
            let dropped = |b: usize| rungs[levels[at * most + b][0] as usize].way.is_none();
            let mut seen = vec![Vec::new(); block + 1];
            for row in queries.layers[layer].chunks_exact(heads * dim) {
                for reader in head * group..(head + 1) * group {
                    let z = logits(&row[reader * dim..(reader + 1) * dim], cache.keys(layer, head));
                    let of_blocks: Vec<f64> = z
                        .chunks(BLOCK)
                        .enumerate()
                        .map(|(b, z)| if b < block && dropped(b) { f64::NEG_INFINITY } else { log_sum(z) })
                        .collect();
                    let all = log_sum(&of_blocks);
                    for (b, seen) in seen.iter_mut().enumerate().filter(|(b, _)| *b == block || !dropped(*b)) {
                        seen.push((of_blocks[b] - all).exp());
                    }
                }
            }
            for (b, (old, seen)) in masses.iter_mut().zip(&seen).enumerate() {
                *old = mass(*old, seen, if b == block { 0.0 } else { KEEP });
            }
        });
    }

    fn decide(&mut self, block: usize, budget: f64, blind: bool, even: bool) -> Result<(), Boxed> {
        let Some(retention) = &mut self.retention else { return Ok(()) };
        let (levels, most) = (self.rungs.len(), self.most);
        let (mut cost, mut loss) = (vec![0.0; self.masses.len() * levels], vec![0.0; self.masses.len() * levels]);
        let kv_heads = self.model.config().kv_heads;
        let mut items = 0;
        for (item, mass) in self.masses.iter().enumerate().filter(|(item, _)| item % most <= block) {
            items += 1;
            let held = self.protected.holds(item % most, block);
            for (level, rung) in self.rungs.iter().enumerate() {
                let at = item * levels + level;
                cost[at] = rung.bytes * BLOCK as f64;
                // All of a mass that is near 1 is finite, so that sums of losses are.
                loss[at] = match rung.way {
                    None => drop_distortion(mass.min(1.0 - 1e-9), 1.0),
                    Some(_) if blind => 0.0,
                    Some(_) => mass * rung.moved[item / most / kv_heads],
                };
                if held && level > 0 {
                    loss[at] += PROTECTION;
                }
            }
        }
        let mut held = BitSet::new(self.masses.len());
        (0..self.masses.len()).filter(|item| self.protected.holds(item % most, block)).for_each(|item| {
            held.insert(item);
        });
        retention.protect(held);
        let of_head = budget * ((block + 1) * BLOCK) as f64;
        let names = (0..self.masses.len() / most).map(|at| ((at / kv_heads) as u32, (at % kv_heads) as u32));
        let heads: Vec<((u32, u32), f64)> = names.filter(|_| even).map(|name| (name, of_head)).collect();
        let limits = Limits { budget: budget * (items * BLOCK) as f64, layers: &[], heads: &heads };
        let done = retention.update(&cost, &loss, &limits, None)?;
        self.deeds.held += items as u64;
        self.deeds.forced += done.forced as u64;
        let now = retention.levels().to_vec();
        for (item, level) in now.into_iter().enumerate() {
            let [last, before] = self.levels[item];
            if item % most == block {
                self.levels[item] = [level; 2];
            } else if level != last {
                self.deeds.changed += 1;
                self.deeds.returned += u64::from(before == level);
                self.levels[item] = [level, last];
                self.apply(item, level)?;
            }
        }
        Ok(())
    }

    /// Makes the cache hold an item at a level.
    fn apply(&mut self, item: usize, level: u32) -> Result<(), Boxed> {
        let Config { kv_heads, head_dim: dim, .. } = *self.model.config();
        let (at, block) = (item / self.most, item % self.most);
        let (layer, head, from) = (at / kv_heads, at % kv_heads, block * BLOCK);
        let rung = &self.rungs[level as usize];
        self.cache.hide(layer, head, from..from + BLOCK, rung.way.is_none());
        if let Some(way) = rung.way {
            let keys: Vec<f64> =
                self.keys[at][from * dim..(from + BLOCK) * dim].iter().map(|x| f64::from(*x)).collect();
            let (coded, _) = (way.code)(layer, head, &keys)?;
            let coded: Vec<f32> = coded.iter().map(|x| *x as f32).collect();
            self.cache.replace_keys(layer, head, from, &coded);
        }
        Ok(())
    }
}
