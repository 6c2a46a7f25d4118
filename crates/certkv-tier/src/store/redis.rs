//! Records in a Redis or Valkey server, by the blocking client: one connection a worker, a batch in few round trips.
use super::backend::{Backend, Parts, is, record_bytes};
use super::error::StoreError;
use super::key::StoreKey;
use super::names::Names;
use certkv_core::sync::Mutex;
use core::fmt;
use core::time::Duration;
use redis::{Client, Connection, RedisError, RedisResult, Value};
use std::io;

/// Commands sent before their answers are read.
const ROUND: usize = 32;
/// Bytes of commands after which a round ends.
const ROUND_BYTES: usize = 8 << 20;

/// Where a [`RedisBackend`] keeps its records, and how long it waits.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://[user:password@]host[:port][/database]` or `unix:path`.
    pub url: String,
    /// In front of every key; the rest are 64 hexadecimal digits.
    pub prefix: String,
    /// Longest wait for a connection, and for each stretch of an answer.
    pub timeout: Duration,
    /// Times that a round of commands is tried, the first included; 0 counts as 1. Each but the first has a connection of
    /// its own.
    pub tries: u32,
    /// A record is stored under a name of its own, read back and compared before it takes the place of what its key has. Costs as many bytes back, and a
    /// second round trip for every round of a batch. Without it a record is published unread; a get sees the seal in either case.
    pub read_back: bool,
}

impl Default for RedisConfig {
    fn default() -> Self {
        let (url, prefix) = ("redis://127.0.0.1/".to_owned(), "certkv:".to_owned());
        Self { url, prefix, timeout: Duration::from_secs(2), tries: 2, read_back: true }
    }
}

/// Pages in a server. How much it holds, and whether it evicts, is the server's setting: a page that it evicted is not
/// found, one that it has no memory for is `Full`.
///
/// Connections are made when they are needed and kept. A server that is gone makes a batch fail within
/// `tries * 2 * timeout`, and is used again once it is back.
pub struct RedisBackend {
    client: Client,
    config: RedisConfig,
    /// Connections that no worker uses.
    idle: Mutex<Vec<Connection>>,
    names: Names,
}

