//! SmartKV's scores, which stay on the GPU, beside those that attention in f64 over the originals gives.
use crate::world::World;
use certkv::{ControlEntry, SequenceId};
use certkv_control::smartkv::{Importance, ImportanceRule};

/// By sequence what is remembered of its layers, and steps that it was told of.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    all: Vec<(SequenceId, Vec<Importance>, u64)>,
    /// Scores that were compared, and layers whose scores are far from what they should be.
    pub(crate) compared: usize,
    wrong: usize,
    /// Their distances, as parts of all scores; and the same of the opposite order: a control.
    apart: Vec<f64>,
    turned: Vec<f64>,
}

impl Mirrors {
    /// The newest sequence is a fork.
    pub(crate) fn fork(&mut self, world: &World, from: SequenceId) {
        let own = self.all.iter().find(|(id, ..)| *id == from).map(|(_, all, steps)| (all.clone(), *steps));
        if let (Some((all, steps)), Some(fork)) = (own, world.held.last()) {
            self.all.push((fork.id, all, steps));
        }
    }

    /// Of sequence `at`, whose newest token was row `row` of the `queries` of each layer; `near` if codes leave weights what they are.
    pub(crate) fn hear(
        &mut self,
        log: &[ControlEntry],
        world: &World,
        (at, row): (usize, usize),
        queries: &[Vec<f32>],
        block: usize,
        near: bool,
    ) {
        let (g, held) = (world.geometry, &world.held[at]);
        if log.iter().all(|entry| entry.scored.is_none()) {
            return;
        }
        let found = self.all.iter().position(|(id, ..)| *id == held.id).unwrap_or_else(|| {
            let fresh = || Importance::new(g.q_heads, ImportanceRule::default()).expect("the usual rule");
            self.all.push((held.id, (0..g.layers).map(|_| fresh()).collect(), 0));
            self.all.len() - 1
        });
        let (_, layers, steps) = &mut self.all[found];
        for entry in log {
            let Some(scored) = &entry.scored else { continue };
            let mut attention = Vec::new();
            for head in 0..g.q_heads {
                let query = &queries[entry.layer][(row * g.q_heads + head) * g.head_dim..][..g.head_dim];
                attention.extend(
                    world.shares(held, entry.layer, head / g.group(), query, block).into_iter().take(held.len / block),
                );
            }
            let own = &mut layers[entry.layer];
            own.truncate(entry.kept);
            let mut want = Vec::new();
            let told = own.update(&attention, *steps).is_ok();
            own.scores(*steps, &mut want);
            let Some(got) = &scored.scores else { continue };
            let whole = told && got.len() == want.len() && got.iter().all(|x| *x >= 0.0 && x.is_finite());
            let all = want.iter().sum::<f64>();
            let apart = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).sum::<f64>() / all;
            self.turned.push(got.iter().rev().zip(&want).map(|(a, b)| (a - b).abs()).sum::<f64>() / all);
            self.compared += got.len();
            self.apart.push(apart);
            if !whole || (near && (apart.is_nan() || apart > 0.5)) {
                self.wrong += 1;
                println!("WRONG scores of {:?}, layer {}: {got:.4?}, not {want:.4?}", held.id, entry.layer);
            }
        }
        *steps += 1;
    }

    /// Prints them; whether they hold.
    pub(crate) fn hold(&mut self, seed: u64) -> bool {
        self.apart.sort_by(f64::total_cmp);
        let at = |share: usize| self.apart.get(self.apart.len() * share / 100).copied().unwrap_or(0.0);
        println!(
            "scores are {:.3}, {:.3}, {:.3} of their sum away from those of f64 at 5, 50 and 95%",
            at(5),
            at(50),
            at(95)
        );
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
        let (told, caught) = (usize::from(self.compared > 0), usize::from(mean(&self.turned) > mean(&self.apart)));
        let [n, wrong] = [self.compared, self.wrong];
        println!(
            "GATE gpu-engine-scores executed={n} failed={wrong} controls={}/{told} seed={seed:#x}",
            caught.min(told)
        );
        wrong == 0 && caught >= told
    }
}
