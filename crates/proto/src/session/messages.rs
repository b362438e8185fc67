//! The messages of a connection, both ways, and whose turn it is among them and the streams.

use std::time::Duration;

use super::Session;
use crate::content::Content;
use crate::draft::{Draft, MIN_PIECE, SMALL_FRAME};
use crate::error::{DecodeError, ProtocolError};
use crate::event::Events;
use crate::frame::{Frame, Piece};
use crate::message::MessageStats;
use crate::message::receiver::Receiver;
use crate::message::sender::{Chance, Ran, Sender, Together};
use crate::message::turns::{Ageing, LEVELS, Levels};
use crate::pacing::Pacing;
use crate::path::Leaver;
use crate::varint::Reader;

/// Room that frames about messages leave for others in one segment.
const CONTROL_ROOM: usize = 8 * 1024;

/// What is sent and received in messages.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

impl Messages {
    /// The peer is told that it may have so many bytes under way or unread; 0: no messages are taken.
    pub(crate) fn new(window: u64) -> Self {
        Self { sender: Sender::new(), receiver: Receiver::new(window) }
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.sender.write_down(out);
        self.receiver.write_down(out);
    }

    /// The first flows of either side are the journals', from now on.
    pub(crate) fn keep_journals(&mut self) {
        self.sender.keep_journals();
        self.receiver.keep_journals();
    }

    /// `window` is what the peer was told when the connection began; `journals`: both sides keep them.
    pub(crate) fn read_back(
        reader: &mut Reader<'_>,
        window: u64,
        journals: bool,
        events: &mut Events,
    ) -> Result<Self, DecodeError> {
        let sender = Sender::read_back(reader, events)?;
        Ok(Self { sender, receiver: Receiver::read_back(reader, window, journals, events)? })
    }

    /// Takes a message, or a piece of one.
    #[inline]
    pub(crate) fn take_piece(&mut self, piece: Piece<'_>, events: &mut Events) -> Result<(), ProtocolError> {
        let Piece { header, size, offset, data } = piece;
        self.receiver.piece(header, size, offset, data, events)
    }

