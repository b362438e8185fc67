//! `--model paper`: the page-load simulator of Socket Intents §VI-C/D, reproduced exactly.
//!
//! The model, oddities included, is specified in `docs/pageload-model.md`; numbers in comments are its sections.
//! Everything that a prediction needs is plain data in a few vectors, so that "what would happen if" costs one `memcpy`
//! of a few kilobytes, and nothing is allocated while a page loads.
//!
//! Bytes and rates are whole numbers kept in binary64, where they are exact (all are far below 2^53).

mod heap;
mod mptcp;
mod node;
mod predict;
mod run;
mod share;
mod tcp;
mod world;

pub use run::Simulator;

/// Drop the fraction (2.3). All operands are non-negative and far below 2^63.
#[inline(always)]
fn whole(x: f64) -> f64 {
    (x as i64) as f64
}
