//! AVX2.
use crate::arch::Ops;
pub(crate) fn ops() -> Option<&'static Ops> {
    None
}
