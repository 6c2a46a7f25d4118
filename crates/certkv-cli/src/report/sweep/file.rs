//! A sweep as text: JSON with one layer a line, checked field by field when it is read.
use super::{
    data::{Curve, CurvePoint, ReadShare, SCHEMA, Sweep},
    error::SweepError,
};
use certkv_core::Format;
use serde_json::Value;

/// The sweep behind the default format and tolerance, as it lies in `assets/curves`.
const RECORDED: &str = include_str!("../../../../../assets/curves/ref-d128.json");

/// Objects and arrays down to this depth are broken over lines: `curves[..].points[..].layers[..]` stays on one.
const BROKEN: usize = 6;

/// The recorded sweep that every report of the bundled model shows.
///
/// # Errors
/// [`SweepError`] when the file was damaged before this program was built.
pub fn recorded() -> Result<Sweep, SweepError> {
    Sweep::parse(RECORDED)
}

impl Sweep {
    /// Reads what [`Sweep::to_text`] writes.
    ///
    /// # Errors
    /// [`SweepError`] names the first field that cannot be.
    pub fn parse(text: &str) -> Result<Self, SweepError> {
        let sweep: Self = serde_json::from_str(text).map_err(SweepError::Json)?;
        if sweep.schema != SCHEMA {
            return Err(SweepError::Schema { found: sweep.schema });
        }
        if sweep.curves.is_empty() {
            return refuse("curves", "is empty");
        }
        for (i, curve) in sweep.curves.iter().enumerate() {
            check_curve(&format!("curves[{i}]"), curve, sweep.setting.layers)?;
            if sweep.curves[..i].iter().any(|c| c.format == curve.format) {
                return refuse(&format!("curves[{i}].format"), format!("`{}` was there before", curve.format));
            }
        }
        Ok(sweep)
    }

    /// The file.
    ///
    /// # Errors
    /// [`SweepError::Json`] if a number has no JSON form.
    pub fn to_text(&self) -> Result<String, SweepError> {
        let value = serde_json::to_value(self).map_err(SweepError::Json)?;
        let mut text = String::new();
        write(&mut text, &value, 0);
        text.push('\n');
        Ok(text)
    }
}

fn refuse<T>(at: &str, reason: impl Into<String>) -> Result<T, SweepError> {
    Err(SweepError::Field { at: at.into(), reason: reason.into() })
}

fn check_curve(at: &str, curve: &Curve, layers: usize) -> Result<(), SweepError> {
    if let Err(e) = curve.format.parse::<Format>() {
        return refuse(&format!("{at}.format"), e.to_string());
    }
    share(&format!("{at}.bytes_per_token"), curve.bytes_per_token)?;
    if curve.points.is_empty() {
        return refuse(&format!("{at}.points"), "is empty");
    }
    let mut before = 0.0;
    for (i, point) in curve.points.iter().enumerate() {
        let at = format!("{at}.points[{i}]");
        let rising = point.tolerance > before && point.tolerance.is_finite();
        if !rising {
            return refuse(&format!("{at}.tolerance"), format!("is {}; it must be finite and rise", point.tolerance));
        }
        before = point.tolerance;
        check_point(&at, point, layers)?;
    }
    Ok(())
}

fn check_point(at: &str, point: &CurvePoint, layers: usize) -> Result<(), SweepError> {
    check_read(at, &point.read)?;
    if point.right > point.prompts {
        return refuse(&format!("{at}.right"), format!("is {} of {} prompts", point.right, point.prompts));
    }
    if point.bits.is_some_and(|b| !(b >= 0.0 && b.is_finite())) || point.delta.is_some_and(|d| !d.is_finite()) {
        return refuse(&format!("{at}.bits"), "or its change is no number");
    }
    if point.layers.len() != layers {
        return refuse(&format!("{at}.layers"), format!("has {} entries for {layers} layers", point.layers.len()));
    }
    for (l, layer) in point.layers.iter().enumerate() {
        let at = format!("{at}.layers[{l}]");
        check_read(&at, &layer.read)?;
        share(&format!("{at}.promoted_keys"), layer.promoted_keys)?;
        share(&format!("{at}.promoted_values"), layer.promoted_values)?;
        share(&format!("{at}.skipped_values"), layer.skipped_values)?;
    }
    Ok(())
}

fn check_read(at: &str, read: &ReadShare) -> Result<(), SweepError> {
    share(&format!("{at}.read.packed"), read.packed)?;
    share(&format!("{at}.read.scratch"), read.scratch)?;
    share(&format!("{at}.read.host"), read.host)
}

