//! What a snapshot says is what happened: counted here beside the cache, and compared.
mod common;

use certkv::{
    BytesRead, Cache, Certificate, Certified, Chunk, Class, Config, Error, Geometry, Moves, Outputs, Policy, Pool,
    Snapshot, Status,
};
use certkv_core::fail::{arm, fired};
use certkv_testkit::generate::Rng;
use common::{fill, random_queries, random_rows, step};

fn geometry() -> Geometry {
    Geometry::new(3, 6, 2, 64).unwrap()
}

fn cache(scratch: usize) -> Cache {
    let formats = ["t2-v3g32-b16", "t2-v3g32-b16", "k8-v4g32-b32"].map(|f| f.parse().unwrap());
    let config = Config { scratch_keys: scratch, scratch_values: scratch, ..Config::new(geometry(), 1024) };
    Cache::new(Config { formats: formats.into(), max_sequences: 5, ..config }).unwrap()
}

/// What the certificates of decode steps come to.
#[derive(Debug, Default)]
struct Seen {
    outputs: Outputs,
    read: BytesRead,
}

impl Seen {
    fn note(&mut self, certificates: &[Certificate]) {
        for (i, c) in certificates.iter().enumerate() {
            match c.status {
                Status::Certified => self.outputs.certified += 1,
                Status::Exact => self.outputs.exact += 1,
                Status::Uncertified => self.outputs.uncertified += 1,
                Status::Failed => self.outputs.failed += 1,
            }
            self.outputs.by_rung[c.rung as usize] += 1;
            if i % geometry().group() == 0 {
                self.read.packed += c.bytes.packed;
                self.read.scratch += c.bytes.scratch;
                self.read.host += c.bytes.host;
            }
        }
    }
}

#[test]
fn outputs_and_bytes_are_those_of_the_certificates() {
    for scratch in [0, 24] {
        let (cache, mut r, mut seen) = (cache(scratch), Rng::new(1), Seen::default());
        let id = cache.create().unwrap();
        let (rows, queries) = (random_rows(&geometry(), 200, &mut r), random_queries(&geometry(), 200, &mut r));
        step(&cache, id, &rows, &queries, Policy::default()).unwrap();
        seen.outputs.prompt += 200 * 6 * 3;
        let tight = Policy::Certified(Certified { tol_rel: 0.002, ..Certified::default() });
        for policy in [tight, tight, Policy::Dense, Policy::Packed, Policy::default(), tight] {
            let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
            for answer in step(&cache, id, &rows, &queries, policy).unwrap() {
                seen.note(&answer.certificates);
            }
        }
        let snapshot = cache.snapshot();
        assert_eq!(snapshot.outputs, Some(seen.outputs));
        assert_eq!(snapshot.read, Some(seen.read));
        assert!(seen.outputs.certified > 0 && seen.outputs.exact > 0 && seen.outputs.uncertified > 0);
        assert_eq!(seen.read.scratch > 0, scratch > 0, "{:?}", seen.read);
        assert_eq!(snapshot.scratch.is_some(), scratch > 0);
        for side in snapshot.scratch.iter().flatten() {
            assert_eq!(side.slots.empty + side.slots.named + side.slots.retiring, scratch);
            assert!(side.stats.filled > 0 && side.filled_bytes > 0, "{side:?}");
        }
        // Seven steps, a layer at a time; queries that are no numbers change nothing.
        assert_eq!(snapshot.stores.map(|stores| stores.done.count()), Some(7 * 3));
        assert_eq!(snapshot.stores.map(|stores| stores.done.sum), Some(206 * 3 * 4 * 2 * 64));
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
        step.append(0, &[0.5; 128], &[0.5; 128]).unwrap();
        assert!(step.attend(0, &[f32::NAN; 384], &mut [0.0; 384], &mut []).is_err());
        drop(step);
        assert_eq!(cache.snapshot().outputs, Some(seen.outputs));
    }
}

#[test]
fn pages_bytes_and_sequences_are_those_in_use() {
    let (cache, mut r) = (cache(0), Rng::new(2));
    let empty = cache.snapshot();
    assert_eq!((empty.sequences, empty.tokens, empty.class(Class::Host).used), (0, 0, 0));
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry(), 70, &mut r)).unwrap();
    let fork = cache.fork(id).unwrap();
    let snapshot = cache.snapshot();
    assert_eq!((snapshot.sequences, snapshot.busy, snapshot.tokens), (2, 0, 140));
    let groups: Vec<_> = snapshot.pages.iter().map(|g| (g.first_layer, g.layers, g.packed.live, g.tail.live)).collect();
    // Blocks of 16 tokens in two layers, of 32 in one; an open block each.
    assert_eq!(groups, [(0, 2, 4, 2), (2, 1, 2, 2)]);
    for pages in snapshot.pages.iter().flat_map(|g| [&g.host, &g.packed, &g.tail]) {
        assert!(pages.worn == 0 && pages.free > 0);
    }
    let memory = cache.memory();
    let used = |class| snapshot.class(class).used;
    assert_eq!((used(Class::Packed), used(Class::Host)), (memory.packed, memory.host));
    assert_eq!(used(Class::Scratch), memory.scratch);
    assert!(used(Class::Tables) >= memory.tables, "what is reserved for a sequence is more than it takes");
    for class in snapshot.classes {
        assert!(class.used <= class.reserved && class.reserved == class.peak, "{class:?}");
    }
    let (reserved, _) = cache.reserved();
    assert_eq!(snapshot.pool(Pool::Device).reserved, reserved[..3].iter().sum::<usize>());
    assert_eq!((snapshot.pool(Pool::Host).reserved, snapshot.pool(Pool::Disk).peak), (reserved[3], 0));
    // Beside a step that has not ended, without waiting for it.
    let step = cache.begin(&[Chunk { sequence: fork, tokens: 1 }]).unwrap();
    let beside = cache.snapshot();
    assert_eq!((beside.sequences, beside.busy, beside.tokens), (2, 1, 70));
    drop(step);
    let after = cache.snapshot();
    assert_eq!(
        Snapshot { pages: snapshot.pages.clone(), ..after.clone() },
        Snapshot { waits: after.waits, ..snapshot }
    );
}

#[test]
fn copies_are_counted_by_what_became_of_them() {
    let (cache, mut r) = (cache(0), Rng::new(3));
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry(), 70, &mut r)).unwrap();
    assert_eq!(cache.snapshot().copies, Moves::default());
    // The whole open block of each group travels: rows of both sides of two heads.
    cache.fork(id).unwrap();
    let done = cache.snapshot().copies.done;
    assert_eq!((done.count(), done.sum), (2, ((2 + 1) * 2 * 2 * 6 * 64 * 2) * 2));
    assert!(cache.snapshot().waits.count() >= 2, "a copy is waited for");
    let before = cache.snapshot().copies;
    let mut failed = 0;
    for nth in 1.. {
        arm(Some(nth));
        let forked = cache.fork(id);
        let (point, _) = (fired(), arm(None));
        match forked {
            Ok(fork) => cache.release(fork).unwrap(),
            Err(_) => failed += u64::from(point.is_some_and(|point| point.starts_with("device.copy"))),
        }
        if point.is_none() {
            break;
        }
    }
    let copies = cache.snapshot().copies;
    assert!(failed > 0 && copies.failed == failed && copies.refused == before.refused, "{failed}: {copies:?}");
    assert!(copies.done.count() > before.done.count());
    // A sequence too many is copied, and then refused.
    for _ in 0..3 {
        cache.create().unwrap();
    }
    assert!(matches!(cache.fork(id), Err(Error::TooManySequences { .. })));
}
