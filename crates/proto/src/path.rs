//! What the engine knows of one path: segments on their way out, segments that came in.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::ids::{PathId, StreamId};
use crate::rtt::Rtt;

/// Where a path stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Our OPEN or JOIN is not answered yet.
    Opening,
    /// Carries data.
    Active,
    /// No progress for too long; carries nothing new, but may come back.
    Suspect,
    /// Given up; kept until both sides know what arrived on it.
    Lost,
}

/// What a segment carried, to be sent again if the segment is lost with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Stream {
        id: StreamId,
        range: Range<u64>,
        fin: bool,
    },
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    Reset(StreamId),
    Stop(StreamId),
    PathLost(PathId),
    Addresses(u64),
    Close,
    CloseAck,
    /// The answer to OPEN: its acknowledgement shows that the client knows the secret.
    Accept,
}

/// One segment on its way.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) contents: SmallVec<[Content; 1]>,
    pub(crate) at: Instant,
    pub(crate) size: u32,
    pub(crate) eliciting: bool,
    /// How many segments this stands for. A run of segments that carried nothing but
    /// acknowledgements is one entry, because nobody need acknowledge them.
    pub(crate) run: u64,
}

impl Sent {
    fn is_bare(&self) -> bool {
        !self.eliciting && self.contents.is_empty()
    }
}

/// The frame that a path starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Open,
    Accept,
    Join,
    Joined,
    Done,
}

#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) state: PathState,
    pub(crate) first: First,
    /// What may be sent before the peer answered (bytes).
    pub(crate) early_limit: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Unacknowledged segments, oldest first; the oldest is number `acked`.
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) acked: u64,
    /// Segments sent, acknowledged or not.
    pub(crate) sent_count: u64,
    pub(crate) in_flight: u64,
    pub(crate) rtt: Rtt,
    /// The last time that an acknowledgement came, or that sending began anew.
    pub(crate) progress: Instant,
    pub(crate) heard: Instant,
    /// Stream data came, and no sign of life was asked for since: silence would be news.
    pub(crate) expects_more: bool,
    /// Segments received.
    pub(crate) received: u64,
    /// Segments received, as last told to the peer.
    pub(crate) reported: u64,
    /// Bytes received in segments that ask for an acknowledgement, since the last one.
    pub(crate) unreported_bytes: u64,
    pub(crate) ack_deadline: Option<Instant>,
    /// An acknowledgement should go with the next chance to send.
    pub(crate) ack_due: bool,
    pub(crate) newest_eliciting: Instant,
    pub(crate) ping: bool,
    /// Once lost: the contents were given back to their streams.
    pub(crate) requeued: bool,
    /// Up to this segment, the contents were sent again elsewhere while the path was suspect.
    pub(crate) reinjected: u64,
    /// Once lost: the peer knows our final count.
    pub(crate) told: bool,
    /// Once lost: we know the peer's final count.
    pub(crate) heard_final: bool,
}

impl Path {
    pub(crate) fn new(first: First, now: Instant, rtt_hint: Option<Duration>, early_limit: u64) -> Self {
        let state = match first {
            First::Open | First::Join => PathState::Opening,
            _ => PathState::Active,
        };
        Self {
            state,
            first,
            early_limit,
            bytes_sent: 0,
            bytes_received: 0,
            sent: VecDeque::new(),
            acked: 0,
            sent_count: 0,
            in_flight: 0,
            rtt: Rtt::new(rtt_hint),
            progress: now,
            heard: now,
            expects_more: false,
            received: 0,
            reported: 0,
            unreported_bytes: 0,
            ack_deadline: None,
            ack_due: false,
            newest_eliciting: now,
            ping: false,
            requeued: false,
            reinjected: 0,
            told: false,
            heard_final: false,
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state != PathState::Lost
    }

    /// Both sides know everything about this lost path.
    pub(crate) fn is_settled(&self) -> bool {
        self.state == PathState::Lost && self.told && self.heard_final
    }

    pub(crate) fn note_sent(
        &mut self,
        now: Instant,
        size: usize,
        eliciting: bool,
        contents: SmallVec<[Content; 1]>,
    ) {
        if eliciting {
            if self.in_flight == 0 {
                self.progress = now;
            }
            self.in_flight += size as u64;
        }
        self.bytes_sent += size as u64;
        self.sent_count += 1;
        let segment = Sent { contents, at: now, size: size as u32, eliciting, run: 1 };
        match self.sent.back_mut() {
            Some(last) if last.is_bare() && segment.is_bare() => last.run += 1,
            _ => self.sent.push_back(segment),
        }
    }

    /// Takes out the segments below `count`, newly acknowledged, with the send time of the newest
    /// that asked for an acknowledgement. `None` if `count` was never sent.
    pub(crate) fn acknowledge(&mut self, count: u64) -> Option<(SmallVec<[Sent; 1]>, Option<Instant>)> {
        if count > self.sent_count {
            return None;
        }
        let mut segments = SmallVec::new();
        while self.acked < count
            && let Some(mut segment) = self.sent.pop_front()
        {
            if self.acked + segment.run > count {
                segment.run -= count - self.acked;
                self.acked = count;
                self.sent.push_front(segment);
                break;
            }
            self.acked += segment.run;
            // Nothing is in flight on a path whose contents were given back.
            if segment.eliciting && !self.requeued {
                self.in_flight -= u64::from(segment.size);
            }
            segments.push(segment);
        }
        let newest = segments.iter().rev().find(|s: &&Sent| s.eliciting).map(|s| s.at);
        Some((segments, newest))
    }

    pub(crate) fn suspect_deadline(&self, max_ack_delay: Duration) -> Option<Instant> {
        (self.state == PathState::Active && self.in_flight > 0)
            .then(|| self.progress + self.rtt.suspect_after(max_ack_delay))
    }
}
