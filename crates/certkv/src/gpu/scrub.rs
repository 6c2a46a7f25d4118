//! Pages that are in use, compared with what they were.
//!
//! Records have no seal while they lie on the device, and originals none anywhere: the first call that looks at a page makes its digest, and later ones compare it.
//! A kernel makes the digests where the pages lie, so that nothing but these travels. What differs is coded again from its originals beside the page, and takes its place if it is what was first seen.
use super::cache::GpuCache;
use super::core::Core;
use super::prefill::{Coder, ToCode, pack, push_items, reachable};
use super::ring::Ring;
use crate::scrub::{Cursor, Damage, Fault, Next, Place, Scrub, Scrubbed};
use crate::seal::SealError;
use crate::{Error, SequenceId};
use certkv_core::{Class, PageId, reserve_total, span, try_filled, try_resize};
use certkv_device::cuda::DeviceBuffer;
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::swap::{self, SwapItem};
use std::sync::Arc;

/// Pages to a launch, each with an item and a digest in the staging ring.
const PER_LAUNCH: usize = 512;

/// The digest of a page as it was first seen, and the life of the page that it is of: 0, which no page has, before.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    generation: u32,
    digest: u64,
}

/// Digests of pages, made when somebody first asks.
#[derive(Debug, Default)]
pub(super) struct Watched {
    cursor: Cursor,
    /// By layer and page: of records, then of originals.
    seen: [Vec<Vec<Seen>>; 2],
    /// They are there, and reserved.
    held: bool,
    /// Where a page is coded again.
    spare: Option<DeviceBuffer>,
}

/// A page whose digest is on its way.
#[derive(Debug, Clone, Copy)]
struct Look {
    sequence: Option<SequenceId>,
    layer: usize,
    block: usize,
    page: PageId,
    /// The page's number on the device, if it is of records.
    number: u32,
    /// Of the records.
    level: u8,
    /// The page of its originals.
    host: PageId,
    originals: bool,
}

impl GpuCache {
    /// Compares the next pages of records on the device with what they were when such a call first saw them, and with `originals` those in host memory too, as
    /// [`Cache::scrub`](crate::Cache::scrub): each page once a round, a round at most in a call. A page that was never looked at is remembered as it is. One that differs is coded again
    /// from its originals, where these are in host memory and a sequence holds it, and mended if that gives what was first seen. A sequence that is named can be stepped under
    /// [`Policy::Dense`](crate::Policy::Dense) where its originals are what they were, or be made again from its tokens. Sequences that are swapped out are left out: their pages are compared when they
    /// return.
    ///
    /// Waits for the device. Costs reading a page there, and of originals over the link; the first call reserves 16 bytes of host memory a page and layer, the first that
    /// mends a page of device memory.
    ///
    /// # Errors
    /// The driver's; [`Error::Budget`] and out of memory in the first call.
    pub fn scrub(&mut self, how: Scrub) -> Result<Scrubbed, Error> {
        let span = span!("scrub", pages = _, mended = _, damaged = _);
        self.watch()?;
        if how.originals {
            self.land()?;
        }
        let (mut done, mut looks) = (Scrubbed::default(), Vec::new());
        while done.pages < how.pages && !done.complete {
            let Some((sequence, (group, block, entry))) = self.next_block(&mut done.complete) else { continue };
            let layers = self.core.sizes.groups[group].layers.clone();
            for layer in layers {
                let look = |page: PageId, originals| {
                    let (level, host) = (entry.level, entry.host);
                    let number = if originals { page.index } else { self.core.sizes.page_of(level, page.index) };
                    Look { sequence, layer, block, page, number, level, host, originals }
                };
                let there = entry.packed.map(|page| look(page, false));
                let kept = self.host_at(layer, entry.host).is_ok() && how.originals;
                looks.extend(there.into_iter().chain(kept.then(|| look(entry.host, true))));
                done.pages += 1;
            }
            if looks.len() >= PER_LAUNCH {
                self.look_at(&mut looks, &mut done)?;
            }
        }
        self.look_at(&mut looks, &mut done)?;
        span.record("pages", done.pages as u64);
        span.record("mended", done.mended as u64);
        span.record("damaged", done.damaged.len() as u64);
        Ok(done)
    }

