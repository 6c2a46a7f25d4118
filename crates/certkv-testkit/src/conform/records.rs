//! Whole records against a second reference, `testdata/golden/generate.py`, which has only math.md: keys and values by channel
//! of any width (2.1)-(2.3), (2.9b), block means (2.9c), affine values (2.4)-(2.6) and residuals (2.23).
//!
//! Codes, scales and decoded rows are those of the file to the bit, read out of the record's bytes; [`super::record_figures`] has
//! the summary.
use super::record_figures::figures;
use super::record_groups::{directions, widths};
use super::{ConformError, Family, Report};
use crate::cgv::{Element, Vectors};
use certkv_codec::{CodecError, Encoder, KeyMetric, decode};
use certkv_core::layout::{key_index, read_code, value_index};
use certkv_core::{Dtype, Format, Geometry, GroupCode, KeyFormat, RecordLayout, ValueFormat};
use core::ops::Range;

pub(crate) const FAMILIES: &[Family] = &[Family { prefix: "record_", replay }];

pub(super) fn refused(e: impl core::fmt::Display) -> ConformError {
    ConformError::refused(e)
}

/// Inputs of a record's file.
pub(super) struct Block {
    pub(super) layout: RecordLayout,
    pub(super) keys: Vec<u16>,
    pub(super) values: Vec<u16>,
    pub(super) centre: Vec<f32>,
}

impl Block {
    fn read(v: &Vectors) -> Result<Self, ConformError> {
        let ((tokens, dim), element) = (v.matrix("keys")?, v.get("keys")?.element);
        let store = match element {
            Element::F16 => Dtype::F16,
            Element::Bf16 => Dtype::Bf16,
            e => return Err(refused(format_args!("originals of type {e:?}"))),
        };
        let geometry = Geometry { store, ..Geometry::new(1, 1, 1, dim).map_err(refused)? };
        let format: Format = v.text("format")?.parse().map_err(refused)?;
        let layout = RecordLayout::new(&geometry, format).map_err(refused)?;
        if format.block != tokens {
            return Err(refused(format_args!("{tokens} tokens for blocks of {}", format.block)));
        }
        let words = |name: &str| Ok::<_, ConformError>(v.i64s(name)?.into_iter().map(|w| w as u16).collect());
        let centre = v.f64s("centre")?.into_iter().map(|c| c as f32).collect();
        Ok(Self { layout, keys: words("keys")?, values: words("values")?, centre })
    }

    /// The record, keys in `metric` where the format wants one.
    pub(super) fn encode(&self, metric: Option<&KeyMetric<'_>>) -> Result<Vec<u8>, ConformError> {
        let mut record = vec![0; self.layout.bytes];
        let done = Encoder::new(&self.layout).encode_in(metric, &self.keys, &self.values, &self.centre, &mut record);
        done.map(|()| record).map_err(refused)
    }

    /// Rows as they are read back.
    pub(super) fn rows(
        &self,
        read: impl Fn(usize, &mut [f64]) -> Result<(), CodecError>,
    ) -> Result<Vec<f64>, ConformError> {
        let mut rows = vec![0.0; self.layout.count()];
        let mut each = rows.chunks_exact_mut(self.layout.dim).enumerate();
        each.try_for_each(|(token, row)| read(token, row)).map_err(refused)?;
        Ok(rows)
    }

    /// Codes of a section as rows of `dim`, less `offset`.
    fn codes(&self, record: &[u8], section: &Range<usize>, bits: usize, index: Index, offset: i64) -> Vec<i64> {
        let (l, section) = (&self.layout, record.get(section.clone()).unwrap_or_default());
        let elements = (0..l.tokens()).flat_map(|t| (0..l.dim).map(move |c| index(t, c, l.dim)));
        elements.map(|at| i64::from(read_code(section, bits, l.count(), at)) - offset).collect()
    }
}

type Index = fn(usize, usize, usize) -> usize;
type ReadRow = fn(&RecordLayout, &[u8], usize, &mut [f64]) -> Result<(), CodecError>;

/// The 16-bit patterns of a section.
pub(super) fn patterns(record: &[u8], section: &Range<usize>) -> Vec<i64> {
    let section = record.get(section.clone()).unwrap_or_default();
    section.as_chunks::<2>().0.iter().map(|w| i64::from(u16::from_le_bytes(*w))).collect()
}

