//! Recorded bounds: what kernels may use.
use crate::log::Usage;
use std::collections::BTreeMap;

const HEADER: &str = "# Most registers and bytes of stack that each kernel may use, per variant. Made by: compile_kernels --check FILE --record
kernel\tvariant\tregisters\tstack
";

/// `(kernel, variant)` to `(registers, stack)`.
#[derive(Debug, Default)]
pub(crate) struct Bounds(BTreeMap<(String, String), (u32, u32)>);

impl Bounds {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let rows = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).skip(1);
        let parse = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            let [kernel, variant, registers, stack] = cells[..] else { return None };
            let key = (kernel.to_owned(), variant.to_owned());
            Some((key, (registers.parse().ok()?, stack.parse().ok()?)))
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
            Some((registers, _)) if usage.registers > *registers => {
                Some(format!("{} registers, the bound is {registers}", usage.registers))
            }
            Some((_, stack)) if usage.stack > *stack => {
                Some(format!("{} bytes of stack, the bound is {stack}", usage.stack))
            }
            None if complete => Some("has no bound; record it".to_owned()),
            _ => None,
        }
    }

    /// Takes the usage as the new bound, unless it spills.
    pub(crate) fn record(&mut self, variant: &str, usage: &Usage) {
        let key = (usage.kernel.clone(), variant.to_owned());
        if usage.spill > 0 {
            self.0.remove(&key);
        } else {
            self.0.insert(key, (usage.registers, usage.stack));
        }
    }

    pub(crate) fn text(&self) -> String {
        let row = |((kernel, variant), (registers, stack)): (&(String, String), &(u32, u32))| {
            format!("{kernel}\t{variant}\t{registers}\t{stack}\n")
        };
        HEADER.chars().chain(self.0.iter().flat_map(|r| row(r).chars().collect::<Vec<_>>())).collect()
    }
}
