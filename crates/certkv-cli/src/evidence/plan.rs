//! How much is measured, and on which text. What schemes, centres and codebooks are calibrated on is the end of the prose; windows are
//! drawn from the rest, one from each of as many equal pieces, so that they never overlap.
use crate::{demo::defaults, error::CliError, tasks::Window};
use certkv_core::hash::hash64;
use std::ops::Range;

/// Sizes of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// Windows of each part of the text.
    pub windows: usize,
    /// Bytes of a window.
    pub length: usize,
    /// Bytes predicted at its end.
    pub scored: usize,
    /// Steps between outputs that are recomputed.
    pub witness: u64,
    /// Prompts of each needle task.
    pub needles: usize,
    /// Bytes of a window whose logits are measured.
    pub logits: usize,
    /// Prompt and steps of SmartKV.
    pub smart: [usize; 2],
    /// Random instances of the width problem, of each size.
    pub instances: usize,
    /// Bytes of a window of the spherical ablation, and of one of its tail.
    pub spherical: [usize; 2],
    /// Windows of each part for that.
    pub spherical_windows: usize,
    /// Prompts of the spherical witnesses, and sampled answers to each.
    pub answers: [usize; 2],
    /// Seeds of codebooks.
    pub books: u64,
    /// Tokens of the calibration.
    pub calibration: usize,
}

impl Sizes {
    /// What conclusions are drawn from.
    pub const FULL: Self = Self {
        windows: 4,
        length: 4096,
        scored: 64,
        witness: 4,
        needles: 8,
        logits: 2047,
        smart: [4096, 193],
        instances: 1000,
        spherical: [2048, 4096],
        spherical_windows: 2,
        answers: [8, 8],
        books: 3,
        calibration: 2048,
    };

    /// What shows that everything runs.
    pub const QUICK: Self = Self {
        windows: 1,
        length: 320,
        scored: 8,
        witness: 4,
        needles: 1,
        logits: 255,
        smart: [1024, 34],
        instances: 50,
        spherical: [256, 320],
        spherical_windows: 1,
        answers: [1, 2],
        books: 2,
        calibration: 384,
    };
}

/// The bundled text: equal parts, the first of which ends with what calibrations read.
#[derive(Debug, Clone)]
pub struct Text {
    bytes: Vec<u8>,
    calibration: usize,
}

impl Text {
    /// The text, of which the last `calibration` bytes of the first part are for calibrations.
    ///
    /// # Errors
    /// [`CliError::Input`] if it is too short for that.
    pub fn new(bytes: Vec<u8>, calibration: usize) -> Result<Self, CliError> {
        if bytes.len() / defaults::TEXT_PARTS.len() < 4 * calibration {
            return Err(CliError::input(format!("the text has {} bytes: too few to calibrate on", bytes.len())));
        }
        Ok(Self { bytes, calibration })
    }

    /// What calibrations read.
    pub fn calibration(&self) -> &[u8] {
        let end = self.bytes.len() / defaults::TEXT_PARTS.len();
        &self.bytes[end - self.calibration..end]
    }

    /// Where windows of a part may lie.
    fn room(&self, part: usize) -> Range<usize> {
        let size = self.bytes.len() / defaults::TEXT_PARTS.len();
        part * size..(part + 1) * size - if part == 0 { self.calibration } else { 0 }
    }

    /// `count` windows of every part, of `length` bytes with `scored` predicted, and where each begins. The seed draws them.
    ///
    /// # Errors
    /// [`CliError::Input`] if they do not fit.
    pub fn windows(
        &self,
        count: usize,
        length: usize,
        scored: usize,
        seed: u64,
    ) -> Result<Vec<(usize, Window)>, CliError> {
        let mut windows = Vec::new();
        for (number, part) in defaults::TEXT_PARTS.iter().enumerate() {
            let room = self.room(number);
            let piece = room.len() / count.max(1);
            if piece < length {
                return Err(CliError::input(format!("{count} windows of {length} bytes do not fit the text")));
            }
            for i in 0..count {
                let free = (piece - length + 1) as u64;
                let start = room.start + i * piece + (hash64(&[seed, number as u64, i as u64]) % free) as usize;
                let bytes = self.bytes[start..start + length].to_vec();
                windows.push((start, Window { part: (*part).into(), bytes, scored }));
            }
        }
        Ok(windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_never_meet_each_other_or_the_calibration() {
        let text = Text::new((0..20_000u32).map(|i| i as u8).collect(), 512).unwrap();
        for seed in 0..50 {
            let windows = text.windows(3, 1000, 8, seed).unwrap();
            let mut taken: Vec<Range<usize>> = windows.iter().map(|(at, w)| *at..at + w.bytes.len()).collect();
            taken.push(10_000 - 512..10_000);
            taken.sort_by_key(|r| r.start);
            assert!(taken.windows(2).all(|two| two[0].end <= two[1].start), "{taken:?}");
            assert!(windows[..3].iter().all(|(at, w)| *at < 10_000 && w.part == "prose"));
            assert!(windows[3..].iter().all(|(at, w)| *at >= 10_000 && w.part == "code"));
        }
        assert_ne!(text.windows(3, 1000, 8, 1).unwrap()[0].0, text.windows(3, 1000, 8, 2).unwrap()[0].0);
        assert!(text.windows(10, 1000, 8, 1).is_err() && Text::new(vec![0; 1000], 512).is_err());
        assert_eq!(text.calibration()[0], (10_000u32 - 512) as u8);
    }
}
