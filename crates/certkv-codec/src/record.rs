//! Writes one block of one KV head as the record that the kernels read.
//!
//! The bytes are those of `certkv_core::layout`; the codes are bit for bit those of [`crate::channel8`],
//! [`crate::token_sym`], [`crate::affine`] and [`crate::fp8`], whose row functions this module calls; the summary is measured on the
//! decoded block as in [`crate::annotate`]. A TurboQuant side ([`crate::turboquant`], levels as bytes) is rotated first and
//! measured as it lies: a rotation leaves every norm as it was. Calibrated keys are measured in the metric that they are coded
//! in ([`crate::metric`]), as (4.4) and (4.9) want it; spherical keys ([`crate::spherical`]) as they are.
use crate::annotate::{Spectral, publish};
use crate::error::{CodecError, Input, consistent, sized};
use crate::groups::KeyGroups;
use crate::metric::KeyMetric;
use crate::numeric::{divisor, largest, largest_difference, sum_square_differences, sum_squares};
use crate::page_scale::FixedScales;
use crate::planes::{place_key_row, place_value_quad, write_planes};
use crate::refine::{Residuals, inverse};
use crate::spherical::Spherical;
use crate::token_sym::{Mode, Sharing, Spec};
use crate::words::{widen, write_scales, write_words};
use crate::{affine, channel8, identity, page_scale, token_sym, turboquant};
use certkv_core::{
    Dtype, ErrorSummary, KeyFormat, RecordLayout, RefinedSummary, ValueFormat, planted, summary::SUMMARY_BYTES,
};

mod turbo;
use turbo::Turbo;

/// Encoder of records of one layout. Owns every buffer that coding needs: [`Encoder::encode`] allocates nothing.
#[derive(Debug, Clone)]
pub struct Encoder {
    layout: RecordLayout,
    valid: Result<(), CodecError>,
    single: Vec<f32>,
    keys: Vec<f64>,
    values: Vec<f64>,
    centre: Vec<f64>,
    key_scales: Vec<f64>,
    key_offsets: Vec<f64>,
    divisors: Vec<f64>,
    value_scales: Vec<f64>,
    value_offsets: Vec<f64>,
    key_codes: Vec<u8>,
    value_codes: Vec<u8>,
    staged: Vec<u8>,
    errors: Vec<f64>,
    panels: Vec<[f64; 4]>,
    spectral: Spectral,
    turbo: Option<Turbo>,
    /// Magnitudes by piece, keys and values, where scales are fixed.
    fixed: Option<[[f32; 16]; 2]>,
    saturated: u64,
}

/// At least what a rotation in float64 is off by, relative to the vector's norm: some twenty roundings of 2^-53, two of a metric
/// before it included.
const TURNED: f64 = 1.0 / (1u64 << 46) as f64;

/// What a side contributes to the summary.
#[derive(Default)]
struct Errors {
    /// `||E||_op`, or the norm of the scaled errors for per-channel keys.
    spectral: f64,
    /// `max_t ||e_t||`.
    largest: f64,
}

impl Errors {
    /// The same for `rows` rotated vectors of at most this norm, whose rotation was rounded.
    fn turned(self, norm: f64, rows: usize) -> Self {
        let off = TURNED * norm;
        Self { spectral: self.spectral + off * (rows as f64).sqrt(), largest: self.largest + off }
    }
}

impl Encoder {
    /// An encoder with buffers for this layout. A layout that was not built by [`RecordLayout::new`] and does not fit
    /// its own format is refused by [`Encoder::encode`].
    pub fn new(layout: &RecordLayout) -> Self {
        let valid = consistent(layout);
        let (n, dim) = if valid.is_ok() { (layout.tokens(), layout.dim) } else { (0, 0) };
        let count = n * dim;
        let (key_groups, value_groups) = match valid {
            Ok(()) => (layout.format.key.scales(dim, n), dim / layout.format.value.group(dim)),
            Err(_) => (0, 0),
        };
        let key_scales = match layout.format.key {
            KeyFormat::Channel { .. } => dim,
            KeyFormat::Page { .. } => key_groups,
            key if key.tier().is_some() => key_groups,
            _ => n * key_groups,
        };
        let by_block = matches!(layout.format.value, ValueFormat::Page { .. } | ValueFormat::Channel { .. });
        let value_scales = value_groups * if by_block { 1 } else { n };
        Self {
            layout: layout.clone(),
            valid,
            single: vec![0.0; count],
            keys: vec![0.0; count],
            values: vec![0.0; count],
            centre: vec![0.0; dim],
            key_scales: vec![0.0; key_scales],
            key_offsets: vec![0.0; dim],
            divisors: vec![0.0; dim],
            value_scales: vec![0.0; value_scales],
            value_offsets: vec![0.0; value_scales],
            key_codes: vec![0; count],
            value_codes: vec![0; count],
            staged: vec![0; count],
            errors: vec![0.0; count],
            panels: vec![[0.0; 4]; count / 4],
            spectral: Spectral::new(n),
            turbo: if valid.is_ok() { Turbo::new(layout) } else { None },
            fixed: None,
            saturated: 0,
        }
    }

