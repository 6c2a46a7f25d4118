//! Reader of the golden-vector container `.cgv`.
//!
//! A text header (`CGV1`, then one line `name dtype ndim dims... offset nbytes` per array, then `END`), zero padding to
//! a multiple of 16, then raw little-endian data from which offsets count. Element types: `f64 f32 f16 bf16 i8 u8 i16
//! i32 i64 u64 str`. Anything malformed is an error; the reader never panics and never allocates more than a small
//! multiple of the file.
use std::{collections::BTreeMap, fmt};

/// Element type of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// Half precision, as bits.
    F16,
    /// bfloat16, as bits.
    Bf16,
    /// Signed byte.
    I8,
    /// Byte.
    U8,
    /// Signed 16 bit.
    I16,
    /// Signed 32 bit.
    I32,
    /// Signed 64 bit.
    I64,
    /// Unsigned 64 bit.
    U64,
    /// UTF-8 text.
    Str,
}

impl Element {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "f64" => Self::F64,
            "f32" => Self::F32,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "i8" => Self::I8,
            "u8" => Self::U8,
            "i16" => Self::I16,
            "i32" => Self::I32,
            "i64" => Self::I64,
            "u64" => Self::U64,
            "str" => Self::Str,
            _ => return None,
        })
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Str => 1,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

/// Why a container or an access to it was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgvError {
    /// The first line is not `CGV1`, or no `END` line follows.
    Header,
    /// A header line that is not understood, counted from 1 after `CGV1`.
    Line(usize),
    /// An array's bytes lie outside the file, or do not fit its shape.
    Range(String),
    /// Two arrays of one name.
    Duplicate(String),
    /// The file holds no array of this name.
    Missing(String),
    /// The array cannot be read as the type asked for.
    Type {
        /// Array.
        name: String,
        /// What it holds.
        element: Element,
    },
    /// The array has another shape than its use needs.
    Shape {
        /// Array.
        name: String,
        /// Its dimensions.
        shape: Vec<usize>,
    },
}

impl fmt::Display for CgvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("not a .cgv container: no `CGV1` header ended by `END`"),
            Self::Line(n) => write!(f, "header line {n} is not `name dtype ndim dims... offset nbytes`"),
            Self::Range(name) => write!(f, "array `{name}` does not fit its shape or the file"),
            Self::Duplicate(name) => write!(f, "array `{name}` is given twice"),
            Self::Missing(name) => write!(f, "no array `{name}`"),
            Self::Type { name, element } => write!(f, "array `{name}` holds {element:?}, which cannot be read so"),
            Self::Shape { name, shape } => write!(f, "array `{name}` has shape {shape:?}, which does not fit"),
        }
    }
}
impl std::error::Error for CgvError {}

/// One array of a container, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Element type.
    pub element: Element,
    /// Dimensions; empty for a scalar.
    pub shape: Vec<usize>,
    raw: Vec<u8>,
}

/// All arrays of a container by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Vectors {
    arrays: BTreeMap<String, Array>,
}

const END: &[u8] = b"\nEND\n";

