//! What `ckv_publish` writes: certificates of a step as the host reads them without waiting, in a ring of [`Slots`].
use super::args::Certificate;
use super::launch::{CHAINED, word};
use super::queue::{Area, Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};
use certkv_device::mailbox::{Slots, Words};
use core::sync::atomic::Ordering;

/// Words of a ring before the entry of its first slot: the ring's own, and the slot's marks.
pub const ENTRY: usize = 10;
/// Words of an entry before its heads: sequences and layers, query heads and rule.
pub const ENTRY_HEAD: usize = 2;
/// Words of a head: bound and tolerance, norm and state.
pub const HEAD_WORDS: usize = 2;
/// Status of heads of a layer that the step did not attend.
pub const ABSENT: u8 = 255;
/// Layers that one launch can publish.
pub const MOST_LAYERS: usize = 256;
const MASK_WORDS: usize = MOST_LAYERS / 32;

/// What a step did, as the kernel takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PublishRule {
    /// No claim.
    Packed = 0,
    /// Certificates with repairs.
    Certified = 1,
    /// Everything from the originals.
    Dense = 2,
}

/// A set of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct LayerSet(pub(super) [u32; MASK_WORDS]);

impl LayerSet {
    /// The layers below [`MOST_LAYERS`] out of `layers`.
    pub fn of(layers: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self::default();
        for layer in layers.into_iter().filter(|layer| *layer < MOST_LAYERS) {
            set.0[layer / 32] |= 1 << (layer % 32);
        }
        set
    }
}

/// Arguments of `ckv_publish`, byte for byte as `kernels/publish.cu` has them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PublishArgs {
    /// `Certificate[layers][2][heads_most]`: of the first launch, and of the last that computed a repaired head.
    pub certificates: u64,
    /// `u32[layers][2][list_words]`: a count, then `place kv_heads + head`: heads that were repaired, and of those the dense ones.
    pub lists: u64,
    /// `u32[rows]`: what append refused of a row.
    pub errors: u64,
    /// `u32[seqs]`: row of each sequence of the batch.
    pub rows: u64,
    /// The ring.
    pub ring: u64,
    /// `u64`: steps so far.
    pub published: u64,
    /// `u32`, zero between launches.
    pub arrived: u64,
    /// Certificates of one launch and layer.
    pub heads_most: u64,
    /// Words of one list.
    pub list_words: u64,
    /// Words of 8 bytes from a slot to the next.
    pub slot_words: u64,
    /// Slots.
    pub slots: u32,
    /// Layers.
    pub layers: u32,
    /// Sequences of the batch.
    pub seqs: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads to each.
    pub group: u32,
    /// [`PublishRule`].
    pub rule: u32,
    /// Layers that have certificates of this step.
    pub attended: LayerSet,
    /// Layers whose records are the originals, of which nothing is repaired.
    pub exact: LayerSet,
}

/// Arguments of [`launch`].
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// As [`PublishArgs::certificates`].
    pub certificates: Span<'a>,
    /// As [`PublishArgs::lists`].
    pub lists: Span<'a>,
    /// As [`PublishArgs::errors`].
    pub errors: Span<'a>,
    /// As [`PublishArgs::rows`].
    pub rows: Span<'a>,
    /// The ring's memory: an [`Area`] for the host, or device memory.
    pub ring: Span<'a>,
    /// Its layout.
    pub slots: Slots,
    /// `u64`: steps so far; `u32`: zero between launches. 16 bytes.
    pub state: Span<'a>,
    /// Rows that tables have: certificates and lists have room for as many sequences.
    pub most: usize,
    /// Layers.
    pub layers: usize,
    /// Sequences of the batch.
    pub seqs: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads to each.
    pub group: usize,
    /// What the step did.
    pub rule: PublishRule,
    /// Layers that have certificates of this step.
    pub attended: LayerSet,
    /// Layers whose records are the originals.
    pub exact: LayerSet,
}

/// The ring of a cache: `slots` steps of `layers` layers, `rows` sequences and `q_heads` query heads.
pub fn slots(slots: usize, layers: usize, rows: usize, q_heads: usize) -> Option<Slots> {
    let heads = layers.checked_mul(rows)?.checked_mul(q_heads)?.checked_mul(HEAD_WORDS)?;
    Slots::new(slots, heads.checked_add(ENTRY_HEAD)?)
}

/// What was published of a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadWords {
    /// As [`Certificate::bound`](super::args::Certificate::bound).
    pub bound: f32,
    /// Tolerance.
    pub tolerance: f32,
    /// Norm of the output.
    pub norm: f32,
    /// Status in the engine's numbers, or [`ABSENT`].
    pub status: u8,
    /// Rung in the engine's numbers.
    pub rung: u8,
}

