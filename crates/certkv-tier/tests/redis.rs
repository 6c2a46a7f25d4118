//! The Redis back end over a real server, which is stopped, killed and started again under it.
use certkv_tier::store::{
    Backend, Get, Identity, Outcome, Put, RedisBackend, RedisConfig, SEAL_BYTES, Store, StoreConfig, StoreError,
    StoreKey, seal,
};
use core::time::Duration;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);
/// A busy machine answers within it.
const TIMEOUT: Duration = Duration::from_millis(800);

/// A server on a free port of this machine that keeps nothing on disk. Killed on drop.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        Self::start_on(port)
    }

    fn start_on(port: u16) -> Self {
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need redis-server: install the package redis-server");
        let server = Self { child, port };
        let start = Instant::now();
        // It listens before it answers: what it looks at in between takes a busy machine longer than a client waits.
        let answers = || -> redis::RedisResult<()> {
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
            let mut connection = client.get_connection_with_timeout(PATIENCE)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            redis::cmd("PING").query(&mut connection)
        };
        while answers().is_err() {
            assert!(start.elapsed() < PATIENCE, "redis-server does not answer on port {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops or continues the process: its port stays open, nobody answers.
    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    fn backend(&self) -> RedisBackend {
        let url = format!("redis://127.0.0.1:{}/", self.port);
        RedisBackend::new(RedisConfig { url, timeout: TIMEOUT, ..RedisConfig::default() }).unwrap()
    }

    fn store(&self, workers: usize) -> Store {
        let config = StoreConfig { workers, page_bytes: 100_000, ..StoreConfig::default() };
        Store::new(Arc::new(self.backend()), config).unwrap()
    }

    /// Past the library: what anybody else may do to the server.
    fn ask<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        command.query(&mut client.get_connection().unwrap()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key(n: u64) -> StoreKey {
    let mut key = [0xA5; 32];
    key[..8].copy_from_slice(&n.to_le_bytes());
    StoreKey(key)
}

fn name(n: u64) -> String {
    format!("certkv:{}", key(n))
}

fn identity(n: u64) -> Identity {
    Identity { sequence: n, layer: 2, block: 3, generation: 4, format: 5, layout: 6 }
}

fn page(n: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((i ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 23) as u8).collect()
}

fn wait(store: &Store) -> Outcome {
    let mut done = Vec::new();
    assert!(store.wait_timeout(PATIENCE));
    assert_eq!(store.drain_completions(&mut done), 1);
    done.remove(0).outcome
}

fn put(store: &Store, numbers: impl Iterator<Item = u64>, bytes: usize) -> Vec<Result<(), StoreError>> {
    let batch: Vec<_> = numbers.map(|n| Put { key: key(n), identity: identity(n), page: page(n, bytes) }).collect();
    store.submit_put(batch.clone()).unwrap();
    let Outcome::Put(done) = wait(store) else { panic!("another outcome") };
    assert!(done.iter().map(|(put, _)| put).eq(&batch));
    done.into_iter().map(|(_, result)| result).collect()
}

fn get(store: &Store, numbers: impl Iterator<Item = u64>) -> Vec<Result<Vec<u8>, StoreError>> {
    store.submit_get(numbers.map(|n| Get::new(key(n), identity(n), Vec::new())).collect()).unwrap();
    let Outcome::Get(done) = wait(store) else { panic!("another outcome") };
    assert!(done.iter().all(|(get, result)| result.is_ok() || get.page().is_empty()));
    done.into_iter().map(|(get, result)| result.map(|()| get.page().to_vec())).collect()
}

fn all_stored(results: &[Result<(), StoreError>]) {
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

fn unavailable<T>(results: &[Result<T, StoreError>]) -> bool {
    results.iter().all(|result| matches!(result, Err(StoreError::Unavailable { .. })))
}

#[test]
fn verbs_do_what_they_say() {
    let server = Server::start();
    let store = server.store(2);
    // Several rounds of commands.
    all_stored(&put(&store, 0..100, 3000));
    let got = get(&store, 90..105);
    assert!((90..100).zip(&got).all(|(n, got)| *got == Ok(page(n, 3000))));
    assert!((100..105).zip(&got[10..]).all(|(n, got)| *got == Err(StoreError::NotFound { key: key(n) })));
    store.submit_delete(vec![key(3), key(300)]).unwrap();
    assert!(matches!(wait(&store), Outcome::Delete(done) if done.iter().all(|(_, result)| result.is_ok())));
    store.submit_exists((0..50).map(key).collect()).unwrap();
    let Outcome::Exists(done) = wait(&store) else { panic!("another outcome") };
    assert!((0..50).zip(&done).all(|(n, (_, there))| *there == Ok(n != 3)));
    assert_eq!(put(&store, 0..1, 0), [Ok(())]);
    assert_eq!(get(&store, 0..1), [Ok(Vec::new())]);
    assert!(matches!(put(&store, 0..1, 100_001)[0], Err(StoreError::TooLarge { .. })));
}

/// Passes bytes between a client and a server, and changes a bit of every page on its way there.
fn damaging(server: u16) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let mut there = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let (mut back, mut answers) = (client.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 20];
                while let Ok(n @ 1..) = client.read(&mut bytes) {
                    let page = page(9, 64);
                    if let Some(at) = bytes[..n].windows(page.len()).position(|window| window == page) {
                        bytes[at + 5] ^= 1;
                    }
                    there.write_all(&bytes[..n]).unwrap();
                }
            });
        }
    });
    port
}

