//! `cpp-examples/paged_server` as a user builds it: its parts, a load with clients who leave, greedy answers against dense ones, and
//! requests that are none. Controls are servers with a defect on purpose.
#[path = "../common/mod.rs"]
mod common;
mod made;
mod served;

use common::{output, root, run, scratch};
use made::made;
use served::{Served, python, text};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Room for a few requests, so that some wait and some are swapped out.
const SHORT_OF_PAGES: [&str; 8] =
    ["--cache-tokens", "2048", "--swap-tokens", "2048", "--prefix-units", "16", "--max-batch", "16"];

#[test]
fn the_parts_do_what_they_should() {
    let (model, golden) = (root().join("assets/ref-d128"), root().join("assets/eval"));
    let mut executed = 0;
    for (name, program) in &made().tests {
        let mut command = Command::new(program);
        match *name {
            "text" => {}
            "model" => drop(command.arg(&model).arg(&golden)),
            _ => drop(command.arg(&model)),
        }
        let said = run(&mut command);
        let checks = said.strip_prefix("checks ").and_then(|rest| rest.split_once(' ')).expect("a count").0;
        executed += checks.parse::<u32>().expect("a number");
    }
    assert!(executed > 500, "{executed}");
}

#[test]
fn a_load_leaves_the_server_as_it_was() {
    let server = Served::start(&made().server, &SHORT_OF_PAGES);
    let load = ["--clients", "16", "--seconds", "20", "--longest", "160"];
    let done = server.load(&load);
    let said = text(&done);
    assert!(done.status.success() && said.contains(" 0 violations"), "{said}");
    let finished: u32 = said
        .split(&[',', '\n'][..])
        .filter_map(|part| part.trim().strip_prefix("finished: ")?.rsplit(' ').next()?.parse::<u32>().ok())
        .sum();
    assert!(finished >= 16, "{said}");
    let (status, said_last) = server.stop();
    assert_eq!(status, Some(0), "{said_last}");
    assert!(said_last.contains("no sequence, page or byte is in use"), "{said_last}");
    print!("{said}{said_last}");
    // Defects, what the load test says of them, and how the server ends.
    let planted = [("leak", "at rest", Some(3)), ("garble", "malformed", Some(0)), ("miscount", "received", Some(0))];
    let mut caught = 0;
    for (defect, word, ends) in planted {
        let server = Served::start(&made().planted, &["--plant", defect]);
        let done = server.load(&["--clients", "8", "--seconds", "4", "--aborts", "0.5", "--longest", "32"]);
        let said = text(&done);
        let status = server.stop().0;
        let seen = done.status.code() == Some(1)
            && said.lines().any(|line| line.contains("VIOLATION") && line.contains(word))
            && status == ends;
        assert!(seen, "{defect} was not caught, or the server ended with {status:?}: {said}");
        caught += 1;
    }
    println!("GATE paged-server-load executed={finished} failed=0 controls={caught}/{} seed=0x1", planted.len());
}

/// More requests that grow than there are pages for them: some leave the device and return, and nothing is left when all are gone.
#[test]
fn a_load_without_room_is_swapped() {
    let options = [
        "--cache-tokens",
        "2048",
        "--swap-tokens",
        "8192",
        "--prefix-units",
        "16",
        "--max-batch",
        "24",
        "--grace",
        "60",
    ];
    let server = Served::start(&made().server, &options);
    let crowd = [
        "--clients",
        "24",
        "--seconds",
        "4",
        "--longest",
        "320",
        "--growing",
        "0.7",
        "--aborts",
        "0.1",
        "--patience",
        "300",
    ];
    let done = server.load(&[&crowd[..], &["--swaps", "1"]].concat());
    let said = text(&done);
    assert!(done.status.success() && said.contains(" 0 violations"), "{said}");
    let ways = said.split_once("preemptions [").and_then(|(_, rest)| rest.split_once(']')).expect("preemptions").0;
    let [out, back, _dropped] = ways.split(", ").map(|n| n.parse::<u32>().expect("a number")).collect::<Vec<_>>()[..]
    else {
        panic!("{said}")
    };
    assert!(out > 0 && back > 0 && back <= out, "{said}");
    let (status, said_last) = server.stop();
    assert!(status == Some(0) && said_last.contains("no sequence, page or byte is in use"), "{said_last}");
    print!("{said}{said_last}");
    // With room for all of them nobody leaves, which the load test sees.
    let server = Served::start(&made().server, &["--cache-tokens", "32768"]);
    let done = server.load(&["--clients", "4", "--seconds", "2", "--longest", "16", "--swaps", "1"]);
    let said = text(&done);
    let caught = done.status.code() == Some(1) && said.contains("VIOLATION swapped") && said.contains(" 1 violations");
    assert!(caught, "{said}");
    assert_eq!(server.stop().0, Some(0));
    println!("GATE paged-server-swaps executed={out} failed=0 controls=1/1 seed=0x1");
}