/// Sequences, layers, query heads and rule of an entry from its first words.
pub fn shape_of(entry: &[u64]) -> Option<[usize; 4]> {
    let half = |word: u64, i: u32| (word >> (32 * i)) as u32 as usize;
    let [a, b] = [*entry.first()?, *entry.get(1)?];
    Some([half(a, 0), half(a, 1), half(b, 0), half(b, 1)])
}

/// Words of an entry, from its first ones.
pub fn words_of(entry: &[u64]) -> usize {
    let Some([seqs, layers, heads, _]) = shape_of(entry) else { return 0 };
    let all = seqs.checked_mul(layers).and_then(|n| n.checked_mul(heads)).and_then(|n| n.checked_mul(HEAD_WORDS));
    all.and_then(|n| n.checked_add(ENTRY_HEAD)).unwrap_or(usize::MAX)
}

/// A head of an entry.
pub fn head_of(entry: &[u64], layer: usize, place: usize, head: usize) -> Option<HeadWords> {
    let [seqs, layers, heads, _] = shape_of(entry)?;
    if layer >= layers || place >= seqs || head >= heads {
        return None;
    }
    let at = ENTRY_HEAD + ((layer * seqs + place) * heads + head) * HEAD_WORDS;
    let [a, b] = [*entry.get(at)?, *entry.get(at + 1)?];
    let state = (b >> 32) as u32;
    Some(HeadWords {
        bound: f32::from_bits(a as u32),
        tolerance: f32::from_bits((a >> 32) as u32),
        norm: f32::from_bits(b as u32),
        status: state as u8,
        rung: (state >> 8) as u8,
    })
}

impl Words for Area {
    /// 0, which no mark is, beyond the area.
    fn load(&self, at: usize, order: Ordering) -> u64 {
        Self::load(self, at, order).unwrap_or(0)
    }
}

/// Enqueues `ckv_publish`.
///
/// # Errors
/// [`CudaError::OutOfRange`] names what is too short; more layers than one launch can publish.
pub fn launch(queue: &Queue, kernel: &Function, a: &Publish<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    const THREADS: u32 = 256;
    if a.layers > MOST_LAYERS {
        return Err(CudaError::BadArgument { argument: "layers", why: "more than one launch can publish" });
    }
    let heads = a.most * a.kv_heads * a.group;
    let list_bytes = a.lists.bytes() / (2 * a.layers).max(1);
    let state = on.writes(a.state, "published", 16)?;
    let args = PublishArgs {
        certificates: on.reads(a.certificates, "certificates", 2 * a.layers * heads * size_of::<Certificate>())?,
        lists: on.reads(a.lists, "lists", 2 * a.layers * 4 * (1 + a.most * a.kv_heads))?,
        errors: on.reads(a.errors, "errors", 4 * a.most)?,
        rows: on.reads(a.rows, "batch", 4 * a.seqs)?,
        ring: on.writes(a.ring, "certificates", 8 * a.slots.len())?,
        published: state,
        arrived: state + 8,
        heads_most: heads as u64,
        list_words: (list_bytes / 4) as u64,
        slot_words: a.slots.stride() as u64,
        slots: word("slots", a.slots.count())?,
        layers: word("layers", a.layers)?,
        seqs: word("seqs", a.seqs)?,
        kv_heads: word("kv_heads", a.kv_heads)?,
        group: word("group", a.group)?,
        rule: a.rule as u32,
        attended: a.attended,
        exact: a.exact,
    };
    on.tell(queue)?;
    // SAFETY: as in `launch::attend`; lists and rows in device memory are the caller's, as tables are, and the queue keeps the ring.
    unsafe { kernel.launch(queue.stream(), args.layers.clamp(1, 64), THREADS, 0, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_has_the_size_of_its_twin() {
        assert_eq!(size_of::<PublishArgs>(), 10 * 8 + 6 * 4 + 2 * 4 * MASK_WORDS);
    }

    #[test]
    fn layers_are_bits() {
        let set = LayerSet::of([0, 33, 255, 256]);
        assert_eq!((set.0[0], set.0[1], set.0[7]), (1, 2, 1 << 31));
    }

    #[test]
    fn entries_of_any_words_are_read_within_bounds() {
        assert_eq!(slots(1, 3, 2, 4).map(|slots| slots.len()), Some(ENTRY + ENTRY_HEAD + 24 * HEAD_WORDS));
        assert_eq!((words_of(&[]), head_of(&[1], 0, 0, 0)), (0, None));
        let entry = [2 | 3 << 32, 4, 7, 8];
        assert_eq!((words_of(&entry), words_of(&[u64::MAX; 2])), (2 + 2 * 24, usize::MAX));
        assert_eq!(head_of(&entry, 0, 0, 0).map(|h| h.bound.to_bits()), Some(7));
        assert_eq!([head_of(&entry, 0, 0, 1), head_of(&entry, 3, 0, 0), head_of(&entry, 0, 2, 0)], [None; 3]);
        assert_eq!(slots(usize::MAX, 2, 2, 2), None);
    }
}