    /// Takes what the peer says in a frame about messages.
    pub(crate) fn take(&mut self, frame: &Frame<'_>, events: &mut Events) -> Result<(), ProtocolError> {
        match *frame {
            Frame::Message { header, size, offset, data } => {
                self.take_piece(Piece { header, size, offset, data }, events)
            }
            Frame::Skip(skip) => self.receiver.skip(skip, events),
            Frame::MaxMessages(limit) => {
                self.sender.allow(limit);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Something has to be told about messages, besides their content.
    pub(crate) fn have_control(&self) -> bool {
        self.sender.has_skips() || self.receiver.has_credit_to_tell()
    }

    /// Marks what a lost segment carried.
    pub(crate) fn mark(&mut self, content: &Content) {
        match content {
            Content::Skip(id) => self.sender.skip_came_back(*id),
            Content::MaxMessages => self.receiver.mark_credit(),
            _ => {}
        }
    }

    /// Puts in what is to be told.
    pub(crate) fn put_control(&mut self, draft: &mut Draft<'_>) {
        if draft.room() >= SMALL_FRAME
            && let Some(limit) = self.receiver.take_credit_to_tell()
        {
            draft.put(&Frame::MaxMessages(limit), Some(Content::MaxMessages));
        }
        self.sender.put_skips(draft, |d| d.len() < CONTROL_ROOM);
    }

    /// Bytes of messages that are kept.
    pub(crate) fn buffered(&self) -> u64 {
        self.sender.held() + self.receiver.held()
    }

    /// Messages that are kept, on their way out or in.
    pub(crate) fn len(&self) -> usize {
        self.sender.len() + self.receiver.len()
    }

    pub(crate) fn stats(&self) -> MessageStats {
        let mut stats = self.sender.stats();
        self.receiver.add_to(&mut stats);
        stats
    }
}

/// What new data may go into a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    /// So many bytes.
    pub(crate) chunk: u64,
    /// Of these levels of urgency.
    pub(crate) levels: Levels,
    /// The time since the connection began.
    pub(crate) now: Duration,
    /// What messages may be told of the path.
    pub(crate) chance: Chance,
}

/// Whose turn it is among streams and messages: the most urgent, with ageing; among equals whoever had less.
#[derive(Debug, Default)]
pub(crate) struct Mixing {
    ageing: Ageing,
    /// Bytes that streams had more than messages, for each level, while both waited.
    lead: [i64; LEVELS],
    /// How urgent the most urgent stream was when one waited last.
    streamed: Option<u8>,
}

impl Session {
    /// Levels of urgency at which streams or messages wait.
    pub(crate) fn levels(&self) -> Levels {
        self.streams.levels() | self.messages.sender.levels()
    }

    /// How urgent the most urgent stream is that waits or, between two writes, was when one waited last.
    pub(crate) fn most_urgent_stream(&mut self) -> Option<u8> {
        let waiting = self.streams.levels();
        if waiting != 0 {
            self.mixing.streamed = Some(waiting.trailing_zeros() as u8);
        }
        self.mixing.streamed
    }

    /// Bytes of these levels that wait to be sent on a path, and what may be expected to follow them.
    pub(crate) fn waiting(&self, levels: Levels, chance: Chance) -> u64 {
        let messages = self.messages.sender.waiting(levels, chance);
        self.streams.waiting(levels).saturating_add(messages)
    }

    /// Puts in the message that is to go next and alone, if that is not the turn of something else; `beside`:
    /// streams have their turns too. Returns what leaves.
    pub(crate) fn put_datagram(
        &mut self,
        portion: Portion,
        beside: bool,
        pacing: &mut Pacing,
        out: &mut Vec<u8>,
        events: &mut Events,
    ) -> Option<Leaver> {
        let Portion { levels: open, now, chance, .. } = portion;
        // What waits for credit holds nothing up.
        let streams = if beside && self.streams.waiting(open) > 0 { self.streams.levels() & open } else { 0 };
        let messages = self.messages.sender.levels() & open;
        let level = self.mixing.ageing.choose(streams | messages)?;
        let (bit, before) = (1 << level, out.len());
        let lead = &mut self.mixing.lead[usize::from(level)];
        if streams & messages & bit == 0 {
            *lead = 0;
        }
        // A carrier sends its datagrams first: they must not take the turn of a stream.
        if messages & bit == 0 || *lead < 0 {
            return None;
        }
        let put = self.messages.sender.put_alone(level, now, chance, out, events)?;
        let bytes = (out.len() - before) as u64;
        *lead -= bytes as i64;
        self.mixing.ageing.note(level, bytes, streams | messages);
        pacing.spend_at(level, bytes);
        Some(put)
    }

    /// Puts a run of messages into a datagram, while no stream and no other level waits, and nothing is
    /// limited.
    pub(crate) fn put_datagram_run(
        &mut self,
        portion: Portion,
        pacing: &Pacing,
        together: Together<'_>,
    ) -> Ran {
        let Portion { levels: open, now, chance, .. } = portion;
        let messages = self.messages.sender.levels() & open;
        if messages.count_ones() != 1 || self.streams.levels() != 0 || pacing.limits_any() {
            return Ran::Not;
        }
        let (level, known) = (messages.trailing_zeros() as u8, together.out.len());
        let Together { room, most, out, leavers } = together;
        let together = Together { room, most, out: &mut *out, leavers };
        let ran = self.messages.sender.put_run_alone(level, now, chance, together);
        let bytes = (out.len() - known) as u64;
        if bytes > 0 {
            self.mixing.lead[usize::from(level)] = 0;
            self.mixing.ageing.note(level, bytes, messages);
        }
        ran
    }

    /// Puts new data in, of streams and messages, until the segment is full, or has its portion, or nothing
    /// may be sent.
    pub(crate) fn put_new(
        &mut self,
        portion: Portion,
        pacing: &mut Pacing,
        draft: &mut Draft<'_>,
        events: &mut Events,
    ) {
        let Portion { chunk, levels: open, now, chance } = portion;
        let limit = within(draft, chunk);
        let levels = self.streams.levels() & open;
        if self.messages.sender.is_idle() && levels & levels.wrapping_sub(1) == 0 {
            // Streams alone, all equally urgent.
            if levels != 0 {
                let (level, before) = (levels.trailing_zeros() as u8, draft.len());
                let limit = limit.min(within(draft, pacing.level_room(level)));
                self.streams.put_at(level, limit, false, draft, events);
                pacing.spend_at(level, (draft.len() - before) as u64);
            }
            return;
        }
        let (mut barren_streams, mut barren_messages) = (0, 0);
        while draft.room() >= MIN_PIECE && draft.len() < limit {
            let streams = self.streams.levels() & open & !barren_streams;
            let messages = self.messages.sender.levels() & open & !barren_messages;
            let Some(level) = self.mixing.ageing.choose(streams | messages) else {
                return;
            };
            let (bit, before) = (1 << level, draft.len());
            let lead = &mut self.mixing.lead[usize::from(level)];
            if streams & messages & bit == 0 {
                *lead = 0;
            }
            let limit = limit.min(within(draft, pacing.level_room(level)));
            if before >= limit {
                (barren_streams, barren_messages) = (barren_streams | bit, barren_messages | bit);
                continue;
            }
            let of_stream = messages & bit == 0 || (streams & bit != 0 && *lead < 0);
            let alone = streams == 0 && messages == bit;
            let sent = match of_stream {
                true => self.streams.put_at(level, limit, true, draft, events),
                false if alone => self.messages.sender.put_all(level, now, chance, limit, draft, events),
                false => self.messages.sender.put_one(level, now, chance, limit, draft, events),
            };
            let bytes = (draft.len() - before) as u64;
            match (sent, of_stream) {
                (false, true) => barren_streams |= bit,
                (false, false) => barren_messages |= bit,
                (true, of_stream) => {
                    *lead += match of_stream {
                        true => bytes as i64,
                        // No stream waited meanwhile, so none has to catch up with them.
                        false if alone => 0,
                        false => -(bytes as i64),
                    };
                    self.mixing.ageing.note(level, bytes, streams | messages);
                    pacing.spend_at(level, bytes);
                }
            }
        }
    }
}

/// How long a segment is when `bytes` were put into it.
fn within(draft: &Draft<'_>, bytes: u64) -> usize {
    (draft.len() as u64).saturating_add(bytes).min(1 << 20) as usize
}
