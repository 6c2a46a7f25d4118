//! Random histories of sequences over a prefix index, against a plain model: what is found is what was published, its pages
//! hold what the tokens say, and nothing is lost. In two worlds of three half of the groups have windows.
use super::{SECRET, scope};
use crate::policy::{EvictionPolicy, Lru, S3Fifo};
use crate::prefix::{Chain, Evicted, GroupShape, PrefixIndex, Prompt, Scope};
use crate::{BlockTable, Dropped, PageClass, PageId, Pools, Stamp, Window};
use certkv_core::hash::{hash64, splitmix64};
use certkv_core::plant::{self, Bug};
use std::collections::{HashMap, HashSet};

const SEED: u64 = 0x7072_6566;
const WORLDS: u64 = 60;
const OPS: usize = 1000;
/// Tokens a block, by group: units of four.
const BLOCKS: [usize; 4] = [2, 4, 2, 4];
const MAX_BLOCKS: usize = 24;
/// Most tokens of one append.
const CHUNK: usize = 9;

type Verdict = Result<(), String>;
/// Scope and tokens up to the end of a unit.
type Name = (usize, Vec<u32>);

struct Sequence {
    scope: usize,
    tokens: Vec<u32>,
    tables: Vec<BlockTable>,
}

struct World {
    groups: Vec<Pools>,
    /// By group: the first two have none.
    windows: [Option<Window>; 4],
    index: PrefixIndex<usize>,
    chains: Vec<Chain>,
    sequences: Vec<Sequence>,
    /// What the rows of a slot hold, by group: the digest of everything up to the block's end.
    arenas: Vec<HashMap<u32, u64>>,
    /// What is cached, and the page of the first group that tells which unit went.
    cached: HashMap<PageId, Name>,
    /// What block cached pages of groups with a window are, by group and page.
    behind: HashMap<(usize, PageId), u64>,
    /// Stamps up to this one have passed.
    passed: u64,
    issued: u64,
    dice: u64,
    hits: u64,
    partial: u64,
    evictions: u64,
    refused: u64,
    /// Blocks put into cached units, blocks that went without their units, look-ups that found less than what is cached.
    filled: u64,
    hollowed: u64,
    shortened: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let dice = splitmix64(seed);
        let pages = 24 + (dice % 60) as usize;
        let mut roll = dice;
        let mut draw = |n: usize| {
            roll = splitmix64(roll ^ 0x77);
            (roll % n as u64) as usize
        };
        let mut window = || {
            let (tokens, sinks, slack) = (1 + draw(14), draw(7), Some(draw(9)));
            (!seed.is_multiple_of(3)).then_some(Window { tokens, sinks, slack, chunk: CHUNK })
        };
        let windows = [None, None, window(), window()];
        let groups: Vec<Pools> =
            BLOCKS.iter().map(|block| super::super::pools(pages * 4 / block, pages * 4 / block, 12)).collect();
        let shapes = groups.iter().zip(BLOCKS).zip(windows);
        let shapes = shapes.map(|((pools, block), window)| GroupShape {
            pools: pools.clone(),
            block,
            max_blocks: MAX_BLOCKS * 4 / block,
            window,
        });
        let capacity = 4 + (splitmix64(dice) % 40) as usize;
        let policy: Box<dyn EvictionPolicy> = if seed.is_multiple_of(2) {
            Box::new(Lru::create(capacity).unwrap())
        } else {
            Box::new(S3Fifo::create(capacity).unwrap())
        };
        let index = PrefixIndex::create(shapes.collect(), capacity, policy).unwrap();
        let scopes = [scope(b"a"), scope(b"b"), Scope { adapter: Some(b"x"), ..scope(b"a") }];
        Self {
            arenas: vec![HashMap::new(); groups.len()],
            groups,
            windows,
            index,
            chains: scopes.iter().map(|scope| Chain::new(&SECRET, scope)).collect(),
            sequences: Vec::new(),
            cached: HashMap::new(),
            behind: HashMap::new(),
            passed: 0,
            issued: 1,
            dice,
            hits: 0,
            partial: 0,
            evictions: 0,
            refused: 0,
            filled: 0,
            hollowed: 0,
            shortened: 0,
        }
    }

    fn roll(&mut self, n: usize) -> usize {
        self.dice = splitmix64(self.dice);
        (self.dice % n.max(1) as u64) as usize
    }

    /// Work was enqueued just now.
    fn stamp(&mut self) -> Stamp {
        self.issued += 1;
        Stamp(self.issued)
    }

    /// What a block of `group` must hold.
    fn content(&self, scope: usize, tokens: &[u32], group: usize, block: usize) -> u64 {
        let upto = tokens[..(block + 1) * BLOCKS[group]].iter().map(|t| u64::from(*t));
        hash64(&[scope as u64, group as u64].into_iter().chain(upto).collect::<Vec<_>>())
    }

    fn step(&mut self) -> Verdict {
        match self.roll(18) {
            0..3 => self.begin(),
            3..7 => self.append(),
            7..9 => self.publish(),
            9..11 => self.release(),
            11 => self.fork(),
            12 => self.truncate(),
            13 => self.evict(),
            14 | 15 => self.hollow(),
            _ => {
                // The device comes some way.
                self.passed = self.issued - self.roll(3).min(self.issued as usize) as u64;
                let passed = self.passed;
                self.groups.iter().for_each(|pools| {
                    pools.reclaim(&mut |stamp| stamp.0 <= passed);
                });
                Ok(())
            }
        }?;
        self.check()
    }

    /// A new sequence, from what is cached of its prompt.
    fn begin(&mut self) -> Verdict {
        if self.sequences.len() > 6 {
            return self.release();
        }
        let scope = self.roll(self.chains.len());
        let length = self.roll(MAX_BLOCKS * 4);
        // Two letters and runs of them: prompts have much in common.
        let (turn, letter) = (self.roll(24), self.roll(2) as u32);
        let prompt: Vec<u32> = (0..length).map(|i| if i < turn { letter } else { 1 - letter }).collect();
        let expected = self.expected(scope, &prompt);
        let (_, known) = self.index.known(&self.chains[scope], Prompt::from(&prompt[..]));
        let hit = self.index.longest(&self.chains[scope], Prompt::from(&prompt[..])).map_err(|e| e.to_string())?;
        if (hit.tokens, known) != (4 * expected, expected) {
            return Err(format!("found {} tokens and {known} units, {expected} can be continued", hit.tokens));
        }
        for (group, table) in hit.tables.iter().enumerate() {
            let gone =
                (0..hit.tokens).find(|t| self.sees(group, *t, hit.tokens) && table.get(t / BLOCKS[group]).is_none());
            if gone.is_some() || table.len() != hit.tokens || table.window() != self.windows[group] {
                return Err(format!("group {group}: {} tokens, without token {gone:?}", table.len()));
            }
        }
        if hit.notes != (0..expected).collect::<Vec<_>>() {
            return Err("notes of other units".into());
        }
        self.hits += u64::from(expected > 0);
        self.partial += u64::from(expected > 0 && expected < length / 4);
        self.sequences.push(Sequence { scope, tokens: prompt[..hit.tokens].to_vec(), tables: hit.tables });
        Ok(())
    }

    /// A block of a unit: another one where a token of the unit differs, be it behind the block.
    fn place(&self, scope: usize, tokens: &[u32], group: usize, block: usize) -> u64 {
        let end = (block * BLOCKS[group] / 4 + 1) * 4;
        let upto = tokens[..end].iter().map(|t| u64::from(*t));
        hash64(&[scope as u64, group as u64, block as u64].into_iter().chain(upto).collect::<Vec<_>>())
    }

    /// Whether the query behind `len` tokens sees token `t`, in the plainest words.
    fn sees(&self, group: usize, t: usize, len: usize) -> bool {
        self.windows[group].is_none_or(|w| t < w.sinks || t + w.tokens > len)
    }

    /// Units of a prompt that can be continued: all of them are cached, and all that the next query sees.
    fn expected(&mut self, scope: usize, prompt: &[u32]) -> usize {
        let names: HashSet<&Name> = self.cached.values().collect();
        let cached = (1..=prompt.len() / 4).take_while(|n| names.contains(&(scope, prompt[..4 * n].to_vec()))).count();
        let there: HashSet<(usize, u64)> = self.behind.iter().map(|((group, _), content)| (*group, *content)).collect();
        let usable = |n: &usize| {
            (2..4).filter(|group| self.windows[*group].is_some()).all(|group| {
                let seen = (0..4 * n).filter(|t| self.sees(group, *t, 4 * n)).map(|t| t / BLOCKS[group]);
                seen.into_iter().all(|block| there.contains(&(group, self.place(scope, prompt, group, block))))
            })
        };
        let expected = (0..=cached).rev().find(usable).unwrap_or(0);
        self.shortened += u64::from(expected < cached);
        expected
    }

    fn append(&mut self) -> Verdict {
        if self.sequences.is_empty() {
            return Ok(());
        }
        let (which, count, letter) = (self.roll(self.sequences.len()), 1 + self.roll(CHUNK), self.roll(2) as u32);
        let stamp = self.stamp();
        let mut sequence = self.sequences.swap_remove(which);
        let room = MAX_BLOCKS * 4 - sequence.tokens.len();
        let count = count.min(room);
        let reservations: Vec<_> = sequence.tables.iter_mut().map_while(|table| table.reserve(count).ok()).collect();
        if reservations.len() < BLOCKS.len() {
            self.refused += 1;
            drop(reservations);
            self.sequences.push(sequence);
            return Ok(());
        }
        sequence.tokens.extend(core::iter::repeat_n(letter, count));
        for (group, (table, reservation)) in sequence.tables.iter_mut().zip(reservations).enumerate() {
            let spans: Vec<_> = reservation.rows().collect();
            for span in spans.iter().filter(|span| span.packed.is_some()) {
                let content = self.content(sequence.scope, &sequence.tokens, group, span.block);
                self.arenas[group].insert(span.host.index, content);
            }
            let done = table.commit(reservation).map_err(|e| e.to_string())?;
            done.dropped.retire(|| stamp).map_err(|e| e.to_string())?;
        }
        self.sequences.push(sequence);
        Ok(())
    }

    fn publish(&mut self) -> Verdict {
        if self.sequences.is_empty() {
            return Ok(());
        }
        let which = self.roll(self.sequences.len());
        let stamp = self.stamp();
        let Sequence { scope, tokens, tables } = &self.sequences[which];
        let tables: Vec<&BlockTable> = tables.iter().collect();
        let done = self.index.publish(&self.chains[*scope], (&tokens[..]).into(), &tables, |unit, _| Some(unit));
        for unit in done.known..done.known + done.added {
            let name = (*scope, tokens[..4 * (unit + 1)].to_vec());
            self.cached.insert(tables[1].blocks()[unit].host, name);
        }
        let mut there: HashSet<(usize, u64)> = self.behind.iter().map(|((group, _), c)| (*group, *c)).collect();
        let (mut new, mut filled) = (Vec::new(), 0);
        for (group, block) in (2..4).flat_map(|g| (0..(done.known + done.added) * 4 / BLOCKS[g]).map(move |b| (g, b))) {
            let Some(entry) = tables[group].get(block).filter(|_| self.windows[group].is_some()) else { continue };
            let content = self.place(*scope, tokens, group, block);
            if there.insert((group, content)) {
                new.push(((group, entry.host), content));
                filled += usize::from(block * BLOCKS[group] < done.known * 4);
            }
        }
        let (scope, tokens) = (*scope, tokens[..tokens.len() / 4 * 4].to_vec());
        self.behind.extend(new);
        self.filled += filled as u64;
        let (got, usable) = (done.filled, done.usable);
        let whole = done.stop.is_none();
        self.forget(done.evicted, stamp)?;
        let expected = self.expected(scope, &tokens);
        if got != filled || whole && usable != expected {
            return Err(format!("{got} blocks filled, not {filled}; {usable} units can be continued, not {expected}"));
        }
        Ok(())
    }

    /// The model forgets what was evicted.
    fn forget(&mut self, evicted: Evicted, stamp: Stamp) -> Verdict {
        self.evictions += evicted.units as u64;
        let gone: Vec<PageId> = self.pages_of(&evicted.groups()[1]);
        for page in &gone {
            if self.cached.remove(page).is_none() {
                return Err(format!("{page:?} was evicted and never cached"));
            }
        }
        for group in (2..4).filter(|group| self.windows[*group].is_some()) {
            for page in self.pages_of(&evicted.groups()[group]) {
                if self.behind.remove(&(group, page)).is_none() {
                    return Err(format!("{page:?} of group {group} was evicted and never cached"));
                }
            }
        }
        self.hollowed += evicted.blocks as u64;
        if gone.len() != evicted.units {
            return Err(format!("{} units, {} pages", evicted.units, gone.len()));
        }
        evicted.retire(|_| stamp).map(drop).map_err(|e| e.to_string())
    }

    fn pages_of(&self, dropped: &Dropped) -> Vec<PageId> {
        dropped.pages().filter(|page| page.class == PageClass::Host).map(|page| page.id).collect()
    }

    fn evict(&mut self) -> Verdict {
        let (units, stamp) = (1 + self.roll(4), self.stamp());
        let idle = self.index.idle_units();
        let evicted = self.index.evict(units);
        if evicted.units != idle.min(units) {
            return Err(format!("{idle} units are idle, {units} wanted, {} evicted", evicted.units));
        }
        self.forget(evicted, stamp)
    }

    /// Room in a group with a window: as many blocks as nobody uses, and no unit.
    fn hollow(&mut self) -> Verdict {
        let (group, pages, stamp) = (2 + self.roll(2), 1 + self.roll(6), self.stamp());
        if self.windows[group].is_none() {
            return self.evict();
        }
        let sole = |(of, page): &&(usize, PageId)| *of == group && self.groups[group].host.references(*page) == Ok(1);
        let idle = self.behind.keys().filter(sole).count();
        let evicted = self.index.make_room(group, PageClass::Host, pages);
        if (evicted.units, evicted.blocks) != (0, idle.min(pages)) {
            return Err(format!("{idle} blocks are idle, {pages} wanted, {} given up", evicted.blocks));
        }
        self.forget(evicted, stamp)
    }

    fn release(&mut self) -> Verdict {
        if self.sequences.is_empty() {
            return Ok(());
        }
        let which = self.roll(self.sequences.len());
        let stamp = self.stamp();
        for table in self.sequences.swap_remove(which).tables {
            table.release().retire(|| stamp).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn fork(&mut self) -> Verdict {
        if self.sequences.is_empty() {
            return Ok(());
        }
        let Sequence { scope, tokens, tables } = &self.sequences[self.dice as usize % self.sequences.len()];
        let forks: Vec<_> = tables.iter().map_while(|table| table.fork().ok()).map(|(fork, _)| fork).collect();
        if forks.len() == BLOCKS.len() {
            self.sequences.push(Sequence { scope: *scope, tokens: tokens.clone(), tables: forks });
        } else {
            self.refused += 1;
        }
        Ok(())
    }

    fn truncate(&mut self) -> Verdict {
        if self.sequences.is_empty() {
            return Ok(());
        }
        let which = self.roll(self.sequences.len());
        let stamp = self.stamp();
        let len = self.sequences[which].tokens.len();
        // Whole units only: a page that is reopened has other contents than those followed here.
        let to = self.roll(len / 4 + 1) * 4;
        let sequence = &mut self.sequences[which];
        if sequence.tables.iter().any(|table| table.check_cut(to).is_err()) {
            return Ok(());
        }
        for table in &mut sequence.tables {
            table.truncate(to).map_err(|e| e.to_string())?.retire(|| stamp).map_err(|e| e.to_string())?;
        }
        sequence.tokens.truncate(to);
        Ok(())
    }

    /// Every full block of every sequence holds what its tokens say; the books are right.
    fn check(&self) -> Verdict {
        for (at, Sequence { scope, tokens, tables }) in self.sequences.iter().enumerate() {
            for (group, table) in tables.iter().enumerate() {
                for (block, entry) in table.numbered().filter(|(block, _)| *block < table.len() / BLOCKS[group]) {
                    let page = entry.host;
                    if self.groups[group].host.snapshot(page).is_err() {
                        return Err(format!("sequence {at}: {page:?} is not its page any more"));
                    }
                    if self.arenas[group].get(&page.index) != Some(&self.content(*scope, tokens, group, block)) {
                        return Err(format!("sequence {at}: block {block} of group {group} holds other rows"));
                    }
                }
            }
        }
        for pools in &self.groups {
            for pages in [&pools.host, &pools.packed, &pools.tail] {
                pages.check().map_err(|e| e.to_string())?;
            }
        }
        if self.index.len() != self.cached.len() {
            return Err(format!("{} units cached, {} by the model", self.index.len(), self.cached.len()));
        }
        Ok(())
    }

    /// Everything ends: no page is left.
    fn end(mut self) -> Verdict {
        while !self.sequences.is_empty() {
            self.release()?;
        }
        let stamp = self.stamp();
        let evicted = self.index.clear();
        self.forget(evicted, stamp)?;
        for pools in &self.groups {
            pools.reclaim(&mut |_| true);
            for pages in [&pools.host, &pools.packed, &pools.tail] {
                let counts = pages.check().map_err(|e| e.to_string())?;
                if counts.free != pages.capacity() {
                    return Err(format!("pages are lost: {counts:?}"));
                }
            }
        }
        Ok(())
    }
}

/// One world: operations done, hits, hits of a part, evictions, refusals, of windows blocks filled and given up and hits shortened;
/// verdict.
fn run(seed: u64) -> ([u64; 8], Verdict) {
    let mut world = World::new(seed);
    let mut verdict = Ok(());
    let mut done = 0;
    while done < OPS as u64 && verdict.is_ok() {
        verdict = world.step();
        done += 1;
    }
    let (filled, hollowed, shortened) = (world.filled, world.hollowed, world.shortened);
    let reached = [done, world.hits, world.partial, world.evictions, world.refused, filled, hollowed, shortened];
    (reached, verdict.and_then(|()| world.end()))
}

#[test]
fn random_histories_find_what_was_published() {
    let (mut reached, mut failed) = ([0; 8], Vec::new());
    for world in 0..super::super::worlds(WORLDS) {
        let (counts, verdict) = run(SEED ^ world << 32);
        reached.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        if let Err(what) = verdict {
            failed.push(format!("seed {:x}: {what}", SEED ^ world << 32));
        }
    }
    let bugs = [Bug::B6, Bug::B8];
    let missed: Vec<Bug> = bugs
        .into_iter()
        .filter(|bug| {
            plant::arm(Some(*bug));
            let unseen = (0..20).all(|world| run(SEED ^ world << 32).1.is_ok());
            assert!(plant::committed() > 0, "{bug:?} was never reached");
            unseen
        })
        .collect();
    plant::arm(None);
    println!(
        "GATE prefix-model executed={} failed={} controls={}/{} seed={SEED:x} reached={reached:?}",
        reached[0],
        failed.len(),
        bugs.len() - missed.len(),
        bugs.len()
    );
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!(missed, []);
    assert!(
        reached.iter().all(|n| *n >= 200),
        "operations, hits, hits of a part, evictions, refusals, filled, given up, shortened: {reached:?}"
    );
}