    /// The layout of the records written.
    pub const fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    /// Scales of sides with one scale per block for the blocks to come: made of these magnitudes, or, `None`, of each block. Other sides have
    /// their own whatever is fixed.
    ///
    /// # Errors
    /// [`CodecError::Shape`] for another number of magnitudes, [`CodecError::NonFinite`] for one that is NaN, infinite or negative. Nothing
    /// changes then.
    pub fn fix_scales(&mut self, fixed: Option<FixedScales<'_>>) -> Result<(), CodecError> {
        let Some(FixedScales { keys, values }) = fixed else {
            self.fixed = None;
            return Ok(());
        };
        let mut kept = [[0.0f32; 16]; 2];
        for (kept, side) in kept.iter_mut().zip([keys, values]) {
            sized(Input::Scale, side.len(), self.layout.dim / FixedScales::PIECE)?;
            if let Some(at) = side.iter().position(|x| !(x.is_finite() && *x >= 0.0)) {
                return Err(CodecError::NonFinite { input: Input::Scale, row: 0, channel: at * FixedScales::PIECE });
            }
            kept.iter_mut().zip(side).for_each(|(kept, x)| *kept = *x);
        }
        self.fixed = Some(kept);
        Ok(())
    }

    /// Elements that fixed scales could not reach since this was last asked, keys and values together.
    pub fn take_saturated(&mut self) -> u64 {
        core::mem::take(&mut self.saturated)
    }

    /// Codes one full block. `keys` and `values` are row-major (tokens, dim) patterns of the layout's store type,
    /// `centre` is the head's value centre, (dim,), and `out` takes `layout.bytes` bytes; gaps between sections are
    /// zeroed.
    ///
    /// # Errors
    /// [`CodecError::Shape`], [`CodecError::NonFinite`], [`CodecError::Metric`] for a calibrated format, or
    /// [`CodecError::ScaleOverflow`]: the block stays uncompressed. `out` is untouched then.
    pub fn encode(&mut self, keys: &[u16], values: &[u16], centre: &[f32], out: &mut [u8]) -> Result<(), CodecError> {
        self.encode_in(None, keys, values, centre, out)
    }

