//! Sequences that continue from blocks which another one wrote.
//!
//! What is cached is the pages themselves: codes, error summaries and originals. A sequence that continues from them reads
//! the same bytes as the one that wrote them, so outputs and bounds over them are the same, bit for bit.
use crate::save::header::{GroupKind, Order, in_words};
use crate::sequence::SequenceState;
use crate::{Cache, Error, Level, PrefixUse};
use certkv_control::BitSet;
use certkv_core::{BudgetExceeded, Class, Geometry, Ledger, SequenceId, span};
use certkv_page::policy::{EvictionPolicy, Lru, S3Fifo};
use certkv_page::prefix::{
    Admission, Chain, Evicted, GroupShape, PrefixEvents, PrefixIndex, PrefixSecret, PrefixStats, Prompt, Published,
    Scope, Stop,
};
use certkv_page::{BlockEntry, BlockTable, Need, PageClass, PageError, Window};
use core::fmt::Write;
use std::sync::Arc;

/// Which cached prefix goes first when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// The one that was not used for longest.
    Lru,
    /// As S3-FIFO says: prompts that come only once do not push out those that come again.
    #[default]
    S3Fifo,
}

/// Whether, and how, blocks outlive their sequences.
#[derive(Debug, Clone)]
pub struct PrefixConfig {
    /// Key of all names. A server that keeps pages for other processes gives its own.
    pub secret: PrefixSecret,
    /// Most units (blocks of the largest size) that are cached.
    pub units: usize,
    /// Who goes first.
    pub eviction: Eviction,
}

/// Who may share, and all but the tokens that decides what a page holds. See [`Scope`], of which this is what the cache
/// cannot know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixScope<'a> {
    /// The circle of trust, set by the server and never by its client.
    pub domain: &'a [u8],
    /// The model's weights, by name or digest, with whatever else decides its rows (rotation, quantisation).
    pub model: &'a [u8],
    /// The adapter on top of it, if any.
    pub adapter: Option<&'a [u8]>,
    /// A further division.
    pub salt: Option<&'a [u8]>,
    /// Class of tolerance, where the server keeps several.
    pub tolerance: u32,
    /// Position of the first token.
    pub first_position: u64,
}

impl<'a> PrefixScope<'a> {
    /// One model without adapters, positions from 0.
    pub const fn new(domain: &'a [u8], model: &'a [u8]) -> Self {
        Self { domain, model, adapter: None, salt: None, tolerance: 0, first_position: 0 }
    }
}

/// Sizes of a unit of a cached prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixUnit {
    /// Tokens of it: a block of the largest size.
    pub tokens: usize,
    /// Most bytes of its page in a store, without the envelope: what [`StoreConfig::page_bytes`](crate::store::StoreConfig) has to allow.
    pub bytes: usize,
}

/// What is cached of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedPrefix {
    /// Tokens of its units that are cached, from the first on.
    pub cached: usize,
    /// Of these, tokens that [`Cache::create_from`] finds: all, unless windows are not there.
    pub found: usize,
}

/// What a publication came to. Where layers have windows, fewer tokens may be found than there are units: see [`Cache::publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublishedPrefix {
    /// Tokens of the sequence that [`Cache::create_from`] finds now.
    pub cached: usize,
    /// Tokens whose units are new with this call.
    pub added: usize,
    /// Why what follows is not cached, if there are more full units.
    pub stop: Option<Stop>,
}

impl PublishedPrefix {
    pub(crate) fn of(published: &Published, unit: usize) -> Self {
        let Published { usable, added, stop, .. } = published;
        Self { cached: usable * unit, added: added * unit, stop: *stop }
    }
}

/// Value centres of all strands: the codes of a sequence's blocks are relative to them. Counted while anybody holds them.
#[derive(Debug)]
pub(crate) struct Centres {
    pub(crate) strands: Vec<Vec<f32>>,
    ledger: Arc<Ledger>,
    bytes: usize,
}

impl Centres {
    fn of(strands: &[Vec<f32>], ledger: &Arc<Ledger>) -> Result<Self, BudgetExceeded> {
        let bytes = strands.iter().map(|strand| strand.len() * 4).sum();
        ledger.reserve(Class::Tables, bytes)?;
        Ok(Self { strands: strands.to_vec(), ledger: Arc::clone(ledger), bytes })
    }

