//! The gate of failures: every call of a back end fails in turn and in pairs, on whatever thread it is, over a random
//! workload that a plain map follows.
use super::client::{Client, Folder, PATIENCE, get, key, put};
use super::file::{careful, census, config};
use super::wrappers::{Fault, Faulty};
use crate::store::batch::Batch;
use crate::store::execute::execute;
use crate::store::{Backend, Completion, Field, FileStore, MemoryStore, Outcome, SEAL_BYTES, SealError, StoreError};
use certkv_core::fail;
use certkv_core::hash::{hash64, splitmix64};
use std::collections::HashMap;
use std::sync::Arc;

const SEED: u64 = 0xFA_17;
const KEYS: u64 = 10;
/// Generation of a key that has no page; no page has it.
const NONE: u64 = 0;

fn bytes(generation: u64) -> usize {
    200 + (splitmix64(generation) % 600) as usize
}

/// What may lie under each key. More than one generation only after an answer was lost.
struct Model(HashMap<u64, Vec<u64>>);

impl Model {
    fn new() -> Self {
        Self((0..KEYS).map(|n| (n, vec![NONE])).collect())
    }

    /// The generation that a get asks for.
    fn asked(&self, n: u64) -> u64 {
        self.0[&n].last().copied().unwrap_or(NONE)
    }

    fn number(&self, name: crate::store::StoreKey) -> u64 {
        (0..KEYS).find(|n| key(*n) == name).unwrap()
    }

    /// Something tried to make `generation` of `n`.
    fn changed(&mut self, n: u64, generation: u64, result: &Result<(), StoreError>) {
        let may = self.0.get_mut(&n).unwrap();
        match result {
            Ok(()) => *may = vec![generation],
            Err(StoreError::Unavailable { .. }) => may.push(generation),
            Err(_) => {}
        }
    }

    /// Something saw `generation` of `n`.
    fn saw(&mut self, n: u64, generation: u64) -> Result<(), String> {
        let may = self.0.get_mut(&n).unwrap();
        if !may.contains(&generation) {
            return Err(format!("key {n}: found generation {generation}, may have {may:?}"));
        }
        *may = vec![generation];
        Ok(())
    }

    fn follow(&mut self, outcome: Outcome) -> Result<(), String> {
        match outcome {
            Outcome::Put(done) => {
                for (sent, result) in done {
                    let generation = sent.identity.generation;
                    let n = self.number(sent.key);
                    if sent != put(n, generation, bytes(generation)) {
                        return Err(format!("key {n}: the buffer did not come back as it was"));
                    }
                    self.changed(n, generation, &result);
                }
            }
            Outcome::Get(done) => {
                for (got, result) in done {
                    let (n, generation) = (self.number(got.key()), got.identity().generation);
                    match result {
                        Ok(()) if got.page() == put(n, generation, bytes(generation)).page => {
                            self.saw(n, generation)?
                        }
                        Err(StoreError::NotFound { .. }) => self.saw(n, NONE)?,
                        Err(StoreError::Corrupt {
                            reason: SealError::Identity { field: Field::Generation, found, .. },
                            ..
                        }) => self.saw(n, found)?,
                        Err(StoreError::Injected { .. } | StoreError::Unavailable { .. }) if got.page().is_empty() => {}
                        other => return Err(format!("key {n}, generation {generation}: {other:?}")),
                    }
                }
            }
            Outcome::Exists(done) => {
                for (name, result) in done {
                    let n = self.number(name);
                    if let Ok(there) = result
                        && !self.0[&n].iter().any(|generation| (*generation != NONE) == there)
                    {
                        return Err(format!("key {n}: exists {there}, may have {:?}", self.0[&n]));
                    }
                }
            }
            Outcome::Delete(done) => {
                for (name, result) in done {
                    self.changed(self.number(name), NONE, &result);
                }
            }
        }
        Ok(())
    }
}