impl Vectors {
    /// Reads a container.
    ///
    /// # Errors
    /// [`CgvError`] says what is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, CgvError> {
        let end = bytes.windows(END.len()).position(|w| w == END).ok_or(CgvError::Header)?;
        let head = bytes.get(..end).and_then(|h| std::str::from_utf8(h).ok()).ok_or(CgvError::Header)?;
        // A file cut inside the padding holds no data.
        let data = bytes.get((end + END.len()).next_multiple_of(16)..).unwrap_or(&[]);
        let mut lines = head.split('\n');
        if lines.next() != Some("CGV1") {
            return Err(CgvError::Header);
        }
        let mut arrays = BTreeMap::new();
        for (number, line) in lines.enumerate() {
            let (name, array) = parse_line(line, data).map_err(|e| e.unwrap_or(CgvError::Line(number + 1)))?;
            if arrays.insert(name.to_owned(), array).is_some() {
                return Err(CgvError::Duplicate(name.to_owned()));
            }
        }
        Ok(Self { arrays })
    }

    /// The array of this name.
    ///
    /// # Errors
    /// [`CgvError::Missing`].
    pub fn get(&self, name: &str) -> Result<&Array, CgvError> {
        self.arrays.get(name).ok_or_else(|| CgvError::Missing(name.to_owned()))
    }

    /// True if there is an array of this name.
    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// Names and arrays, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.arrays.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Numbers as `f64`; 16-bit floats are decoded, integers converted.
    ///
    /// # Errors
    /// [`CgvError::Missing`], or [`CgvError::Type`] for text.
    pub fn f64s(&self, name: &str) -> Result<Vec<f64>, CgvError> {
        self.get(name)?.f64s().ok_or_else(|| self.type_error(name))
    }

    /// Integers; `u64` keeps its bits, 16-bit floats give their bits.
    ///
    /// # Errors
    /// [`CgvError::Missing`], or [`CgvError::Type`] for wider floats and text.
    pub fn i64s(&self, name: &str) -> Result<Vec<i64>, CgvError> {
        self.get(name)?.i64s().ok_or_else(|| self.type_error(name))
    }

    /// A single number.
    ///
    /// # Errors
    /// As [`Vectors::f64s`], and [`CgvError::Shape`] if the array does not hold exactly one number.
    pub fn scalar(&self, name: &str) -> Result<f64, CgvError> {
        match self.f64s(name)?.as_slice() {
            &[x] => Ok(x),
            _ => Err(self.shape_error(name)),
        }
    }

    /// Text.
    ///
    /// # Errors
    /// [`CgvError::Missing`], or [`CgvError::Type`] if it is not UTF-8 text.
    pub fn text(&self, name: &str) -> Result<&str, CgvError> {
        let a = self.get(name)?;
        let text = if a.element == Element::Str { std::str::from_utf8(&a.raw).ok() } else { None };
        text.ok_or_else(|| self.type_error(name))
    }

    /// Dimensions of a matrix: rows, columns.
    ///
    /// # Errors
    /// [`CgvError::Missing`], or [`CgvError::Shape`] if it has not two dimensions, both positive.
    pub fn matrix(&self, name: &str) -> Result<(usize, usize), CgvError> {
        match self.get(name)?.shape.as_slice() {
            &[rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.shape_error(name)),
        }
    }

    fn type_error(&self, name: &str) -> CgvError {
        match self.get(name) {
            Ok(a) => CgvError::Type { name: name.to_owned(), element: a.element },
            Err(e) => e,
        }
    }

    fn shape_error(&self, name: &str) -> CgvError {
        match self.get(name) {
            Ok(a) => CgvError::Shape { name: name.to_owned(), shape: a.shape.clone() },
            Err(e) => e,
        }
    }
}

/// One header line; `Err(None)` means the line itself is not understood.
fn parse_line<'a>(line: &'a str, data: &[u8]) -> Result<(&'a str, Array), Option<CgvError>> {
    let mut words = line.split(' ');
    let name = words.next().filter(|n| !n.is_empty()).ok_or(None)?;
    let element = words.next().and_then(Element::parse).ok_or(None)?;
    let mut number = || words.next().and_then(|w| w.parse::<usize>().ok()).ok_or(None);
    let rank = number()?;
    // numpy's own limit; keeps a hostile rank from reserving memory.
    if rank > 32 {
        return Err(None);
    }
    let shape = (0..rank).map(|_| number()).collect::<Result<Vec<_>, _>>()?;
    let (offset, bytes) = (number()?, number()?);
    if words.next().is_some() {
        return Err(None);
    }
    let outside = || Some(CgvError::Range(name.to_owned()));
    let count = shape.iter().try_fold(element.bytes(), |n, d| n.checked_mul(*d)).ok_or_else(outside)?;
    let end = offset.checked_add(bytes).filter(|_| count == bytes).ok_or_else(outside)?;
    let raw = data.get(offset..end).ok_or_else(outside)?.to_vec();
    Ok((name, Array { element, shape, raw }))
}

impl Array {
    /// Elements in all.
    pub fn len(&self) -> usize {
        self.raw.len() / self.element.bytes()
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    fn words<const W: usize, T>(&self, read: fn([u8; W]) -> T) -> Vec<T> {
        self.raw.as_chunks::<W>().0.iter().map(|w| read(*w)).collect()
    }

    /// Numbers as `f64`; `None` for text.
    pub fn f64s(&self) -> Option<Vec<f64>> {
        Some(match self.element {
            Element::F64 => self.words(f64::from_le_bytes),
            Element::F32 => self.words(|b| f64::from(f32::from_le_bytes(b))),
            Element::F16 => self.words(|b| half_value(u16::from_le_bytes(b))),
            Element::Bf16 => self.words(|b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))),
            Element::U64 => self.words(|b| u64::from_le_bytes(b) as f64),
            Element::Str => return None,
            _ => self.i64s()?.into_iter().map(|x| x as f64).collect(),
        })
    }

    /// Integers; `u64` keeps its bits, 16-bit floats give their bits, `None` for wider floats and text.
    pub fn i64s(&self) -> Option<Vec<i64>> {
        Some(match self.element {
            Element::I8 => self.words(|b| i64::from(i8::from_le_bytes(b))),
            Element::U8 => self.words(|b| i64::from(u8::from_le_bytes(b))),
            Element::I16 => self.words(|b| i64::from(i16::from_le_bytes(b))),
            Element::F16 | Element::Bf16 => self.words(|b| i64::from(u16::from_le_bytes(b))),
            Element::I32 => self.words(|b| i64::from(i32::from_le_bytes(b))),
            Element::I64 | Element::U64 => self.words(i64::from_le_bytes),
            Element::F64 | Element::F32 | Element::Str => return None,
        })
    }
}

