//! Buffers of a step, kept by the cache from step to step, so that decoding does not allocate once it is warm.
use crate::append::RowBuffer;
use crate::attend::log_mass::Leaders;
use crate::attend::pages::Pages;
use crate::attend::promoted::{Resident, Wanted};
use crate::attend::published::Published;
use crate::attend::rows::Rows;
use crate::attend::sets::Sets;
use crate::levels::{Deciders, Heard, encoders};
use crate::sequence::HeadMemory;
use crate::step::Lists;
use crate::{Cache, Error, Tolerance};
use certkv_bound::Certificate;
use certkv_codec::Encoder;
use certkv_control::explore::Explorer;
use certkv_control::guess::Guesser;
use certkv_control::smartkv::WidthAllocator;
use certkv_control::{BitSet, GroupCover};
use certkv_core::{OutOfMemory, RecordLayout, reserve_total};
use certkv_kernel::{Kernel, Masses, Partial, Scores};

/// Everything a step needs beyond the sequences themselves.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The rows of the present append.
    pub(crate) rows: RowBuffer,
    /// A full block on its way to the encoders.
    pub(crate) block: Vec<u16>,
    /// By format and KV head, see [`encoders`].
    pub(crate) encoders: Vec<Vec<Encoder>>,
    /// Outputs of the present call, given to the caller only when all are there.
    pub(crate) out: Vec<f32>,
    /// Certificates of the present call.
    pub(crate) certificates: Vec<Certificate>,
    /// Tolerances of the present call, `[q_heads]`.
    pub(crate) tolerances: Vec<Tolerance>,
    /// Pages of the layer being read.
    pub(crate) pages: Pages,
    /// What the layer being read leaves to copy to scratch.
    pub(crate) wanted: Wanted,
    /// Blocks of the layer being read that are read exactly whatever is decided.
    pub(crate) uncoded: BitSet,
    /// `[kv head]`.
    pub(crate) heads: Vec<HeadWork>,
    /// Between steps: levels of blocks.
    pub(crate) widths: WidthAllocator,
    pub(crate) deciders: Deciders,
    pub(crate) heard: Heard,
    /// Between steps: what the next one begins with.
    pub(crate) lists: Lists,
}

/// Buffers of one KV head and its query heads.
#[derive(Debug)]
pub(crate) struct HeadWork {
    pub(crate) kernel: certkv_kernel::Workspace,
    pub(crate) partial: Partial,
    pub(crate) split: Partial,
    pub(crate) masses: Masses,
    /// What is read how in the present pass.
    pub(crate) sets: Sets,
    /// Rows that left their blocks.
    pub(crate) rows: Rows,
    /// Exact sides that are read from scratch.
    pub(crate) resident: Resident,
    /// The sequence's memory of this head, for the time of the step.
    pub(crate) memory: HeadMemory,
    /// Weights between the two sweeps of a certified step.
    pub(crate) scores: Scores,
    /// Blocks whose weights these still are: their values can be repaired by themselves.
    pub(crate) weighed: BitSet,
    /// One pass has made the outputs of the step.
    pub(crate) summed: bool,
    /// Blocks without codes, read exactly whatever is decided.
    pub(crate) uncoded: usize,
    /// Blocks whose keys were refined as they were read.
    pub(crate) refined: BitSet,
    /// Bytes of keys that were scored from codes first and then otherwise.
    pub(crate) rescored: usize,
    /// Items to promote next, by their numbers ([`Items`](crate::attend::sets::Items)).
    pub(crate) picks: Vec<u32>,
    pub(crate) gains: Vec<f32>,
    pub(crate) cost: Vec<f64>,
    pub(crate) sums: Vec<f64>,
    pub(crate) cover: GroupCover,
    pub(crate) guesser: Guesser,
    pub(crate) explorer: Explorer,
    pub(crate) current: BitSet,
    pub(crate) next: BitSet,
    pub(crate) next_sets: Sets,
    /// Blocks of the present repair whose keys are read again, and what its canaries said.
    pub(crate) touched: Vec<usize>,
    pub(crate) canary: Vec<f32>,
    /// Blocks of the present repair of which only values are read.
    pub(crate) light: Vec<usize>,
    /// What repairs could not take back of each query head's sums, and the exponent that it is relative to (6.15).
    pub(crate) left: Vec<(f64, f32)>,
    /// A block whose canary failed.
    pub(crate) corrupt: Option<usize>,
    /// `[query head of the group][dim]`.
    pub(crate) out: Vec<f32>,
    pub(crate) certificates: Vec<Certificate>,
    /// Query heads that go to the dense rung.
    pub(crate) dense: Vec<bool>,
    /// Of the dense rung.
    pub(crate) exact: Exact,
    pub(crate) failure: Option<Error>,
    /// Absolute tolerance per query head, for the guess.
    pub(crate) tolerances: Vec<f64>,
    /// Of a ranking condition.
    pub(crate) leaders: Leaders,
    /// Of the published policy.
    pub(crate) published: Published,
}

