//! Rows as a caller's tensors have them: any 16- or 32-bit type, any order of tokens and heads.
use crate::argument;
use crate::certificate::certkv_certificate;
use crate::config::{CERTKV_BF16, CERTKV_F16, CERTKV_F32, certkv_dtype};
use crate::guard::{Failure, guard};
use crate::kept::Kept;
use crate::owned::DeviceRows;
use crate::records::{Records, sized};
use crate::status::certkv_status::{
    self, CERTKV_OUT_OF_MEMORY, CERTKV_OVERFLOW, CERTKV_OVERLAP, CERTKV_RESERVED, CERTKV_SHAPE, CERTKV_UNSUPPORTED,
};
use crate::step::{self, certkv_space, certkv_step, element};
use crate::stepping::{Work, over, with_step};
use certkv::{Certificate, Dtype, gpu};
use certkv_core::rows;
use core::ffi::c_void;
use core::{ptr, slice};
use half::{bf16, f16};

/// Where the rows of one tensor are: channel `c` of head `h` of token `t` is element `t * token_stride + h * head_stride + c` behind `data`.
/// Nothing is guessed from shapes: tokens, heads and channels are those of the step and the cache. No element may be two.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct certkv_tensor {
    /// sizeof(certkv_tensor) of the caller's header.
    pub struct_size: u32,
    /// CERTKV_F32, CERTKV_F16 or CERTKV_BF16.
    pub dtype: certkv_dtype,
    /// Where it lies.
    pub space: certkv_space,
    /// 0.
    pub reserved: u32,
    /// The first channel of the first head of the first token. Written only where it is an output's.
    pub data: *mut c_void,
    /// Elements from a token to the next; 0 for `heads * head_dim`.
    pub token_stride: u64,
    /// Elements from a head to the next; 0 for `head_dim`.
    pub head_stride: u64,
}

/// Rows on their way between a caller's tensors and the engine; kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Keys or queries, values or outputs.
    wide: [Vec<f32>; 2],
    narrow: [Vec<u16>; 2],
}

impl Buffers {
    /// Of memory that they have.
    pub(crate) fn bytes(&self) -> usize {
        let wide: usize = self.wide.iter().map(Vec::capacity).sum();
        let narrow: usize = self.narrow.iter().map(Vec::capacity).sum();
        4 * wide + 2 * narrow
    }
}

/// A tensor that was checked.
#[derive(Debug, Clone, Copy)]
struct Rows {
    name: &'static str,
    dtype: certkv_dtype,
    data: *mut c_void,
    /// Elements to the next token and head, and channels.
    strides: [usize; 2],
    dim: usize,
    heads: usize,
}

impl Rows {
    /// A caller's tensor, by its name and that of its `data`: no text is made unless it is refused.
    ///
    /// # Safety
    /// `given` is NULL or a struct of its `struct_size` bytes.
    unsafe fn read(
        given: *const certkv_tensor,
        [name, label]: [&'static str; 2],
        [tokens, heads, dim]: [usize; 3],
    ) -> Result<(Self, certkv_space), Failure> {
        // SAFETY: by the caller's promise; integers and a pointer, for which zero bits are a value.
        let given = unsafe { argument::read_struct(given, name, size_of::<certkv_tensor>())? };
        if given.reserved != 0 {
            return Err(Failure::new(CERTKV_RESERVED, format!("{name}->reserved is not 0")));
        }
        let bytes = match given.dtype {
            CERTKV_F32 => 4,
            CERTKV_F16 | CERTKV_BF16 => 2,
            other => return Err(argument::invalid(format!("{name}->dtype = {other}: not an element type"))),
        };
        let or = |given: u64, default: usize| if given == 0 { default as u64 } else { given };
        let (token, head) = (or(given.token_stride, heads * dim), or(given.head_stride, dim));
        let Some(extent) = rows::extent([(tokens, token), (heads, head)], dim) else {
            let why =
                format!("{name}: rows of {dim} channels overlap with token_stride {token} and head_stride {head}");
            return Err(Failure::new(CERTKV_SHAPE, why));
        };
        let extent = u64::try_from(extent).unwrap_or(u64::MAX);
        if bytes == 4 {
            argument::array(given.data.cast::<f32>(), extent, label)?;
        } else {
            argument::array(given.data.cast::<u16>(), extent, label)?;
        }
        let strides = [token as usize, head as usize];
        Ok((Self { name, dtype: given.dtype, data: given.data, strides, dim, heads }, given.space))
    }

    /// First byte, bytes and name of what a caller's tensor says that it is, right or wrong; nothing if it cannot be read.
    ///
    /// # Safety
    /// As [`Rows::read`].
    unsafe fn claim(
        given: *const certkv_tensor,
        name: &'static str,
        [tokens, heads, dim]: [usize; 3],
    ) -> (*const u8, usize, &'static str) {
        // SAFETY: by the caller's promise; integers and a pointer, for which zero bits are a value.
        let Ok(given) = (unsafe { argument::read_struct(given, name, size_of::<certkv_tensor>()) }) else {
            return (ptr::null(), 0, name);
        };
        let or = |given: u64, default: usize| if given == 0 { default as u64 } else { given };
        let last = |n: usize, stride: u64| (n.max(1) - 1) as u128 * u128::from(stride);
        let extent = last(tokens, or(given.token_stride, heads * dim)) + last(heads, or(given.head_stride, dim));
        let each = if [CERTKV_F16, CERTKV_BF16].contains(&given.dtype) { 2 } else { 4 };
        let bytes = usize::try_from((extent + dim as u128).saturating_mul(each)).unwrap_or(usize::MAX);
        (given.data.cast_const().cast(), bytes, name)
    }

    fn store(&self) -> Option<Dtype> {
        match self.dtype {
            CERTKV_F16 => Some(Dtype::F16),
            CERTKV_BF16 => Some(Dtype::Bf16),
            _ => None,
        }
    }

    fn at(&self, token: usize, head: usize) -> usize {
        token * self.strides[0] + head * self.strides[1]
    }

    /// Row by row, each where it begins.
    fn each(&self, tokens: usize) -> impl Iterator<Item = usize> + use<'_> {
        (0..tokens).flat_map(move |token| (0..self.heads).map(move |head| self.at(token, head)))
    }

