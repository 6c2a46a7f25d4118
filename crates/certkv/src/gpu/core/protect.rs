//! Blocks that are protected: where their places are, and the launch that fills them.
use super::Core;
use crate::gpu::policy::Rule;
use crate::{Error, Protection};
use certkv_core::try_collect;
use certkv_kernel::cuda::protect::{self, Places, Protect, Protecting};
use certkv_kernel::cuda::queue::Span;

impl Core {
    /// Writes what every layer's table of sides has behind those of its pages: where the places of protected blocks are.
    pub(super) fn name_places(&self) -> Result<(), Error> {
        let (s, m) = (&self.sizes, &self.sizes.memory);
        for layer in 0..s.layers {
            let (of, heads) = (&s.of_layer[layer], s.rows * s.kv_heads);
            if of.places == 0 {
                continue;
            }
            let copies = self.scratch.address_of(s.places_at(layer), 2 * heads * of.places * s.side_bytes)?;
            let address = |place: usize| copies + (place * s.side_bytes) as u64;
            let both = (0..heads * of.places).flat_map(|place| {
                let side = |coded: bool, which: usize| if coded { address(2 * place + which) } else { 0 };
                [side(of.coded[0], 0), side(of.coded[1], 1)]
            });
            let words: Vec<u64> = try_collect(both)?;
            let first = 2 * s.pages_of(layer) * s.kv_heads;
            self.memory.write(self.queue.stream(), 4 * (layer * m.words + m.sides.start) + 16 * first, &words)?;
        }
        Ok(())
    }

    /// The layer's places.
    pub(super) fn places(&self, layer: usize) -> Result<Option<Places<'_>>, Error> {
        let (s, m) = (&self.sizes, &self.sizes.memory);
        let (count, heads) = (s.of_layer[layer].places, s.rows * s.kv_heads);
        if count == 0 {
            return Ok(None);
        }
        let held = Span::of(&self.memory, 4 * (layer * m.words + m.held.start), 8 * heads * count)?;
        let copies = Span::of(&self.scratch, s.places_at(layer), 2 * heads * count * s.side_bytes)?;
        Ok(Some(Places { count, held, copies }))
    }

    /// Whether attention of a layer that is not certified has something promoted.
    pub(in crate::gpu) fn protects(&self, layer: usize) -> bool {
        self.sizes.of_layer[layer].places > 0
    }

    /// Enqueues, for the sequences of a step before its first append, that what is protected is promoted in all layers, and that its copies are where attention will read
    /// them. Behind the step's tables, and where originals are. One launch for each 32 layers.
    pub(in crate::gpu) fn protect(&self, seqs: usize, rule: Rule) -> Result<(), Error> {
        if rule == Rule::Dense || self.sizes.protected.count() == 0 {
            return Ok(());
        }
        let layers = (0..self.sizes.layers).filter_map(|layer| self.protecting(layer, 0).transpose());
        let before = self.table(&self.sizes.tables.before)?;
        self.protect_in(layers, seqs, rule, before)
    }

    /// The same of one layer, for `seqs` drafts from a place of the list on whose blocks the host has coded before they attend: beside longer chunks.
    pub(in crate::gpu) fn protect_coded(
        &self,
        layer: usize,
        place: usize,
        seqs: usize,
        rule: Rule,
    ) -> Result<(), Error> {
        if rule == Rule::Dense {
            return Ok(());
        }
        let after = self.table(&self.sizes.tables.after)?;
        self.protect_in(self.protecting(layer, place).transpose().into_iter(), seqs, rule, after)
    }

    fn protect_in<'a>(
        &'a self,
        layers: impl Iterator<Item = Result<Protecting<'a>, Error>>,
        seqs: usize,
        rule: Rule,
        recorded: Span<'a>,
    ) -> Result<(), Error> {
        let (s, t) = (&self.sizes, &self.sizes.tables);
        let Protection { sinks, recent } = s.protected.rule;
        let args = Protect {
            ctas: 16 * self.ctas,
            seqs,
            lens: self.table(&t.before)?,
            recorded,
            block: s.block,
            side_bytes: s.side_bytes,
            tokens: [sinks, recent],
            alone: rule == Rule::Packed,
        };
        protect::protect(&self.queue, &self.kit(0).protect, &args, layers)
    }

    fn protecting(&self, layer: usize, place: usize) -> Result<Option<Protecting<'_>>, Error> {
        let s = &self.sizes;
        let memory = self.layer_memory(layer)?;
        let Some(places) = memory.places else { return Ok(None) };
        Ok(Some(Protecting {
            tables: self.tables_from(layer, place)?,
            hosts: self.table(&s.group(layer).tables.hosts)?,
            originals: self.sides_of(layer)?,
            memory,
            places,
            stats: self.counter(&s.stats_of(layer))?,
            window: s.window(layer).map(|window| [window.tokens, window.sinks]),
        }))
    }
}
