//! Progress bars on standard error.
use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// Whether and how progress is shown.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    shown: bool,
}

/// One running bar.
#[derive(Debug)]
pub struct Bar {
    shown: bool,
    label: String,
    note: String,
    total: u64,
    done: u64,
    start: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// Bars when standard error is a terminal, unless `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self { shown: !quiet && std::io::stderr().is_terminal() }
    }

    /// No bars.
    pub const fn off() -> Self {
        Self { shown: false }
    }

    /// Starts a bar of `total` units.
    pub fn bar(&self, label: &str, total: u64) -> Bar {
        let mut bar = Bar {
            shown: self.shown,
            label: label.into(),
            note: String::new(),
            total,
            done: 0,
            start: Instant::now(),
            drawn: None,
        };
        bar.draw(true);
        bar
    }
}

impl Bar {
    /// What is being worked on.
    pub fn note(&mut self, note: &str) {
        self.note = note.into();
        self.draw(false);
    }

    /// `units` more are done.
    pub fn advance(&mut self, units: u64) {
        self.done += units;
        self.draw(false);
    }

    /// Leaves one line with the time that it took.
    pub fn finish(mut self) {
        self.done = self.total;
        self.note = String::new();
        self.draw(true);
        if self.shown {
            eprintln!();
        }
    }

    fn draw(&mut self, always: bool) {
        let recent = self.drawn.is_some_and(|at| at.elapsed() < Duration::from_millis(80));
        if !self.shown || (recent && !always) {
            return;
        }
        self.drawn = Some(Instant::now());
        let line = line(&self.label, &self.note, self.done, self.total, self.start.elapsed());
        // A terminal that went away is no reason to stop the work.
        let _ = write!(std::io::stderr(), "\r\x1b[2K{line}").and_then(|()| std::io::stderr().flush());
    }
}

fn line(label: &str, note: &str, done: u64, total: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 28;
    let total = total.max(1);
    let eighths = done.min(total) * WIDTH * 8 / total;
    let mut bar = "█".repeat((eighths / 8) as usize);
    if !eighths.is_multiple_of(8) {
        bar.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][(eighths % 8 - 1) as usize]);
    }
    let pad = WIDTH as usize - bar.chars().count();
    let seconds = elapsed.as_secs_f64();
    let left = if done > 0 && done < total {
        format!("{:.0} s left", seconds / done as f64 * (total - done) as f64)
    } else {
        format!("{seconds:.1} s")
    };
    format!("{label:<14} {bar}{} {:>3}%  {left:<11} {note}", "·".repeat(pad), done.min(total) * 100 / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_width() {
        for done in [0, 1, 33, 99, 100, 250] {
            let text = line("model", "", done, 100, Duration::from_secs(3));
            assert_eq!(text.chars().skip(15).take(28).filter(|c| *c != ' ').count(), 28, "{text}");
        }
        assert!(line("model", "", 50, 100, Duration::from_secs(3)).contains("3 s left"));
        assert!(line("model", "", 0, 0, Duration::ZERO).contains("  0%"));
    }
}
