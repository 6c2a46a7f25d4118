//! Who decides levels, beside one width for all blocks, at equal bytes, on the reference model: the error of outputs from codes alone, and the bytes
//! that a certified step reads. Every cache is given the same rows and queries: those of the model over exact attention. `certkv eval --sweep`
//! has the same with intervals, for one ladder; this one takes any. A step's time is that of its appends and attention, with nothing of the model.
//!
//! `levels [PROMPT] [STEPS] [FIRST] [FORMAT,...] [BYTES,...] [heads]`: bytes of the evaluation text from `FIRST` on, and the levels; 2048, 256, 0 and four levels
//! of 8, 4, 3 and 2 bits if not given. Those that need a calibration or codebooks have them of prose that is not measured. SmartKV, retention and the bound's budget have as many bytes as each level but the first and the last for all
//! blocks, which is beside them; or so many bytes a token and layer. With `heads` each KV head of a block has a level of its own, and a seal, which counts.
use certkv::retention::{Gating, Rule};
use certkv::{
    BoundBudget, Certified, Config, Control, Controlled, Format, Geometry, Level, Measure, Policy, RecordLayout,
    Retention, SmartKv,
};
use certkv_cli::{
    assets,
    engine::Calibrations,
    evidence::contenders::{Contender, race},
    evidence::{Setup, Sizes},
    model::{self, Llama},
    progress::Progress,
};
use std::error::Error;
use std::time::Duration;

const LADDER: &str = "t8-v8g64-b64,t4-v4g64-b64,t3-v3g64-b64,t2-v2g64-b64";
const TOLERANCE: f64 = 0.05;

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
    let tokens = model.tokens().encode(text)?;

    let m: &model::Config = model.config();
    let geometry = Geometry::new(m.layers, m.heads, m.kv_heads, m.head_dim)?;
    let formats = ladder.iter().map(|f| f.parse()).collect::<Result<Vec<Format>, _>>()?;
    let calibrations = match formats.iter().any(|format| format.key.is_calibrated()) {
        true => Setup::new(&root.join("ref-d128"), None, Sizes::FULL, 1, 2, Progress::new(true))?.calibrations()?,
        false => Calibrations::default(),
    };
    let base = |formats: &[Format]| {
        let (calibration, codebooks) = calibrations.of(formats);
        Config { threads: 2, calibration, codebooks, ..Config::new(geometry, tokens.len() + 64) }
    };
    let page = |format: &str| -> Result<f64, Box<dyn Error>> {
        let layout = RecordLayout::new(&geometry, format.parse()?)?;
        Ok((64 + m.kv_heads * layout.bytes) as f64 / 64.0)
    };
    let mut budgets = Vec::new();
    let levels_by_head = arguments.get(5).is_some_and(|word| word == "heads");
    match arguments.get(4).filter(|given| !given.is_empty()) {
        Some(given) => {
            for bytes in given.split(',') {
                budgets.push((None, bytes.parse::<f64>()?));
            }
        }
        None => {
            for format in ladder.iter().take(ladder.len() - 1).skip(1).copied() {
                budgets.push((Some(format), page(format)?));
            }
        }
    }
    let room = tokens.len() + 64;
    let levels: Vec<Level> = formats.iter().map(|format| Level { format: *format, tokens: room }).collect();
    let certified = Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() });
    // The first is what the others are compared with; one like it among them, so that its steps are timed as theirs are.
    let dense = |name: &str| Contender::new(name, Config { policy: Policy::Dense, ..base(&[]) });
    let mut contenders = vec![dense("reference")?, dense("dense, from originals")?];
    for (policy, name) in [(Policy::Packed, "packed"), (certified, "certified")] {
        for (format, budget) in budgets.iter().copied() {
            if let Some(format) = format {
                let format: Format = format.parse()?;
                let one = base(&[format]).with_format(format);
                contenders.push(Contender::new(format!("{name} {format}"), Config { policy, ..one })?);
            }
            let gate = Some(Gating::default());
            let retention = Retention::new(budget);
            let bound = Retention { measure: Measure::Bound, ..retention };
            let gated = Retention { rule: Rule { gate, ..retention.rule }, ..retention };
            let controls: [(&str, Control); 5] = [
                ("SmartKV", SmartKv::new(budget).into()),
                ("retention", retention.into()),
                ("retention by the bound", bound.into()),
                ("retention behind the gate", gated.into()),
                ("the bound's budget", BoundBudget::new(budget).into()),
            ];
            for (control_name, control) in controls {
                let base = base(&formats).with_levels(levels.clone());
                let many = Config { policy, levels_by_head, control: Some(control), ..base };
                contenders.push(Contender::new(format!("{name} {control_name} within {budget:.0}"), many)?);
            }
        }
    }
    let block = formats.first().ok_or("no levels")?.block;
    println!("prompt {prompt} tokens, {} steps, text from {first}", tokens.len() - prompt);
    for mut c in race(&model, &tokens, prompt, contenders)?.into_iter().skip(1) {
        c.errors.sort_by(f64::total_cmp);
        let mean = c.errors.iter().sum::<f64>() / c.errors.len() as f64;
        let high = c.errors[c.errors.len() * 95 / 100];
        let stored = c.stored.iter().sum::<f64>() / c.stored.len() as f64;
        let read = c.read_bytes() / prompt as f64;
        let steps = (tokens.len() - prompt) as f64;
        let step = c.spent.as_secs_f64() / steps;
        // The first call knows the prompt's blocks, at every level where the controller looks at those; a call codes where a block is new, too.
        let codes =
            |(at, (_, done)): &(usize, &(Duration, Controlled))| done.changed > 0 || (prompt + at + 1) % block <= 1;
        let calls = || c.calls.iter().enumerate().skip(1);
        let (mut quiet, mut coding) = ((0.0, 0), 0.0);
        for call in calls() {
            let spent = call.1.0.as_secs_f64();
            if codes(&call) { coding += spent } else { quiet = (quiet.0 + spent, quiet.1 + 1) }
        }
        let (quiet, coding) = (quiet.0 / quiet.1.max(1) as f64, coding / steps);
        let behind = c.calls.first().map_or(0.0, |(spent, _)| spent.as_secs_f64());
        println!(
            "{:48} stored {stored:6.1} bytes a token and layer; relative error mean {mean:.4}, 95% {high:.4}; read {read:6.1} bytes a prompt \
             token and KV head; {} blocks changed; a step {:.2} ms; deciding {:.2}% of it, blocks that change or are new {:.0} us a step; behind the prompt {:.0} ms",
            c.name,
            c.changed,
            1e3 * step,
            100.0 * quiet / step,
            1e6 * coding,
            1e3 * behind,
        );
    }
    Ok(())
}
