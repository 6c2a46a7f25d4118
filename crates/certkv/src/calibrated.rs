//! The calibration that codes of a cache depend on: checked once, when the cache is made, and named wherever codes are kept. Widths of
//! Block-GTQ keys are chosen from it then, for every layer's format and head (math.md (9.2a)). Codebooks of spherical keys are one, too, of each tier its own.
//!
//! Its name is the BLAKE3 digest of its file, in hex: what `b3sum FILE` prints; where formats need several, the digest of
//! their digests, that of a calibration first, then those of codebooks by tier. A seal holds a number made of it, a saved sequence and the names of cached prefixes hold all of it, so that codes are
//! never read under another calibration.
use crate::{Cache, Config, Error};
use certkv_codec::spherical::{Scheme, Spherical, Tier};
use certkv_codec::{CodecError, KeyGroups, KeyMetric};
use certkv_control::spherical::Codebooks;
use certkv_control::{Calibration, calibration::CalibrationError};
use certkv_core::{Format, Geometry, GroupCode, KeyFormat, TURBO_BITS, hash::hash64, tiles::gtq_tile};
use std::sync::Arc;

/// The BLAKE3 digest of a calibration's file, which is its name: what caches made with it depend on.
pub fn calibration_digest(calibration: &Calibration) -> [u8; 32] {
    *blake3::hash(&calibration.to_bytes()).as_bytes()
}

/// The same of codebooks.
pub fn codebooks_digest(codebooks: &Codebooks) -> [u8; 32] {
    *blake3::hash(&codebooks.to_bytes()).as_bytes()
}

/// What keys are coded by, and its name.
#[derive(Debug)]
pub(crate) struct Calibrated {
    calibration: Option<Arc<Calibration>>,
    name: String,
    number: u64,
    kv_heads: usize,
    /// By layer, then head, then level: of each format that the head's blocks can have.
    heads: Vec<(KeyFormat, Head)>,
    /// Formats of a head.
    levels: usize,
}

/// What the keys of a head are coded by in one format.
#[derive(Debug)]
enum Head {
    /// The scheme of the calibration; nothing where keys are coded as they are.
    Scheme,
    Grouped(Grouped),
    Directions(Spherical),
}

/// Widths of the channels of a head, chosen for a format.
#[derive(Debug)]
struct Grouped {
    groups: KeyGroups,
    /// Scale by channel, that of the calibration times the weights of (2.19d).
    scale: Vec<f32>,
}

/// The calibration, if a format needs one.
fn needed<'a>(
    given: &'a Option<Arc<Calibration>>,
    format: Option<&Format>,
) -> Result<Option<&'a Arc<Calibration>>, Error> {
    let why = match (given, format) {
        (None, Some(format)) => format!("none; {format} codes keys by one (`certkv calibrate` makes it)"),
        (Some(_), None) => "no format has calibrated keys (such as ctq4 or gtq3); it must be `None`".to_owned(),
        (given, _) => return Ok(given.as_ref()),
    };
    Err(Error::Config { field: "calibration", why })
}

/// Codebooks by tier, each there if and only if a format needs it.
fn books_of<'a>(given: &'a [Arc<Codebooks>], formats: &[Format]) -> Result<Vec<&'a Arc<Codebooks>>, Error> {
    let wrong = |why: String| Err(Error::Config { field: "codebooks", why });
    let mut found = Vec::new();
    for tier in Tier::ALL {
        let of_tier: Vec<_> = given.iter().filter(|books| books.tier() == tier).collect();
        match (formats.iter().find(|format| format.key.tier() == Some(tier)), &of_tier[..]) {
            (None, []) => {}
            (Some(_), [one]) => found.push(*one),
            (_, [_, _, ..]) => return wrong(format!("{} of tier {tier}", of_tier.len())),
            (Some(format), []) => {
                return wrong(match given.first() {
                    Some(other) => {
                        format!("codebooks of tier {}, where {} needs {tier}", other.tier(), tier.key_name())
                    }
                    None => format!("none; {format} codes keys by one (`certkv calibrate --spherical` makes it)"),
                });
            }
            (None, [_]) => return wrong(format!("no format has keys of tier {tier} (such as {})", tier.key_name())),
        }
    }
    Ok(found)
}

