//! What heads over tolerance need beside the pass over the whole batch, in one launch: `ckv_ladder`.
//!
//! For the heads of a list sides are chosen, a pass reads these more finely, and a second pass may follow over the heads that are left; each part begins
//! when the one before it has ended, and every output has the bits that it would have from launches of their own. Over an empty list, which nearly
//! every list is, the launch costs what an empty launch costs, where one for each part would cost as often.
use super::args::AttendArgs;
use super::launch::{Attend, CHAINED, Select, attend_args, cta_of, select_args};
use super::queue::{Queue, Span};
use super::select::{SelectArgs, SelectMode};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};

/// Passes of a launch, at most: `MOST_PASSES` of kernels/ladder/args.cuh.
pub const MOST_PASSES: usize = 2;

/// Words that a launch counts its parts in, [`Ladder::turns`]: `TURN_WORDS` of kernels/ladder/args.cuh.
pub const TURN_WORDS: usize = 2 * (1 + MOST_PASSES) + 1;

/// Arguments of `ckv_ladder`, byte for byte as `kernels/ladder/args.cuh` has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LadderArgs {
    /// The choice for the heads that the first pass is over.
    pub select: SelectArgs,
    /// The passes, each over a list.
    pub passes: [AttendArgs; MOST_PASSES],
    /// `u32[TURN_WORDS]`, zero between launches.
    pub turns: u64,
    /// 1: the choice comes first.
    pub chooses: u32,
    /// How many passes.
    pub count: u32,
}

/// Arguments of [`ladder`].
#[derive(Debug, Clone, Copy)]
pub struct Ladder<'a> {
    /// Comes first: a [`SelectMode::Repair`] or [`SelectMode::Refine`] for the heads that `pass` is over. What it sets to zero it also sets where the list
    /// is empty.
    pub choice: Option<Select<'a>>,
    /// Over a list of heads. Tables, records and lengths are as when it is enqueued: [`Attend::settled`] has no meaning here.
    pub pass: Attend<'a>,
    /// Over the heads that `pass` left over tolerance, by the same variant.
    pub then: Option<Attend<'a>>,
    /// [`TURN_WORDS`] words, zero between launches.
    pub turns: Span<'a>,
}

/// Enqueues `ckv_ladder`.
///
/// # Errors
/// [`CudaError::BadArgument`] for passes without lists, over lists that do not follow one another, or a choice for other heads; as
/// [`attend`](super::launch::attend).
pub fn ladder(queue: &Queue, kernel: &Function, a: &Ladder<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    let wrong = |argument, why| Err(CudaError::BadArgument { argument, why });
    let mut args = LadderArgs {
        turns: on.writes(a.turns, "turns", 4 * TURN_WORDS)?,
        count: 1 + u32::from(a.then.is_some()),
        ..LadderArgs::default()
    };
    args.passes[0] = attend_args(&mut on, &Attend { settled: false, ..a.pass })?;
    if args.passes[0].only == 0 {
        return wrong("pass", "over no list of heads");
    }
    if let Some(choice) = &a.choice {
        if !matches!(choice.mode, SelectMode::Repair | SelectMode::Refine) {
            return wrong("choice", "of another mode than repair or refine");
        }
        args.chooses = 1;
        args.select = select_args(&mut on, choice)?;
        if args.select.only != args.passes[0].only {
            return wrong("choice", "for other heads than the pass is over");
        }
    }
    if let Some(then) = &a.then {
        if then.variant != a.pass.variant || a.pass.variant.corrects() {
            return wrong("then", "of another variant, or behind a correction");
        }
        args.passes[1] = attend_args(&mut on, &Attend { settled: false, ..*then })?;
        if args.passes[1].only == 0 || args.passes[1].only != args.passes[0].failures {
            return wrong("then", "over another list than the pass adds to");
        }
    }
    let (threads, shared) = cta_of(a.pass.variant)?;
    on.tell(queue)?;
    // SAFETY: as in `launch::attend`; lists in device memory are the caller's, as tables are.
    unsafe { kernel.launch(queue.stream(), a.pass.ctas, threads, shared, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Verb;

    #[test]
    fn arguments_and_counts_are_those_of_their_twins() {
        assert_eq!(size_of::<LadderArgs>(), size_of::<SelectArgs>() + 2 * size_of::<AttendArgs>() + 16);
        let source = Verb::Ladder.source().unwrap();
        let text = source.headers.iter().find(|header| header.0 == "ladder/args.cuh").unwrap().1;
        assert!(text.contains(&format!("MOST_PASSES = {MOST_PASSES};")));
        assert!(text.contains("TURN_WORDS = 2 * (1 + MOST_PASSES) + 1;"));
    }
}
