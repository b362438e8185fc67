//! What sessions are told to do.

use super::Claim;
use crate::Place;
use crate::sessions::ahead::Ahead;
use crate::sessions::lasting::HaltedSession;
use crate::sessions::message::{How, Takers};
use tokio::sync::mpsc;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// What a session is told to do.
pub(in crate::sessions) enum Order {
    /// To go to another device.
    Take(Box<Take>),
    /// To leave this device, which may have it no more.
    Recall(EndpointId),
    /// To use a second stream to the device that has it, or is about to, after so many moves.
    Control(Stream, u32),
    /// To halt, and to be given there.
    Halt(mpsc::Sender<HaltedSession>),
}

/// A device that takes a session.
pub(in crate::sessions) struct Take {
    pub(in crate::sessions) stream: Stream,
    pub(in crate::sessions) claim: Claim,
    pub(in crate::sessions) rule: Takers,
    pub(in crate::sessions) how: How,
    /// What came to it before the answer.
    pub(in crate::sessions) ahead: Option<Ahead>,
    /// `None` if the device has no place left, and the session is its own: then it has that of the session.
    pub(in crate::sessions) place: Option<Place<EndpointId>>,
}
