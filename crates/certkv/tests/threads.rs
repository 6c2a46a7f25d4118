//! Several threads on one cache, each with its own sequences: nothing is refused, nothing mixes, and every output has the
//! bits that the same work gives alone.
mod common;

use certkv::{Cache, Config, Error, Geometry, Mode, Policy, SequenceId, SimOptions};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, original_faults, random_queries, random_rows, step};

const THREADS: u64 = 4;

fn cache(threads: usize, mode: Mode) -> Cache {
    let geometry = Geometry::new(2, 4, 2, 64).unwrap();
    let formats = vec!["k8-v4g32-b16".parse().unwrap(), "t4-v4g32-b32".parse().unwrap()];
    let device = SimOptions { mode, check: true };
    Cache::new(Config { formats, device, threads, max_sequences: 12, ..Config::new(geometry, 2400) }).unwrap()
}

/// A life of two sequences: fills, decodes, a fork, cuts. Returns the bits of every output.
fn life(cache: &Cache, seed: u64) -> Result<Vec<Vec<u32>>, Error> {
    let g = *cache.geometry();
    let mut r = Rng::new(seed);
    let mut bits = Vec::new();
    let decode = |id: SequenceId, model: &mut Model, r: &mut Rng, bits: &mut Vec<Vec<u32>>| -> Result<(), Error> {
        let (rows, queries) = (random_rows(&g, 1, r), random_queries(&g, 1, r));
        bits.extend(step(cache, id, &rows, &queries, Policy::default())?.iter().map(Answer::bits));
        model.append(&rows);
        Ok(())
    };
    let (a, mut left) = (cache.create()?, random_rows(&g, 60 + r.below(40), &mut r));
    fill(cache, a, &left)?;
    for _ in 0..6 {
        for _ in 0..4 {
            decode(a, &mut left, &mut r, &mut bits)?;
        }
        let (b, mut right) = (cache.fork(a)?, left.clone());
        decode(b, &mut right, &mut r, &mut bits)?;
        let cut = r.below(right.len(&g));
        cache.truncate(b, cut)?;
        right.truncate(&g, cut);
        decode(b, &mut right, &mut r, &mut bits)?;
        assert_eq!(original_faults(cache, a, &left) + original_faults(cache, b, &right), 0);
        cache.release(b)?;
        let cut = left.len(&g).saturating_sub(r.below(20));
        cache.truncate(a, cut)?;
        left.truncate(&g, cut);
    }
    assert_eq!(original_faults(cache, a, &left), 0);
    cache.release(a)?;
    Ok(bits)
}

fn together(name: &str, mode: Mode) {
    for threads in [1, 2] {
        let shared = cache(threads, mode);
        let lives: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..THREADS)
                .map(|seed| {
                    scope.spawn({
                        let c = &shared;
                        move || life(c, seed)
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        });
        let (mut executed, mut failed) = (0, 0);
        let mut alone = Vec::new();
        for (seed, bits) in lives.into_iter().enumerate() {
            let bits = bits.unwrap_or_else(|e| panic!("thread {seed}: {e}"));
            alone.push(life(&cache(1, Mode::Eager), seed as u64).unwrap());
            executed += bits.len();
            failed += bits.iter().zip(&alone[seed]).filter(|(a, b)| a != b).count();
            assert_eq!(bits.len(), alone[seed].len());
        }
        let caught = u8::from(alone[0] != alone[1]);
        println!("GATE {name} executed={executed} failed={failed} controls={caught}/1 seed=0x0");
        assert!(failed == 0 && caught == 1 && executed > 100);
        assert_eq!(shared.live_pages(), 0);
        let report = shared.check_report();
        assert_eq!(report.findings(), 0, "{report:?}");
    }
}

#[test]
fn threads_share_a_cache() {
    together("threads", Mode::Eager);
}

#[test]
fn threads_share_a_cache_when_copies_run_late() {
    together("threads-adversarial", Mode::Adversarial { seed: 5 });
}
