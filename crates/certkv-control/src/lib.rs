//! Decisions: coverage, promotion, exploration. Pure and deterministic.