/// Prompts of 1K tokens, one of each task.
#[test]
fn certified_answers_are_dense_ones() {
    let dir = scratch("paged_server_answers");
    let tasks = root().join("assets/eval/tasks_1024.jsonl.gz");
    let ask = |server: &Served, name: &str| {
        let file = dir.join(name).with_extension("json");
        let mut command = python("answers.py");
        command.arg("ask").args([
            "--port",
            &server.port.to_string(),
            "--take",
            "12",
            "--clients",
            "4",
            "--beyond",
            "4",
        ]);
        let said = run(command.arg("--tasks").arg(&tasks).arg("--out").arg(&file));
        assert!(said.starts_with("12 answers"), "{said}");
        file
    };
    let compared = |first, second| output(python("answers.py").arg("compare").arg(first).arg(second));
    let [certified, dense] = ["certified", "dense"].map(|policy| {
        let server = Served::start(&made().server, &["--policy", policy, "--cache-tokens", "8192"]);
        let file = ask(&server, policy);
        let (status, said) = server.stop();
        assert_eq!(status, Some(0), "{said}");
        file
    });
    let done = compared(&certified, &dense);
    assert!(done.status.success(), "{}", text(&done));
    let planted = Served::start(&made().planted, &["--plant", "second-best", "--cache-tokens", "8192"]);
    let done = compared(&ask(&planted, "planted"), &dense);
    assert!(done.status.code() == Some(1) && text(&done).contains("of 12 answers are equal"), "{}", text(&done));
    println!("GATE paged-server-answers executed=12 failed=0 controls=1/1 seed=0x0");
}

/// Tries until it is so, for a minute.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// More tokens than a test has time for; without a temperature the model repeats itself and does not end.
const LONG: &str = r#"{"prompt":"one two one two one two","max_tokens":1900,"temperature":0,"stream":STREAM}"#;

/// Sends it and does not wait for an answer.
fn ask_for_long(server: &Served, stream: bool) -> TcpStream {
    let body = LONG.replace("STREAM", if stream { "true" } else { "false" });
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}", body.len());
    let mut connection = server.connect();
    write!(connection, "{head}\r\n\r\n{body}").expect("a request");
    connection
}

/// A client that is gone costs nothing more: the request ends, whether it waited for text or for the whole.
fn clients_that_leave(server: &Served) {
    for (gone, stream) in [(1.0, false), (2.0, true)] {
        let connection = ask_for_long(server, stream);
        until("it runs", || server.metric("requests{state=\"running\"}") == 1.0);
        drop(connection);
        until("it ends", || server.metric("requests_ended_total{finish=\"cancelled\"}") == gone);
    }
}

