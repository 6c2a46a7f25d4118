//! C ABI of certkv.
