//! Rotation and levels of the TurboQuant sides of a record.
use crate::rotation::{self, Rotation};
use crate::turboquant::Book;
use certkv_core::{KeyFormat, RecordLayout, ValueFormat};
use std::sync::Arc;

/// What TurboQuant sides need.
#[derive(Debug, Clone)]
pub(crate) struct Turbo {
    pub(crate) rotation: Rotation<f64>,
    pub(crate) keys: Option<Arc<Book>>,
    pub(crate) values: Option<Arc<Book>>,
}

impl Turbo {
    /// `None` for a format without such sides.
    pub(crate) fn new(layout: &RecordLayout) -> Option<Self> {
        let dim = layout.dim;
        let keys =
            if let KeyFormat::Turbo { bits, .. } = layout.format.key { Some(Book::bytes(dim, bits)) } else { None };
        let values =
            if let ValueFormat::Turbo { bits } = layout.format.value { Some(Book::bytes(dim, bits)) } else { None };
        let rotation = Rotation::new(dim, rotation::SEED);
        (keys.is_some() || values.is_some()).then_some(Self { rotation, keys, values })
    }
}
