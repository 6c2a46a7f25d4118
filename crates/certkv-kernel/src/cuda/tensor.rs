//! Elements of a caller in device memory: where they are, and what kernels step over.
use super::args::{Element, Strides};
use super::queue::Span;
use certkv_core::rows;
use certkv_device::cuda::{CudaError, DeviceBuffer, Gpu};
use core::marker::PhantomData;

impl Element {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Rows of a caller, one for each head of each token: each in one piece, and maybe something else between them, as in a buffer of queries,
/// keys and values. Head `h` of token `t` begins `t * stride + h * head_stride` elements behind the first; no two rows share an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Tokens.
    pub count: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Channels of a head.
    pub dim: usize,
    /// Elements from a token to the next, a multiple of 8 below 2^32. Of one token it does not count.
    pub stride: usize,
    /// Elements from a head to the next, the same. Of one head it does not count.
    pub head_stride: usize,
}

impl Rows {
    /// Rows that follow each other.
    pub const fn dense(count: usize, heads: usize, dim: usize) -> Self {
        Self { count, heads, dim, stride: heads * dim, head_stride: dim }
    }

    /// Tokens `stride` elements apart, whose heads follow each other.
    pub const fn of_tokens(count: usize, heads: usize, dim: usize, stride: usize) -> Self {
        Self { count, heads, dim, stride, head_stride: dim }
    }

    /// Elements, without what lies between.
    pub const fn elements(&self) -> usize {
        self.count.saturating_mul(self.heads).saturating_mul(self.dim)
    }

    /// Whether the rows follow each other.
    pub const fn is_dense(&self) -> bool {
        (self.count <= 1 || self.stride == self.heads * self.dim) && (self.heads <= 1 || self.head_stride == self.dim)
    }

    /// Elements from the first to behind the last, if kernels can step over what is between.
    fn extent(&self, argument: &'static str) -> Result<usize, CudaError> {
        if self.is_dense() || self.elements() == 0 {
            return Ok(self.elements());
        }
        let wrong = |why| Err(CudaError::BadArgument { argument, why });
        let counted = [(self.count, self.stride), (self.heads, self.head_stride)];
        for (_, stride) in counted.into_iter().filter(|(n, _)| *n > 1) {
            if !stride.is_multiple_of(8) {
                return wrong("a stride that is no multiple of 8 elements");
            }
            if u32::try_from(stride).is_err() {
                return wrong("a stride of 2^32 elements or more");
            }
        }
        let Some(extent) = rows::extent(counted.map(|(n, stride)| (n, stride as u64)), self.dim) else {
            return wrong("rows that overlap");
        };
        Ok(usize::try_from(extent).unwrap_or(usize::MAX))
    }

    /// As kernels have them.
    fn strides(&self) -> Strides {
        // Of what is there once nothing is stepped over.
        let of = |n: usize, stride: usize| if n > 1 { u32::try_from(stride).unwrap_or(u32::MAX) } else { 0 };
        Strides { token: of(self.count, self.stride), head: of(self.heads, self.head_stride) }
    }
}

/// Elements of a caller in device memory, one after the other or in [`Rows`].
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    address: u64,
    element: Element,
    elements: usize,
    /// `None`: one after the other.
    rows: Option<Rows>,
    memory: PhantomData<&'a ()>,
}

impl<'a> Tensor<'a> {
    /// `elements` elements of a buffer from byte `offset` on, a multiple of 16.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::Misaligned`].
    pub fn of(buffer: &'a DeviceBuffer, offset: usize, element: Element, elements: usize) -> Result<Self, CudaError> {
        let bytes = elements.saturating_mul(element.bytes());
        let address = buffer.address_of(offset, bytes)?;
        if !address.is_multiple_of(16) {
            return Err(CudaError::Misaligned { argument: "tensor", address, needs: 16 });
        }
        Ok(Self { address, element, elements, rows: None, memory: PhantomData })
    }

    /// As [`Tensor::of`], in rows.
    ///
    /// # Errors
    /// As there; [`CudaError::BadArgument`] for rows that overlap, or strides that kernels do not take.
    pub fn rows_of(buffer: &'a DeviceBuffer, offset: usize, element: Element, rows: Rows) -> Result<Self, CudaError> {
        let all = Self::of(buffer, offset, element, rows.extent("tensor")?)?;
        Ok(all.in_rows(rows))
    }

    /// The rows of memory that holds their extent.
    fn in_rows(self, rows: Rows) -> Self {
        Self { elements: rows.elements(), rows: (!rows.is_dense()).then_some(rows), ..self }
    }

    /// Memory of another library at a device address.
    ///
    /// # Errors
    /// [`CudaError::Misaligned`] if it is no multiple of 16, [`CudaError::WrongMemorySpace`]; the driver's.
    ///
    /// # Safety
    /// As many elements are there, for as long as work that uses the tensor is enqueued, recorded or running.
    pub unsafe fn at(
        gpu: &Gpu,
        argument: &'static str,
        address: u64,
        element: Element,
        elements: usize,
    ) -> Result<Self, CudaError> {
        gpu.check_device_pointer(argument, address, 16)?;
        Ok(Self { address, element, elements, rows: None, memory: PhantomData })
    }

