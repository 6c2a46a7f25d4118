//! What launches of variants with levels take, and others do not.
use super::launch::{Attend, Select};
use super::select::LevelRecords;
use super::touched::Touched;
use certkv_device::cuda::CudaError;

/// Where a level's blocks are in their sequences; 0 for a variant without levels.
pub(super) fn homes_of(on: &mut Touched, a: &Attend<'_>) -> Result<u64, CudaError> {
    let wrong = |argument, why| Err(CudaError::BadArgument { argument, why });
    if (a.share.is_some() || a.beside) && !a.variant.is_levelled() {
        return wrong("share", "of a variant without levels");
    }
    if a.beside && !a.settled {
        return wrong("beside", "of a launch that waits for the one ahead");
    }
    match (a.variant.is_levelled(), a.homes) {
        (false, None) => Ok(0),
        (false, Some(_)) => wrong("homes", "of a variant without levels"),
        (true, None) => wrong("homes", "none, of a variant with levels"),
        (true, Some(_)) if a.kept.is_none() => wrong("kept", "none, of a variant with levels"),
        (true, Some(homes)) => on.reads(homes, "homes", 4 * a.tables.entries()),
    }
}

/// Where records of levels are; 0 for a variant without.
pub(super) fn levels_of(on: &mut Touched, a: &Select<'_>) -> Result<u64, CudaError> {
    if a.variant.is_levelled() != a.levels.is_some() {
        let why = if a.levels.is_some() { "of a variant without levels" } else { "none, of a variant with levels" };
        return Err(CudaError::BadArgument { argument: "levels", why });
    }
    on.may_read(a.levels, "levels", size_of::<LevelRecords>())
}
