//! `certkv demo`.
use super::{args::Common, finish::finish, help};
use crate::{
    assets,
    demo::{plan, plan::Size},
    error::CliError,
    eval::{self, Models},
    model::{Config, Llama, twin::Twin, weights::Weights},
    output::print,
    report::{self, data::Setting},
};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// Runs the demonstration.
///
/// # Errors
/// [`CliError`] for bad options, damaged assets, or a certificate that did not hold.
pub fn run(mut parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    use lexopt::prelude::*;
    let mut common = Common::default();
    let mut size = Size::FULL;
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return print(out, help::DEMO),
            Long("quick") => size = Size::QUICK,
            Long(name) => {
                let name = name.to_owned();
                if !common.take(&name, &mut parser)? {
                    return Err(CliError::Usage(format!("demo: there is no option --{name}")));
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let threads = common.start_threads();
    let mut engine = common.engine(threads)?;
    let seed = common.seed_or_default();
    let assets = assets::locate(common.assets.as_deref())?;
    let plan = plan(&assets, size, seed)?;
    let (base, twin) = load_pair(&assets.join("ref-d128"))?;
    let models = Models { base: &base, twin: Some(&twin) };
    let outcome = eval::run(&plan, models, engine.as_mut(), &common.progress())?;
    let setting = Setting { model: "ref-d128".into(), seed, threads, ..Setting::default() };
    let data = report::build(&plan, &outcome, base.config(), setting);
    let page = common.report.clone().unwrap_or_else(|| PathBuf::from("report.html"));
    finish(&data, &common, Some(page.as_path()).filter(|p| *p != Path::new("none")), out)
}

/// A model and its outlier twin.
///
/// # Errors
/// [`CliError::Input`] naming what is wrong with the folder.
pub fn load_pair(folder: &Path) -> Result<(Llama, Llama), CliError> {
    let config = Config::read(folder)?;
    let mut weights = Weights::read(folder)?;
    let base = Llama::new(config.clone(), &weights)?;
    Twin::default().apply(&config, &mut weights)?;
    Ok((base, Llama::new(config, &weights)?))
}
