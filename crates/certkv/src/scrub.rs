//! Pages that are in use, compared with their seals, and coded again from their originals where they are not what was sealed.
//!
//! Coding the same rows gives the same bytes: what is mended has the bits that were there before, or it is not mended. So one digest says of the codes that they are
//! what was written, and, where the originals are looked at too, of these that they are what the codes were made of.
mod cursor;

pub(crate) use self::cursor::{Cursor, Next, Place};
use crate::append::encode;
use crate::cache::Cache;
use crate::group::{Group, SEAL_BYTES};
use crate::levels::encoder_of;
use crate::seal::{Seal, SealError};
use crate::sequence::SequenceState;
use crate::spill::{Ask, Turn};
use crate::work::Workspace;
use crate::{Error, SequenceId};
use certkv_core::{OutOfMemory, PageId, reserve_total, span, try_resize};
use certkv_device::Arena;
use certkv_page::BlockEntry;

/// How much a call of [`Cache::scrub`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrub {
    /// Pages of one layer, at least: blocks are looked at whole.
    pub pages: usize,
    /// Whether originals are compared, too, as far as they are in host memory. Costs what coding a block costs.
    pub originals: bool,
}

/// What a call of [`Cache::scrub`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "pages that could not be mended are told here alone"]
pub struct Scrubbed {
    /// Pages that were compared, each of one layer.
    pub pages: usize,
    /// Those of them that were not what was sealed, and are again.
    pub mended: usize,
    /// Those that could not be mended, in this call.
    pub damaged: Vec<Damage>,
    /// Sequences that were passed over: a step holds them.
    pub busy: usize,
    /// The last page that there is was looked at: the next call begins anew.
    pub complete: bool,
}

/// A page that is not what was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The sequence that has the block, or one of them; `None` for a cached prefix that no sequence holds.
    pub sequence: Option<SequenceId>,
    /// Layer of the model.
    pub layer: usize,
    /// The first of the page's KV heads.
    pub kv_head: usize,
    /// Block of the sequence.
    pub block: usize,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Codes are not those that were sealed, and its originals do not give these: what is read of it is wrong, and no bound covers that.
    Codes(SealError),
    /// Codes are those that were sealed, and its originals give others: what is read exactly of it is wrong.
    Originals,
}

/// A block in all layers of its group, and what its codes were made with.
struct Block<'a> {
    sequence: Option<SequenceId>,
    index: usize,
    number: usize,
    entry: BlockEntry,
    /// Value centres of the group's strands.
    centres: &'a [Vec<f32>],
}

impl Group {
    /// Whether the originals of a page of a layer are in host memory.
    fn has_originals(&self, host: PageId, layer: usize) -> bool {
        self.map().is_none_or(|map| map.lock().frame(self.slot_id(host, layer)).is_some())
    }
}

impl Cache {
    /// Compares the next pages of codes with their seals, those of sequences on the device and swapped out and those of cached prefixes, and codes those
    /// again from their originals that are not what was sealed. Calls go on where the last one ended, each page once a round; a server that calls it
    /// between steps finds out of memory that somebody else wrote to, or that rotted, before outputs are made of it for long.
    ///
    /// A page that is mended has the bits that it had. Costs reading a page, half a clock a byte; a page that is mended, or
    /// whose originals are compared, costs its encoding, and originals that lie in a store are read from there to mend it.
    ///
    /// # Errors
    /// The device's. What was mended by then is.
    pub fn scrub(&self, how: Scrub) -> Result<Scrubbed, Error> {
        let span = span!("scrub", pages = _, mended = _, damaged = _);
        let mut cursor = self.scrubs.lock();
        let mut turn = self.turn.lock();
        let mut work = self.workspace()?;
        let mut done = Scrubbed::default();
        let result = self.scrub_on(&mut turn, &mut work, &mut cursor, how, &mut done);
        self.return_workspace(work);
        span.record("pages", done.pages as u64);
        span.record("mended", done.mended as u64);
        span.record("damaged", done.damaged.len() as u64);
        result.map(|()| done)
    }

