//! Ordinary servers through `whimbrel gateway serve`, and over two networks by `whimbrel proxy http`.

mod curl;
pub(crate) mod download;
pub(crate) mod moves;
mod programs;
pub(crate) mod sessions;
mod through;
