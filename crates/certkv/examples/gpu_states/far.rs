//! B14: pages behind 2^31 elements and 2^32 bytes of their pool, of records and of originals, hold what they hold in a small cache.
use super::bench::{
    Bench, Failure, Rows, Tally, bent, decode, different, heads, originals, policies, prefill, prompt, rows,
};
use certkv::gpu::{GpuCache, GpuConfig};
use certkv::{Chunk, Geometry, SequenceId};
use certkv_testkit::generate::Rng;
use std::time::Instant;

/// Blocks of a prompt: a whole number, so that pages of both classes are taken alike.
const PROMPT: usize = 4;
/// Blocks that a sequence has room for.
const ROOM: usize = 8;

/// A pool and the page with which each sequence begins, ascending; the first sequence begins at page 0.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pages: usize,
    targets: Vec<usize>,
}

impl Places {
    /// A pool that passes 2^32 bytes of both classes, with sequences around every power that an index of 32 bits may break at, and at the end.
    fn beyond(record_page: usize, original_page: usize) -> Self {
        let pages = (1usize << 32).div_ceil(record_page).max((1usize << 32).div_ceil(original_page)) + 64;
        let edges = [1usize << 31, 1 << 32, 1 << 33].map(|edge| [edge / record_page, edge / original_page]);
        let mut targets: Vec<usize> = edges.into_iter().flatten().map(|page| page + 1).collect();
        targets.extend([PROMPT - 1, pages - 1]);
        targets.retain(|page| *page < pages);
        targets.sort_unstable();
        targets.dedup_by(|b, a| *b - *a < ROOM);
        Self { pages, targets }
    }

    /// A pool that a test has room for.
    pub(crate) fn few() -> Self {
        Self { pages: 96, targets: vec![PROMPT - 1, 40, 95] }
    }
}

fn config(bench: &Bench<'_>, format: &str, pages: usize, sequences: usize) -> Result<GpuConfig, Failure> {
    let mut config = bench.config(format, pages, sequences + 1)?;
    (config.scratch_keys, config.scratch_values) = (1024, 1024);
    Ok(config)
}

/// Takes pages and gives them back, so that the next one taken is `target`: what is freed last is taken first.
fn wind(cache: &mut GpuCache, filler: SequenceId, pages: usize, block: usize) -> Result<(), Failure> {
    if pages > 1 {
        drop(cache.begin(&[Chunk { sequence: filler, tokens: pages * block }])?);
    }
    Ok(())
}

/// Sequences with their prompts, each from its target on where there are targets.
fn begin(
    cache: &mut GpuCache,
    prompts: &[Rows],
    targets: Option<&[usize]>,
    block: usize,
) -> Result<Vec<SequenceId>, Failure> {
    let filler = cache.create()?;
    let mut ids = Vec::new();
    for (i, rows) in prompts.iter().enumerate() {
        if let Some(target) = targets.map(|targets| targets[i]) {
            wind(cache, filler, target + 1 - i * PROMPT, block)?;
        }
        let id = cache.create()?;
        prefill(cache, id, PROMPT * block, rows)?;
        ids.push(id);
    }
    cache.release(filler)?;
    Ok(ids)
}

/// All records of a sequence.
fn records(cache: &GpuCache, id: SequenceId) -> Result<Vec<u8>, Failure> {
    let (blocks, heads) = (cache.places(id)?.iter().filter(|page| page.1.is_some()).count(), cache.geometry().kv_heads);
    let mut all = Vec::new();
    for block in 0..blocks {
        for head in 0..heads {
            all.extend(cache.record_bytes(id, 0, block, head)?);
        }
    }
    Ok(all)
}

/// Highest pages of originals and of records.
fn highest(cache: &GpuCache, ids: &[SequenceId]) -> Result<[usize; 2], Failure> {
    let mut most = [0; 2];
    for id in ids {
        for (host, packed) in cache.places(*id)? {
            most = [most[0].max(host as usize), most[1].max(packed.map_or(0, |page| page as usize))];
        }
    }
    Ok(most)
}

