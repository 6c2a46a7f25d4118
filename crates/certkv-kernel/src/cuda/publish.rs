//! What `ckv_publish` writes: certificates of a step as the host reads them without waiting, in a ring of [`Slots`].
use super::args::{Certificate, Draft};
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
/// Launches that a layer can have.
pub const MOST_LAUNCHES: usize = 8;
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
    /// Of a launch `Certificate[places][kv_heads][each][group]`: of the first pass, and of the last that computed a repaired head.
    pub certificates: u64,
    /// Of a launch `u32[2][..]`: a count, then `place kv_heads + head`: heads that were repaired, and of those the dense ones.
    pub lists: u64,
    /// `u32[rows]`: what append refused of a row.
    pub errors: u64,
    /// `u32[seqs]`: row of each place of the entry.
    pub rows: u64,
    /// [`Draft`]`[launches][drafts_most]`; 0: place `i` is of token `i`.
    pub drafts: u64,
    /// The ring.
    pub ring: u64,
    /// `u64`: steps so far.
    pub published: u64,
    /// `u32`, zero between launches.
    pub arrived: u64,
    /// Bytes from certificates of the first pass to those of the last.
    pub certificate_bytes: u64,
    /// From a layer's to the next's.
    pub certificate_layer: u64,
    /// From heads that were repaired to the dense ones.
    pub list_bytes: u64,
    /// From a layer's to the next's.
    pub list_layer: u64,
    /// From a launch's certificates to the next's, and from its lists.
    pub launch_bytes: u64,
    /// Words of 8 bytes from a slot to the next.
    pub slot_words: u64,
    /// Slots.
    pub slots: u32,
    /// Layers.
    pub layers: u32,
    /// Places of the entry: sequences of the batch, or tokens of drafts.
    pub seqs: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads to each.
    pub group: u32,
    /// [`PublishRule`].
    pub rule: u32,
    /// Launches of a layer, at most.
    pub launches: u32,
    /// Sequences of a launch, at most.
    pub places: u32,
    /// Drafts that a launch may be told of.
    pub drafts_most: u32,
    /// Tokens of a sequence that a launch has room for.
    pub each: [u32; MOST_LAUNCHES],
    /// Layers that have certificates of this step.
    pub attended: LayerSet,
    /// Layers whose records are the originals, of which nothing is repaired.
    pub exact: LayerSet,
}

/// What the launches of a step left, layer by layer.
#[derive(Debug, Clone, Copy)]
pub struct Left<'a> {
    /// As [`PublishArgs::certificates`], from the first layer's on.
    pub certificates: Span<'a>,
    /// Bytes from a layer's certificates to the next's, and from those of the first pass to those of the last.
    pub certificate_strides: [usize; 2],
    /// As [`PublishArgs::lists`].
    pub lists: Span<'a>,
    /// The same of lists.
    pub list_strides: [usize; 2],
    /// As [`PublishArgs::rows`].
    pub rows: Span<'a>,
    /// `None`: the batch's single tokens.
    pub drafts: Option<LeftDrafts<'a>>,
}

/// Of a step of drafts, whose launches of a layer leave certificates and lists of their own.
#[derive(Debug, Clone, Copy)]
pub struct LeftDrafts<'a> {
    /// [`Draft`]`[launches][most]`, of none a token where a launch has no more of it.
    pub told: Span<'a>,
    /// Drafts that a launch may be told of.
    pub most: usize,
    /// Launches of a layer, at most.
    pub launches: usize,
    /// Drafts of the step.
    pub places: usize,
    /// Tokens of one that a launch has room for; 0: it did not run.
    pub each: [u32; MOST_LAUNCHES],
    /// Bytes from a launch's certificates to the next's, and from its lists.
    pub stride: usize,
}

/// Arguments of [`launch`].
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// Results.
    pub left: Left<'a>,
    /// As [`PublishArgs::errors`].
    pub errors: Span<'a>,
    /// The ring's memory: an [`Area`] for the host, or device memory.
    pub ring: Span<'a>,
    /// Its layout.
    pub slots: Slots,
    /// `u64`: steps so far; `u32`: zero between launches. 16 bytes.
    pub state: Span<'a>,
    /// Rows that tables have.
    pub most: usize,
    /// Layers.
    pub layers: usize,
    /// Places of the entry: sequences of the batch, or tokens of drafts.
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

/// The ring of a cache: `slots` steps of `layers` layers, `rows` places and `q_heads` query heads.
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
    let left = &a.left;
    if a.layers > MOST_LAYERS {
        return Err(CudaError::BadArgument { argument: "layers", why: "more than one launch can publish" });
    }
    let (launches, places, each, stride) =
        left.drafts.map_or((1, a.seqs, [1; MOST_LAUNCHES], 0), |d| (d.launches, d.places, d.each, d.stride));
    let heads = places * a.kv_heads;
    let most = each.iter().max().map_or(0, |each| *each as usize);
    if launches > MOST_LAUNCHES {
        return Err(CudaError::BadArgument { argument: "launches", why: "more than one layer can have" });
    }
    // Up to the end of the last layer's last launch.
    let extent = |[layer, last]: [usize; 2], bytes: usize| match a.layers.min(launches) {
        0 => 0,
        _ => (a.layers - 1) * layer + (launches - 1) * stride + last + bytes,
    };
    let certificates = extent(left.certificate_strides, heads * most * a.group * size_of::<Certificate>());
    let lists = extent(left.list_strides, 4 * (1 + heads));
    let state = on.writes(a.state, "published", 16)?;
    let args = PublishArgs {
        certificates: on.reads(left.certificates, "certificates", certificates)?,
        lists: on.reads(left.lists, "lists", lists)?,
        errors: on.reads(a.errors, "errors", 4 * a.most)?,
        rows: on.reads(left.rows, "batch", 4 * a.seqs)?,
        drafts: match left.drafts {
            Some(d) => on.reads(d.told, "drafts", d.launches * d.most * size_of::<Draft>())?,
            None => 0,
        },
        ring: on.writes(a.ring, "certificates", 8 * a.slots.len())?,
        published: state,
        arrived: state + 8,
        certificate_bytes: left.certificate_strides[1] as u64,
        certificate_layer: left.certificate_strides[0] as u64,
        list_bytes: left.list_strides[1] as u64,
        list_layer: left.list_strides[0] as u64,
        launch_bytes: stride as u64,
        slot_words: a.slots.stride() as u64,
        slots: word("slots", a.slots.count())?,
        layers: word("layers", a.layers)?,
        seqs: word("seqs", a.seqs)?,
        kv_heads: word("kv_heads", a.kv_heads)?,
        group: word("group", a.group)?,
        rule: a.rule as u32,
        launches: word("launches", launches)?,
        places: word("drafts", places)?,
        drafts_most: word("drafts", left.drafts.map_or(0, |d| d.most))?,
        each,
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
        assert_eq!(size_of::<PublishArgs>(), 14 * 8 + 9 * 4 + 4 * MOST_LAUNCHES + 4 + 2 * 4 * MASK_WORDS);
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
