//! What Tier-3 costs on this machine: sealing, and puts and gets of 64 KiB pages.
//!
//! `store_cost FOLDER [REDIS_URL]`; the server's part needs the feature `redis`. Files are read back from the system's
//! memory, so gets say what the store costs and nothing about the disk.
#![forbid(unsafe_code)]
use certkv_tier::store::{
    Backend, Durability, FileConfig, FileStore, Get, Identity, MemoryStore, Outcome, Put, Store, StoreConfig, StoreKey,
    open, seal,
};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 64 << 10;
const PAGES: u64 = 2048;
const BATCH: u64 = 16;
const WORKERS: usize = 2;

fn key(n: u64) -> StoreKey {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    StoreKey(key)
}

fn identity(n: u64) -> Identity {
    Identity { sequence: 1, layer: 0, block: n as u32, generation: 1, format: 2, layout: 3 }
}

fn page(n: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| ((i + n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

/// Waits until all but `left` batches are done, and counts the items that failed.
fn settle(store: &Store, left: usize) -> usize {
    let (mut done, mut failed) = (Vec::new(), 0);
    while store.outstanding() > left {
        store.wait_timeout(Duration::from_secs(60));
        store.drain_completions(&mut done);
    }
    for completion in done {
        failed += match completion.outcome {
            Outcome::Put(items) => items.iter().filter(|(_, result)| result.is_err()).count(),
            Outcome::Get(items) => items.iter().filter(|(_, result)| result.is_err()).count(),
            _ => 0,
        };
    }
    failed
}

fn measure(name: &str, backend: Arc<dyn Backend>) -> Result<(), Box<dyn Error>> {
    let store = Store::new(backend, StoreConfig { workers: WORKERS, ..StoreConfig::default() })?;
    let source: Vec<_> = (0..BATCH).map(page).collect();
    let mut seconds = [0.0; 2];
    for (pass, seconds) in seconds.iter_mut().enumerate() {
        let (start, mut failed) = (Instant::now(), 0);
        for first in (0..PAGES).step_by(BATCH as usize) {
            let numbers = first..first + BATCH;
            if pass == 0 {
                let put = |n| Put { key: key(n), identity: identity(n), page: source[(n % BATCH) as usize].clone() };
                store.submit_put(numbers.map(put).collect())?;
            } else {
                store.submit_get(numbers.map(|n| Get::new(key(n), identity(n), Vec::new())).collect())?;
            }
            failed += settle(&store, 8);
        }
        failed += settle(&store, 0);
        if failed > 0 {
            return Err(format!("{name}: {failed} items failed").into());
        }
        *seconds = start.elapsed().as_secs_f64();
    }
    let rate = |seconds: f64| PAGES as f64 * BYTES as f64 / seconds / 1e6;
    println!("{name:<12} put {:7.0} MB/s   get {:7.0} MB/s", rate(seconds[0]), rate(seconds[1]));
    Ok(())
}

fn sealing() {
    let (payload, rounds) = (page(1), 4000);
    let best = |work: &dyn Fn()| {
        let once = || {
            let start = Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
        };
        (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
    };
    let record = [&seal(&key(1), &identity(1), &payload)[..], &payload].concat();
    let sealed = best(&|| _ = black_box(seal(&key(1), &identity(1), black_box(&payload))));
    let opened = best(&|| _ = black_box(open(&key(1), &identity(1), black_box(&record))));
    println!("64 KiB: seal {sealed:.1} us, open {opened:.1} us");
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let root = args.next().ok_or("usage: store_cost FOLDER [REDIS_URL]")?;
    sealing();
    println!("{PAGES} pages of 64 KiB, batches of {BATCH}, {WORKERS} workers");
    measure("memory", Arc::new(MemoryStore::new(u64::MAX)))?;
    for (name, durability, read_back) in [
        ("file", Durability::Fast, false),
        ("file checked", Durability::Fast, true),
        ("file synced", Durability::Synced, false),
    ] {
        let root = Path::new(&root).join(name.replace(' ', "-"));
        let config = FileConfig { root: root.clone(), quota: u64::MAX, durability, read_back };
        measure(name, Arc::new(FileStore::open(config)?))?;
        std::fs::remove_dir_all(root)?;
    }
    #[cfg(feature = "redis")]
    if let Some(url) = args.next() {
        use certkv_tier::store::{RedisBackend, RedisConfig};
        measure("redis", Arc::new(RedisBackend::new(RedisConfig { url, ..RedisConfig::default() })?))?;
    }
    Ok(())
}