    /// Room for the digests of all pages.
    fn watch(&mut self) -> Result<(), Error> {
        if self.watched.held {
            return Ok(());
        }
        let s = &self.core.sizes;
        let pages = |originals: bool| {
            (0..s.layers).map(move |layer| match originals {
                true => s.group(layer).host_pages,
                false => s.pages_of(layer),
            })
        };
        let bytes = (pages(false).sum::<usize>() + pages(true).sum::<usize>()) * size_of::<Seen>();
        self.ledger.reserve(Class::Tables, bytes)?;
        let mut watched = Watched { held: true, ..Watched::default() };
        for (seen, originals) in watched.seen.iter_mut().zip([false, true]) {
            for count in pages(originals) {
                let mut of_layer = Vec::new();
                try_resize(&mut of_layer, count, Seen::default())
                    .inspect_err(|_| self.ledger.release(Class::Tables, bytes))?;
                seen.push(of_layer);
            }
        }
        self.watched = watched;
        Ok(())
    }

    /// The next block that has not been seen in this round; `None` where the walk has to go on, or is `complete`.
    fn next_block(&mut self, complete: &mut bool) -> Option<(Option<SequenceId>, Next)> {
        let Self { watched: Watched { cursor, .. }, sequences, prefixes, .. } = self;
        let (id, next) = match cursor.at {
            Place::Sequence { slot, .. } => {
                let Some((key, entry)) = sequences.iter().find(|(key, _)| *key >= slot) else {
                    cursor.pass_sequences();
                    return None;
                };
                let id = SequenceId { slot: key as u32, generation: entry.generation };
                (Some(id), cursor.next_of(key, &entry.tables)?)
            }
            Place::Unit { place, .. } => {
                let unit = prefixes.as_ref().and_then(|prefixes| prefixes.index.unit_from(place));
                let Some(unit) = unit else {
                    cursor.restart();
                    *complete = true;
                    return None;
                };
                (None, cursor.next_of_unit(&unit)?)
            }
        };
        // What is swapped out is compared when it returns.
        next.2.packed.is_some().then_some((id, next))
    }

    /// Makes the digests of pages, and compares or remembers them.
    fn look_at(&mut self, looks: &mut Vec<Look>, done: &mut Scrubbed) -> Result<(), Error> {
        let mut bad = Vec::new();
        for some in looks.chunks(PER_LAUNCH) {
            for originals in [false, true] {
                let some: Vec<&Look> = some.iter().filter(|look| look.originals == originals).collect();
                for (look, found) in some.iter().zip(self.digests_of(&some)?) {
                    let places = self.watched.seen[usize::from(originals)].get_mut(look.layer);
                    let Some(seen) = places.and_then(|pages| pages.get_mut(look.number as usize)) else { continue };
                    if seen.generation != look.page.generation {
                        *seen = Seen { generation: look.page.generation, digest: found };
                    } else if seen.digest != found {
                        bad.push((**look, seen.digest, found));
                    }
                }
            }
        }
        looks.clear();
        for (look, sealed, found) in bad {
            if !look.originals && self.mend(&look, sealed)? {
                done.mended += 1;
                continue;
            }
            let Look { sequence, layer, block, originals, .. } = look;
            let fault = if originals { Fault::Originals } else { Fault::Codes(SealError::Digest { sealed, found }) };
            done.damaged.push(Damage { sequence, layer, kv_head: 0, block, fault });
        }
        Ok(())
    }

