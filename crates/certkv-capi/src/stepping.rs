//! What a step handle stands for, and whose turn it is.
use crate::cache::{self, certkv_cache};
use crate::guard::{Failure, Poison};
use crate::handle::Registry;
use crate::kept::Kept;
use crate::log::Sink;
use crate::owned::OwnedStep;
use crate::status::certkv_status::{CERTKV_BUSY_STEP, CERTKV_INVALID_HANDLE};
use crate::step::certkv_step;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Default)]
struct Stepping {
    /// `None` in one that waits for the next step.
    cache: Option<Arc<cache::Held>>,
    poison: Poison,
    work: Mutex<Work>,
}

#[derive(Default)]
pub(crate) struct Work {
    /// `None` once the step is over.
    pub(crate) step: Option<OwnedStep>,
    /// Kept between calls, and given to the next step.
    pub(crate) kept: Kept,
}

impl Stepping {
    /// Its cache, which is there as long as its handle.
    fn cache(&self) -> Result<&Arc<cache::Held>, Failure> {
        self.cache.as_ref().ok_or_else(over)
    }

    /// Ends what is left of a step, and gives its cache what the next one works in.
    fn clear(&mut self) {
        let Work { step, kept } = core::mem::take(self.work.get_mut());
        drop(step);
        if let Some(cache) = self.cache.take() {
            cache.spare.give(kept);
        }
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        self.clear();
    }
}

static STEPS: Registry<Stepping> = Registry::new(0x57, "step");

/// Those without a step and without a handle, so that beginning one asks the allocator for nothing. A few: for the steps that are open at once.
struct Idle(Mutex<Vec<Arc<Stepping>>>);

static IDLE: Idle = Idle(Mutex::new(Vec::new()));
const MOST_IDLE: usize = 8;

impl Idle {
    /// One that nobody else has.
    fn take(&self) -> Arc<Stepping> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps one for a step to come, if its handle has ended and no other call has it.
    fn keep(&self, mut held: Arc<Stepping>) {
        // A look first, as nearly every call is followed by another on its step.
        if Arc::strong_count(&held) > 1 {
            return;
        }
        let Some(stepping) = Arc::get_mut(&mut held) else { return };
        // Before the lock: it may be the last that has a cache.
        stepping.clear();
        stepping.poison = Poison::default();
        let mut all = self.0.lock();
        if all.len() < MOST_IDLE {
            all.push(held);
        }
    }
}

/// A handle for a step that `begin` begins on a live cache.
pub(crate) fn open(
    cache: *const certkv_cache,
    begin: impl FnOnce(&Arc<cache::Held>, &mut Work) -> Result<(), Failure>,
) -> Result<*mut certkv_step, Failure> {
    let mut made = IDLE.take();
    let begun = cache::with(cache, |held| {
        // Nobody else has it.
        let stepping = Arc::get_mut(&mut made).ok_or_else(over)?;
        stepping.cache = Some(Arc::clone(held));
        let work = stepping.work.get_mut();
        work.kept = held.spare.take();
        begin(held, work)
    });
    match begun {
        Ok(()) => Ok(STEPS.insert(made)),
        Err(failure) => {
            IDLE.keep(made);
            Err(failure)
        }
    }
}

/// Runs `work` on a live step; a panic in it poisons the step and its cache.
pub(crate) fn with_step(
    handle: *const certkv_step,
    work: impl FnOnce(&cache::Held, &mut Work) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let held = STEPS.get(handle)?;
    let done = {
        let cache = held.cache()?;
        Sink::hears(&cache.log);
        held.poison.check()?;
        cache.poison.check()?;
        let mut inner = exclusive(&held)?;
        cache.poison.watch(|| held.poison.watch(|| work(cache, &mut inner)))
    };
    IDLE.keep(held);
    done
}

/// Runs `work` on the open step of a handle, and `after` if it succeeds.
fn attempt<T>(
    handle: *const certkv_step,
    work: impl FnOnce(&mut OwnedStep) -> Result<T, Failure>,
    after: impl FnOnce(&mut Work) -> Result<(), Failure>,
) -> Result<T, Failure> {
    let mut result = None;
    with_step(handle, |_, inner| {
        result = Some(work(inner.step.as_mut().ok_or_else(over)?)?);
        after(inner)
    })?;
    result.ok_or_else(over)
}

/// Runs `work` on the open step of a handle.
pub(crate) fn on<T>(
    handle: *const certkv_step,
    work: impl FnOnce(&mut OwnedStep) -> Result<T, Failure>,
) -> Result<T, Failure> {
    attempt(handle, work, |_| Ok(()))
}

