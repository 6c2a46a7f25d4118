//! What a file is of, in lines of `name value`: whoever wonders can read it.
use super::error::SaveError;
use crate::Level;
use crate::cache::Cache;
use certkv_core::{Format, Geometry, planted};
use certkv_page::Window;
use core::fmt::Write;
use core::ops::Range;

/// More is no header.
pub(crate) const MOST_BYTES: usize = 1 << 20;
/// Codes, summaries and layout of records: another number, another meaning of the same bytes.
const CODECS: u32 = 1;
const TOKENS: &str = "tokens";

/// In which order codes and originals lie: what one machine writes the other cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Of tokens and channels; a header does not mention it.
    Rows,
    /// In which kernels of a GPU read them.
    Fragments,
}

impl Order {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            // Levels had other planes before.
            Self::Fragments => "fragments-2",
        }
    }
}

/// What a group is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupKind {
    pub(crate) layers: usize,
    /// Its KV heads; `None` for all of them.
    pub(crate) heads: Option<Range<usize>>,
    pub(crate) format: Format,
    pub(crate) window: Option<Window>,
}

impl GroupKind {
    /// One layer with all of its KV heads.
    pub(crate) const fn of_layer(format: Format, window: Option<Window>) -> Self {
        Self { layers: 1, heads: None, format, window }
    }

    /// Its layers, format and heads.
    pub(crate) fn words(&self) -> String {
        let Self { layers, format, .. } = self;
        match &self.heads {
            Some(heads) => format!("{layers} x {format} of KV heads {} to {}", heads.start, heads.end - 1),
            None => format!("{layers} x {format}"),
        }
    }
}

/// Names and values, in order.
pub(crate) struct Header(Vec<(String, String)>);

/// The header of a sequence of `tokens` tokens of `cache`.
pub(crate) fn of_cache(cache: &Cache, model: &[u8], tokens: usize) -> Header {
    let groups = cache.groups.iter().map(|group| group.kind(cache.config.geometry.kv_heads));
    of(&cache.config.geometry, Order::Rows, groups, &cache.config.levels, cache.calibration(), model, tokens)
}

/// The header of a sequence whose codes are in `order`, of `levels` if there are any, and depend on `calibration`, if they do on any.
pub(crate) fn of(
    g: &Geometry,
    order: Order,
    groups: impl ExactSizeIterator<Item = GroupKind>,
    levels: &[Level],
    calibration: Option<&str>,
    model: &[u8],
    tokens: usize,
) -> Header {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
    line("layers", g.layers.to_string());
    line("query-heads", g.q_heads.to_string());
    line("kv-heads", g.kv_heads.to_string());
    line("head-dim", g.head_dim.to_string());
    line("store", g.store.to_string());
    line("scale", format!("{:08x}", g.scale.to_bits()));
    line("codecs", CODECS.to_string());
    if order != Order::Rows {
        line("order", order.name().to_owned());
    }
    line("groups", groups.len().to_string());
    let mut rotated = levels.iter().any(|level| level.format.is_rotated());
    for group in groups {
        rotated |= group.format.is_rotated();
        let seen = |w: Window| format!(", the last {} tokens and {} sinks", w.tokens, w.sinks);
        line("group", group.words() + &group.window.map_or(String::new(), seen));
    }
    if !levels.is_empty() {
        line("levels", in_words(levels));
    }
    if rotated {
        line("rotation", format!("hadamard {:016x}", certkv_codec::rotation::SEED));
    }
    if let Some(name) = calibration {
        line("calibration", name.to_owned());
    }
    let hex = model.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    line("model", hex);
    line(TOKENS, tokens.to_string());
    Header(lines)
}

/// Formats of levels, the first first; of their pages nothing that is kept depends.
pub(crate) fn in_words(levels: &[Level]) -> String {
    levels.iter().map(|level| level.format.to_string()).collect::<Vec<_>>().join(", ")
}

impl Header {
    pub(crate) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |text, (name, value)| text + name + " " + value + "\n")
    }

    /// Tokens of a file with header `bytes`, if all else is as here.
    pub(crate) fn accepts(&self, bytes: &[u8]) -> Result<usize, SaveError> {
        let malformed = |why| SaveError::Malformed { section: "header", why };
        let text = core::str::from_utf8(bytes).map_err(|_| malformed("not text"))?;
        let mut lines = text.lines();
        for (name, here) in &self.0 {
            let (what, file) =
                lines.next().and_then(|line| line.split_once(' ')).ok_or(malformed("a line is missing"))?;
            if what == TOKENS && name == TOKENS {
                return file.parse().map_err(|_| malformed("no number of tokens"));
            }
            if (what, file) != (name, here) && !planted!(B16) {
                let (file, here) = (file.to_owned(), here.clone());
                // A line more there, or one more here.
                let known = self.0.iter().any(|(known, _)| known == what);
                return Err(match known {
                    _ if what == name => SaveError::Differs { what: name.clone(), file, here },
                    true => SaveError::Differs { what: name.clone(), file: "none".into(), here },
                    false => SaveError::Differs { what: what.into(), file, here: "none".into() },
                });
            }
        }
        Err(malformed("no number of tokens"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where codes are of rotated rows the header says of which rotation, and only there.
    #[test]
    fn a_header_says_what_codes_were_rotated_by() {
        let geometry = Geometry::new(2, 4, 2, 64).unwrap();
        let line = format!("\nrotation hadamard {:016x}\n", certkv_codec::rotation::SEED);
        let text = |formats: [&str; 2], levels: &[Level]| {
            let groups = formats.map(|format| GroupKind::of_layer(format.parse().unwrap(), None));
            of(&geometry, Order::Rows, groups.into_iter(), levels, None, b"model", 5).text()
        };
        let [plain, level] =
            ["k8-v4g32-b16", "tq4-v4g32-b16"].map(|f| Level { format: f.parse().unwrap(), tokens: 64 });
        assert!(!text(["k8-v4g32-b16"; 2], &[]).contains("rotation"));
        assert!(!text(["k8-v4g32-b16"; 2], &[plain]).contains("rotation"));
        assert!(text(["k8-v4g32-b16"; 2], &[plain, level]).contains(&line));
        for rotated in ["tq4-v4g32-b16", "k8-tq3-b16", "tq4-tq4-b16"] {
            let text = text(["k8-v4g32-b16", rotated], &[]);
            assert!(text.contains(&line), "{text}");
        }
    }
}
