//! The object-store back end over the client's own stores: in memory, and in local files.
use certkv_tier::store::{
    Backend, Get, Identity, ObjectBackend, ObjectConfig, Outcome, Put, SEAL_BYTES, Store, StoreConfig, StoreError,
    StoreKey, seal,
};
use core::time::Duration;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, local::LocalFileSystem,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    let config = ObjectConfig { prefix: "kv".to_owned(), parallel: 3, read_back: true };
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
        &ObjectConfig { prefix: String::new(), parallel: 0, read_back: true },
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

/// Objects in memory of which a bit is another than was written while `on`, and of which the client does not hear that they were written while `mute`.
#[derive(Debug, Default)]
struct Damaging {
    store: InMemory,
    on: AtomicBool,
    mute: AtomicBool,
}

impl std::fmt::Display for Damaging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("damaging")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Damaging {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> object_store::Result<PutResult> {
        let mut bytes: Vec<u8> = payload.iter().flatten().copied().collect();
        bytes[SEAL_BYTES + 7] ^= u8::from(self.on.load(Ordering::SeqCst));
        let stored = self.store.put_opts(at, PutPayload::from(bytes), options).await?;
        match self.mute.load(Ordering::SeqCst) {
            true => Err(object_store::Error::Generic { store: "mute", source: "no answer".into() }),
            false => Ok(stored),
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.store.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.store.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

/// What is not what was written is never published: the old record stays, and nothing else is left.
#[test]
fn what_reads_back_otherwise_is_not_published() {
    let client = Arc::new(Damaging::default());
    let names = || {
        let found = pollster::block_on(client.store.list(None).collect::<Vec<_>>());
        found.into_iter().map(|meta| meta.unwrap().location).collect::<Vec<_>>()
    };
    let open = |read_back| {
        let config = ObjectConfig { prefix: "kv".to_owned(), parallel: 3, read_back };
        let backend = ObjectBackend::new(client.clone(), &config);
        Store::new(Arc::new(backend), StoreConfig { workers: 1, page_bytes: 5000, ..StoreConfig::default() }).unwrap()
    };
    let store = open(true);
    put(&store, 1..3);
    client.on.store(true, Ordering::SeqCst);
    let again = |n: u8| Put { key: key(n), identity: identity(n), page: page(n) };
    store.submit_put(vec![again(1), again(5)]).unwrap();
    let Outcome::Put(done) = wait(&store) else { panic!("another outcome") };
    let refused = |result: &Result<(), StoreError>| matches!(result, Err(StoreError::Unavailable { cause, .. }) if cause.contains("not what was written"));
    assert!(done.iter().all(|(_, result)| refused(result)), "{done:?}");
    assert_eq!(get(&store, 1), Ok(page(1)));
    assert_eq!(get(&store, 5), Err(StoreError::NotFound { key: key(5) }));
    assert_eq!(names(), [object(1), object(2)]);
    // Nor is anything left of a put whose answer was lost.
    client.mute.store(true, Ordering::SeqCst);
    store.submit_put(vec![again(6)]).unwrap();
    let Outcome::Put(done) = wait(&store) else { panic!("another outcome") };
    assert!(
        matches!(&done[0].1, Err(StoreError::Unavailable { cause, .. }) if cause.contains("no answer")),
        "{done:?}"
    );
    assert_eq!(names(), [object(1), object(2)]);
    client.mute.store(false, Ordering::SeqCst);
    // Unread it is published, and seen when it is read.
    put(&open(false), 5..6);
    assert!(matches!(get(&store, 5), Err(StoreError::Corrupt { .. })));
}
