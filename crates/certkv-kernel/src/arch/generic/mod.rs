//! The plain algorithm. Sums run over 16 interleaved lanes, as in the wide versions, so that the chain of roundings
//! (`slack::logit_chain`) is the same everywhere.
use super::Ops;

pub(crate) mod keys;
pub(crate) mod pairs;
pub(crate) mod softmax;
pub(crate) mod strip;
pub(crate) mod unpack;
pub(crate) mod values;

/// The portable functions.
pub(crate) const OPS: Ops = Ops {
    weight_levels: values::LEVELS,
    channel_digits: keys::channel_digits,
    score_codes: keys::score_codes,
    score_rows: keys::score_rows,
    fill_directions: crate::directions::fill_body::<true>,
    score_directions: |k, work, shape, x, _| crate::directions::score_body::<false>(k, work, shape, x),
    weigh: softmax::weigh,
    value_codes: values::value_codes,
    join_channels: |join, shape, o| join.run(shape, o),
    value_rows: values::value_rows,
    certify_tiles: |b, r, stride, exponent| crate::certify::tiles_body::<false>(b, r, stride, exponent, |_| {}),
    seal: crate::stage::seal_body,
    finish: |_| {},
    own: |_| {},
    strip: strip::strip,
    unpack_stretch: strip::unpack,
};