    /// As [`Tensor::at`], in rows.
    ///
    /// # Errors
    /// As there; [`CudaError::BadArgument`] for rows that overlap, or strides that kernels do not take.
    ///
    /// # Safety
    /// As there, of all elements from the first row to the end of the last.
    pub unsafe fn rows_at(
        gpu: &Gpu,
        argument: &'static str,
        address: u64,
        element: Element,
        rows: Rows,
    ) -> Result<Self, CudaError> {
        let extent = rows.extent(argument)?;
        // SAFETY: by the caller's promise.
        Ok(unsafe { Self::at(gpu, argument, address, element, extent)? }.in_rows(rows))
    }

    /// First byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Type of the elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Number of elements, without what lies between rows.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The rows, if they do not follow each other.
    pub fn rows(&self) -> Option<Rows> {
        self.rows
    }

    /// All of it, what lies between rows included.
    pub fn span(&self) -> Span<'a> {
        let elements = self.rows.and_then(|rows| rows.extent("tensor").ok()).unwrap_or(self.elements);
        Span::new(self.address, elements * self.element.bytes())
    }

    /// Some tokens of rows of `[tokens, heads, channels]`, `count` from `first` on.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for rows of other heads, [`CudaError::OutOfRange`] for fewer.
    pub fn tokens(
        &self,
        argument: &'static str,
        [heads, dim]: [usize; 2],
        (first, count): (usize, usize),
    ) -> Result<Self, CudaError> {
        self.holding_rows(argument, [first.saturating_add(count), heads, dim])?;
        let dense = Rows::dense(count, heads, dim);
        let rows = self.rows.map_or(dense, |rows| Rows { count, ..rows });
        let address = self.address + (first * rows.stride * self.element.bytes()) as u64;
        Ok(Self { address, ..*self }.in_rows(rows))
    }

    /// Where rows of `[tokens, heads, channels]` begin, written to `into`.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for rows of other heads, [`CudaError::OutOfRange`] for fewer.
    pub fn row_addresses(
        &self,
        argument: &'static str,
        shape: [usize; 3],
        into: &mut Vec<u64>,
    ) -> Result<(), CudaError> {
        let (address, strides, _) = self.holding_rows(argument, shape)?;
        let [tokens, heads, _] = shape;
        let bytes = self.element.bytes() as u64;
        let at = |token: usize, head: usize| {
            address + (token as u64 * u64::from(strides.token) + head as u64 * u64::from(strides.head)) * bytes
        };
        into.clear();
        into.extend((0..tokens).flat_map(|token| (0..heads).map(move |head| at(token, head))));
        Ok(())
    }

    /// The address, the strides, and the elements from the first row to behind the last, if rows of `count` tokens, `heads` heads and `dim`
    /// channels are there.
    pub(super) fn holding_rows(
        &self,
        argument: &'static str,
        [count, heads, dim]: [usize; 3],
    ) -> Result<(u64, Strides, usize), CudaError> {
        let dense = Rows::dense(count, heads, dim);
        let given = self.rows.unwrap_or(dense);
        if [given.heads, given.dim] != [heads, dim] {
            return Err(CudaError::BadArgument { argument, why: "rows of other heads" });
        }
        let address = self.long_enough(argument, dense.elements())?;
        let used = Rows { count, ..given };
        Ok((address, used.strides(), used.extent(argument)?))
    }

    fn long_enough(&self, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        if needs > self.elements {
            let each = self.element.bytes();
            return Err(CudaError::OutOfRange {
                argument,
                start: 0,
                bytes: needs.saturating_mul(each),
                len: self.elements.saturating_mul(each),
            });
        }
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_stepped_over_or_refused() {
        let rows = |stride, head_stride| Rows { count: 3, heads: 2, dim: 64, stride, head_stride };
        let found = |stride, head_stride| rows(stride, head_stride).extent("x").ok();
        assert!(rows(128, 64).is_dense() && Rows::dense(3, 2, 64) == rows(128, 64));
        assert_eq!(found(128, 64), Some(384));
        assert_eq!(found(200, 72), Some(400 + 72 + 64));
        // Heads outside, tokens inside.
        assert_eq!(found(64, 192), Some(384));
        assert_eq!(found(72, 208), Some(144 + 208 + 64));
        for (stride, head_stride) in
            [(120, 64), (128, 56), (64, 184), (64, 64), (132, 64), (128, 68), (1 << 32, 64), (64, 1 << 32), (0, 0)]
        {
            assert_eq!(found(stride, head_stride), None, "{stride} {head_stride}");
        }
        // What is not there is not stepped over.
        assert_eq!(Rows { count: 1, ..rows(3, 64) }.extent("x").ok(), Some(128));
        assert_eq!(Rows { heads: 1, ..rows(64, 3) }.extent("x").ok(), Some(192));
        assert_eq!(Rows { count: 1, ..rows(3, 80) }.strides(), Strides { token: 0, head: 80 });
    }
}
