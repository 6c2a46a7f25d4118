//! Caches side by side: each is given the same rows and queries, those of a model over exact attention, and compared with it head by head.
use crate::model::{Attention, AttentionError, Llama, ModelError, Pass, Rows};
use certkv::{Cache, Certificate, Chunk, Config, Controlled, Error, SequenceId, Step};
use std::time::{Duration, Instant};

/// Decode steps between looks at the bytes that pages take.
const LOOK: usize = 16;

/// A cache, and what it came to.
pub struct Contender {
    /// Its name.
    pub name: String,
    cache: Cache,
    sequence: SequenceId,
    block: usize,
    controlled: bool,
    /// KV heads of a layer that have pages and levels of their own, or 1.
    apart: usize,
    /// Relative error of every head of every step.
    pub errors: Vec<f64>,
    /// Bytes read by decode steps, of KV heads and layers, and how many of those there were.
    pub read: [u64; 2],
    /// Bytes of packed pages now and then, by layer and token of full blocks, all KV heads together.
    pub stored: Vec<f64>,
    /// Changes of level of blocks.
    pub changed: u64,
    /// Of these, changes back to the level before the last one.
    pub returned: u64,
    /// Blocks and layers times steps: what could have changed.
    pub held: u64,
    /// Time of decode steps: appends and attention, nothing of the model.
    pub spent: Duration,
    /// Time of each call of the controller between them, the first behind the prompt, and what it did.
    pub calls: Vec<(Duration, Controlled)>,
    /// Level of each block, and the one before, by layer, or by layer and KV head.
    levels: Vec<Vec<[usize; 2]>>,
}

impl Contender {
    /// An empty cache.
    ///
    /// # Errors
    /// What the cache refuses.
    pub fn new(name: impl Into<String>, config: Config) -> Result<Self, Error> {
        let (block, controlled) = (config.formats.first().map_or(1, |f| f.block), config.control.is_some());
        let apart = if config.levels_by_head { config.geometry.kv_heads } else { 1 };
        let cache = Cache::new(config)?;
        let sequence = cache.create()?;
        let levels = vec![Vec::new(); cache.geometry().layers * apart];
        Ok(Self {
            name: name.into(),
            cache,
            sequence,
            block,
            controlled,
            apart,
            errors: Vec::new(),
            read: [0; 2],
            stored: Vec::new(),
            changed: 0,
            returned: 0,
            held: 0,
            spent: Duration::ZERO,
            calls: Vec::new(),
            levels,
        })
    }

    /// Full blocks, all layers together, and all heads that have their own.
    fn blocks(&self) -> Result<Vec<(usize, usize)>, Error> {
        let places = self.cache.geometry().layers * self.apart;
        let blocks = self.cache.len(self.sequence)? / self.block;
        Ok((0..places).flat_map(|place| (0..blocks).map(move |block| (place, block))).collect())
    }

    /// Bytes of codes that a token of a full block has in one layer, all KV heads together.
    fn bytes(&self) -> Result<f64, Error> {
        let (blocks, mut sum) = (self.blocks()?, 0);
        for (place, block) in &blocks {
            let (layer, head) = (place / self.apart, place % self.apart);
            sum += self.cache.packed_page_of(self.sequence, layer, head, *block)?.len();
        }
        Ok((sum * self.apart) as f64 / (blocks.len().max(1) * self.block) as f64)
    }