impl Workspace {
    pub(crate) fn new(cache: &Cache) -> Result<Box<Self>, Error> {
        let geometry = cache.geometry();
        let heads = (0..geometry.kv_heads).map(|_| HeadWork::new(cache)).collect();
        Ok(Box::new(Self {
            rows: RowBuffer::default(),
            block: Vec::new(),
            encoders: encoders(&cache.groups),
            out: Vec::new(),
            certificates: Vec::new(),
            tolerances: Vec::new(),
            pages: Pages::default(),
            wanted: Wanted::default(),
            uncoded: BitSet::default(),
            heads,
            widths: WidthAllocator::new(),
            deciders: Deciders::default(),
            heard: Heard::default(),
            lists: Lists::default(),
        }))
    }
}

/// Buffers of the dense rung, for the query heads that are on it.
#[derive(Debug)]
pub(crate) struct Exact {
    pub(crate) queries: Vec<f32>,
    pub(crate) state: Partial,
    pub(crate) split: Partial,
    pub(crate) masses: Masses,
}

impl HeadWork {
    /// Asks for the memory of one pass over so many blocks, and of the dense rung.
    pub(crate) fn reserve(&mut self, kernel: &Kernel, blocks: usize) -> Result<(), OutOfMemory> {
        let heads = kernel.heads();
        self.sets.reserve(blocks)?;
        self.masses.reserve(heads, blocks + 1)?;
        reserve_total(&mut self.gains, blocks)?;
        let Exact { queries, masses, .. } = &mut self.exact;
        reserve_total(queries, self.out.len())?;
        masses.reserve(heads, blocks + 1)
    }

    /// As [`HeadWork::reserve`], of whatever a certified step may do with so many blocks. How much of it there is to do is up to the query: a step must
    /// not ask because this one has more than those before it.
    pub(crate) fn reserve_certified(
        &mut self,
        kernel: &Kernel,
        layout: &RecordLayout,
        blocks: usize,
        row_share: f64,
    ) -> Result<(), OutOfMemory> {
        // Keys and values, each finely or exactly.
        let (heads, items) = (kernel.heads(), 4 * blocks);
        let with_rows = blocks + Rows::most_blocks(blocks, row_share);
        self.rows.reserve(layout, heads, blocks, row_share)?;
        self.masses.reserve(heads, with_rows + 1)?;
        self.scores.reserve(kernel, with_rows)?;
        kernel.reserve_repairs(&mut self.kernel, blocks)?;
        self.cover.reserve(heads, items)?;
        self.guesser.reserve(heads, items)?;
        self.next_sets.reserve(blocks)?;
        for set in [&mut self.current, &mut self.next] {
            set.reserve(items)?;
        }
        for set in [&mut self.refined, &mut self.weighed] {
            set.reserve(blocks)?;
        }
        reserve_total(&mut self.gains, heads * items)?;
        reserve_total(&mut self.cost, items)?;
        reserve_total(&mut self.touched, items)?;
        reserve_total(&mut self.light, blocks)?;
        reserve_total(&mut self.picks, items)?;
        reserve_total(&mut self.canary, blocks)?;
        reserve_total(&mut self.tolerances, heads)?;
        reserve_total(&mut self.left, heads)
    }

    /// As [`HeadWork::reserve`], of what the published policy does besides.
    pub(crate) fn reserve_published(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        reserve_total(&mut self.touched, blocks)?;
        reserve_total(&mut self.picks, blocks)?;
        self.published.reserve(self.certificates.len(), blocks)
    }

    fn new(cache: &Cache) -> Self {
        let (group, dim) = (cache.geometry().group(), cache.geometry().head_dim);
        let kernel = &cache.groups[0].kernel;
        Self {
            kernel: certkv_kernel::Workspace::new(),
            partial: kernel.partial(),
            split: kernel.partial(),
            masses: Masses::new(group, 0),
            sets: Sets::default(),
            rows: Rows::default(),
            resident: Resident::default(),
            memory: HeadMemory::default(),
            scores: Scores::new(),
            weighed: BitSet::default(),
            summed: false,
            left: Vec::new(),
            uncoded: 0,
            refined: BitSet::default(),
            rescored: 0,
            picks: Vec::new(),
            gains: Vec::new(),
            cost: Vec::new(),
            sums: Vec::new(),
            cover: GroupCover::new(),
            guesser: Guesser::new(),
            explorer: Explorer::new(),
            current: BitSet::default(),
            next: BitSet::default(),
            next_sets: Sets::default(),
            touched: Vec::new(),
            light: Vec::new(),
            canary: Vec::new(),
            corrupt: None,
            out: vec![f32::NAN; group * dim],
            certificates: vec![Certificate::UNCERTIFIED; group],
            dense: vec![false; group],
            exact: Exact {
                queries: Vec::new(),
                state: kernel.partial(),
                split: kernel.partial(),
                masses: Masses::new(group, 0),
            },
            failure: None,
            tolerances: Vec::new(),
            leaders: Leaders::default(),
            published: Published::default(),
        }
    }
}