fn replay(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let block = Block::read(v)?;
    let l = &block.layout;
    let record = match l.format.key {
        KeyFormat::Channel { .. } => key_side(report, v, &block)?,
        KeyFormat::Gtq { code: GroupCode::Directions(tier) } => directions(report, v, &block, tier)?,
        KeyFormat::Gtq { code: GroupCode::Widths { .. } } => widths(report, v, &block)?,
        other => return Err(refused(format_args!("no vectors of such keys: {other:?}"))),
    };
    value_side(report, v, &block, &record)?;
    if !l.format.refine.is_none() {
        residuals(report, v, &block, &record)?;
    }
    figures(report, v, l, &record)
}

/// Decoded rows; a file that holds one row means it for every token.
fn decoded(
    report: &mut Report,
    name: &str,
    want: &[f64],
    block: &Block,
    record: &[u8],
    read: ReadRow,
) -> Result<(), ConformError> {
    let l = &block.layout;
    let want = if want.len() == l.dim { want.repeat(l.tokens()) } else { want.to_vec() };
    report.exact(name, &block.rows(|token, row| read(l, record, token, row))?, &want);
    Ok(())
}

/// (2.1)-(2.3), and (2.9c) without codes: `sigma[d]`, then `z[d]`.
fn key_side(report: &mut Report, v: &Vectors, block: &Block) -> Result<Vec<u8>, ConformError> {
    let (l, bits, record) = (&block.layout, block.layout.format.key.bits(), block.encode(None)?);
    let name = if bits == 0 { "mean keys (2.9c)" } else { "channel keys (2.3)" };
    if bits > 0 {
        let codes = block.codes(&record, &l.key_codes, bits, key_index, 1 << (bits - 1));
        report.exact_ints(&format!("record {name} codes"), codes, &v.i64s("k_codes")?);
    }
    let mut scales = v.i64s("k_sigma")?;
    scales.extend(v.i64s("k_z")?);
    report.exact_ints(&format!("record {name} scales"), patterns(&record, &l.key_scales), &scales);
    decoded(report, &format!("record {name} decoded"), &v.f64s("k_hat")?, block, &record, decode::decode_key)?;
    Ok(record)
}

/// (2.9b), (2.9c): `sigma, z` by turns, `[d]`. (2.4)-(2.6): `sigma[group][token]`, then `z[group][token]`. Or the originals.
fn value_side(report: &mut Report, v: &Vectors, block: &Block, record: &[u8]) -> Result<(), ConformError> {
    let (l, bits) = (&block.layout, block.layout.format.value.bits());
    let (name, offset) = match l.format.value {
        ValueFormat::Channel { bits: 0 } => ("mean values (2.9c)", 0),
        ValueFormat::Channel { bits } => ("channel values (2.9b)", 1i64 << (bits - 1)),
        ValueFormat::Affine { .. } => ("affine values (2.6)", 0),
        _ => return decoded(report, "record values kept", &v.f64s("values")?, block, record, decode::decode_value),
    };
    if bits > 0 {
        let codes = block.codes(record, &l.value_codes, bits, value_index, offset);
        report.exact_ints(&format!("record {name} codes"), codes, &v.i64s("v_codes")?);
    }
    let (sigma, z) = (v.i64s("v_sigma")?, v.i64s("v_z")?);
    let scales: Vec<i64> = if let ValueFormat::Affine { group, .. } = l.format.value {
        let groups = l.dim / usize::from(group);
        let by_group =
            |s: &[i64]| (0..groups).flat_map(|g| s.iter().skip(g).step_by(groups).copied()).collect::<Vec<_>>();
        [by_group(&sigma), by_group(&z)].concat()
    } else {
        sigma.into_iter().zip(z).flat_map(|(s, z)| [s, z]).collect()
    };
    report.exact_ints(&format!("record {name} scales"), patterns(record, &l.value_scales), &scales);
    decoded(report, &format!("record {name} decoded"), &v.f64s("v_hat")?, block, record, decode::decode_value)
}

/// (2.23): both planes, and what they refine rows to.
fn residuals(report: &mut Report, v: &Vectors, block: &Block, record: &[u8]) -> Result<(), ConformError> {
    let (l, refine) = (&block.layout, block.layout.format.refine);
    let sides: [(&str, &Range<usize>, u8, Index, ReadRow); 2] = [
        ("k", &l.key_residuals, refine.key, key_index, decode::refined_key),
        ("v", &l.value_residuals, refine.value, value_index, decode::refined_value),
    ];
    for (side, section, bits, index, read) in sides {
        let codes = block.codes(record, section, usize::from(bits), index, 1 << (bits - 1));
        report.exact_ints("record residuals (2.23)", codes, &v.i64s(&format!("{side}_residual"))?);
        decoded(report, "record refined (2.23)", &v.f64s(&format!("{side}_refined"))?, block, record, read)?;
    }
    Ok(())
}
