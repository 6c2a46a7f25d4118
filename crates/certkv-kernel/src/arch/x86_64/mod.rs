//! x86-64: the same functions with wide instructions. All unsafe code of the crate lives here.
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod strip512;
