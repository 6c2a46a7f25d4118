//! Arguments of the kernels, byte for byte as `kernels/attend/args.cuh` has them. Addresses are those of the device.

/// Type of a tensor in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Element {
    /// Half precision.
    F16 = 0,
    /// bfloat16.
    Bf16 = 1,
    /// Single precision.
    F32 = 2,
}

impl From<certkv_core::Dtype> for Element {
    /// That of originals in a store.
    fn from(store: certkv_core::Dtype) -> Self {
        match store {
            certkv_core::Dtype::F16 => Self::F16,
            certkv_core::Dtype::Bf16 => Self::Bf16,
            certkv_core::Dtype::F32 => Self::F32,
        }
    }
}

/// Where the rows of a tensor of tokens are: head `h` of token `t` begins `t token + h head` elements behind the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Strides {
    /// Elements from a token to the next.
    pub token: u32,
    /// Elements from a head to the next.
    pub head: u32,
}

impl Strides {
    /// Of rows that follow each other.
    pub const fn dense(heads: usize, dim: usize) -> Self {
        Self { token: (heads * dim) as u32, head: dim as u32 }
    }
}

/// Where the 16-bit sides of a promoted block lie, in fragment order; 0 for a side that is not promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sides {
    /// Address of the keys.
    pub keys: u64,
    /// Address of the values.
    pub values: u64,
}

/// What the device says of one query head's output. Lengths have the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Certificate {
    /// Key term of math.md (5.10), denominator included.
    pub e_key: f32,
    /// Value term of (5.10).
    pub e_val: f32,
    /// What the kernel's own arithmetic adds (5.28).
    pub e_arith: f32,
    /// Upper bound of `||O - O'||` for the output that was written.
    pub bound: f32,
    /// What `min(e_key + e_val, cap)` was compared with.
    pub tolerance: f32,
    /// `||O'||` as computed.
    pub norm: f32,
    /// `||O' - c||` as computed.
    pub radius: f32,
    /// Log of the sum of the exponentials of the logits used, in nats.
    pub lse: f32,
    /// 0 uncertified, 1 certified, 2 exact: nothing but rounding separates the output from dense attention.
    pub status: u32,
    /// Rung that produced the output; written by whoever runs the ladder.
    pub rung: u32,
    /// Of a corrected head: blocks whose keys' residuals the correction read beside what the pass had.
    pub refined_keys: u32,
    /// The same of values.
    pub refined_values: u32,
}

/// How many blocks of a KV head a correction goes over. [`SelectMode::Refine`](super::select::SelectMode::Refine) writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Picked {
    /// Blocks picked.
    pub blocks: u32,
    /// Of them, those whose keys' residuals the pass has not read.
    pub keys: u32,
    /// The same of values.
    pub values: u32,
    /// Zero.
    pub unused: u32,
}

