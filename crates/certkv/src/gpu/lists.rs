//! Lists of a step, kept with their memory for the next one: a decode step asks the allocator for nothing.
use super::extended::Extended;
use super::step::{Part, Progress};
use certkv_page::Reservation;

/// Empty, but for lists in lists, which are empty.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) parts: Vec<Part>,
    pub(super) progress: Vec<Progress>,
    /// One for each sequence.
    pub(super) reservations: Vec<Vec<Reservation>>,
    /// Outputs of longer chunks.
    pub(super) chunks: Vec<f32>,
    /// By layer.
    pub(super) extended: Vec<Extended>,
    pub(super) lost: Vec<Vec<f64>>,
}

impl Lists {
    /// Those of a step that begins: every layer waits.
    pub(super) fn of(mut self, layers: usize) -> Self {
        self.progress.clear();
        self.progress.resize(layers, Progress::Waiting);
        self.extended.resize_with(layers, Extended::default);
        self.lost.resize_with(layers, Vec::new);
        self
    }

    /// Those of a step that is over, whose parts have given back what they reserved. What chunks longer than drafts had is a prompt's, and goes.
    pub(super) fn kept(mut self, drafts: bool) -> Self {
        self.reservations.extend(self.parts.drain(..).map(|part| part.reservations));
        if drafts {
            self.chunks.clear();
            self.extended.iter_mut().for_each(Extended::clear);
            self.lost.iter_mut().for_each(Vec::clear);
        } else {
            self.chunks = Vec::new();
            self.extended.iter_mut().for_each(|of| *of = Extended::default());
            self.lost.iter_mut().for_each(|of| *of = Vec::new());
        }
        self
    }
}
