//! What the decode steps of one mode did, summed up.
use certkv_bound::{Certificate, Status};

/// Number of rungs of the ladder.
pub const RUNGS: usize = 5;

/// Shares of all blocks at which mass coverage is noted.
pub const SHARES: [f64; 12] = [0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0];

/// Sums and samples over the decode steps of one mode.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    /// Layers and query heads of the model.
    pub shape: (usize, usize),
    /// Decode steps.
    pub steps: u64,
    /// Seconds of whole decode steps, model included.
    pub decode_seconds: f64,
    /// Seconds within attention.
    pub attend_seconds: f64,
    /// Seconds spent on recomputing outputs; within `decode_seconds`, and no part of the cache's cost.
    pub witness_seconds: f64,
    /// Head-steps by rung.
    pub rungs: [u64; RUNGS],
    /// Head-steps by rung of each step, in order.
    pub timeline: Vec<[u32; RUNGS]>,
    /// Head-steps that were certified or exact.
    pub certified: u64,
    /// Key component over the output's norm, finite ones.
    pub e_key: Vec<f64>,
    /// Value component over the output's norm, finite ones.
    pub e_val: Vec<f64>,
    /// Bound over the output's norm by `layer * heads + head`, finite ones.
    pub bounds: Vec<Vec<f64>>,
    /// Bound over true error, where the true error was recomputed.
    pub tightness: Vec<f64>,
    /// True error over the output's norm, where recomputed.
    pub true_error: Vec<f64>,
    /// Recomputed outputs whose true error passed a finite bound.
    pub violations: u64,
    /// The same by layer.
    pub layers: Vec<LayerSums>,
    /// Bytes read by `layer * KV heads + KV head`; empty before the first step.
    pub heads: Vec<u64>,
    /// Bytes read: packed, scratch, host.
    pub read: [u64; 3],
    /// Bytes that dense half precision would have read.
    pub read_dense: u64,
    /// Mass coverage at [`SHARES`], one entry per recomputed head-step.
    pub coverage: Vec<[f32; SHARES.len()]>,
}

/// Sums of one layer over the decode steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerSums {
    /// Head-steps by rung.
    pub rungs: [u64; RUNGS],
    /// Blocks seen by query heads.
    pub blocks: u64,
    /// Of them, read with exact keys.
    pub promoted_keys: u64,
    /// Of them, read with exact values.
    pub promoted_values: u64,
    /// Of them, those whose values were not read at all.
    pub skipped_values: u64,
    /// Bytes read: packed, scratch, host.
    pub read: [u64; 3],
    /// Bytes that dense half precision would have read.
    pub read_dense: u64,
}

impl Gathered {
    /// An empty collection for a model of `layers` and query `heads`.
    pub fn new(layers: usize, heads: usize) -> Self {
        Self {
            shape: (layers, heads),
            bounds: vec![Vec::new(); layers * heads],
            layers: vec![LayerSums::default(); layers],
            ..Self::default()
        }
    }

    /// Opens a decode step.
    pub fn begin_step(&mut self) {
        self.steps += 1;
        self.timeline.push([0; RUNGS]);
    }

