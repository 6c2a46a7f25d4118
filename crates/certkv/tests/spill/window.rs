//! Layers with windows beside layers whose originals spill: those of the former stay in host memory, and nothing shows.
use crate::common::{Answer, Model, fill, random_queries, random_rows, step};
use crate::life::{config, geometry, left_behind, spilling};
use certkv::store::MemoryStore;
use certkv::{Cache, Config, Error, Mode, Policy, SaveScope, SequenceId, Side, SimOptions, Window};
use certkv_testkit::generate::Rng;
use std::sync::Arc;

const SAVED: SaveScope<'_> = SaveScope { model: b"model", key: None };

/// The first four layers see a window, the last three everything.
fn with_windows(config: Config) -> Config {
    let window = Window { chunk: 64, ..Window::new(40).with_sinks(5) };
    let windows = [0, 0, 0, 0, 1, 1, 1].map(|i| [Some(window), None][i]);
    Config { windows: windows.into(), prefixes: None, ..config }
}

/// Steps, chunks, forks, cuts, swaps and files of up to three sequences.
fn life(cache: &Cache, seed: u64) -> Vec<Answer> {
    let (g, mut r, mut answers) = (geometry(), Rng::new(seed), Vec::new());
    let mut live: Vec<(SequenceId, Model)> = Vec::new();
    for _ in 0..160 {
        let kind = if live.is_empty() { 0 } else { r.below(16) };
        let at = r.below(live.len().max(1));
        match kind {
            0 if live.len() < 3 => {
                let (id, rows) = (cache.create().unwrap(), random_rows(&g, 60, &mut r));
                fill(cache, id, &rows).unwrap();
                live.push((id, rows));
            }
            1 if live.len() < 3 => {
                let fork = cache.fork(live[at].0).unwrap();
                live.push((fork, live[at].1.clone()));
            }
            2 => {
                let len = live[at].1.len(&g) - r.below(20);
                match cache.truncate(live[at].0, len) {
                    Ok(()) => live[at].1.truncate(&g, len),
                    Err(Error::WindowPassed { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            3 if live.len() > 1 => cache.release(live.swap_remove(at).0).unwrap(),
            4 => {
                cache.swap_out(live[at].0).unwrap();
                cache.swap_in(live[at].0).unwrap();
            }
            5 if live.len() < 3 => {
                let mut file = Vec::new();
                cache.save(live[at].0, &SAVED, &mut file).unwrap();
                live.push((cache.restore(&SAVED, &mut &file[..]).unwrap(), live[at].1.clone()));
            }
            _ if live[at].1.len(&g) < 180 => {
                let rows = random_rows(&g, if kind < 8 { 1 + r.below(30) } else { 1 }, &mut r);
                let queries = random_queries(&g, rows.len(&g), &mut r);
                let policy = [Policy::default(), Policy::Dense, Policy::Packed][r.below(3)];
                answers.extend(step(cache, live[at].0, &rows, &queries, policy).unwrap());
                live[at].1.append(&rows);
            }
            _ => {}
        }
    }
    for (id, model) in live {
        assert_eq!(cache.originals(id, 6, 0, Side::Value).unwrap(), model.side(&g, 6, 0, Side::Value));
        cache.release(id).unwrap();
    }
    answers
}

#[test]
fn layers_with_windows_keep_their_originals_and_others_spill() {
    let device = SimOptions { mode: Mode::Eager, check: true };
    let (mut executed, mut failed, mut spilled) = (0, 0, 0);
    for seed in 0..4 {
        let plain = Cache::new(with_windows(config(device))).unwrap();
        let cache = Cache::new(with_windows(spilling(device, Arc::new(MemoryStore::new(u64::MAX))))).unwrap();
        let (expected, answers) = (life(&plain, seed), life(&cache, seed));
        let bits = |answer: &Answer| (answer.bits(), format!("{:?}", answer.certificates));
        executed += answers.len();
        failed += answers.iter().zip(&expected).filter(|(a, b)| bits(a) != bits(b)).count();
        assert_eq!(answers.len(), expected.len());
        spilled += cache.snapshot().spills.unwrap().done.count();
        assert_eq!(left_behind(&cache, false), [0; 3], "seed {seed}: pages, frames, records");
        assert_eq!(cache.check_report().findings(), 0, "{:?}", cache.check_report());
    }
    println!("GATE spill-windows executed={executed} failed={failed} controls=0/0 seed=0x0, {spilled} slots spilled");
    assert!(failed == 0 && executed > 1000 && spilled > 50, "{failed} {executed} {spilled}");
}

#[test]
fn where_every_layer_has_a_window_there_is_nothing_to_spill() {
    let all = Config {
        windows: vec![Some(Window::new(40))],
        prefixes: None,
        ..spilling(SimOptions::default(), Arc::new(MemoryStore::new(1)))
    };
    assert!(matches!(Cache::new(all), Err(Error::Config { field: "spill", .. })));
}
