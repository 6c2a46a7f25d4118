//! What a kernel needs for TurboQuant sides, math.md 2.7: the rotation of the query and of the output, and what codes stand
//! for. Keys are scored with the rotated query; values are summed rotated, and turned back once per pass. Originals and the
//! open block stay as they are, so both queries are kept, and both sums.
use crate::line::Line;
use crate::query::Levels;
use certkv_codec::KeyGroups;
use certkv_codec::rotation::{self, Rotation};
use certkv_codec::turboquant::level_bytes;
use certkv_core::{KeyFormat, RecordLayout, ValueFormat};

#[derive(Debug)]
pub(crate) struct Turbo {
    pub(crate) rotation: Rotation<f32>,
    /// Levels of the keys' codes, if keys are coded so; the same for values.
    pub(crate) keys: Option<Levels>,
    pub(crate) values: Option<Levels>,
}

impl Turbo {
    /// `None` for a format without such sides.
    pub(crate) fn new(layout: &RecordLayout) -> Option<Self> {
        let dim = layout.dim;
        let keys =
            if let KeyFormat::Turbo { bits, .. } = layout.format.key { Some(level_bytes(dim, bits)) } else { None };
        let values =
            if let ValueFormat::Turbo { bits } = layout.format.value { Some(level_bytes(dim, bits)) } else { None };
        let rotation = Rotation::new(dim, rotation::SEED);
        (keys.is_some() || values.is_some()).then_some(Self { rotation, keys, values })
    }

    /// `R x` of one head's lines into `out`.
    pub(crate) fn turn(&self, x: &[Line], out: &mut [Line; 16]) {
        let mut flat = [0.0f32; 256];
        let n = 16 * x.len();
        flat.as_chunks_mut::<16>().0.iter_mut().zip(x).for_each(|(to, line)| *to = line.0);
        self.rotation.turn(&mut flat[..n]);
        out.iter_mut().zip(flat.as_chunks::<16>().0).for_each(|(line, from)| line.0 = *from);
    }

    /// Adds `R^T x` of one head's lines to `out`.
    pub(crate) fn add_back(&self, x: &[Line], out: &mut [Line]) {
        let mut flat = [0.0f32; 256];
        let n = 16 * x.len();
        flat.as_chunks_mut::<16>().0.iter_mut().zip(x).for_each(|(to, line)| *to = line.0);
        self.rotation.turn_back(&mut flat[..n]);
        for (line, from) in out.iter_mut().zip(flat.as_chunks::<16>().0) {
            line.0.iter_mut().zip(from).for_each(|(o, x)| *o += x);
        }
    }
}

/// One head's lines as they meet codes in groups, into `out`.
pub(crate) fn turn_in(groups: &KeyGroups, x: &[Line], out: &mut [Line; 16]) {
    let (mut flat, mut turned) = ([0.0f32; 256], [0.0f32; 256]);
    let n = 16 * x.len();
    flat.as_chunks_mut::<16>().0.iter_mut().zip(x).for_each(|(to, line)| *to = line.0);
    groups.turn_query(&flat[..n], &mut turned[..n]);
    out.iter_mut().zip(turned.as_chunks::<16>().0).for_each(|(line, from)| line.0 = *from);
}

/// Most roundings of a rotation of any group of tiles of a head: each group is off relative to its own norm, so all together are
/// relative to the head's.
pub(crate) fn most_roundings(dim: usize) -> usize {
    (16..=dim).step_by(16).map(|n| Rotation::<f32>::new(n, rotation::SEED).roundings()).max().unwrap_or(0)
}