    /// Adds the certificates of one layer. `blocks` is what each head sees, `dense_bytes` what one KV head's rows weigh,
    /// `group` the query heads per KV head.
    pub fn add(&mut self, layer: usize, certificates: &[Certificate], group: usize, blocks: u64, dense_bytes: u64) {
        let heads = self.shape.1;
        let kv_heads = heads.div_ceil(group.max(1));
        self.heads.resize(self.shape.0 * kv_heads, 0);
        let sums = &mut self.layers[layer];
        for (head, c) in certificates.iter().enumerate().take(heads) {
            let rung = c.rung as usize;
            self.rungs[rung] += 1;
            sums.rungs[rung] += 1;
            if let Some(step) = self.timeline.last_mut() {
                step[rung] += 1;
            }
            self.certified += u64::from(matches!(c.status, Status::Certified | Status::Exact));
            let relative = |x: f64| Some(x / c.out_norm).filter(|r| r.is_finite());
            self.e_key.extend(relative(c.e_key));
            self.e_val.extend(relative(c.e_val));
            self.bounds[layer * heads + head].extend(relative(c.bound()));
            sums.promoted_keys += u64::from(c.promoted_keys);
            sums.promoted_values += u64::from(c.promoted_values);
            sums.skipped_values += u64::from(c.skipped_values);
            sums.blocks += blocks;
        }
        // The bytes of a certificate are its group's: the largest of the group's records is counted once.
        for (head, records) in certificates.chunks(group.max(1)).enumerate() {
            let total = |c: &Certificate| c.bytes.packed + c.bytes.scratch + c.bytes.host;
            if let Some(c) = records.iter().max_by_key(|c| total(c)) {
                for read in [&mut self.read, &mut sums.read] {
                    read[0] += c.bytes.packed;
                    read[1] += c.bytes.scratch;
                    read[2] += c.bytes.host;
                }
                if let Some(read) = self.heads.get_mut(layer * kv_heads + head) {
                    *read += total(c);
                }
                self.read_dense += dense_bytes;
                sums.read_dense += dense_bytes;
            }
        }
    }

    /// Adds one recomputed output: its bound, its true error and its norm.
    pub fn witness(&mut self, bound: f64, error: f64, norm: f64) {
        if norm > 0.0 {
            self.true_error.push(error / norm);
        }
        if bound.is_finite() {
            // Where both vanish the bound is as tight as it can be, but no ratio says so.
            if error > 0.0 {
                self.tightness.push(bound / error);
            }
            let holds = error <= bound;
            self.violations += u64::from(!holds);
        }
    }

    /// Share of head-steps on the dense rungs.
    pub fn dense_share(&self) -> f64 {
        let all: u64 = self.rungs.iter().sum();
        (self.rungs[3] + self.rungs[4]) as f64 / all.max(1) as f64
    }

    /// Bytes read over what dense half precision would have read.
    pub fn read_share(&self) -> f64 {
        self.read.iter().sum::<u64>() as f64 / self.read_dense.max(1) as f64
    }

    /// Seconds of the decode steps without the recomputed outputs.
    pub fn own_seconds(&self) -> f64 {
        (self.decode_seconds - self.witness_seconds).max(0.0)
    }

    /// Decode steps per second, model included.
    pub fn tokens_per_second(&self) -> f64 {
        if self.own_seconds() > 0.0 { self.steps as f64 / self.own_seconds() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_bound::{BytesRead, Rung};

    #[test]
    fn groups_are_counted_once_and_nan_never_as_within() {
        let mut g = Gathered::new(1, 4);
        g.begin_step();
        let c = Certificate {
            status: Status::Certified,
            rung: Rung::MoreKeys,
            e_key: 0.5,
            e_val: 0.25,
            e_drop: 0.0,
            e_arith: 0.0,
            out_norm: 2.0,
            promoted_keys: 3,
            skipped_values: 2,
            bytes: BytesRead { packed: 100, scratch: 10, host: 1 },
            ..Certificate::default()
        };
        let less = Certificate { bytes: BytesRead { packed: 50, ..c.bytes }, ..c };
        g.add(0, &[c, less, less, Certificate::UNCERTIFIED], 2, 8, 400);
        assert_eq!((g.read, g.read_dense), ([150, 20, 2], 800));
        assert_eq!(g.heads, [111, 61]);
        assert_eq!((g.rungs, g.certified, g.timeline[0]), ([1, 3, 0, 0, 0], 3, [1, 3, 0, 0, 0]));
        assert_eq!(g.e_key, [0.25, 0.25, 0.25]);
        let layer = &g.layers[0];
        assert_eq!((layer.promoted_keys, layer.skipped_values, layer.blocks), (9, 6, 32));
        assert_eq!((layer.read, layer.read_dense, layer.rungs), (g.read, g.read_dense, g.rungs));
        g.witness(1.0, 0.5, 2.0);
        g.witness(1.0, f64::NAN, 2.0);
        g.witness(1.0, 1.5, 2.0);
        assert_eq!((g.violations, g.tightness[0]), (2, 2.0));
    }
}
