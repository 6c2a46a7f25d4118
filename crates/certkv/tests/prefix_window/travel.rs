//! Units with holes in a store, and what may come back from one.
use crate::common::{random_queries, random_rows, step};
use crate::*;
use certkv::seal::digest;
use certkv::store::{Get, MemoryStore, Outcome, Put, Store, StoreConfig};
use certkv::{Cache, Chunk, Config, Error, Policy, Window};
use certkv_testkit::generate::Rng;
use std::sync::Arc;
use std::time::Duration;

fn store() -> Store {
    Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default()).unwrap()
}

fn outcome(store: &Store) -> Outcome {
    assert!(store.wait_timeout(Duration::from_secs(20)), "the store does not answer");
    let mut done = Vec::new();
    store.drain_completions(&mut done);
    done.remove(0).outcome
}

fn put(store: &Store, puts: Vec<Put>) {
    store.submit_put(puts).unwrap();
    let Outcome::Put(results) = outcome(store) else { panic!("another outcome") };
    assert!(results.iter().all(|(_, result)| result.is_ok()));
}

/// Gets up to the first that is not there.
fn get(store: &Store, wanted: Vec<Get>) -> Vec<Get> {
    if wanted.is_empty() {
        return wanted;
    }
    store.submit_get(wanted).unwrap();
    let Outcome::Get(results) = outcome(store) else { panic!("another outcome") };
    results.into_iter().take_while(|(_, result)| result.is_ok()).map(|(get, _)| get).collect()
}

#[test]
fn units_with_holes_travel() {
    let mut r = Rng::new(4);
    let [one, other] = [600, 500].map(|tokens| Cache::new(config(&windows(), tokens)).unwrap());
    let shelf = store();
    let (tokens, rows) = ((0..230).collect::<Vec<u32>>(), random_rows(&geometry(), 230, &mut r));
    let id = one.create().unwrap();
    append(&one, id, &rows, 0, 230).unwrap();
    publish(&one, id, &tokens);
    one.release(id).unwrap();
    let puts = one.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    let most = one.prefix_unit().unwrap().bytes;
    let sizes: Vec<usize> = puts.iter().map(|put| put.page.len()).collect();
    assert!(sizes.len() == 7 && sizes[2] < sizes[0] && sizes[0] < sizes[6] && sizes[6] <= most, "{sizes:?} of {most}");
    put(&shelf, puts.clone());

    let wanted = |cache: &Cache, to: usize| -> Vec<u32> {
        let gets = cache.missing_prefix(&SCOPE, tokens[..to].into()).unwrap();
        gets.iter().map(|get| get.identity().block).collect()
    };
    let import = |cache: &Cache, to: usize| {
        let gets = get(&shelf, cache.missing_prefix(&SCOPE, tokens[..to].into()).unwrap());
        cache.import_prefix(&SCOPE, tokens[..to].into(), &gets).unwrap()
    };
    // Up to 128 tokens there is no window in the store, nor is there one behind.
    assert_eq!(import(&other, 130), 0);
    assert_eq!(other.find_prefix(&SCOPE, tokens[..130].into()).unwrap().cached, 128);
    assert_eq!(wanted(&other, 130), [2, 3], "the sinks came, but 40 and 20 tokens before 128 did not");
    assert_eq!(import(&other, 230), 224);
    assert_eq!(wanted(&other, 230), Vec::<u32>::new());
    let [here, there] = [&one, &other].map(|cache| cache.create_from(&SCOPE, tokens[..].into()).unwrap().0);
    let mut model = part(&rows, 0..224);
    for _ in 0..30 {
        let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let answers = [(&one, here), (&other, there)]
            .map(|(cache, id)| step(cache, id, &new, &queries, Policy::default()).unwrap());
        model.append(&new);
        assert!(same(&answers[0], &answers[1]));
        assert_eq!(faults(&model, &windows(), &queries, &answers[1]), 0);
    }
    one.release(here).unwrap();
    other.release(there).unwrap();
    // Another window is another model's rows: other names.
    let narrow = [Some(Window::new(39)), None, windows()[2]];
    let stranger = Cache::new(config(&narrow, 500)).unwrap();
    assert_eq!(get(&shelf, stranger.missing_prefix(&SCOPE, tokens[..].into()).unwrap()).len(), 0);
    // Where windows went and units stayed, the store has them still.
    let full = Cache::new(Config { max_sequences: 1, ..config(&windows(), 500) }).unwrap();
    assert_eq!(import(&full, 230), 224);
    let busy = full.create().unwrap();
    append(&full, busy, &random_rows(&geometry(), 160, &mut r), 0, 160).unwrap();
    let tight = full.find_prefix(&SCOPE, tokens[..].into()).unwrap();
    full.release(busy).unwrap();
    if tight.found < 224 {
        assert_eq!((tight.cached, import(&full, 230)), (224, 224));
    }
    [&one, &other, &full].into_iter().for_each(emptied);
}