/// One runs and one waits: there is no room for a third.
#[test]
fn a_full_queue_is_said_at_once() {
    let server = Served::start(&made().server, &["--max-batch", "1", "--max-waiting", "1", "--grace", "0"]);
    let first = ask_for_long(&server, true);
    until("one runs", || server.metric("requests{state=\"running\"}") == 1.0);
    let second = ask_for_long(&server, false);
    until("one waits", || server.metric("requests{state=\"waiting\"}") == 1.0);
    let said = server.ask("POST", "/v1/completions", r#"{"prompt":"a"}"#);
    assert!(
        said.starts_with("HTTP/1.1 429 ") && said.contains("Retry-After: 1") && said.contains("queue_full"),
        "{said}"
    );
    drop(second);
    until("nobody waits", || server.metric("requests{state=\"waiting\"}") == 0.0);
    let (status, said) = server.stop();
    assert_eq!(status, Some(0), "{said}");
    drop(first);
}

#[test]
fn what_is_no_request_is_refused() {
    let server = Served::start(&made().server, &[&SHORT_OF_PAGES[..], &["--grace", "1"]].concat());
    let deep = format!("{{\"prompt\":{}1{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let long = format!("{{\"prompt\":\"{}\"}}", "a".repeat(3000));
    let huge = format!("{{\"prompt\":\"{}\"}}", "a".repeat(200_000));
    for (method, path, body, status) in [
        ("POST", "/v1/completions", "", 400),
        ("POST", "/v1/completions", "{", 400),
        ("POST", "/v1/completions", "[]", 400),
        ("POST", "/v1/completions", &deep, 400),
        ("POST", "/v1/completions", &long, 400),
        ("POST", "/v1/completions", &huge, 413),
        ("POST", "/v1/completions", "{\"prompt\":\"\\ud800\"}", 400),
        ("GET", "/v1/completions", "", 405),
        ("POST", "/v1/completions/cmpl-0/cancel", "", 404),
        ("GET", "/v2", "", 404),
        ("GET", "/../etc/passwd", "", 404),
    ] {
        let said = server.ask(method, path, body);
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path} {:.40}: {said}", body);
        assert!(
            said.contains("{\"error\":{\"code\":") && said.contains("\"type\":\"invalid_request_error\""),
            "{said}"
        );
    }
    for bytes in
        [&b"\0\0\0\0\r\n\r\n"[..], b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -4\r\n\r\n{}"]
    {
        let said = server.raw(bytes, 3);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }
    // A body whose length is not what it says, or is not said.
    for (header, status) in [
        ("Transfer-Encoding: chunked", 411),
        ("Content-Length: 40\r\nContent-Encoding: gzip", 415),
        ("Accept: */*", 411),
    ] {
        let mut stream = server.connect();
        let asked = format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n");
        stream.write_all(asked.as_bytes()).expect("a request");
        // What comes as its body is no request of its own.
        std::thread::sleep(std::time::Duration::from_millis(300));
        stream.write_all(b"POST /admin/evict_prefixes HTTP/1.1\r\nContent-Length: 0\r\n\r\n").ok();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).ok();
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{header}: {said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{header}: {said}");
    }
    // Half a request, and nobody who waits for the rest.
    server
        .connect()
        .write_all(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"pro")
        .expect("half a request");
    clients_that_leave(&server);
    let page = server.ask("GET", "/", "");
    assert!(page.contains("<title>paged_server</title>") && !page.contains("://"), "the page loads from elsewhere");
    assert!(server.ask("GET", "/state", "").contains("\"rungs\":["));
    assert!(server.ask("GET", "/healthz", "").ends_with("ok\n"));
    // A stream that is under way when the server ends has its end, and says why.
    let mut stream = ask_for_long(&server, true);
    let mut first = [0; 256];
    assert!(stream.read(&mut first).expect("the beginning of a stream") > 0);
    let (status, said) = server.stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the rest of a stream");
    assert_eq!(status, Some(0), "{said}");
    assert!(rest.contains("\"finish_reason\":\"cancelled\"") && rest.contains("data: [DONE]\n\n"), "{rest}");
}

/// A body with room for it may be nested deep: refusing it takes no more stack than another.
#[test]
fn what_is_nested_deep_is_refused() {
    let server = Served::start(&made().server, &["--cache-tokens", "60000"]);
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    for body in [
        format!("{{\"prompt\":\"a\",\"stop\":{}}}", nested(100_000)),
        format!("{{\"prompt\":\"a\",\"stop\":[\"b\",{}]}}", nested(100_000)),
        format!("{{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{{\"include_usage\":{}}}}}", nested(100_000)),
        format!("{{\"prompt\":{}}}", nested(100_000)),
        format!("{{\"prompt\":\"a\",\"other\":{}}}", nested(100_000)),
    ] {
        let said = server.ask("POST", "/v1/completions", &body);
        assert!(said.starts_with("HTTP/1.1 400 "), "{:.60}: {said}", body);
    }
    assert!(server.ask("GET", "/healthz", "").ends_with("ok\n"));
    let (status, said) = server.stop();
    assert_eq!(status, Some(0), "{said}");
}

/// A server that is told to end while it starts ends.
#[test]
fn an_end_that_comes_early_is_heard() {
    for wait in [0, 5, 20, 60, 120, 200, 300] {
        let mut server = Command::new(&made().server)
            .args(["--port", "0", "--cache-tokens", "2000", "--model"])
            .arg(root().join("assets/ref-d128"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("a server");
        std::thread::sleep(std::time::Duration::from_millis(wait));
        run(Command::new("kill").arg("-TERM").arg(server.id().to_string()));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let status = loop {
            if let Some(status) = server.try_wait().expect("a child") {
                break status;
            }
            if std::time::Instant::now() > until {
                server.kill().ok();
                panic!("told to end after {wait} ms it goes on");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        // Before it listens for signals one ends it as it ends any program.
        assert!(status.code().is_none_or(|code| code == 0), "after {wait} ms: {status}");
    }
}

/// Without defects compiled in there is none to ask for; words that are no options are named.
#[test]
fn the_command_line_is_checked() {
    let usage = run(Command::new(&made().server).arg("--help"));
    assert!(usage.contains("--cache-tokens") && !usage.contains("--plant"), "{usage}");
    for (words, why) in [
        (&["--plant", "leak"][..], "built without defects"),
        (&["--ports", "1"], "'--ports' is no option"),
        (&["--port"], "--port needs a value"),
        (&["--port", "70000"], "from 0 to 65535"),
        (&["--tolerance", "nan"], "above 0"),
        (&["--policy", "exact"], "--policy is 'exact'"),
        (&["--device", "gpu"], "--device is 'gpu'"),
        (&["--device", "cuda:x"], "--device cuda: is 'x'"),
        (&["--device", "cuda:256"], "from 0 to 255"),
    ] {
        let done = output(Command::new(&made().server).args(words));
        let said = text(&done);
        assert!(done.status.code() == Some(2) && said.contains(why), "{words:?}: {said}");
    }
    let done = output(Command::new(&made().server).args(["--port", "0", "--format", "k9"]).current_dir(root()));
    assert!(done.status.code() == Some(1) && text(&done).contains("CERTKV_FORMAT"), "{}", text(&done));
    let done = output(Command::new(&made().server).args(["--port", "0", "--device", "cuda:255"]).current_dir(root()));
    assert!(done.status.code() == Some(1) && text(&done).contains("CERTKV_DEVICE"), "{}", text(&done));
    let done = output(Command::new(&made().server).args(["--model", "nowhere"]));
    assert!(done.status.code() == Some(1) && text(&done).contains("nowhere/config.json"), "{}", text(&done));
    // A damaged model is refused by name.
    let folder = scratch("paged_server_model");
    let from = root().join("assets/ref-d128");
    let weights = fs::read(from.join("model.safetensors")).expect("the model");
    fs::copy(from.join("config.json"), folder.join("config.json")).expect("a copy");
    for (size, why) in
        [(4, "is no safetensors file"), (100, "longer than the file"), (weights.len() - 2, "data_offsets")]
    {
        fs::write(folder.join("model.safetensors"), &weights[..size]).expect("a damaged copy");
        let done = output(Command::new(&made().server).arg("--model").arg(&folder));
        assert!(done.status.code() == Some(1) && text(&done).contains(why), "{size}: {}", text(&done));
    }
}
