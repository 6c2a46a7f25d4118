//! Pointers that a caller hands in.
use super::api::call;
use super::error::CudaError;
use super::gpu::Gpu;
use core::ffi::{c_int, c_uint};
use cudarc::driver::sys::CUpointer_attribute as Attribute;

impl Gpu {
    /// Checks that an address of a caller is memory of this GPU (or managed memory) and a multiple of `needs`.
    ///
    /// One query of the driver, well below a microsecond. It cannot tell how many bytes are there.
    ///
    /// # Errors
    /// [`CudaError::Misaligned`], [`CudaError::WrongMemorySpace`]; the driver's.
    pub fn check_device_pointer(&self, argument: &'static str, address: u64, needs: u64) -> Result<(), CudaError> {
        if needs == 0 || !address.is_multiple_of(needs) {
            return Err(CudaError::Misaligned { argument, address, needs });
        }
        let wrong = |found| Err(CudaError::WrongMemorySpace { argument, found });
        if address == 0 {
            return wrong("null");
        }
        let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, -1);
        let mut which = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut values = [(&raw mut kind).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
        let _entered = self.context.enter()?;
        // SAFETY: three attributes of four bytes each with room for their values. An address that is not CUDA's is
        // no error and is not dereferenced.
        unsafe {
            call!(self.context.api, cuPointerGetAttributes(3, which.as_mut_ptr(), values.as_mut_ptr(), address))
        }?;
        match kind {
            _ if managed & 0xff != 0 => Ok(()),
            2 if ordinal == self.context.device => Ok(()),
            2 => wrong("memory of another GPU"),
            1 => wrong("pinned host memory"),
            0 => wrong("host memory, or not an address"),
            _ => wrong("an array or another kind of memory"),
        }
    }
}
