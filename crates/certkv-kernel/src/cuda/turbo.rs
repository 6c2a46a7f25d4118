//! What the sources of a variant with TurboQuant sides have to know: signs of the rotation, levels and thresholds, as macros.
use super::grouped;
use super::metrics::metric_stride;
use certkv_codec::rotation::{self, Rotation};
use certkv_codec::turboquant::magnitudes;
use certkv_core::{GroupCode, KeyFormat, RecordLayout, ValueFormat};

/// Of 32 channels each.
const TURN: [&str; 8] =
    ["CKV_TURN_0", "CKV_TURN_1", "CKV_TURN_2", "CKV_TURN_3", "CKV_TURN_4", "CKV_TURN_5", "CKV_TURN_6", "CKV_TURN_7"];
/// Magnitudes that a word of levels has.
const OF_WORD: usize = 8;

/// Words of levels, then thresholds: as many as 6 bits have.
macro_rules! names {
    ($side:literal) => {
        (
            [
                concat!("CKV_", $side, "_LEVELS"),
                concat!("CKV_", $side, "_LEVELS_1"),
                concat!("CKV_", $side, "_LEVELS_2"),
                concat!("CKV_", $side, "_LEVELS_3"),
            ],
            names!(@ $side 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31),
        )
    };
    (@ $side:literal $($i:literal)*) => { [$(concat!("CKV_", $side, "_THRESHOLD_", $i)),*] };
}
type Names = ([&'static str; 4], [&'static str; 31]);
const KEY: Names = names!("KEY");
const VALUE: Names = names!("VALUE");

fn key_bits(layout: &RecordLayout) -> Option<u8> {
    if let KeyFormat::Turbo { bits, .. } = layout.format.key { Some(bits) } else { None }
}

fn value_bits(layout: &RecordLayout) -> Option<u8> {
    if let ValueFormat::Turbo { bits } = layout.format.value { Some(bits) } else { None }
}

/// Whether a side is coded so.
pub(super) fn rotates(layout: &RecordLayout) -> bool {
    key_bits(layout).or(value_bits(layout)).is_some()
}

/// Whether keys are coded in the metric of a calibration, math.md (2.19a): `FOLDED` of kernels/sizes.cuh.
pub(super) const fn folds(layout: &RecordLayout) -> bool {
    matches!(
        layout.format.key,
        KeyFormat::Turbo { calibrated: true, .. } | KeyFormat::Gtq { code: GroupCode::Widths { .. } }
    )
}

/// The macros; none but sizes for a layout without such sides.
pub(super) fn macros(layout: &RecordLayout) -> Vec<(&'static str, usize)> {
    let side = |bits: Option<u8>, (words, between): Names| {
        let (levels, thresholds) = bits.map_or_else(Default::default, |bits| magnitudes(layout.dim, bits));
        // Magnitudes, a byte each; a code's lower bits choose one, so shorter tables repeat themselves.
        let byte = |i: usize| levels.get(i % levels.len().max(1)).map_or(0, |x| *x as usize);
        let word = |first: usize| (0..OF_WORD).fold(0, |word, i| word | byte(first + i) << (8 * i));
        let tables: Vec<_> = words.into_iter().enumerate().map(|(i, name)| (name, word(OF_WORD * i))).collect();
        let bits = move |i: usize| thresholds.get(i).map_or(0, |t| t.to_bits() as usize);
        tables.into_iter().chain(between.into_iter().enumerate().map(move |(i, name)| (name, bits(i))))
    };
    let sizes = [
        ("CKV_FOLD", usize::from(folds(layout))),
        ("CKV_GROUPED", grouped::halves(layout)),
        ("CKV_KEY_SLOTS", if folds(layout) { layout.key_slots() } else { 1 }),
        ("CKV_METRIC", metric_stride(layout)),
    ];
    if !rotates(layout) {
        return sizes.to_vec();
    }
    let sides = side(key_bits(layout), KEY).chain(side(value_bits(layout), VALUE));
    let signs = Rotation::<f64>::new(layout.dim, rotation::SEED).sign_words().unwrap_or_default();
    let turn = TURN.into_iter().enumerate().map(|(i, name)| (name, signs.get(i).copied().unwrap_or(0) as usize));
    sizes.into_iter().chain(turn).chain(sides).collect()
}
