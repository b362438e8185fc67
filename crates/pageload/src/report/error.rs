//! Why there is no figure.

use std::fmt::Display;
use std::path::Path;

/// A figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct FigureError {
    /// The file.
    pub file: String,
    /// Why.
    pub why: String,
}

impl FigureError {
    pub(crate) fn of(path: &Path) -> impl Fn(&dyn Display) -> Self + '_ {
        move |why| Self { file: path.display().to_string(), why: why.to_string() }
    }
}