/// Steps, truncations and steps in both caches.
fn compare(
    bench: &Bench<'_>,
    (far, near): (&mut GpuCache, &mut GpuCache),
    (there, here): (&[SequenceId], &[SequenceId]),
    r: &mut Rng,
) -> Result<Tally, Failure> {
    let (g, block, mut tally) = (*far.geometry(), bench.block, Tally::default());
    let steps = 2 * block + 4;
    for i in 0..steps {
        let policy = policies()[i % 3].1;
        let rows = rows(&g, there.len(), r);
        let a = decode(far, there, &rows, policy, false)?;
        let b = decode(near, here, &rows, policy, false)?;
        tally.executed += heads(&a, &g);
        tally.failed += different(&a, &b, &g);
        if i == 0 {
            tally.control(different(&a, &bent(&b), &g) == 1);
        }
        if i == block + block / 2 {
            // Back into a full block: its rows come from the originals.
            for (a, b) in there.iter().zip(here) {
                let len = PROMPT * block - block / 3;
                far.truncate(*a, len)?;
                near.truncate(*b, len)?;
            }
        }
    }
    for (at, (a, b)) in there.iter().zip(here).enumerate() {
        let (rows, want) = (originals(far, *a)?, originals(near, *b)?);
        let (codes, coded) = (records(far, *a)?, records(near, *b)?);
        tally.executed += 2;
        tally.failed += usize::from(rows != want || rows.is_empty()) + usize::from(codes != coded || codes.is_empty());
        if at == 0 && there.len() > 1 {
            tally.control(rows != originals(near, here[1])?);
            if !bench.stubs {
                tally.control(codes != records(near, here[1])?);
            }
        }
    }
    Ok(tally)
}

pub(crate) fn run(bench: &Bench<'_>, places: Option<&Places>) -> Result<bool, Failure> {
    let old = bench.geometry;
    let geometry = Geometry { store: old.store, ..Geometry::new(1, old.q_heads, old.kv_heads, old.head_dim)? };
    let bench = Bench { geometry, ..*bench };
    let mut all = true;
    for format in bench.formats {
        let mut r = Rng::new(bench.seed);
        let mut near = bench.cache(config(&bench, format, 10 * ROOM, 10)?)?;
        let record_page = geometry.kv_heads * near.layouts()[0].bytes;
        let original_page = 4 * geometry.kv_heads * bench.block * geometry.head_dim;
        let places = places.cloned().unwrap_or_else(|| Places::beyond(record_page, original_page));
        let targets = &places.targets[..];
        let start = Instant::now();
        let mut far = bench.cache(config(&bench, format, places.pages, targets.len())?)?;
        println!(
            "{format}: {} pages, {:.2} GB of records, {:.2} GB of originals, taken in {:.2} s; sequences from pages {targets:?}",
            places.pages,
            (places.pages * record_page) as f64 * 1e-9,
            (places.pages * original_page) as f64 * 1e-9,
            start.elapsed().as_secs_f64()
        );
        // What is written elsewhere leaves this behind; records may have gaps that nobody writes.
        let fill = Instant::now();
        near.poison(0xa5)?;
        far.poison(0xa5)?;
        println!("filled in {:.2} s", fill.elapsed().as_secs_f64());
        let prompts: Vec<Rows> = targets.iter().map(|_| prompt(&geometry, PROMPT * bench.block, &mut r)).collect();
        let there = begin(&mut far, &prompts, Some(targets), bench.block)?;
        let here = begin(&mut near, &prompts, None, bench.block)?;
        let most = highest(&far, &there)?;
        let (last, want) = (places.pages - 1, targets.iter().filter(|page| **page < places.pages).count());
        let mut tally = compare(&bench, (&mut far, &mut near), (&there, &here), &mut r)?;
        // Pages at the end were used, and a sequence begins where it was to begin.
        let met = there.iter().zip(targets).filter(|(id, target)| {
            let first = far.places(**id).ok().and_then(|blocks| blocks.first().copied());
            first.is_some_and(|(host, packed)| {
                host as usize == **target && packed.is_some_and(|page| page as usize == **target)
            })
        });
        let met = met.count();
        if most != [last; 2] || met != want {
            println!(
                "WRONG {format}: {met} of {want} sequences where they were to be, highest pages {most:?} of {last}"
            );
            tally.failed += 1;
        }
        for id in there {
            far.release(id)?;
        }
        tally.failed += far.live_pages();
        all &= tally.gate(&format!("far-pages-{format}"), bench.seed);
    }
    Ok(all)
}
