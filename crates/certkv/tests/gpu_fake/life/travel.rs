//! A prefix from one cache to another by way of a store, and any call of the driver fails meanwhile.
use super::{Held, KV, LAYERS, Life, Manner, Over, certified, config, driver_error};
use crate::fake_cuda::sweep::{Fault, Ran};
use crate::kernels::{BLOCK, KV_HEADS, MARK, Plant, planted};
use crate::shelf::Shelf;
use certkv::gpu::{Compiler, Gpu};
use certkv::{Error, PrefixScope, SaveScope, SequenceId};

const UNITS: usize = 3;
const TOKENS: usize = UNITS * BLOCK;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");

impl Life {
    /// Whether whole units are cached, and beside `others` no page is taken.
    fn only_units(&mut self, others: usize, when: &str) {
        let (pages, units) = (self.cache.live_pages(), self.cache.prefix_stats().map_or(0, |(units, _)| units));
        // A unit of this cache is a block: a page of originals and one of records.
        if pages != others.max(2 * units) {
            self.wrong.push(format!("{when}: {pages} pages, {units} units, {others} of sequences"));
        }
    }

    /// Everything that a sequence is, in bytes.
    fn bytes(&mut self, id: SequenceId) -> Result<Vec<u8>, Over> {
        let scope = SaveScope { model: b"model", key: None };
        self.stubbornly(|life| {
            let mut file = Vec::new();
            life.cache.save(id, &scope, &mut file).map(|_| file)
        })
    }

    /// A sequence that begins with all cached units.
    fn begun(&mut self, tokens: &[u32], rows: &[[Vec<u16>; 2]]) -> Result<SequenceId, Over> {
        let (id, found) = self.stubbornly(|life| life.cache.create_from(&SCOPE, tokens.into()))?;
        if found != TOKENS {
            self.wrong.push(format!("{found} tokens found"));
        }
        let cut = |side: &Vec<u16>| side[..found * KV].to_vec();
        self.held.push(Held { id, rows: rows.iter().map(|[keys, values]| [cut(keys), cut(values)]).collect() });
        Ok(id)
    }

    /// Gives all back, on a context that is lost, too.
    fn emptied(&mut self, units: Option<usize>) {
        for held in self.held.drain(..) {
            if let Err(error) = self.cache.release(held.id) {
                self.wrong.push(format!("a release failed: {error}"));
            }
        }
        let evicted = self.cache.evict_prefixes(usize::MAX).ok();
        if evicted.is_none() || units.is_some_and(|units| evicted != Some(units)) || self.cache.live_pages() != 0 {
            self.wrong.push(format!("at the end {evicted:?} units, {} pages", self.cache.live_pages()));
        }
    }
}

fn travel(one: &mut Life, other: &mut Life, shelf: &Shelf) -> Result<(), Over> {
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let a = one.create()?;
    // The last block is closed by the append of one row.
    one.step(&[(a, TOKENS - 2)], certified())?;
    one.step(&[(a, 1)], certified())?;
    one.step(&[(a, 1)], certified())?;
    let rows = one.held[a].rows.clone();
    let id = one.held[a].id;
    one.stubbornly(|life| life.cache.publish(id, &SCOPE, tokens[..].into()))?;
    let puts = one.stubbornly(|life| {
        let puts = life.cache.export_prefix(&SCOPE, tokens[..].into(), 0);
        life.only_units(2 * UNITS, "exported");
        puts
    })?;
    if puts.len() != UNITS {
        one.wrong.push(format!("{} units went out", puts.len()));
    }
    shelf.put(puts);
    let mut failures = 0;
    let cached = other.stubbornly(|life| {
        let found = shelf.get(life.cache.missing_prefix(&SCOPE, tokens[..].into())?);
        let cached = life.cache.import_prefix(&SCOPE, tokens[..].into(), &found);
        life.only_units(0, "imported");
        if cached.is_err() {
            failures += 1;
            // What came before goes on from there, or is forgotten.
            if failures % 2 == 1 && life.held.is_empty() {
                life.cache.evict_prefixes(1)?;
                life.only_units(0, "evicted");
            }
        }
        cached
    })?;
    if cached != TOKENS {
        other.wrong.push(format!("{cached} tokens came"));
    }
    let (here, there) = (one.begun(&tokens, &rows)?, other.begun(&tokens, &rows)?);
    one.verify()?;
    other.verify()?;
    if one.bytes(here)? != other.bytes(there)? {
        other.wrong.push("another sequence than the one that was exported".to_owned());
    }
    for place in 0..UNITS * LAYERS * KV_HEADS {
        let (block, layer, head) = (place / LAYERS / KV_HEADS, place / KV_HEADS % LAYERS, place % KV_HEADS);
        let ours = one.stubbornly(|life| life.cache.record_bytes(here, layer, block, head))?;
        let theirs = other.stubbornly(|life| life.cache.record_bytes(there, layer, block, head))?;
        if ours != theirs || ours[MARK..MARK + 8] == [0; 8] {
            other.wrong.push(format!("other codes of block {block}, layer {layer}, head {head}"));
        }
    }
    other.step(&[(0, 2)], certified())?;
    other.step(&[(0, 1)], certified())?;
    other.verify()
}

pub(crate) fn run(compiler: &Compiler, format: &str, shelf: &Shelf, faults: &[Fault], wrong: &mut Vec<String>) -> Ran {
    let failed = |error: Error| (error.to_string(), driver_error(&error));
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return Ran { result: Err(failed(error.into())), unreleased: 0 },
    };
    let new = || Life::new(&gpu, compiler, (config(format), Manner::Anew), faults.len());
    let result = match new().and_then(|one| Ok((one, new()?))) {
        Err(error) => Err(failed(error)),
        Ok((mut one, mut other)) => {
            let ended = travel(&mut one, &mut other, shelf);
            let mut first = None;
            for mut life in [one, other] {
                if let Some(again) = life.last.take().filter(|_| !faults.iter().any(|fault| fault.lost)) {
                    life.wrong.push(format!("failed again: {again}"));
                }
                if planted(Plant::Leak) {
                    life.held.pop();
                }
                life.emptied(ended.is_ok().then_some(UNITS));
                wrong.append(&mut life.wrong);
                first = first.or(life.first.take());
            }
            match first {
                _ if planted(Plant::Swallowed) => Ok(()),
                None if ended.is_err() => Err(("the script ended early".to_owned(), None)),
                None => Ok(()),
                Some(error) => Err(failed(error)),
            }
        }
    };
    Ran { result, unreleased: gpu.usage().unreleased }
}