    fn reserve<T>(&self, to: &mut Vec<T>, tokens: usize) -> Result<(), Failure> {
        to.clear();
        let elements = tokens * self.heads * self.dim;
        let none =
            |_| Failure::new(CERTKV_OUT_OF_MEMORY, format!("{}: {elements} elements could not be had", self.name));
        to.try_reserve(elements).map_err(none)
    }

    /// Copies the rows, of 16 bits, as they are.
    ///
    /// # Safety
    /// All of the tensor's rows are readable, and nobody writes meanwhile.
    unsafe fn gather_bits(&self, tokens: usize, to: &mut Vec<u16>) -> Result<(), Failure> {
        self.reserve(to, tokens)?;
        for at in self.each(tokens) {
            // SAFETY: aligned, and inside what `read` has checked; readable by the caller's promise.
            to.extend_from_slice(unsafe { slice::from_raw_parts(self.data.cast::<u16>().add(at), self.dim) });
        }
        Ok(())
    }

    /// Copies the rows as f32, which holds all three types.
    ///
    /// # Safety
    /// As [`Rows::gather_bits`].
    unsafe fn gather(&self, tokens: usize, to: &mut Vec<f32>) -> Result<(), Failure> {
        self.reserve(to, tokens)?;
        for at in self.each(tokens) {
            if self.dtype == CERTKV_F32 {
                // SAFETY: as in `gather_bits`.
                to.extend_from_slice(unsafe { slice::from_raw_parts(self.data.cast::<f32>().add(at), self.dim) });
                continue;
            }
            // SAFETY: as in `gather_bits`.
            let bits = unsafe { slice::from_raw_parts(self.data.cast::<u16>().add(at), self.dim) };
            if self.dtype == CERTKV_F16 {
                to.extend(bits.iter().map(|bits| f16::from_bits(*bits).to_f32()));
            } else {
                to.extend(bits.iter().map(|bits| bf16::from_bits(*bits).to_f32()));
            }
        }
        Ok(())
    }

    /// Rounds `outputs` to the tensor's type, in place, and adds how far each head's output moved to its certificate.
    fn round(&self, outputs: &mut [f32], records: &mut [Certificate]) -> Result<(), Failure> {
        let Some(dtype) = self.store() else { return Ok(()) };
        let mut records = records.iter_mut();
        for row in outputs.chunks_exact_mut(self.dim) {
            let lost = rows::round(dtype, row).map_err(|at| {
                Failure::new(CERTKV_OVERFLOW, format!("{}: {} does not fit its type", self.name, row[at]))
            })?;
            if let Some(record) = records.next() {
                record.e_arith += lost;
            }
        }
        Ok(())
    }