fn share(at: &str, x: f64) -> Result<(), SweepError> {
    if x >= 0.0 && x.is_finite() { Ok(()) } else { refuse(at, format!("is {x}; it must be finite and not negative")) }
}

fn write(text: &mut String, value: &Value, depth: usize) {
    let inner: Vec<(Option<&String>, &Value)> = match value {
        Value::Array(items) => items.iter().map(|v| (None, v)).collect(),
        Value::Object(fields) => fields.iter().map(|(k, v)| (Some(k), v)).collect(),
        _ => Vec::new(),
    };
    // Plain numbers and words read better on one line at any depth.
    let plain = inner.iter().all(|(_, v)| !v.is_array() && !v.is_object());
    if plain || depth >= BROKEN {
        *text += &value.to_string();
        return;
    }
    let (open, close) = if value.is_array() { ('[', ']') } else { ('{', '}') };
    text.push(open);
    for (i, (key, v)) in inner.iter().enumerate() {
        *text += if i == 0 { "\n" } else { ",\n" };
        *text += &" ".repeat(depth + 1);
        if let Some(key) = key {
            *text += &format!("{}: ", Value::String((*key).clone()));
        }
        write(text, v, depth + 1);
    }
    text.push('\n');
    *text += &" ".repeat(depth);
    text.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_file_covers_what_it_justifies() {
        let sweep = recorded().unwrap();
        let formats: Vec<&str> = sweep.curves.iter().map(|c| c.format.as_str()).collect();
        assert!(formats.len() >= 3 && formats.contains(&crate::demo::defaults::FORMAT), "{formats:?}");
        for curve in &sweep.curves {
            let tolerances: Vec<f64> = curve.points.iter().map(|p| p.tolerance).collect();
            assert_eq!(tolerances, crate::demo::defaults::SWEEP_TOLERANCES, "{}", curve.format);
            for point in &curve.points {
                assert_eq!(point.layers.len(), 6);
                assert!(point.rungs.iter().sum::<u64>() > 0 && point.bits.is_some() && point.prompts > 0);
                // The layers weigh the same, so their mean is the whole.
                let mean = point.layers.iter().map(|l| l.read.total()).sum::<f64>() / 6.0;
                assert!((mean - point.read.total()).abs() < 1e-4, "{mean} {}", point.read.total());
                let rungs = |r: usize| point.layers.iter().map(|l| l.rungs[r]).sum::<u64>();
                assert_eq!(std::array::from_fn(rungs), point.rungs);
            }
        }
        // Whoever repeats it has other folders: the recorded command names none outside the source tree.
        assert!(sweep.command.contains("--curves") && !sweep.command.contains(" /"), "{}", sweep.command);
        assert_eq!(Sweep::parse(&sweep.to_text().unwrap()).unwrap(), sweep);
        assert_eq!(sweep.to_text().unwrap(), RECORDED);
    }

    #[test]
    fn damage_is_named() {
        let damaged = |edit: &dyn Fn(&mut Sweep)| {
            let mut sweep = recorded().unwrap();
            edit(&mut sweep);
            Sweep::parse(&sweep.to_text().unwrap()).unwrap_err().to_string()
        };
        assert!(damaged(&|s| s.schema = 9).contains("schema 9"));
        assert!(damaged(&|s| s.curves.clear()).contains("curves is empty"));
        assert!(damaged(&|s| s.curves[1].format = "k9".into()).contains("curves[1].format"));
        assert!(damaged(&|s| s.curves[1].format = s.curves[0].format.clone()).contains("before"));
        assert!(damaged(&|s| s.curves[0].points.clear()).contains("points is empty"));
        assert!(damaged(&|s| s.curves[0].points[1].tolerance = 0.0).contains("points[1].tolerance"));
        assert!(damaged(&|s| s.curves[0].points[0].right = 99).contains("99 of"));
        assert!(damaged(&|s| s.curves[0].points[0].layers.truncate(5)).contains("5 entries for 6"));
        assert!(damaged(&|s| s.curves[0].points[0].layers[3].promoted_keys = -1.0).contains("layers[3].promoted_keys"));
        // JSON has no NaN: it is written as null, which is no number.
        assert!(damaged(&|s| s.curves[0].points[0].read.host = f64::NAN).contains("null"));
        for text in ["", "{}", "[1]", "{\"schema\": 1}", &RECORDED[..RECORDED.len() / 2]] {
            assert!(matches!(Sweep::parse(text), Err(SweepError::Json(_))), "{text:.40}");
        }
    }
}
