//! `GpuConfig::erase`: what sequences leave is zero where nobody holds anything, no bit of an answer changes for it, and what a release costs.
use super::bench::{Bench, Failure, Tally, different, heads, policies, prefill, prompt};
use super::unwritten::{Said, config, live};
use certkv_testkit::generate::Rng;
use std::time::Instant;

pub(crate) fn run(bench: &Bench<'_>) -> Result<bool, Failure> {
    let (mut all, g) = (true, bench.geometry);
    for format in bench.formats {
        for (name, policy) in policies() {
            let (mut said, mut tally) = ([Said::default(), Said::default()], Tally::default());
            for (said, erase) in said.iter_mut().zip([false, true]) {
                let mut cache = bench.cache(certkv::gpu::GpuConfig { erase, ..config(bench, format)? })?;
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
