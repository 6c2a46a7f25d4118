//! What `--help` prints.

/// `certkv --help`.
pub const MAIN: &str = "\
certkv - a compressed KV cache whose every attention output carries a certificate

  certkv demo             the bundled model, several ways, in under three minutes; writes report.html
  certkv eval             any model folder, task files, formats and tolerances
  certkv calibrate MODEL  what Block-GTQ needs to know of a model: energies, schedules, centres; compares two such files
  certkv conform DIR      replays golden vectors, prints the largest deviation of each quantity
  certkv bench            decode attention beside a plain memory read
  certkv inspect WHAT     what a model folder, a format, a packed page, vectors or curves hold
  certkv plan             bytes that so many requests take, and whether they fit

`certkv COMMAND --help` lists the options of a command.
Exit codes: 0 success, 1 a check failed, 2 usage, 3 a file, value or device was refused, 4 internal error.
";

/// `certkv demo --help`.
pub const DEMO: &str = "\
certkv demo [options]: answers long-context prompts from a compressed, certified cache, and shows what happens without

  --quick            a glance, in a fraction of the time
  --assets DIR       where ref-d128/ and eval/ lie (default: the assets of this source tree)
  --report FILE      the page to write (default report.html); `none` for no page
  --json             print the data of the report as JSON instead of the table
  --seed N           seed of the choice of prompts and of the bootstrap (default 1)
  --device D         cpu (default), or cuda:N: caches on a GPU, the model on the CPU; seed000 stays on the CPU
  --kernels DIR      with cuda:N: machine code made ahead of time, and where what is compiled is kept
  --threads N        threads (default: all)
  --quiet            no progress bars
";

/// `certkv eval --help`.
pub const EVAL: &str = "\
certkv eval [options]: runs prompts and text through several caches and compares each with dense, pair by pair

  --model DIR        model folder, Hugging Face layout: llama, mistral, qwen2, qwen3 or stablelm, with tokenizer.json unless its
                     tokens are bytes (default: the bundled model)
  --tasks FILE       prompts, JSON lines, plain or .gz; may be repeated (default: the bundled 4K prompts,
                     unless --text is given); `none` for no prompts
  --task NAME        keep only this task; may be repeated
  --length N         keep only prompts of this nominal length
  --limit N          at most N prompts of each task and file
  --text FILE        text for bits per byte; `bundled` for the bundled one
  --context N        tokens of a text window, bytes where a tokenizer makes them (default 4096)
  --scored N         bytes predicted at the end of a window (default: half of it)
  --windows N        windows of each part of the text (default 2)
  --format F         format of full blocks, such as k8-v4g32-b32, or one for each layer, or for each KV head of each
                     layer, with + between them; may be repeated
  --per-head         then choose for every KV head of every layer the format of these that read the fewest bytes of it,
                     at each tolerance, run that, and print the list
  --bytes N          with --per-head: at most so many bytes of codes a token, in all layers
  --calibration FILE what `certkv calibrate` wrote for this model; for formats with calibrated keys, such as ctq4-v4g64-b64 or gtq3-tq3-b64, and
                     of `certkv calibrate --spherical` for s1-tq3-b64 and its like; may be repeated, one of a kind
  --scales FILE      what `certkv calibrate --scales` wrote: fixed scales for formats with one per block, such as p8-p8-b64
  --tolerance T      relative tolerance such as 0.05, may be repeated; every format runs at every tolerance
  --rows SHARE       let certified steps read up to that share of tokens one by one, 0 to 0.25 (default 0)
  --protect S,R      read the blocks of the first S and of the R newest tokens from originals under every policy, such as
                     4,128 (default 0,0)
  --policy P         dense, packed, certified or seed000; may be repeated (default: the first three; dense always runs)
  --twin             run on the outlier twin too
  --twin-only        run on the outlier twin only
  --greedy           decode the model's own choices instead of feeding the true answer
  --witness N        recompute the true error every N steps, 0 for never (default 8)
  --seed N           seed of the choice within --limit and of the bootstrap (default: file order, 1)
  --report FILE      write the page too
  --curves FILE      write the curves of format and tolerance, as assets/curves/ref-d128.json; what is not given is then
                     the sweep behind the defaults: six formats, five tolerances, three prompts and two windows at 8K
  --sweep PAGE       measure every method side by side instead, on the bundled text and prompts: all codecs, Block-GTQ,
                     SmartKV, spherical keys; writes the page, and its figures beside it as .json. Takes --model, --seed,
                     --threads, --assets, --json and --quiet
  --quick            with --sweep: a glance, too short for conclusions
  --json             print the data of the report as JSON instead of the table
  --device D         cpu (default), or cuda:N: caches on a GPU, the model on the CPU; seed000 stays on the CPU
  --kernels DIR      with cuda:N: machine code made ahead of time, and where what is compiled is kept
  --threads N        threads (default: all)
  --quiet            no progress bars
";

