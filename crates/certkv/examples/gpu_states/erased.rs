//! `GpuConfig::erase`: what sequences leave is zero where nobody holds anything, no bit of an answer changes for it, and what a release costs. And `GpuCache::scrub`: bits that somebody
//! else changed are found, and nothing else is.
use super::bench::{Bench, Failure, Tally, decode, different, heads, policies, prefill, prompt, refines, rows};
use super::unwritten::{Said, config, live};
use certkv::{Fault, Protection, Scrub};
use certkv_testkit::generate::Rng;
use std::time::Instant;

pub(crate) fn run(bench: &Bench<'_>) -> Result<bool, Failure> {
    let (mut all, g) = (true, bench.geometry);
    for format in bench.formats {
        for (name, policy) in policies() {
            let (mut said, mut tally) = ([Said::default(), Said::default()], Tally::default());
            for (said, erase) in said.iter_mut().zip([false, true]) {
                let protection = if refines(format) { Protection::NONE } else { Protection::new(1, bench.block + 3) };
                let config = certkv::gpu::GpuConfig { erase, protection, ..config(bench, format)? };
                let mut cache = bench.cache(config)?;
                let mut r = Rng::new(bench.seed);
                for _ in 0..2 {
                    live(bench, &mut cache, policy, &mut r, said)?;
                    let left = cache.residue()?;
                    if erase {
                        tally.failed += usize::from(left > 0);
                        println!("{format} {name}: {left} bytes left");
                    } else {
                        tally.control(left > 0);
                    }
                }
            }
            let wrong = different(&said[0].0, &said[1].0, &g) + usize::from(said[0].1 != said[1].1);
            if wrong > 0 {
                println!("WRONG {format} {name}: {wrong} heads differ where memory is erased");
            }
            tally.executed += heads(&said[1].0, &g);
            tally.failed += wrong;
            all &= tally.gate(&format!("erased-{format}-{name}"), bench.seed);
        }
        times(bench, format)?;
        all &= watched(bench, format)?;
    }
    Ok(all)
}

/// Milliseconds from the release of a sequence of 64 blocks until the device is idle.
fn times(bench: &Bench<'_>, format: &str) -> Result<(), Failure> {
    const BLOCKS: usize = 64;
    let (g, tokens) = (bench.geometry, BLOCKS * bench.block);
    let mut said = Vec::new();
    for erase in [false, true] {
        let config = certkv::gpu::GpuConfig { erase, ..bench.config(format, BLOCKS + 2, 2)? };
        let mut cache = bench.cache(config)?;
        let mut best = f64::INFINITY;
        for _ in 0..4 {
            let id = cache.create()?;
            prefill(&mut cache, id, tokens, &prompt(&g, tokens, &mut Rng::new(bench.seed)))?;
            cache.synchronize()?;
            let start = Instant::now();
            cache.release(id)?;
            cache.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() * 1e3);
        }
        said.push(format!("{best:.2}"));
    }
    println!("{format}: {tokens} tokens in {} layers are released in {} ms, erased {} ms", g.layers, said[0], said[1]);
    Ok(())
}

/// A life with looks at all of its pages, and bits changed in some.
fn watched(bench: &Bench<'_>, format: &str) -> Result<bool, Failure> {
    const ALL: Scrub = Scrub { pages: usize::MAX, originals: true };
    let (g, block, mut r) = (bench.geometry, bench.block, Rng::new(bench.seed));
    let mut cache = bench.cache(bench.config(format, 40, 4)?)?;
    let (mut tally, mut best, mut pages) = (Tally::default(), f64::INFINITY, 0);
    let (mut ids, mut coded, mut mended) = (Vec::new(), 0, 0);
    for tokens in [4 * block + 3, 9 * block, 2 * block - 1] {
        let id = cache.create()?;
        prefill(&mut cache, id, tokens, &prompt(&g, tokens, &mut r))?;
        ids.push(id);
    }
    ids.push(cache.fork(ids[0])?);
    let [.., (_, certified), _] = policies();
    for step in 0..block {
        decode(&mut cache, &ids, &rows(&g, ids.len(), &mut r), certified, true)?;
        if step % (block / 4) == 0 {
            let start = Instant::now();
            let found = cache.scrub(ALL)?;
            best = best.min(start.elapsed().as_secs_f64() * 1e3);
            pages = found.pages;
            tally.executed += found.pages;
            tally.failed += found.damaged.len();
        }
    }
    let _ = cache.scrub(ALL)?;
    for _ in 0..60 {
        let (id, layer, originals) = (ids[r.below(3)], r.below(g.layers), r.chance(0.5));
        let (of, byte) = (r.below(cache.len(id)? / block), r.below(1 << 20));
        let record = |cache: &certkv::gpu::GpuCache| {
            (0..g.kv_heads).map(|head| cache.record_bytes(id, layer, of, head)).collect::<Result<Vec<_>, _>>()
        };
        let before = record(&cache)?;
        cache.damage(id, (layer, of), byte, originals)?;
        let found = cache.scrub(ALL)?;
        let right = |damage: &certkv::Damage| {
            (damage.layer, damage.block, damage.fault == Fault::Originals) == (layer, of, originals)
        };
        let named = found.damaged.len() == 1 && found.damaged.iter().all(right);
        let is_mended = found.mended == 1 && found.damaged.is_empty() && !originals && record(&cache)? == before;
        tally.control(is_mended || named);
        mended += usize::from(is_mended);
        coded += usize::from(!originals);
        if !is_mended {
            cache.damage(id, (layer, of), byte, originals)?;
        }
        tally.failed += cache.scrub(ALL)?.damaged.len();
    }
    println!("{format}: of {coded} changed bits in records {mended} are as they were");
    // Of what lies between the sections of a record nothing is made again, and the driver of tests codes next to nothing.
    tally.failed += usize::from(mended * 10 < coded * 9 && !bench.stubs);
    println!("{format}: {pages} pages of a layer and their originals are looked at in {best:.2} ms");
    Ok(tally.gate(&format!("scrub-{format}"), bench.seed))
}
