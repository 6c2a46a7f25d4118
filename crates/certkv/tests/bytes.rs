//! Bytes: what the packed pages cost a token, what the cache says it uses, and that it stays within what it reserved.
mod common;

use certkv::seal::{Seal, SealError};
use certkv::{Cache, Config, DEFAULT_FORMAT, Geometry, Policy, RecordLayout, SequenceId};
use certkv_testkit::generate::Rng;
use common::{fill, random_queries, random_rows, step};

fn cache(geometry: Geometry, format: &str, tokens: usize) -> Cache {
    Cache::new(Config { max_sequences: 4, ..Config::new(geometry, tokens).with_format(format.parse().unwrap()) })
        .unwrap()
}

fn filled(cache: &Cache, tokens: usize, r: &mut Rng) -> SequenceId {
    let sequence = cache.create().unwrap();
    fill(cache, sequence, &random_rows(cache.geometry(), tokens, r)).unwrap();
    sequence
}

#[test]
fn packed_bytes_are_within_a_percent_of_the_layout() {
    let mut worst: f64 = 0.0;
    // The seal is shared by the heads of a page: records half as long as the default's need more of them.
    let cases = [
        (DEFAULT_FORMAT, 2),
        (DEFAULT_FORMAT, 8),
        ("k8-v6g64-b64", 2),
        ("k8-v4g32-b64", 2),
        ("k8-v8g32-b32", 2),
        ("t4-v4g32-b64", 2),
        ("t4-v4g32-b32", 8),
    ];
    let (mut executed, mut planted, mut caught) = (0, 0, 0);
    for (format, kv_heads) in cases {
        let geometry = Geometry::new(2, kv_heads, kv_heads, 128).unwrap();
        let cache = cache(geometry, format, 256);
        let mut r = Rng::new(1);
        filled(&cache, 192, &mut r);
        let layout = RecordLayout::new(&geometry, format.parse().unwrap()).unwrap();
        let heads = (geometry.layers * kv_heads) as f64;
        let net = layout.net_bytes() as f64 / layout.tokens() as f64;
        let stored = cache.memory().packed as f64 / 192.0 / heads;
        let over = stored / net - 1.0;
        println!(
            "{format}, {kv_heads} heads: {stored:.2} bytes a token and head, net {net:.2}, {:.2}% over",
            100.0 * over
        );
        assert!((0.0..=0.01).contains(&over), "{format} with {kv_heads} heads");
        worst = worst.max(over);
        executed += 1;
        // The control: pages of 32 tokens with a seal of their own for every record would be seen.
        planted += u32::from(layout.tokens() == 32);
        caught += u32::from(layout.tokens() == 32 && stored + 64.0 / 32.0 > net * 1.01);
    }
    println!(
        "GATE bytes executed={executed} failed=0 controls={caught}/{planted} seed=0x1; worst {:.2}% over",
        100.0 * worst
    );
    assert!(caught == planted && planted > 0);
}

/// What is beside the codes of a long sequence of `format`, as a share of them: block tables, what heads remember of blocks, seals.
fn beside(format: &str) -> f64 {
    let geometry = Geometry::new(2, 32, 8, 128).unwrap();
    let cache = cache(geometry, format, 4096);
    let mut r = Rng::new(3);
    let id = filled(&cache, 4032, &mut r);
    // A certified step, after which heads remember bounds of every block.
    for _ in 0..2 {
        let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
        step(&cache, id, &rows, &queries, Policy::default()).unwrap();
    }
    let layout = cache.layout(0).unwrap();
    let seals = geometry.layers * (4032 / layout.tokens()) * 64;
    let memory = cache.memory();
    let (tables, codes) = (memory.tables, memory.packed - seals);
    let share = (tables + seals) as f64 / codes as f64;
    println!("{format}: tables {tables}, seals {seals}, codes {codes}: {:.2}%", 100.0 * share);
    share
}

#[test]
fn tables_and_headers_are_within_a_percent_of_packed_bytes() {
    let formats = [DEFAULT_FORMAT, "k8-v4g64-b32", "tq4-tq4-b64", "k4-v4g64-b64", "tq3-tq3-b64", "tq2-tq2-b64"];
    let worst = formats.iter().map(|format| beside(format)).fold(0.0, f64::max);
    // The control: blocks of 16 tokens have as much beside a quarter of the codes.
    let caught = u32::from(beside("tq2-tq2-b16") > 0.01);
    let failed = u32::from(worst > 0.01);
    println!(
        "GATE tables executed={} failed={failed} controls={caught}/1 seed=0x3; worst {:.2}%",
        formats.len(),
        100.0 * worst
    );
    assert!(worst <= 0.01 && caught == 1, "{worst}");
}

