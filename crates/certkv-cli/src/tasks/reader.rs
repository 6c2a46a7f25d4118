//! Task files: one JSON object a line, plain or gzip.
use super::{error::TaskError, prompt::Prompt};
use flate2::read::MultiGzDecoder;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

/// Longest line that is read. A prompt of a million tokens fits; a gzip bomb does not.
const LONGEST_LINE: u64 = 16 << 20;

/// Reads every prompt of `path`; a name that ends in `.gz` is unpacked.
///
/// # Errors
/// [`TaskError::Read`], [`TaskError::Line`] with the number of the first bad line, or [`TaskError::Empty`].
pub fn read(path: &Path) -> Result<Vec<Prompt>, TaskError> {
    let file = File::open(path).map_err(|source| TaskError::Read { path: path.to_owned(), source })?;
    if path.extension().is_some_and(|e| e == "gz") {
        parse(BufReader::new(MultiGzDecoder::new(BufReader::new(file))), path)
    } else {
        parse(BufReader::new(file), path)
    }
}

/// Reads prompts from lines; `path` is for messages.
///
/// # Errors
/// As [`read`].
pub fn parse(mut source: impl BufRead, path: &Path) -> Result<Vec<Prompt>, TaskError> {
    let mut prompts: Vec<Prompt> = Vec::new();
    let mut ids = BTreeSet::new();
    let mut text = Vec::new();
    for line in 1.. {
        let refuse = |reason: String| TaskError::Line { path: path.to_owned(), line, reason };
        text.clear();
        let count = source
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut text)
            .map_err(|source| TaskError::Read { path: path.to_owned(), source })?;
        if count == 0 {
            break;
        }
        if count as u64 == LONGEST_LINE && text.last() != Some(&b'\n') {
            return Err(refuse(format!("the line is longer than {LONGEST_LINE} bytes")));
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let prompt: Prompt = serde_json::from_slice(&text).map_err(|e| refuse(e.to_string()))?;
        if let Some(fault) = prompt.fault() {
            return Err(refuse(fault));
        }
        if !ids.insert(prompt.id.clone()) {
            return Err(refuse(format!("`id` {} appears twice", prompt.id)));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(TaskError::Empty { path: path.to_owned() });
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"id":"a-1","task":"a","length":64,"prompt":"1+1=","answer":"2"}"#;

    fn lines(text: &str) -> Result<Vec<Prompt>, TaskError> {
        parse(text.as_bytes(), Path::new("t.jsonl"))
    }

    #[test]
    fn a_bad_line_is_named() {
        let cases = [
            "",
            "{}",
            "[1]",
            "not json",
            r#"{"id":"b","task":"a","length":64,"prompt":"x"}"#,
            r#"{"id":"b","task":"a","length":64,"prompt":"x","answer":""}"#,
            r#"{"id":"b","task":"a","length":2,"prompt":"x","answer":"y"}"#,
            r#"{"id":"b","task":"a","length":-1,"prompt":"x","answer":"y"}"#,
            r#"{"id":"b","task":"a","length":64,"prompt":"x","answer":"y","extra":1}"#,
            GOOD,
        ];
        for bad in &cases[1..] {
            match lines(&format!("{GOOD}\n\n{bad}\n")) {
                Err(TaskError::Line { line: 3, .. }) => {}
                other => panic!("{bad} gave {other:?}"),
            }
        }
        assert!(matches!(lines(cases[0]), Err(TaskError::Empty { .. })));
        assert_eq!(lines(GOOD).unwrap().len(), 1);
    }

    #[test]
    fn truncated_gzip_is_an_error() {
        use std::io::Write;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writeln!(packer, "{GOOD}").unwrap();
        let bytes = packer.finish().unwrap();
        let open = |bytes: &[u8]| parse(BufReader::new(MultiGzDecoder::new(bytes)), Path::new("t.jsonl.gz"));
        assert_eq!(open(&bytes).unwrap().len(), 1);
        for cut in 1..bytes.len() {
            assert!(open(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
