//! Tests of the whole core.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod checkpoints;
mod compacted_histories;
mod histories;
mod hostile;
mod long_logs;
mod rules;
mod stage;
