//! Development aids: float64 oracle, golden-vector reader and replay, generators.
