//! Tests of the store over memory and files. Back ends with a server or a client of their own have theirs in `tests/`.
mod client;
mod corruption;
mod crash;
mod faults;
mod file;
mod front;
mod seal;
mod wrappers;
