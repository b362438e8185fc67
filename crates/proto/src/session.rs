//! What a connection is without any path: who its ends are, its streams with their credit and memory, what
//! both sides agreed on, and how far it is on its way to its end. It survives the loss of all paths.
//!
//! Nothing here knows a point in time: where one matters, it is a duration since the connection began, and is
//! handed in. What has to be told is a statement of the newest value, so a lost one is simply marked again,
//! and whoever has lost all marks may mark everything.

pub(crate) mod addresses;
mod announced;
mod candidates;
pub(crate) mod credit;
pub(crate) mod ending;
pub(crate) mod identity;
pub(crate) mod messages;
mod mode;
mod notices;
mod observed;
pub(crate) mod send_memory;
pub(crate) mod stream_numbers;
pub(crate) mod streams;
pub(crate) mod tenure;

use whimbrel_base::{ConnectionId, EndpointId};

use crate::config::Config;
use crate::content::Content;
use crate::error::{CloseCode, DecodeError, StreamError};
use crate::event::{ClosedBy, Event, Events};
use crate::ids::Side;
use crate::message::receiver::Receiver;
use crate::params::Params;
use crate::varint::Reader;
use addresses::{Addresses, NoticeAddresses};
use announced::Announced;
use candidates::Candidates;
use credit::Credit;
use ending::Ending;
use identity::Identity;
use messages::{Messages, Mixing};
use mode::Mode;
use notices::Notices;
use observed::Observed;
use send_memory::SendMemory;
use stream_numbers::StreamNumbers;
use streams::{Limits, Streams};

pub use streams::Read;

/// A connection, as far as it does not depend on paths. Its parts guard their own state; what concerns
/// several of them is done here.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) identity: Identity,
    pub(crate) streams: Streams,
    pub(crate) messages: Messages,
    mixing: Mixing,
    pub(crate) mode: Mode,
    pub(crate) notice_addresses: NoticeAddresses,
    /// What this side announces, and what the peer does.
    pub(crate) addresses: Addresses,
    pub(crate) peer_addresses: Addresses,
    pub(crate) candidates: Candidates,
    pub(crate) observed: Observed,
    pub(crate) notices: Notices,
    pub(crate) ending: Ending,
    /// The next owner of this end, if that is told.
    pub(crate) announced: Announced,
}

impl Session {
    pub(crate) fn new(
        side: Side,
        config: &Config,
        id: ConnectionId,
        local: EndpointId,
        peer: EndpointId,
        random: [u8; 32],
    ) -> Self {
        let params = &config.params;
        let early = Params::unknown_peer();
        let credit = Credit::new(params.max_data, config.unread, params.max_stream_data, early.max_data);
        let numbers = StreamNumbers::new(early.max_streams, params.max_streams, config.streams);
        Self {
            identity: Identity::new(side, id, local, peer, params.clone(), random),
            streams: Streams::new(side, limits(config, params), numbers, credit, memory(config)),
            messages: Messages::new(params.messages),
            mixing: Mixing::default(),
            mode: Mode::wanted(config.handover, side),
            notice_addresses: NoticeAddresses::new(params.notice_addresses.clone()),
            addresses: Addresses::default(),
            peer_addresses: Addresses::default(),
            candidates: Candidates::default(),
            observed: Observed::default(),
            notices: Notices::default(),
            ending: Ending::default(),
            announced: Announced::default(),
        }
    }

