//! The paper's figures from the results of an experiment: SVG and PNG files, and a page that shows them all.

mod error;
mod figures;
mod html;
mod numbers;
mod png;

pub use error::FigureError;
pub use html::write;
pub use numbers::{Category, Summary, ecdf, quantile, speedups, summarise};
pub(crate) use png::write_beside;