    /// As [`Encoder::encode`], keys in `metric`: given for a calibrated format, and for no other.
    ///
    /// # Errors
    /// As [`Encoder::encode`]; [`CodecError::Metric`] where the format wants it otherwise.
    pub fn encode_in(
        &mut self,
        metric: Option<&KeyMetric<'_>>,
        keys: &[u16],
        values: &[u16],
        centre: &[f32],
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        self.check(keys, values, centre, out)?;
        let needed = self.layout.format.key.is_calibrated();
        if metric.is_some() != needed {
            return Err(CodecError::Metric { needed });
        }
        metric.map_or(Ok(()), |m| m.check(&self.layout))?;
        let (groups, books) = (metric.and_then(|m| m.groups()), metric.and_then(|m| m.books()));
        let (dim, store) = (self.layout.dim, self.layout.store);
        widen(keys, store, &mut self.single, &mut self.keys);
        widen(values, store, &mut self.single, &mut self.values);
        self.centre.iter_mut().zip(centre).for_each(|(c, x)| *c = f64::from(*x));
        let key_norm = largest(&self.keys, dim);
        let radius = largest_difference(&self.values, &self.centre, dim);
        if let Some(metric) = metric {
            self.keys.chunks_exact_mut(dim).for_each(|key| metric.fold(key));
        }
        if let Some(groups) = groups {
            // Offsets are those of other formats: room for a row.
            self.keys.chunks_exact_mut(dim).for_each(|key| groups.turn(key, &mut self.key_offsets));
        }
        self.turn();
        // Every scale first: whatever can fail has failed before the first byte is written.
        self.scale_keys(groups, books)?;
        self.scale_values()?;

        out.fill(0);
        // Both sides leave their errors in one buffer: a side is refined before the next is coded.
        let key = self.write_keys(groups, books, keys, out);
        let refined_key = self.refine_keys(out);
        let value = self.write_values(values, out);
        let mut value_norm = self.value_norm();
        let refined = refined_key.zip(self.refine_values(out)).map(|(key, value)| {
            value_norm = value_norm.max(self.value_norm());
            RefinedSummary {
                kappa: publish(key.spectral),
                eps: publish(key.largest),
                eta: publish(value.largest),
                sop: publish(value.spectral),
            }
        });
        let summary = ErrorSummary {
            kappa: publish(key.spectral),
            eps: publish(key.largest),
            key_mag: publish(self.key_magnitude(groups, books)),
            key_norm: publish(key_norm),
            eta: publish(value.largest),
            sop: publish(value.spectral),
            radius: publish(radius),
            value_norm: publish(value_norm),
        };
        if let Some((main, rest)) =
            out.get_mut(self.layout.summary.clone()).and_then(|s| s.split_at_mut_checked(SUMMARY_BYTES))
        {
            main.copy_from_slice(&summary.to_bytes());
            if let Some(refined) = refined {
                rest.copy_from_slice(&refined.to_bytes());
            }
        }
        Ok(())
    }

    fn check(&self, keys: &[u16], values: &[u16], centre: &[f32], out: &[u8]) -> Result<(), CodecError> {
        let l = &self.layout;
        self.valid?;
        sized(Input::Keys, keys.len(), l.count())?;
        sized(Input::Values, values.len(), l.count())?;
        sized(Input::Centre, centre.len(), l.dim)?;
        sized(Input::Output, out.len(), l.bytes)?;
        identity::finite_words(Input::Keys, keys, l.dim, l.store)?;
        identity::finite_words(Input::Values, values, l.dim, l.store)?;
        match centre.iter().position(|c| !c.is_finite()) {
            None => Ok(()),
            Some(channel) => Err(CodecError::NonFinite { input: Input::Centre, row: 0, channel }),
        }
    }

    /// Rotates the sides that are coded so.
    fn turn(&mut self) {
        let Some(turbo) = &mut self.turbo else { return };
        for (book, side) in [(&turbo.keys, &mut self.keys), (&turbo.values, &mut self.values)] {
            if book.is_some() {
                let rows = side.chunks_exact_mut(self.layout.dim);
                rows.for_each(|row| turbo.rotation.turn(row));
            }
        }
    }

    fn scale_keys(&mut self, groups: Option<&KeyGroups>, books: Option<&Spherical>) -> Result<(), CodecError> {
        let dim = self.layout.dim;
        if let Some(books) = books {
            return books.fit(&self.keys, &mut self.key_codes, &mut self.errors, &mut self.key_scales);
        }
        match self.layout.format.key {
            KeyFormat::F16 | KeyFormat::Bf16 => Ok(()),
            KeyFormat::Channel { bits, meta } => {
                let (sigma, z) = (&mut self.key_scales, &mut self.key_offsets);
                channel8::scales(Input::Keys, &self.keys, dim, bits, meta, sigma, z)
            }
            KeyFormat::Token { bits, .. } => {
                let group = self.layout.format.key.group(dim);
                let spec = Spec { bits, group, sharing: Sharing::Token, mode: Mode::Tread, meta: Dtype::F16 };
                let scales = self.key_scales.chunks_exact_mut(dim / group);
                for (row, (key, scale)) in self.keys.chunks_exact(dim).zip(scales).enumerate() {
                    token_sym::largest_row(key, group, scale);
                    token_sym::round_scales(scale, row, &spec)?;
                }
                Ok(())
            }
            KeyFormat::Turbo { .. } => {
                let Some(book) = self.turbo.as_ref().and_then(|t| t.keys.as_ref()) else { return Ok(()) };
                book.fit(&self.keys, dim, Input::Keys, &mut self.key_codes, &mut self.key_scales)
            }
            KeyFormat::Gtq { .. } => {
                let Some(groups) = groups else { return Err(CodecError::Metric { needed: true }) };
                let rows = self.keys.chunks_exact(dim).zip(self.key_codes.chunks_exact_mut(dim));
                let radii = self.key_scales.chunks_exact_mut(self.layout.key_slots());
                rows.zip(radii).enumerate().try_for_each(|(row, ((y, codes), r))| groups.fit(y, row, codes, r))
            }
            KeyFormat::Page { code, .. } => {
                let spec = page_scale::Spec { code, group: self.layout.format.key.group(dim) };
                let fixed = self.fixed.as_ref().map(|[keys, _]| &keys[..dim / FixedScales::PIECE]);
                spec.scales(&self.keys, dim, fixed, Input::Keys, &mut self.key_scales)
            }
        }
    }