/// What is not what was written is never published: the old record stays.
#[test]
fn what_reads_back_otherwise_is_not_published() {
    let server = Server::start();
    let open = |read_back, port| {
        let url = format!("redis://127.0.0.1:{port}/");
        let config = RedisConfig { url, timeout: TIMEOUT, read_back, ..RedisConfig::default() };
        Store::new(Arc::new(RedisBackend::new(config).unwrap()), StoreConfig { workers: 1, ..StoreConfig::default() })
            .unwrap()
    };
    let proxy = damaging(server.port);
    let (store, plain) = (open(true, proxy), open(true, server.port));
    // Another page's bytes are passed on as they are.
    all_stored(&put(&store, 1..3, 64));
    all_stored(&put(&plain, 9..10, 64));
    let refused = put(&store, 8..10, 64);
    let cause = |result: &Result<(), StoreError>| match result {
        Err(StoreError::Unavailable { cause, .. }) => cause.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused[0], Ok(()));
    assert!(cause(&refused[1]).contains("not what was written"), "{refused:?}");
    assert_eq!(get(&plain, 9..10), [Ok(page(9, 64))]);
    // Records stay, whatever their drafts were told; a draft that was refused goes by itself.
    for n in [1, 8, 9] {
        let left: i64 = server.ask(redis::cmd("TTL").arg(name(n)));
        assert_eq!(left, -1, "{n}");
    }
    let drafts: Vec<String> = server.ask(redis::cmd("KEYS").arg("certkv:new:*"));
    let [draft] = &drafts[..] else { panic!("{drafts:?}") };
    let left: i64 = server.ask(redis::cmd("TTL").arg(draft));
    assert!((1..=600).contains(&left), "{left}");
    // Unread it is published, and seen when it is read.
    all_stored(&put(&open(false, proxy), 9..10, 64));
    assert!(matches!(get(&plain, 9..10)[0], Err(StoreError::Corrupt { .. })));
}

#[test]
fn what_others_did_to_the_server_is_never_data() {
    let server = Server::start();
    let store = server.store(1);
    all_stored(&put(&store, 0..6, 3000));
    let record: Vec<u8> = server.ask(redis::cmd("GET").arg(name(1)));
    assert_eq!(record.len(), SEAL_BYTES + 3000);
    let _: i64 = server.ask(redis::cmd("SETBIT").arg(name(0)).arg(8 * 1500).arg(i32::from(page(0, 3000)[1372] < 128)));
    let _: () = server.ask(redis::cmd("SET").arg(name(2)).arg(&record));
    let _: () = server.ask(redis::cmd("SET").arg(name(3)).arg(&record[..2000]));
    let _: () = server.ask(redis::cmd("SET").arg(name(4)).arg(vec![0u8; 1 << 20]));
    let _: () = server.ask(redis::cmd("DEL").arg(name(5)));
    let _: i64 = server.ask(redis::cmd("LPUSH").arg(name(5)).arg("x"));
    let got = get(&store, 0..6);
    assert_eq!(got[1], Ok(page(1, 3000)));
    assert!([0, 2, 3].iter().all(|&n: &usize| matches!(got[n], Err(StoreError::Corrupt { .. }))), "{got:?}");
    // One byte over the limit came over the wire, not a megabyte.
    let limit = (100_000 + SEAL_BYTES) as u64;
    assert_eq!(got[4], Err(StoreError::TooLarge { key: key(4), bytes: limit + 1, limit }));
    assert!(matches!(&got[5], Err(StoreError::Unavailable { cause, .. }) if cause.contains("WRONGTYPE")), "{got:?}");
    // The connection is still in step.
    assert_eq!(get(&store, 1..2), [Ok(page(1, 3000))]);
}

#[test]
fn a_server_without_memory_is_full() {
    let server = Server::start();
    let store = server.store(1);
    assert_eq!(put(&store, 0..1, 3000), [Ok(())]);
    let _: () = server.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1"));
    let full = put(&store, 1..3, 3000);
    assert_eq!(full[0], Err(StoreError::Full { key: key(1), bytes: 3128, free: None }));
    assert_eq!(get(&store, 0..2), [Ok(page(0, 3000)), Err(StoreError::NotFound { key: key(1) })]);
    let _: () = server.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0"));
    assert_eq!(put(&store, 1..2, 3000), [Ok(())]);
}