#[test]
fn memory_counts_pages_by_tier() {
    let geometry = Geometry::new(3, 4, 2, 128).unwrap();
    let cache = cache(geometry, "k8-v4g32-b32", 512);
    let mut r = Rng::new(2);
    assert_eq!(cache.memory(), Default::default());
    let a = filled(&cache, 100, &mut r);
    let layout = cache.layout(0).unwrap().clone();
    // Slots are multiples of 64 bytes; 3 full blocks and an open one, in every layer.
    let page = (64 + 2 * layout.bytes).next_multiple_of(64);
    let original = 2 * 2 * layout.original_side_bytes();
    let m = cache.memory();
    assert_eq!((m.packed, m.host, m.scratch, m.tokens), (3 * 3 * page, 4 * 3 * original, 3 * original, 100));
    assert!(m.tables > 0 && m.device() == m.packed + m.scratch + m.tables);
    // What is stored is what is counted.
    let stored: usize = (0..3)
        .flat_map(|layer| (0..3).map(move |b| (layer, b)))
        .map(|(l, b)| cache.packed_page(a, l, b).unwrap().len())
        .sum();
    assert_eq!(stored, m.packed);

    // A fork shares full blocks and copies the open one.
    let b = cache.fork(a).unwrap();
    let forked = cache.memory();
    assert_eq!(
        (forked.packed, forked.host, forked.scratch),
        (m.packed, m.host + 3 * original, m.scratch + 3 * original)
    );
    assert_eq!(forked.tokens, 200);
    // A shared block that is reopened costs its own originals, and codes only once it is full.
    cache.truncate(b, 40).unwrap();
    let cut = cache.memory();
    assert_eq!(
        (cut.packed, cut.host, cut.scratch, cut.tokens),
        (m.packed, m.host + 3 * original, m.scratch + 3 * original, 140)
    );
    cache.release(a).unwrap();
    let left = cache.memory();
    assert_eq!((left.packed, left.host, left.scratch, left.tokens), (3 * page, 2 * 3 * original, 3 * original, 40));
    cache.release(b).unwrap();
    assert_eq!(cache.memory(), Default::default());
}

/// Bytes of sequences are inside what was reserved for their class, however full the cache and whatever it remembers.
#[test]
fn use_stays_within_what_was_reserved() {
    for (format, tolerance) in [("t2-v3g32-b16", 0.001), ("k8-v4g32-b32", 0.01)] {
        let geometry = Geometry::new(2, 8, 2, 64).unwrap();
        let cache = cache(geometry, format, 400);
        let mut r = Rng::new(3);
        let (reserved, _) = cache.reserved();
        let within = |what: &str| {
            let m = cache.memory();
            let used = [m.packed, m.scratch, m.tables, m.host];
            assert!(used.iter().zip(&reserved).all(|(u, r)| u <= r), "{what}: in use {used:?}, reserved {reserved:?}");
        };
        let policy = Policy::Certified(certkv::Certified { tol_rel: tolerance, ..Default::default() });
        let a = filled(&cache, 250, &mut r);
        let all = [a, cache.fork(a).unwrap(), cache.fork(a).unwrap(), cache.fork(a).unwrap()];
        within("forked");
        for round in 0..12 {
            for id in all {
                let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
                step(&cache, id, &rows, &queries, policy).unwrap();
            }
            within(&format!("{format}, round {round}"));
        }
        assert_eq!(cache.reserved().0, reserved, "what is reserved does not grow");
    }
}

#[test]
fn every_packed_page_is_sealed_as_what_it_is() {
    let geometry = Geometry::new(3, 4, 2, 128).unwrap();
    let cache = cache(geometry, "k8-v4g32-b32", 512);
    let mut r = Rng::new(4);
    let (mut executed, mut planted, mut caught) = (0, 0, 0);
    // One chunk, and the same length token by token: two ways to fill a block.
    let whole = filled(&cache, 130, &mut r);
    let single = cache.create().unwrap();
    for _ in 0..70 {
        fill(&cache, single, &random_rows(&geometry, 1, &mut r)).unwrap();
    }
    let forked = cache.fork(whole).unwrap();
    cache.truncate(forked, 50).unwrap();
    fill(&cache, forked, &random_rows(&geometry, 60, &mut r)).unwrap();
    let mut ids = std::collections::HashSet::new();
    let mut writers = std::collections::HashMap::new();
    for (id, blocks) in [(whole, 4), (single, 2), (forked, 3)] {
        for layer in 0..geometry.layers {
            for block in 0..blocks {
                let mut page = cache.packed_page(id, layer, block).unwrap();
                let seal = Seal::read(&page).unwrap();
                assert_eq!((seal.layer as usize, seal.block as usize, seal.tokens, seal.dim), (layer, block, 32, 128));
                assert_eq!(seal.record_bytes as usize, cache.layout(layer).unwrap().bytes);
                ids.insert((layer, seal.page));
                // The first block of the fork is its parent's.
                let by = if id == forked && block == 0 { whole } else { id };
                assert_eq!(*writers.entry(by).or_insert(seal.writer), seal.writer, "layer {layer}, block {block}");
                executed += 1;
                let at = 64 + r.below(page.len() - 64);
                page[at] ^= 1 << r.below(8);
                planted += 1;
                caught += u32::from(matches!(Seal::read(&page), Err(SealError::Digest { .. })));
            }
        }
    }
    let told: std::collections::HashSet<u32> = writers.values().copied().collect();
    assert_eq!((writers.len(), told.len()), (3, 3), "three sequences have written");
    // The fork shares one block in every layer.
    assert_eq!(ids.len(), 3 * (4 + 2 + 2));
    println!("GATE seals executed={executed} failed=0 controls={caught}/{planted} seed=0x4");
    assert_eq!(caught, planted);
}
