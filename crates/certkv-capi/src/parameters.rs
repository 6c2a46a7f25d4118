//! Checks of the parameters of who decides levels, so that a refusal names the field.
use crate::argument;
use crate::guard::Failure;
use certkv::danger::Gating;
use core::fmt::Display;

/// The parameters of one struct, by the name that it has in messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters(&'static str);

impl Parameters {
    pub(crate) const fn of(name: &'static str) -> Self {
        Self(name)
    }

    /// Refuses a field.
    pub(crate) fn wrong<T>(self, field: &str, value: &dyn Display, must: &str) -> Result<T, Failure> {
        Err(argument::invalid(format!("{}->{field} = {value}: must be {must}", self.0)))
    }

    /// All finite, and none negative.
    pub(crate) fn finite(self, fields: &[(&str, f64)]) -> Result<(), Failure> {
        // Ranges hold no NaN.
        match fields.iter().find(|(_, x)| !(0.0..f64::INFINITY).contains(x)) {
            Some((field, x)) => self.wrong(field, x, "finite and not negative"),
            None => Ok(()),
        }
    }

    /// All at least 0 and below 1.
    pub(crate) fn shares(self, fields: &[(&str, f64)]) -> Result<(), Failure> {
        match fields.iter().find(|(_, x)| !(0.0..1.0).contains(x)) {
            Some((field, x)) => self.wrong(field, x, "at least 0 and below 1"),
            None => Ok(()),
        }
    }

    /// All from `least` to 2^31.
    pub(crate) fn counts(self, least: u64, fields: &[(&str, u64)]) -> Result<(), Failure> {
        match fields.iter().find(|(_, n)| !(least..=1 << 31).contains(n)) {
            Some((field, n)) => self.wrong(field, n, &format!("{least} to 2^31")),
            None => Ok(()),
        }
    }

    /// A gate by its two dangers; none where both are 0.
    pub(crate) fn gate(self, protect: f64, release: f64) -> Result<Option<Gating>, Failure> {
        if (protect, release) == (0.0, 0.0) {
            return Ok(None);
        }
        let gating = Gating { protect, release };
        match gating.gate() {
            Ok(_) => Ok(Some(gating)),
            Err(_) => self.wrong("gate_release", &release, &format!("at least 0 and below gate_protect, {protect}")),
        }
    }
}

/// The other way: `gate_protect` and `gate_release` of a rule.
pub(crate) fn gate_fields(gate: Option<Gating>) -> [f64; 2] {
    gate.map_or([0.0; 2], |Gating { protect, release }| [protect, release])
}
