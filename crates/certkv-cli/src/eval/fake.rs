//! Plain caches that need no engine: the originals, or the originals put through a simple quantizer and back.
//!
//! They are the yardsticks of the evaluation itself: with them its scores can be compared with published ones of the same
//! fake-quantized caches, whatever the engine does.
use super::{
    backend::{Backend, Engine, Footprint},
    mode::{Mode, Policy},
};
use crate::model::{Attention, AttentionError, Config, Pass, flat::Flat, tape::Tape};
use certkv_bound::{Certificate, Rung, Status};
use certkv_codec::fp8::{self, Fp8};
use certkv_codec::token_sym::{self, Sharing};
use certkv_codec::turboquant;
use certkv_core::{Dtype, Format, KeyFormat, PageCode, ValueFormat};
use half::f16;

/// Makes [`Fake`] caches: dense ones for every policy but [`Policy::Packed`].
#[derive(Debug, Clone, Copy, Default)]
pub struct FakeEngine;

/// A [`Flat`] cache whose prompt was quantized and decoded again.
pub struct Fake {
    flat: Flat,
    config: Config,
    format: Option<Format>,
}

impl Engine for FakeEngine {
    fn open(&mut self, mode: &Mode, config: &Config, _capacity: usize) -> Result<Box<dyn Backend>, AttentionError> {
        let format = (mode.policy == Policy::Packed).then_some(mode.format);
        if format.is_some_and(|format| format.key.is_calibrated()) {
            return Err(AttentionError::Order("calibrated keys, which have no plain form here"));
        }
        Ok(Box::new(Fake { flat: Flat::new(config), config: config.clone(), format }))
    }
}

/// `x` rounded to `bits`-bit codes between its least and largest element, with an offset; its mean, of no codes.
fn affine(x: &mut [f32], stride: usize, bits: u8) {
    for lane in 0..stride {
        if bits == 0 {
            let mean = x.iter().skip(lane).step_by(stride).sum::<f32>() / (x.len() / stride) as f32;
            x.iter_mut().skip(lane).step_by(stride).for_each(|v| *v = mean);
            continue;
        }
        let of = |x: &[f32], f: fn(f32, f32) -> f32| x.iter().skip(lane).step_by(stride).copied().reduce(f);
        let (low, high) = (of(x, f32::min).unwrap_or(0.0), of(x, f32::max).unwrap_or(0.0));
        let last = ((1u32 << bits) - 1) as f32;
        let scale = ((high - low) / last).max(1e-8);
        for v in x.iter_mut().skip(lane).step_by(stride) {
            *v = ((*v - low) / scale).round().clamp(0.0, last) * scale + low;
        }
    }
}

/// `x` rounded to symmetric `bits`-bit codes.
fn symmetric(x: &mut [f32], bits: u8) {
    let last = ((1u32 << (bits - 1)) - 1) as f32;
    let scale = (x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / last).max(1e-8);
    for v in x {
        *v = (*v / scale).round_ties_even().clamp(-last, last) * scale;
    }
}

/// `x`, rows of `d` channels, through TurboQuant codes. Rows that cannot be coded stay as they are.
fn turbo(x: &mut [f32], d: usize, bits: u8) {
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    if let Ok(block) = turboquant::encode_bytes(&wide, d, bits) {
        x.iter_mut().zip(block.decode()).for_each(|(x, y)| *x = y as f32);
    }
}

/// `x`, rows of `width` channels, with one scale per group of channels.
fn page(x: &mut [f32], width: usize, group: usize, code: PageCode) {
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let kind = match code {
        PageCode::E4m3 => Fp8::E4m3,
        PageCode::E5m2 => Fp8::E5m2,
        PageCode::Int(bits) => {
            let sharing = Sharing::Block;
            let spec = token_sym::Spec { bits, group, sharing, mode: token_sym::Mode::Tread, meta: Dtype::F16 };
            if let Ok(block) = token_sym::encode(&wide, width, spec) {
                x.iter_mut().zip(block.decode()).for_each(|(x, y)| *x = y as f32);
            }
            return;
        }
    };
    if let Ok(block) = fp8::encode(&wide, width, group, kind, Sharing::Block, Dtype::F16) {
        x.iter_mut().zip(block.decode()).for_each(|(x, y)| *x = y as f32);
    }
}

