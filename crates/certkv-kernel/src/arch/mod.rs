//! One algorithm, several machines: [`Arch`] picks a table of block functions once, at construction.
//!
//! `generic` is the plain algorithm and the twin that every instruction-set folder is tested against.
#![allow(
    clippy::needless_range_loop,
    clippy::too_many_arguments,
    reason = "lane loops over several arrays; inner functions whose arguments are registers"
)]
use crate::block::Side;
use crate::channel_values::Join;
use crate::directions::{DirectionCodes, Directions};
use crate::line::{Codes, Line};
use crate::query::{Cursor, Digits, KeyCodes, Shape, Softmax, ValueCodes, ValueScratch, ValueSlack};
use certkv_codec::spherical::Spherical;
use certkv_core::Dtype;

pub(crate) mod generic;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

/// Which implementation computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Portable Rust.
    Generic,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ, VBMI and VNNI.
    Avx512,
}

impl Arch {
    /// Every implementation, slowest first.
    pub const ALL: [Arch; 3] = [Arch::Generic, Arch::Avx2, Arch::Avx512];

    /// The fastest implementation this machine has.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|a| a.is_available()).unwrap_or(Arch::Generic)
    }

    /// True if this machine has the instructions.
    pub fn is_available(self) -> bool {
        self.ops().is_some()
    }

    /// Name as printed in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Generic => "generic",
            Arch::Avx2 => "avx2",
            Arch::Avx512 => "avx512",
        }
    }

    /// The functions, or `None` where the machine lacks the instructions.
    pub(crate) fn ops(self) -> Option<&'static Ops> {
        match self {
            Arch::Generic => Some(&generic::OPS),
            #[cfg(target_arch = "x86_64")]
            Arch::Avx2 => x86_64::avx2::ops(),
            #[cfg(target_arch = "x86_64")]
            Arch::Avx512 => x86_64::avx512::ops(),
            #[cfg(not(target_arch = "x86_64"))]
            Arch::Avx2 | Arch::Avx512 => None,
        }
    }
}