    fn scale_values(&mut self) -> Result<(), CodecError> {
        let dim = self.layout.dim;
        if let Some(book) = self.turbo.as_ref().and_then(|t| t.values.as_ref()) {
            return book.fit(&self.values, dim, Input::Values, &mut self.value_codes, &mut self.value_scales);
        }
        if let ValueFormat::Page { code, .. } = self.layout.format.value {
            let spec = page_scale::Spec { code, group: self.layout.format.value.group(dim) };
            let fixed = self.fixed.as_ref().map(|[_, values]| &values[..dim / FixedScales::PIECE]);
            return spec.scales(&self.values, dim, fixed, Input::Values, &mut self.value_scales);
        }
        if let ValueFormat::Channel { bits } = self.layout.format.value {
            let (sigma, z) = (&mut self.value_scales, &mut self.value_offsets);
            return channel8::scales(Input::Values, &self.values, dim, bits, Dtype::F16, sigma, z);
        }
        let ValueFormat::Affine { bits, group } = self.layout.format.value else { return Ok(()) };
        let group = group as usize;
        let sigma = self.value_scales.chunks_exact_mut(dim / group);
        let scales = sigma.zip(self.value_offsets.chunks_exact_mut(dim / group));
        for (row, (value, (sigma, z))) in self.values.chunks_exact(dim).zip(scales).enumerate() {
            affine::scales_row(value, row, group, bits, Dtype::F16, sigma, z)?;
        }
        Ok(())
    }

