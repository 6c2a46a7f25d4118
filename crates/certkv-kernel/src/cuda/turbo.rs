//! What the sources of a variant with TurboQuant sides have to know: signs of the rotation, levels and thresholds, as macros.
use super::grouped;
use super::metrics::metric_stride;
use certkv_codec::rotation::{self, Rotation};
use certkv_codec::turboquant::magnitudes;
use certkv_core::{GroupCode, KeyFormat, RecordLayout, ValueFormat};

/// Widest codes of such a side: sixteen levels.
pub(super) const MOST_BITS: u8 = 4;

/// Of 32 channels each.
const TURN: [&str; 8] =
    ["CKV_TURN_0", "CKV_TURN_1", "CKV_TURN_2", "CKV_TURN_3", "CKV_TURN_4", "CKV_TURN_5", "CKV_TURN_6", "CKV_TURN_7"];
/// Levels, then thresholds.
const KEY: [&str; 8] = [
    "CKV_KEY_LEVELS",
    "CKV_KEY_THRESHOLD_1",
    "CKV_KEY_THRESHOLD_2",
    "CKV_KEY_THRESHOLD_3",
    "CKV_KEY_THRESHOLD_4",
    "CKV_KEY_THRESHOLD_5",
    "CKV_KEY_THRESHOLD_6",
    "CKV_KEY_THRESHOLD_7",
];
const VALUE: [&str; 8] = [
    "CKV_VALUE_LEVELS",
    "CKV_VALUE_THRESHOLD_1",
    "CKV_VALUE_THRESHOLD_2",
    "CKV_VALUE_THRESHOLD_3",
    "CKV_VALUE_THRESHOLD_4",
    "CKV_VALUE_THRESHOLD_5",
    "CKV_VALUE_THRESHOLD_6",
    "CKV_VALUE_THRESHOLD_7",
];

fn key_bits(layout: &RecordLayout) -> Option<u8> {
    if let KeyFormat::Turbo { bits, .. } = layout.format.key { Some(bits) } else { None }
}

fn value_bits(layout: &RecordLayout) -> Option<u8> {
    if let ValueFormat::Turbo { bits } = layout.format.value { Some(bits) } else { None }
}

/// Bits of the sides that are coded so.
pub(super) fn widths(layout: &RecordLayout) -> impl Iterator<Item = u8> {
    key_bits(layout).into_iter().chain(value_bits(layout))
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
    let side = |bits: Option<u8>, names: [&'static str; 8]| {
        bits.into_iter().flat_map(move |bits| {
            let (levels, thresholds) = magnitudes(layout.dim, bits);
            // Magnitudes below 64, a byte each; a code's lower bits choose one, so shorter tables repeat themselves.
            let byte = |i: usize| levels.get(i % levels.len()).map_or(0, |x| *x as usize);
            let table = (0..8).fold(0, |word, i| word | byte(i) << (8 * i));
            let bits = (0..7).map(move |i| thresholds.get(i).map_or(0, |t| t.to_bits() as usize));
            names.into_iter().zip(core::iter::once(table).chain(bits))
        })
    };
    let sizes = [
        ("CKV_FOLD", usize::from(folds(layout))),
        ("CKV_GROUPED", grouped::halves(layout)),
        ("CKV_KEY_SLOTS", if folds(layout) { layout.key_slots() } else { 1 }),
        ("CKV_METRIC", metric_stride(layout)),
    ];
    let sides: Vec<_> = side(key_bits(layout), KEY).chain(side(value_bits(layout), VALUE)).collect();
    if sides.is_empty() {
        return sizes.to_vec();
    }
    let signs = Rotation::<f64>::new(layout.dim, rotation::SEED).sign_words().unwrap_or_default();
    let turn = TURN.into_iter().enumerate().map(|(i, name)| (name, signs.get(i).copied().unwrap_or(0) as usize));
    sizes.into_iter().chain(turn).chain(sides).collect()
}
