//! The page: one file, no network, readable in light and dark.
use super::{
    data::ReportData,
    figure::{coverage, errors, heat, hero, memory, numbers, quality, sweep as why, timeline, transcripts, words},
    svg::escape,
    sweep,
};

const STYLE: &str = include_str!("style.css");
const TOOLTIP: &str = include_str!("tooltip.js");

/// A titled part of the page; nothing when it has no figure.
fn section(title: &str, text: &str, figure: &str) -> String {
    if figure.is_empty() {
        return String::new();
    }
    format!("<section><h2>{}</h2><p>{}</p>{figure}</section>\n", escape(title), escape(text))
}

/// A figure that needs half the page's width.
fn half(figure: String) -> String {
    if figure.is_empty() { figure } else { format!("<div class=\"half\">{figure}</div>") }
}

fn colophon(data: &ReportData) -> String {
    let s = &data.setting;
    format!(
        "{}: {} layers, {} query and {} key/value heads of {} channels, {} bytes a token in half precision. {} prompts for the \
         model, {} for its twin, seed {}, {} threads, {:.0} s. certkv {}. What is certified is the distance of each attention \
         output from exact attention over the stored 16-bit originals, per head and step; the quality of the model's text is \
         measured here, not certified.",
        s.model,
        s.layers,
        s.heads,
        s.kv_heads,
        s.head_dim,
        s.dense_bytes_per_token,
        s.prompts[0],
        s.prompts[1],
        s.seed,
        s.threads,
        s.seconds,
        s.version
    )
}

/// The whole page.
pub fn page(data: &ReportData) -> String {
    let opening = hero::draw(data);
    let opening = if opening.is_empty() {
        format!("<header class=\"hero\"><h1>{}</h1></header>", escape(&data.setting.model))
    } else {
        opening
    };
    let checked: usize = data.modes.iter().map(|m| m.tightness.count).sum();
    let violations: u64 = data.modes.iter().map(|m| m.violations).sum();
    let verdict = match (checked, violations) {
        (0, _) => String::new(),
        (n, 0) => format!(" None of the {n} outputs that were recomputed in double precision was beyond its bound."),
        (n, v) => format!(" {v} of {n} recomputed outputs were beyond their bound: the certificate is broken."),
    };
    let sections = [
        section(
            "What the model said",
            "Prompts that tell the caches apart. Each character is the model's first choice after the right ones before it; marked ones are wrong.",
            &transcripts::draw(data),
        ),
        section(
            "How far each output was from the truth",
            &format!(
                "Distance of attention outputs from exact attention over the uncompressed cache, as a share of the output's norm, \
                 sorted. The certificate does not know the truth and still stays between it and the tolerance.{verdict}"
            ),
            &errors::draw(data),
        ),
        section(
            "Quality",
            "Exact answers in percent, difference to dense in points below. A star marks p < 0.05 by the exact McNemar test on the same prompts.",
            &quality::draw(data),
        ),
        section(
            "Bytes of a token",
            "Everything in device memory counts: codes, scales, summaries, padding, open tails, promoted blocks and tables. The line is dense half precision.",
            &memory::draw(data),
        ),
        section(
            "Where the bound is spent",
            "Median certificate by layer and head, as a share of the output's norm. Full colour is the tolerance.",
            &heat::draw(data),
        ),
        section(
            "Rungs of the ladder",
            "Share of head-steps that needed more than the codes. What is not drawn was accepted as it was.",
            &timeline::draw(data),
        ),
        section(
            "Few blocks hold the mass",
            "Attention mass of the heaviest blocks under dense attention, median and the band of eight in ten head-steps.",
            &half(coverage::draw(data)),
        ),
        // A damaged recording costs the section, not the page; that it is whole is tested.
        why::draw(data, sweep::file::recorded().ok().as_ref()),
        section(
            "In numbers",
            "Median, and below it the 99th percentile. Errors are shares of the output's norm.",
            &numbers::draw(data),
        ),
    ];
    shell(
        &format!("certkv: {}, {}", data.setting.model, words::length(data.setting.longest)),
        &format!("{opening}\n{}", sections.concat()),
        &colophon(data),
    )
}

/// A page around `body`, which is markup; `title` and `footer` are text.
pub(crate) fn shell(title: &str, body: &str, footer: &str) -> String {
    let footer = if footer.is_empty() { String::new() } else { format!("<footer>{}</footer>", escape(footer)) };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{STYLE}</style></head>\n<body><main>{body}{footer}</main>\
         <div id=\"tip\" hidden></div><script>{TOOLTIP}</script></body></html>\n",
        escape(title)
    )
}
