//! Making room ends: the questions and rounds of one request, counted.
use super::chain;
use crate::policy::{EvictionPolicy, Lru, S3Fifo};
use crate::prefix::{GroupShape, PrefixIndex, Prompt};
use crate::{BlockTable, PageError, Pools, Stamp, TableError};
use certkv_core::hash::splitmix64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const BLOCK: usize = 2;
const SEED: u64 = 0x726f_6f6d;
const WORLDS: u64 = 60;
const REQUESTS: usize = 120;
/// Questions of one search, for each entry: `S3Fifo::victim` says why; `Lru` asks once.
const TURNS: usize = 10;

/// A policy that counts how often it asks whether an entry may go.
#[derive(Debug)]
struct Counted {
    policy: Box<dyn EvictionPolicy>,
    asked: Arc<AtomicUsize>,
}

impl EvictionPolicy for Counted {
    fn insert(&mut self, slot: u32, name: u64) {
        self.policy.insert(slot, name);
    }

    fn touch(&mut self, slot: u32) {
        self.policy.touch(slot);
    }

    fn remove(&mut self, slot: u32) {
        self.policy.remove(slot);
    }

    fn victim(&mut self, idle: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        self.policy.victim(&mut |slot| {
            self.asked.fetch_add(1, Ordering::Relaxed);
            idle(slot)
        })
    }

    fn len(&self) -> usize {
        self.policy.len()
    }
}

struct World {
    pools: Pools,
    index: PrefixIndex<()>,
    asked: Arc<AtomicUsize>,
    tables: Vec<(BlockTable, Vec<u32>)>,
    dice: u64,
}

/// What one request took: rounds of making room, units that went, questions, and whether it was served.
struct Took {
    rounds: usize,
    evicted: usize,
    asked: usize,
    served: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let dice = splitmix64(seed);
        let pages = 32 + (dice % 200) as usize;
        let pools = super::super::pools(pages, pages, 64);
        let asked = Arc::new(AtomicUsize::new(0));
        let policy: Box<dyn EvictionPolicy> = if seed.is_multiple_of(2) {
            Box::new(Lru::create(pages).unwrap())
        } else {
            Box::new(S3Fifo::create(pages).unwrap())
        };
        let counted = Counted { policy, asked: Arc::clone(&asked) };
        let group = GroupShape { pools: pools.clone(), block: BLOCK, max_blocks: 64, window: None };
        let index = PrefixIndex::create(vec![group], pages, Box::new(counted)).unwrap();
        Self { pools, index, asked, tables: Vec::new(), dice }
    }

    fn roll(&mut self, n: usize) -> usize {
        self.dice = splitmix64(self.dice);
        (self.dice % n.max(1) as u64) as usize
    }

    /// As the engine's loop: an append that is refused evicts what it lacks, and asks again while anything went. With `liar`, making room
    /// says that something went where nothing did; `most` ends that.
    fn append(&mut self, at: usize, tokens: usize, liar: bool, most: usize) -> Took {
        let before = self.asked.load(Ordering::Relaxed);
        let (mut rounds, mut units) = (0, 0);
        let served = loop {
            match self.tables[at].0.reserve(tokens) {
                Ok(reservation) => {
                    self.tables[at].0.commit(reservation).unwrap().dropped.retire(|| Stamp::UNTOUCHED).unwrap();
                    break true;
                }
                Err(TableError::Page { error: PageError::Exhausted { asked, free, .. }, .. }) if rounds <= most => {
                    rounds += 1;
                    let mut evicted = self.index.evict(asked.saturating_sub(free));
                    if evicted.units == 0 {
                        evicted = self.index.evict_stranded();
                    }
                    units += evicted.units;
                    let some = evicted.units > 0 || liar;
                    evicted.retire(|_| Stamp::UNTOUCHED).unwrap();
                    self.pools.reclaim(&mut |_| true);
                    if !some {
                        break false;
                    }
                }
                Err(_) => break false,
            }
        };
        Took { rounds, evicted: units, asked: self.asked.load(Ordering::Relaxed) - before, served }
    }

    /// Sequences come from what is cached or from nothing, are cached, cut and released.
    fn disturb(&mut self) {
        let scope = chain(b"a");
        match self.roll(5) {
            0 | 1 if self.tables.len() < 12 => {
                // Few beginnings, so that paths branch.
                let first = self.roll(4) as u32;
                let n = BLOCK * self.roll(30);
                let tokens: Vec<u32> = (0..n).map(|i| if i < 12 { first } else { self.roll(3) as u32 }).collect();
                let hit = self.index.longest(&scope, Prompt::from(&tokens[..])).unwrap();
                self.tables.push((hit.tables.into_iter().next().unwrap(), tokens[..hit.tokens].to_vec()));
            }
            2 | 3 if !self.tables.is_empty() => {
                let at = self.roll(self.tables.len());
                let (table, tokens) = &self.tables[at];
                self.index
                    .publish(&scope, tokens[..].into(), &[table], |_, _| Some(()))
                    .evicted
                    .retire(|_| Stamp::UNTOUCHED)
                    .unwrap();
            }
            _ if self.tables.len() > 4 => {
                let at = self.roll(self.tables.len());
                self.tables.swap_remove(at).0.release().retire(|| Stamp::UNTOUCHED).unwrap();
            }
            _ => {}
        }
        self.pools.reclaim(&mut |_| true);
    }
}

