//! What the engine knows of one path: segments on their way out, segments that came in.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::handover::{Agreed, Priority};
use crate::ids::{PathId, StreamId};
use crate::rate::Rate;
use crate::rtt::{Lowest, Rtt};
use crate::scheduler::{CHUNK, PathSnapshot, SMALL_CHUNK, bytes_in, expected_rate};

/// A chunk should not take longer on the only path.
const LONE_CHUNK_TIME: Duration = Duration::from_millis(2);
/// News of a path that is older goes on other paths too.
const ALONG: Duration = Duration::from_millis(100);
/// Beyond the usual patience, for a peer that has to finish what it sends on a path, and to say that it has.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Where a path stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Our OPEN or JOIN is not answered yet.
    Opening,
    /// Carries data.
    Active,
    /// No progress for too long; carries nothing new, but may come back.
    Suspect,
    /// Carries nothing new, in either direction; ends when all that was sent on it has arrived.
    Retiring,
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
        /// It was sent again on another path, whose loss would repeat it.
        elsewhere: bool,
    },
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    Reset(StreamId),
    Stop(StreamId),
    PathLost(PathId),
    Retire(PathId),
    Addresses(u64),
    Address(u8),
    Priority(PathId),
    Handover,
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
    /// Bytes delivered on the path, and when that became known, as of the sending.
    delivered: u64,
    delivered_at: Instant,
    /// As much was in flight as the path was known to carry.
    full: bool,
}

impl Sent {
    fn is_bare(&self) -> bool {
        !self.eliciting && self.contents.is_empty()
    }
}

/// What the driver knows of a carrier, as far as it does (`TCP_INFO`, a QUIC path's statistics).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CarrierReport {
    /// Bytes taken and not put on the wire yet.
    pub unsent: u64,
    /// Bytes a second that the carrier delivered while it had enough to do.
    pub rate: Option<u64>,
    /// Packets lost of each thousand.
    pub loss: u16,
}

/// What an acknowledgement brought.
pub(crate) struct Acknowledged {
    pub(crate) segments: SmallVec<[Sent; 1]>,
    /// When the newest segment was sent that asked for an acknowledgement.
    pub(crate) newest: Option<Instant>,
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
    /// It was opened by OPEN, not by JOIN.
    pub(crate) by_open: bool,
    /// Not answered when a newer path was asked to carry the data instead.
    pub(crate) passed_over: bool,
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
    pub(crate) base_rtt: Lowest,
    pub(crate) rate: Rate,
    /// Bytes that were acknowledged of what asked for it, and when they last grew.
    delivered: u64,
    delivered_at: Instant,
    pub(crate) priority: Agreed<Priority>,
    /// The carrier takes more, as far as the driver said.
    pub(crate) room: bool,
    pub(crate) carrier: CarrierReport,
    /// When, counted in chunks over all paths, it last carried stream data.
    pub(crate) last_used: u64,
    /// CLOSE_ACK is to be said here too: nobody knows which path works, and no later word will tell.
    pub(crate) last_word: bool,
    /// Mode `redundant`: what other paths carried and this one has not.
    pub(crate) copies: VecDeque<Content>,
    /// The last time that an acknowledgement came, or that sending began anew.
    pub(crate) progress: Instant,
    pub(crate) heard: Instant,
    /// When a sign of life was last asked for.
    pub(crate) asked: Instant,
    /// Suspect although the peer is heard on it: it carries one way only, and nothing but an acknowledgement of what
    /// went the other way shows that it works again.
    pub(crate) one_way: bool,
    /// Stream data came, and no sign of life was asked for since: silence would be news.
    pub(crate) expects_more: bool,
    /// The peer retires the path: how many segments it has put on it in total.
    pub(crate) peer_end: Option<u64>,
    /// Once retiring: how long a silence may last.
    pub(crate) patience: Duration,
    /// Once retiring: everything has arrived, in both directions.
    pub(crate) drained: bool,
    /// Segments received.
    pub(crate) received: u64,
    /// Segments received, as last told to the peer.
    pub(crate) reported: u64,
    /// Segments received, as last told on another path than this one.
    pub(crate) told_along: u64,
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
            by_open: matches!(first, First::Open | First::Accept),
            passed_over: false,
            early_limit,
            bytes_sent: 0,
            bytes_received: 0,
            sent: VecDeque::new(),
            acked: 0,
            sent_count: 0,
            in_flight: 0,
            rtt: Rtt::new(rtt_hint),
            base_rtt: Lowest::new(rtt_hint, now),
            rate: Rate::new(now),
            delivered: 0,
            delivered_at: now,
            priority: Agreed::unsaid(Priority::Normal),
            room: true,
            carrier: CarrierReport::default(),
            last_used: 0,
            last_word: false,
            copies: VecDeque::new(),
            progress: now,
            heard: now,
            asked: now,
            one_way: false,
            expects_more: false,
            peer_end: None,
            patience: Duration::ZERO,
            drained: false,
            received: 0,
            reported: 0,
            told_along: 0,
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

    /// Live, and not about to end.
    pub(crate) fn stays(&self) -> bool {
        !matches!(self.state, PathState::Retiring | PathState::Lost)
    }

    /// Our count of what was received is final, and the peer may not know it.
    pub(crate) fn owes_final(&self) -> bool {
        (self.drained || !self.is_live()) && !self.told
    }

    /// Carries nothing new from now on. A silence longer than `patience` makes it lost.
    pub(crate) fn begin_retiring(&mut self, now: Instant, patience: Duration) {
        self.patience = patience;
        self.state = PathState::Retiring;
        self.progress = now;
        self.ping = false;
        self.last_word = false;
        self.copies.clear();
        if self.received > self.reported {
            self.ack_due = true;
            self.ack_deadline = None;
        }
    }

