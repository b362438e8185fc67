//! What segments carry, as far as it has to be sent again when it is lost.

use std::ops::Range;

use crate::ids::{PathId, StreamId};

/// What a segment carried, to be sent again if the segment is lost with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Stream {
        id: StreamId,
        range: Range<u64>,
        fin: bool,
        /// It was sent again on another path, whose loss would repeat it.
        elsewhere: bool,
        /// It was under way on another path already when it was sent.
        again: bool,
    },
    /// A part of a message.
    Message {
        id: u64,
        range: Range<u32>,
        reliable: bool,
        /// As for streams.
        elsewhere: bool,
    },
    /// Whole messages, whose ids follow each other.
    Messages {
        ids: Range<u64>,
        /// Of all of them.
        reliable: bool,
        /// As for streams.
        elsewhere: bool,
    },
    /// A message will not come.
    Skip(u64),
    MaxMessages,
    /// What came on a path in datagrams.
    Datagrams(PathId),
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    Reset(StreamId),
    Stop(StreamId),
    PathLost(PathId),
    Retire(PathId),
    Addresses,
    Candidates,
    Observed,
    Address(u8),
    Priority(PathId),
    Handover,
    Close,
    CloseAck,
    Suspend,
    /// This side's end is handed over.
    Assign,
    /// The claim of a server that was read back, or its answer to TAKE_OVER: by this word of the server's
    /// [tenure](crate::session::tenure::Tenure::word) its secret is the present one.
    Word(u64),
    /// The answer to OPEN: its acknowledgement shows that the client knows the secret.
    Accept,
}

impl Content {
    /// A whole message.
    pub(crate) fn message(id: u64, reliable: bool) -> Self {
        Self::Messages { ids: id..id + 1, reliable, elsewhere: false }
    }

    /// Takes a whole message in beside others, if it is the one that follows them. False if it is not.
    #[must_use]
    #[inline]
    pub(crate) fn is_followed_by(&mut self, id: u64, reliable: bool) -> bool {
        match self {
            Self::Messages { ids, reliable: of_all, elsewhere: false } => {
                let follows = ids.end == id && *of_all == reliable;
                ids.end += u64::from(follows);
                follows
            }
            _ => false,
        }
    }

    /// It is data of the application's.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self, Self::Stream { .. } | Self::Message { .. } | Self::Messages { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_follow_each_other_are_one_run_and_others_are_none() {
        let mut run = Content::message(7, true);
        assert!(run.is_followed_by(8, true) && run.is_followed_by(9, true));
        assert!(!run.is_followed_by(9, true), "it is in there");
        assert!(!run.is_followed_by(11, true), "one is missing");
        assert!(!run.is_followed_by(10, false), "it is never sent again");
        assert_eq!(run, Content::Messages { ids: 7..10, reliable: true, elsewhere: false });
        let mut repeated = Content::Messages { ids: 7..10, reliable: true, elsewhere: true };
        assert!(!repeated.is_followed_by(10, true), "the others were sent elsewhere too");
        assert!(!Content::Skip(7).is_followed_by(8, true));
    }
}
