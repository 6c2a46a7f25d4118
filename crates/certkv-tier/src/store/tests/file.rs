//! The file back end: what is visible, what it takes, and what a crash leaves.
use super::client::{Client, Folder, get, key, put};
use super::wrappers::raw;
use crate::store::{Backend, Durability, FileConfig, FileStore, SEAL_BYTES, StoreError, seal};
use certkv_core::fail;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn config(folder: &Folder, quota: u64) -> FileConfig {
    FileConfig { root: folder.0.clone(), quota, durability: Durability::Fast, read_back: false }
}

pub(super) fn careful(folder: &Folder, quota: u64) -> FileConfig {
    FileConfig { durability: Durability::Synced, read_back: true, ..config(folder, quota) }
}

/// Where a page of a store in `root` lies.
pub(super) fn path(root: &Path, n: u64) -> PathBuf {
    let name = key(n).to_string();
    root.join(&name[..2]).join(format!("{name}.page"))
}

/// Bytes of all pages, and how many files are none.
pub(super) fn census(root: &Path) -> (u64, usize) {
    let (mut bytes, mut others) = (0, 0);
    for folder in fs::read_dir(root).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            if file.path().extension().is_some_and(|e| e == "page") {
                bytes += file.metadata().unwrap().len();
            } else {
                others += 1;
            }
        }
    }
    (bytes, others)
}

#[test]
fn pages_outlive_the_store() {
    let folder = Folder::new();
    for config in [config(&folder, 1 << 20), careful(&folder, 1 << 20)] {
        let backend = Arc::new(FileStore::open(config.clone()).unwrap());
        let client = Client::over(&backend, 2);
        for generation in 1..4 {
            let batch: Vec<_> = (0..20).map(|n| put(n, generation, 1000 + 50 * generation as usize)).collect();
            assert!(client.put(batch).iter().all(Result::is_ok));
        }
        assert_eq!(client.delete(vec![key(4), key(99)]), [Ok(()), Ok(())]);
        let bytes = 19 * (1150 + SEAL_BYTES as u64);
        assert_eq!((backend.bytes(), census(&folder.0)), (bytes, (bytes, 0)));
        drop((client, backend));
        let backend = FileStore::open(config).unwrap();
        assert_eq!((backend.bytes(), backend.swept()), (bytes, 0));
        let mut found = BTreeMap::new();
        backend.visit(|key, bytes| assert!(found.insert(key, bytes).is_none())).unwrap();
        assert!((0..20).all(|n| found.remove(&key(n)) == (n != 4).then_some(1150 + SEAL_BYTES as u64)));
        assert!(found.is_empty());
        let client = Client::new(backend, 2);
        for n in (0..20).filter(|n| *n != 4) {
            assert_eq!(client.page(n, 3), Ok(put(n, 3, 1150).page));
            assert!(matches!(client.page(n, 2), Err(StoreError::Corrupt { .. })));
        }
        assert_eq!(client.page(4, 3), Err(StoreError::NotFound { key: key(4) }));
    }
}

#[test]
fn the_quota_holds_to_the_byte() {
    let folder = Folder::new();
    let record = 1000 + SEAL_BYTES as u64;
    let backend = Arc::new(FileStore::open(config(&folder, 3 * record)).unwrap());
    let client = Client::over(&backend, 1);
    let page = |n| put(n, 1, 1000);
    assert_eq!(client.put(vec![page(0), page(1)]), [Ok(()), Ok(())]);
    assert_eq!(
        client.put(vec![put(2, 1, 1001), page(2)]),
        [Err(StoreError::Full { key: key(2), bytes: record + 1, free: Some(record) }), Ok(())]
    );
    // Replacing needs room for both.
    assert!(matches!(client.put(vec![put(2, 2, 1000)])[0], Err(StoreError::Full { free: Some(0), .. })));
    assert_eq!(client.page(2, 1), Ok(page(2).page));
    assert_eq!((backend.bytes(), census(&folder.0)), (3 * record, (3 * record, 0)));
    assert_eq!(client.delete(vec![key(0)]), [Ok(())]);
    assert_eq!(client.put(vec![put(2, 2, 1000)]), [Ok(())]);
    assert_eq!(backend.bytes(), 2 * record);
}

/// Many threads on few keys, puts of other lengths and deletes: the count is that of the files.
#[test]
fn the_count_is_exact_under_contention() {
    let folder = Folder::new();
    let backend = FileStore::open(config(&folder, 40_000)).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let backend = &backend;
            scope.spawn(move || {
                for i in 0..300u64 {
                    let put = put(i % 3, t, 100 * (1 + (i * 7 + t) % 40) as usize);
                    let head = seal(&put.key, &put.identity, &put.page);
                    match backend.put(&put.key, &[&head, &put.page]) {
                        Ok(()) | Err(StoreError::Full { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if i % 5 == t {
                        backend.delete(&put.key).unwrap();
                    }
                }
            });
        }
    });
    let (bytes, others) = census(&folder.0);
    assert_eq!((backend.bytes(), others), (bytes, 0));
}