    /// Digests of pages that are all of records, or all of originals.
    fn digests_of(&mut self, looks: &[&Look]) -> Result<Vec<u64>, Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        let at = |look: &Look| -> Result<Span<'_>, Error> {
            Ok(match look.originals {
                true => core.originals.span(self.host_at(look.layer, look.page)?, s.original_bytes)?,
                false => {
                    let at = s.packed_at(look.layer, look.number);
                    Span::of(&core.packed, at, s.record_page_bytes(look.layer, look.level))?
                }
            })
        };
        let spans = looks.iter().map(|look| at(look)).collect::<Result<Vec<_>, _>>()?;
        let whole = match looks.first() {
            Some(look) if look.originals => core.originals.span(0, core.originals.len())?,
            _ => Span::of(&core.packed, 0, core.packed.len())?,
        };
        digests(&core, &mut self.ring, &spans, whole)
    }

    /// Codes a page again from its originals. Whether that gives what was first seen; then the page holds it.
    fn mend(&mut self, look: &Look, sealed: u64) -> Result<bool, Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        let bytes = s.record_page_bytes(look.layer, look.level);
        self.land()?;
        let (Some(id), Ok(host)) = (look.sequence, self.host_at(look.layer, look.host)) else { return Ok(false) };
        if self.watched.spare.is_none() {
            // Lower levels have smaller pages.
            let most = s.of_layer.iter().map(|layer| layer.page_bytes).max().unwrap_or(0);
            self.ledger.reserve(Class::Tables, most)?;
            let spare = DeviceBuffer::new(core.queue.gpu(), most);
            self.watched.spare = Some(spare.inspect_err(|_| self.ledger.release(Class::Tables, most))?);
        }
        let Some(spare) = self.watched.spare.take() else { return Ok(false) };
        let at = s.packed_at(look.layer, look.number);
        let mended = (|| {
            // What lies between sections of a record no coding writes.
            spare.copy_from(core.queue.stream(), 0, &core.packed, at, bytes)?;
            let mut items = Vec::new();
            let record_bytes = bytes / s.kv_heads;
            let block = ToCode { originals: reachable(&core, host)?, record: spare.address(), bytes: record_bytes };
            push_items(&core, look.layer, id.slot as usize, block, &mut items)?;
            let coder = if s.levels.is_empty() { Coder::Layer } else { Coder::Level(look.level.into()) };
            pack(self, look.layer, coder, &items)?;
            let made = Span::of(&spare, 0, bytes)?;
            if digests(&core, &mut self.ring, &[made], made)?.first() != Some(&sealed) {
                return Ok(false);
            }
            core.packed.copy_from(core.queue.stream(), at, &spare, 0, bytes)?;
            Ok(true)
        })();
        // Of a page that may be given up before this is used again.
        let erased = if self.config.erase { spare.fill(core.queue.stream(), 0, bytes, 0) } else { Ok(()) };
        self.watched.spare = Some(spare);
        erased?;
        core.finish()?;
        mended
    }
}

/// Digests of spans of one area, made where they lie. Waits for the device.
fn digests(core: &Core, ring: &mut Ring, spans: &[Span<'_>], whole: Span<'_>) -> Result<Vec<u64>, Error> {
    let mut found = try_filled(spans.len(), 0u64)?;
    if spans.is_empty() {
        return Ok(found);
    }
    let bytes = spans.len() * size_of::<SwapItem>();
    let at = ring.take(&core.queue, bytes + 8 * spans.len())?;
    let area = ring.area();
    let mut words = Vec::new();
    reserve_total(&mut words, spans.len() * SwapItem::WORDS)?;
    for (i, span) in spans.iter().enumerate() {
        let item = SwapItem::look(*span, area.span(at + bytes + 8 * i, 8)?)?;
        words.extend_from_slice(&item.words());
    }
    area.write(at, &words)?;
    let (list, made) = (area.span(at, size_of_val(words.as_slice()))?, area.span(at + bytes, 8 * spans.len())?);
    swap::launch(&core.queue, &core.kit(0).swap, list, spans.len(), (whole, None, made))?;
    core.finish()?;
    area.read(at + bytes, &mut found)?;
    Ok(found)
}
