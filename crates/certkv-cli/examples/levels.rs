//! SmartKV beside one width for all blocks, at equal bytes, on the reference model: the error of outputs from codes alone, and the bytes
//! that a certified step reads. Every cache is given the same rows and queries: those of the model over exact attention.
//!
//! `levels [PROMPT] [STEPS] [FIRST] [FORMAT,...]`: bytes of the evaluation text from `FIRST` on, and the levels; 2048, 256, 0 and four levels
//! of 8, 4, 3 and 2 bits if not given. Beside SmartKV is each level but the first and the last for all blocks.
use certkv::{Cache, Certified, Chunk, Config, Geometry, Level, Policy, RecordLayout, SequenceId, SmartKv};
use certkv_cli::assets;
use certkv_cli::model::{self, Attention, AttentionError, Llama, Pass, Rows};
use std::error::Error;

const LADDER: &str = "t8-v8g64-b64,t4-v4g64-b64,t3-v3g64-b64,t2-v2g64-b64";
const TOLERANCE: f64 = 0.05;

/// What one cache came to.
struct Contender {
    name: String,
    cache: Cache,
    sequence: SequenceId,
    /// Relative error of every head of every step.
    errors: Vec<f64>,
    /// Bytes read by decode steps, of KV heads and layers, and how many of those there were.
    read: [u64; 2],
    /// Bytes of packed pages at the end of each step, by token of full blocks.
    stored: Vec<f64>,
    changed: usize,
}

impl Contender {
    fn new(name: String, config: Config) -> Result<Self, Box<dyn Error>> {
        let cache = Cache::new(config)?;
        let sequence = cache.create()?;
        Ok(Self { name, cache, sequence, errors: Vec::new(), read: [0; 2], stored: Vec::new(), changed: 0 })
    }

    /// Bytes of codes that a token of a full block has in one layer, all KV heads together.
    fn bytes(&self) -> Result<f64, certkv::Error> {
        let (layers, blocks) = (self.cache.geometry().layers, self.cache.len(self.sequence)? / 64);
        let mut sum = 0;
        for (layer, block) in (0..layers).flat_map(|layer| (0..blocks).map(move |block| (layer, block))) {
            sum += self.cache.packed_page(self.sequence, layer, block)?.len();
        }
        Ok(sum as f64 / (layers * blocks.max(1) * 64) as f64)
    }
}

/// All caches; the first is dense and answers the model.
struct All {
    contenders: Vec<Contender>,
    length: usize,
}

struct Chunks<'a> {
    steps: Vec<certkv::Step<'a>>,
    seen: Vec<Seen<'a>>,
    length: &'a mut usize,
    tokens: usize,
    heads: usize,
}

/// Where a contender's figures go.
struct Seen<'a> {
    errors: &'a mut Vec<f64>,
    read: &'a mut [u64; 2],
}

fn refused(error: certkv::Error) -> AttentionError {
    AttentionError::Cache(Box::new(error))
}