    fn write_keys(
        &mut self,
        groups: Option<&KeyGroups>,
        books: Option<&Spherical>,
        words: &[u16],
        out: &mut [u8],
    ) -> Errors {
        let (l, dim) = (&self.layout, self.layout.dim);
        if let Some(books) = books {
            let (codes, scale, section) = (&self.key_codes, &self.key_scales, &mut out[l.key_codes.clone()]);
            books.write(&self.keys, codes, scale, &mut self.staged, &mut self.errors, section);
            write_scales(self.key_scales.iter(), Dtype::F16, &mut out[l.key_scales.clone()]);
            self.divisors.fill(1.0);
            return self.measure();
        }
        let rows = self.keys.chunks_exact(dim).zip(self.key_codes.chunks_exact_mut(dim));
        let rows = rows.zip(self.errors.chunks_exact_mut(dim)).enumerate();
        match l.format.key {
            KeyFormat::F16 | KeyFormat::Bf16 => {
                write_words(words, &mut out[l.key_codes.clone()]);
                return Errors::default();
            }
            KeyFormat::Channel { bits, meta } => {
                self.divisors.iter_mut().zip(&self.key_scales).for_each(|(by, s)| *by = divisor(*s));
                for (token, ((key, codes), errors)) in rows {
                    channel8::code_row(key, bits, &self.key_scales, &self.divisors, &self.key_offsets, codes, errors);
                    place_key_row(codes, token, &mut self.staged);
                }
                let (sigma, z) = out[l.key_scales.clone()].split_at_mut(dim * meta.bytes());
                write_scales(self.key_scales.iter(), meta, sigma);
                write_scales(self.key_offsets.iter(), meta, z);
                // (3.6) measures the errors in steps of their channel.
                self.divisors.iter_mut().zip(&self.key_scales).for_each(|(by, s)| *by = inverse(*s));
            }
            KeyFormat::Token { bits, .. } => {
                let group = l.format.key.group(dim);
                let groups = dim / group;
                for ((token, ((key, codes), errors)), scale) in rows.zip(self.key_scales.chunks_exact(groups)) {
                    token_sym::code_row(key, group, bits, scale, codes, errors);
                    place_key_row(codes, token, &mut self.staged);
                }
                let section = out[l.key_scales.clone()].chunks_exact_mut(l.tokens() * 2);
                for (g, section) in section.enumerate() {
                    write_scales(self.key_scales.iter().skip(g).step_by(groups), Dtype::F16, section);
                }
                self.divisors.fill(1.0);
            }
            KeyFormat::Turbo { .. } => {
                let Some(book) = self.turbo.as_ref().and_then(|t| t.keys.as_ref()) else { return Errors::default() };
                for ((token, ((key, codes), errors)), radius) in rows.zip(&self.key_scales) {
                    book.errors(key, codes, *radius, errors);
                    place_key_row(codes, token, &mut self.staged);
                }
                write_scales(self.key_scales.iter(), Dtype::F16, &mut out[l.key_scales.clone()]);
                self.divisors.fill(1.0);
            }
            KeyFormat::Gtq { .. } => {
                let (Some(groups), slots) = (groups, l.key_slots()) else { return Errors::default() };
                for ((token, ((key, codes), errors)), radii) in rows.zip(self.key_scales.chunks_exact(slots)) {
                    groups.errors(key, codes, radii, errors);
                    groups.place(codes, token, l.tokens(), &mut self.staged);
                }
                for (g, section) in out[l.key_scales.clone()].chunks_exact_mut(l.tokens() * 2).enumerate() {
                    write_scales(self.key_scales.iter().skip(g).step_by(slots), Dtype::F16, section);
                }
                self.divisors.fill(1.0);
            }
            KeyFormat::Page { code, .. } => {
                let spec = page_scale::Spec { code, group: l.format.key.group(dim) };
                for (token, ((key, codes), errors)) in rows {
                    self.saturated += spec.code_row(key, &self.key_scales, codes, errors) as u64;
                    place_key_row(codes, token, &mut self.staged);
                }
                write_scales(self.key_scales.iter(), Dtype::F16, &mut out[l.key_scales.clone()]);
                self.divisors.fill(1.0);
                if code.is_float() {
                    out[l.key_codes.clone()].copy_from_slice(&self.key_codes);
                    return self.measure();
                }
            }
        }
        match groups {
            Some(groups) => groups.write(&self.staged, l.tokens(), &mut out[l.key_codes.clone()]),
            None => write_planes(&self.staged, l.format.key.bits(), &mut out[l.key_codes.clone()]),
        }
        let turned = l.format.key.is_rotated();
        let errors = self.measure();
        if turned { errors.turned(largest(&self.keys, dim), self.layout.tokens()) } else { errors }
    }

