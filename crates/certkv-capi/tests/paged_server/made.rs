//! The server and the programs that test its parts, compiled once for all tests here.
use crate::common::{compiler, install, output, root, run, scratch};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const PACKAGES: [&str; 3] = ["cpp-httplib", "eigen3", "nlohmann_json"];
/// GCC 12 warns of its own AVX-512 headers wherever Eigen uses them.
const FLAGS: [&str; 8] =
    ["-O2", "-march=native", "-mno-avx512f", "-Wshadow", "-Wconversion", "-Wsign-conversion", "-pthread", "-DNDEBUG"];

pub(crate) struct Made {
    /// As a user builds it.
    pub(crate) server: PathBuf,
    /// The same with defects to choose from (plant.hpp).
    pub(crate) planted: PathBuf,
    /// `text`, `model` and `scheduler` of `tests`.
    pub(crate) tests: [(&'static str, PathBuf); 3],
}

pub(crate) fn folder() -> PathBuf {
    root().join("cpp-examples/paged_server")
}

/// Words that pkg-config says; headers as those of the system, whose warnings are nobody's here.
fn packages(option: &str) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    let done = output(command.arg(option).args(PACKAGES));
    assert!(
        done.status.success(),
        "cpp-examples/paged_server needs Debian's libcpp-httplib-dev, libeigen3-dev and nlohmann-json3-dev: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    said.split_whitespace()
        .flat_map(|word| match word.strip_prefix("-I") {
            Some(path) => vec!["-isystem".to_owned(), path.to_owned()],
            None => vec![word.to_owned()],
        })
        .collect()
}

fn cpp() -> Command {
    let mut command = compiler("c++17");
    command.args(FLAGS).args(packages("--cflags")).arg("-I").arg(folder());
    command
}

/// A source, its object, and whether it is built with defects.
type Unit = (PathBuf, PathBuf, bool);

/// On two threads: one file takes as long as all the small ones.
fn compile(units: &[Unit]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((source, object, planted)) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut command = cpp();
                    command.args(planted.then_some("-DPAGED_SERVER_PLANTS"));
                    run(command.arg("-c").arg(source).arg("-o").arg(object));
                }
            });
        }
    });
}

fn link(dir: &Path, objects: &[&PathBuf], name: &str) -> PathBuf {
    let made = dir.join(name);
    let mut command = cpp();
    command.args(objects).arg("-o").arg(&made).arg("-L").arg(dir).arg("-lcertkv").args(packages("--libs"));
    run(command.arg(format!("-Wl,-rpath,{}", dir.display())));
    made
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a folder of sources").flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "cpp")).collect();
    // The largest first: they compile longest.
    found.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).map_or(0, |m| m.len())));
    found
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a file name").to_string_lossy().into_owned()
}

fn make() -> Made {
    let dir = scratch("paged_server");
    install(&dir);
    let (parts, programs) = (sources(&folder()), sources(&folder().join("tests")));
    assert!(parts.len() > 10 && programs.len() == 3, "{parts:?} {programs:?}");
    // Defects are in the files that know of them; the others are the same.
    let knows = |path: &PathBuf| fs::read_to_string(path).expect("a source").contains("plant.hpp");
    let units: Vec<Unit> = parts
        .iter()
        .flat_map(|path| [false].into_iter().chain(knows(path).then_some(true)).map(move |planted| (path, planted)))
        .map(|(path, planted)| {
            let name = format!("{}{}.o", stem(path), if planted { "-planted" } else { "" });
            (path.clone(), dir.join(name), planted)
        })
        .chain(programs.iter().map(|path| (path.clone(), dir.join(format!("test-{}.o", stem(path))), false)))
        .collect();
    compile(&units);
    let of = |wanted: &dyn Fn(&Unit) -> bool| -> Vec<&PathBuf> {
        units.iter().filter(|unit| wanted(unit)).map(|(_, object, _)| object).collect()
    };
    let is_test = |path: &PathBuf| path.parent().is_some_and(|parent| parent.ends_with("tests"));
    let server = link(&dir, &of(&|(path, _, planted)| !planted && !is_test(path)), "paged_server");
    let planted =
        link(&dir, &of(&|(path, _, planted)| !is_test(path) && *planted == knows(path)), "paged_server_planted");
    let tests = ["text", "model", "scheduler"].map(|name| {
        let alone = |(path, _, planted): &Unit| {
            let is = stem(path);
            !planted && if is_test(path) { is == name } else { is != "main" && is != "http" }
        };
        (name, link(&dir, &of(&alone), &format!("test-{name}")))
    });
    Made { server, planted, tests }
}

pub(crate) fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(make)
}
