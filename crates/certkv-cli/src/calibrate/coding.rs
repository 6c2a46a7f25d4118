//! TurboQuant and Block-GTQ keys as ways to be measured.
use super::evidence::Way;
use certkv_codec::{
    gtq::{self, BlockGtq, Group, Scheme},
    turboquant::Radius,
};
use certkv_control::{
    Calibration, CalibrationError,
    calibration::{HeadScheme, Rule},
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