/// One block of one layer, `[block][kv_width]`, there and back.
fn quantize(format: Format, d: usize, width: usize, keys: &mut [f32], values: &mut [f32]) {
    match format.key {
        KeyFormat::Channel { bits, .. } => affine(keys, width, bits),
        KeyFormat::Token { bits, group } => {
            let group = if group == 0 { d } else { usize::from(group) };
            keys.chunks_mut(group).for_each(|g| symmetric(g, bits));
        }
        KeyFormat::Turbo { bits, .. } => turbo(keys, d, bits),
        KeyFormat::Page { code, .. } => page(keys, width, format.key.group(d), code),
        // Calibrated keys have no plain form here and were refused.
        KeyFormat::F16 | KeyFormat::Bf16 | KeyFormat::Gtq { .. } => {}
    }
    match format.value {
        ValueFormat::Affine { bits, group } => values.chunks_mut(usize::from(group)).for_each(|g| affine(g, 1, bits)),
        ValueFormat::Channel { bits } => affine(values, width, bits),
        ValueFormat::Turbo { bits } => turbo(values, d, bits),
        ValueFormat::Page { code, .. } => page(values, width, format.value.group(d), code),
        ValueFormat::F16 | ValueFormat::Bf16 => {}
    }
}

impl Backend for Fake {
    fn load(&mut self, prompt: &Tape) -> Result<(), AttentionError> {
        self.flat.truncate(0);
        if prompt.tokens == 0 {
            return Ok(());
        }
        let (d, width) = (self.config.head_dim, self.config.kv_width());
        let widen = |rows: &[f16]| rows.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
        self.flat.open(prompt.tokens);
        for (layer, rows) in prompt.layers.iter().enumerate() {
            let (mut keys, mut values) = (widen(&rows.keys), widen(&rows.values));
            if let Some(format) = self.format {
                let block = format.block * width;
                for (k, v) in keys.chunks_exact_mut(block).zip(values.chunks_exact_mut(block)) {
                    quantize(format, d, width, k, v);
                }
            }
            self.flat.store(layer, &keys, &values)?;
        }
        self.flat.finish()
    }

    fn truncate(&mut self, length: usize) -> Result<(), AttentionError> {
        self.flat.truncate(length);
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        let tokens = self.flat.length();
        Footprint { tokens, scratch: (tokens * self.config.dense_bytes_per_token()) as u64, ..Footprint::default() }
    }
}

impl Attention for Fake {
    fn length(&self) -> usize {
        self.flat.length()
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        self.flat.open(tokens);
        Ok(Box::new(Open { fake: self, certificates: Vec::new() }))
    }
}

/// A chunk of a [`Fake`] cache.
struct Open<'a> {
    fake: &'a mut Fake,
    certificates: Vec<Certificate>,
}

impl Pass for Open<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.fake.flat.attend(layer, k, v, q, out)?;
        self.certificates.clear();
        if k.len() != self.fake.config.kv_width() {
            return Ok(());
        }
        let exact = self.fake.format.is_none();
        for head in out.chunks_exact(self.fake.config.head_dim) {
            let norm = head.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            self.certificates.push(Certificate {
                // Single-precision arithmetic has no bound here, so even the originals certify nothing.
                status: Status::Uncertified,
                rung: if exact { Rung::DenseHead } else { Rung::Packed },
                out_norm: norm,
                ..Certificate::default()
            });
        }
        Ok(())
    }

    fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.fake.flat.finish()
    }
}