    /// Writes itself down. It must not be over.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.identity.write_down(out);
        self.streams.write_down(out);
        self.messages.write_down(out);
        self.mode.write_down(out);
        self.notice_addresses.write_down(out);
        self.addresses.write_down(out);
        self.peer_addresses.write_down(out);
        self.notices.write_down(out);
        self.ending.write_down(out);
    }

    /// Reads a session back that was written in this version, with everything to be said again.
    pub(crate) fn read_back(
        reader: &mut Reader<'_>,
        version: u8,
        config: &Config,
        events: &mut Events,
    ) -> Result<Self, DecodeError> {
        let identity = Identity::read_back(reader)?;
        let (side, peer) = (identity.side(), identity.peer_params());
        let limits = limits(config, identity.params());
        let streams = Streams::read_back(reader, version, side, peer, limits, memory(config), events)?;
        let (window, journals) = (identity.params().messages, identity.both_keep_journals());
        let messages = Messages::read_back(reader, window, journals, events)?;
        let mut this = Self {
            streams,
            messages,
            mixing: Mixing::default(),
            mode: Mode::read_back(reader, side)?,
            notice_addresses: NoticeAddresses::read_back(reader)?,
            addresses: Addresses::read_back(reader)?,
            peer_addresses: Addresses::read_back(reader)?,
            candidates: Candidates::default(),
            observed: Observed::default(),
            notices: Notices::read_back(reader)?,
            ending: Ending::read_back(reader)?,
            announced: Announced::default(),
            identity,
        };
        if this.ending.word().is_some() {
            this.streams.begin_closing();
        }
        this.mode.mark_all();
        this.notice_addresses.mark_all();
        this.addresses.mark_all();
        Ok(this)
    }

    /// Takes what the peer states about itself.
    pub(crate) fn learn_params(&mut self, params: Params, events: &mut Events) {
        if !params.notice_addresses.is_empty() {
            events.push(Event::PeerAddresses(params.notice_addresses.clone()));
        }
        self.streams.learn_params(&params, events);
        self.messages.sender.open(params.messages);
        self.identity.learn_params(params);
        if self.identity.both_keep_journals() {
            self.messages.keep_journals();
        }
    }

    /// Begins to close, in order or at once.
    pub(crate) fn begin_close(&mut self, code: CloseCode, reason: &str, graceful: bool) {
        self.ending.begin(code, reason, graceful);
        self.streams.begin_closing();
    }

    /// The connection is over for the application.
    pub(crate) fn finish(&mut self, by: ClosedBy, code: CloseCode, reason: &str, events: &mut Events) {
        if self.ending.finish(by, code, reason) {
            self.streams.close(events);
            self.messages.sender.close(events);
            events.push(Event::Closed { by, code, reason: reason.to_owned() });
        }
    }

    /// Nothing is under way that [`write_down`](Self::write_down) leaves out.
    pub(crate) fn may_rest(&self) -> bool {
        let is_open = self.check_open().is_ok() && self.ending.word().is_none() && !self.ending.waits();
        is_open
            && self.messages.sender.len() == 0
            && !self.announced.is_under_way()
            && self.identity.tenure.may_rest()
    }

    /// Drops what arrived and was not read: somebody else has it.
    pub(crate) fn let_go(&mut self) {
        self.streams.let_go();
        self.messages.receiver = Receiver::new(0);
    }

    /// # Errors
    /// [`StreamError::ConnectionClosed`] if the connection is over, or was aborted here.
    pub(crate) fn check_open(&self) -> Result<(), StreamError> {
        match self.ending.end_reason() {
            Some((_, code, _)) => Err(StreamError::ConnectionClosed(code)),
            None => Ok(()),
        }
    }

    /// Something has to be told besides streams' data.
    pub(crate) fn has_control(&self) -> bool {
        self.streams.have_control()
            || self.messages.have_control()
            || self.mode.waits()
            || self.notice_addresses.waits()
            || self.addresses.waits()
            || self.candidates.waits()
            || self.observed.waits()
            || self.ending.waits()
            || self.identity.tenure.waits()
            || self.announced.waits()
    }

    /// Has what a lost segment carried said again. What is about paths, and stream data, is left alone.
    pub(crate) fn mark(&mut self, content: &Content) {
        match content {
            Content::Addresses => self.notice_addresses.mark(),
            Content::Address(id) => self.addresses.mark(*id),
            Content::Candidates => self.candidates.mark(),
            Content::Observed => self.observed.mark(),
            Content::Handover => self.mode.mark(),
            Content::Close => self.ending.mark_close(),
            Content::CloseAck => self.ending.mark_close_ack(),
            Content::Suspend => self.identity.tenure.mark(),
            Content::Assign => self.announced.mark(),
            Content::Skip(_) | Content::MaxMessages => self.messages.mark(content),
            content => self.streams.mark(content),
        }
    }
}

/// `params` are what the peer was told.
fn limits(config: &Config, params: &Params) -> Limits {
    Limits {
        first_window: params.max_stream_data,
        window: config.stream_window,
        unsent: config.stream_unsent,
        pool: config.pool.clone(),
    }
}

fn memory(config: &Config) -> SendMemory {
    SendMemory::new(config.stream_send_buffer, config.send_buffer)
}
