//! Datagrams of many peers over one socket, whose other end is a relay: each has something before it that
//! says which peer is meant.

use std::io::IoSliceMut;
use std::net::SocketAddr;

use quinn::udp::{RecvMeta, Transmit};
use whimbrel_base::routing::ROUTED_ID;

/// The largest piece that the kernel hands over.
const PIECE: usize = 64 * 1024;

/// How datagrams of many peers travel over one UDP socket, whose other end passes them on.
pub trait Envelope: Send + Sync + 'static {
    /// A connection id that this side gives itself, another one each time: the other end knows by it that a
    /// packet is for this side.
    fn connection_id(&self) -> [u8; ROUTED_ID];

    /// Adds what stands before a datagram to that peer. Returns false if it cannot be sent.
    fn address(&self, peer: SocketAddr, out: &mut Vec<u8>) -> bool;

    /// Which peer a datagram comes from, and how many bytes stand before it. `None` for what is no peer's:
    /// then it is this one's.
    fn open(&self, datagram: &[u8]) -> Option<(SocketAddr, usize)>;
}

/// What was received and was not handed to QUIC yet: the kernel joins datagrams of all peers in one piece.
pub(super) struct Piece {
    bytes: Box<[u8]>,
    /// What is left of it.
    rest: std::ops::Range<usize>,
    stride: usize,
}

impl Default for Piece {
    fn default() -> Self {
        Self { bytes: vec![0; PIECE].into(), rest: 0..0, stride: 1 }
    }
}

impl Piece {
    pub(super) fn is_used_up(&self) -> bool {
        self.rest.is_empty()
    }

    /// Room for the next piece; `filled` says what came.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.rest = 0..0;
        &mut self.bytes
    }

    pub(super) fn filled(&mut self, meta: &RecvMeta) {
        self.rest = 0..meta.len.min(self.bytes.len());
        self.stride = meta.stride.max(1);
    }

    /// Copies datagrams of peers to `bufs`, one to each, for as long as there are both; says how many.
    pub(super) fn hand_over(
        &mut self,
        envelope: &dyn Envelope,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> usize {
        let mut used = 0;
        while let Some((buffer, meta)) = bufs.get_mut(used).zip(meta.get_mut(used)) {
            if self.rest.is_empty() {
                break;
            }
            let end = (self.rest.start + self.stride).min(self.rest.end);
            let datagram = &self.bytes[self.rest.start..end];
            self.rest.start = end;
            let Some((addr, header)) = envelope.open(datagram) else { continue };
            // What does not fit is lost: a packet above the size that was advertised.
            let packet = datagram.get(header..).unwrap_or_default();
            if packet.is_empty() || packet.len() > buffer.len() {
                continue;
            }
            buffer[..packet.len()].copy_from_slice(packet);
            let len = packet.len();
            *meta = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
            used += 1;
        }
        used
    }
}

/// What is to be sent for `transmit`, each datagram of it with the same before it. `None` if its peer is not
/// known.
pub(super) fn wrap(transmit: &Transmit<'_>, envelope: &dyn Envelope) -> Option<Wrapped> {
    let mut header = Vec::new();
    if !envelope.address(transmit.destination, &mut header) {
        return None;
    }
    let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
    let mut bytes =
        Vec::with_capacity(transmit.contents.len() + transmit.contents.len() / size * header.len());
    for datagram in transmit.contents.chunks(size) {
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(datagram);
    }
    let segment_size = transmit.segment_size.map(|size| size + header.len());
    Some(Wrapped { bytes, segment_size })
}

/// Datagrams for the relay.
pub(super) struct Wrapped {
    bytes: Vec<u8>,
    segment_size: Option<usize>,
}

impl Wrapped {
    pub(super) fn transmit(&self, relay: SocketAddr) -> Transmit<'_> {
        // What a relay makes of ECN is not told to the other side.
        let (destination, segment_size) = (relay, self.segment_size);
        Transmit { destination, ecn: None, contents: &self.bytes, segment_size, src_ip: None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The last byte of the address stands before each datagram; 0 is nobody.
    struct ByByte;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 9))
    }

    impl Envelope for ByByte {
        fn connection_id(&self) -> [u8; 20] {
            [0; 20]
        }

        fn address(&self, peer: SocketAddr, out: &mut Vec<u8>) -> bool {
            let SocketAddr::V4(peer) = peer else { return false };
            out.push(peer.ip().octets()[3]);
            true
        }

        fn open(&self, datagram: &[u8]) -> Option<(SocketAddr, usize)> {
            let host = datagram.first().filter(|host| **host > 0)?;
            Some((at(*host), 1))
        }
    }

    #[test]
    fn each_datagram_of_a_piece_reaches_quic_as_its_peers_however_few_buffers_there_are() {
        let mut piece = Piece::default();
        let wire = [1, 10, 11, 2, 20, 21, 0, 90, 91, 1, 12, 13, 2, 22];
        piece.room()[..wire.len()].copy_from_slice(&wire);
        piece.filled(&RecvMeta { len: wire.len(), stride: 3, ..RecvMeta::default() });
        let mut got = Vec::new();
        while !piece.is_used_up() {
            let mut buffers = [[0; 100]; 2];
            let mut bufs = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
            let mut meta = [RecvMeta::default(); 2];
            let used = piece.hand_over(&ByByte, &mut bufs, &mut meta);
            got.extend((0..used).map(|n| (meta[n].addr, buffers[n][..meta[n].len].to_vec())));
        }
        let expected = [(1, vec![10, 11]), (2, vec![20, 21]), (1, vec![12, 13]), (2, vec![22])];
        assert_eq!(got, expected.map(|(host, bytes)| (at(host), bytes)));
    }

    #[test]
    fn each_datagram_of_a_batch_gets_its_header_and_an_unknown_peer_nothing() {
        let batch = |destination, segment_size| Transmit {
            destination,
            ecn: None,
            contents: &[1, 2, 3, 4, 5],
            segment_size,
            src_ip: None,
        };
        let wrapped = wrap(&batch(at(7), Some(2)), &ByByte).unwrap();
        let sent = wrapped.transmit(at(1));
        assert_eq!((sent.contents, sent.segment_size), (&[7, 1, 2, 7, 3, 4, 7, 5][..], Some(3)));
        let wrapped = wrap(&batch(at(7), None), &ByByte).unwrap();
        assert_eq!(wrapped.transmit(at(1)).contents, [7, 1, 2, 3, 4, 5]);
        assert!(wrap(&batch("[2001:db8::1]:9".parse().unwrap(), None), &ByByte).is_none());
    }
}