/// Arguments of `ckv_attend`. Shapes: `seqs` sequences, `kv_heads` KV heads, `group` query heads to each, `dim` channels. Tables are
/// indexed by row, the number of a sequence in them; outputs by place in the batch.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct AttendArgs {
    /// Records of the layer: that of page `p`, head `h` at `packed + p page_stride + h head_stride`.
    pub packed: u64,
    /// Bytes from a page to the next.
    pub page_stride: u64,
    /// Bytes from a head's record to the next.
    pub head_stride: u64,
    /// `u32[seqs]`: row of each sequence of the batch; 0: its own number.
    pub rows: u64,
    /// `u32[rows][table_stride]`: page of each full block.
    pub table: u64,
    /// `u32[rows]`: visible tokens, at least 1.
    pub lens: u64,
    /// `u32[rows][kv_heads][table_stride]`: 0, or 1 + index into `sides`. 0: nothing is promoted.
    pub promoted: u64,
    /// `Sides[..]`.
    pub sides: u64,
    /// `u32[rows]`: slot of the open block.
    pub tails: u64,
    /// Slot `t` lies at `tail_base + t tail_stride`: `[kv_heads][keys, values]` in fragment order.
    pub tail_base: u64,
    /// Bytes from a slot to the next.
    pub tail_stride: u64,
    /// `f32[tail slots][kv_heads][tokens of a block][2]`: squares of the norms of each row's key and value.
    pub row_norms: u64,
    /// `f32[rows][kv_heads][dim]` value centres; 0: zero.
    pub centres: u64,
    /// `[seqs][kv_heads group][dim]` of `query_type`, by `query_strides`.
    pub query: u64,
    /// The same shape of `out_type`, by `out_strides`.
    pub out: u64,
    /// `Certificate[seqs][kv_heads group]`.
    pub certificates: u64,
    /// `u32[rows][kv_heads][table_stride][group]`: see [`MassWord`]; 0: not wanted.
    pub masses: u64,
    /// `u32`: a count, then `seq kv_heads + head` of each head to compute, once; behind room for all heads, where their order is written,
    /// as much room. 0: all.
    pub only: u64,
    /// `u32`: a count, then `seq kv_heads + head` of each head over tolerance; 0: not wanted.
    pub failures: u64,
    /// Room for partial results.
    pub partials: u64,
    /// `u32[seqs kv_heads]`, zero between launches.
    pub counters: u64,
    /// Sequences.
    pub seqs: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Entries per row of `table`, `promoted` and `masses`.
    pub table_stride: u32,
    /// [`Element`] of the queries.
    pub query_type: u32,
    /// [`Element`] of the outputs.
    pub out_type: u32,
    /// Scale of the logits.
    pub scale: f32,
    /// Tolerance as a share of the output's norm.
    pub relative: f32,
    /// Tolerance as a length. A head passes under the larger of the two.
    pub absolute: f32,
    /// [`Demand`] `[rows][kv_heads group]`, query heads of a token: what is remembered of a head from step to step, all zero in a new row; 0: residuals are not
    /// read.
    pub demands: u64,
    /// `u32[2]`, counted up: sides whose residuals were read, keys and values; 0: not wanted.
    pub refined: u64,
    /// `u8[rows][kv_heads][table_stride]`: sides (1 keys, 2 values) whose residuals the pass has read; 0: not wanted.
    pub looks: u64,
    /// `[seqs kv_heads]` partial results: the state of every head when its pass is over, from which a correction starts; 0: not wanted.
    pub kept: u64,
    /// Of a correction: `u32[seqs kv_heads][table_stride]`, `16 block + 4 looks + sides` of the blocks that it goes over, `sides` those that are to have
    /// been read with residuals.
    pub picks: u64,
    /// [`Picked`]`[seqs kv_heads]`.
    pub picked: u64,
    /// 1: all residuals are read, and nothing is remembered.
    pub refine_all: u32,
    /// 1: see [`launch::Attend::settled`](super::launch::Attend::settled).
    pub settled: u32,
    /// 1: see [`launch::Attend::closing`](super::launch::Attend::closing).
    pub closing: u32,
    /// Of a variant with windows: newest tokens that a query sees, its own among them, at least 1.
    pub window: u32,
    /// And first tokens of the sequence.
    pub sinks: u32,
    /// [`Draft`]`[seqs]`, of a variant with [drafts](super::Variant::drafting); 0 for others.
    pub drafts: u64,
    /// `f32[kv_heads group][2]`: a tolerance for each query head of a token, in place of `relative` and `absolute`; 0: those for all.
    pub limits: u64,
    /// `u32[kv_heads][metric_stride]`: what keys are coded in ([`metrics`](super::metrics)), of a variant that [needs them](super::Variant::is_calibrated); 0 for others.
    pub metrics: u64,
    /// Where the queries are.
    pub query_strides: Strides,
    /// Where the outputs go.
    pub out_strides: Strides,
    /// Of a variant for [levels](super::Variant::levelled): `u32[rows][table_stride]`, which block of the sequence each of a row's blocks is; 0 for others.
    pub homes: u64,
    /// Of such a variant, in a launch over all heads: `u32`, how many of its CTAs attend; 0: all.
    pub ctas: u64,
    /// 1: see [`launch::Attend::beside`](super::launch::Attend::beside).
    pub beside: u32,
    /// Zero.
    pub unused: u32,
}

/// New tokens of a sequence that one launch attends; the twin of `CkvDraft`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Draft {
    /// Tokens that the first of them sees, itself among them: at least 1.
    pub first: u32,
    /// How many they are: 1 to [`Variant::draft`](super::Variant::draft). The last one is the length of the launch, or lies before it.
    pub count: u32,
    /// Which token of the launch's queries and outputs the first of them is; the others follow it.
    pub row: u32,
    /// Where the block before the last one is, if the step's tokens have filled it and it has no record yet: 1 + the slot of its tail, else 0. Only with
    /// [`launch::Attend::closing`](super::launch::Attend::closing).
    pub tail: u32,
}

impl Draft {
    /// Of `count` tokens from the caller's `row` on, the first of which sees `first`, and of which none has filled a block before the last one.
    pub const fn new(first: usize, count: usize, row: usize) -> Self {
        Self { first: first as u32, count: count as u32, row: row as u32, tail: 0 }
    }

