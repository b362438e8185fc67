//! Parameters that each side states about itself in OPEN and ACCEPT: a versioned list whose
//! unknown entries are skipped, so that later versions may add some.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::DecodeError;
use crate::varint::{self, Reader};

/// Credit that every endpoint must grant before its parameters are known, so that a client may
/// send right behind OPEN.
pub const EARLY_DATA_WINDOW: u64 = 64 * 1024;
/// Streams that every endpoint must accept before its parameters are known.
pub const EARLY_STREAMS: u64 = 16;
/// At most this many notice addresses are told.
pub const MAX_NOTICE_ADDRESSES: usize = 16;
/// Longest name in OPEN.
const MAX_TARGET: usize = 253;

/// More than this need not be granted at once; credit stays far below the largest varint.
pub(crate) const MAX_GRANT: u64 = 1 << 60;
/// As [`MAX_GRANT`], for messages: a byte of each is enough for a peer to have us keep room for the whole.
pub(crate) const MAX_MESSAGES_GRANT: u64 = 1 << 30;
/// No endpoint may hold an acknowledgement back for longer.
const LONGEST_ACK_DELAY: Duration = Duration::from_secs(1);

const MAX_DATA: u64 = 0x01;
const MAX_STREAM_DATA: u64 = 0x02;
const MAX_STREAMS: u64 = 0x03;
const MAX_ACK_DELAY: u64 = 0x04;
const LINGER: u64 = 0x05;
const TARGET: u64 = 0x06;
const NOTICE_ADDRESS: u64 = 0x07;
const RETIRE: u64 = 0x08;
const MESSAGES: u64 = 0x0a;
const TICKET_PROOF: u64 = 0x0c;
const SUSPEND: u64 = 0x0e;
const DATAGRAMS: u64 = 0x10;
const HAND_OVER: u64 = 0x12;
const JOURNALS: u64 = 0x14;
const PUNCH: u64 = 0x18;
const RELIABLE_DATAGRAMS: u64 = 0x1a;
const SEARCH: u64 = 0x1c;
const OBSERVED: u64 = 0x1e;
const DATAGRAM_BUNDLES: u64 = 0x20;

/// What one side states about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Bytes the peer may send over all streams before it gets more credit.
    pub max_data: u64,
    /// Bytes the peer may send on each stream before it gets more credit, which it does as the stream is
    /// read.
    pub max_stream_data: u64,
    /// Streams the peer may have open at once.
    pub max_streams: u64,
    /// Longest that an acknowledgement is held back. Whole milliseconds on the wire.
    pub max_ack_delay: Duration,
    /// How long state is kept without any path. Whole seconds on the wire.
    pub linger: Duration,
    /// The name that the client asked for (client only).
    pub target: Option<String>,
    /// Proof of a ticket's secret (client only); see [`ticket_proof`](crate::ticket_proof).
    pub ticket_proof: Option<Box<[u8; 32]>>,
    /// Where notices of a move are heard (UDP).
    pub notice_addresses: Vec<SocketAddr>,
    /// Understands RETIRE, and that a connection may be opened over several paths at once.
    pub retire: bool,
    /// Understands SUSPEND, and knows the copies of a side that was written down and read back from each
    /// other.
    pub suspend: bool,
    /// Understands that a side hands its end over to another key, if it understands SUSPEND.
    pub hand_over: bool,
    /// Credit for messages (see [`MESSAGE_WINDOW`](crate::MESSAGE_WINDOW)); half of it is the largest message
    /// that is taken. At most a gibibyte. 0: messages are not understood, or not wanted.
    pub messages: u64,
    /// Understands messages in datagrams of a carrier, if it understands messages.
    pub datagrams: bool,
    /// Understands reliable messages, and answers, in datagrams too.
    pub reliable_datagrams: bool,
    /// Understands datagrams with several messages.
    pub datagram_bundles: bool,
    /// Keeps journals of durable messages, if it understands messages: the first
    /// [`JOURNAL_FLOWS`](crate::JOURNAL_FLOWS) flows of either side are theirs.
    pub journals: bool,
    /// Understands CANDIDATES, by which both sides open a path through their NAT gateways.
    pub punch: bool,
    /// Takes part in a search for a port of a gateway, if it understands CANDIDATES.
    pub search: bool,
    /// Understands OBSERVED, which tells where a side is seen.
    pub observed: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            max_data: 16 << 20,
            max_stream_data: EARLY_DATA_WINDOW,
            max_streams: 1024,
            max_ack_delay: Duration::from_millis(25),
            linger: Duration::from_secs(24 * 3600),
            target: None,
            ticket_proof: None,
            notice_addresses: Vec::new(),
            retire: true,
            suspend: true,
            hand_over: true,
            messages: 0,
            datagrams: true,
            reliable_datagrams: true,
            datagram_bundles: true,
            journals: false,
            punch: true,
            search: true,
            observed: true,
        }
    }
}