/// `certkv calibrate --help`.
pub const CALIBRATE: &str = "\
certkv calibrate MODEL --text FILE --out FILE [options]: runs the model over the text, measures the energies of each
pair of channels by layer and key head, and writes them with the Block-GTQ schemes chosen from them (math.md 9.1)
certkv calibrate --compare A B: how far the schemes in A are from those in B, layer by layer
certkv calibrate MODEL --evidence [options]: logit errors on held-out text, beside TurboQuant at equal bits
certkv calibrate MODEL --spherical TIER --text FILE --out FILE: trains the directions of spherical keys (math.md 2.9)
certkv calibrate MODEL --scales P --text FILE --out FILE: magnitudes of keys and values, for fixed scales (math.md 2.9a)
certkv calibrate MODEL --evidence --spherical TIER: the same measurements of those, and of directions drawn at random

  --text FILE        text to read, by the tokens of MODEL's tokenizer.json, or byte by byte without one; with --evidence the
                     bundled one if not given
  --skip N           bytes of it to leave out first (default 0)
  --tokens N         tokens to read, at least 64 (default 2048, or what there is)
  --context N        a longer text is read in sequences of so many tokens (default 4096)
  --budget BITS      mean bits of a channel, 1 to 8, such as 3 or 2.5 (default 3; --evidence: 2, then 3)
  --score NAME       avg, max, geo, keys, queries (as published) or logit2 (default)
  --style NAME       channels of a pair: half (default; what the model runner computes) or inter
  --centre yes|no    code keys around their mean (default yes)
  --balance yes|no   code keys in the balanced metric (default yes)
  --published        the source paper's rule: avg, no centre, no balance
  --least N          fewest bits of a pair (default 1)
  --most N           most bits of a pair (default 8)
  --spherical TIER   b1, b2 or b3 (with --evidence also all): codebooks by layer, key head and group of channels
  --scales P         100 for the largest magnitudes, less for a percentile of them, such as 99.9
  --objective NAME   with --spherical: energy (default; the squared error of keys) or cosine (as published)
  --rounds N         with --spherical: most rounds of training (default 40)
  --drift            with --evidence and --spherical: also how far next-token distributions move, layer by layer
  --seed N           with --spherical: of the first directions (default 1)
  --out FILE         the calibration, or the codebooks, to write
  --held-out FILE    with --evidence: the text to measure on (default: the one of --text)
  --held-skip N      with --evidence: bytes of it to leave out first (default 65536)
  --assets DIR       where ref-d128/ and eval/ lie (default: the assets of this source tree)
  --json             print the result as JSON
  --threads N        threads (default: all)
  --quiet            no progress bars
";

/// `certkv conform --help`.
pub const CONFORM: &str = "\
certkv conform DIR [options]: replays the golden vectors (*.cgv) in DIR; exit code 1 if a quantity is past its limit

  --json             print the result as JSON
";

/// `certkv inspect --help`.
pub const INSPECT: &str = "\
certkv inspect WHAT [options]: WHAT is a model folder, a format such as k8-v4g32-b32, a packed page,
a file of vectors (.cgv), a calibration or codebooks that calibrate wrote, or curves that eval
wrote (.json)

  --head-dim N       channels of a head, for a format (default 128)
  --json             print the result as JSON
";

/// `certkv bench --help`.
pub const BENCH: &str = "\
certkv bench [options]: one decode step of one layer, dense, packed and certified, beside a plain memory read

  --context N        tokens in the cache; may be repeated (default 2048, 8192, 32768)
  --format F         format of full blocks; may be repeated; calibrated keys (ctq4, gtq3, s1) are calibrated on the measured rows
  --tolerance T      relative tolerance; may be repeated
  --heads N          query heads (default 32)
  --kv-heads N       key/value heads (default 8)
  --head-dim N       channels of a head (default 128)
  --repeats N        timed steps (default 9)
  --threads N        threads of the engine and of the memory read (default 1)
  --seed N           seed of the data (default 1)
  --json             print the result as JSON
  --quiet            no progress bars
";

/// `certkv plan --help`.
pub const PLAN: &str = "\
certkv plan [options]: the bytes that so many requests take in a cache, whether they fit, and how many would

  --requests N       requests that live side by side (default 64)
  --tokens N         tokens of each, prompt and answer; 32K is 32768 (default 32K)
  --format F         format of full blocks (default: the library's)
  --layers N         layers (default 32)
  --heads N          query heads (default 32)
  --kv-heads N       key/value heads (default 8)
  --head-dim N       channels of a head (default 128)
  --device-budget B  bytes of device memory, such as 80G (default: no limit)
  --host-budget B    bytes of host memory for the originals (default: no limit)
  --scratch S        share of all sides of which 16-bit copies are kept on the device, 0 to 1; what a tolerance
                     needs depends on the model (default 0, on h200 0.11)
  --on M             cpu (default), or h200: no GPU is needed to plan for one
  --json             print the answer as JSON
";
