//! The command line of the GPU programs: words, values behind them, and where kernels come from.
use certkv::gpu::{Ahead, Compiler};

/// The words behind the program's name.
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn given() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    #[allow(dead_code, reason = "of one program and not of another")]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|word| word == name)
    }

    /// The word behind `name`.
    pub(crate) fn value(&self, name: &str) -> Option<&String> {
        self.0.iter().position(|word| word == name).and_then(|i| self.0.get(i + 1))
    }

    pub(crate) fn number(&self, name: &str, usual: usize) -> usize {
        self.value(name).and_then(|x| x.parse().ok()).unwrap_or(usual)
    }

    /// Kernels made ahead in the folder `--cubins`, kept in the folder `--cache`.
    pub(crate) fn compiler(&self) -> Compiler {
        let compiler = Compiler::new();
        let compiler = match self.value("--cubins") {
            Some(folder) => compiler.with_ahead(Ahead::Folder(folder.into())),
            None => compiler,
        };
        match self.value("--cache") {
            Some(folder) => compiler.with_cache(folder),
            None => compiler,
        }
    }
}