    /// Its words.
    pub const fn words(&self) -> [u32; 4] {
        [self.first, self.count, self.row, self.tail]
    }
}

/// What is remembered of a query head of a refinable format, so that the next step knows how much a block may add to its bound
/// before its residuals are read. All zero: everything is refined.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Demand {
    /// Least norm of the output of late.
    pub norm: f32,
    /// Its last distance from the value centre.
    pub radius: f32,
    /// Even shares of the tolerance that a side of a block may add unrefined.
    pub kappa: f32,
    /// Zero.
    pub unused: f32,
}

impl Demand {
    /// Words of one in device memory.
    pub const WORDS: usize = size_of::<Self>() / 4;
    /// `KAPPA` of `kernels/attend/demand.cuh`: even shares to begin with.
    pub const KAPPA: f32 = 3.0;
    /// `FADE` of the same: how an old least norm rises from step to step.
    pub const FADE: f32 = 1.1;
}

/// One block and query head in `masses`, as base-2 logarithms: the block's mass (15 bits, steps of 1/32 from -512), what its keys'
/// codes add to the bound (12 bits, steps of 1/64 from -32), and how even its weights are (5 bits, steps of 1/8 from 0 down). 0: no
/// mass. `mass_word` of kernels/attend/certificate.cuh writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MassWord(pub u32);

impl Certificate {
    /// Words of one certificate in device memory.
    pub const WORDS: usize = size_of::<Self>() / 4;

    /// A certificate from its words.
    pub fn from_words(w: &[u32; Self::WORDS]) -> Self {
        let f = |i: usize| f32::from_bits(w[i]);
        Self {
            e_key: f(0),
            e_val: f(1),
            e_arith: f(2),
            bound: f(3),
            tolerance: f(4),
            norm: f(5),
            radius: f(6),
            lse: f(7),
            status: w[8],
            rung: w[9],
            refined_keys: w[10],
            refined_values: w[11],
        }
    }
}

impl MassWord {
    /// Largest `log2` of a mass that a word has room for: it stands for all above.
    pub const MOST_LOG2_MASS: f32 = 32767.0 / 32.0 - 512.0;

    /// `log2` of the block's sum of exponentials; `None` without mass.
    pub fn log2_mass(self) -> Option<f32> {
        (self.0 != 0).then(|| (self.0 >> 17) as f32 / 32.0 - 512.0)
    }

    /// The same as whole octaves, rounded down, and 32nds of one.
    pub fn octaves(self) -> Option<[i32; 2]> {
        let steps = (self.0 >> 17) as i32;
        (self.0 != 0).then_some([(steps >> 5) - 512, steps & 31])
    }

    /// `log2` of `g_b` (5.9) over the block's mass, as if its keys were read from codes.
    pub fn log2_share(self) -> Option<f32> {
        (self.0 != 0).then(|| (self.0 >> 5 & 0xfff) as f32 / 64.0 - 32.0)
    }

    /// `log2` of `P_b / W_b`, rounded up: the root of the sum of the weights' squares over their sum, 0 for a single weight.
    pub fn log2_evenness(self) -> Option<f32> {
        (self.0 != 0).then(|| -((self.0 & 0x1f) as f32) / 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_their_twins() {
        assert_eq!(size_of::<AttendArgs>(), 33 * 8 + 17 * 4 + 4);
        assert_eq!(size_of::<Picked>(), 16);
        assert_eq!(size_of::<Demand>(), 16);
        assert_eq!(size_of::<Certificate>(), 48);
        assert_eq!(size_of::<Sides>(), 16);
    }

    #[test]
    fn heads_begin_as_the_kernel_has_them() {
        let source = crate::cuda::Verb::Attend.source().unwrap();
        let text = source.headers.iter().find(|header| header.0 == "attend/demand.cuh").unwrap().1;
        assert!(text.contains(&format!("KAPPA = {:.1}f", Demand::KAPPA)));
        assert!(text.contains(&format!("FADE = {:.1}f", Demand::FADE)));
    }

    #[test]
    fn mass_words_hold_three_logarithms() {
        let word = MassWord((((512 - 3) * 32) << 17) | (((32 + 2) * 64) << 5) | 12);
        assert_eq!((word.log2_mass(), word.log2_share(), word.log2_evenness()), (Some(-3.0), Some(2.0), Some(-1.5)));
        assert_eq!((word.octaves(), MassWord(0).log2_mass()), (Some([-3, 0]), None));
    }
}
