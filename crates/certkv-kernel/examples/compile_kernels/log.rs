//! What the assembler says of each kernel.

/// Resources of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// The kernel.
    pub(crate) kernel: String,
    /// Registers of a thread.
    pub(crate) registers: u32,
    /// Bytes of local memory of a thread: spilled registers and arrays indexed at run time.
    pub(crate) stack: u32,
    /// Bytes of the instructions that store or load spilled registers.
    pub(crate) spill: u32,
    /// Bytes of static shared memory.
    pub(crate) shared: usize,
}

/// Reads a log of `-v`: for each kernel `Compiling entry function 'NAME'`, a line of its stack and spills, and a line of
/// its registers. Functions that are not inlined have lines of their own, before the kernel's registers.
pub(crate) fn usages(log: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Usage { kernel, ..Usage::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            last.stack += before(line, " bytes stack frame");
            last.spill += before(line, " bytes spill stores") + before(line, " bytes spill loads");
        }
        if line.contains("Used ") && line.contains(" registers") {
            last.registers = before(line, " registers");
            last.shared = before(line, " bytes smem") as usize;
        }
    }
    found
}

/// The number in front of `word`; 0 if there is none.
fn before(line: &str, word: &str) -> u32 {
    let number = line.split_once(word).and_then(|(head, _)| head.rsplit([' ', ',']).next()?.parse().ok());
    number.unwrap_or(0)
}
