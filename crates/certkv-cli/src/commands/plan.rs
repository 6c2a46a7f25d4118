//! `certkv plan`: the bytes that so many requests take, and whether they fit.
use super::{
    args::{bounded, number},
    help,
};
use crate::{error::CliError, output::print};
use certkv::gpu::{GpuConfig, GpuMachine};
use certkv::{CLASSES, Config, Format, Geometry, Plan, PoolPlan, Requests, RequestsPlan, default_format};
use serde_json::{Value, json};
use std::{fmt::Write as _, io::Write};

/// What was asked.
struct Question {
    geometry: [usize; 4],
    format: Option<Format>,
    requests: Requests,
    budgets: [usize; 2],
    on_gpu: bool,
}

impl Question {
    fn format(&self) -> Result<Format, CliError> {
        match self.format {
            Some(format) => Ok(format),
            None => Ok(default_format(self.geometry[3]).parse()?),
        }
    }

    fn answer(&self) -> Result<RequestsPlan, CliError> {
        let refused = |e: certkv::Error| CliError::Input(Box::new(e));
        let [layers, heads, kv_heads, head_dim] = self.geometry;
        let geometry = Geometry::new(layers, heads, kv_heads, head_dim).map_err(|e| CliError::Input(Box::new(e)))?;
        let [device_budget, host_budget] = self.budgets;
        if self.on_gpu {
            let config = GpuConfig::new(geometry, 1).with_format(self.format()?);
            let config = GpuConfig { device_budget, host_budget, ..config };
            return config.plan_requests(GpuMachine::H200, self.requests).map_err(refused);
        }
        let config = Config::new(geometry, 1).with_format(self.format()?);
        Plan::for_requests(&Config { device_budget, host_budget, ..config }, self.requests).map_err(refused)
    }
}

/// Answers the question.
///
/// # Errors
/// [`CliError`] for bad options, or a shape, format or length that no cache has.
pub fn run(mut parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    use lexopt::prelude::*;
    let requests = Requests { count: 64, tokens: 32 << 10, scratch: 0.0 };
    let mut q =
        Question { geometry: [32, 32, 8, 128], format: None, requests, budgets: [usize::MAX; 2], on_gpu: false };
    let (mut as_json, mut scratch) = (false, None);
    while let Some(arg) = parser.next()? {
        let name = match arg {
            Short('h') | Long("help") => return print(out, help::PLAN),
            Long(name) => name.to_owned(),
            other => return Err(other.unexpected().into()),
        };
        match name.as_str() {
            "layers" => q.geometry[0] = bounded(&mut parser, "--layers", 1, 4096)?,
            "heads" => q.geometry[1] = bounded(&mut parser, "--heads", 1, 4096)?,
            "kv-heads" => q.geometry[2] = bounded(&mut parser, "--kv-heads", 1, 4096)?,
            "head-dim" => q.geometry[3] = bounded(&mut parser, "--head-dim", 1, 1024)?,
            "format" => q.format = Some(parser.value()?.string()?.parse()?),
            "tokens" => q.requests.tokens = count(&mut parser, "--tokens")?,
            "requests" => q.requests.count = bounded(&mut parser, "--requests", 1, 1 << 20)?,
            "device-budget" => q.budgets[0] = count(&mut parser, "--device-budget")?,
            "host-budget" => q.budgets[1] = count(&mut parser, "--host-budget")?,
            "scratch" => scratch = Some(number::<f64>(&mut parser, "--scratch")?),
            "on" => {
                q.on_gpu = match parser.value()?.string()?.as_str() {
                    "cpu" => false,
                    "h200" => true,
                    other => return Err(CliError::Usage(format!("--on: `{other}` is neither cpu nor h200"))),
                }
            }
            "json" => as_json = true,
            other => return Err(CliError::Usage(format!("plan: there is no option --{other}"))),
        }
    }
    q.requests.scratch = scratch.unwrap_or(if q.on_gpu { certkv::gpu::SCRATCH_SHARE } else { 0.0 });
    if !(0.0..=1.0).contains(&q.requests.scratch) {
        return Err(CliError::Usage(format!("--scratch: {} is not a share of 0 to 1", q.requests.scratch)));
    }
    let answer = q.answer()?;
    if as_json {
        let text =
            serde_json::to_string_pretty(&value(&q.requests, &answer)).map_err(|e| CliError::Internal(Box::new(e)))?;
        print(out, &(text + "\n"))
    } else {
        print(out, &text(&q, &answer)?)
    }
}

/// The next value as a number of bytes or tokens: digits, and K, M, G or T for powers of 1024.
fn count(parser: &mut lexopt::Parser, option: &str) -> Result<usize, CliError> {
    use lexopt::ValueExt;
    let text = parser.value()?.string()?;
    let units = [('K', 1usize << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];
    let unit = units.into_iter().find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, unit)));
    let (digits, unit) = unit.unwrap_or((&text, 1));
    let n = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n > 0);
    n.ok_or_else(|| CliError::Usage(format!("{option}: `{text}` is not a number such as 32K or 80G that fits")))
}

fn text(q: &Question, answer: &RequestsPlan) -> Result<String, CliError> {
    let [layers, heads, kv_heads, head_dim] = q.geometry;
    let (plan, requests, on) = (&answer.plan, q.requests, if q.on_gpu { "an H200" } else { "a CPU" });
    let mut text = format!(
        "{} requests of {} tokens on {on}: {layers} layers, {heads} query and {kv_heads} key/value heads of {head_dim} \
         channels, {}, scratch for {}% of the sides\n",
        requests.count,
        requests.tokens,
        q.format()?,
        100.0 * requests.scratch
    );
    let device = CLASSES.iter().zip(&plan.classes).take(3).map(|(class, bytes)| format!("{class} {}", gib(*bytes)));
    for (name, of, parts) in [
        ("device", &plan.device, format!(" ({})", device.collect::<Vec<_>>().join(", "))),
        ("host", &plan.host, String::new()),
    ] {
        let budget = if of.budget == usize::MAX { String::new() } else { format!(" of {}", gib(of.budget)) };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<6} {}{budget}{parts}", gib(of.bytes));
    }
    let limited = [plan.device, plan.host].iter().any(|pool| pool.budget < usize::MAX);
    let most = if limited { format!("; {} requests of this length fit", answer.most) } else { String::new() };
    let _ = writeln!(text, "{plan}{most}");
    let (tokens, sequences) = (answer.max_tokens, answer.max_sequences);
    let _ = writeln!(text, "max_tokens {tokens}, max_sequences {sequences}, max_context {}", requests.tokens);
    Ok(text)
}

fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

fn value(requests: &Requests, answer: &RequestsPlan) -> Value {
    let plan = &answer.plan;
    let pool = |pool: &PoolPlan| {
        let budget = (pool.budget < usize::MAX).then_some(pool.budget);
        json!({"bytes": pool.bytes, "budget": budget, "lacks": pool.lacks()})
    };
    let classes: serde_json::Map<String, Value> =
        CLASSES.iter().zip(plan.classes).map(|(class, bytes)| (class.to_string(), bytes.into())).collect();
    json!({
        "fits": plan.fits(), "classes": classes, "device": pool(&plan.device), "host": pool(&plan.host),
        "max_tokens": answer.max_tokens, "max_sequences": answer.max_sequences, "max_context": requests.tokens,
        "most_requests": answer.most
    })
}