    /// Writes rows that were rounded to the tensor's type.
    ///
    /// # Safety
    /// All of the tensor's rows are writable, and nobody else reads or writes meanwhile.
    unsafe fn scatter(&self, tokens: usize, from: &[f32]) {
        for (row, at) in from.chunks_exact(self.dim).zip(self.each(tokens)) {
            if self.dtype == CERTKV_F32 {
                // SAFETY: aligned, and inside what `read` has checked; writable by the caller's promise.
                unsafe { ptr::copy_nonoverlapping(row.as_ptr(), self.data.cast::<f32>().add(at), self.dim) };
                continue;
            }
            for (i, x) in row.iter().enumerate() {
                let bits = match self.dtype {
                    CERTKV_F16 => f16::from_f32(*x).to_bits(),
                    _ => bf16::from_f32(*x).to_bits(),
                };
                // SAFETY: as above.
                unsafe { self.data.cast::<u16>().add(at + i).write(bits) };
            }
        }
    }

    /// Bytes of an element.
    fn element_bytes(&self) -> usize {
        if self.dtype == CERTKV_F32 { 4 } else { 2 }
    }

    /// Refuses rows that are written of which one shares a byte with one of `other`. Rows of one buffer may lie between each other's. Costs nothing
    /// where the buffers are apart, else `heads` squared a token.
    fn apart_from(&self, other: &Self, tokens: usize) -> Result<(), Failure> {
        let bytes = |rows: &Self, elements: usize| elements as u128 * rows.element_bytes() as u128;
        let start = |rows: &Self, token, head| rows.data.addr() as u128 + bytes(rows, rows.at(token, head));
        let end = |rows: &Self| start(rows, tokens.max(1) - 1, rows.heads.max(1) - 1) + bytes(rows, rows.dim);
        if end(self) <= start(other, 0, 0) || end(other) <= start(self, 0, 0) {
            return Ok(());
        }
        let (step, length) = (bytes(other, other.strides[0]).max(1), bytes(other, other.dim));
        let meets = |at: u128| {
            (0..other.heads).any(|head| {
                // The first of this head's rows that ends behind `at`.
                let base = start(other, 0, head);
                let token = if base + length > at { 0 } else { (at - base - length) / step + 1 };
                token < tokens as u128 && base + token * step < at + bytes(self, self.dim)
            })
        };
        if self.each(tokens).any(|at| meets(self.data.addr() as u128 + bytes(self, at))) {
            let why = format!("{} and {} overlap", self.name, other.name);
            return Err(Failure::new(CERTKV_OVERLAP, why));
        }
        Ok(())
    }

    /// The rows in device memory, if kernels can step over what is between them.
    fn on_device(&self, tokens: usize) -> Result<DeviceRows, Failure> {
        let ([token, head], name) = (self.strides, self.name);
        for (stride, given, n) in [("token_stride", token, tokens), ("head_stride", head, self.heads)] {
            if n > 1 && !(given.is_multiple_of(8) && u32::try_from(given).is_ok()) {
                let why = format!("{name}: {stride} {given} in device memory: a multiple of 8 below 2^32 there");
                return Err(Failure::new(CERTKV_UNSUPPORTED, why));
            }
        }
        let rows = gpu::Rows { count: tokens, heads: self.heads, dim: self.dim, stride: token, head_stride: head };
        Ok(DeviceRows { address: self.data as u64, element: element(self.dtype)?, rows })
    }
}

/// As certkv_step_append from tensors of `kv_heads` heads, each of its own type and strides. Both are in one place; in device memory
/// `data` is 16-byte aligned and strides are multiples of 8 below 2^32: slices of a buffer of queries, keys and values, or heads outside tokens.
///
/// Threads: one at a time per step.
/// Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
/// Capture: safe with device memory, see certkv_step_captured; host memory not allowed.
/// Errors: as certkv_step_append, and STRUCT_SIZE, RESERVED, SHAPE (rows that overlap). What has changed is as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_append_tensors(
    step: *mut certkv_step,
    layer: u32,
    keys: *const certkv_tensor,
    values: *const certkv_tensor,
) -> certkv_status {
    guard(|| {
        with_step(step, |held, work| {
            let geometry = *held.engine.geometry();
            let Work { step, kept: Kept { tensors, .. } } = work;
            let step = step.as_mut().ok_or_else(over)?;
            let (layer, tokens) = (layer as usize, step.tokens());
            let shape = [tokens, geometry.kv_heads, geometry.head_dim];
            // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
            let (k, space) = unsafe { Rows::read(keys, ["keys", "keys->data"], shape)? };
            // SAFETY: as above.
            let (v, other) = unsafe { Rows::read(values, ["values", "values->data"], shape)? };
            if space != other {
                return Err(argument::invalid(format!("keys->space = {space}, values->space = {other}: must be one")));
            }
            if step::on_device(space, held)? {
                let given = [k.on_device(tokens)?, v.on_device(tokens)?];
                // SAFETY: the caller gives tensors of these extents, until the work is done.
                return unsafe { step.append_device(layer, given) };
            }
            let Buffers { wide: [wide_keys, wide_values], narrow: [bits_of_keys, bits_of_values] } = tensors;
            if [k.store(), v.store()] == [Some(geometry.store); 2] {
                // SAFETY: the caller gives tensors of these extents, unchanged during the call.
                unsafe {
                    k.gather_bits(tokens, bits_of_keys)?;
                    v.gather_bits(tokens, bits_of_values)?;
                }
                return step.append_bits(layer, bits_of_keys, bits_of_values);
            }
            // SAFETY: as above.
            unsafe {
                k.gather(tokens, wide_keys)?;
                v.gather(tokens, wide_values)?;
            }
            step.append(layer, wide_keys, wide_values)
        })
    })
}