impl RedisBackend {
    /// Does not connect yet.
    ///
    /// # Errors
    /// `InvalidInput`: no URL of a server, or no timeout.
    pub fn new(config: RedisConfig) -> io::Result<Self> {
        let invalid = |cause: String| io::Error::new(io::ErrorKind::InvalidInput, cause);
        if config.timeout.is_zero() {
            return Err(invalid("a timeout of 0".to_owned()));
        }
        let client = Client::open(config.url.as_str()).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { client, config, idle: Mutex::new(Vec::new()), names: Names::default() })
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(self.config.timeout)?;
        connection.set_read_timeout(Some(self.config.timeout))?;
        connection.set_write_timeout(Some(self.config.timeout))?;
        Ok(connection)
    }

    /// Sends commands and reads an answer to each, on a connection that is there or a new one.
    fn round(&self, commands: &Commands) -> Result<Vec<Value>, RedisError> {
        let mut kept = self.idle.lock().pop();
        let mut tries = self.config.tries.max(1);
        loop {
            let connection = kept.take().map_or_else(|| self.connect(), Ok);
            match connection.and_then(|connection| commands.exchange(connection)) {
                Ok((connection, answers)) => {
                    self.idle.lock().push(connection);
                    return Ok(answers);
                }
                Err(error) => {
                    // A server that left one connection has left all: no worker should find that out once more.
                    drop(std::mem::take(&mut *self.idle.lock()));
                    tries -= 1;
                    if tries == 0 {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// `N` commands per item, in rounds. Once a round has failed the others are not tried: each would wait as long.
    fn all<T, R, const N: usize>(
        &self,
        items: &mut [T],
        key: impl Fn(&T) -> StoreKey,
        command: impl Fn(&mut Commands, &[u8], &T),
        answer: impl Fn(&mut T, [Value; N]) -> Result<R, StoreError>,
    ) -> Vec<Result<R, StoreError>> {
        let mut results = Vec::with_capacity(items.len());
        let mut gone: Option<String> = None;
        while let Some(rest) = items.get_mut(results.len()..).filter(|rest| !rest.is_empty()) {
            let mut commands = Commands::default();
            let mut round = 0;
            while round < rest.len().min(ROUND) && commands.packed.len() < ROUND_BYTES {
                let name = format!("{}{}", self.config.prefix, key(&rest[round]));
                command(&mut commands, name.as_bytes(), &rest[round]);
                round += 1;
            }
            let round = &mut rest[..round];
            let answers = match &gone {
                Some(cause) => Err(cause.clone()),
                None => self.round(&commands).map_err(|error| error.to_string()),
            };
            match answers {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    results.extend(round.iter_mut().map(|item| {
                        let own: [Value; N] = core::array::from_fn(|_| answers.next().unwrap_or(Value::Nil));
                        let refused = own.iter().find(|value| matches!(value, Value::ServerError(_)));
                        match refused {
                            Some(Value::ServerError(error)) => Err(StoreError::unavailable(key(item), error)),
                            _ => answer(item, own),
                        }
                    }));
                }
                Err(cause) => {
                    results.extend(round.iter().map(|item| Err(StoreError::unavailable(key(item), &cause))));
                    gone = Some(cause);
                }
            }
        }
        results
    }
}

impl RedisBackend {
    /// Records in place of what their keys have.
    fn put_all(&self, records: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        let set = |commands: &mut Commands, name: &[u8], (_, record): &(StoreKey, Parts<'_>)| {
            commands.push(&[&[b"SET"], &[name], record]);
        };
        let stored = |(key, _): &mut (StoreKey, Parts<'_>), [value]: [Value; 1]| match value {
            Value::Okay => Ok(()),
            other => Err(unexpected(*key, &other)),
        };
        self.all(&mut records.to_vec(), |(key, _)| *key, set, stored)
    }

    /// The same, each under a name of its own until it was read back. What is not published goes by itself.
    fn publish_all(&self, records: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        /// Seconds after which the server forgets a record that got no key, as a crash leaves one.
        const EXPIRES: &[u8] = b"600";
        type Draft<'r> = (StoreKey, Parts<'r>, String);
        let drafts = records.iter().map(|&(key, record)| {
            let name = format!("{}new:{}:{key}", self.config.prefix, self.names.next());
            (key, record, name)
        });
        let mut drafts: Vec<Draft<'_>> = drafts.collect();
        let write = |commands: &mut Commands, _: &[u8], (_, record, draft): &Draft<'_>| {
            commands.push(&[&[b"SET"], &[draft.as_bytes()], record, &[b"EX"], &[EXPIRES]]);
            commands.push(&[&[b"GETRANGE"], &[draft.as_bytes()], &[b"0"], &[b"-1"]]);
        };
        let same = |(key, record, _): &mut Draft<'_>, answers: [Value; 2]| match answers {
            [Value::Okay, Value::BulkString(found)] if is(&found, record) => Ok(()),
            [Value::Okay, Value::BulkString(_)] => {
                Err(StoreError::unavailable(*key, "what was read back is not what was written"))
            }
            [Value::Okay, other] | [other, _] => Err(unexpected(*key, &other)),
        };
        let mut results = self.all(&mut drafts, |(key, ..)| *key, write, same);
        let mut whole: Vec<_> = drafts.into_iter().zip(&mut results).filter(|(_, result)| result.is_ok()).collect();
        // The old record is there until the new one is, and that one loses its end with the draft's name.
        let name = |commands: &mut Commands, name: &[u8], ((_, _, draft), _): &(Draft<'_>, &mut _)| {
            commands.push(&[&[b"RENAME"], &[draft.as_bytes()], &[name]]);
            commands.push(&[&[b"PERSIST"], &[name]]);
        };
        let named = |((key, ..), _): &mut (Draft<'_>, &mut _), answers: [Value; 2]| match answers {
            [Value::Okay, Value::Int(_)] => Ok(()),
            [Value::Okay, other] | [other, _] => Err(unexpected(*key, &other)),
        };
        let published = self.all(&mut whole, |((key, ..), _)| *key, name, named);
        whole.into_iter().zip(published).for_each(|((_, result), published)| *result = published);
        results
    }
}

/// Commands in the wire's form, packed here so that a page is copied once.
#[derive(Default)]
struct Commands {
    packed: Vec<u8>,
    count: usize,
}

