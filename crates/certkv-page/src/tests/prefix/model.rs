//! Random histories of sequences over a prefix index, against a plain model: what is found is what was published, its pages
//! hold what the tokens say, and nothing is lost.
use super::{SECRET, scope};
use crate::policy::{EvictionPolicy, Lru, S3Fifo};
use crate::prefix::{Chain, Evicted, GroupShape, PrefixIndex, Prompt, Scope};
use crate::{BlockTable, Dropped, PageClass, PageId, Pools, Stamp};
use certkv_core::hash::{hash64, splitmix64};
use certkv_core::plant::{self, Bug};
use std::collections::{HashMap, HashSet};

const SEED: u64 = 0x7072_6566;
const WORLDS: u64 = 60;
const OPS: usize = 1000;
/// Tokens a block, by group: units of four.
const BLOCKS: [usize; 2] = [2, 4];
const MAX_BLOCKS: usize = 24;

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
    index: PrefixIndex<usize>,
    chains: Vec<Chain>,
    sequences: Vec<Sequence>,
    /// What the rows of a slot hold, by group: the digest of everything up to the block's end.
    arenas: Vec<HashMap<u32, u64>>,
    /// What is cached, and the page of the first group that tells which unit went.
    cached: HashMap<PageId, Name>,
    /// Stamps up to this one have passed.
    passed: u64,
    issued: u64,
    dice: u64,
    hits: u64,
    partial: u64,
    evictions: u64,
    refused: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let dice = splitmix64(seed);
        let pages = 24 + (dice % 60) as usize;
        let groups: Vec<Pools> =
            BLOCKS.iter().map(|block| super::super::pools(pages * 4 / block, pages * 4 / block, 12)).collect();
        let shapes = groups.iter().zip(BLOCKS);
        let shapes =
            shapes.map(|(pools, block)| GroupShape { pools: pools.clone(), block, max_blocks: MAX_BLOCKS * 4 / block });
        let capacity = 4 + (splitmix64(dice) % 40) as usize;
        let policy: Box<dyn EvictionPolicy> =
            if seed.is_multiple_of(2) { Box::new(Lru::new(capacity)) } else { Box::new(S3Fifo::new(capacity)) };
        let index = PrefixIndex::create(shapes.collect(), capacity, policy).unwrap();
        let scopes = [scope(b"a"), scope(b"b"), Scope { adapter: Some(b"x"), ..scope(b"a") }];
        Self {
            arenas: vec![HashMap::new(); groups.len()],
            groups,
            index,
            chains: scopes.iter().map(|scope| Chain::new(&SECRET, scope)).collect(),
            sequences: Vec::new(),
            cached: HashMap::new(),
            passed: 0,
            issued: 1,
            dice,
            hits: 0,
            partial: 0,
            evictions: 0,
            refused: 0,
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
        match self.roll(16) {
            0..3 => self.begin(),
            3..7 => self.append(),
            7..9 => self.publish(),
            9..11 => self.release(),
            11 => self.fork(),
            12 => self.truncate(),
            13 => self.evict(),
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
        let hit = self.index.longest(&self.chains[scope], Prompt::from(&prompt[..])).map_err(|e| e.to_string())?;
        let names: HashSet<&Name> = self.cached.values().collect();
        let expected = (1..=length / 4).take_while(|n| names.contains(&(scope, prompt[..4 * n].to_vec()))).count();
        if hit.tokens != 4 * expected {
            return Err(format!("found {} tokens, {} are cached", hit.tokens, 4 * expected));
        }
        if hit.notes != (0..expected).collect::<Vec<_>>() {
            return Err("notes of other units".into());
        }
        self.hits += u64::from(expected > 0);
        self.partial += u64::from(expected > 0 && expected < length / 4);
        self.sequences.push(Sequence { scope, tokens: prompt[..hit.tokens].to_vec(), tables: hit.tables });
        Ok(())
    }

    fn append(&mut self) -> Verdict {
        if self.sequences.is_empty() {
            return Ok(());
        }
        let (which, count, letter) = (self.roll(self.sequences.len()), 1 + self.roll(9), self.roll(2) as u32);
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
        self.forget(done.evicted, stamp)
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
        if gone.len() != evicted.units {
            return Err(format!("{} units, {} pages", evicted.units, gone.len()));
        }
        evicted.retire(|| stamp).map(drop).map_err(|e| e.to_string())
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
                for block in 0..table.len() / BLOCKS[group] {
                    let page = table.blocks()[block].host;
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

/// One world: operations done, hits, hits of a part, evictions, refusals, verdict.
fn run(seed: u64) -> ([u64; 5], Verdict) {
    let mut world = World::new(seed);
    let mut verdict = Ok(());
    let mut done = 0;
    while done < OPS as u64 && verdict.is_ok() {
        verdict = world.step();
        done += 1;
    }
    let reached = [done, world.hits, world.partial, world.evictions, world.refused];
    (reached, verdict.and_then(|()| world.end()))
}

#[test]
fn random_histories_find_what_was_published() {
    let (mut reached, mut failed) = ([0; 5], Vec::new());
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
    assert!(reached.iter().all(|n| *n >= 200), "operations, hits, hits of a part, evictions, refusals: {reached:?}");
}