impl Params {
    /// What may be assumed of a peer whose parameters have not arrived yet.
    #[must_use]
    pub fn unknown_peer() -> Self {
        Self {
            max_data: EARLY_DATA_WINDOW,
            max_stream_data: EARLY_DATA_WINDOW,
            max_streams: EARLY_STREAMS,
            retire: false,
            suspend: false,
            hand_over: false,
            datagrams: false,
            reliable_datagrams: false,
            datagram_bundles: false,
            punch: false,
            search: false,
            observed: false,
            ..Self::default()
        }
    }

    /// Brings what an application asked for within what the protocol promises and can express.
    pub(crate) fn keep_promises(&mut self) {
        self.max_data = self.max_data.clamp(EARLY_DATA_WINDOW, MAX_GRANT);
        self.max_stream_data = self.max_stream_data.clamp(EARLY_DATA_WINDOW, MAX_GRANT);
        self.max_streams = self.max_streams.clamp(EARLY_STREAMS, MAX_GRANT);
        if self.messages > 0 {
            self.messages = self.messages.clamp(EARLY_DATA_WINDOW, MAX_MESSAGES_GRANT);
        }
        self.max_ack_delay = self.max_ack_delay.min(LONGEST_ACK_DELAY);
    }

    /// Messages may come in datagrams.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.datagrams && self.messages > 0
    }

    /// Reliable messages, and answers, may come in datagrams.
    pub(crate) fn takes_reliable_datagrams(&self) -> bool {
        self.reliable_datagrams && self.takes_datagrams()
    }

    /// A datagram may have several messages in it.
    pub(crate) fn takes_datagram_bundles(&self) -> bool {
        self.datagram_bundles && self.takes_datagrams()
    }

    /// Ports are searched for.
    pub(crate) fn takes_part_in_searches(&self) -> bool {
        self.search && self.punch
    }

    /// Journals are kept.
    pub(crate) fn keeps_journals(&self) -> bool {
        self.journals && self.messages > 0
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let number = |out: &mut Vec<u8>, id, value: u64| {
            let value = value.min(varint::MAX);
            varint::write(out, id);
            varint::write(out, varint::size(value) as u64);
            varint::write(out, value);
        };
        number(out, MAX_DATA, self.max_data);
        number(out, MAX_STREAM_DATA, self.max_stream_data);
        number(out, MAX_STREAMS, self.max_streams);
        number(out, MAX_ACK_DELAY, self.max_ack_delay.as_millis() as u64);
        number(out, LINGER, self.linger.as_secs());
        if let Some(target) = &self.target {
            varint::write(out, TARGET);
            varint::write(out, target.len() as u64);
            out.extend_from_slice(target.as_bytes());
        }
        if let Some(proof) = &self.ticket_proof {
            varint::write(out, TICKET_PROOF);
            varint::write(out, proof.len() as u64);
            out.extend_from_slice(&proof[..]);
        }
        for address in self.notice_addresses.iter().take(MAX_NOTICE_ADDRESSES) {
            let mut value = Vec::with_capacity(18);
            encode_address(*address, &mut value);
            varint::write(out, NOTICE_ADDRESS);
            varint::write(out, value.len() as u64);
            out.extend_from_slice(&value);
        }
        if self.retire {
            varint::write(out, RETIRE);
            varint::write(out, 0);
        }
        if self.suspend {
            varint::write(out, SUSPEND);
            varint::write(out, 0);
        }
        if self.messages > 0 {
            number(out, MESSAGES, self.messages);
        }
        if self.takes_datagrams() {
            varint::write(out, DATAGRAMS);
            varint::write(out, 0);
        }
        if self.takes_reliable_datagrams() {
            varint::write(out, RELIABLE_DATAGRAMS);
            varint::write(out, 0);
        }
        if self.takes_datagram_bundles() {
            varint::write(out, DATAGRAM_BUNDLES);
            varint::write(out, 0);
        }
        if self.hand_over {
            varint::write(out, HAND_OVER);
            varint::write(out, 0);
        }
        if self.keeps_journals() {
            varint::write(out, JOURNALS);
            varint::write(out, 0);
        }
        if self.punch {
            varint::write(out, PUNCH);
            varint::write(out, 0);
        }
        if self.takes_part_in_searches() {
            varint::write(out, SEARCH);
            varint::write(out, 0);
        }
        if self.observed {
            varint::write(out, OBSERVED);
            varint::write(out, 0);
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut params = Self::unknown_peer();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let id = reader.varint()?;
            let mut value = Reader::new(reader.prefixed()?);
            match id {
                MAX_DATA => params.max_data = value.varint()?.max(EARLY_DATA_WINDOW),
                MAX_STREAM_DATA => params.max_stream_data = value.varint()?.max(EARLY_DATA_WINDOW),
                MAX_STREAMS => params.max_streams = value.varint()?.max(EARLY_STREAMS),
                MAX_ACK_DELAY => params.max_ack_delay = ack_delay(value.varint()?)?,
                LINGER => params.linger = Duration::from_secs(value.varint()?.min(u64::from(u32::MAX))),
                TARGET => params.target = Some(target(value.rest())?),
                TICKET_PROOF => {
                    let proof = value.rest().try_into().map_err(|_| DecodeError::Invalid("ticket proof"))?;
                    params.ticket_proof = Some(Box::new(proof));
                }
                NOTICE_ADDRESS => {
                    if params.notice_addresses.len() == MAX_NOTICE_ADDRESSES {
                        return Err(DecodeError::TooLarge("notice addresses"));
                    }
                    params.notice_addresses.push(decode_address(&mut value)?);
                }
                RETIRE => params.retire = true,
                SUSPEND => params.suspend = true,
                MESSAGES => params.messages = value.varint()?,
                DATAGRAMS => params.datagrams = true,
                RELIABLE_DATAGRAMS => params.reliable_datagrams = true,
                DATAGRAM_BUNDLES => params.datagram_bundles = true,
                HAND_OVER => params.hand_over = true,
                JOURNALS => params.journals = true,
                PUNCH => params.punch = true,
                SEARCH => params.search = true,
                OBSERVED => params.observed = true,
                _ => {}
            }
        }
        Ok(params)
    }
}

