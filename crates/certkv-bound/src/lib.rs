//! The inequalities: logit-error bounds, certificates, checks and the ladder. Pure.