    fn are(&self, strands: &[Vec<f32>]) -> bool {
        let bits = |strands: &[Vec<f32>]| strands.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        self.strands.len() == strands.len() && bits(&self.strands) == bits(strands)
    }
}

impl Drop for Centres {
    fn drop(&mut self) {
        self.ledger.release(Class::Tables, self.bytes);
    }
}

/// What is remembered of a unit beside its pages.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub(crate) centres: Arc<Centres>,
    /// Blocks of the unit without codes, where records do not say so themselves: strand, block of the sequence.
    pub(crate) uncoded: Arc<[(u32, u32)]>,
}

/// What a publication knows of blocks without codes.
pub(crate) struct Coding<'a> {
    /// Those of a unit: strand, block of the sequence.
    pub(crate) uncoded: &'a dyn Fn(usize) -> Arc<[(u32, u32)]>,
    /// The group of a strand.
    pub(crate) group_of: &'a dyn Fn(usize) -> usize,
}

/// The cached prefixes of a cache.
#[derive(Debug)]
pub(crate) struct Prefixes {
    pub(crate) index: PrefixIndex<Note>,
    secret: PrefixSecret,
    /// Geometry and formats in words, for the names.
    layout: String,
}

impl Prefixes {
    /// Bytes of the index, of what decides who goes, and of so many events. Of each group: tokens per block, host pages, blocks of a table.
    ///
    /// # Errors
    /// A number of units that is out of range.
    pub(crate) fn bytes(
        prefixes: &PrefixConfig,
        events: usize,
        groups: &[(usize, usize, usize)],
    ) -> Result<usize, Error> {
        let units = prefixes.units;
        if units == 0 || units > 1 << 24 {
            let why = format!("{units} units; must be 1 to 2^24");
            return Err(Error::Config { field: "prefixes", why });
        }
        let policy = match prefixes.eviction {
            Eviction::Lru => Lru::bytes(units),
            Eviction::S3Fifo => S3Fifo::bytes(units),
        };
        let unit = groups.iter().map(|(block, ..)| *block).max().unwrap_or(0);
        let events = PrefixEvents::bytes(events, unit, units);
        Ok(PrefixIndex::<Note>::bytes(groups, units).saturating_add(policy).saturating_add(events))
    }

    /// An index over `groups`, which are of these kinds, of `levels` if there are any, whose pages are in
    /// `order` and depend on `calibration`, if they do on any. It keeps so many events. Its bytes are reserved.
    #[allow(clippy::too_many_arguments, reason = "all that a name stands for")]
    pub(crate) fn new(
        config: &PrefixConfig,
        events: usize,
        geometry: &Geometry,
        groups: Vec<GroupShape>,
        formats: impl Iterator<Item = GroupKind>,
        levels: &[Level],
        calibration: Option<&str>,
        order: Order,
    ) -> Result<Self, Error> {
        let PrefixConfig { secret, units, eviction } = config;
        let policy: Box<dyn EvictionPolicy> = match eviction {
            Eviction::Lru => Box::new(Lru::create(*units)?),
            Eviction::S3Fifo => Box::new(S3Fifo::create(*units)?),
        };
        let g = geometry;
        let mut layout = format!("page 2, {} x {} heads of {} {:?}", g.layers, g.kv_heads, g.head_dim, g.store);
        for group in formats {
            // Writing to a string does not fail.
            let _ = write!(layout, ", {}", group.words());
            if let Some(Window { tokens, sinks, .. }) = group.window {
                let _ = write!(layout, " of {sinks} and {tokens} tokens");
            }
        }
        if !levels.is_empty() {
            let _ = write!(layout, ", levels {}", in_words(levels));
        }
        if let Some(name) = calibration {
            let _ = write!(layout, ", calibration {name}");
        }
        // Machines of both kinds may share a store: what one of them cannot read has another name there.
        if order != Order::Rows {
            let _ = write!(layout, ", {}", order.name());
        }
        let mut index = PrefixIndex::create(groups, *units, policy).map_err(Error::from_table)?;
        if events > 0 {
            index = index.with_events(events).map_err(Error::from_table)?;
        }
        Ok(Self { index, secret: secret.clone(), layout })
    }

    /// Units cached, and what happened so far.
    pub(crate) fn used(&self) -> PrefixUse {
        PrefixUse { units: self.index.len(), most: self.index.capacity(), stats: self.index.stats() }
    }