    fn write_values(&mut self, words: &[u16], out: &mut [u8]) -> Errors {
        let (l, dim) = (&self.layout, self.layout.dim);
        if let Some(book) = self.turbo.as_ref().and_then(|t| t.values.as_ref()) {
            let rows = self.values.chunks_exact(dim).zip(self.value_codes.chunks_exact_mut(dim));
            for (((value, codes), errors), radius) in
                rows.zip(self.errors.chunks_exact_mut(dim)).zip(&self.value_scales)
            {
                book.errors(value, codes, *radius, errors);
            }
            write_scales(self.value_scales.iter(), Dtype::F16, &mut out[l.value_scales.clone()]);
            self.place_values();
            write_planes(&self.staged, self.layout.format.value.bits(), &mut out[self.layout.value_codes.clone()]);
            self.divisors.fill(1.0);
            return self.measure().turned(largest(&self.values, dim), self.layout.tokens());
        }
        if let ValueFormat::Page { code, .. } = l.format.value {
            let spec = page_scale::Spec { code, group: l.format.value.group(dim) };
            let rows = self.values.chunks_exact(dim).zip(self.value_codes.chunks_exact_mut(dim));
            for ((value, codes), errors) in rows.zip(self.errors.chunks_exact_mut(dim)) {
                self.saturated += spec.code_row(value, &self.value_scales, codes, errors) as u64;
            }
            write_scales(self.value_scales.iter(), Dtype::F16, &mut out[l.value_scales.clone()]);
            let section = l.value_codes.clone();
            if code.is_float() {
                out[section].copy_from_slice(&self.value_codes);
            } else {
                self.place_values();
                write_planes(&self.staged, code.bits() as usize, &mut out[section]);
            }
            self.divisors.fill(1.0);
            return self.measure();
        }
        if let ValueFormat::Channel { bits } = l.format.value {
            self.divisors.iter_mut().zip(&self.value_scales).for_each(|(by, s)| *by = divisor(*s));
            let rows = self.values.chunks_exact(dim).zip(self.value_codes.chunks_exact_mut(dim));
            for ((value, codes), errors) in rows.zip(self.errors.chunks_exact_mut(dim)) {
                channel8::code_row(value, bits, &self.value_scales, &self.divisors, &self.value_offsets, codes, errors);
            }
            let pairs = self.value_scales.iter().zip(&self.value_offsets).flat_map(|(s, z)| [s, z]);
            write_scales(pairs, Dtype::F16, &mut out[l.value_scales.clone()]);
            let section = l.value_codes.clone();
            self.place_values();
            write_planes(&self.staged, bits as usize, &mut out[section]);
            self.divisors.fill(1.0);
            return self.measure();
        }
        let ValueFormat::Affine { bits, group } = l.format.value else {
            write_words(words, &mut out[l.value_codes.clone()]);
            self.errors.fill(0.0);
            return Errors::default();
        };
        let (group, groups) = (group as usize, dim / group as usize);
        let scales = self.value_scales.chunks_exact(groups).zip(self.value_offsets.chunks_exact(groups));
        let rows = self.values.chunks_exact(dim).zip(self.value_codes.chunks_exact_mut(dim));
        for (((value, codes), errors), (sigma, z)) in rows.zip(self.errors.chunks_exact_mut(dim)).zip(scales) {
            affine::code_row(value, group, sigma, z, codes, errors);
        }
        self.place_values();
        let l = &self.layout;
        write_planes(&self.staged, bits as usize, &mut out[l.value_codes.clone()]);
        let (sigma, z) = out[l.value_scales.clone()].split_at_mut(l.tokens() * groups * 2);
        let stride = l.tokens() * 2;
        let written = if planted!(B17) { 0 } else { groups };
        let sections = sigma.chunks_exact_mut(stride).zip(z.chunks_exact_mut(stride));
        for (g, (sigma, z)) in sections.enumerate().take(written) {
            write_scales(self.value_scales.iter().skip(g).step_by(groups), Dtype::F16, sigma);
            write_scales(self.value_offsets.iter().skip(g).step_by(groups), Dtype::F16, z);
        }
        self.divisors.fill(1.0);
        self.measure()
    }

    /// Writes the key residuals, math.md (2.23), after [`Encoder::write_keys`]: `errors` become those of the refined keys.
    /// `None` for a format without residuals.
    fn refine_keys(&mut self, out: &mut [u8]) -> Option<Errors> {
        let (bits, dim) = (self.layout.format.refine.key, self.layout.dim);
        if bits == 0 {
            return None;
        }
        let residuals = Residuals::new(bits);
        let rows = self.key_codes.chunks_exact_mut(dim).zip(self.errors.chunks_exact_mut(dim));
        for (token, (codes, errors)) in rows.enumerate() {
            // The divisors are the inverses of the steps here.
            let steps = self.key_scales.iter().zip(&self.divisors).map(|(step, by)| (*step, *by));
            residuals.row(steps, codes, errors);
            place_key_row(codes, token, &mut self.staged);
        }
        write_planes(&self.staged, bits as usize, &mut out[self.layout.key_residuals.clone()]);
        Some(self.measure())
    }

    /// The same for values, after [`Encoder::write_values`].
    fn refine_values(&mut self, out: &mut [u8]) -> Option<Errors> {
        let (l, bits, dim) = (&self.layout, self.layout.format.refine.value, self.layout.dim);
        if bits == 0 {
            return None;
        }
        let (residuals, group) = (Residuals::new(bits), l.format.value.group(dim));
        if let ValueFormat::Channel { .. } = l.format.value {
            let rows = self.value_codes.chunks_exact_mut(dim).zip(self.errors.chunks_exact_mut(dim));
            for (codes, errors) in rows {
                residuals.row(self.value_scales.iter().map(|step| (*step, inverse(*step))), codes, errors);
            }
            self.place_values();
            write_planes(&self.staged, bits as usize, &mut out[self.layout.value_residuals.clone()]);
            return Some(self.measure());
        }
        let parts = self.value_codes.chunks_exact_mut(group).zip(self.errors.chunks_exact_mut(group));
        for ((codes, errors), step) in parts.zip(&self.value_scales) {
            residuals.row(core::iter::repeat((*step, inverse(*step))), codes, errors);
        }
        self.place_values();
        write_planes(&self.staged, bits as usize, &mut out[self.layout.value_residuals.clone()]);
        Some(self.measure())
    }