#[test]
fn what_a_crash_left_is_swept_and_never_found() {
    let folder = Folder::new();
    let client = Client::new(FileStore::open(config(&folder, 1 << 20)).unwrap(), 1);
    assert_eq!(client.put(vec![put(1, 1, 500)]), [Ok(())]);
    drop(client);
    let shard = path(&folder.0, 1).parent().unwrap().to_owned();
    let record = fs::read(path(&folder.0, 1)).unwrap();
    fs::write(shard.join("tmp-0"), &record[..300]).unwrap();
    fs::write(shard.join("tmp-77"), b"").unwrap();
    // Not ours, or not where it belongs: left alone, never counted, never found.
    fs::write(shard.join("notes.txt"), b"hello").unwrap();
    let wrong = folder.0.join(if shard.ends_with("00") { "01" } else { "00" });
    fs::create_dir_all(&wrong).unwrap();
    fs::write(wrong.join(path(&folder.0, 1).file_name().unwrap()), &record).unwrap();
    let backend = FileStore::open(config(&folder, 1 << 20)).unwrap();
    assert_eq!((backend.swept(), backend.bytes()), (2, record.len() as u64));
    assert!(!shard.join("tmp-0").exists() && shard.join("notes.txt").exists());
    let mut seen = 0;
    backend.visit(|_, _| seen += 1).unwrap();
    assert_eq!(seen, 1);
    // The numbers of temporary names begin again without harm.
    let client = Client::new(backend, 1);
    assert_eq!(client.put(vec![put(1, 2, 500)]), [Ok(())]);
    assert_eq!(client.page(1, 2), Ok(put(1, 2, 500).page));
}

#[test]
fn one_folder_has_one_store() {
    let folder = Folder::new();
    let first = FileStore::open(config(&folder, 1 << 20)).unwrap();
    let error = FileStore::open(config(&folder, 1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains(&folder.0.display().to_string()), "{error}");
    drop(first);
    FileStore::open(config(&folder, 1 << 20)).unwrap();
    let taken = folder.0.join("file");
    fs::write(&taken, b"").unwrap();
    assert!(FileStore::open(FileConfig { root: taken, ..config(&folder, 1) }).is_err());
}

#[test]
fn a_folder_that_vanished_is_unavailable() {
    let folder = Folder::new();
    let client = Client::new(FileStore::open(config(&folder, 1 << 20)).unwrap(), 1);
    fs::remove_dir_all(&folder.0).unwrap();
    assert!(matches!(client.put(vec![put(1, 1, 500)])[0], Err(StoreError::Unavailable { .. })));
    assert_eq!(client.get(vec![get(1, 1)])[0].1, Err(StoreError::NotFound { key: key(1) }));
    assert_eq!(client.exists(vec![key(1)]), [Ok(false)]);
}

/// Every step of a put over an existing page fails once: the old page stays, and no file is left behind.
#[test]
fn a_failed_put_leaves_the_old_page_and_nothing_else() {
    let folder = Folder::new();
    let backend = FileStore::open(careful(&folder, 10_000)).unwrap();
    let store = |n: u64, generation: u64| {
        let put = put(n, generation, 700);
        backend.put(&put.key, &[&seal(&put.key, &put.identity, &put.page), &put.page])
    };
    store(1, 1).unwrap();
    let (old, books) = (raw(&backend, &key(1)), backend.bytes());
    let mut points = Vec::new();
    for (n, nth) in (1..20).flat_map(|nth| [(1, nth), (2, nth)]) {
        fail::arm(Some(nth));
        let result = store(n, 2);
        let fired = fail::fired();
        fail::arm(None);
        let Some(point) = fired else {
            result.unwrap();
            backend.delete(&key(2)).unwrap();
            store(1, 1).unwrap();
            continue;
        };
        points.push(point);
        assert!(matches!(result, Err(StoreError::Injected { fault, .. }) if fault.point == point));
        assert_eq!((raw(&backend, &key(1)) == old, backend.exists(&key(2))), (true, Ok(false)), "{point}");
        assert_eq!((backend.bytes(), census(&folder.0)), (books, (books, 0)), "{point}");
        // Works again at once, and gives the same file.
        store(1, 1).unwrap();
    }
    points.sort_unstable();
    points.dedup();
    let all = ["create", "link", "read_back", "rename", "stat", "sync", "sync_folder", "write"];
    assert_eq!(points, all.map(|p| format!("store.file.{p}")));
}
