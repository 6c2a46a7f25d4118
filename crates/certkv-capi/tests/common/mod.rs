//! C and C++ from tests: compilers, the library that was built with the test, and running what was made.
#![allow(dead_code, reason = "each test uses its part")]
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository's root")
}

/// A fresh folder for `test`, in the build folder.
pub(crate) fn scratch(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a folder below the build folder");
    dir
}

/// Runs a command and gives its output; a program that is not there is a clear failure.
pub(crate) fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| {
        panic!("{:?} did not start: {e}. The tests of the C ABI need gcc, g++ and nm.", command.get_program())
    })
}

/// Runs a command that must succeed; its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let done = output(command);
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}\n{err}", done.status);
    out.into_owned()
}

/// gcc or g++ for a language standard, with the header on its path and every warning an error.
pub(crate) fn compiler(standard: &str) -> Command {
    let mut command = Command::new(if standard.starts_with("c++") { "g++" } else { "gcc" });
    command.arg(format!("-std={standard}")).args(["-Wall", "-Wextra", "-pedantic", "-Werror"]);
    command.arg("-I").arg(root().join("include"));
    command
}

/// The same with the compiler `name`.
pub(crate) fn with(name: &str, standard: &str) -> Command {
    let given = compiler(standard);
    let mut command = Command::new(name);
    command.args(given.get_args());
    command
}

/// Says what was left out, also where the test passes: the output of a passing test is not shown, but for what goes past the macros.
pub(crate) fn note(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOTE {what}");
}

/// The file `name` that cargo built from this crate beside the test that runs.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let file = test.parent().expect("a folder").join(name);
    assert!(file.exists(), "{} is missing: run the tests with `cargo test -p certkv-capi`", file.display());
    file
}

/// The shared library under its installed names, in `dir`.
pub(crate) fn install(dir: &Path) {
    fs::copy(built("libcertkv_c.so"), dir.join("libcertkv.so.0")).expect("a copy of the library");
    std::os::unix::fs::symlink("libcertkv.so.0", dir.join("libcertkv.so")).expect("its development link");
}

/// Compiles `source` against the shared library in `dir`, and gives the program.
pub(crate) fn program(dir: &Path, standard: &str, source: &Path, flags: &[&str]) -> PathBuf {
    let name = source.file_stem().expect("a file name").to_string_lossy().into_owned();
    let made = dir.join(format!("{name}-{standard}"));
    let mut command = compiler(standard);
    command.args(flags);
    if standard.starts_with("c++") {
        command.args(["-x", "c++"]);
    }
    command.arg(source).args(["-x", "none", "-o"]).arg(&made);
    command.arg("-L").arg(dir).arg("-lcertkv").arg("-lm").arg(format!("-Wl,-rpath,{}", dir.display()));
    run(&mut command);
    made
}