fn ack_delay(millis: u64) -> Result<Duration, DecodeError> {
    let delay = Duration::from_millis(millis);
    if delay > LONGEST_ACK_DELAY {
        return Err(DecodeError::TooLarge("max_ack_delay"));
    }
    Ok(delay)
}

fn target(bytes: &[u8]) -> Result<String, DecodeError> {
    if bytes.len() > MAX_TARGET {
        return Err(DecodeError::TooLarge("target"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::Invalid("target"))?;
    Ok(text.to_owned())
}

/// Port (2 bytes), then 4 or 16 bytes of address.
pub(crate) fn encode_address(address: SocketAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
}

pub(crate) fn decode_address(reader: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let port = u16::from_be_bytes(reader.array()?);
    let ip = match reader.rest().len() {
        4 => IpAddr::from(reader.array::<4>()?),
        16 => IpAddr::from(reader.array::<16>()?),
        _ => return Err(DecodeError::Invalid("address")),
    };
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip_and_unknown_ones_are_skipped() {
        let params = Params {
            target: Some("ssh.laptop.alice@example.org".into()),
            ticket_proof: Some([7; 32].into()),
            notice_addresses: vec!["10.0.0.1:7".parse().unwrap(), "[2001:db8::1]:9".parse().unwrap()],
            max_data: 1 << 30,
            messages: 1 << 20,
            journals: true,
            ..Params::default()
        };
        let mut bytes = Vec::new();
        params.encode(&mut bytes);
        varint::write(&mut bytes, 0x3fff);
        varint::write(&mut bytes, 3);
        bytes.extend_from_slice(b"new");
        assert_eq!(Params::decode(&bytes).unwrap(), params);
    }

    #[test]
    fn nobody_may_grant_less_than_the_early_window() {
        let mut bytes = Vec::new();
        Params { max_data: 1, ..Params::default() }.encode(&mut bytes);
        assert_eq!(Params::decode(&bytes).unwrap().max_data, EARLY_DATA_WINDOW);
    }
}
