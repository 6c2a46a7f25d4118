//! AVX-512.
use super::strip512;
use crate::arch::{Ops, generic};

static OPS: Ops = Ops { strip: strip512::strip, unpack_stretch: strip512::unpack, ..generic::OPS };

pub(crate) fn ops() -> Option<&'static Ops> {
    let all = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    all.then_some(&OPS)
}