/// As certkv_step_attend from and to tensors of `q_heads` heads, each of its own type and strides; they may overlap: everything is read before
/// anything is written. The bound of a certificate is that of what is written: rounding to 16 bits counts under `e_arith`. Both are in one place; in
/// device memory as for certkv_step_append_tensors, and no row of one shares a byte with one of the other's. In a
/// step of one token per sequence an output that its type cannot hold is uncertified there.
///
/// Threads: one at a time per step.
/// Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
/// Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
/// Errors: as certkv_step_attend, and STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, SHAPE (rows that overlap), OVERFLOW (an output that the type of `out`
/// cannot hold). What has changed is as there: nothing was written to `out`, nor to certificates that overlap it or `queries`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_attend_tensors(
    step: *mut certkv_step,
    layer: u32,
    queries: *const certkv_tensor,
    out: *const certkv_tensor,
    certificates: *mut certkv_certificate,
    n_certificates: u64,
) -> certkv_status {
    guard(|| {
        with_step(step, |held, work| {
            let geometry = *held.engine.geometry();
            let Work { step, kept: Kept { certificates: records, tensors, .. } } = work;
            let step = step.as_mut().ok_or_else(over)?;
            let (layer, tokens) = (layer as usize, step.tokens());
            // SAFETY: the caller gives NULL or `n_certificates` elements.
            let mut filled = unsafe { Records::new(certificates, n_certificates, tokens * geometry.q_heads)? };
            let heads = filled.heads();
            let shape = [tokens, geometry.q_heads, geometry.head_dim];
            // SAFETY: the caller gives NULL or structs of their `struct_size` bytes.
            let claims = unsafe { [Rows::claim(out, "out", shape), Rows::claim(queries, "queries", shape)] };
            let apart = filled.apart_from(claims);
            // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
            let (q, space) = unsafe { Rows::read(queries, ["queries", "queries->data"], shape)? };
            // SAFETY: as above.
            let (o, other) = unsafe { Rows::read(out, ["out", "out->data"], shape)? };
            if space != other {
                return Err(argument::invalid(format!("queries->space = {space}, out->space = {other}: must be one")));
            }
            sized(records, heads);
            let device = step::on_device(space, held)?;
            apart?;
            if device {
                let given = [q.on_device(tokens)?, o.on_device(tokens)?];
                o.apart_from(&q, tokens)?;
                // SAFETY: the caller gives tensors of these extents, until the work is done.
                unsafe { step.attend_device(layer, given)? };
                if heads > 0 {
                    step.certificates(layer, records)?;
                }
                filled.fill(records);
                return Ok(());
            }
            let [rows, outputs] = &mut tensors.wide;
            // SAFETY: the caller gives tensors of these extents, unchanged during the call but for `out`.
            unsafe { q.gather(tokens, rows)? };
            o.reserve(outputs, tokens)?;
            outputs.resize(rows.len(), f32::NAN);
            step.attend(layer, rows, outputs, records)?;
            o.round(outputs, records)?;
            // SAFETY: `out` has this extent, by the caller's promise, and everything was read.
            unsafe { o.scatter(tokens, outputs) };
            filled.fill(records);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::certkv_status::CERTKV_INVALID_ARGUMENT;
    use crate::step::CERTKV_SPACE_HOST;

    fn tensor(data: *mut c_void, dtype: certkv_dtype, token_stride: u64, head_stride: u64) -> certkv_tensor {
        let struct_size = size_of::<certkv_tensor>() as u32;
        certkv_tensor { struct_size, dtype, space: CERTKV_SPACE_HOST, reserved: 0, data, token_stride, head_stride }
    }

    #[test]
    fn rows_are_found_and_must_not_overlap() {
        let mut memory = vec![0u16; 4096];
        let data: *mut c_void = memory.as_mut_ptr().cast();
        let read = |token, head| {
            let given = tensor(data, CERTKV_F16, token, head);
            // SAFETY: a whole struct.
            unsafe {
                let (_, bytes, _) = Rows::claim(&given, "keys", [3, 2, 64]);
                let read = Rows::read(&given, ["keys", "keys->data"], [3, 2, 64]);
                read.map(|(rows, _)| (rows.at(2, 1), bytes))
            }
        };
        assert_eq!(read(0, 0).unwrap(), (320, 768));
        assert_eq!(read(128, 64).unwrap(), (320, 768));
        assert_eq!(read(200, 70).unwrap(), (470, 1068));
        // Heads outside, tokens inside.
        assert_eq!(read(64, 192).unwrap(), (320, 768));
        for (token, head) in [(127, 64), (0, 63), (64, 191), (64, 64), (1, 0), (u64::MAX, 1)] {
            assert_eq!(read(token, head).unwrap_err().status, CERTKV_SHAPE, "{token} {head}");
        }
        for (token, head) in [(u64::MAX, 0), (0, u64::MAX), (1 << 62, 0)] {
            let status = read(token, head).unwrap_err().status;
            assert!([CERTKV_INVALID_ARGUMENT, CERTKV_SHAPE].contains(&status), "{token} {head}: {status:?}");
        }
    }

    /// Against each row with each row, over tensors in and beside each other.
    #[test]
    fn rows_that_share_a_byte_are_seen() {
        let memory: *mut c_void = ptr::without_provenance_mut(1 << 20);
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        let mut seen = [0, 0];
        for _ in 0..20_000 {
            let tokens = 1 + below(4) as usize;
            let mut any = || {
                let (dtype, heads, dim) = ([CERTKV_F32, CERTKV_F16][below(2) as usize], 1 + below(3), 8);
                let head = dim + below(3) * 8;
                let token = heads * head + below(4) * 8;
                let data = memory.wrapping_byte_add(below(96) as usize * 16);
                // SAFETY: a whole struct.
                let read = unsafe {
                    Rows::read(
                        &tensor(data, dtype, token, head),
                        ["out", "out->data"],
                        [tokens, heads as usize, dim as usize],
                    )
                };
                read.unwrap().0
            };
            let (a, b) = (any(), any());
            let spans = |rows: &Rows| -> Vec<(usize, usize)> {
                let each = rows.element_bytes();
                rows.each(tokens)
                    .map(|at| (rows.data.addr() + at * each, rows.data.addr() + (at + rows.dim) * each))
                    .collect()
            };
            let meet = spans(&a).iter().any(|x| spans(&b).iter().any(|y| x.0 < y.1 && y.0 < x.1));
            assert_eq!(a.apart_from(&b, tokens).is_err(), meet, "{a:?} {b:?} {tokens}");
            seen[usize::from(meet)] += 1;
        }
        assert!(seen[0] > 1000 && seen[1] > 1000, "{seen:?}");
    }

    #[test]
    fn what_rounding_moves_is_added_to_the_bound() {
        let mut target = [0u16; 64];
        let given = tensor(target.as_mut_ptr().cast(), CERTKV_BF16, 0, 0);
        // SAFETY: a whole struct.
        let (rows, _) = unsafe { Rows::read(&given, ["out", "out->data"], [1, 1, 64]) }.unwrap();
        let mut out: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 * 0.001).collect();
        let exact = out.clone();
        let mut record = [Certificate { e_arith: 0.5, ..Certificate::UNCERTIFIED }];
        rows.round(&mut out, &mut record).unwrap();
        let moved: f64 = out.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        assert!(moved > 0.005 && record[0].e_arith >= 0.5 + moved && record[0].e_arith < 0.5 + moved * 1.001);
        // SAFETY: the array has the elements.
        unsafe { rows.scatter(1, &out) };
        assert!(target.iter().zip(&out).all(|(bits, x)| bf16::from_bits(*bits).to_f32() == *x));
        out[3] = f32::MAX;
        assert_eq!(rows.round(&mut out, &mut []).unwrap_err().status, CERTKV_OVERFLOW);
    }
}
