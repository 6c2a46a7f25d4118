//! Centres and balance scales of the keys of a calibration, math.md (2.19a). Those of every fourth case are far out.
use certkv_codec::KeyMetric;
use certkv_core::RecordLayout;
use certkv_testkit::generate::Rng;

/// Of each KV head, centre and scale by channel; none where keys are coded as they are.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<[Vec<f32>; 2]>);

impl Metrics {
    pub fn of(layout: &RecordLayout, kv_heads: usize, seed: u64) -> Self {
        if !layout.format.key.is_calibrated() {
            return Self::default();
        }
        let mut r = Rng::new(seed ^ 0x3e72);
        let (centre, octaves) = if seed % 4 == 3 { (2.0, 2.5) } else { (0.5, 0.5) };
        let mut channels =
            |of: &dyn Fn(f64) -> f64| (0..layout.dim).map(|_| of(2.0 * r.uniform() - 1.0) as f32).collect();
        Self((0..kv_heads).map(|_| [channels(&|x| centre * x), channels(&|x| (octaves * x).exp2())]).collect())
    }

    pub fn head(&self, head: usize) -> Option<KeyMetric<'_>> {
        let [centre, balance] = self.0.get(head)?;
        Some(KeyMetric::new(centre, balance).unwrap())
    }

    /// Makes a channel's centre (`part` 0) or scale (1) another one.
    pub fn put(&mut self, head: usize, part: usize, channel: usize, x: f32) {
        self.0[head][part][channel] = x;
    }

    /// As a launch is told of them; nothing where there are none.
    pub fn words(&self) -> Option<Vec<u32>> {
        let all: Vec<u32> = self.0.iter().flatten().flatten().map(|x| x.to_bits()).collect();
        (!all.is_empty()).then_some(all)
    }

    /// What was decoded becomes a key again.
    pub fn unfold(&self, head: usize, key: &mut [f64]) {
        self.head(head).inspect(|metric| metric.unfold(key));
    }
}
