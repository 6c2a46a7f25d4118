//! A few prompts with what each cache made the model say; wrong bytes are marked.
use super::words;
use crate::report::{data::ReportData, svg::escape};

/// Prompts shown.
const SHOWN: usize = 4;

/// `answer` with the bytes that differ from `truth` marked.
fn marked(answer: &str, truth: &str) -> String {
    let truth: Vec<char> = truth.chars().collect();
    let mut html = String::new();
    let mut open = false;
    for (i, c) in answer.chars().enumerate() {
        let wrong = truth.get(i) != Some(&c);
        if wrong != open {
            html += if wrong { "<mark>" } else { "</mark>" };
            open = wrong;
        }
        html += &escape(&if c == '\n' { '⏎' } else { c }.to_string());
    }
    if open {
        html += "</mark>";
    }
    html
}

/// The prompts on which the caches disagree; nothing when there are none.
pub fn draw(data: &ReportData) -> String {
    let disagree = data.transcripts.iter().filter(|t| t.answers.iter().any(|(_, a)| *a != t.truth));
    let mut cards = String::new();
    // One card per task first: four times the same kind of failure says less.
    let mut seen: Vec<&str> = Vec::new();
    let mut chosen: Vec<_> = Vec::new();
    let all: Vec<_> = disagree.collect();
    for t in &all {
        if !seen.contains(&t.task.as_str()) {
            seen.push(&t.task);
            chosen.push(*t);
        }
    }
    chosen.extend(all.iter().filter(|t| !chosen.iter().any(|c| std::ptr::eq(*c, **t))).copied().collect::<Vec<_>>());
    for t in chosen.into_iter().take(SHOWN) {
        let mut answers = String::new();
        for (mode, answer) in &t.answers {
            let Some(row) = data.modes.get(*mode) else { continue };
            answers += &format!(
                "<div class=\"who {}-ink\">{}</div><code>{}</code>",
                words::class(row.kind),
                escape(&words::short(row)),
                marked(answer, &t.truth)
            );
        }
        cards += &format!(
            "<article><p class=\"label\">{}, {} tokens</p><p class=\"question\">{}</p><div class=\"answers\">{answers}</div></article>",
            escape(&words::task(&t.task)),
            words::length(t.length),
            escape(&t.question)
        );
    }
    if cards.is_empty() { cards } else { format!("<div class=\"cards\">{cards}</div>") }
}

#[cfg(test)]
mod tests {
    use super::marked;

    #[test]
    fn only_wrong_characters_are_marked() {
        assert_eq!(marked("12345", "12945"), "12<mark>3</mark>45");
        assert_eq!(marked("1<", "12"), "1<mark>&lt;</mark>");
        assert_eq!(marked("1\n", "1"), "1<mark>⏎</mark>");
    }
}
