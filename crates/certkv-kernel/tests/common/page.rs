//! Sides with one scale per block and group of channels: written and read one element at a time.
use super::{get, put};
use certkv_codec::fp8::Fp8;
use certkv_core::layout::{read_code, write_code};
use certkv_core::round::{F16, up};
use certkv_core::{Dtype, PageCode};
use std::ops::Range;

fn float(code: PageCode) -> Option<Fp8> {
    match code {
        PageCode::E4m3 => Some(Fp8::E4m3),
        PageCode::E5m2 => Some(Fp8::E5m2),
        PageCode::Int(_) => None,
    }
}

/// Where a side lies and how it is coded: `order` is its element order of integer codes.
pub struct Side<'a> {
    pub code: PageCode,
    pub group: usize,
    pub codes: &'a Range<usize>,
    pub scales: &'a Range<usize>,
    pub order: &'a dyn Fn(usize, usize) -> usize,
}

impl Side<'_> {
    fn half(&self) -> f64 {
        f64::from(1u16 << (self.code.bits() - 1))
    }

    pub fn write(&self, rows: &[Vec<f64>], record: &mut [u8]) {
        let dim = rows[0].len();
        for g in 0..dim / self.group {
            let channels = g * self.group..(g + 1) * self.group;
            let most = rows.iter().flat_map(|row| &row[channels.clone()]).fold(0.0f64, |m, x| m.max(x.abs()));
            let s = up(most / float(self.code).map_or(self.half() - 1.0, |kind| kind.format().max), F16);
            put(&mut record[self.scales.clone()], Dtype::F16, g, s);
            for (t, c) in (0..rows.len()).flat_map(|t| channels.clone().map(move |c| (t, c))) {
                let x = if s == 0.0 { 0.0 } else { rows[t][c] / s };
                let section = &mut record[self.codes.clone()];
                match float(self.code) {
                    Some(kind) => section[t * dim + c] = kind.code(x),
                    None => {
                        let code = x.round_ties_even().clamp(1.0 - self.half(), self.half() - 1.0) + self.half();
                        let bits = usize::from(self.code.bits());
                        write_code(section, bits, rows.len() * dim, (self.order)(t, c), code as u8);
                    }
                }
            }
        }
    }

    pub fn read(&self, record: &[u8], count: usize, dim: usize, t: usize, c: usize) -> f64 {
        let section = &record[self.codes.clone()];
        let level = match float(self.code) {
            Some(kind) => kind.value(section[t * dim + c]),
            None => {
                let bits = usize::from(self.code.bits());
                f64::from(read_code(section, bits, count, (self.order)(t, c))) - self.half()
            }
        };
        level * get(&record[self.scales.clone()], Dtype::F16, c / self.group)
    }
}