/// Whoever writes units with right digests can write nonsense: no panic, no page lost, and what is taken is a sequence.
#[test]
fn nonsense_in_units_with_holes_harms_nobody() {
    let mut r = Rng::new(5);
    let cache = Cache::new(config(&windows(), 600)).unwrap();
    let (tokens, rows) = ((0..230).collect::<Vec<u32>>(), random_rows(&geometry(), 230, &mut r));
    let id = cache.create().unwrap();
    append(&cache, id, &rows, 0, 230).unwrap();
    publish(&cache, id, &tokens);
    cache.release(id).unwrap();
    let puts = cache.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    // Centres of three layers, no block without codes; then a word for each of two groups with a window.
    let head = 3 * (8 + 4 * geometry().kv_width()) + 8;
    emptied(&cache);
    let shelf = store();
    put(&shelf, puts.clone());
    let (mut refused, mut taken) = (0, 0);
    for case in 0..1200 {
        let at = r.below(puts.len());
        let mut page = puts[at].page.clone();
        page.truncate(page.len() - 8);
        match case % 4 {
            0 => page[head + 8 * r.below(2)] = r.bits() as u8,
            1 => page[head + 1 + r.below(7)] = 1 << r.below(8),
            2 => page.truncate(r.below(page.len())),
            _ => {
                let byte = r.below(page.len());
                page[byte] ^= 1 << r.below(8);
            }
        }
        let sealed = digest(&page).to_le_bytes();
        page.extend(sealed);
        put(&shelf, vec![Put { page, ..puts[at].clone() }]);
        let gets = get(&shelf, cache.missing_prefix(&SCOPE, tokens[..].into()).unwrap());
        put(&shelf, vec![puts[at].clone()]);
        match cache.import_prefix(&SCOPE, tokens[..].into(), &gets) {
            Ok(_) => {
                taken += 1;
                let (id, _) = cache.create_from(&SCOPE, tokens[..].into()).unwrap();
                let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
                // Whatever it holds, the step ends in an answer or an error.
                let _ = step(&cache, id, &new, &queries, Policy::default());
                cache.release(id).unwrap();
            }
            Err(Error::Save(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        emptied(&cache);
    }
    println!(
        "GATE prefix-window-nonsense executed=1200 failed=0 controls=1/1 seed=0x5 refused={refused} taken={taken}"
    );
    assert!(refused > 300 && taken > 100, "{refused} {taken}");
}

#[test]
fn wrong_calls_are_named() {
    let cache = Cache::new(Config { prefixes: None, ..config(&windows(), 100) }).unwrap();
    assert!(matches!(cache.find_prefix(&SCOPE, (&[1][..]).into()), Err(Error::Config { field: "prefixes", .. })));
    let cache = Cache::new(config(&windows(), 400)).unwrap();
    let id = cache.create().unwrap();
    append(&cache, id, &random_rows(&geometry(), 100, &mut Rng::new(1)), 0, 100).unwrap();
    let long = cache.begin(&[Chunk { sequence: id, tokens: 81 }]).map(drop).unwrap_err();
    assert!(matches!(long, Error::LongChunk { tokens: 81, chunk: 80 }), "{long}");
    let tokens: Vec<u32> = (0..100).collect();
    publish(&cache, id, &tokens);
    // A get from behind a gap is refused.
    let puts = cache.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    cache.release(id).unwrap();
    emptied(&cache);
    let shelf = store();
    put(&shelf, puts);
    let gets = get(&shelf, cache.missing_prefix(&SCOPE, tokens[..].into()).unwrap());
    for wrong in [&gets[1..], &[gets[0].clone(), gets[2].clone()], &[gets[0].clone(), gets[0].clone()]] {
        let refused = cache.import_prefix(&SCOPE, tokens[..].into(), wrong);
        assert!(matches!(refused, Err(Error::Save(_))), "{refused:?}");
        emptied(&cache);
    }
    assert_eq!(cache.import_prefix(&SCOPE, tokens[..].into(), &gets).unwrap(), 96);
    emptied(&cache);
}
