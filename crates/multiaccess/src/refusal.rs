//! Why a question is not answered.

use std::fmt::Display;

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// In words.
    pub(crate) why: String,
    /// Whether the same question may be answered in a moment: nothing is wrong with it.
    pub(crate) is_busy: bool,
}

impl Refusal {
    /// The question makes no sense.
    pub(crate) fn wrong(why: impl Display) -> Self {
        Self { why: why.to_string(), is_busy: false }
    }

    /// Too much is under way.
    pub(crate) fn busy(why: impl Display) -> Self {
        Self { why: why.to_string(), is_busy: true }
    }
}