impl Attention for All {
    fn length(&self) -> usize {
        self.length
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        let (mut steps, mut seen) = (Vec::new(), Vec::new());
        let heads = self.contenders[0].cache.geometry().q_heads;
        for Contender { cache, sequence, errors, read, .. } in &mut self.contenders {
            steps.push(cache.begin(&[Chunk { sequence: *sequence, tokens }]).map_err(refused)?);
            seen.push(Seen { errors, read });
        }
        Ok(Box::new(Chunks { steps, seen, length: &mut self.length, tokens, heads }))
    }
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

impl Pass for Chunks<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        for (number, (step, seen)) in self.steps.iter_mut().zip(&mut self.seen).enumerate() {
            step.append(layer, k, v).map_err(refused)?;
            if number == 0 {
                step.attend(layer, q, out, &mut []).map_err(refused)?;
            } else if self.tokens == 1 {
                let mut own = vec![0.0; out.len()];
                let mut found = vec![certkv::Certificate::default(); self.heads];
                step.attend(layer, q, &mut own, &mut found).map_err(refused)?;
                let dim = out.len() / self.heads;
                for (a, b) in out.chunks_exact(dim).zip(own.chunks_exact(dim)) {
                    let off = norm(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
                    seen.errors.push(off / norm(a.iter().map(|a| f64::from(*a))).max(f64::MIN_POSITIVE));
                }
                // Query heads of a KV head share what was read.
                seen.read[0] += found.iter().map(|c| c.bytes.packed + c.bytes.scratch + c.bytes.host).sum::<u64>();
                seen.read[1] += self.heads as u64;
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

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ladder: Vec<&str> = arguments.get(3).map_or(LADDER, |given| given).split(',').collect();
    let mut numbers = arguments.iter().map(|a| a.parse::<usize>());
    let mut next = |default| numbers.next().transpose().map(|n| n.unwrap_or(default));
    let (prompt, steps, first) = (next(2048)?, next(256)?, next(0)?);
    let root = assets::locate(None)?;
    let model = Llama::load(&root.join("ref-d128"))?;
    let text = std::fs::read(root.join("eval/text.bin"))?;
    let text = text.get(first..first + prompt + steps).ok_or("the text is shorter than that")?;
    let tokens = model.config().encode(text);

    let m: &model::Config = model.config();
    let geometry = Geometry::new(m.layers, m.heads, m.kv_heads, m.head_dim)?;
    let base = || Config { threads: 2, ..Config::new(geometry, tokens.len() + 64) };
    let page = |format: &str| -> Result<f64, Box<dyn Error>> {
        let layout = RecordLayout::new(&geometry, format.parse()?)?;
        Ok((64 + m.kv_heads * layout.bytes) as f64 / 64.0)
    };
    let room = tokens.len() + 64;
    let levels = || -> Result<Vec<Level>, Box<dyn Error>> {
        ladder.iter().map(|f| Ok(Level { format: f.parse()?, tokens: room })).collect()
    };
    let certified = Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() });
    let mut contenders = vec![Contender::new("dense".into(), Config { policy: Policy::Dense, ..base() })?];
    for (policy, name) in [(Policy::Packed, "packed"), (certified, "certified")] {
        for format in ladder.iter().take(ladder.len() - 1).skip(1).copied() {
            let one = base().with_format(format.parse()?);
            contenders.push(Contender::new(format!("{name} {format}"), Config { policy, ..one })?);
            let budget = page(format)?;
            let control = Some(SmartKv::new(budget));
            let many = Config { policy, control, ..base().with_levels(levels()?) };
            contenders.push(Contender::new(format!("{name} SmartKV within {budget:.0}"), many)?);
        }
    }
    let mut all = All { contenders, length: 0 };
    let (prompt, rest) = tokens.split_at(prompt);
    model.prefill(prompt, &mut all, |_| ())?;
    for token in rest {
        model.forward(&[*token], &mut all, Rows::None)?;
        for contender in all.contenders.iter_mut().skip(1) {
            contender.changed += contender.cache.control(contender.sequence)?.changed;
            contender.stored.push(contender.bytes()?);
        }
    }
    println!("prompt {} tokens, {} steps, text from {first}", prompt.len(), rest.len());
    for c in all.contenders.iter_mut().skip(1) {
        c.errors.sort_by(f64::total_cmp);
        let mean = c.errors.iter().sum::<f64>() / c.errors.len() as f64;
        let high = c.errors[c.errors.len() * 95 / 100];
        let stored = c.stored.iter().sum::<f64>() / c.stored.len() as f64;
        let read = c.read[0] as f64 / c.read[1] as f64 / prompt.len() as f64;
        println!(
            "{:40} stored {stored:6.1} bytes a token and layer; relative error mean {mean:.4}, 95% {high:.4}; read {read:6.1} bytes a prompt \
             token and KV head; {} blocks changed",
            c.name, c.changed
        );
    }
    Ok(())
}
