//! Key and value codecs: encoders, plain scalar references, error summaries and bytes.
