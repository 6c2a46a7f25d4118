//! Tolerances of calls and heads.
use crate::argument;
use crate::guard::guard;
use crate::status::certkv_status;
use crate::step::certkv_step;
use crate::stepping;
use certkv::Tolerance;

/// How far an output may be from exact attention before its head spends more: the larger of a share of the output's norm and a distance in the
/// unit of the values. Neither is negative, and one is positive.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct certkv_tolerance {
    /// Relative to the norm of the output.
    pub relative: f64,
    /// Whatever the norm.
    pub absolute: f64,
}

/// Tolerances of the attend calls that follow in this step, in place of that of its policy: one for all query heads, or `q_heads`, one for each of a
/// layer; with 0 `n_tolerances` (and `tolerances` NULL, if wanted) that of the policy again. `tolerances` is borrowed during the call. `tol` of each
/// certificate says what its output was held to. On a GPU they are rounded down to single precision, and a step with its own is neither recorded
/// nor replayed: certkv_step_attend says CERTKV_ORDER on a stream that records, certkv_step_replayed CERTKV_POLICY.
///
/// Threads: one at a time per step.
/// Stream: none of the caller's; work that was enqueued before keeps its tolerances. On a GPU those of `q_heads` go to the device on the cache's own.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (an array beyond memory), INVALID_HANDLE, BUSY_STEP, SHAPE (neither 0 nor 1 nor `q_heads`), POLICY
/// (one out of range, or a step of another policy than the certified one), ORDER (one for each head while a GPU's stream is recorded), a driver's,
/// POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_set_tolerances(
    step: *mut certkv_step,
    tolerances: *const certkv_tolerance,
    n_tolerances: u64,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives `n_tolerances` elements.
        let given = unsafe { argument::slice(tolerances, n_tolerances, "tolerances")? };
        stepping::on(step, |open| {
            if given.len() > 1 {
                argument::count(n_tolerances, open.q_heads() as u128, "tolerances")?;
            }
            let of = |given: &certkv_tolerance| Tolerance { relative: given.relative, absolute: given.absolute };
            open.set_tolerances(&given.iter().map(of).collect::<Vec<_>>())
        })
    })
}