    /// Stages `value_codes` in value order.
    fn place_values(&mut self) {
        let dim = self.layout.dim;
        for (quad, run) in self.value_codes.chunks_exact(4 * dim).zip(self.staged.chunks_exact_mut(4 * dim)) {
            place_value_quad(quad, dim, run);
        }
    }

    /// Norms of `errors`; for the spectral one, channels are multiplied by `divisors`.
    fn measure(&mut self) -> Errors {
        let dim = self.layout.dim;
        for (panel, quad) in self.panels.chunks_exact_mut(dim).zip(self.errors.chunks_exact(4 * dim)) {
            let (a, rest) = quad.split_at(dim);
            let (b, rest) = rest.split_at(dim);
            let (c, d) = rest.split_at(dim);
            let rows = a.iter().zip(b).zip(c).zip(d).zip(&self.divisors);
            for (slot, ((((a, b), c), d), by)) in panel.iter_mut().zip(rows) {
                *slot = [a * by, b * by, c * by, d * by];
            }
        }
        let largest = self.errors.chunks_exact(dim).map(sum_squares).fold(0.0, f64::max).sqrt();
        Errors { spectral: self.spectral.norm(&self.panels, dim), largest }
    }

    /// `||x||` with `x_c` the largest magnitude that enters channel `c`'s products, for (4.12).
    fn key_magnitude(&mut self, groups: Option<&KeyGroups>, books: Option<&Spherical>) -> f64 {
        let dim = self.layout.dim;
        if let Some(books) = books {
            return books.magnitude(&self.key_scales);
        }
        match self.layout.format.key {
            KeyFormat::F16 | KeyFormat::Bf16 => {
                let x = &mut self.divisors;
                x.fill(0.0);
                for key in self.keys.chunks_exact(dim) {
                    x.iter_mut().zip(key).for_each(|(x, k)| *x = if k.abs() > *x { k.abs() } else { *x });
                }
                sum_squares(x).sqrt()
            }
            KeyFormat::Channel { bits, .. } => {
                let (half, scales) = (f64::from(channel8::half(bits)), self.key_scales.iter().zip(&self.key_offsets));
                scales.map(|(s, z)| half * s + z.abs()).map(|x| x * x).sum::<f64>().sqrt()
            }
            KeyFormat::Turbo { bits, .. } => {
                let most = self.key_scales.iter().fold(0.0f64, |m, s| s.max(m));
                turboquant::last_level(bits) * most * (dim as f64).sqrt()
            }
            KeyFormat::Gtq { .. } => groups.map_or(0.0, |g| g.magnitude(&self.key_scales, self.layout.key_slots())),
            KeyFormat::Page { code, .. } => {
                page_scale::Spec { code, group: self.layout.format.key.group(dim) }.magnitude(&self.key_scales)
            }
            KeyFormat::Token { bits, .. } => {
                let group = self.layout.format.key.group(dim);
                let half = f64::from(1u16 << (bits - 1));
                let largest = |g: usize| self.key_scales.iter().skip(g).step_by(dim / group).fold(0.0, |m, s| s.max(m));
                (0..dim / group).map(|g| (half * largest(g)).powi(2) * group as f64).sum::<f64>().sqrt()
            }
        }
    }

    /// `max_t max(||v_t||, ||v^_t||)`, or more; `errors` holds those of the values, coded or refined.
    fn value_norm(&self) -> f64 {
        if let ValueFormat::Channel { bits } = self.layout.format.value {
            return channel8::magnitude(bits, &self.value_scales, &self.value_offsets);
        }
        let rows = self.values.chunks_exact(self.layout.dim).zip(self.errors.chunks_exact(self.layout.dim));
        rows.map(|(v, e)| sum_squares(v).max(sum_square_differences(v, e))).fold(0.0, f64::max).sqrt()
    }
}
