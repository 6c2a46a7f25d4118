//! The unit of the kernels: 64 aligned bytes, sixteen `f32` lanes or sixty-four codes.

/// Sixteen `f32` lanes, aligned to a cache line so that a 512-bit load never straddles two.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

/// `a b + c`, fused where the machine has it without asking: elsewhere a fused operation would be a library call. Two
/// roundings instead of one are counted in `slack::logit_chain` and `slack::EXP`.
#[inline(always)]
pub(crate) fn madd(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

impl Line {
    pub(crate) const ZERO: Line = Line([0.0; 16]);

    /// Sum over lanes by halving: 4 additions deep.
    #[inline(always)]
    pub(crate) fn sum(&self) -> f32 {
        let mut a = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                a[i] += a[i + half];
            }
        }
        a[0]
    }

    /// `self += a * b`.
    #[inline(always)]
    pub(crate) fn fma(&mut self, a: &Line, b: &Line) {
        for i in 0..16 {
            self.0[i] = madd(a.0[i], b.0[i], self.0[i]);
        }
    }

    /// `self += a * w`.
    #[inline(always)]
    pub(crate) fn axpy(&mut self, w: f32, a: &Line) {
        for i in 0..16 {
            self.0[i] = madd(a.0[i], w, self.0[i]);
        }
    }

    #[inline(always)]
    pub(crate) fn scale(&mut self, by: f32) {
        for lane in &mut self.0 {
            *lane *= by;
        }
    }
}

/// Sixty-four codes.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Codes(pub(crate) [u8; 64]);

/// `len` zero lines, reserved fallibly by the caller's choice of size.
pub(crate) fn lines(len: usize) -> Vec<Line> {
    vec![Line::ZERO; len]
}

/// Copies a flat slice of `16 n` values into `n` lines; missing values stay as they are.
pub(crate) fn fill(lines: &mut [Line], flat: &[f32]) {
    for (line, chunk) in lines.iter_mut().zip(flat.chunks(16)) {
        line.0[..chunk.len()].copy_from_slice(chunk);
    }
}