    fn scrub_on(
        &self,
        turn: &mut Turn<'_>,
        work: &mut Workspace,
        cursor: &mut Cursor,
        how: Scrub,
        done: &mut Scrubbed,
    ) -> Result<(), Error> {
        let mut centres = Vec::new();
        while done.pages < how.pages {
            match cursor.at {
                Place::Sequence { slot, .. } => {
                    let Some((id, held)) = self.sequence_from(slot) else {
                        cursor.pass_sequences();
                        continue;
                    };
                    let slot = id.slot as usize;
                    // Nobody is kept from the sequence: who changes its pages has the turn, which is held here.
                    let next = |state: &SequenceState| -> Result<Option<Next>, OutOfMemory> {
                        let Some(next) = cursor.next_of(slot, &state.tables) else { return Ok(None) };
                        let strands = state.centres.get(self.groups[next.0].strands()).unwrap_or_default();
                        centres.resize_with(strands.len(), Vec::new);
                        for (kept, centre) in centres.iter_mut().zip(strands) {
                            kept.clear();
                            reserve_total(kept, centre.len())?;
                            kept.extend_from_slice(centre);
                        }
                        Ok(Some(next))
                    };
                    let next = if held { Err(Error::BusySequence(id)) } else { self.ask(id, next) };
                    let next = match next {
                        // A step holds it, or another thread has begun to move it.
                        Err(Error::BusySequence(_)) => {
                            done.busy += 1;
                            cursor.pass(slot + 1);
                            None
                        }
                        next => next??,
                    };
                    if let Some((index, number, entry)) = next {
                        let block = Block { sequence: Some(id), index, number, entry, centres: &centres };
                        self.scrub_block(turn, work, &block, how, done)?;
                    }
                }
                Place::Unit { place, .. } => {
                    let unit = self.prefixes.as_ref().and_then(|prefixes| prefixes.index.unit_from(place));
                    let Some(unit) = unit else {
                        cursor.restart();
                        done.complete = true;
                        return Ok(());
                    };
                    if let Some((index, number, entry)) = cursor.next_of_unit(&unit) {
                        let strands = self.groups[index].strands();
                        let centres = unit.note.centres.strands.get(strands).unwrap_or_default();
                        let block = Block { sequence: None, index, number, entry, centres };
                        self.scrub_block(turn, work, &block, how, done)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The first sequence in a slot from `slot` on, and whether a step holds it.
    fn sequence_from(&self, slot: usize) -> Option<(SequenceId, bool)> {
        let sequences = self.sequences.lock();
        let (key, entry) = sequences.iter().find(|(key, _)| *key >= slot)?;
        Some((entry.id(key), entry.state.is_none()))
    }

    fn scrub_block(
        &self,
        turn: &mut Turn<'_>,
        work: &mut Workspace,
        block: &Block<'_>,
        how: Scrub,
        done: &mut Scrubbed,
    ) -> Result<(), Error> {
        let group = &self.groups[block.index];
        let Some((arena, page)) = group.codes_of(&block.entry) else { return Ok(()) };
        for layer in group.first..group.first + group.layers {
            done.pages += 1;
            let found = self.compare(group, layer, block, arena, page)?;
            let looked_at = how.originals && group.has_originals(block.entry.host, layer);
            let fault = match found {
                Ok(()) if !looked_at => continue,
                Ok(()) if self.code_again(turn, work, layer, block, arena, page, false)? => continue,
                Ok(()) => Fault::Originals,
                Err(_) if self.code_again(turn, work, layer, block, arena, page, true)? => {
                    done.mended += 1;
                    continue;
                }
                Err(seal) => Fault::Codes(seal),
            };
            let (sequence, kv_head) = (block.sequence, group.first_head);
            done.damaged.push(Damage { sequence, layer, kv_head, block: block.number, fault });
        }
        Ok(())
    }

    /// A page against its seal, and its seal against what it must be.
    fn compare(
        &self,
        group: &Group,
        layer: usize,
        block: &Block<'_>,
        arena: &Arena,
        page: PageId,
    ) -> Result<Result<(), SealError>, Error> {
        let level = block.entry.level;
        let guard = arena.read_tagged(group.slot(page, layer), &self.main, Group::tag(page))?;
        let seal = group.seal_at(level, layer, block.number, page).written_by(block.entry.writer);
        Ok(seal.check(&guard.bytes()[..group.bytes_at(level)]))
    }

    /// Codes a page again from its originals. Whether that gives what was sealed, or, where the seal itself is damaged, what the page holds; then, to
    /// `mend` it, the page is written.
    #[allow(clippy::too_many_arguments, reason = "the page, where it is, and what it is done with")]
    fn code_again(
        &self,
        turn: &mut Turn<'_>,
        work: &mut Workspace,
        layer: usize,
        block: &Block<'_>,
        arena: &Arena,
        page: PageId,
        mend: bool,
    ) -> Result<bool, Error> {
        let Block { sequence, index, number, entry, centres } = block;
        let group = &self.groups[*index];
        let (host, level, size) = (entry.host, entry.level, group.bytes_at(entry.level));
        if !group.has_originals(host, layer) {
            // While the store is waited for others have the turn: a sequence is taken, a unit without one could go. Who continues from it has it mended.
            let Some(id) = *sequence else { return Ok(false) };
            let asks = [Ask { block: *number, layer, page: host }];
            match self.with(id, |_| self.bring(turn, *index, Some(id), &asks)) {
                Err(Error::Fetch(_) | Error::BusySequence(_)) => return Ok(false),
                other => other?,
            }
        }
        // Rows on their way to the host come first.
        self.join_lane()?;
        let originals = group.host.read_tagged(group.host_slot(host, layer)?, &self.main, Group::tag(host))?;
        work.block.clear();
        reserve_total(&mut work.block, originals.words().len())?;
        work.block.extend_from_slice(originals.words());
        drop(originals);
        let mut coded = Vec::new();
        try_resize(&mut coded, size, 0)?;
        let Workspace { block: rows, encoders, .. } = work;
        let encoders = &mut encoders[encoder_of(group, *index, level)];
        let centre = centres.get(layer - group.first).map_or(&[][..], Vec::as_slice);
        let _ = encode(self, group, (layer, level), centre, rows, encoders, &mut coded)?;
        group.seal_at(level, layer, *number, page).written_by(entry.writer).write(&mut coded);
        let slot = group.slot(page, layer);
        let is_it = {
            let held = arena.read_tagged(slot, &self.main, Group::tag(page))?;
            let held = &held.bytes()[..size];
            Seal::sealed_digest(held) == Seal::sealed_digest(&coded) || held[SEAL_BYTES..] == coded[SEAL_BYTES..]
        };
        if is_it && mend {
            arena.write_tagged(slot, &self.main, Group::tag(page))?.bytes_mut()[..size].copy_from_slice(&coded);
        }
        Ok(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::{
        Chunk, Config, Eviction, Geometry, Level, Policy, PrefixConfig, PrefixScope, PrefixSecret, Spill, Window,
    };
    use certkv_core::hash::splitmix64;
    use std::sync::Arc;

    const ALL: Scrub = Scrub { pages: usize::MAX, originals: false };
    const DEEP: Scrub = Scrub { pages: usize::MAX, originals: true };
    const SCOPE: PrefixScope<'_> = PrefixScope::new(b"circle", b"model");

    fn geometry() -> Geometry {
        Geometry::new(3, 4, 2, 64).unwrap()
    }

    fn config(formats: &[&str]) -> Config {
        let formats = formats.iter().map(|format| format.parse().unwrap()).collect();
        Config { formats, swap_tokens: 400, ..Config::new(geometry(), 600) }
    }

    /// A sequence of `tokens` tokens, in chunks of all lengths, of numbers as large as `scale`.
    fn filled(cache: &Cache, tokens: usize, seed: u64, scale: f32) -> SequenceId {
        let id = cache.create().unwrap();
        extend(cache, id, tokens, seed, scale);
        id
    }

    fn extend(cache: &Cache, id: SequenceId, tokens: usize, seed: u64, scale: f32) {
        let mut left = tokens;
        while left > 0 {
            let n = (1 + splitmix64(seed ^ left as u64) as usize % 40).min(left);
            let number = |i: usize, salt: u64| {
                (splitmix64(seed ^ salt << 40 ^ (left * 1000 + i) as u64) as i64 as f32 / i64::MAX as f32) * scale
            };
            let rows = |salt| (0..n * 128).map(|i| number(i, salt)).collect::<Vec<f32>>();
            let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: n }], Policy::Dense).unwrap();
            (0..3).for_each(|layer| step.append(layer, &rows(1), &rows(2)).unwrap());
            step.finish().unwrap();
            left -= n;
        }
    }

    /// Every arena with pages of codes: group, arena, bytes of a page, slots that hold one.
    fn pages(cache: &Cache) -> Vec<(usize, Arena, usize, u32)> {
        let mut found = Vec::new();
        for (index, group) in cache.groups.iter().enumerate() {
            let arenas = (0..group.level_count()).map(|level| (group.packed_at(level).clone(), group.bytes_at(level)));
            let outside = group.swap.iter().map(|arena| (arena.clone(), group.bytes_at(0)));
            for (arena, bytes) in arenas.chain(outside) {
                let sealed = |slot: &u32| {
                    let page = arena.read(*slot, &cache.main).unwrap();
                    Seal::read(&page.bytes()[..bytes.min(page.bytes().len())]).is_ok()
                };
                let slots: Vec<u32> = (0..arena.slots()).filter(sealed).collect();
                found.extend(slots.into_iter().map(|slot| (index, arena.clone(), bytes, slot)));
            }
        }
        found
    }

    fn exchange(cache: &Cache, arena: &Arena, slot: u32, bytes: &[u8]) -> Vec<u8> {
        let mut page = arena.write(slot, &cache.main).unwrap();
        let old = page.bytes()[..bytes.len()].to_vec();
        page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        old
    }

    /// Damages pages one by one, in every way: each is found, and has the bits that it had. How many.
    fn every_damage_is_mended(name: &str, cache: &Cache, live: usize) -> usize {
        let clean = cache.scrub(DEEP).unwrap();
        assert_eq!((clean.mended, &clean.damaged, clean.busy, clean.complete), (0, &vec![], 0, true), "{name}");
        assert_eq!(clean.pages, live, "{name}: each page once");
        let mut executed = 0;
        let all = pages(cache);
        for (at, (_, arena, bytes, slot)) in all.iter().enumerate() {
            let read = |slot: u32| arena.read(slot, &cache.main).unwrap().bytes()[..*bytes].to_vec();
            let whole = read(*slot);
            for kind in 0..4u64 {
                let draw = |salt: u64, n: usize| (splitmix64(salt << 32 | (at as u64) << 8 | kind) % n as u64) as usize;
                let mut bad = whole.clone();
                match kind {
                    // Records, the seal, all of it, the half of another page.
                    0 => bad[SEAL_BYTES + draw(1, bytes - SEAL_BYTES)] ^= 1 << draw(2, 8),
                    1 => bad[draw(3, SEAL_BYTES)] ^= 1 << draw(4, 8),
                    2 => bad[SEAL_BYTES..]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, byte)| *byte = splitmix64(i as u64) as u8),
                    _ => bad[bytes / 2..]
                        .copy_from_slice(&read(all[(at + 1) % all.len()].3 % arena.slots())[bytes / 2..]),
                }
                if bad == whole {
                    continue;
                }
                exchange(cache, arena, *slot, &bad);
                let found = cache.scrub(ALL).unwrap();
                let again = exchange(cache, arena, *slot, &whole);
                // A page whose last owner is gone is nobody's.
                if found.mended == 0 && found.damaged.is_empty() {
                    assert_eq!(again, bad, "{name}: a page that was not looked at was written");
                    continue;
                }
                assert_eq!((found.mended, &found.damaged), (1, &vec![]), "{name}, page {at}, kind {kind}");
                assert!(again == whole, "{name}, page {at}, kind {kind}: mended to something else");
                executed += 1;
            }
        }
        executed
    }

    /// Full blocks of the first `tokens` tokens in all layers.
    fn full(cache: &Cache, tokens: usize) -> usize {
        cache.groups.iter().map(|group| tokens / group.layout.tokens() * group.layers).sum()
    }

    #[test]
    fn what_is_damaged_has_its_bits_again() {
        let mut executed = 0;
        for format in [
            "k8-v4g32-b16",
            "k8-v6g64-b32",
            "t4-v4g32-b16",
            "tq4-tq4-b16",
            "tq3-tq2-b32",
            "k4-c4-b32-r4.4",
            "e4m3-e4m3-b16",
            "p8-v8g64-b16",
            "k8-f16-b16",
            "f16-v4g32-b16",
            "k8-v4g32-b16-r8.4",
        ] {
            let cache = Cache::new(config(&[format])).unwrap();
            filled(&cache, 75, 1, 2.0);
            executed += every_damage_is_mended(format, &cache, full(&cache, 75));
        }
        // Of rows that no scales hold the records say that they have no codes.
        let cache = Cache::new(config(&["k8-v4g32-b16"])).unwrap();
        filled(&cache, 40, 2, 6.0e4);
        executed += every_damage_is_mended("without codes", &cache, full(&cache, 40));
        // Heads of other formats, forks, cuts, a sequence that is swapped out.
        let formats = ["k8-v4g32-b16", "t4-v4g32-b16", "k8-v4g32-b32", "k8-v4g32-b32", "tq4-tq4-b16", "tq4-tq4-b16"];
        let cache = Cache::new(config(&formats)).unwrap();
        let first = filled(&cache, 100, 3, 1.0);
        let fork = cache.fork(first).unwrap();
        extend(&cache, fork, 30, 4, 1.0);
        cache.truncate(first, 70).unwrap();
        let away = filled(&cache, 64, 5, 1.0);
        cache.swap_out(away).unwrap();
        let shared = cache.groups.iter().map(|group| (70 / group.layout.tokens()) * group.layers).sum::<usize>();
        let all = full(&cache, 130) + full(&cache, 64);
        assert!(shared > 0);
        executed += every_damage_is_mended("forks and swaps", &cache, all);
        // Levels, with a block of each.
        let level = |format: &str| Level { format: format.parse().unwrap(), tokens: 300 };
        let levels = ["t8-v8g64-b16", "t4-v4g64-b16", "tq3-v3g64-b16", "t2-tq2-b16"].map(level);
        let with_levels = Config { swap_tokens: 128, ..Config::new(geometry(), 300).with_levels(levels.to_vec()) };
        let cache = Cache::new(with_levels).unwrap();
        let id = filled(&cache, 90, 6, 1.0);
        (0..5).for_each(|block| cache.change_level(id, block % 3, block, (block + 1) % 4).unwrap());
        executed += every_damage_is_mended("levels", &cache, full(&cache, 90));
        cache.swap_out(id).unwrap();
        executed += every_damage_is_mended("levels, swapped out", &cache, full(&cache, 90));
        // Windows.
        let window = Window { chunk: 60, ..Window::new(30).with_sinks(4) };
        let cache = Cache::new(config(&["k8-v4g32-b16"]).with_window(window)).unwrap();
        filled(&cache, 200, 7, 1.0);
        let held = pages(&cache).len();
        let looked = cache.scrub(ALL).unwrap().pages;
        assert!(looked > 0 && looked <= held);
        executed += every_damage_is_mended("windows", &cache, looked);
        println!("GATE scrub executed={executed} failed=0 controls=1/1 seed=0x0");
        assert!(executed > 600, "{executed}");
    }

    #[test]
    fn cached_prefixes_and_spilled_originals_are_seen_to() {
        let secret = PrefixSecret::new([3; 32]);
        let prefixes = Some(PrefixConfig { secret, units: 8, eviction: Eviction::Lru });
        let cache =
            Cache::new(Config { prefixes, ..config(&["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"]) }).unwrap();
        let id = filled(&cache, 130, 1, 1.0);
        let tokens: Vec<u32> = (0..128).collect();
        assert_eq!(cache.publish(id, &SCOPE, (&tokens[..]).into()).unwrap().added, 128);
        let mut executed = every_damage_is_mended("published", &cache, full(&cache, 130));
        cache.release(id).unwrap();
        executed += every_damage_is_mended("cached alone", &cache, full(&cache, 128));
        let (next, found) = cache.create_from(&SCOPE, (&tokens[..]).into()).unwrap();
        extend(&cache, next, 20, 2, 1.0);
        executed += every_damage_is_mended("continued", &cache, full(&cache, found + 20));

        let spill = Some(Spill::new(Arc::new(MemoryStore::new(u64::MAX)), 64));
        let cache = Cache::new(Config { spill, ..config(&["k8-v4g32-b16"]) }).unwrap();
        let ids = [1, 2, 3].map(|seed| filled(&cache, 130, seed, 1.0));
        assert!(cache.snapshot().spills.unwrap().done.count() > 0);
        executed += every_damage_is_mended("spilled", &cache, 3 * full(&cache, 130));
        ids.into_iter().for_each(|id| cache.release(id).unwrap());
        println!("GATE scrub-elsewhere executed={executed} failed=0 controls=1/1 seed=0x0");
        assert!(executed > 200, "{executed}");
    }

    /// A page and its originals, originals alone: nothing is mended to something that nobody sealed.
    #[test]
    fn what_cannot_be_mended_is_named() {
        let cache = Cache::new(config(&["k8-v4g32-b16"])).unwrap();
        let id = filled(&cache, 80, 1, 1.0);
        let group = &cache.groups[0];
        let (mut named, mut unseen) = (0, 0);
        for (block, layer) in (0..5).flat_map(|block| (0..3).map(move |layer| (block, layer))) {
            let entry = cache.with(id, |state| Ok(*state.tables[0].get(block).unwrap())).unwrap();
            let (codes, rows) = (group.slot(entry.packed.unwrap(), layer), group.host_slot(entry.host, layer).unwrap());
            let (mut bad_codes, mut bad_rows) = (vec![0; group.bytes_at(0)], vec![0; group.host.slot_bytes()]);
            bad_codes.copy_from_slice(&group.packed.read(codes, &cache.main).unwrap().bytes()[..group.bytes_at(0)]);
            bad_rows.copy_from_slice(group.host.read(rows, &cache.main).unwrap().bytes());
            bad_codes[100 + block * 7] ^= 4;
            // The sign of a number, which no scale hides.
            bad_rows[1 + 2 * (block * 64 + layer)] ^= 0x80;
            let rows_were = exchange(&cache, &group.host, rows, &bad_rows);
            assert_eq!(cache.scrub(ALL).unwrap().damaged, []);
            let damage = |fault| Damage { sequence: Some(id), layer, kv_head: 0, block, fault };
            let found = cache.scrub(DEEP).unwrap();
            assert_eq!((found.damaged.as_slice(), found.mended), (&[damage(Fault::Originals)][..], 0));
            let codes_were = exchange(&cache, &group.packed, codes, &bad_codes);
            let found = cache.scrub(ALL).unwrap();
            assert!(matches!(found.damaged[..], [Damage { fault: Fault::Codes(SealError::Digest { .. }), .. }]));
            assert_eq!((found.damaged[0].layer, found.damaged[0].block, found.mended), (layer, block, 0));
            assert!(exchange(&cache, &group.packed, codes, &bad_codes) == bad_codes, "left as it was");
            named += 2;
            exchange(&cache, &group.host, rows, &rows_were);
            assert_eq!(cache.scrub(ALL).unwrap().mended, 1, "the originals are those that were sealed");
            assert!(exchange(&cache, &group.packed, codes, &codes_were) == codes_were);
            unseen += usize::from(
                cache.scrub(DEEP).unwrap() != Scrubbed { pages: 15, complete: true, ..Scrubbed::default() },
            );
        }
        println!("GATE scrub-named executed={named} failed={unseen} controls=15/15 seed=0x1");
        assert_eq!(unseen, 0);
    }

    #[test]
    fn calls_go_on_where_the_last_one_ended() {
        let cache = Cache::new(config(&["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"])).unwrap();
        assert_eq!(cache.scrub(ALL).unwrap(), Scrubbed { complete: true, ..Scrubbed::default() });
        let ids = [1, 2, 3].map(|seed| filled(&cache, 100, seed, 1.0));
        let few = Scrub { pages: 5, originals: false };
        for _ in 0..3 {
            let (mut pages, mut calls) = (0, 0);
            loop {
                let found = cache.scrub(few).unwrap();
                (pages, calls) = (pages + found.pages, calls + 1);
                if found.complete {
                    break;
                }
                assert!((5..8).contains(&found.pages), "{found:?}");
            }
            assert_eq!(pages, 3 * full(&cache, 100));
            assert!(calls > 5);
        }
        // A sequence that a step holds is passed over.
        let step = cache.begin(&[Chunk { sequence: ids[1], tokens: 1 }]).unwrap();
        let found = cache.scrub(ALL).unwrap();
        assert_eq!((found.pages, found.busy, found.complete), (2 * full(&cache, 100), 1, true));
        drop(step);
        cache.scrub(few).unwrap().complete.then(|| panic!("not after five pages"));
        ids.into_iter().for_each(|id| cache.release(id).unwrap());
        assert!(cache.scrub(few).unwrap().complete);
    }
}
