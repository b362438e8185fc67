//! What access policies are worth: a discrete-event simulator of page loads over several networks.
//!
//! A recorded page ([`har`], [`pages`]) becomes transfers with dependencies ([`page`]), which are loaded over
//! networks ([`scenario`], [`simulator`]) by a policy of `whimbrel-access`, in the model of the paper
//! ([`paper`]) or a more realistic one ([`modern`]). [`experiment`] does that thousands of times, [`report`]
//! and [`waterfall`] draw what came out, and [`cli`] is the command line of the program `whimbrel-pageload`.

pub mod bench;
pub mod cli;
pub mod experiment;
pub mod har;
pub mod modern;
pub mod page;
pub mod pages;
pub mod paper;
pub mod report;
pub mod scenario;
pub mod simulator;
pub mod waterfall;
