//! The calibration that codes of a cache depend on: checked once, when the cache is made, and named wherever codes are kept. Widths of
//! Block-GTQ keys are chosen from it then, for every layer's format and head (math.md (9.2a)).
//!
//! Its name is the BLAKE3 digest of its file, in hex: what `b3sum FILE` prints. A seal holds a number made of it, a saved sequence
//! and the names of cached prefixes hold all of it, so that codes are never read under another calibration.
use crate::{Cache, Config, Error};
use certkv_codec::{CodecError, KeyGroups, KeyMetric};
use certkv_control::{Calibration, calibration::CalibrationError};
use certkv_core::{Format, KeyFormat, TURBO_BITS, hash::hash64, tiles::gtq_tile};
use std::sync::Arc;

/// The BLAKE3 digest of a calibration's file, which is its name: what caches made with it depend on.
pub fn calibration_digest(calibration: &Calibration) -> [u8; 32] {
    *blake3::hash(&calibration.to_bytes()).as_bytes()
}

/// A calibration and its name.
#[derive(Debug)]
pub(crate) struct Calibrated {
    calibration: Arc<Calibration>,
    name: String,
    number: u64,
    /// By layer, then head; `None` where all channels have one width.
    grouped: Vec<Option<Grouped>>,
}

/// Widths of the channels of a head, chosen for the format of its layer.
#[derive(Debug)]
struct Grouped {
    groups: KeyGroups,
    /// Scale by channel, that of the calibration times the weights of (2.19d).
    scale: Vec<f32>,
}

impl Calibrated {
    /// The calibration of `config`; `None` where no format needs one.
    ///
    /// # Errors
    /// [`Error::Config`] for one that is missing, given where no format needs it, or of a centre or scale that keys cannot be coded
    /// in; [`Error::Calibration`] for one of another geometry.
    pub(crate) fn of(config: &Config) -> Result<Option<Arc<Self>>, Error> {
        let wrong = |why: String| Err(Error::Config { field: "calibration", why });
        let format = config.formats.iter().find(|format| format.key.is_calibrated());
        let (calibration, format) = match (&config.calibration, format) {
            (None, None) => return Ok(None),
            (None, Some(format)) => {
                return wrong(format!("none; {format} codes keys by one (`certkv calibrate` makes it)"));
            }
            (Some(_), None) => {
                return wrong("no format has calibrated keys (such as ctq4 or gtq3); it must be `None`".to_owned());
            }
            (Some(calibration), Some(format)) => (calibration, format),
        };
        let (heads, g) = (calibration.heads(), &config.geometry);
        for (what, file, wanted) in [
            ("layers", heads.layers, g.layers),
            ("q_heads", heads.q_heads, g.q_heads),
            ("kv_heads", heads.kv_heads, g.kv_heads),
            ("head_dim", heads.head_dim, g.head_dim),
        ] {
            if file != wanted {
                return Err(CalibrationError::OtherHeads { what, file, wanted }.into());
            }
        }
        let digest = blake3::Hash::from_bytes(calibration_digest(calibration));
        let words = digest.as_bytes().as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut found = Self {
            calibration: Arc::clone(calibration),
            name: digest.to_hex().to_string(),
            number: hash64(&words.collect::<Vec<_>>()),
            grouped: Vec::with_capacity(g.layers * g.kv_heads),
        };
        for (layer, head) in (0..g.layers).flat_map(|layer| (0..g.kv_heads).map(move |head| (layer, head))) {
            let own = config.formats.get(layer).or(config.formats.first()).copied();
            found.grouped.push(match own {
                Some(Format { key: KeyFormat::Gtq { halves }, block, .. }) => {
                    Some(Grouped::of(calibration, (layer, head), usize::from(halves), block)?)
                }
                _ => None,
            });
            match found.look_up(layer, head) {
                Some(Ok(metric)) if metric.dim() == g.head_dim => {}
                Some(Err(refused)) => return wrong(format!("layer {layer}, head {head}: {refused}")),
                _ => return wrong(format!("no scheme of layer {layer}, head {head}, which {format} needs")),
            }
        }
        Ok(Some(Arc::new(found)))
    }

    /// What keys of a head are coded in: there for every head, once [`Calibrated::of`] has looked. A few comparisons a channel.
    pub(crate) fn metric(&self, layer: usize, kv_head: usize) -> Option<KeyMetric<'_>> {
        self.look_up(layer, kv_head)?.ok()
    }

    fn look_up(&self, layer: usize, kv_head: usize) -> Option<Result<KeyMetric<'_>, CodecError>> {
        let heads = self.calibration.heads().kv_heads;
        let (_, scheme) = self.calibration.head(layer, kv_head)?;
        Some(match self.grouped.get(layer * heads + kv_head)? {
            Some(own) => KeyMetric::new(&scheme.centre, &own.scale).and_then(|metric| metric.grouped(&own.groups)),
            None => KeyMetric::new(&scheme.centre, &scheme.balance),
        })
    }

    /// The digest of its file, in hex.
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
    /// Name of the calibration that codes depend on, if they do: the BLAKE3 digest of its file, in hex.
    pub fn calibration(&self) -> Option<&str> {
        self.groups.iter().find_map(|group| group.calibrated.as_ref()).map(|calibrated| calibrated.name())
    }
}
