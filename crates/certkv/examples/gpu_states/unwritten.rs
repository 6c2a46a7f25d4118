//! B12: rows that nobody wrote take no part. One life again and again, in caches whose memory held something else before.
use super::bench::{
    Answer, Bench, Failure, Tally, bent, decode, different, heads, originals, policies, prefill, prompt, rows,
};
use certkv::Policy;
use certkv::gpu::GpuCache;
use certkv_testkit::generate::Rng;

/// What memory holds before: zeros twice, so that lives which differ by themselves are told; all ones, which are NaN of every type; halves
/// that are NaN; halves that are large and finite.
const PATTERNS: [(&str, u8); 5] =
    [("zeros", 0), ("zeros again", 0), ("ones", 0xff), ("NaN halves", 0x7e), ("large halves", 0x7b)];

/// All that a life said, and the originals of what lived at its ends.
pub(crate) type Said = (Vec<Answer>, Vec<u16>);

pub(crate) fn config(bench: &Bench<'_>, format: &str) -> Result<certkv::gpu::GpuConfig, Failure> {
    let mut config = bench.config(format, 36, 6)?;
    (config.max_context, config.swap_tokens) = (8 * bench.block, 8 * bench.block);
    Ok(config)
}

/// Two lives in one cache, filled before each: prompts of whole and open blocks, rows one by one from nothing, truncations into the open
/// block and before it, a fork, a swap. Open blocks have every number of rows.
fn life(bench: &Bench<'_>, format: &str, policy: Policy, byte: u8) -> Result<Said, Failure> {
    let mut cache = bench.cache(config(bench, format)?)?;
    let mut said = Said::default();
    let mut r = Rng::new(bench.seed);
    for _ in 0..2 {
        cache.poison(byte)?;
        live(bench, &mut cache, policy, &mut r, &mut said)?;
    }
    Ok(said)
}

/// A life that ends with no sequence.
pub(crate) fn live(
    bench: &Bench<'_>,
    cache: &mut GpuCache,
    policy: Policy,
    r: &mut Rng,
    (answers, last): &mut Said,
) -> Result<(), Failure> {
    let (g, block) = (bench.geometry, bench.block);
    let mut ids = Vec::new();
    for tokens in [block - 1, 2 * block + 3, 3 * block, 0] {
        let id = cache.create()?;
        if tokens > 0 {
            prefill(cache, id, tokens, &prompt(&g, tokens, r))?;
        }
        ids.push(id);
    }
    for i in 0..block + 6 {
        if i == block / 3 {
            ids.push(cache.create()?);
        }
        if i == block / 4 {
            ids.push(cache.fork(ids[1])?);
        }
        if i == block / 2 {
            cache.swap_out(ids[2])?;
            cache.swap_in(ids[2])?;
        }
        if i % 6 == 5 {
            // The fourth goes through all lengths.
            let at = [0, 1, 2][r.below(3)];
            let len = cache.len(ids[at])?;
            let back = 1 + r.below(if i % 12 == 5 { 3 } else { block });
            cache.truncate(ids[at], len.saturating_sub(back))?;
        }
        let rows = rows(&g, ids.len(), r);
        answers.extend(decode(cache, &ids, &rows, policy, true)?);
    }
    for id in ids {
        last.extend(originals(cache, id)?);
        cache.release(id)?;
    }
    Ok(())
}

/// Written rows overwritten, with small finite numbers: the fill reaches what is read, and the comparison sees it.
fn overwritten(bench: &Bench<'_>, format: &str, policy: Policy, tally: &mut Tally) -> Result<(), Failure> {
    let g = bench.geometry;
    let mut said = Vec::new();
    for late in [false, true] {
        let (mut cache, mut r) = (bench.cache(config(bench, format)?)?, Rng::new(bench.seed));
        let tokens = bench.block + bench.block / 2;
        let id = cache.create()?;
        prefill(&mut cache, id, tokens, &prompt(&g, tokens, &mut r))?;
        cache.synchronize()?;
        if late {
            cache.poison(0x11)?;
        }
        let answers = decode(&mut cache, &[id], &rows(&g, 1, &mut r), policy, true)?;
        said.push((answers, originals(&mut cache, id)?));
    }
    tally.control(said[0].1 != said[1].1);
    if !bench.stubs {
        tally.control(different(&said[0].0, &said[1].0, &g) > 0);
    }
    Ok(())
}

pub(crate) fn run(bench: &Bench<'_>) -> Result<bool, Failure> {
    let (mut all, g) = (true, bench.geometry);
    for format in bench.formats {
        for (name, policy) in policies() {
            let (want, rows) = life(bench, format, policy, PATTERNS[0].1)?;
            let mut tally = Tally::default();
            let refused = want.iter().filter(|answer| matches!(answer, Answer::Refused(_))).count();
            if refused > 0 {
                println!("WRONG {format} {name}: {refused} layers without an answer");
            }
            tally.failed += refused;
            for (pattern, byte) in &PATTERNS[1..] {
                let (got, others) = life(bench, format, policy, *byte)?;
                let wrong = different(&want, &got, &g) + usize::from(rows != others);
                if wrong > 0 {
                    println!("WRONG {format} {name}: {wrong} heads differ behind {pattern}");
                }
                tally.executed += heads(&got, &g);
                tally.failed += wrong;
            }
            tally.control(different(&want, &bent(&want), &g) == 1);
            overwritten(bench, format, policy, &mut tally)?;
            all &= tally.gate(&format!("unwritten-{format}-{name}"), bench.seed);
        }
    }
    Ok(all)
}
