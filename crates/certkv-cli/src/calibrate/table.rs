//! Calibrations and measurements as text.
use super::evidence::Measured;
use certkv_codec::codebook;
use certkv_control::{Calibration, CalibrationError, Energies, calibration::Distance};
use std::{collections::HashMap, fmt::Write as _};

/// Distortions of codebooks; some take milliseconds to compute.
#[derive(Default)]
struct Books(HashMap<(usize, u8), f64>);

impl Books {
    fn distortion(&mut self, channels: usize, bits: u8) -> f64 {
        let compute = || codebook::distortion(channels, &codebook::levels(channels, bits));
        *self.0.entry((channels, bits)).or_insert_with(compute)
    }
}

/// What a calibration chose, by layer and key head. The last column is what (9.3) expects of logit errors, relative to one width for
/// all pairs and keys as they are, where the budget has such a width.
///
/// # Errors
/// [`CalibrationError`] if the calibration holds what none holds.
pub fn summary(c: &Calibration) -> Result<String, CalibrationError> {
    let (heads, rule, mut books) = (c.heads(), c.rule(), Books::default());
    let mut text = format!(
        "{} layers, {} query and {} key heads of {} channels in pairs `{}`; {} tokens; {} bits of a channel by `{}`{}{}\n",
        heads.layers,
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        heads.pairing,
        c.source().tokens,
        rule.budget as f64 / heads.pairs() as f64,
        rule.score,
        if rule.centred { ", centred" } else { "" },
        if rule.balanced { ", balanced" } else { "" },
    );
    text.push_str("layer head   pairs of 1 to 8 bits               expected error\n");
    for layer in 0..heads.layers {
        for head in 0..heads.kv_heads {
            let Some((seen, scheme)) = c.head(layer, head) else { continue };
            let count = |b: u8| scheme.bits.iter().filter(|x| **x == b).count();
            let counts: Vec<String> = (1..=8).map(|b| format!("{:>3}", count(b))).collect();
            let keys = seen.keys_around(heads, &scheme.centre);
            let energies = Energies { queries: &seen.queries, keys: &keys };
            let plain = Energies { queries: &seen.queries, keys: &seen.keys };
            let of_pair = |pair: usize| f64::from(scheme.balance[heads.pairing.channels(heads.rotary, pair)[0]]);
            let balance: Vec<f64> = (0..heads.pairs()).map(of_pair).collect();
            let mut eta = |n: usize, b: u8| books.distortion(n, b);
            let expected = energies.group_objective(&scheme.bits, Some(&balance), &mut eta)?;
            let width = rule.budget / heads.pairs();
            let relative = if width * heads.pairs() == rule.budget {
                let uniform = plain.group_objective(&vec![width as u8; heads.pairs()], None, &mut eta)?;
                format!("{:.3} of TurboQuant's", (expected / uniform).sqrt())
            } else {
                format!("{:.3}", (expected / heads.head_dim as f64).sqrt())
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{layer:>5} {head:>4}   {}           {relative}", counts.join(" "));
        }
    }
    Ok(text)
}

/// Distances by layer, and of all layers together.
pub fn compared(layers: &[Distance]) -> String {
    let mut text = "layer   Hamming    HB@4    regret\n".to_owned();
    let all = layers.iter().fold(Distance::default(), |sum, d| sum.join(*d));
    let names = (0..layers.len()).map(|layer| layer.to_string()).chain(["all".to_owned()]);
    for (name, d) in names.zip(layers.iter().chain([&all])) {
        let _ = writeln!(text, "{name:>5}   {:>7.4} {:>7.4} {:>+8.2}%", d.hamming(), d.high_bits(), 100.0 * d.regret());
    }
    text
}

/// Errors by layer, a row for each coding; the first row is what the others are compared with.
pub fn evidence_table(rows: &[Measured]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    let layers: Vec<String> = (0..first.error.len()).map(|l| format!("{:>7}", format!("l{l}"))).collect();
    let mut text = format!("{:width$} bytes {}    wins       KL  top 10\n", "mean logit error, nats", layers.join(""));
    for row in rows {
        let errors: Vec<String> = row.error.iter().map(|e| format!("{e:>7.4}")).collect();
        let wins = row.error.iter().zip(&first.error).filter(|(a, b)| a < b).count();
        let _ = writeln!(
            text,
            "{:width$} {:>5.1} {} {wins:>3} of {} {:>8.5} {:>7.3}",
            row.name,
            row.bytes,
            errors.join(""),
            row.error.len(),
            row.divergence,
            row.overlap
        );
    }
    text
}
