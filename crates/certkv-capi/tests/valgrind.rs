//! C programs under Valgrind: neither they nor the library read what is not theirs, decide by what nobody wrote, or lose memory. Where it is
//! not installed, nothing is checked, and a note says so.
mod common;
use common::{install, note, output, program, root, scratch};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a program under Valgrind, which ends with `FOUND` if it has found something.
fn watched(made: &Path, dir: &Path) -> Output {
    let mut command = Command::new("valgrind");
    command.args(["-q", "--leak-check=full", "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
    output(command.arg(format!("--error-exitcode={FOUND}")).arg(made).arg(dir))
}

const FOUND: i32 = 99;

const PROGRAMS: [&str; 18] = [
    "misuse",
    "swap",
    "save",
    "snapshot",
    "prefixes",
    "admit",
    "events",
    "log",
    "parts",
    "allocator",
    "store",
    "calibration",
    "tensor",
    "moves",
    "scrub",
    "levels",
    "decides",
    "scales",
];

/// A cache with one layer, a sequence and an open step; `WRONG` has `step`, and rows of one KV head of 64.
const PLANTED: &str = "\
#include <certkv.h>
#include <stdlib.h>
int main(void) {
  certkv_config config;
  certkv_cache *cache = NULL;
  certkv_sequence sequence = 0;
  certkv_step *step = NULL;
  certkv_chunk chunk;
  float *row = (float *)calloc(64, sizeof *row);
  int said = certkv_config_init(&config, (uint32_t)sizeof config);
  config.layers = config.q_heads = config.kv_heads = 1;
  config.head_dim = config.max_tokens = 64;
  said |= certkv_cache_create(&config, &cache) | certkv_sequence_create(cache, &sequence);
  chunk.sequence = sequence;
  chunk.tokens = 1;
  said |= certkv_step_begin(cache, &chunk, 1, &step);
  WRONG
  said |= certkv_step_append(step, 0, row, row, 64, CERTKV_F32, CERTKV_SPACE_HOST);
  free(row);
  return said | certkv_step_finish(step) | certkv_cache_destroy(cache);
}
";

#[test]
fn valgrind_finds_nothing_and_would() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        note("valgrind is not there: the C programs did not run under it");
        return;
    }
    let dir = scratch("valgrind");
    install(&dir);
    let example = root().join("cpp-examples/minimal_decode.c");
    let tests = PROGRAMS.map(|name| root().join("ffi-tests").join(name).with_extension("c"));
    for source in [example].into_iter().chain(tests) {
        let made = program(&dir, "c11", &source, &["-g", "-Wno-unused-function", "-Wno-unused-variable"]);
        let done = watched(&made, &dir);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.is_empty(), "{}: {}: {said}", source.display(), done.status);
    }
    // What each of these does wrong is seen, three times inside the library; without it nothing is.
    for (name, wrong, words) in [
        ("nothing", "", &[][..]),
        // A load of several rows at once that is aligned and begins inside is none that valgrind calls invalid: what lies outside is not initialised then.
        ("short", "row = (float *)realloc(row, 63 * sizeof *row);", &["Invalid read", "uninitialised"]),
        (
            "freed",
            "float *gone = row; row = (float *)calloc(64, sizeof *row); free(gone); \
                   said |= certkv_step_append(step, 0, gone, gone, 64, CERTKV_F32, CERTKV_SPACE_HOST); \
                   free(row); return said | certkv_step_finish(step) | certkv_cache_destroy(cache);",
            &["Invalid read"],
        ),
        ("unwritten", "free(row); row = (float *)malloc(64 * sizeof *row);", &["uninitialised"]),
        ("lost", "*(float *volatile *)&row = (float *)calloc(64, sizeof *row);", &["definitely lost"]),
    ] {
        let source = dir.join(name).with_extension("c");
        fs::write(&source, PLANTED.replace("WRONG", wrong)).expect("a test source");
        // gcc sees some of it, too.
        let done = watched(&program(&dir, "c11", &source, &["-g", "-w"]), &dir);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(if words.is_empty() { 0 } else { FOUND }), "{name}: {said}");
        assert!(words.is_empty() || words.iter().any(|word| said.contains(word)), "{name}: {said}");
    }
}
