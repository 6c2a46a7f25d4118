//! What a replay found: the largest deviation of every quantity, and everything beyond its limit.
use std::fmt;

/// One compared quantity, over all files that hold it.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantity {
    /// What was compared, for example `k8 codes`.
    pub name: String,
    /// Numbers compared.
    pub cases: usize,
    /// Largest deviation met; infinite if a NaN was met.
    pub worst: f64,
    /// Largest deviation allowed; 0 for bit-exact quantities.
    pub limit: f64,
    /// How the deviation is measured.
    pub kind: &'static str,
}

impl Quantity {
    /// True if no deviation exceeded the limit.
    pub fn passed(&self) -> bool {
        self.worst <= self.limit
    }
}

/// A deviation beyond its limit, with the file it was met in.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// File name without directory.
    pub file: String,
    /// Quantity that deviated.
    pub quantity: String,
    /// The deviation.
    pub deviation: f64,
    /// What was allowed.
    pub limit: f64,
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Every quantity in order of first appearance.
    pub quantities: Vec<Quantity>,
    /// Files replayed.
    pub files: usize,
    /// Files that no family replays.
    pub unknown: Vec<String>,
    /// Deviations beyond the limit, in order.
    pub failures: Vec<Failure>,
    file: String,
}

impl Report {
    /// Deviation kind of bit-exact quantities: the largest absolute difference, limit 0.
    pub const BIT_EXACT: &'static str = "bit-exact";
    /// Deviation kind `|got - want| / |want|`.
    pub const RELATIVE: &'static str = "relative";
    /// Deviation kind `(true - got) / true`: positive where an upper bound lies below the true value. Limit 0.
    pub const NOT_BELOW: &'static str = "never below";
    /// Deviation kind `got / true`.
    pub const RATIO: &'static str = "ratio to true";

    /// True if files were replayed, all of them, and nothing deviated beyond its limit.
    pub fn passed(&self) -> bool {
        self.files > 0
            && self.unknown.is_empty()
            && self.failures.is_empty()
            && self.quantities.iter().all(Quantity::passed)
    }

    /// Numbers compared in all.
    pub fn cases(&self) -> usize {
        self.quantities.iter().map(|q| q.cases).sum()
    }

    /// Starts a file: later failures are reported under its name.
    pub(crate) fn enter(&mut self, file: &str) {
        self.file = file.to_owned();
        self.files += 1;
    }

    /// Records one deviation of `cases` compared numbers. NaN counts as infinite, so that it fails closed.
    pub fn record(&mut self, name: &str, kind: &'static str, cases: usize, deviation: f64, limit: f64) {
        let deviation = if deviation.is_nan() { f64::INFINITY } else { deviation };
        match self.quantities.iter_mut().find(|q| q.name == name && q.kind == kind && q.limit == limit) {
            Some(q) => {
                q.cases += cases;
                q.worst = q.worst.max(deviation);
            }
            None => self.quantities.push(Quantity { name: name.to_owned(), cases, worst: deviation, limit, kind }),
        }
        let fine = deviation <= limit;
        if !fine {
            self.failures.push(Failure { file: self.file.clone(), quantity: name.to_owned(), deviation, limit });
        }
    }

    /// Compares number by number with limit 0. Equal infinities and NaN against NaN agree; lengths must be equal.
    pub fn exact(&mut self, name: &str, got: &[f64], want: &[f64]) {
        let deviation = |(a, b): (&f64, &f64)| {
            if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { nan_is_infinite((a - b).abs()) }
        };
        let worst = got.iter().zip(want).map(deviation).fold(length_penalty(got, want), f64::max);
        self.record(name, Self::BIT_EXACT, want.len(), worst, 0.0);
    }

    /// As [`Report::exact`] for integers.
    pub fn exact_ints(&mut self, name: &str, got: impl IntoIterator<Item = i64>, want: &[i64]) {
        let got: Vec<i64> = got.into_iter().collect();
        let penalty = if got.len() == want.len() { 0.0 } else { f64::INFINITY };
        let worst = got.iter().zip(want).map(|(a, b)| a.abs_diff(*b) as f64).fold(penalty, f64::max);
        self.record(name, Self::BIT_EXACT, want.len(), worst, 0.0);
    }

    /// Compares number by number: `|got - want| / |want|` at most `limit`. Where `want` is 0, `got` must be 0.
    pub fn relative(&mut self, name: &str, got: &[f64], want: &[f64], limit: f64) {
        let deviation = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { nan_is_infinite((a - b).abs() / b.abs()) };
        let worst = got.iter().zip(want).map(deviation).fold(length_penalty(got, want), f64::max);
        self.record(name, Self::RELATIVE, want.len(), worst, limit);
    }

    /// Checks upper bounds: `got >= truth` for every number.
    pub fn never_below(&mut self, name: &str, got: &[f64], truth: &[f64]) {
        let deviation = |(a, b): (&f64, &f64)| {
            if a >= b { 0.0 } else { nan_is_infinite(((b - a) / b).abs()).max(f64::MIN_POSITIVE) }
        };
        let worst = got.iter().zip(truth).map(deviation).fold(length_penalty(got, truth), f64::max);
        self.record(name, Self::NOT_BELOW, truth.len(), worst, 0.0);
    }

    /// Checks tightness of upper bounds: `got <= limit * truth` for every number; where `truth` is 0, `got` must be 0.
    pub fn ratio(&mut self, name: &str, got: &[f64], truth: &[f64], limit: f64) {
        let deviation = |(a, b): (&f64, &f64)| if a == b { 1.0 } else { nan_is_infinite(a / b) };
        let worst = got.iter().zip(truth).map(deviation).fold(length_penalty(got, truth), f64::max);
        self.record(name, Self::RATIO, truth.len(), worst, limit);
    }
}

fn nan_is_infinite(x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { x }
}

fn length_penalty(got: &[f64], want: &[f64]) -> f64 {
    if got.len() == want.len() { 0.0 } else { f64::INFINITY }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<44} {:>9} {:>12} {:>9}  kind", "quantity", "cases", "worst", "limit")?;
        for q in &self.quantities {
            let mark = if q.passed() { "" } else { "  FAILED" };
            writeln!(f, "{:<44} {:>9} {:>12.3e} {:>9.1e}  {}{mark}", q.name, q.cases, q.worst, q.limit, q.kind)?;
        }
        for e in &self.failures {
            writeln!(f, "failed: {} {}: {:e} > {:e}", e.file, e.quantity, e.deviation, e.limit)?;
        }
        for file in &self.unknown {
            writeln!(f, "failed: {file}: no family replays this file")?;
        }
        write!(f, "{} files, {} unknown, {} failures", self.files, self.unknown.len(), self.failures.len())
    }
}
