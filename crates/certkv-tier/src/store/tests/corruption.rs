//! The gate of integrity: damage to what is stored is seen, all of it, and whole pages are not refused.
use super::client::{Client, Folder, identity, key, page, put};
use super::file;
use super::wrappers::{raw, unopened};
use crate::store::{Backend, FileStore, MemoryStore, StoreError, open, seal};
use certkv_core::hash::{hash64, splitmix64};
use std::fs;
use std::sync::Arc;

const SEED: u64 = 0xC0_44_07;
const PAGES: u64 = 16;
const BYTES: usize = 4096;
const TRIALS: u64 = 1000;

#[derive(Debug, Clone, Copy)]
enum Damage {
    BitFlip,
    /// An earlier page of the same key.
    StalePage,
    /// Two 16-bit words of the payload exchanged.
    SwappedScale,
    /// The page of another block.
    SwappedBlock,
    /// The end is missing, or zeroes.
    TornWrite,
}
const ALL: [Damage; 5] =
    [Damage::BitFlip, Damage::StalePage, Damage::SwappedScale, Damage::SwappedBlock, Damage::TornWrite];

fn sealed(n: u64, generation: u64) -> Vec<u8> {
    let put = put(n, generation, BYTES);
    [&seal(&put.key, &put.identity, &put.page)[..], &put.page].concat()
}

/// The record of page `n`, damaged. Never equal to what it was.
fn damaged(damage: Damage, n: u64, random: u64) -> Vec<u8> {
    let mut record = sealed(n, 2);
    let bytes = record.len();
    let pick = |salt: u64, below: usize| (hash64(&[random, salt]) % below as u64) as usize;
    match damage {
        Damage::BitFlip => record[pick(0, bytes)] ^= 1 << pick(1, 8),
        Damage::StalePage => record = sealed(n, 1),
        Damage::SwappedScale => {
            let payload = bytes - BYTES;
            let (a, mut b) = (payload + 2 * pick(0, BYTES / 2), payload + 2 * pick(1, BYTES / 2));
            while record[a..a + 2] == record[b..b + 2] {
                b = payload + (b - payload + 2) % BYTES;
            }
            for i in 0..2 {
                record.swap(a + i, b + i);
            }
        }
        Damage::SwappedBlock => record = sealed((n + 1 + pick(0, PAGES as usize - 1) as u64) % PAGES, 2),
        Damage::TornWrite => {
            // The last bytes of a page are not all zero, so that neither kind is the page itself.
            let cut = pick(0, bytes - 8);
            record.truncate(cut);
            if random.is_multiple_of(2) {
                record.resize(bytes, 0);
            }
        }
    }
    record
}

/// Runs all kinds against one back end; `plant` puts a record where it lies. Returns trials, silent ones, and the kinds
/// that a store which does not look would have handed out as data.
fn matrix<B: Backend + 'static>(backend: &Arc<B>, plant: impl Fn(u64, &[u8])) -> (u64, u64, u64) {
    let client = Client::over(backend, 1);
    let batch = |generation| (0..PAGES).map(|n| put(n, generation, BYTES)).collect::<Vec<_>>();
    assert!(client.put(batch(2)).iter().all(Result::is_ok));
    let (mut executed, mut silent, mut seen) = (0, 0, 0);
    for (kind, damage) in ALL.into_iter().enumerate() {
        let mut garbage = 0;
        for trial in 0..TRIALS {
            let random = hash64(&[SEED, kind as u64, trial]);
            let n = splitmix64(random) % PAGES;
            let record = damaged(damage, n, random);
            assert_ne!(record, sealed(n, 2));
            plant(n, &record);
            executed += 1;
            silent += u64::from(!matches!(client.page(n, 2), Err(StoreError::Corrupt { .. })));
            let unseen = raw(&**backend, &key(n));
            assert_eq!(unseen, record, "the damage did not arrive");
            let payload = unopened(&unseen);
            garbage += u64::from(!payload.is_empty() && payload != put(n, 2, BYTES).page);
            plant(n, &sealed(n, 2));
        }
        seen += u64::from(garbage > TRIALS / 2);
    }
    // What was put back opens: the check refuses damage, not everything.
    for n in 0..PAGES {
        assert_eq!(client.page(n, 2), Ok(put(n, 2, BYTES).page));
    }
    (executed, silent, seen)
}

#[test]
fn gate_damage_is_never_data() {
    let memory = Arc::new(MemoryStore::new(u64::MAX));
    let in_memory = matrix(&memory, |n, record| memory.put(&key(n), &[record, &[]]).unwrap());
    let folder = Folder::new();
    let files = Arc::new(FileStore::open(file::config(&folder, u64::MAX)).unwrap());
    let on_disk = matrix(&files, |n, record| fs::write(file::path(&folder.0, n), record).unwrap());
    let (executed, failed) = (in_memory.0 + on_disk.0, in_memory.1 + on_disk.1);
    let (caught, planted) = (in_memory.2 + on_disk.2, 2 * ALL.len());
    println!("GATE store-corruption executed={executed} failed={failed} controls={caught}/{planted} seed={SEED:#x}");
    assert_eq!((executed, failed, caught), (2 * ALL.len() as u64 * TRIALS, 0, planted as u64));
}

/// The refusal says what it was.
#[test]
fn damage_is_named() {
    let told = |damage, random| open(&key(3), &identity(3, 2), &damaged(damage, 3, random)).unwrap_err().to_string();
    assert!(told(Damage::StalePage, 1).contains("generation 0x1, expected 0x2"));
    assert!(told(Damage::SwappedScale, 1).contains("sealed digest"));
    assert!(told(Damage::SwappedBlock, 1).contains("the page of key"));
    assert!(told(Damage::TornWrite, 1).contains("bytes of"));
    assert_ne!(page(1, 64), page(2, 64));
}
