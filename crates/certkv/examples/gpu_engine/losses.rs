//! What a cache on a GPU says that levels lose, beside what one on the host says of the same sequence, step and levels.
use crate::world::{Failure, Inputs, World};
use certkv::gpu::{GpuCache, GpuConfig};
use certkv::retention::Rule;
use certkv::{Cache, Certificate, Chunk, Config, ControlEntry, Policy, Retention};

/// Losses on the GPU over those on the host, of all blocks and levels that lose anything on either.
#[derive(Debug, Default)]
pub(crate) struct Ratios {
    all: Vec<f64>,
    /// The same of the host's losses in the opposite order: a control.
    turned: Vec<f64>,
    /// Losses that are no numbers, or of another shape.
    wrong: usize,
}

impl Ratios {
    /// Adds those of sequence `at`, whose newest token was row `row` of `inputs`, by what the GPU has told of its layers.
    pub(crate) fn add(
        &mut self,
        cache: &GpuCache,
        config: &GpuConfig,
        (world, at, row): (&World, usize, usize),
        inputs: &Inputs,
        log: &[ControlEntry],
    ) -> Result<(), Failure> {
        if log.iter().all(|entry| entry.loss.is_none()) {
            return Ok(());
        }
        let on_host = host_losses(cache, config, (world, at, row), inputs, log)?;
        for (entry, want) in log.iter().zip(&on_host) {
            let Some(got) = &entry.loss else { continue };
            let whole = got.len() == want.len() && got.iter().all(|x| *x >= 0.0 && x.is_finite());
            self.wrong += usize::from(!whole);
            let most = want.iter().copied().fold(0.0, f64::max);
            let some = got.iter().zip(want).filter(|(a, b)| a.max(**b) > 1e-4 * most);
            self.all.extend(some.map(|(a, b)| a / b));
            let turned = got.iter().zip(want.iter().rev()).filter(|(a, b)| a.max(**b) > 1e-4 * most);
            self.turned.extend(turned.map(|(a, b)| a / b));
        }
        Ok(())
    }

    /// Prints them; whether they are losses of the same blocks: both are bounds, by other paths to the same logits.
    pub(crate) fn hold(&mut self, seed: u64) -> bool {
        self.all.sort_by(f64::total_cmp);
        let (n, all) = (self.all.len(), &self.all);
        let at = |share: usize| all.get(n * share / 100).copied().unwrap_or(1.0);
        println!(
            "losses on the GPU over those on the host: {:.3}, {:.3}, {:.3} at 5, 50 and 95%",
            at(5),
            at(50),
            at(95)
        );
        let far = usize::from(!(at(50) > 0.5 && at(50) < 2.0)) + self.wrong;
        // Losses of other blocks and levels are much further apart: by the mean of how far.
        let apart =
            |of: &[f64]| of.iter().map(|x| x.max(1e-6).ln().abs().min(20.0)).sum::<f64>() / of.len().max(1) as f64;
        let (told, caught) = (usize::from(n > 0), usize::from(apart(&self.turned) > 2.0 * apart(all)));
        println!(
            "GATE gpu-engine-losses executed={n} failed={far} controls={}/{told} seed={seed:#x}",
            caught.min(told)
        );
        far == 0 && caught >= told
    }
}

/// The same sequence in a cache on the host, at the same levels: what it says that its blocks lose, by layer.
fn host_losses(
    cache: &GpuCache,
    config: &GpuConfig,
    (world, at, row): (&World, usize, usize),
    inputs: &Inputs,
    log: &[ControlEntry],
) -> Result<Vec<Vec<f64>>, Failure> {
    let (g, held) = (world.geometry, &world.held[at]);
    let mut host = Config::new(g, held.len + 64).with_levels(config.levels.clone());
    host.levels.iter_mut().for_each(|level| level.tokens = held.len + 64);
    (host.calibration, host.codebooks) = (config.calibration.clone(), config.codebooks.clone());
    (host.policy, host.threads) = (Policy::Packed, 2);
    let rule = Rule { every: 1, looks: 1, ..Rule::default() };
    host.control = Some(Retention { rule, ..Retention::new(f64::from(u32::MAX)) }.into());
    let host = Cache::new(host)?;
    let id = host.create()?;
    let (before, width) = (held.len - 1, g.kv_width());
    let (mut out, mut certificates) = (vec![0.0; g.q_width()], vec![Certificate::UNCERTIFIED; g.q_heads]);
    for (from, to) in [(0, before), (before, held.len)].into_iter().filter(|(from, to)| to > from) {
        if to == held.len {
            let full = before / cache.layouts()[0].tokens();
            for entry in log {
                for (block, up) in entry.levels.iter().take(full).enumerate() {
                    host.change_level(id, entry.layer, block, config.levels.len() - 1 - usize::from(*up))?;
                }
            }
        }
        let mut step = host.begin(&[Chunk { sequence: id, tokens: to - from }])?;
        for layer in 0..g.layers {
            let rows = from * width..to * width;
            step.append_bits(layer, &held.keys[layer][rows.clone()], &held.values[layer][rows])?;
            if to == held.len {
                let query = &inputs.queries[layer][row * g.q_width()..(row + 1) * g.q_width()];
                step.attend(layer, query, &mut out, &mut certificates)?;
            }
        }
        step.finish()?;
    }
    let mut losses = Vec::new();
    host.control_logged(id, Some(&mut |entry| losses.push(entry.loss.unwrap_or_default())))?;
    Ok(losses)
}