/// Rounds are at most the units that were cached, as each lets one go, and one more. Questions are at most a few for every unit, for each unit
/// that goes and each round that finds nobody: a policy that meets units in use passes over them.
#[test]
fn making_room_ends_within_a_bound() {
    let (mut executed, mut failed, mut caught, mut served) = (0, 0, 0, 0);
    let (mut most_rounds, mut most_asked) = (0usize, 0f64);
    for seed in 0..WORLDS {
        let mut world = World::new(SEED + seed);
        for _ in 0..REQUESTS {
            world.disturb();
            if world.tables.is_empty() {
                continue;
            }
            let at = world.roll(world.tables.len());
            let tokens = (1 + world.roll(24)).min(64 * BLOCK - world.tables[at].1.len());
            let units = world.index.len();
            let before = world.tables[at].0.len();
            let took = world.append(at, tokens, false, 10 * units + 10);
            if took.served {
                assert_eq!(world.tables[at].0.len(), before + tokens);
                let more: Vec<u32> = (0..tokens).map(|_| world.roll(3) as u32).collect();
                world.tables[at].1.extend(more);
            }
            executed += 1;
            served += usize::from(took.served && took.rounds > 0);
            failed += usize::from(took.rounds > units + 1 || took.asked > TURNS * units * (took.evicted + took.rounds));
            most_rounds = most_rounds.max(took.rounds);
            most_asked = most_asked.max(took.asked as f64 / (units + 1) as f64);
        }
        // Nothing is cached, everything is in use, and making room claims to have worked.
        let units = world.index.len();
        world.index.clear().retire(|_| Stamp::UNTOUCHED).unwrap();
        world.pools.reclaim(&mut |_| true);
        let (free, mut held) = (world.pools.host.counts().free, Vec::new());
        world.pools.host.allocate_many(free, &mut held).unwrap();
        world.tables.push((BlockTable::create(&world.pools, BLOCK, 64).unwrap(), Vec::new()));
        let took = world.append(world.tables.len() - 1, BLOCK, true, 10 * units + 10);
        caught += usize::from(took.rounds > units + 1);
    }
    println!(
        "GATE room-steps executed={executed} failed={failed} controls={caught}/{WORLDS} seed={SEED:#x}, {served} served behind evictions, at most \
         {most_rounds} rounds and {most_asked:.1} questions a unit"
    );
    assert!(failed == 0 && caught == WORLDS as usize && served > 100);
}