    /// Publishes a sequence with these centres, whose full blocks have the pages that `page` gives by group and block. `coding` says
    /// which blocks have no codes.
    pub(crate) fn publish(
        &self,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
        page: impl Fn(usize, usize) -> Option<BlockEntry>,
        centres: &[Vec<f32>],
        ledger: &Arc<Ledger>,
        coding: &Coding<'_>,
    ) -> Published {
        // The centres last seen to be this sequence's: units of one path share them.
        let mut same: Option<Arc<Centres>> = None;
        self.index.publish_pages(&self.chain(scope), prompt, page, |unit| {
            let found = match (unit.own.or(unit.before), &same) {
                (Some(note), Some(same)) if Arc::ptr_eq(&note.centres, same) => Arc::clone(same),
                (Some(note), _) => note.centres.are(centres).then(|| Arc::clone(&note.centres))?,
                (None, _) => Arc::new(Centres::of(centres, ledger).ok()?),
            };
            same = Some(Arc::clone(&found));
            let uncoded = (coding.uncoded)(unit.number);
            let Some(own) = unit.own else { return Some(Note { centres: found, uncoded }) };
            // Of blocks that come to a cached unit this sequence says it, of the others whoever brought them.
            let comes = |(strand, block): &&(u32, u32)| {
                unit.filled.contains(&((coding.group_of)(*strand as usize), *block as usize))
            };
            let mut all: Vec<(u32, u32)> = own.uncoded.iter().filter(|at| !comes(at)).copied().collect();
            all.extend(uncoded.iter().filter(comes));
            Some(Note { centres: found, uncoded: all.into() })
        })
    }

    /// As [`Prefixes::publish`] of a sequence with these tables.
    pub(crate) fn publish_tables(
        &self,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
        tables: &[BlockTable],
        centres: &[Vec<f32>],
        ledger: &Arc<Ledger>,
        coding: &Coding<'_>,
    ) -> Published {
        let held = tables.iter().map(BlockTable::len).min().unwrap_or(0);
        let tokens = &prompt.tokens[..prompt.tokens.len().min(held)];
        let page = |group: usize, block: usize| tables.get(group)?.get(block).copied();
        self.publish(scope, Prompt { tokens, ..prompt }, page, centres, ledger, coding)
    }

    /// As [`Cache::find_prefix`].
    pub(crate) fn find(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> CachedPrefix {
        let ((cached, found), unit) = (self.index.known(&self.chain(scope), prompt), self.index.unit());
        CachedPrefix { cached: cached * unit, found: found * unit }
    }

    /// Evicts for a call that was refused, with whole units or blocks of windows.
    pub(crate) fn make_room(&self, class: &str, capacity: usize, pages: usize) -> Option<Evicted> {
        let mut classes = self.index.groups().first()?.pools.classes();
        let class =
            classes.find(|known| known.name() == class && !matches!(known, PageClass::Tail | PageClass::Swap))?;
        Some(self.index.make_room_after(class, capacity, pages))
    }

    /// Geometry and formats in words.
    pub(crate) fn layout(&self) -> &str {
        &self.layout
    }

    pub(crate) fn chain(&self, scope: &PrefixScope<'_>) -> Chain {
        let PrefixScope { domain, model, adapter, salt, tolerance, first_position } = *scope;
        let layout = self.layout.as_bytes();
        Chain::new(&self.secret, &Scope { domain, model, adapter, salt, layout, tolerance, first_position })
    }
}

/// The answer of a cache that was configured without.
pub(crate) fn not_cached() -> Error {
    Error::Config { field: "prefixes", why: "prefixes are not cached: it is `None`".to_owned() }
}

impl Cache {
    /// Keeps the room of [`Config::prefix_watermarks`](crate::Config::prefix_watermarks). What the device refuses is told to who needs the room.
    pub(crate) fn keep_room(&self) {
        let marks = self.config.prefix_watermarks.zip(self.prefixes.as_ref());
        let evicted = marks.and_then(|(marks, prefixes)| prefixes.index.evict_ahead(marks));
        if let Some(evicted) = evicted {
            let _ = self.retire_evicted(evicted);
        }
    }

    pub(crate) fn prefixes(&self) -> Result<&Prefixes, Error> {
        self.prefixes.as_ref().ok_or_else(not_cached)
    }