    /// What the controller does after a step, and which levels changed by it.
    fn control(&mut self) -> Result<(), Error> {
        if !self.controlled {
            return Ok(());
        }
        let start = Instant::now();
        let done = self.cache.control(self.sequence)?;
        self.calls.push((start.elapsed(), done));
        for (place, block) in self.blocks()? {
            let now = self.cache.level_of(self.sequence, place / self.apart, place % self.apart, block)?;
            let known = &mut self.levels[place];
            self.held += 1;
            match known.get_mut(block) {
                None => known.push([now, now]),
                Some([last, before]) if *last != now => {
                    self.changed += 1;
                    self.returned += u64::from(*before == now && *before != *last);
                    (*before, *last) = (*last, now);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Bytes read by a KV head and layer in a decode step, in the mean.
    pub fn read_bytes(&self) -> f64 {
        self.read[0] as f64 / self.read[1].max(1) as f64
    }
}

/// Feeds `tokens` to the model over the first contender, which is dense and answers it; the first `prompt` at once, the others one by one.
/// After each of these every controller decides.
///
/// # Errors
/// What the model or a cache says.
pub fn race(
    model: &Llama,
    tokens: &[u32],
    prompt: usize,
    contenders: Vec<Contender>,
) -> Result<Vec<Contender>, ModelError> {
    let refused = |e| ModelError::Attention(refused(e));
    let mut all = All { contenders, length: 0 };
    let (prompt, rest) = tokens.split_at(prompt.min(tokens.len()));
    model.prefill(prompt, &mut all, |_| ())?;
    for (number, token) in rest.iter().enumerate() {
        model.forward(&[*token], &mut all, Rows::None)?;
        for contender in all.contenders.iter_mut().skip(1) {
            contender.control().map_err(refused)?;
            if number % LOOK == 0 {
                contender.stored.push(contender.bytes().map_err(refused)?);
            }
        }
    }
    Ok(all.contenders)
}

/// All caches.
struct All {
    contenders: Vec<Contender>,
    length: usize,
}

struct Chunks<'a> {
    steps: Vec<Step<'a>>,
    seen: Vec<Seen<'a>>,
    length: &'a mut usize,
    tokens: usize,
    heads: usize,
    group: usize,
}

/// Where a contender's figures go.
struct Seen<'a> {
    errors: &'a mut Vec<f64>,
    read: &'a mut [u64; 2],
    spent: &'a mut Duration,
}

fn refused(error: Error) -> AttentionError {
    AttentionError::Cache(Box::new(error))
}

impl Attention for All {
    fn length(&self) -> usize {
        self.length
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        let (mut steps, mut seen) = (Vec::new(), Vec::new());
        let first = self.contenders.first().ok_or(AttentionError::Order("nobody answers the model"))?;
        let geometry = *first.cache.geometry();
        for Contender { cache, sequence, errors, read, spent, .. } in &mut self.contenders {
            steps.push(cache.begin(&[Chunk { sequence: *sequence, tokens }]).map_err(refused)?);
            seen.push(Seen { errors, read, spent });
        }
        let (heads, group) = (geometry.q_heads, geometry.q_heads / geometry.kv_heads);
        Ok(Box::new(Chunks { steps, seen, length: &mut self.length, tokens, heads, group }))
    }
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

impl Pass for Chunks<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        for (number, (step, seen)) in self.steps.iter_mut().zip(&mut self.seen).enumerate() {
            let start = Instant::now();
            step.append(layer, k, v).map_err(refused)?;
            if number == 0 {
                step.attend(layer, q, out, &mut []).map_err(refused)?;
            } else if self.tokens == 1 {
                let mut own = vec![0.0; out.len()];
                let mut found = vec![Certificate::default(); self.heads];
                step.attend(layer, q, &mut own, &mut found).map_err(refused)?;
                *seen.spent += start.elapsed();
                let dim = out.len() / self.heads;
                for (a, b) in out.chunks_exact(dim).zip(own.chunks_exact(dim)) {
                    let off = norm(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
                    seen.errors.push(off / norm(a.iter().map(|a| f64::from(*a))).max(f64::MIN_POSITIVE));
                }
                // Query heads of a KV head share what was read: the most of their records counts, once.
                for records in found.chunks(self.group) {
                    let bytes = records.iter().map(|c| c.bytes.packed + c.bytes.scratch + c.bytes.host);
                    seen.read[0] += bytes.max().unwrap_or(0);
                    seen.read[1] += 1;
                }
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.steps.into_iter().try_for_each(|step| step.finish().map_err(refused))?;
        *self.length += self.tokens;
        Ok(())
    }
}
