//! Rows of an open block that its sequence does not have: whatever lies there, outputs and bounds have the same bits.
//! (What is not finite cannot be brought there from outside; a test inside the crate writes that, too.)
use crate::common::{Model, fill, random_queries, random_rows, step};
use certkv::{Cache, Certified, Chunk, Config, Dtype, Error, Geometry, Policy};
use certkv_testkit::generate::Rng;

/// Tokens of a block.
const BLOCK: usize = 16;

/// Who left rows behind the sequence's last.
#[derive(Debug, Clone, Copy)]
enum Left {
    Nobody,
    /// A step that was dropped, with rows of one number.
    Dropped(f32),
    /// Another sequence that had the same pages.
    Tenant,
}

/// Bits of outputs and bounds.
fn bits(seed: u64, left: Left) -> Result<Vec<u64>, Error> {
    let geometry = Geometry::new(1, 2, 1, 64)?;
    let cache = Cache::new(Config {
        formats: vec!["k8-v4g32-b16".parse()?],
        max_sequences: 1,
        ..Config::new(geometry, 4 * BLOCK)
    })?;
    if matches!(left, Left::Tenant) {
        // As many as there are tails: one of them is the next sequence's.
        for _ in 0..2 {
            let tenant = cache.create()?;
            fill(&cache, tenant, &random_rows(&geometry, BLOCK - 1, &mut Rng::new(!seed)))?;
            cache.release(tenant)?;
        }
    }
    let mut r = Rng::new(seed);
    let sequence = cache.create()?;
    let len = 1 + r.below(BLOCK - 4);
    fill(&cache, sequence, &random_rows(&geometry, len, &mut r))?;
    if let Left::Dropped(number) = left {
        let tokens = BLOCK - 1 - len;
        let row = vec![Dtype::F16.encode16(number); tokens * geometry.kv_width()];
        let rows = Model { keys: vec![row.clone()], values: vec![row] };
        let mut begun = cache.begin(&[Chunk { sequence, tokens }])?;
        begun.append_bits(0, &rows.keys[0], &rows.values[0])?;
    }
    let mut seen = Vec::new();
    for policy in [Policy::Certified(Certified::default()), Policy::Dense] {
        let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
        for answer in step(&cache, sequence, &rows, &queries, policy)? {
            seen.extend(answer.out.iter().map(|x| u64::from(x.to_bits())));
            seen.extend(answer.certificates.iter().map(|c| c.bound().to_bits()));
        }
    }
    Ok(seen)
}

/// Four fills, one answer.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let text = |e: Error| e.to_string();
    let first = bits(seed, Left::Nobody).map_err(text)?;
    for left in [Left::Dropped(65504.0), Left::Dropped(-1.0), Left::Tenant] {
        if bits(seed, left).map_err(text)? != first {
            return Err(format!("other bits where {left:?} left rows"));
        }
    }
    Ok(8)
}