/// Refuses what was made for another geometry.
fn same(pairs: &[(&'static str, usize, usize)]) -> Result<(), Error> {
    match pairs.iter().find(|(_, file, wanted)| file != wanted) {
        Some((what, file, wanted)) => Err(CalibrationError::OtherHeads { what, file: *file, wanted: *wanted }.into()),
        None => Ok(()),
    }
}

impl Calibrated {
    /// The calibration and codebooks of `config`; `None` where no format needs one.
    ///
    /// # Errors
    /// [`Error::Config`] for one that is missing, given where no format needs it, or of a centre, scale or directions that keys cannot be
    /// coded in, or codebooks of another tier; [`Error::Calibration`] for one of another geometry.
    pub(crate) fn of(config: &Config) -> Result<Option<Arc<Self>>, Error> {
        let formats: Vec<Format> = config.all_formats().collect();
        let scheme = formats.iter().find(|format| format.key.is_folded());
        let calibration = needed(&config.calibration, scheme)?;
        let books = books_of(&config.codebooks, &formats)?;
        let Geometry { layers, q_heads, kv_heads, head_dim, .. } = config.geometry;
        let mut digests = Vec::new();
        if let Some(calibration) = calibration {
            let heads = calibration.heads();
            same(&[
                ("layers", heads.layers, layers),
                ("q_heads", heads.q_heads, q_heads),
                ("kv_heads", heads.kv_heads, kv_heads),
                ("head_dim", heads.head_dim, head_dim),
            ])?;
            digests.push(calibration_digest(calibration));
        }
        for books in &books {
            let heads = books.heads();
            same(&[
                ("layers", heads.layers, layers),
                ("kv_heads", heads.kv_heads, kv_heads),
                ("head_dim", heads.head_dim, head_dim),
            ])?;
            digests.push(codebooks_digest(books));
        }
        let digest = match digests[..] {
            [] => return Ok(None),
            [one] => blake3::Hash::from_bytes(one),
            _ => blake3::hash(digests.as_flattened()),
        };
        let words = digest.as_bytes().as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut found = Self {
            calibration: calibration.cloned(),
            name: digest.to_hex().to_string(),
            number: hash64(&words.collect::<Vec<_>>()),
            kv_heads,
            heads: Vec::with_capacity(layers * kv_heads * config.levels.len().max(1)),
            levels: config.levels.len().max(1),
        };
        for (layer, head) in (0..layers).flat_map(|layer| (0..kv_heads).map(move |head| (layer, head))) {
            let wrong = |field, why: String| Error::Config { field, why: format!("layer {layer}, head {head}: {why}") };
            for level in 0..found.levels {
                let Format { key, block, .. } = config.format_at(level, layer, head);
                let own = match (key, calibration) {
                    (KeyFormat::Gtq { code: GroupCode::Widths { halves } }, Some(calibration)) => {
                        Head::Grouped(Grouped::of(calibration, (layer, head), usize::from(halves), block)?)
                    }
                    (KeyFormat::Gtq { code: GroupCode::Directions(tier) }, _) => {
                        let books = books.iter().find(|books| books.tier() == tier);
                        let words = books.and_then(|books| books.head(layer, head)).map_or(&[][..], |head| &head.words);
                        let refused = |e: CodecError| wrong("codebooks", e.to_string());
                        Head::Directions(Spherical::new(&Scheme::new(tier, words)).map_err(refused)?)
                    }
                    _ => Head::Scheme,
                };
                found.heads.push((key, own));
                match found.look_up(key, layer, head) {
                    Some(Ok(metric)) if metric.dim() == head_dim => {}
                    Some(Err(refused)) => return Err(wrong("calibration", refused.to_string())),
                    None if !key.is_calibrated() => {}
                    _ => return Err(wrong("calibration", "no scheme".to_owned())),
                }
            }
        }
        Ok(Some(Arc::new(found)))
    }

    /// What keys of a head are coded in where they are of `format`: there for every head and format that needs it, once [`Calibrated::of`] has
    /// looked. A few comparisons a channel.
    pub(crate) fn metric(&self, format: KeyFormat, layer: usize, kv_head: usize) -> Option<KeyMetric<'_>> {
        self.look_up(format, layer, kv_head)?.ok()
    }

    fn look_up(&self, format: KeyFormat, layer: usize, kv_head: usize) -> Option<Result<KeyMetric<'_>, CodecError>> {
        let first = (layer * self.kv_heads + kv_head) * self.levels;
        let of_head = self.heads.get(first..(first + self.levels).min(self.heads.len()))?;
        let (_, own) = of_head.iter().find(|(key, _)| *key == format && key.is_calibrated())?;
        if let Head::Directions(books) = own {
            return Some(Ok(KeyMetric::directions(books)));
        }
        let (_, scheme) = self.calibration.as_ref()?.head(layer, kv_head)?;
        Some(match own {
            Head::Grouped(own) => {
                KeyMetric::new(&scheme.centre, &own.scale).and_then(|metric| metric.grouped(&own.groups))
            }
            _ => KeyMetric::new(&scheme.centre, &scheme.balance),
        })
    }

    /// Its digest, in hex.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// 64 bits of its name, for seals.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }
}

impl Grouped {
    /// Groups of a head for keys of `halves` half bits per channel in blocks of `block` tokens.
    fn of(
        calibration: &Calibration,
        (layer, head): (usize, usize),
        halves: usize,
        block: usize,
    ) -> Result<Self, Error> {
        let heads = calibration.heads();
        let (tile, budget) = (gtq_tile(block) / 2, halves * heads.pairs() / 2);
        let bits = calibration.tiled(layer, head, tile, budget, TURBO_BITS)?;
        let wrong = |refused: CodecError| Error::Config {
            field: "calibration",
            why: format!("layer {layer}, head {head}: {refused}"),
        };
        let groups = KeyGroups::new(&bits, heads.pairing, heads.rotary).map_err(wrong)?;
        let balance = calibration.head(layer, head).map_or(&[][..], |(_, scheme)| &scheme.balance);
        Ok(Self { scale: groups.weighted(balance), groups })
    }
}

impl Cache {
    /// Name of the calibration that codes depend on, if they do: the BLAKE3 digest of its file, in hex; of codebooks likewise, and of several the
    /// digest of their digests, that of a calibration first, then those of codebooks by tier.
    pub fn calibration(&self) -> Option<&str> {
        self.groups.iter().find_map(|group| group.calibrated.as_ref()).map(|calibrated| calibrated.name())
    }
}
