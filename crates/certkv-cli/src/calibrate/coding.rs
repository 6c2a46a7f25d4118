//! TurboQuant and Block-GTQ keys as ways to be measured.
use super::evidence::{BLOCK, Way};
use certkv_codec::{
    CodecError, Encoder, Input, KeyGroups, KeyMetric, decode,
    gtq::{self, BlockGtq, Group, Scheme},
    turboquant::Radius,
};
use certkv_control::{
    Calibration, CalibrationError,
    calibration::{HeadScheme, Rule},
};
use certkv_core::{
    Dtype, Format, Geometry, GroupCode, KeyFormat, RecordLayout, Refine, TURBO_BITS, ValueFormat, tiles::gtq_tile,
};

/// Seed of the rotations.
const SEED: u64 = 1;

/// TurboQuant or Block-GTQ, with schemes that a calibration gives.
#[derive(Debug, Clone, Copy)]
pub struct Coding {
    /// How schemes are chosen; with least bits equal to most, all pairs have one width.
    pub rule: Rule,
    /// Which radius is stored.
    pub radius: Radius,
}

impl Coding {
    /// One width for all pairs: TurboQuant.
    pub fn is_uniform(&self) -> bool {
        self.rule.least == self.rule.most
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        let codec = if self.is_uniform() { "TurboQuant".to_owned() } else { format!("Block-GTQ {}", self.rule.score) };
        let metric = match (self.rule.centred, self.rule.balanced) {
            (false, false) => "",
            (true, false) => ", centred",
            (false, true) => ", balanced",
            (true, true) => ", centred, balanced",
        };
        format!("{codec}{metric}{}", if self.radius == Radius::Norm { ", norm" } else { "" })
    }
}

/// The way that each of `codings` is.
///
/// # Errors
/// [`CalibrationError`] for a rule that cannot be.
pub fn ways(calibration: &Calibration, codings: &[Coding]) -> Result<Vec<Way<'static>>, CalibrationError> {
    let (pairing, rotary) = (calibration.heads().pairing, calibration.heads().rotary);
    let way = |coding: &Coding| {
        let (chosen, radius) = (calibration.with_rule(coding.rule)?, coding.radius);
        let code = move |layer: usize, head: usize, keys: &[f64]| {
            let scheme = chosen.head(layer, head).map(|(_, scheme)| scheme);
            let wide = |of: fn(&HeadScheme) -> &[f32]| {
                scheme.map_or_else(Vec::new, |s| of(s).iter().map(|x| f64::from(*x)).collect())
            };
            let (balance, centre) = (wide(|s| &s.balance), wide(|s| &s.centre));
            let codec = BlockGtq::new(&Scheme {
                pairing,
                rotary,
                balance: Some(&balance),
                centre: Some(&centre),
                radius,
                ..Scheme::new(scheme.map_or(&[], |s| &s.bits), SEED)
            })?;
            let packed = |group: &Group| (group.channels().len() * usize::from(group.bits())).div_ceil(8) + 2;
            let bytes = codec.groups().iter().map(packed).sum::<usize>() as f64;
            Ok((gtq::decode(&codec, &gtq::encode(&codec, keys)?)?, bytes))
        };
        Ok(Way { name: coding.name(), code: Box::new(code) })
    };
    codings.iter().map(way).collect()
}

