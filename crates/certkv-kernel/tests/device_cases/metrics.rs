//! What the keys of a calibration are coded in, math.md (2.19a), (2.19c), 2.9: centres, balance scales, widths, or directions. Those of every fourth case are far out.
mod books;
mod widths;
use certkv_codec::decode::{decode_key, decode_key_in, decode_key_of};
use certkv_codec::spherical::Spherical;
use certkv_codec::{KeyGroups, KeyMetric};
use certkv_core::RecordLayout;
use certkv_core::fragment::{to_fragment, to_fragment_in};
use certkv_kernel::cuda::metrics::metric_words;
use certkv_testkit::generate::Rng;
use widths::Spread;

/// Of a KV head, centre and scale by channel, and groups of keys of unlike widths; or directions.
#[derive(Debug, Clone)]
pub struct Keys {
    parts: [Vec<f32>; 2],
    groups: Option<KeyGroups>,
    books: Option<Spherical>,
}

/// Of each KV head; none where keys are coded as they are.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<Keys>);

impl Metrics {
    pub fn of(layout: &RecordLayout, kv_heads: usize, seed: u64) -> Self {
        Self::spread(layout, kv_heads, seed, Spread::Any)
    }

    /// With widths as models have them: for times.
    pub fn usual(layout: &RecordLayout, kv_heads: usize) -> Self {
        Self::spread(layout, kv_heads, 1, Spread::Usual)
    }

    fn spread(layout: &RecordLayout, kv_heads: usize, seed: u64, spread: Spread) -> Self {
        if !layout.format.key.is_calibrated() {
            return Self::default();
        }
        let mut r = Rng::new(seed ^ 0x3e72);
        let (centre, octaves) = if seed % 4 == 3 { (2.0, 2.5) } else { (0.5, 0.5) };
        let mut channels =
            |of: &dyn Fn(f64) -> f64| (0..layout.dim).map(|_| of(2.0 * r.uniform() - 1.0) as f32).collect();
        let head = |head: usize| {
            let parts: [Vec<f32>; 2] = [channels(&|x| centre * x), channels(&|x| (octaves * x).exp2())];
            let groups = widths::groups(layout, seed.wrapping_mul(31) + head as u64, spread);
            let [centre, balance] = parts;
            let balance = groups.as_ref().map_or_else(|| balance.clone(), |groups| groups.weighted(&balance));
            Keys { parts: [centre, balance], groups, books: books::of(layout, seed.wrapping_mul(31) + head as u64) }
        };
        Self((0..kv_heads).map(head).collect())
    }

    pub fn head(&self, head: usize) -> Option<KeyMetric<'_>> {
        let Keys { parts: [centre, balance], groups, books } = self.0.get(head)?;
        if let Some(books) = books {
            return Some(KeyMetric::directions(books));
        }
        let metric = KeyMetric::new(centre, balance).unwrap();
        Some(groups.iter().fold(metric, |metric, groups| metric.grouped(groups).unwrap()))
    }

    /// Makes a channel's centre (`part` 0) or scale (1) another one.
    pub fn put(&mut self, head: usize, part: usize, channel: usize, x: f32) {
        self.0[head].parts[part][channel] = x;
    }

    /// Heads in the opposite order.
    pub fn exchange(&mut self) {
        self.0.reverse();
    }

    /// As a launch is told of them; nothing where there are none.
    pub fn words(&self) -> Option<Vec<u32>> {
        let all: Vec<u32> = (0..self.0.len()).filter_map(|head| self.head(head)).flat_map(metric_words).collect();
        (!all.is_empty()).then_some(all)
    }

    /// The key of a token of a record of `head`.
    pub fn decode(&self, head: usize, layout: &RecordLayout, record: &[u8], token: usize, key: &mut [f64]) {
        let metric = self.head(head);
        match metric.map(|metric| (metric.groups(), metric.books())) {
            Some((Some(groups), _)) => decode_key_in(groups, layout, record, token, key).unwrap(),
            Some((_, Some(books))) => decode_key_of(books, layout, record, token, key).unwrap(),
            _ => decode_key(layout, record, token, key).unwrap(),
        }
        metric.inspect(|metric| metric.unfold(key));
    }

    /// A record of `head` as it lies on a device.
    pub fn to_fragment(&self, head: usize, layout: &RecordLayout, record: &[u8], out: &mut [u8]) {
        match self.head(head).and_then(|metric| metric.groups()) {
            Some(groups) => to_fragment_in(layout, &groups.runs(), record, out).unwrap(),
            None => to_fragment(layout, record, out).unwrap(),
        }
    }
}