    /// Notes that nothing is missing any more on a path that retires. True the first time.
    pub(crate) fn drain(&mut self) -> bool {
        let whole = self.peer_end == Some(self.received) && self.in_flight == 0;
        let drained = self.state == PathState::Retiring && whole && !self.drained;
        self.drained |= drained;
        drained
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
        let full = eliciting && self.is_full();
        if eliciting {
            if self.in_flight == 0 {
                self.progress = now;
                self.delivered_at = now;
            }
            self.in_flight += size as u64;
        }
        self.bytes_sent += size as u64;
        self.sent_count += 1;
        let (delivered, delivered_at) = (self.delivered, self.delivered_at);
        let size = size as u32;
        let segment = Sent { contents, at: now, size, eliciting, run: 1, delivered, delivered_at, full };
        match self.sent.back_mut() {
            Some(last) if last.is_bare() && segment.is_bare() => last.run += 1,
            _ => self.sent.push_back(segment),
        }
    }

    fn expected_rate(&self) -> u64 {
        expected_rate(self.rate.get(), self.rate.is_growing(), self.base_rtt.get())
    }

    /// How large a chunk may be when there is no other path to choose. The reader gets nothing of it before all of it
    /// is there.
    pub(crate) fn chunk(&self) -> u64 {
        bytes_in(self.expected_rate(), LONE_CHUNK_TIME).clamp(SMALL_CHUNK, CHUNK)
    }

    /// As much is in flight as the path is known to carry: what it delivers now is all that it can.
    fn is_full(&self) -> bool {
        self.in_flight > bytes_in(self.expected_rate(), self.base_rtt.get())
    }

    /// Takes out what shall go again on another path while this one may still deliver it: what arrives here first
    /// counts, and need not go there any more.
    pub(crate) fn repeat_elsewhere(&mut self) -> Vec<Content> {
        let mut repeated = Vec::new();
        if self.reinjected == self.sent_count {
            return repeated;
        }
        self.reinjected = self.sent_count;
        let opening = self.state == PathState::Opening;
        for segment in &mut self.sent {
            segment.contents.retain(|content| match content {
                Content::Stream { elsewhere, .. } => {
                    if !std::mem::replace(elsewhere, true) {
                        let mut again = content.clone();
                        if let Content::Stream { elsewhere, .. } = &mut again {
                            *elsewhere = false;
                        }
                        repeated.push(again);
                    }
                    true
                }
                Content::Accept => true,
                // What belongs to the opening is of use on this path alone.
                Content::PathLost(_) | Content::Priority(_) if opening => true,
                _ => {
                    repeated.push(content.clone());
                    false
                }
            });
        }
        repeated
    }

    /// Takes out the segments below `count`, newly acknowledged. `None` if `count` was never sent.
    pub(crate) fn acknowledge(&mut self, count: u64) -> Option<Acknowledged> {
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
                self.delivered += u64::from(segment.size);
            }
            segments.push(segment);
        }
        let newest = segments.iter().rev().find(|s: &&Sent| s.eliciting).map(|s| s.at);
        Some(Acknowledged { segments, newest })
    }

    /// Learns from an acknowledgement that the peer held back for `delay`.
    pub(crate) fn measure(&mut self, now: Instant, acknowledged: &Acknowledged, delay: Duration) {
        let Some(newest) = acknowledged.segments.iter().rev().find(|s| s.eliciting) else {
            return;
        };
        let elapsed = now.saturating_duration_since(newest.at);
        self.rtt.sample(elapsed, delay);
        self.base_rtt.sample(now, elapsed, delay);
        let interval = now.saturating_duration_since(newest.delivered_at);
        let bytes = self.delivered - newest.delivered;
        self.rate.sample(now, bytes, interval, newest.full, self.base_rtt.get());
        self.delivered_at = now;
    }

    /// What was received may not be known to the peer if nothing comes back on this path.
    pub(crate) fn is_unheard(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.newest_eliciting);
        self.received > self.told_along && age > self.rtt.smoothed() + ALONG
    }

    pub(crate) fn snapshot(&self, id: PathId, now: Instant) -> PathSnapshot {
        let silent = || now.saturating_duration_since(self.progress);
        PathSnapshot {
            id,
            opening: self.state == PathState::Opening,
            suspect: self.state == PathState::Suspect,
            backup: self.priority.value == Priority::Backup,
            srtt: self.rtt.smoothed(),
            rttvar: self.rtt.variation(),
            base_rtt: self.base_rtt.get(),
            rate: self.rate.get().max(self.carrier.rate),
            growing: self.rate.is_growing(),
            in_flight: self.in_flight,
            unsent: self.carrier.unsent,
            room: self.room,
            silent: if self.in_flight > 0 { silent() } else { Duration::ZERO },
            loss: self.carrier.loss,
            last_used: self.last_used,
        }
    }

    /// When to stop waiting for what is missing on a path that retires.
    pub(crate) fn retire_deadline(&self) -> Option<Instant> {
        (self.state == PathState::Retiring).then(|| match self.in_flight {
            0 => self.progress.max(self.heard) + self.patience * 2 + LAST_WORDS,
            _ => self.progress + self.patience,
        })
    }

    pub(crate) fn suspect_deadline(&self, max_ack_delay: Duration) -> Option<Instant> {
        (self.state == PathState::Active && self.in_flight > 0)
            .then(|| self.progress + self.rtt.suspect_after(max_ack_delay))
    }
}
