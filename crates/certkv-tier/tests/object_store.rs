//! The object-store back end over the client's own stores: in memory, and in local files.
use certkv_tier::store::{
    Backend, Get, Identity, ObjectBackend, ObjectConfig, Outcome, Put, SEAL_BYTES, Store, StoreConfig, StoreError,
    StoreKey, seal,
};
use core::time::Duration;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, local::LocalFileSystem};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PATIENCE: Duration = Duration::from_secs(60);

fn key(n: u8) -> StoreKey {
    StoreKey([n; 32])
}

fn identity(n: u8) -> Identity {
    Identity { sequence: 1, layer: 2, block: n.into(), generation: 4, format: 5, layout: 6 }
}

fn page(n: u8) -> Vec<u8> {
    (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ n).collect()
}

fn wait(store: &Store) -> Outcome {
    let mut done = Vec::new();
    assert!(store.wait_timeout(PATIENCE));
    assert_eq!(store.drain_completions(&mut done), 1);
    done.remove(0).outcome
}

fn put(store: &Store, numbers: impl Iterator<Item = u8>) {
    store.submit_put(numbers.map(|n| Put { key: key(n), identity: identity(n), page: page(n) }).collect()).unwrap();
    let Outcome::Put(done) = wait(store) else { panic!("another outcome") };
    assert!(done.iter().all(|(put, result)| result.is_ok() && put.page == page(put.key.0[0])));
}

fn get(store: &Store, n: u8) -> Result<Vec<u8>, StoreError> {
    store.submit_get(vec![Get::new(key(n), identity(n), Vec::new())]).unwrap();
    let Outcome::Get(mut done) = wait(store) else { panic!("another outcome") };
    let (get, result) = done.remove(0);
    result.map(|()| get.page().to_vec())
}

/// Where page `n` lies, as docs say.
fn object(n: u8) -> Path {
    Path::from(format!("kv/{n:02x}/{}", key(n)))
}

fn verbs(client: Arc<dyn ObjectStore>) {
    let config = ObjectConfig { prefix: "kv".to_owned(), parallel: 3 };
    let backend = Arc::new(ObjectBackend::new(client.clone(), &config));
    let store = Store::new(backend, StoreConfig { workers: 2, page_bytes: 5000, ..StoreConfig::default() }).unwrap();
    put(&store, 0..10);
    // Order within a batch survives requests that run side by side.
    let gets = [7, 99, 3, 0].map(|n| Get::new(key(n), identity(n), Vec::new()));
    store.submit_get(gets.to_vec()).unwrap();
    let Outcome::Get(done) = wait(&store) else { panic!("another outcome") };
    for (n, (get, result)) in [7, 99, 3, 0].into_iter().zip(&done) {
        match n {
            99 => assert_eq!(*result, Err(StoreError::NotFound { key: key(99) })),
            _ => assert_eq!((result, get.page()), (&Ok(()), &page(n)[..])),
        }
    }
    store.submit_delete(vec![key(3), key(99)]).unwrap();
    assert!(matches!(wait(&store), Outcome::Delete(done) if done.iter().all(|(_, result)| result.is_ok())));
    store.submit_exists(vec![key(3), key(4)]).unwrap();
    let Outcome::Exists(done) = wait(&store) else { panic!("another outcome") };
    assert_eq!(done, [(key(3), Ok(false)), (key(4), Ok(true))]);

    // What others did to the objects is never data.
    let bytes = |n: u8| pollster::block_on(async { client.get(&object(n)).await?.bytes().await }).unwrap();
    let write = |n: u8, record: Vec<u8>| pollster::block_on(client.put(&object(n), PutPayload::from(record))).unwrap();
    let mut record = bytes(5).to_vec();
    assert_eq!(record.len(), SEAL_BYTES + 5000);
    record[SEAL_BYTES + 17] ^= 4;
    write(5, record);
    write(6, bytes(7).to_vec());
    write(8, bytes(8)[..4000].to_vec());
    write(9, vec![0; SEAL_BYTES + 5001]);
    for n in [5, 6, 8] {
        assert!(matches!(get(&store, n), Err(StoreError::Corrupt { .. })), "{n}");
    }
    assert!(matches!(get(&store, 9), Err(StoreError::TooLarge { bytes: 5129, limit: 5128, .. })));
    put(&store, 5..6);
    assert_eq!(get(&store, 5), Ok(page(5)));
}

#[test]
fn in_memory() {
    verbs(Arc::new(InMemory::new()));
}

#[test]
fn in_local_files() {
    let root = std::env::temp_dir().join(format!("certkv-objects-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    verbs(Arc::new(LocalFileSystem::new_with_prefix(&root).unwrap()));
    // A client whose folder has vanished and cannot be made again.
    let gone = root.join("gone");
    std::fs::create_dir_all(&gone).unwrap();
    let backend = ObjectBackend::new(
        Arc::new(LocalFileSystem::new_with_prefix(&gone).unwrap()),
        &ObjectConfig { prefix: String::new(), parallel: 0 },
    );
    std::fs::remove_dir_all(&gone).unwrap();
    std::fs::write(&gone, b"a file where the folder was").unwrap();
    let head = seal(&key(1), &identity(1), &page(1));
    let refused = backend.put(&key(1), &[&head, &page(1)]);
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    std::fs::remove_dir_all(&root).unwrap();
}

/// The embedder's executor runs every request, and one that gives up is an error for each item.
#[test]
fn the_executor_is_the_embedders() {
    let driven = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&driven);
    let client: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let backend = ObjectBackend::with_executor(client, &ObjectConfig::default(), move |future| {
        // The third call finds an executor that was shut down.
        if count.fetch_add(1, Ordering::SeqCst) != 2 {
            pollster::block_on(future);
        }
    });
    let store = Store::new(Arc::new(backend), StoreConfig::default()).unwrap();
    put(&store, 0..4);
    assert_eq!(get(&store, 2), Ok(page(2)));
    store.submit_exists(vec![key(0), key(1)]).unwrap();
    let Outcome::Exists(done) = wait(&store) else { panic!("another outcome") };
    assert!(done.iter().all(|(_, result)| matches!(result, Err(StoreError::Unavailable { .. }))));
    assert_eq!(get(&store, 3), Ok(page(3)));
    assert_eq!(driven.load(Ordering::SeqCst), 4);
}