/// Batches of keys that do not meet, so that their order does not matter.
fn round(model: &Model, seed: u64, round: u64) -> Vec<Batch> {
    let random = |salt: u64| hash64(&[seed, round, salt]);
    let mut keys: Vec<_> = (0..KEYS).collect();
    keys.sort_by_key(|n| random(100 + n));
    let batches = 1 + random(0) % 3;
    let generation = |n: u64| 1 + round * KEYS + n;
    (0..batches)
        .map(|b| {
            let some = keys.iter().copied().skip(3 * b as usize).take(1 + (random(10 + b) % 3) as usize);
            match random(20 + b) % 8 {
                0..4 => Batch::Put(some.map(|n| put(n, generation(n), bytes(generation(n)))).collect()),
                4..6 => Batch::Get(some.map(|n| get(n, model.asked(n))).collect()),
                6 => Batch::Exists(some.map(key).collect()),
                _ => Batch::Delete(some.map(key).collect()),
            }
        })
        .collect()
}

/// Submits all, then waits for all.
fn threaded(client: &Client, batches: Vec<Batch>) -> Vec<Outcome> {
    let n = batches.len();
    for batch in batches {
        match batch {
            Batch::Put(items) => drop(client.0.submit_put(items).unwrap()),
            Batch::Get(items) => drop(client.0.submit_get(items).unwrap()),
            Batch::Exists(keys) => drop(client.0.submit_exists(keys).unwrap()),
            Batch::Delete(keys) => drop(client.0.submit_delete(keys).unwrap()),
        }
    }
    let mut done: Vec<Completion> = Vec::new();
    while done.len() < n {
        assert!(client.0.wait_timeout(PATIENCE), "a completion is missing");
        client.0.drain_completions(&mut done);
    }
    done.into_iter().map(|completion| completion.outcome).collect()
}

/// The workload, with `run` as the store; then `disarm`, and everything must be as the model says and work again.
/// Returns the bytes of all records.
fn story(seed: u64, rounds: u64, run: impl Fn(Vec<Batch>) -> Vec<Outcome>, disarm: impl Fn()) -> Result<u64, String> {
    let mut model = Model::new();
    for i in 0..rounds {
        let outcomes = run(round(&model, seed, i));
        outcomes.into_iter().try_for_each(|outcome| model.follow(outcome))?;
    }
    disarm();
    let all = |model: &Model| Batch::Get((0..KEYS).map(|n| get(n, model.asked(n))).collect());
    for outcome in run(vec![all(&model)]) {
        model.follow(outcome)?;
    }
    let last = 1 + rounds * KEYS;
    for outcome in run(vec![Batch::Put((0..KEYS).map(|n| put(n, last, bytes(last))).collect())]) {
        model.follow(outcome)?;
    }
    for outcome in run(vec![all(&model)]) {
        model.follow(outcome)?;
    }
    match model.0.iter().find(|(_, may)| **may != [last]) {
        Some((n, may)) => Err(format!("key {n}: not usable afterwards: {may:?}")),
        None => Ok(KEYS * (bytes(last) + SEAL_BYTES) as u64),
    }
}

/// One story in which these calls fail. Returns how many calls it had and how many of them failed.
fn told<B: Backend + 'static>(
    inner: B,
    fault: Fault,
    (seed, rounds): (u64, u64),
    fail: &[u64],
    books: impl Fn(&B) -> u64,
) -> Result<(u64, u64), String> {
    let backend = Arc::new(Faulty::new(inner, fault));
    let client = Client::over(&backend, 3);
    backend.arm(fail);
    let counts = core::cell::Cell::new((0, 0));
    let disarm = || {
        counts.set((backend.calls(), backend.failed()));
        backend.arm(&[]);
    };
    let bytes = story(seed, rounds, |batches| threaded(&client, batches), disarm)?;
    let found = books(&backend.inner);
    if found != bytes {
        return Err(format!("{found} bytes in the books, {bytes} in the model"));
    }
    Ok(counts.get())
}

