//! Certificates that a call hands to its caller.
use crate::argument;
use crate::certificate::certkv_certificate;
use crate::guard::Failure;
use certkv::Certificate;

/// A caller's records that a call fills: none, or as many as it has outputs. However it ends, those that it did not fill certify nothing, but where
/// they overlap what the call is not to change; they are written once, as a pass over them takes as long as the rest of a call.
pub(crate) struct Records {
    at: *mut certkv_certificate,
    heads: usize,
}

impl Records {
    /// # Safety
    /// `certificates` is NULL or has `n` elements, which nobody else touches as long as this lives.
    pub(crate) unsafe fn new(certificates: *mut certkv_certificate, n: u64, expected: usize) -> Result<Self, Failure> {
        let heads = argument::array(certificates, n, "certificates")?;
        if heads > 0 {
            argument::count(n, expected as u128, "certificates")?;
        }
        Ok(Self { at: certificates, heads })
    }

    /// How many there are.
    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// Refuses other buffers of the call, as (first byte, bytes, name), that share a byte with them. Nothing is written then, not even that they
    /// certify nothing: it would be written over what the call is not to change.
    pub(crate) fn apart_from(&mut self, others: [(*const u8, usize, &str); 2]) -> Result<(), Failure> {
        for other in others.into_iter().filter(|(at, ..)| !at.is_null()) {
            if let Err(overlap) = argument::disjoint((self.at.cast_const(), self.heads, "certificates"), other) {
                self.heads = 0;
                return Err(overlap);
            }
        }
        Ok(())
    }

    /// Fills them, as many as `records` are, and leaves none for later.
    pub(crate) fn fill(mut self, records: &[Certificate]) {
        let heads = core::mem::take(&mut self.heads);
        for (at, record) in records.iter().take(heads).enumerate() {
            // SAFETY: aligned, and below the number of elements that `new` was promised.
            unsafe { self.at.add(at).write(certkv_certificate::from(record)) };
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let empty = certkv_certificate::from(&Certificate::UNCERTIFIED);
        for at in 0..self.heads {
            // SAFETY: as in `fill`.
            unsafe { self.at.add(at).write(empty) };
        }
    }
}

/// Gives records that the engine fills their number; what they say before is of an earlier call.
pub(crate) fn sized(records: &mut Vec<Certificate>, heads: usize) {
    if records.len() != heads {
        records.clear();
        records.resize(heads, Certificate::UNCERTIFIED);
    }
}

/// # Safety
/// `to` is aligned and has as many elements.
pub(crate) unsafe fn put_records(to: *mut certkv_certificate, records: &[Certificate]) {
    for (at, record) in records.iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { to.add(at).write(certkv_certificate::from(record)) };
    }
}
