//! Conversations over a cache that is too small for them.
use crate::common::{Model, random_queries, random_rows, step};
use crate::*;
use certkv::{Cache, Config, Error, Mode, Policy, SequenceId, SimOptions, Window};
use certkv_testkit::generate::Rng;

struct Talk {
    tokens: Vec<u32>,
    rows: Model,
}

impl Talk {
    fn grow(&mut self, n: usize, r: &mut Rng) {
        self.rows.append(&random_rows(&geometry(), n, r));
        let first = self.tokens[self.tokens.len() - 1] + 1;
        self.tokens.extend((0..n as u32).map(|i| first + i));
    }
}

/// Conversations that begin alike, come back, branch and are cut, on a device that runs copies late and checks every access.
#[test]
fn conversations_come_back_under_pressure() {
    let (mut hits, mut short, mut hollowed, mut evicted, mut decoded, mut twins) = (0, 0, 0, 0, 0, 0);
    for seed in 0..8 {
        let mut r = Rng::new(100 + seed);
        let mut window =
            |most: usize| Some(Window { chunk: 40, ..Window::new(1 + r.below(most)).with_sinks(r.below(40)) });
        let windows = match seed % 3 {
            0 => vec![window(60), None, window(30)],
            1 => vec![None, window(50), None],
            _ => vec![window(40); 3],
        };
        let device = SimOptions { mode: if seed < 4 { Mode::Adversarial { seed } } else { Mode::Eager }, check: true };
        let mut config = Config { device, ..config(&windows, 500) };
        (config.scratch_keys, config.scratch_values) = (8, 8);
        config.swap_tokens = 300;
        let cache = Cache::new(config).unwrap();
        // All begin with the same 40 tokens, a chunk, and so with the same centres.
        let system = random_rows(&geometry(), 40, &mut Rng::new(7));
        let mut talks: Vec<Talk> = (0..4u32)
            .map(|p| {
                let mut talk = Talk { tokens: (0..40).collect(), rows: system.clone() };
                talk.grow(10 + r.below(60), &mut r);
                talk.tokens[40..].iter_mut().for_each(|t| *t += 10_000 * p);
                talk
            })
            .collect();
        let allowed = |error: &Error| matches!(error, Error::CapacityExhausted { .. } | Error::TooManySequences { .. });
        let mut live: Vec<(SequenceId, usize, usize)> = Vec::new();
        for _ in 0..150 {
            let p = r.below(talks.len());
            let asked = if r.chance(0.7) { talks[p].tokens.len() } else { 40 + r.below(talks[p].tokens.len() - 40) };
            let peek = cache.find_prefix(&SCOPE, talks[p].tokens[..asked].into()).unwrap();
            match cache.create_from(&SCOPE, talks[p].tokens[..asked].into()) {
                Ok((id, found)) => {
                    assert!(found == peek.found && found <= peek.cached);
                    (hits, short) = (hits + found, short + usize::from(found < peek.cached));
                    // A twin that is appended whole, where there is room for it.
                    if found >= 40
                        && r.chance(0.3)
                        && let Ok(twin) = cache.create()
                    {
                        if append(&cache, twin, &talks[p].rows, 0, found).is_ok() {
                            let (new, queries) =
                                (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
                            let fork = cache.fork(id);
                            let answers = [fork, Ok(twin)].map(|id| {
                                id.and_then(|id| {
                                    let answers = step(&cache, id, &new, &queries, Policy::default());
                                    if id != twin {
                                        cache.release(id).unwrap();
                                    }
                                    answers
                                })
                            });
                            if let [Ok(a), Ok(b)] = &answers {
                                assert!(alike(a, b), "seed {seed}: another sequence than its twin");
                                let mut model = part(&talks[p].rows, 0..found);
                                model.append(&new);
                                assert_eq!(faults(&model, &windows, &queries, a), 0);
                                twins += 1;
                            }
                        }
                        cache.release(twin).unwrap();
                    }
                    match append(&cache, id, &talks[p].rows, found, asked) {
                        Ok(()) => live.push((id, p, asked)),
                        Err(error) => {
                            assert!(allowed(&error), "{error}");
                            cache.release(id).unwrap();
                        }
                    }
                }
                Err(error) => assert!(allowed(&error), "{error}"),
            }
            if !live.is_empty() {
                let at = r.below(live.len());
                let (id, p, len) = live[at];
                match r.below(6) {
                    // The next turn, if this is the newest of it.
                    0 | 1 if len == talks[p].tokens.len() && len < 300 => {
                        let before = (talks[p].tokens.len(), talks[p].rows.clone());
                        talks[p].grow(1 + r.below(40), &mut r);
                        let end = talks[p].tokens.len();
                        match append(&cache, id, &talks[p].rows, len, end) {
                            Ok(()) => live[at].2 = end,
                            Err(error) => {
                                assert!(allowed(&error), "{error}");
                                talks[p].tokens.truncate(before.0);
                                talks[p].rows = before.1;
                                let there = cache.len(id).unwrap();
                                live[at].2 = there.min(before.0);
                                if there > before.0 {
                                    cache.release(id).unwrap();
                                    live.swap_remove(at);
                                }
                            }
                        }
                    }
                    2 => {
                        let to = r.below(len + 1);
                        match cache.truncate(id, to) {
                            Ok(()) => live[at].2 = to,
                            Err(error) => {
                                assert!(allowed(&error) || matches!(error, Error::WindowPassed { .. }), "{error}")
                            }
                        }
                    }
                    3 => {
                        if let Err(error) = cache.swap_out(id).and_then(|_| cache.swap_in(id)) {
                            assert!(allowed(&error), "{error}");
                            cache.release(id).unwrap();
                            live.swap_remove(at);
                        }
                    }
                    _ => {
                        cache.publish(id, &SCOPE, talks[p].tokens[..len].into()).unwrap();
                    }
                }
            }
            while live.len() > 1 + r.below(3) {
                let (id, p, len) = live.swap_remove(r.below(live.len()));
                let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
                match step(&cache, id, &new, &queries, Policy::default()) {
                    Ok(answers) => {
                        let mut model = part(&talks[p].rows, 0..len);
                        model.append(&new);
                        assert_eq!(faults(&model, &windows, &queries, &answers), 0, "seed {seed}");
                        decoded += 1;
                    }
                    Err(error) => assert!(allowed(&error), "{error}"),
                }
                cache.release(id).unwrap();
            }
            if r.chance(0.05) {
                cache.evict_prefixes(r.below(4)).unwrap();
            }
        }
        for (id, ..) in live.drain(..) {
            cache.release(id).unwrap();
        }
        assert!(cache.memory().tables <= cache.reserved().0[2], "tables take more than was reserved");
        let stats = cache.prefix_stats().unwrap().1;
        (hollowed, evicted) = (hollowed + stats.hollowed, evicted + stats.evicted);
        emptied(&cache);
    }
    println!(
        "{hits} tokens found, {short} look-ups shortened, {hollowed} blocks given up, {evicted} units evicted, {decoded} decoded, {twins} twins"
    );
    assert!(hits > 5000 && short > 20 && hollowed > 20 && evicted > 20 && decoded > 300 && twins > 30);
}