/// The functions of one machine. All take one block for all heads of a group, so that an indirect call is paid per
/// block and not per token. Layouts: `q`, `o`: `[head][dim/16]` lines; `x`, `w`: `[head][X_STRIDE]` lines of tokens.
pub(crate) struct Ops {
    /// Largest digit of `w sigma`: 65535 where digits are unsigned bytes, 32767 where they are signed words.
    pub(crate) weight_levels: f32,
    /// Digits of `q o sigma` for per-channel keys with scales `sigma[d], z[d]` of the given type.
    pub(crate) channel_digits: fn(&[Line], &[u8], Dtype, Shape, &mut Digits, &mut Cursor),
    /// Base-2 logits of a coded key block.
    pub(crate) score_codes: fn(&KeyCodes<'_>, &Digits, &mut [Codes], Shape, &mut [Line], &mut Cursor),
    /// Base-2 logits of rows of 16 bits, or of 8-bit floating-point codes: `mul q.k`.
    pub(crate) score_rows: fn(&Side<'_>, &[Line], f32, Shape, &mut [Line]),
    /// Products of the queries and all directions of spherical keys, by a unit of logits, where the next looks for them.
    pub(crate) fill_directions: fn(&Spherical, &[Line], f32, Shape, &mut Directions),
    /// Base-2 logits of a block of spherical keys.
    pub(crate) score_directions: fn(&DirectionCodes<'_>, &mut Directions, Shape, &mut [Line], &mut Cursor),
    /// Logits of the first `n` tokens to weights, in place; 0 past them.
    pub(crate) weigh: fn(&mut [Line], usize, Shape, &mut Softmax),
    /// `o += sum_t w_t v^_t` over a coded block, the offsets going to the scratch.
    pub(crate) value_codes: ValueFn,
    /// Sums of codes with a scale and an offset per channel into the output.
    pub(crate) join_channels: fn(&Join<'_>, Shape, &mut [Line]) -> f32,
    /// `o += sum_t w_t v_t` over such rows.
    pub(crate) value_rows: fn(&Side<'_>, &[Line], Shape, &mut [Line]),
    /// The certificate's sums of one head over all tiles.
    pub(crate) certify_tiles: crate::certify::TilesFn,
    /// Bounds of one tile of 16 blocks of one head from raw sums.
    pub(crate) seal: crate::stage::SealFn,
    /// Asks for what is left of the next record.
    pub(crate) finish: fn(&mut Cursor),
    /// Asks for lines that will be written.
    pub(crate) own: fn(&mut Cursor),
    /// Causal attention of a strip of rows over one unpacked stretch of keys and values.
    pub(crate) strip: crate::prefill::StripFn,
    /// 16-bit rows to the stretch's form.
    pub(crate) unpack_stretch: crate::prefill::UnpackFn,
}

/// How many of `heads` heads go side by side, where four do as long as there are so many.
pub(crate) const fn at_once(heads: usize) -> usize {
    match heads {
        1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

type ValueFn = fn(&ValueCodes<'_>, &[Line], &Softmax, Shape, &mut ValueScratch, &mut [Line], &mut Cursor) -> ValueSlack;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Rows;
    use crate::line::lines;
    use crate::prefill::{Stretch, Strip};
    use crate::slack::CLAMP;
    use certkv_core::hash::splitmix64;

    fn random(i: u64) -> f32 {
        (splitmix64(i) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn stretch(dim: usize) -> Stretch {
        Stretch { keys: lines(dim * 4), values: lines(64 * dim / 16), dim }
    }

    #[test]
    fn every_machine_agrees_with_the_plain_version() {
        let machines: Vec<_> = Arch::ALL.into_iter().filter(|arch| arch.is_available()).collect();
        assert!(machines.contains(&Arch::Generic));
        machines.into_iter().filter_map(Arch::ops).for_each(agrees);
    }

    fn agrees(ops: &Ops) {
        for dim in [64, 96, 128, 256] {
            let bits: Vec<u16> = (0..2 * 64 * dim).map(|i| Dtype::F16.encode16(random(i as u64))).collect();
            let (mut fast, mut slow) = (stretch(dim), stretch(dim));
            for at in (0..64).step_by(32) {
                let part = |o: usize| Rows::Words(&bits[o + at * dim..o + (at + 32) * dim]);
                (ops.unpack_stretch)(part(0), part(64 * dim), Dtype::F16, 32, at, &mut fast);
                generic::strip::unpack(part(0), part(64 * dim), Dtype::F16, 32, at, &mut slow);
            }
            assert_eq!((&fast.keys, &fast.values), (&slow.keys, &slow.values));
            for n in 1..=13 {
                let mut q = lines(n * dim / 16);
                q.iter_mut()
                    .enumerate()
                    .for_each(|(i, l)| l.0 = std::array::from_fn(|j| 3.0 * random((i * 16 + j) as u64 ^ 77)));
                // Prefixes, and among them rows with a gap.
                let visible: Vec<u64> = (0..n)
                    .map(|i| (1u128 << ((i * 5 + 7) % 65)) as u64)
                    .map(|end| end.wrapping_sub(1))
                    .enumerate()
                    .map(|(i, seen)| if i % 3 == 2 { seen & !0x00ff_ff00 } else { seen })
                    .collect();
                let run = |f: fn(&Stretch, &mut Strip<'_>)| {
                    let (mut e, mut l, mut o) = (vec![-2.0 * CLAMP; n], vec![0.0; n], lines(n * dim / 16));
                    for _ in 0..2 {
                        let (exponent, l, o) = (&mut e[..], &mut l[..], &mut o[..]);
                        f(&fast, &mut Strip { q: &q, unit: 0.11, visible: &visible, exponent, l, o });
                    }
                    (e, l, o)
                };
                let (a, b) = (run(ops.strip), run(generic::strip::strip));
                assert_eq!(a.0, b.0);
                for (x, y) in a.1.iter().zip(&b.1) {
                    assert!((x - y).abs() <= 1e-5 * y.abs().max(1e-30), "{x} {y}");
                }
                for (x, y) in a.2.iter().zip(&b.2).flat_map(|(x, y)| x.0.iter().zip(&y.0)) {
                    assert!((x - y).abs() <= 2e-5 * (1.0 + y.abs()), "dim {dim} rows {n}: {x} {y}");
                }
            }
        }
    }
}