/// As [`on`], and ends the step if `work` succeeds, rolling it back.
pub(crate) fn end<T>(
    handle: *const certkv_step,
    work: impl FnOnce(&mut OwnedStep) -> Result<T, Failure>,
) -> Result<T, Failure> {
    attempt(handle, work, |inner| {
        STEPS.remove(handle)?;
        drop(inner.step.take());
        Ok(())
    })
}

/// Ends the handle of a step whose work `ending` has taken, and says what that came to.
pub(crate) fn finish(
    handle: *const certkv_step,
    ending: impl FnOnce(OwnedStep) -> Result<(), Failure>,
) -> Result<(), Failure> {
    with_step(handle, |_, work| {
        let finished = ending(work.step.take().ok_or_else(over)?);
        STEPS.remove(handle)?;
        finished
    })
}

/// Ends a step and its handle, rolling it back, whatever is wrong with it or its cache.
pub(crate) fn abort(handle: *const certkv_step) -> Result<(), Failure> {
    let held = STEPS.get(handle)?;
    {
        let cache = held.cache()?;
        Sink::hears(&cache.log);
        let mut work = exclusive(&held)?;
        STEPS.remove(handle)?;
        // Dropping the step rolls it back; a defect there concerns the cache.
        cache.poison.watch(|| drop(work.step.take()));
    }
    IDLE.keep(held);
    Ok(())
}

fn exclusive(held: &Stepping) -> Result<parking_lot::MutexGuard<'_, Work>, Failure> {
    held.work.try_lock().ok_or_else(|| Failure::new(CERTKV_BUSY_STEP, "another thread is inside a call on this step"))
}

pub(crate) fn over() -> Failure {
    Failure::new(CERTKV_INVALID_HANDLE, "the step is over")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::guard;
    use crate::*;
    use certkv_status::{CERTKV_OK, CERTKV_PANIC, CERTKV_POISONED};
    use core::ptr;

    #[test]
    fn a_defect_in_a_step_poisons_it_and_its_cache() {
        let mut config = core::mem::MaybeUninit::<certkv_config>::uninit();
        let (mut handle, mut sequence, mut step) = (ptr::null_mut(), 0, ptr::null_mut());
        // SAFETY: all pointers are to locals of the right type.
        unsafe {
            assert_eq!(certkv_config_init(config.as_mut_ptr(), size_of::<certkv_config>() as u32), CERTKV_OK);
            let mut config = config.assume_init();
            (config.layers, config.q_heads, config.kv_heads, config.head_dim, config.max_tokens) = (1, 2, 1, 64, 64);
            assert_eq!(certkv_cache_create(&config, &mut handle), CERTKV_OK);
            assert_eq!(certkv_sequence_create(handle, &mut sequence), CERTKV_OK);
            let chunk = certkv_chunk { sequence, tokens: 1 };
            assert_eq!(certkv_step_begin(handle, &chunk, 1, &mut step), CERTKV_OK);
            let busy = STEPS.get(step).unwrap();
            let inside = busy.work.lock();
            assert_eq!(certkv_step_abort(step), CERTKV_BUSY_STEP);
            drop(inside);
            assert_eq!(guard(|| with_step(step, |_, _| panic!("planted"))), CERTKV_PANIC);
            assert_eq!(certkv_step_finish(step), CERTKV_POISONED);
            let rows = [0f32; 64];
            let (k, n) = (rows.as_ptr().cast(), rows.len() as u64);
            assert_eq!(certkv_step_append(step, 0, k, k, n, CERTKV_F32, CERTKV_SPACE_HOST), CERTKV_POISONED);
            assert_eq!(certkv_sequence_release(handle, sequence), CERTKV_POISONED);
            assert_eq!(certkv_step_abort(step), CERTKV_OK);
            assert_eq!(certkv_step_abort(step), CERTKV_INVALID_HANDLE);
            assert_eq!(certkv_cache_destroy(handle), CERTKV_OK);
        }
    }

    #[test]
    fn what_a_step_leaves_serves_the_next() {
        let idle = Idle(Mutex::new(Vec::new()));
        let first = idle.take();
        assert_eq!(guard(|| first.poison.watch(|| panic!("planted"))), CERTKV_PANIC);
        assert!(first.poison.is_set());
        let (at, another) = (Arc::as_ptr(&first), Arc::clone(&first));
        idle.keep(first);
        assert!(idle.0.lock().is_empty(), "a call still has it");
        idle.keep(another);
        let again = idle.take();
        assert!(Arc::as_ptr(&again) == at && !again.poison.is_set() && again.cache.is_none());
        assert!(again.work.lock().step.is_none() && idle.0.lock().is_empty());
        (0..2 * MOST_IDLE).for_each(|_| idle.keep(Arc::default()));
        assert_eq!(idle.0.lock().len(), MOST_IDLE);
    }
}
