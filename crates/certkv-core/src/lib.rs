//! Geometry, formats, record layouts, ids, budgets and the sync facade of certkv.
