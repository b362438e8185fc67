//! What is known of one page load.

use super::browser::Browser;
use super::system::System;

/// One page load.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) browser: Browser,
    pub(super) scenario: &'static str,
    pub(super) page: String,
    pub(super) system: System,
    pub(super) round: u32,
    /// Of the page.
    pub(super) bytes: u64,
    pub(super) is_recorded: bool,
    pub(super) ms: f64,
    /// By the simulator, where it can say something.
    pub(super) predicted: Option<f64>,
    /// What came over the second link, as a share of the page's bytes.
    pub(super) second: f64,
}
