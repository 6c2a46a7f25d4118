//! Sequences of one step: whatever the others hold, outputs and bounds of one have the same bits.
use crate::common::{Answer, Model, fill, random_queries, random_rows};
use certkv::{Cache, Certified, Chunk, Config, Dtype, Error, Geometry, Policy, SequenceId};
use certkv_testkit::generate::Rng;

/// Tokens of a block.
const BLOCK: usize = 16;

/// Rows of the sequences beside it.
#[derive(Debug, Clone, Copy)]
enum Beside {
    /// All of one number.
    Number(f32),
    /// Random ones.
    Rows(u64),
}

impl Beside {
    fn rows(self, geometry: &Geometry, tokens: usize) -> Model {
        match self {
            Self::Rows(seed) => random_rows(geometry, tokens, &mut Rng::new(seed)),
            Self::Number(number) => {
                let row = vec![Dtype::F16.encode16(number); tokens * geometry.kv_width()];
                Model { keys: vec![row.clone()], values: vec![row] }
            }
        }
    }
}

/// Bits of what the middle one of three sequences is answered.
fn bits(seed: u64, beside: Beside) -> Result<Vec<u64>, Error> {
    let geometry = Geometry::new(1, 2, 1, 64)?;
    let config = Config { max_sequences: 3, ..Config::new(geometry, 12 * BLOCK) };
    let cache = Cache::new(config.with_format("k8-v4g32-b16".parse()?))?;
    let mut r = Rng::new(seed);
    let lens = [(); 3].map(|()| 1 + r.below(3 * BLOCK));
    let mut ids: Vec<SequenceId> = Vec::new();
    for (i, len) in lens.into_iter().enumerate() {
        let rows = if i == 1 { random_rows(&geometry, len, &mut r) } else { beside.rows(&geometry, len) };
        ids.push(cache.create()?);
        fill(&cache, ids[i], &rows)?;
    }
    let chunks: Vec<Chunk> = ids.iter().map(|sequence| Chunk { sequence: *sequence, tokens: 1 }).collect();
    let (width, q) = (geometry.kv_width(), geometry.q_width());
    let mut seen = Vec::new();
    for policy in [Policy::Certified(Certified::default()), Policy::Packed, Policy::Dense] {
        let (mut rows, own) = (beside.rows(&geometry, 3), random_rows(&geometry, 1, &mut r));
        for (all, own) in [(&mut rows.keys[0], &own.keys[0]), (&mut rows.values[0], &own.values[0])] {
            all[width..2 * width].copy_from_slice(own);
        }
        let mut queries = vec![0.25; 3 * q];
        queries[q..2 * q].copy_from_slice(&random_queries(&geometry, 1, &mut r));
        let mut step = cache.begin_with(&chunks, policy)?;
        step.append_bits(0, &rows.keys[0], &rows.values[0])?;
        let mut answer = Answer::new(&geometry, 3);
        step.attend(0, &queries, &mut answer.out, &mut answer.certificates)?;
        step.finish()?;
        seen.extend(answer.out[q..2 * q].iter().map(|x| u64::from(x.to_bits())));
        let heads = geometry.q_heads;
        seen.extend(answer.certificates[heads..2 * heads].iter().map(|c| c.bound().to_bits()));
    }
    Ok(seen)
}

/// Four kinds of neighbours, one answer.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let text = |e: Error| e.to_string();
    let first = bits(seed, Beside::Number(0.0)).map_err(text)?;
    for beside in [Beside::Number(65504.0), Beside::Number(-1.0), Beside::Rows(!seed)] {
        if bits(seed, beside).map_err(text)? != first {
            return Err(format!("other bits beside {beside:?}"));
        }
    }
    Ok(12)
}
