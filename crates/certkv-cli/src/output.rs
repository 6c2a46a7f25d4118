//! Writing results: files whole or not at all, and a reader that went away is no error.
use crate::error::CliError;
use std::{
    io::{ErrorKind, Write},
    path::Path,
};

/// Writes `text` to `out`. A closed pipe (`certkv eval | head`) ends quietly.
///
/// # Errors
/// [`CliError::Internal`] on any other failure.
pub fn print(out: &mut dyn Write, text: &str) -> Result<(), CliError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(CliError::Internal(Box::new(e))),
        _ => Ok(()),
    }
}

/// Writes a file beside its place and renames it, so that a failure leaves the old file or none. Where a link stands it is the file that the link names; what is
/// no file, a device say, is written to as it stands.
///
/// # Errors
/// [`CliError::Input`] naming the path.
pub fn write_file(path: &Path, text: &str) -> Result<(), CliError> {
    write_bytes(path, text.as_bytes())
}

/// As [`write_file`], for what is no text.
///
/// # Errors
/// [`CliError::Input`] naming the path.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let refuse = |e: std::io::Error| CliError::input(format!("cannot write {}: {e}", path.display()));
    let whole = match std::fs::metadata(path) {
        Ok(there) if !there.is_file() => return std::fs::write(path, bytes).map_err(refuse),
        // By names of what is open, standard output's say, somebody writes there who is not to be left with another file.
        Ok(_) if path.starts_with("/dev") || path.starts_with("/proc") => {
            return std::fs::write(path, bytes).map_err(refuse);
        }
        Ok(_) => std::fs::canonicalize(path).map_err(refuse)?,
        // A link to what is not there yet.
        Err(_) if path.is_symlink() => return std::fs::write(path, bytes).map_err(refuse),
        Err(_) => path.to_owned(),
    };
    let path = whole.as_path();
    let name = path.file_name().ok_or_else(|| CliError::input(format!("{} is not a file name", path.display())))?;
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = path.with_file_name(partial);
    std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path)).map_err(|e| {
        // The half of the work that exists must not stay behind.
        let _ = std::fs::remove_file(&partial);
        refuse(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_appear_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("certkv-output-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        write_file(&folder.join("a.html"), "x").unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("a.html")).unwrap(), "x");
        // A folder stands where the file should go: refused, and nothing stays behind.
        std::fs::create_dir_all(folder.join("b.html/c")).unwrap();
        assert!(matches!(write_file(&folder.join("b.html"), "x"), Err(CliError::Input(_))));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
        assert!(write_file(&folder.join("none/a.html"), "x").is_err());
        #[cfg(unix)]
        {
            // A link stays one; a device is written to, and not replaced.
            std::os::unix::fs::symlink(folder.join("a.html"), folder.join("link.html")).unwrap();
            write_file(&folder.join("link.html"), "y").unwrap();
            assert!(folder.join("link.html").is_symlink());
            assert_eq!(std::fs::read_to_string(folder.join("a.html")).unwrap(), "y");
            std::os::unix::fs::symlink(folder.join("new.html"), folder.join("early.html")).unwrap();
            write_file(&folder.join("early.html"), "n").unwrap();
            assert_eq!(std::fs::read_to_string(folder.join("new.html")).unwrap(), "n");
            std::os::unix::fs::symlink("/dev/null", folder.join("null")).unwrap();
            write_file(&folder.join("null"), "z").unwrap();
            assert!(!std::fs::metadata("/dev/null").unwrap().is_file() && folder.join("null").is_symlink());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
