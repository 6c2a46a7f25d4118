//! SmartKV on the host, told all attention of a sequence's layer and what the log says, beside the one whose attention stays on the device.
use certkv::ControlEntry;
use certkv_control::smartkv::{Controller, Importance, Ladder, Rule, WidthAllocator, kl, moved};

/// Of one layer.
#[derive(Clone)]
pub(crate) struct Twin {
    rule: Rule,
    controller: Controller,
    importance: Importance,
    last: Vec<f64>,
    steps: u64,
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() <= 1e-4 * want.abs() + 1e-6
}

impl Twin {
    pub(crate) fn new(layer: usize, heads: usize, rule: Rule) -> Self {
        Self {
            rule,
            controller: Controller::new(layer, heads, rule).expect("a controller"),
            importance: Importance::new(heads, rule.importance).expect("a rule"),
            last: Vec::new(),
            steps: 0,
        }
    }

    /// What is wrong with an entry of a step that gave `attention`, `[head][block]`, or with what was decided by it.
    pub(crate) fn hear(
        &mut self,
        entry: &ControlEntry,
        attention: &[f64],
        ladder: &Ladder<'_>,
        budget: f64,
    ) -> Option<String> {
        let scored = entry.scored.as_ref()?;
        self.importance.truncate(entry.kept);
        self.last.truncate(entry.kept);
        if let Err(error) = self.importance.update(attention, self.steps) {
            return Some(format!("{} blocks: {error}", scored.blocks));
        }
        let mut want = Vec::new();
        self.importance.scores(self.steps, &mut want);
        self.steps += 1;
        if scored.blocks != want.len() || entry.attention.is_some() {
            return Some(format!("{} blocks, not {}", scored.blocks, want.len()));
        }
        if let Some(got) = scored.scores.as_ref().filter(|got| !got.iter().zip(&want).all(|(a, b)| near(*a, *b))) {
            return Some(format!("scores {got:?}, not {want:?}"));
        }
        let divergence = kl(&want, &self.last).expect("scores");
        let far = moved(&want, &self.last, self.rule.points).expect("scores");
        // Equal ranks of two precisions may be in either order.
        let one = 201.0 / self.last.len().max(1) as f64;
        if let Some(got) = scored.drift.filter(|got| !near(got.divergence, divergence) || (got.moved - far).abs() > one)
        {
            return Some(format!("{got:?}, not {divergence} and {far}"));
        }
        let told = scored.told(entry.kept, &entry.levels);
        let decided = self.controller.tell_apart(&mut WidthAllocator::new(), ladder, &told, budget);
        if decided.as_ref() != Ok(&entry.decision) {
            return Some(format!("{:?}, not {decided:?}", entry.decision));
        }
        if entry.decision.is_some() {
            self.last = want;
        }
        None
    }
}
