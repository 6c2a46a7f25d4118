//! A server that runs, and the Python programs that ask it.
use crate::common::{output, root};
use crate::made::folder;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

pub(crate) struct Served {
    child: Child,
    said: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl Served {
    pub(crate) fn start(program: &Path, options: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(["--port", "0", "--model"])
            .arg(root().join("assets/ref-d128"))
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut said = BufReader::new(child.stdout.take().expect("its standard output"));
        let mut line = String::new();
        said.read_line(&mut line).expect("what the server says");
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port: {line:?}"));
        Self { child, said, port }
    }

    /// SIGTERM; its exit status and what else it said.
    pub(crate) fn stop(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(output(Command::new("kill").args(["-TERM", &id])).status.success());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("what the server says");
        (self.child.wait().expect("the server ends").code(), rest)
    }

    /// Sends `bytes`; all that comes back until the server closes, or for `seconds`.
    pub(crate) fn raw(&self, bytes: &[u8], seconds: u64) -> String {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(Duration::from_secs(seconds))).expect("a timeout");
        // The server may close before it has read all of it.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("a connection")
    }

    /// A request that is not kept alive; status line, headers and body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let size = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n");
        self.raw(format!("{head}{body}").as_bytes(), 60)
    }

    /// The value of a line of /metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let said = self.ask("GET", "/metrics", "");
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("paged_server_{name} ")));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {said}"))
    }

    /// The load test; its output, whether it passed or not.
    pub(crate) fn load(&self, options: &[&str]) -> Output {
        output(python("load.py").args(["--port", &self.port.to_string()]).args(options))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Already over, after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of `load_test`.
pub(crate) fn python(name: &str) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(folder().join("load_test").join(name));
    command
}

pub(crate) fn text(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}
