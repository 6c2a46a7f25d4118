//! Records as objects: S3 and its like, through the embedder's `object_store` client.
use super::backend::{Backend, Parts, is};
use super::error::StoreError;
use super::key::StoreKey;
use super::names::Names;
use core::fmt;
use core::pin::{Pin, pin};
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;

/// Runs a future to its end on the calling thread.
type Drive = Box<dyn Fn(Pin<&mut (dyn Future<Output = ()> + Send)>) + Send + Sync>;

/// Where an [`ObjectBackend`] keeps its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectConfig {
    /// Path in front of all objects.
    pub prefix: String,
    /// Requests of one batch under way at a time; 0 counts as 1.
    pub parallel: usize,
    /// A record is stored as an object of its own, read back and compared before it takes the place of what its key has: four requests where there would be
    /// one, and as many bytes back. Without it a record is published unread; some services compare a checksum that the client sends instead (a setting of
    /// the client), and a get sees the seal in either case. Objects under `prefix/new` that a crash left are the embedder's to expire.
    pub read_back: bool,
}

impl Default for ObjectConfig {
    fn default() -> Self {
        Self { prefix: "certkv".to_owned(), parallel: 16, read_back: true }
    }
}

/// Pages in an object store: `prefix/xx/key`, `xx` the first byte of the key.
///
/// Neither this library nor the client's core brings a runtime. Clients over HTTP need the one they were made for:
/// with tokio, hand in `move |future| handle.block_on(future)`; a worker of the store is never a thread of the runtime.
/// How long a request may take is a setting of the client.
pub struct ObjectBackend {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    parallel: usize,
    read_back: bool,
    names: Names,
    drive: Drive,
}

impl ObjectBackend {
    /// For clients that need no runtime, such as those in memory and over local files.
    pub fn new(store: Arc<dyn ObjectStore>, config: &ObjectConfig) -> Self {
        Self::with_executor(store, config, |future| pollster::block_on(future))
    }

    /// `drive` runs a future to its end on the calling thread, with what the client needs around it.
    pub fn with_executor(
        store: Arc<dyn ObjectStore>,
        config: &ObjectConfig,
        drive: impl Fn(Pin<&mut (dyn Future<Output = ()> + Send)>) + Send + Sync + 'static,
    ) -> Self {
        let (prefix, parallel) = (Path::from(config.prefix.as_str()), config.parallel.max(1));
        let (read_back, names) = (config.read_back, Names::default());
        Self { store, prefix, parallel, read_back, names, drive: Box::new(drive) }
    }

    fn path(&self, key: &StoreKey) -> Path {
        let name = key.to_string();
        self.prefix.clone().join(&name[..2]).join(name)
    }

    /// Runs one request per item, some at a time; results in order.
    fn all<'a, T, R: Send + 'a, F>(&self, items: impl Iterator<Item = T>, request: impl Fn(T) -> F) -> Vec<R>
    where
        F: Future<Output = R> + Send + 'a,
    {
        let requests: Vec<_> = items.map(request).collect();
        let mut results = Vec::with_capacity(requests.len());
        let mut running = stream::iter(requests).buffered(self.parallel);
        (self.drive)(pin!(async {
            while let Some(result) = running.next().await {
                results.push(result);
            }
        }));
        results
    }

    /// The result of a batch of one. An executor that gave up has none.
    fn one<R>(key: &StoreKey, mut results: Vec<Result<R, StoreError>>) -> Result<R, StoreError> {
        results.pop().unwrap_or_else(|| Err(StoreError::unavailable(*key, "the executor returned early")))
    }

    async fn put_one(&self, key: StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        let (to, failed) = (self.path(&key), |error: Error| failed(key, &error));
        // The client wants payloads of its own: one copy.
        let payload = PutPayload::from(record.concat());
        if !self.read_back {
            return self.store.put(&to, payload).await.map(drop).map_err(failed);
        }
        let draft = self.prefix.clone().join("new").join(self.names.next());
        let published = async {
            self.store.put(&draft, payload).await.map_err(failed)?;
            let found = self.store.get(&draft).await.map_err(failed)?.bytes().await.map_err(failed)?;
            if !is(&found, record) {
                return Err(StoreError::unavailable(key, "what was read back is not what was written"));
            }
            self.store.rename(&draft, &to).await.map_err(failed)
        };
        let published = published.await;
        if published.is_err() {
            // As far as it goes: of a put whose answer was lost, too.
            let _ = self.store.delete(&draft).await;
        }
        published
    }

    async fn get_one(&self, key: StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        let found = self.store.get(&self.path(&key)).await.map_err(|error| failed(key, &error))?;
        let too_large = |bytes| StoreError::TooLarge { key, bytes, limit: limit as u64 };
        if found.meta.size > limit as u64 {
            return Err(too_large(found.meta.size));
        }
        into.clear();
        into.reserve_exact(found.meta.size as usize);
        let mut chunks = found.into_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| failed(key, &error))?;
            let bytes = into.len() + chunk.len();
            if bytes > limit {
                return Err(too_large(bytes as u64));
            }
            into.extend_from_slice(&chunk);
        }
        Ok(())
    }

    async fn exists_one(&self, key: StoreKey) -> Result<bool, StoreError> {
        match self.store.head(&self.path(&key)).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(failed(key, &error)),
        }
    }

    async fn delete_one(&self, key: StoreKey) -> Result<(), StoreError> {
        match self.store.delete(&self.path(&key)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(key, &error)),
        }
    }
}

impl Backend for ObjectBackend {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        Self::one(key, self.put_batch(&[(*key, *record)]))
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        Self::one(key, self.get_batch(limit, &mut [(*key, into)]))
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        Self::one(key, self.exists_batch(&[*key]))
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        Self::one(key, self.delete_batch(&[*key]))
    }

    fn put_batch(&self, records: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        self.all(records.iter(), |(key, record)| self.put_one(*key, record))
    }

    fn get_batch(&self, limit: usize, gets: &mut [(StoreKey, &mut Vec<u8>)]) -> Vec<Result<(), StoreError>> {
        self.all(gets.iter_mut(), |(key, into)| self.get_one(*key, limit, into))
    }

    fn exists_batch(&self, keys: &[StoreKey]) -> Vec<Result<bool, StoreError>> {
        self.all(keys.iter(), |key| self.exists_one(*key))
    }

    fn delete_batch(&self, keys: &[StoreKey]) -> Vec<Result<(), StoreError>> {
        self.all(keys.iter(), |key| self.delete_one(*key))
    }
}

impl fmt::Debug for ObjectBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectBackend")
            .field("store", &self.store)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn failed(key: StoreKey, error: &Error) -> StoreError {
    match error {
        Error::NotFound { .. } => StoreError::NotFound { key },
        _ => StoreError::unavailable(key, error),
    }
}
