//! One prompt.
use serde::{Deserialize, Serialize};

/// A prompt and the bytes that must follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Unique name.
    pub id: String,
    /// Kind of question, for example `niah_single`.
    pub task: String,
    /// Nominal length in tokens; BOS, prompt and answer together never pass it.
    pub length: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// Text that must follow.
    pub answer: String,
}

impl Prompt {
    /// Tokens of BOS, prompt and answer.
    pub fn tokens(&self) -> usize {
        1 + self.prompt.len() + self.answer.len()
    }

    /// What makes the prompt unusable, if anything.
    pub fn fault(&self) -> Option<String> {
        if self.id.is_empty() || self.task.is_empty() {
            return Some("`id` or `task` is empty".into());
        }
        if self.prompt.is_empty() {
            return Some("`prompt` is empty".into());
        }
        if self.answer.is_empty() {
            return Some("`answer` is empty".into());
        }
        if self.tokens() > self.length {
            return Some(format!("{} tokens pass the `length` of {}", self.tokens(), self.length));
        }
        None
    }
}