/// Keys of `key` as the records of a cache hold them, blocks of 64 tokens; those of the last, open block stay as they are.
///
/// # Errors
/// [`CalibrationError`] for widths that cannot be, or heads that no cache has.
pub fn stored(calibration: &Calibration, key: KeyFormat) -> Result<Way<'static>, CalibrationError> {
    let heads = *calibration.heads();
    let refused = |_| CalibrationError::Field { what: "head_dim", found: heads.head_dim as u64 };
    let format = Format { key, value: ValueFormat::F16, block: BLOCK, refine: Refine::NONE };
    let geometry = Geometry::new(1, 1, 1, heads.head_dim).map_err(|_| refused(()))?;
    let layout = RecordLayout::new(&geometry, format).map_err(|_| refused(()))?;
    let mut groups = Vec::new();
    if let KeyFormat::Gtq { code: GroupCode::Widths { halves } } = key {
        let budget = usize::from(halves) * heads.pairs() / 2;
        for (layer, head) in (0..heads.layers).flat_map(|layer| (0..heads.kv_heads).map(move |head| (layer, head))) {
            let bits = calibration.tiled(layer, head, gtq_tile(BLOCK) / 2, budget, TURBO_BITS)?;
            groups.push(KeyGroups::new(&bits, heads.pairing, heads.rotary).map_err(|_| refused(()))?);
        }
    }
    let calibration = calibration.clone();
    let code = move |layer: usize, head: usize, keys: &[f64]| {
        let own = groups.get(layer * heads.kv_heads + head);
        let scheme = calibration.head(layer, head).map(|(_, scheme)| scheme).filter(|_| key.is_calibrated());
        let scale = scheme.zip(own).map(|(scheme, own)| own.weighted(&scheme.balance));
        let metric = scheme.map(|s| KeyMetric::new(&s.centre, scale.as_ref().unwrap_or(&s.balance))).transpose()?;
        let metric = match (metric, own) {
            (Some(metric), Some(own)) => Some(metric.grouped(own)?),
            (metric, _) => metric,
        };
        let bytes = layout.key_bytes() as f64 / BLOCK as f64;
        Ok((through(&layout, metric.as_ref(), keys)?, bytes))
    };
    Ok(Way { name: format!("{key}, as stored"), code: Box::new(code) })
}

/// Keys (tokens, channels) through the records of a head.
fn through(layout: &RecordLayout, metric: Option<&KeyMetric<'_>>, keys: &[f64]) -> Result<Vec<f64>, CodecError> {
    let (dim, mut decoded, mut encoder) = (layout.dim, keys.to_vec(), Encoder::new(layout));
    let (mut record, zero) = (vec![0; layout.bytes], vec![0.0; dim]);
    for (block, to) in keys.chunks_exact(layout.count()).zip(decoded.chunks_exact_mut(layout.count())) {
        let words: Vec<u16> = block.iter().map(|x| Dtype::F16.encode16(*x as f32)).collect();
        encoder.encode_in(metric, &words, &words, &zero, &mut record)?;
        for (token, key) in to.chunks_exact_mut(dim).enumerate() {
            match metric.and_then(|m| m.groups()) {
                Some(groups) => decode::decode_key_in(groups, layout, &record, token, key)?,
                None => decode::decode_key(layout, &record, token, key)?,
            }
            if let Some(metric) = metric {
                metric.unfold(key);
            }
        }
    }
    Ok(decoded)
}

/// Values (tokens, channels) of one head as the records of a cache hold them in blocks of 64, and the bytes of one; those of a block that is
/// not full stay as they are.
///
/// # Errors
/// [`CodecError`] for values that are not finite, or heads that no cache has.
pub fn stored_values(value: ValueFormat, head_dim: usize, values: &[f64]) -> Result<(Vec<f64>, f64), CodecError> {
    let format = Format { key: KeyFormat::F16, value, block: BLOCK, refine: Refine::NONE };
    let refused = |()| CodecError::Shape { input: Input::Parameters, got: head_dim, want: values.len() };
    let geometry = Geometry::new(1, 1, 1, head_dim).map_err(|_| refused(()))?;
    let layout = RecordLayout::new(&geometry, format).map_err(|_| refused(()))?;
    let (mut decoded, mut encoder) = (values.to_vec(), Encoder::new(&layout));
    let (mut record, zero) = (vec![0; layout.bytes], vec![0.0; head_dim]);
    for (block, to) in values.chunks_exact(layout.count()).zip(decoded.chunks_exact_mut(layout.count())) {
        let words: Vec<u16> = block.iter().map(|x| Dtype::F16.encode16(*x as f32)).collect();
        encoder.encode_in(None, &words, &words, &zero, &mut record)?;
        for (token, value) in to.chunks_exact_mut(head_dim).enumerate() {
            decode::decode_value(&layout, &record, token, value)?;
        }
    }
    Ok((decoded, layout.value_bytes() as f64 / BLOCK as f64))
}
