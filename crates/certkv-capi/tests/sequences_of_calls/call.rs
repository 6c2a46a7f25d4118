//! The calls that are made.
use crate::{FILES, SLOTS};
use proptest::prelude::*;

/// One call of a caller that keeps its sequences in slots.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Create(usize),
    Fork {
        from: usize,
        to: usize,
    },
    Truncate {
        slot: usize,
        length: u64,
    },
    Release(usize),
    Length(usize),
    Memory,
    SwapOut(usize),
    SwapIn(usize),
    IsOut(usize),
    Save {
        slot: usize,
        file: usize,
    },
    Restore {
        slot: usize,
        file: usize,
    },
    Publish(usize),
    CreateFrom {
        slot: usize,
        tokens: u64,
    },
    Evict(u64),
    /// To files, or back.
    Carry {
        tokens: u64,
        out: bool,
    },
    Begin(Vec<(usize, u64)>),
    Append {
        layer: u32,
        dtype: i32,
        hostile: bool,
    },
    Attend {
        layer: u32,
        certificates: bool,
    },
    Finish,
    Abort,
    /// All layers of a step, as a well-behaved caller makes them, at times with keys that are refused first.
    Whole {
        slot: usize,
        tokens: u64,
        hostile: bool,
    },
}

/// Any of them.
pub(crate) fn call() -> impl Strategy<Value = Call> {
    let slot = || 0..SLOTS;
    prop_oneof![
        3 => slot().prop_map(Call::Create),
        2 => (slot(), slot()).prop_map(|(from, to)| Call::Fork { from, to }),
        3 => (slot(), 0..90u64).prop_map(|(slot, length)| Call::Truncate { slot, length }),
        2 => slot().prop_map(Call::Release),
        1 => slot().prop_map(Call::Length),
        1 => Just(Call::Memory),
        2 => slot().prop_map(Call::SwapOut),
        2 => slot().prop_map(Call::SwapIn),
        1 => slot().prop_map(Call::IsOut),
        2 => (slot(), 0..FILES).prop_map(|(slot, file)| Call::Save { slot, file }),
        3 => (slot(), 0..FILES).prop_map(|(slot, file)| Call::Restore { slot, file }),
        2 => slot().prop_map(Call::Publish),
        3 => (slot(), 0..160u64).prop_map(|(slot, tokens)| Call::CreateFrom { slot, tokens }),
        1 => (0..3u64).prop_map(Call::Evict),
        1 => (0..100u64, any::<bool>()).prop_map(|(tokens, out)| Call::Carry { tokens, out }),
        3 => proptest::collection::vec((slot(), 0..50u64), 0..3).prop_map(Call::Begin),
        8 => (0..3u32, 0..5i32, proptest::bool::weighted(0.2))
            .prop_map(|(layer, dtype, hostile)| Call::Append { layer, dtype, hostile }),
        4 => (0..3u32, any::<bool>()).prop_map(|(layer, certificates)| Call::Attend { layer, certificates }),
        2 => Just(Call::Finish),
        2 => Just(Call::Abort),
        8 => (slot(), 1..50u64, proptest::bool::weighted(0.2))
            .prop_map(|(slot, tokens, hostile)| Call::Whole { slot, tokens, hostile }),
    ]
}