    /// A new sequence that holds the longest cached prefix of `prompt`, and how many tokens that is: the caller appends what
    /// follows. Its pages are shared, none is copied.
    ///
    /// A prompt that is cached whole is found whole. A model that needs the last token's output passes the prompt without it.
    ///
    /// # Errors
    /// As [`Cache::create`]; [`Error::Config`] where prefixes are not cached. Nothing changed.
    pub fn create_from(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<(SequenceId, usize), Error> {
        let prefixes = self.prefixes()?;
        let span = span!("continue", asked = (prompt.tokens.len()), found = _);
        let _turn = self.turn.lock();
        let hit = prefixes.index.longest(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
        span.record("found", hit.tokens as u64);
        let mut state = SequenceState::new(&self.groups, &self.config)?;
        if let Some(Note { centres, .. }) = hit.notes.last() {
            state.centres.clone_from(&centres.strands);
        }
        for (strand, block) in hit.notes.iter().flat_map(|note| note.uncoded.iter()) {
            let (uncoded, block) = (&mut state.uncoded[*strand as usize], *block as usize);
            uncoded.resize(uncoded.capacity().max(block + 1));
            uncoded.insert(block);
        }
        state.tables = hit.tables;
        Ok((self.insert(state)?, hit.tokens))
    }

    /// How much of `prompt` is cached, for whoever has yet to decide where it goes. Holds nothing, and counts as no use.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn find_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<CachedPrefix, Error> {
        Ok(self.prefixes()?.find(scope, prompt))
    }

    /// Caches the full blocks of a sequence, each at the level that it has now, so that others may continue from them, now and after it was
    /// released. `prompt`
    /// is what the sequence holds from its first token on; it may be shorter, and what is longer is ignored. Calling it again
    /// as the sequence grows adds what is new.
    ///
    /// Layers with a window have given up what their queries no longer see. Units are cached without it: [`Cache::create_from`] finds a
    /// prefix up to the greatest length at which the sinks and the window of the next query are there. So a sequence that is published
    /// when its prompt is in is found for that prompt, published again at its end for that and what follows it; what lies between
    /// is not. Windows that were published and that nobody uses go first where their pages run out, those that were longest in
    /// no use; a sequence that still has one gives it back to a unit that is cached without it.
    ///
    /// Blocks that are cached already stay. If they were written beside this sequence rather than by it (two prompts at once),
    /// the codes of later blocks may not fit them; then nothing more is added, and `stop` says so.
    ///
    /// # Errors
    /// Unknown or busy sequence; [`Error::SwappedOut`]; [`Error::Config`] where prefixes are not cached.
    pub fn publish(
        &self,
        id: SequenceId,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
    ) -> Result<PublishedPrefix, Error> {
        let prefixes = self.prefixes()?;
        let span = span!("publish", asked = (prompt.tokens.len()), added = _);
        let _turn = self.turn.lock();
        let unit = prefixes.index.unit();
        let published = self.with(id, |state| {
            if state.is_out() {
                return Err(Error::SwappedOut);
            }
            let coding = Coding {
                uncoded: &|number| self.uncoded_in(state, number, unit),
                group_of: &|strand| self.group_of_strand(strand).unwrap_or(usize::MAX),
            };
            Ok(prefixes.publish_tables(scope, prompt, &state.tables, &state.centres, &self.ledger, &coding))
        })?;
        let summary = PublishedPrefix::of(&published, unit);
        span.record("added", summary.added as u64);
        self.retire_evicted(published.evicted)?;
        Ok(summary)
    }

    /// Blocks of one unit that have no codes.
    fn uncoded_in(&self, state: &SequenceState, number: usize, unit: usize) -> Arc<[(u32, u32)]> {
        let mut found = Vec::new();
        for group in &self.groups {
            let each = unit / group.layout.tokens();
            for strand in group.strands() {
                let uncoded: &BitSet = &state.uncoded[strand];
                let blocks = (number * each..(number + 1) * each).filter(|b| *b < uncoded.capacity());
                found.extend(blocks.filter(|b| uncoded.contains(*b)).map(|b| (strand as u32, b as u32)));
            }
        }
        found.into()
    }

    /// Gives back the pages of evicted units once nothing reads them; returns units, and blocks of windows that went without theirs.
    pub(crate) fn retire_evicted(&self, evicted: Evicted) -> Result<usize, Error> {
        let gone = evicted.units + evicted.blocks;
        let _span = (gone > 0).then(|| span!("evict", units = (evicted.units)));
        for (group, dropped) in self.groups.iter().zip(evicted.groups()) {
            self.forget_promoted(group, dropped);
        }
        evicted.retire(|_| self.stamp())?;
        for group in &self.groups {
            self.reclaim(group);
        }
        if gone > 0 {
            self.sweep_all();
        }
        Ok(gone)
    }

    /// Forgets up to `units` cached units that no sequence uses; returns how many. The cache does it by itself where pages run
    /// out; a server that wants pages free ahead of time, or has new weights, calls it with what it likes.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn evict_prefixes(&self, units: usize) -> Result<usize, Error> {
        let prefixes = self.prefixes()?;
        let _turn = self.turn.lock();
        self.retire_evicted(prefixes.index.evict(units))
    }

