//! Windows of held-out text for bits per byte.
use super::error::TaskError;
use std::path::Path;

/// A window: `bytes[..bytes.len() - scored]` is context, the rest is predicted byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Part of the text it is from.
    pub part: String,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Bytes at the end that are predicted.
    pub scored: usize,
}

/// How windows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of a window.
    pub length: usize,
    /// Bytes predicted at its end; half of the window if `None`.
    pub scored: Option<usize>,
    /// Most windows of one part.
    pub limit: usize,
}

/// Cuts the named, equally long parts of the text in `path` into windows that do not overlap; with several parts and
/// fewer windows than would fit, they are spread evenly.
///
/// # Errors
/// [`TaskError::Read`], or [`TaskError::Window`] when not one window fits.
pub fn windows(path: &Path, parts: &[&str], cut: Cut) -> Result<Vec<Window>, TaskError> {
    let text = std::fs::read(path).map_err(|source| TaskError::Read { path: path.to_owned(), source })?;
    split(&text, parts, cut)
}

fn split(text: &[u8], parts: &[&str], cut: Cut) -> Result<Vec<Window>, TaskError> {
    let size = text.len() / parts.len().max(1);
    let scored = cut.scored.unwrap_or(cut.length / 2);
    if cut.length < 16 || cut.length > size || scored == 0 || scored >= cut.length {
        return Err(TaskError::Window { length: cut.length, available: size });
    }
    let fit = size / cut.length;
    let count = fit.min(cut.limit.max(1));
    let mut windows = Vec::new();
    for (part, bytes) in parts.iter().zip(text.chunks_exact(size)) {
        for i in 0..count {
            let start = i * fit / count * cut.length;
            windows.push(Window { part: (*part).into(), bytes: bytes[start..start + cut.length].to_vec(), scored });
        }
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stay_in_their_part() {
        let text: Vec<u8> = (0..200u8).collect();
        let cut = Cut { length: 20, scored: None, limit: 2 };
        let w = split(&text, &["prose", "code"], cut).unwrap();
        assert_eq!(w.len(), 4);
        assert_eq!((w[0].bytes[0], w[1].bytes[0], w[2].bytes[0]), (0, 40, 100));
        assert_eq!((w[3].part.as_str(), w[3].scored), ("code", 10));
        for bad in [Cut { length: 101, ..cut }, Cut { length: 0, ..cut }, Cut { scored: Some(20), ..cut }] {
            assert!(matches!(split(&text, &["prose", "code"], bad), Err(TaskError::Window { .. })));
        }
    }
}
