//! `--model paper`: the page-load simulator of Socket Intents §VI-C/D, reproduced exactly.
//!
//! The model, oddities included, is specified in `docs/pageload-model.md`; numbers in comments are its
//! sections. Everything that a prediction needs is plain data in a few vectors, so that "what would happen
//! if" costs one `memcpy` of a few kilobytes, and nothing is allocated while a page loads.
//!
//! Bytes and rates are whole numbers kept in binary64, where they are exact (all are far below 2^53).

mod events;
mod heap;
mod lanes;
mod mptcp;
mod node;
mod predict;
mod run;
mod share;
mod tcp;
mod world;

pub use run::Simulator;

/// Drop the fraction (2.3). All operands are non-negative and below 2^51, where adding and taking away 2^52
/// rounds to whole numbers; unlike a conversion to an integer, this can be done to several numbers at once.
#[inline(always)]
fn whole(x: f64) -> f64 {
    const SHIFT: f64 = (1u64 << 52) as f64;
    let nearest = (x + SHIFT) - SHIFT;
    nearest - if nearest > x { 1.0 } else { 0.0 }
}
