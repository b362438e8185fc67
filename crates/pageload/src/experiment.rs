//! Factorial experiments: every page under every policy over every combination of path settings.

mod design;
mod results;
mod run;

pub use design::{Design, DesignError, LabelledPolicy, Levels, Purpose, Setting};
pub use results::{Results, ResultsError, Row};
pub use run::{Progress, RunError, run};