impl Commands {
    /// Adds a command of `words`, each in parts.
    fn push(&mut self, words: &[&[&[u8]]]) {
        self.count += 1;
        self.packed.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            let bytes: usize = word.iter().map(|part| part.len()).sum();
            self.packed.extend_from_slice(format!("${bytes}\r\n").as_bytes());
            word.iter().for_each(|part| self.packed.extend_from_slice(part));
            self.packed.extend_from_slice(b"\r\n");
        }
    }

    /// A connection that failed has answers under way that belong to nobody, so it is dropped.
    fn exchange(&self, mut connection: Connection) -> RedisResult<(Connection, Vec<Value>)> {
        connection.send_packed_command(&self.packed)?;
        let answers = (0..self.count).map(|_| connection.recv_response()).collect::<RedisResult<Vec<_>>>()?;
        Ok((connection, answers))
    }
}

impl Backend for RedisBackend {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        one(key, self.put_batch(&[(*key, *record)]))
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        one(key, self.get_batch(limit, &mut [(*key, into)]))
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        one(key, self.exists_batch(&[*key]))
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        one(key, self.delete_batch(&[*key]))
    }

    fn put_batch(&self, records: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        let mut results = if self.config.read_back { self.publish_all(records) } else { self.put_all(records) };
        for (result, (key, record)) in results.iter_mut().zip(records) {
            // The server's word for its memory limit.
            if matches!(result, Err(StoreError::Unavailable { cause, .. }) if cause.contains("OOM")) {
                *result = Err(StoreError::Full { key: *key, bytes: record_bytes(record), free: None });
            }
        }
        results
    }

    fn get_batch(&self, limit: usize, gets: &mut [(StoreKey, &mut Vec<u8>)]) -> Vec<Result<(), StoreError>> {
        // No more than one byte over the limit is sent, whatever lies there. An absent record is an empty one.
        let last = limit.to_string();
        let ask = |commands: &mut Commands, name: &[u8], _: &(StoreKey, &mut Vec<u8>)| {
            commands.push(&[&[b"GETRANGE"], &[name], &[b"0"], &[last.as_bytes()]]);
        };
        let read = |(key, into): &mut (StoreKey, &mut Vec<u8>), [value]: [Value; 1]| match value {
            Value::BulkString(record) if record.is_empty() => Err(StoreError::NotFound { key: *key }),
            Value::BulkString(record) if record.len() > limit => {
                Err(StoreError::TooLarge { key: *key, bytes: record.len() as u64, limit: limit as u64 })
            }
            Value::BulkString(record) => {
                into.clear();
                into.extend_from_slice(&record);
                Ok(())
            }
            other => Err(unexpected(*key, &other)),
        };
        self.all(gets, |(key, _)| *key, ask, read)
    }

    fn exists_batch(&self, keys: &[StoreKey]) -> Vec<Result<bool, StoreError>> {
        let ask = |commands: &mut Commands, name: &[u8], _: &StoreKey| commands.push(&[&[b"EXISTS"], &[name]]);
        let told = |key: &mut StoreKey, [value]: [Value; 1]| match value {
            Value::Int(n) => Ok(n > 0),
            other => Err(unexpected(*key, &other)),
        };
        self.all(&mut keys.to_vec(), |key| *key, ask, told)
    }

    fn delete_batch(&self, keys: &[StoreKey]) -> Vec<Result<(), StoreError>> {
        let delete = |commands: &mut Commands, name: &[u8], _: &StoreKey| commands.push(&[&[b"DEL"], &[name]]);
        let done = |key: &mut StoreKey, [value]: [Value; 1]| match value {
            Value::Int(_) => Ok(()),
            other => Err(unexpected(*key, &other)),
        };
        self.all(&mut keys.to_vec(), |key| *key, delete, done)
    }
}

impl fmt::Debug for RedisConfig {
    // The URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, timeout, tries, read_back, .. } = self;
        f.debug_struct("RedisConfig")
            .field("prefix", prefix)
            .field("timeout", timeout)
            .field("tries", tries)
            .field("read_back", read_back)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("config", &self.config).finish_non_exhaustive()
    }
}

fn one<R>(key: &StoreKey, mut results: Vec<Result<R, StoreError>>) -> Result<R, StoreError> {
    results.pop().unwrap_or_else(|| Err(StoreError::unavailable(*key, "no answer")))
}

fn unexpected(key: StoreKey, answer: &Value) -> StoreError {
    let kind = match answer {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. } => "a string",
        _ => "something else",
    };
    StoreError::unavailable(key, format_args!("the server answered with {kind}"))
}
