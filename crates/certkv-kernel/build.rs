//! Lists the GPU sources of `kernels/` for `src/cuda/source.rs`, so that a new file there needs no second entry here.
use std::path::{Path, PathBuf};
use std::{env, fmt::Write as _, fs, io};

fn main() -> io::Result<()> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    // Two crates up; a package that was taken out of the workspace holds its own copy.
    let own = variable("CARGO_MANIFEST_DIR")?.join("kernels");
    let root = if own.is_dir() { own } else { variable("CARGO_MANIFEST_DIR")?.join("..").join("..").join("kernels") };
    let root = root.canonicalize()?;
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    list(&root, &mut files)?;
    files.sort();
    let mut text = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&root).map_err(|_| io::ErrorKind::InvalidData)?;
        let name = name.to_string_lossy().replace('\\', "/");
        let _ = writeln!(text, "    ({name:?}, include_str!({:?})),", file.to_string_lossy());
    }
    text.push_str("]\n");
    fs::write(variable("OUT_DIR")?.join("kernels.rs"), text)
}

/// Sources and headers below `folder`, without the emulator, which is for tests on a CPU.
fn list(folder: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "emulate") {
                list(&path, into)?;
            }
        } else if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
            into.push(path);
        }
    }
    Ok(())
}
