//! Evidence as data: sections of tables and charts. The page is drawn from this and nothing else, and the file beside it holds the same.
use crate::stats::{Quantiles, paired_bootstrap, quantile};
use serde::{Deserialize, Serialize};

/// Version of the file's layout, raised when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// All that was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line.
    pub command: String,
    /// The machine in words.
    pub machine: String,
    /// Name of the model.
    pub model: String,
    /// Program version.
    pub version: String,
    /// The short form: too little for conclusions.
    pub quick: bool,
    /// Seeds of everything that was drawn, by what they draw.
    pub seeds: Vec<(String, Vec<u64>)>,
    /// First bytes of the windows of text that were read, by what read them.
    pub windows: Vec<(String, Vec<u64>)>,
    /// Seconds in all.
    pub seconds: f64,
    /// In the order of the page.
    pub sections: Vec<Section>,
}

/// One question and its answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Name within the page.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What is shown, and how it was measured.
    pub text: String,
    /// Drawings.
    pub charts: Vec<Chart>,
    /// Figures.
    pub tables: Vec<Table>,
    /// What was not measured, and other things to know.
    pub notes: Vec<String>,
}

/// Figures by row and column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Heading.
    pub title: String,
    /// Columns; the first names rows and has no entry here.
    pub columns: Vec<Column>,
    /// Rows.
    pub rows: Vec<Row>,
}

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// How its figures are written.
    pub show: Show,
}

/// A row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// How a figure is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    /// A whole number.
    #[default]
    Count,
    /// So many digits after the point.
    Fixed(u8),
    /// A share in percent, so many digits after the point.
    Percent(u8),
    /// One digit and a power of ten.
    Power,
}

/// What a cell holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// A figure.
    Figure(Figure),
    /// Words: a verdict, or why there is no figure.
    Words(String),
}

/// A number, with its interval where there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Ends of its 95% interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// A drawing of points and lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it measures.
    pub name: String,
    /// Even ratios instead of even steps.
    pub log: bool,
    /// How its ticks are written.
    pub show: Show,
}

/// Points that belong together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// How its points are joined.
    pub line: Line,
    /// Points, in the order in which they are joined.
    pub points: Vec<Point>,
}

/// How points are joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// One after another.
    #[default]
    All,
    /// Those that no other point beats on both axes, less being better; they are the ones that are named.
    Frontier,
}

/// A point.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: Figure,
}

impl Figure {
    /// A number without an interval.
    pub const fn plain(value: f64) -> Self {
        Self { value, interval: None }
    }

    /// The mean of numbers with the interval of resampled ones, where there are two or more. NaN without numbers.
    pub fn mean(numbers: &[f64], seed: u64) -> Self {
        match paired_bootstrap(numbers, seed) {
            Some(i) if numbers.len() > 1 => Self { value: i.mean, interval: Some([i.low, i.high]) },
            Some(i) => Self::plain(i.mean),
            None => Self::plain(f64::NAN),
        }
    }
}

impl Cell {
    /// A number without an interval; words if there is none.
    pub fn plain(value: f64) -> Self {
        Self::from(Figure::plain(value))
    }

    /// See [`Figure::mean`].
    pub fn mean(numbers: &[f64], seed: u64) -> Self {
        Self::from(Figure::mean(numbers, seed))
    }

    /// Words.
    pub fn words(text: impl Into<String>) -> Self {
        Self::Words(text.into())
    }

    /// The number, if it is one.
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Figure(figure) => Some(figure.value),
            Self::Words(_) => None,
        }
    }
}

impl From<Figure> for Cell {
    /// JSON has no numbers that are not finite, and a page should not have them either.
    fn from(figure: Figure) -> Self {
        if figure.value.is_finite() { Self::Figure(figure) } else { Self::words("–") }
    }
}

impl Show {
    /// A number as it is written.
    pub fn write(self, x: f64) -> String {
        match self {
            Self::Count => format!("{x:.0}"),
            Self::Fixed(digits) => format!("{x:.0$}", usize::from(digits)),
            Self::Power => format!("{x:.0e}"),
            Self::Percent(digits) => format!("{:.1$}%", 100.0 * x, usize::from(digits)),
        }
    }
}

impl Table {
    /// A table without rows.
    pub fn new(title: &str, columns: &[(&str, Show)]) -> Self {
        let column = |(name, show): &(&str, Show)| Column { name: (*name).into(), show: *show };
        Self { title: title.into(), columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, name: impl Into<String>, cells: Vec<Cell>) {
        self.rows.push(Row { name: name.into(), cells });
    }
}

impl Axis {
    /// An axis of even steps.
    pub fn linear(name: &str, show: Show) -> Self {
        Self { name: name.into(), log: false, show }
    }

    /// An axis of even ratios.
    pub fn log(name: &str, show: Show) -> Self {
        Self { log: true, ..Self::linear(name, show) }
    }
}

/// The median, and what 95% are below; NaN of nothing.
pub fn median_and_high(numbers: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    [quantile(&sorted, 0.5), quantile(&sorted, 0.95)]
}

/// The mean; NaN of nothing.
pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The largest; 0 of nothing.
pub fn largest(numbers: impl IntoIterator<Item = f64>) -> f64 {
    Quantiles::of(numbers).max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_asked_and_have_intervals_from_two_numbers_on() {
        let written = [Show::Count, Show::Fixed(2), Show::Percent(1), Show::Power].map(|show| show.write(0.456));
        assert_eq!(written, ["0", "0.46", "45.6%", "5e-1"]);
        assert_eq!(Figure::mean(&[3.0], 1), Figure::plain(3.0));
        assert_eq!(Figure::mean(&[3.0, 3.0], 1), Figure { value: 3.0, interval: Some([3.0, 3.0]) });
        assert_eq!(Cell::mean(&[], 1), Cell::words("–"));
        assert_eq!(Cell::plain(f64::INFINITY).value(), None);
        let [median, high] = median_and_high((0..=100).map(f64::from));
        assert_eq!((median, high, mean(&[1.0, 2.0]), largest([1.0, 7.0, 2.0])), (50.0, 95.0, 1.5, 7.0));
    }
}