#[test]
fn a_server_that_is_gone_fails_in_time_and_works_once_it_is_back() {
    let mut server = Server::start();
    let store = server.store(2);
    all_stored(&put(&store, 0..8, 3000));
    server.kill();
    let start = Instant::now();
    assert!(unavailable(&put(&store, 0..200, 3000)) && unavailable(&get(&store, 0..8)));
    assert!(start.elapsed() < 8 * TIMEOUT, "{:?}", start.elapsed());
    let mut server = Server::start_on(server.port);
    // It kept nothing, and every kept connection is dead.
    assert_eq!(get(&store, 0..1), [Err(StoreError::NotFound { key: key(0) })]);
    all_stored(&put(&store, 0..8, 3000));
    server.kill();
    // Back before anybody asked: the dead connection costs one try.
    let _server = Server::start_on(server.port);
    all_stored(&put(&store, 0..8, 3000));
    assert_eq!(get(&store, 7..8), [Ok(page(7, 3000))]);
}

/// The port is open and nobody answers: neither a kept connection nor a new one waits longer than it may.
#[test]
fn a_server_that_hangs_fails_in_time() {
    let server = Server::start();
    let store = server.store(1);
    all_stored(&put(&store, 0..4, 3000));
    server.signal("-STOP");
    for _ in 0..2 {
        let start = Instant::now();
        assert!(unavailable(&put(&store, 100..200, 90_000)));
        // Two tries, each a handshake and an answer at most, and something for a busy machine.
        assert!(start.elapsed() >= TIMEOUT && start.elapsed() < 10 * TIMEOUT, "{:?}", start.elapsed());
    }
    server.signal("-CONT");
    let start = Instant::now();
    while get(&store, 1..2) != [Ok(page(1, 3000))] {
        assert!(start.elapsed() < PATIENCE);
    }
    // What was under way may have arrived. Whatever is there is a page, and the right one.
    let got = get(&store, 100..200);
    let allowed = |n, got| got == Ok(page(n, 90_000)) || got == Err(StoreError::NotFound { key: key(n) });
    assert!((100..200).zip(got).all(|(n, got)| allowed(n, got)));
}

/// Killed in the middle of the traffic, again and again: every result is one of the allowed, what was stored in a life of
/// the server is found in that life, and what is found is right.
#[test]
fn killed_in_the_middle_of_traffic() {
    let mut server = Server::start();
    let store = server.store(3);
    let (mut stored, mut failed) = (0, 0);
    for round in 0..6u64 {
        for batch in 0..6 {
            let first = (round * 6 + batch) * 10;
            let items = (first..first + 10).map(|n| Put { key: key(n), identity: identity(n), page: page(n, 60_000) });
            store.submit_put(items.collect()).unwrap();
        }
        std::thread::sleep(Duration::from_micros(400 * round));
        server.kill();
        let mut done = Vec::new();
        while done.len() < 6 {
            assert!(store.wait_timeout(PATIENCE));
            store.drain_completions(&mut done);
        }
        for completion in done {
            let Outcome::Put(done) = completion.outcome else { panic!("another outcome") };
            for (put, result) in done {
                assert_eq!(put.page, page(put.identity.sequence, 60_000));
                match result {
                    Ok(()) => stored += 1,
                    Err(StoreError::Unavailable { .. }) => failed += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        server = Server::start_on(server.port);
        all_stored(&put(&store, 0..4, 500));
        assert!((0..4).zip(get(&store, 0..4)).all(|(n, got)| got == Ok(page(n, 500))));
    }
    println!("{stored} stored, {failed} failed");
    assert!(failed > 0 && stored + failed == 360);
}

/// The answer of a put that timed out must not be taken for the next command's.
#[test]
fn late_answers_belong_to_nobody() {
    let server = Server::start();
    let backend = server.backend();
    let record = |n: u64| (seal(&key(n), &identity(n), &page(n, 100)), page(n, 100));
    let (head, body) = record(1);
    backend.put(&key(1), &[&head, &body]).unwrap();
    server.signal("-STOP");
    let (other, more) = record(2);
    assert!(backend.put(&key(2), &[&other, &more]).is_err());
    server.signal("-CONT");
    for _ in 0..20 {
        let mut into = Vec::new();
        if backend.get(&key(1), 1000, &mut into).is_ok() {
            assert_eq!(into, [&head[..], &body].concat());
        }
        assert_ne!(backend.exists(&key(3)), Ok(true));
    }
    assert_eq!(backend.exists(&key(1)), Ok(true));
}

#[test]
fn what_is_no_server_is_refused_at_once() {
    let with =
        |url: &str, timeout| RedisBackend::new(RedisConfig { url: url.into(), timeout, ..RedisConfig::default() });
    assert!(with("http://127.0.0.1/", TIMEOUT).is_err());
    assert!(with("redis://127.0.0.1/", Duration::ZERO).is_err());
    let backend = with("redis://someone:secret@127.0.0.1:1/", TIMEOUT).unwrap();
    let error = backend.exists(&key(1)).unwrap_err().to_string();
    assert!(error.contains(&key(1).to_string()) && !error.contains("secret"), "{error}");
    assert!(!format!("{backend:?}").contains("secret"));
}
