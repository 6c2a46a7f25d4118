//! The floating-point environment that Rust, and every bound, takes for granted: rounding to nearest, no subnormal number taken for 0, no traps. A host's
//! threads may have another, by `-ffast-math` in any library that it loads, or by `fesetround`.

/// While it lives this thread computes as Rust has it; then as before. Two instructions where it did already. Threads that are made meanwhile compute so, too.
pub(crate) struct Usual(Option<Control>);

impl Usual {
    pub(crate) fn enter() -> Self {
        let found = control();
        Self((found != USUAL).then(|| {
            // SAFETY: what Rust takes for granted.
            unsafe { set_control(USUAL) };
            found
        }))
    }
}

impl Drop for Usual {
    fn drop(&mut self) {
        if let Some(found) = self.0 {
            // SAFETY: back to the caller's, which is not Rust.
            unsafe { set_control(found) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
use x86_64::{Control, USUAL, control, set_control};
#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::asm;

    /// MXCSR without its flags of what happened.
    pub(super) type Control = u32;
    const FLAGS: u32 = 0x3f;
    /// All exceptions masked, nothing else.
    pub(super) const USUAL: Control = 0x1f80;

    pub(super) fn control() -> Control {
        let mut now = 0u32;
        // SAFETY: stores a word in a word.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut now, options(nostack, preserves_flags)) };
        now & !FLAGS
    }

    /// # Safety
    /// Rust code runs under [`USUAL`] alone.
    pub(super) unsafe fn set_control(to: Control) {
        // SAFETY: loads a word with no reserved bits, and flags that nobody is told.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &to, options(nostack, preserves_flags, readonly)) };
    }
}

#[cfg(target_arch = "aarch64")]
use aarch64::{Control, USUAL, control, set_control};
#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use core::arch::asm;

    /// FPCR.
    pub(super) type Control = u64;
    pub(super) const USUAL: Control = 0;

    pub(super) fn control() -> Control {
        let now: u64;
        // SAFETY: reads a register that every program may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) now, options(nomem, nostack, preserves_flags)) };
        now
    }

    /// # Safety
    /// Rust code runs under [`USUAL`] alone.
    pub(super) unsafe fn set_control(to: Control) {
        // SAFETY: 0, or what the register had.
        unsafe { asm!("msr fpcr, {}", in(reg) to, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use other::{Control, USUAL, control, set_control};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod other {
    /// Nothing is known of it.
    pub(super) type Control = ();
    pub(super) const USUAL: Control = ();
    pub(super) fn control() -> Control {}
    /// # Safety
    /// Always.
    pub(super) unsafe fn set_control((): Control) {}
}
