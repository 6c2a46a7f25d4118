//! What the device refused of rows in its memory, which the host has not seen: a word to a row of the tables, that of the first such token
//! (`kernels/refused.cuh`). Whatever is read of the sequence is an error until it is cut behind that token.
use super::cache::GpuCache;
use super::core::Core;
use super::step::Part;
use crate::Error;
use certkv_core::SequenceId;
use certkv_kernel::cuda::encode::append_error;
use certkv_kernel::cuda::forgive;
use certkv_kernel::cuda::queue::Span;

/// What a word says of a token: the error, if one was refused, and its position.
fn error(word: u32, argument: &'static str, token: impl Fn(usize) -> usize) -> Option<(Error, usize)> {
    let (position, causes) = append_error::refused(word)?;
    let (position, element) = (position as usize, 0);
    let token = token(position);
    let error = match causes {
        causes if causes & append_error::NONFINITE != 0 => Error::NonFinite { argument, token, element },
        causes if causes & append_error::ROUNDING != 0 => Error::Overflow { argument, token, element },
        _ => Error::Order { layer: 0, why: "the device found no place for a row" },
    };
    Some((error, position))
}

/// Why results of a part are worth nothing, by the words of all rows; `None` where none of its tokens were refused, nor any before them.
pub(super) fn refusal(words: &[u32], part: &Part) -> Option<Error> {
    let word = words.get(part.row).copied().unwrap_or(0);
    let (_, position) = error(word, "", |position| position)?;
    let argument = match position.checked_sub(part.len) {
        Some(_) => "keys or values on the device",
        None => "keys or values of an earlier step, on the device",
    };
    error(word, argument, |position| part.first_row + position.saturating_sub(part.len)).map(|(error, _)| error)
}

/// Whether a token of the part is refused.
pub(super) fn since(words: &[u32], part: &Part) -> bool {
    let word = words.get(part.row).copied().unwrap_or(0);
    error(word, "", |position| position).is_some_and(|(_, position)| position >= part.len)
}

impl Core {
    fn word_at(&self, row: usize) -> usize {
        4 * (self.sizes.counters.errors.start + row)
    }

    /// Enqueues that nothing was refused of a row.
    pub(super) fn accept(&self, row: usize) -> Result<(), Error> {
        Ok(self.counters.fill(self.queue.stream(), self.word_at(row), 4, 0)?)
    }

    /// Enqueues that a row is cut to `len` tokens: what was refused behind them is no more.
    pub(super) fn forgive(&self, row: usize, len: usize) -> Result<(), Error> {
        let word = Span::of(&self.counters, self.word_at(row), 4)?;
        Ok(forgive::forgive(&self.queue, &self.kit(0).forgive, word, len)?)
    }

    /// Enqueues that of a row is refused what is of another, whose tokens it has.
    pub(super) fn refuse_as(&self, from: usize, row: usize) -> Result<(), Error> {
        let (stream, to) = (self.queue.stream(), self.word_at(row));
        Ok(self.counters.copy_from(stream, to, &self.counters, self.word_at(from), 4)?)
    }
}

impl GpuCache {
    /// That a row is cut to `len` tokens, to be said before anybody asks: by a step that ends without its tokens, and cannot say that the driver refused.
    pub(super) fn forgive_later(&mut self, row: usize, len: usize) {
        match self.cut.iter_mut().find(|(known, _)| *known == row) {
            Some((_, least)) => *least = len.min(*least),
            None => self.cut.push((row, len)),
        }
    }

    /// Says so.
    ///
    /// # Errors
    /// The driver's: what is left is to be said.
    pub(super) fn forgive_dropped(&mut self) -> Result<(), Error> {
        while let Some((row, len)) = self.cut.last() {
            self.core.forgive(*row, *len)?;
            self.cut.pop();
        }
        Ok(())
    }

    /// Whether the first `tokens` tokens of a sequence are its own, so that others may have them. Waits for the device.
    ///
    /// # Errors
    /// [`Error::NonFinite`] or [`Error::Overflow`] of the first that the device refused, by its position; unknown; the driver's.
    pub(super) fn check_stored(&mut self, id: SequenceId, tokens: usize) -> Result<(), Error> {
        self.entry(id)?;
        self.forgive_dropped()?;
        let (core, mut word) = (&self.core, [0u32]);
        core.counters.read(core.queue.stream(), core.word_at(id.slot as usize), &mut word)?;
        match error(word[0], "keys or values on the device", |position| position) {
            Some((error, position)) if position < tokens => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rows_are_errors_until_a_cut_behind_them() {
        let part = |row: usize| Part {
            id: SequenceId { slot: row as u32, generation: 1 },
            row,
            tokens: 4,
            first_row: 3,
            len: 10,
            place: None,
            guest: 0,
            draft: 0,
            reservations: Vec::new(),
        };
        let word = append_error::word;
        let words = [0, word(12, 1), word(10, 2), word(0, 4), word(9, 1), word(7, 3)];
        assert!(refusal(&words, &part(0)).is_none() && refusal(&words, &part(6)).is_none());
        assert!(matches!(refusal(&words, &part(1)), Some(Error::NonFinite { token: 5, .. })));
        assert!(matches!(refusal(&words, &part(2)), Some(Error::Overflow { token: 3, .. })));
        assert!(matches!(refusal(&words, &part(3)), Some(Error::Order { .. })));
        let earlier = |row| match refusal(&words, &part(row)) {
            Some(Error::NonFinite { argument, token: 3, .. }) => argument.contains("earlier"),
            other => panic!("{other:?}"),
        };
        assert!(earlier(4) && earlier(5));
        // The first token that was refused is the largest word, whatever was wrong with it.
        assert!(word(5, 1) > word(6, 4) && word(u32::MAX, 1) > 0 && word(u32::MAX, 1) < word(1 << 28, 1));
        assert_eq!(append_error::refused(word(77, 2)), Some((77, 2)));
    }
}