    /// Units cached now, and what was asked, found and evicted since the cache was made; `None` where prefixes are not cached.
    pub fn prefix_stats(&self) -> Option<(usize, PrefixStats)> {
        self.prefixes.as_ref().map(|prefixes| (prefixes.index.len(), prefixes.index.stats()))
    }

    /// Whether `tokens` more tokens of a sequence, or of a new one, would find their pages, in steps as long as windows allow.
    /// Nothing is reserved.
    ///
    /// # Errors
    /// Unknown or busy sequence; [`Error::TooLong`].
    pub fn admit(&self, id: Option<SequenceId>, tokens: usize) -> Result<Admission, Error> {
        let _turn = self.turn.lock();
        let needs: Vec<Need> = match id {
            Some(id) => {
                let of = |state: &SequenceState| state.tables.iter().map(|t| t.plan_growth(tokens)).collect();
                self.ask::<Result<_, _>>(id, of)?.map_err(Error::from_table)?
            }
            None => {
                let tables = self.groups.iter().map(|group| group.table());
                let needs = tables.map(|table| table.and_then(|table| table.plan_growth(tokens)));
                needs.collect::<Result<_, _>>().map_err(Error::from_table)?
            }
        };
        for group in &self.groups {
            self.reclaim(group);
        }
        if let Some(prefixes) = &self.prefixes {
            return Ok(prefixes.index.admit(&needs));
        }
        let mut answer = Admission::Fits;
        for (number, (group, need)) in self.groups.iter().zip(&needs).enumerate() {
            for (class, wanted) in need.by_class() {
                let counts = group.pools.of(class).counts();
                let there = counts.free + counts.retiring;
                if wanted > there {
                    return Ok(Admission::Lacks { group: number, class, pages: wanted - there });
                }
                if wanted > counts.free {
                    answer = Admission::FitsSoon;
                }
            }
        }
        Ok(answer)
    }

    /// After a cut was refused for want of a host page: forgets the cached units whose pages it would have copied, so that the
    /// sequence can write its own. Whether there were any.
    pub(crate) fn forget_reopened(&self, id: SequenceId, len: usize, error: &Error) -> Result<bool, Error> {
        let (Some(prefixes), Error::CapacityExhausted { class: "host", .. }) = (&self.prefixes, error) else {
            return Ok(false);
        };
        let evicted = self.with(id, |state| {
            let blocks = state.tables.iter().enumerate().filter_map(|(group, table)| {
                let (block, rows) = (len / table.block_size(), len % table.block_size());
                let entry = table.get(block).filter(|entry| rows > 0 && entry.is_full())?;
                Some(prefixes.index.forget(group, entry.host))
            });
            Ok(blocks.collect::<Vec<_>>())
        })?;
        let mut units = 0;
        for evicted in evicted {
            units += self.retire_evicted(evicted)?;
        }
        Ok(units > 0)
    }

    /// Evicts for a request that was refused; whether it is worth another try. Pages that only wait for a fence are not worth
    /// evicting others for.
    pub(crate) fn make_room(&self, error: &Error) -> Result<bool, Error> {
        let Error::CapacityExhausted { class, cause: PageError::Exhausted { asked, free, retiring, capacity } } = error
        else {
            return Ok(false);
        };
        let Some(prefixes) = &self.prefixes else { return Ok(false) };
        let missing = asked.saturating_sub(free + retiring);
        // Of a layer without a window a unit has at least one page of every class that is cached; it may have more.
        let evicted = (missing > 0).then(|| prefixes.make_room(class, *capacity, missing)).flatten();
        evicted.map_or(Ok(false), |evicted| Ok(self.retire_evicted(evicted)? > 0))
    }
}
