use super::Family;
pub(crate) const FAMILIES: &[Family] = &[];
