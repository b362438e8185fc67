//! What access policies are worth: a discrete-event simulator of page loads over several networks.

pub mod har;
pub mod modern;
pub mod page;
pub mod paper;
pub mod scenario;
