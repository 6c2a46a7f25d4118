//! A process is killed while it writes; the next one finds whole pages, and all that were reported stored.
use super::client::{Client, Folder, PATIENCE, identity, key, put};
use super::file::{census, config};
use crate::store::{Backend, Field, FileStore, SealError, StoreError, seal};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tests only: where the writing process works.
const FOLDER: &str = "CERTKV_TEST_CRASH_FOLDER";
const KEYS: u64 = 12;

/// The process that is killed: puts generation after generation and says what it has stored.
#[test]
#[ignore = "writes until it is killed; started by the other test"]
fn writer() {
    let Some(root) = std::env::var_os(FOLDER) else { return };
    let folder = std::mem::ManuallyDrop::new(Folder(PathBuf::from(root)));
    let backend = FileStore::open(config(&folder, u64::MAX)).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for t in 0..2 {
            let backend = &backend;
            scope.spawn(move || {
                for generation in 1.. {
                    for n in (0..KEYS).filter(|n| n % 2 == t) {
                        let put = put(n, generation, 30_000);
                        backend.put(&put.key, &[&seal(&put.key, &put.identity, &put.page), &put.page]).unwrap();
                        let mut out = std::io::stdout().lock();
                        writeln!(out, "stored {n} {generation}").and_then(|()| out.flush()).unwrap();
                    }
                    assert!(start.elapsed() < PATIENCE, "nobody killed the writer");
                }
            });
        }
    });
}

#[test]
fn killed_at_any_moment() {
    let mut leftovers = 0;
    for round in 0..12 {
        let folder = Folder::new();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::crash::writer", "--ignored", "--nocapture"])
            .env(FOLDER, &folder.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut stored = BTreeMap::new();
        let mut note = |line: String| {
            let mut words = line.split(' ').skip_while(|word| *word != "stored").skip(1).map(str::parse::<u64>);
            if let (Some(Ok(n)), Some(Ok(generation))) = (words.next(), words.next()) {
                stored.insert(n, generation);
            }
        };
        // The kill falls somewhere into the writing, not before it.
        lines.by_ref().take(20).for_each(&mut note);
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().unwrap();
        lines.for_each(&mut note);
        child.wait().unwrap();
        assert!(!stored.is_empty(), "the writer did not write");

        let backend = FileStore::open(config(&folder, u64::MAX)).unwrap();
        leftovers += backend.swept();
        assert_eq!((backend.bytes(), 0), census(&folder.0));
        let client = Client::new(backend, 1);
        for (n, generation) in stored {
            // What was stored, or something later that was not reported any more.
            let found = match client.page(n, generation) {
                Ok(page) => (page, generation),
                Err(StoreError::Corrupt {
                    reason: SealError::Identity { field: Field::Generation, found, .. },
                    ..
                }) => (client.page(n, found).unwrap(), found),
                Err(error) => panic!("block {:?}: {error}", identity(n as u32, generation)),
            };
            assert!(found.1 >= generation && found.0 == put(n, found.1, 30_000).page, "key {}", key(n));
        }
    }
    println!("{leftovers} temporary files swept");
}
