//! Tensors from safetensors files, checked against the shapes that the configuration implies.
use super::error::ModelError;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

/// Type in which a tensor was stored; edits round back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
}

impl Stored {
    /// `x` as it would be after a write and a read in this type.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
            Self::F32 => x,
        }
    }

    /// Short name, as in the files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
        }
    }
}

/// A tensor widened to single precision, row-major.
#[derive(Debug, Clone)]
pub struct Weight {
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Vec<f32>,
    /// Type in the file.
    pub stored: Stored,
}

/// All tensors of a model, by name.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    tensors: BTreeMap<String, Weight>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// [`ModelError`] names the file or tensor at fault.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let mut weights = Self::default();
        for file in weight_files(folder)? {
            weights.read_file(&file)?;
        }
        Ok(weights)
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ModelError> {
        let bytes = std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        self.parse(&bytes, path)
    }

    /// Adds the tensors of one safetensors file that is already in memory; `path` is for messages.
    ///
    /// # Errors
    /// [`ModelError::Container`], [`ModelError::Dtype`] or [`ModelError::NotFinite`].
    pub fn parse(&mut self, bytes: &[u8], path: &Path) -> Result<(), ModelError> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|source| ModelError::Container { path: path.to_owned(), source })?;
        for (name, view) in file.tensors() {
            let bytes = view.data();
            let (stored, data): (Stored, Vec<f32>) = match view.dtype() {
                Dtype::F16 => (Stored::F16, pairs(bytes).map(|b| f16::from_le_bytes(b).to_f32()).collect()),
                Dtype::BF16 => (Stored::Bf16, pairs(bytes).map(|b| bf16::from_le_bytes(b).to_f32()).collect()),
                Dtype::F32 => (Stored::F32, bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
                other => return Err(ModelError::Dtype { tensor: name, found: format!("{other:?}") }),
            };
            if let Some(index) = data.iter().position(|x| !x.is_finite()) {
                return Err(ModelError::NotFinite { tensor: name, index });
            }
            self.tensors.insert(name, Weight { shape: view.shape().to_vec(), data, stored });
        }
        Ok(())
    }

    /// Names and tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Weight)> {
        self.tensors.iter().map(|(n, w)| (n.as_str(), w))
    }

    /// The tensor `name`, which must have `shape`.
    ///
    /// # Errors
    /// [`ModelError::Missing`] or [`ModelError::Shape`].
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<&Weight, ModelError> {
        let weight = self.tensors.get(name).ok_or_else(|| ModelError::Missing { tensor: name.into() })?;
        check(name, weight, shape)?;
        Ok(weight)
    }

    /// The tensor `name` for editing, which must have `shape`.
    ///
    /// # Errors
    /// [`ModelError::Missing`] or [`ModelError::Shape`].
    pub fn get_mut(&mut self, name: &str, shape: &[usize]) -> Result<&mut Weight, ModelError> {
        let weight = self.tensors.get_mut(name).ok_or_else(|| ModelError::Missing { tensor: name.into() })?;
        check(name, weight, shape)?;
        Ok(weight)
    }
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    bytes.as_chunks::<2>().0.iter().copied()
}

fn check(name: &str, weight: &Weight, shape: &[usize]) -> Result<(), ModelError> {
    if weight.shape == shape {
        return Ok(());
    }
    Err(ModelError::Shape { tensor: name.into(), expected: shape.to_vec(), found: weight.shape.clone() })
}

/// The files that hold the tensors of `folder`: its shards in order of name, or the one file.
///
/// # Errors
/// [`ModelError`] for an index that cannot be read, or that points out of the folder.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = folder.join("model.safetensors.index.json");
    if !index.is_file() {
        return Ok(vec![folder.join("model.safetensors")]);
    }
    let text = std::fs::read_to_string(&index).map_err(|source| ModelError::Read { path: index.clone(), source })?;
    let Index { weight_map } =
        serde_json::from_str(&text).map_err(|source| ModelError::Json { path: index, source })?;
    let mut shards: Vec<&String> = weight_map.values().collect();
    shards.sort_unstable();
    shards.dedup();
    shards.into_iter().map(|name| shard(folder, name)).collect()
}

/// A shard must lie in the folder itself: an index is data and may not point elsewhere.
fn shard(folder: &Path, name: &str) -> Result<PathBuf, ModelError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(file)), None) => Ok(folder.join(file)),
        _ => Err(ModelError::Shard { name: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Weights, ModelError> {
        let mut weights = Weights::default();
        weights.parse(bytes, Path::new("model.safetensors"))?;
        Ok(weights)
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let whole = file(r#"{"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#, &[0; 8]);
        assert!(parse(&whole).is_ok());
        for length in 0..whole.len() {
            assert!(matches!(parse(&whole[..length]), Err(ModelError::Container { .. })), "cut at {length}");
        }
    }

    #[test]
    fn absurd_headers_are_refused() {
        for bytes in [
            vec![0xff; 64],
            file("{}x", &[]),
            file(r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, &[0; 8]),
            file(r#"{"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}"#, &[0; 8]),
            file(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, &[0; 8]),
        ] {
            assert!(matches!(parse(&bytes), Err(ModelError::Container { .. })));
        }
    }

    #[test]
    fn types_shapes_and_values_are_checked() {
        let integers = file(r#"{"w":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#, &[0; 8]);
        assert!(matches!(parse(&integers), Err(ModelError::Dtype { .. })));
        let nan = file(r#"{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#, &[0, 0, 0, 0x7e]);
        assert!(matches!(parse(&nan), Err(ModelError::NotFinite { index: 1, .. })));
        let halves = file(r#"{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#, &[0, 0x3c, 0, 0xc0]);
        let weights = parse(&halves).unwrap();
        assert_eq!(weights.get("w", &[2]).unwrap().data, [1.0, -2.0]);
        assert!(matches!(weights.get("w", &[1, 2]), Err(ModelError::Shape { .. })));
        assert!(matches!(weights.get("v", &[2]), Err(ModelError::Missing { .. })));
    }

    #[test]
    fn an_index_cannot_leave_its_folder() {
        for bad in ["../w.safetensors", "/etc/passwd", "a/b.safetensors", "", ".."] {
            assert!(matches!(shard(Path::new("m"), bad), Err(ModelError::Shard { .. })), "{bad}");
        }
        assert!(shard(Path::new("m"), "model-00001-of-00002.safetensors").is_ok());
    }
}