fn in_memory(fault: Fault, seed: u64, fail: &[u64]) -> Result<(u64, u64), String> {
    told(MemoryStore::new(u64::MAX), fault, (seed, 14), fail, MemoryStore::bytes)
}

fn in_files(fault: Fault, seed: u64, fail: &[u64]) -> Result<(u64, u64), String> {
    let folder = Folder::new();
    let files = FileStore::open(config(&folder, u64::MAX)).unwrap();
    told(files, fault, (seed, 4), fail, |files| {
        assert_eq!(census(&folder.0), (files.bytes(), 0));
        files.bytes()
    })
}

type Told = fn(Fault, u64, &[u64]) -> Result<(u64, u64), String>;

/// Every call in turn, then random pairs. Returns stories told and those that did not go well.
fn sweep(tell: Told, fault: Fault, seed: u64, pairs: u64) -> (u64, Vec<String>) {
    let (calls, _) = tell(fault, seed, &[]).unwrap();
    let single = (1..=calls).map(|nth| vec![nth]);
    let pair = |i: u64| [0, 1].map(|k| 1 + hash64(&[seed, i, k]) % calls).to_vec();
    let (mut executed, mut failed) = (0, Vec::new());
    for fail in single.chain((0..pairs).map(pair)) {
        executed += 1;
        match tell(fault, seed, &fail) {
            // Which call is the n-th depends on the threads, but there always is one.
            Ok((_, 0)) => failed.push(format!("{fail:?}: no call failed")),
            Ok(_) => {}
            Err(error) => failed.push(format!("{fail:?}: {error}")),
        }
    }
    (executed, failed)
}

/// Every fault point on the way of a batch through the most careful file store, on this thread.
fn sweep_points(seed: u64) -> (u64, Vec<String>) {
    let (mut executed, mut failed) = (0, Vec::new());
    for nth in 1.. {
        let folder = Folder::new();
        let files = FileStore::open(careful(&folder, u64::MAX)).unwrap();
        fail::arm(Some(nth));
        let run = |batches: Vec<Batch>| batches.into_iter().map(|b| execute(&files, 1 << 17, b)).collect();
        let fired = core::cell::Cell::new(None);
        let disarm = || {
            fired.set(fail::fired());
            fail::arm(None);
        };
        let told = story(seed, 3, run, disarm);
        fail::arm(None);
        if let Some(point) = fired.get() {
            executed += 1;
            let books = (files.bytes(), 0);
            match told {
                Ok(bytes) if books == (bytes, 0) && census(&folder.0) == books => {}
                other => failed.push(format!("{point}, hit {nth}: {other:?}, books {books:?}")),
            }
        } else {
            break;
        }
    }
    (executed, failed)
}

#[test]
fn gate_every_call_fails_in_turn_and_in_pairs() {
    let (mut executed, mut failed) = (0, Vec::new());
    let mut add = |(n, errors): (u64, Vec<String>)| {
        executed += n;
        failed.extend(errors);
    };
    for seed in 0..6 {
        add(sweep(in_memory, Fault::Refuses, hash64(&[SEED, seed]), 60));
        add(sweep(in_memory, Fault::DoesItAnyway, hash64(&[SEED, 50 + seed]), 30));
    }
    add(sweep(in_files, Fault::Refuses, hash64(&[SEED, 100]), 15));
    add(sweep_points(hash64(&[SEED, 200])));
    // Stores with these bugs are told from ones without.
    let planted = [Fault::Swallows, Fault::Tears];
    let caught = planted.map(|bug| !sweep(in_memory, bug, hash64(&[SEED, 300]), 0).1.is_empty());
    let caught = caught.iter().filter(|caught| **caught).count();
    for error in failed.iter().take(10) {
        println!("{error}");
    }
    println!(
        "GATE store-faults executed={executed} failed={} controls={caught}/{} seed={SEED:#x}",
        failed.len(),
        planted.len()
    );
    assert!(executed > 500 && failed.is_empty() && caught == planted.len(), "{executed}");
}
