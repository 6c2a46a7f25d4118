//! Recorded bounds: what kernels may use, and of which sources that was found.
use crate::log::Usage;
use std::collections::BTreeMap;

const HEADER: &str = "# Most registers and bytes of stack that each kernel may use, per variant; `made`: digest of sources, options and compiler.
# Made by: compile_kernels --check FILE --record
kernel\tvariant\tregisters\tstack\tmade
";

#[derive(Debug, PartialEq)]
struct Row {
    registers: u32,
    stack: u32,
    made: String,
}

/// By kernel and variant.
#[derive(Debug, Default)]
pub(crate) struct Bounds(BTreeMap<(String, String), Row>);

impl Bounds {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let rows = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).skip(1);
        let parse = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            let [kernel, variant, registers, stack, made] = cells[..] else { return None };
            let key = (kernel.to_owned(), variant.to_owned());
            Some((key, Row { registers: registers.parse().ok()?, stack: stack.parse().ok()?, made: made.to_owned() }))
        };
        rows.map(|l| parse(l).ok_or(format!("bounds: line `{l}` is not understood")))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Why this usage is refused. `complete`: a kernel without a bound is refused as well.
    pub(crate) fn judge(&self, variant: &str, usage: &Usage, complete: bool) -> Option<String> {
        if usage.spill > 0 {
            return Some(format!("spills {} bytes with {} registers", usage.spill, usage.registers));
        }
        match self.0.get(&(usage.kernel.clone(), variant.to_owned())) {
            Some(row) if usage.registers > row.registers => {
                Some(format!("{} registers, the bound is {}", usage.registers, row.registers))
            }
            Some(row) if usage.stack > row.stack => {
                Some(format!("{} bytes of stack, the bound is {}", usage.stack, row.stack))
            }
            None if complete => Some("has no bound; record it".to_owned()),
            _ => None,
        }
    }

    /// Whether what is recorded of this kernel was found from the same sources by the same compiler, which would find it again.
    pub(crate) fn settles(&self, kernel: &str, variant: &str, made: &str) -> bool {
        self.0.get(&(kernel.to_owned(), variant.to_owned())).is_some_and(|row| row.made == made)
    }

    /// Takes the usage as the new bound, unless it spills.
    pub(crate) fn record(&mut self, variant: &str, made: &str, usage: &Usage) {
        let key = (usage.kernel.clone(), variant.to_owned());
        if usage.spill > 0 {
            self.0.remove(&key);
        } else {
            self.0.insert(key, Row { registers: usage.registers, stack: usage.stack, made: made.to_owned() });
        }
    }

    pub(crate) fn text(&self) -> String {
        let row = |((kernel, variant), Row { registers, stack, made }): (&(String, String), &Row)| {
            format!("{kernel}\t{variant}\t{registers}\t{stack}\t{made}\n")
        };
        HEADER.chars().chain(self.0.iter().flat_map(|r| row(r).chars().collect::<Vec<_>>())).collect()
    }
}
