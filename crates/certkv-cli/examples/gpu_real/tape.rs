//! Rows of a window as the model makes them: the context's keys and values, and the last tokens' keys, values, queries and outputs.
use crate::Failure;
use certkv::Certificate;
use certkv_cli::engine::CpuEngine;
use certkv_cli::eval::{Engine, Mode};
use certkv_cli::model::tape::{Recorder, Tape};
use certkv_cli::model::{Attention, AttentionError, Llama, Pass, Rows};
use certkv_cli::tasks::text::{self, Cut};
use std::path::Path;

/// One layer of one token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
    pub(crate) queries: Vec<f32>,
    /// Of dense attention in single precision.
    pub(crate) out: Vec<f32>,
}

/// The first steps, which end the prompt.
pub(crate) const LAST: usize = 2;

impl Window {
    /// Keys, values and queries of the rows that end the prompt, in one layer.
    pub(crate) fn end(&self, layer: usize) -> [Vec<f32>; 3] {
        let rows = || self.steps[..LAST].iter().map(|step| &step[layer]);
        let all = |of: fn(&Row) -> &Vec<f32>| rows().flat_map(|row| of(row).iter().copied()).collect();
        [all(|row| &row.keys), all(|row| &row.values), all(|row| &row.queries)]
    }
}

impl Window {
    /// The same as of a model that has this layer alone.
    pub(crate) fn of_layer(&self, layer: usize) -> Self {
        let context = Tape { layers: vec![self.context.layers[layer].clone()], ..self.context.clone() };
        Self { context, steps: self.steps.iter().map(|step| vec![step[layer].clone()]).collect() }
    }
}

/// One stretch of text.
pub(crate) struct Window {
    pub(crate) context: Tape,
    /// `[step][layer]`.
    pub(crate) steps: Vec<Vec<Row>>,
}

/// An attention that passes every call on and keeps the rows.
struct Tap<'a> {
    inner: &'a mut dyn Attention,
    rows: Vec<Row>,
}

struct Tapped<'a> {
    inner: Box<dyn Pass + 'a>,
    rows: &'a mut Vec<Row>,
}

impl Attention for Tap<'_> {
    fn length(&self) -> usize {
        self.inner.length()
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        Ok(Box::new(Tapped { inner: self.inner.begin(tokens)?, rows: &mut self.rows }))
    }
}

impl Pass for Tapped<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.inner.attend(layer, k, v, q, out)?;
        self.rows.push(Row { keys: k.to_vec(), values: v.to_vec(), queries: q.to_vec(), out: out.to_vec() });
        Ok(())
    }

    fn certificates(&self) -> &[Certificate] {
        self.inner.certificates()
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.inner.finish()
    }
}

/// Reads one window of each part of the text, `context` tokens in all, by dense attention.
pub(crate) fn windows(
    model: &Llama,
    path: &Path,
    context: usize,
    steps: usize,
    threads: usize,
) -> Result<Vec<Window>, Failure> {
    // BOS comes in front.
    let cut = Cut { length: context - 1, scored: Some(steps), limit: 1 };
    let mut engine = CpuEngine::new(threads);
    let mut all = Vec::new();
    for window in text::windows(path, &["prose", "code"], cut)? {
        let tokens = model.tokens().encode(&window.bytes)?;
        let (head, last) = tokens.split_at(tokens.len() - steps);
        let mut cache = engine.open(&Mode::dense(false), model.config(), context)?;
        let mut recorder = Recorder::new(cache.as_mut(), model.config().layers);
        model.prefill(head, &mut recorder, |_| {})?;
        let context = recorder.into_tape();
        let mut steps = Vec::new();
        for token in last {
            let mut tap = Tap { inner: cache.as_mut(), rows: Vec::new() };
            model.forward(&[*token], &mut tap, Rows::None)?;
            steps.push(tap.rows);
        }
        all.push(Window { context, steps });
    }
    Ok(all)
}