fn half_value(bits: u16) -> f64 {
    f64::from(certkv_core::Dtype::F16.decode16(bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn container(lines: &str, data: &[u8]) -> Vec<u8> {
        let mut file = format!("CGV1\n{lines}\nEND\n").into_bytes();
        file.resize(file.len().next_multiple_of(16), 0);
        file.extend_from_slice(data);
        file
    }

    fn sample() -> Vec<u8> {
        let mut data = Vec::new();
        data.extend(1.5f64.to_le_bytes());
        data.extend((-2.0f64).to_le_bytes());
        data.extend([0x00, 0x3c, 0x01, 0x00]); // f16 1 and the least subnormal
        data.extend([0; 12]);
        data.extend(*b"f16!");
        container("x f64 2 1 2 0 16\nh f16 1 2 16 4\nmeta str 1 4 32 4\nn i8 0 16 1", &data)
    }

    #[test]
    fn reads_what_was_written() {
        let v = Vectors::parse(&sample()).unwrap();
        assert_eq!(v.f64s("x").unwrap(), [1.5, -2.0]);
        assert_eq!(v.matrix("x").unwrap(), (1, 2));
        assert_eq!(v.f64s("h").unwrap(), [1.0, 2f64.powi(-24)]);
        assert_eq!(v.i64s("h").unwrap(), [0x3c00, 1]);
        assert_eq!(v.text("meta").unwrap(), "f16!");
        assert_eq!(v.scalar("n").unwrap(), 0.0);
    }

    #[test]
    fn refuses_by_name() {
        let bad = |lines: &str, want: CgvError| {
            assert_eq!(Vectors::parse(&container(lines, &[0; 16])), Err(want), "{lines}");
        };
        bad("x f64 1 2 0", CgvError::Line(1));
        bad("x f65 1 2 0 16", CgvError::Line(1));
        bad("x f64 1 2 0 16 7", CgvError::Line(1));
        bad("x f64 1 3 0 16", CgvError::Range("x".into()));
        bad("x f64 1 2 8 16", CgvError::Range("x".into()));
        bad("x f64 2 9223372036854775807 4 0 16", CgvError::Range("x".into()));
        bad("x f64 1 2 18446744073709551615 16", CgvError::Range("x".into()));
        bad("x f64 99999999999 2 0 16", CgvError::Line(1));
        bad("x u8 1 1 0 1\nx u8 1 1 0 1", CgvError::Duplicate("x".into()));
        assert_eq!(Vectors::parse(b"CGV1\n"), Err(CgvError::Header));
        assert_eq!(Vectors::parse(b"CGV2\nx u8 0 0 0\nEND\n"), Err(CgvError::Header));
        let v = Vectors::parse(&sample()).unwrap();
        assert_eq!(v.f64s("y"), Err(CgvError::Missing("y".into())));
        assert!(matches!(v.i64s("x"), Err(CgvError::Type { .. })));
        assert!(matches!(v.text("x"), Err(CgvError::Type { .. })));
        assert!(matches!(v.scalar("x"), Err(CgvError::Shape { .. })));
        assert!(matches!(v.matrix("h"), Err(CgvError::Shape { .. })));
    }

    proptest! {
        /// Mutated and truncated files are refused or read, never a panic, and what is read fits its shape.
        #[test]
        fn never_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut: prop::sample::Index) {
            let mut file = sample();
            for (at, byte) in edits {
                let at = at.index(file.len());
                file[at] = byte;
            }
            file.truncate(cut.index(file.len()) + 1);
            if let Ok(v) = Vectors::parse(&file) {
                for (_, a) in v.iter() {
                    prop_assert_eq!(a.shape.iter().product::<usize>(), a.len());
                    prop_assert!(a.f64s().is_none_or(|x| x.len() == a.len()));
                    prop_assert!(a.i64s().is_none_or(|x| x.len() == a.len()));
                }
            }
        }

        /// Header lines made of the words that headers are made of reach deeper than random bytes.
        #[test]
        fn never_panics_on_plausible_headers(words in prop::collection::vec("(x|f64|u8|f16|str|[0-9]{1,20}|-1|)", 0..9)) {
            let _ = Vectors::parse(&container(&words.join(" "), &[0; 32]));
        }
    }
}
