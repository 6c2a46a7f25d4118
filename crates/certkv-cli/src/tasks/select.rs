//! Which prompts of a file are run.
use super::{error::TaskError, prompt::Prompt};
use certkv_core::hash::hash64;
use std::collections::BTreeMap;

/// A choice of prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Tasks to keep; empty for all.
    pub tasks: Vec<String>,
    /// Most prompts of one task.
    pub limit: Option<usize>,
    /// Nominal length to keep.
    pub length: Option<usize>,
    /// Seed of a random choice within `limit`; without it the first of the file are taken.
    pub seed: Option<u64>,
}

impl Selection {
    /// The chosen prompts, in the order of the file.
    ///
    /// # Errors
    /// [`TaskError::UnknownTask`], or [`TaskError::NothingSelected`].
    pub fn apply(&self, prompts: Vec<Prompt>) -> Result<Vec<Prompt>, TaskError> {
        for task in &self.tasks {
            if !prompts.iter().any(|p| p.task == *task) {
                let mut known: Vec<String> = prompts.iter().map(|p| p.task.clone()).collect();
                known.sort();
                known.dedup();
                return Err(TaskError::UnknownTask { task: task.clone(), known });
            }
        }
        let mut by_task: BTreeMap<String, Vec<(u64, usize)>> = BTreeMap::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let wanted = self.tasks.is_empty() || self.tasks.contains(&prompt.task);
            if wanted && self.length.is_none_or(|n| n == prompt.length) {
                let rank = self.seed.map_or(i as u64, |seed| hash64(&[seed, i as u64]));
                by_task.entry(prompt.task.clone()).or_default().push((rank, i));
            }
        }
        let mut keep = vec![false; prompts.len()];
        for ranks in by_task.values_mut() {
            ranks.sort_unstable();
            for (_, i) in ranks.iter().take(self.limit.unwrap_or(usize::MAX)) {
                keep[*i] = true;
            }
        }
        let chosen: Vec<Prompt> = prompts.into_iter().zip(keep).filter_map(|(p, keep)| keep.then_some(p)).collect();
        if chosen.is_empty() { Err(TaskError::NothingSelected) } else { Ok(chosen) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<Prompt> {
        (0..40)
            .map(|i| Prompt {
                id: i.to_string(),
                task: ["a", "b"][i % 2].into(),
                length: 64,
                prompt: "x".into(),
                answer: "y".into(),
            })
            .collect()
    }

    #[test]
    fn limits_are_per_task_and_seeds_matter() {
        let pick = |seed| {
            let chosen = Selection { limit: Some(3), seed, ..Selection::default() }.apply(file()).unwrap();
            chosen.into_iter().map(|p| p.id).collect::<Vec<_>>()
        };
        assert_eq!(pick(None), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(pick(Some(1)).len(), 6);
        assert_eq!(pick(Some(1)), pick(Some(1)));
        assert_ne!(pick(Some(1)), pick(Some(2)));
    }

    #[test]
    fn unknown_tasks_and_empty_choices_are_refused() {
        let selection = Selection { tasks: vec!["c".into()], ..Selection::default() };
        assert!(matches!(selection.apply(file()), Err(TaskError::UnknownTask { .. })));
        let selection = Selection { length: Some(65), ..Selection::default() };
        assert!(matches!(selection.apply(file()), Err(TaskError::NothingSelected)));
    }
}
