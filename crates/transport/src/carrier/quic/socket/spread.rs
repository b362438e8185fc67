//! Receiving what the kernel joined into one large piece, without a large buffer for each socket.
//!
//! The kernel hands over up to 64 datagrams of one sender in one piece (UDP_GRO). quinn would keep a buffer
//! of 32 such pieces, 3 MiB, for each endpoint, and a dialled path is an endpoint of its own: clearing that
//! memory took longer than the handshake. So a piece is received into a buffer that all sockets of a thread
//! share, and spread over quinn's buffers, which are small then.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};

use quinn::udp::RecvMeta;

/// Datagrams that fit into one of quinn's 32 buffers: together as many as the kernel joins.
pub(super) const SEGMENTS: usize = 2;

/// The largest piece.
const PIECE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE].into());
}

/// Receives one piece with `receive`, and says how many of `bufs` hold it then.
///
/// # Errors
/// Those of `receive`.
pub(super) fn receive(
    bufs: &mut [IoSliceMut<'_>],
    meta: &mut [RecvMeta],
    receive: impl FnOnce(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
) -> io::Result<usize> {
    BUFFER.with_borrow_mut(|buffer| {
        let mut whole = [RecvMeta::default()];
        if receive(&mut [IoSliceMut::new(buffer)], &mut whole)? == 0 {
            return Ok(0);
        }
        Ok(spread(buffer, &whole[0], bufs, meta))
    })
}

/// Copies whole datagrams into `bufs`. What does not fit is lost: a datagram above the size that was
/// advertised.
fn spread(piece: &[u8], whole: &RecvMeta, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> usize {
    let stride = whole.stride.max(1);
    let mut rest = &piece[..whole.len.min(piece.len())];
    let mut used = 0;
    for (buffer, meta) in bufs.iter_mut().zip(meta) {
        let fitting = (buffer.len() / stride * stride).min(rest.len());
        // A read of nothing is said once: quinn takes it for an empty datagram.
        if fitting == 0 && used > 0 {
            break;
        }
        let (here, after) = rest.split_at(fitting);
        buffer[..fitting].copy_from_slice(here);
        *meta = RecvMeta { len: fitting, stride, ..*whole };
        rest = after;
        used += 1;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spreads datagrams of `stride` bytes, `len` bytes together, and gives back what quinn would read.
    fn spread_over(count: usize, size: usize, stride: usize, len: usize) -> Vec<Vec<u8>> {
        let piece: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let mut buffers = vec![vec![0; size]; count];
        let mut bufs: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut meta = vec![RecvMeta::default(); count];
        let whole = RecvMeta { len, stride, ..RecvMeta::default() };
        let used = spread(&piece, &whole, &mut bufs, &mut meta);
        let datagrams = meta.iter().zip(&buffers).take(used);
        datagrams
            .flat_map(|(m, b)| b[..m.len].chunks(m.stride).map(<[u8]>::to_vec).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn each_datagram_arrives_whole_and_in_order() {
        for (stride, len) in
            [(1472, 1472), (1472, 44 * 1472), (1000, 64_000), (737, 47_168), (40, 2560), (1200, 1201)]
        {
            let expected: Vec<Vec<u8>> = (0..len)
                .map(|at| (at % 251) as u8)
                .collect::<Vec<u8>>()
                .chunks(stride)
                .map(<[u8]>::to_vec)
                .collect();
            assert_eq!(spread_over(32, SEGMENTS * 1472, stride, len), expected, "{stride} {len}");
        }
    }

    #[test]
    fn what_is_larger_than_a_buffer_is_lost_and_nothing_else_is() {
        assert_eq!(spread_over(32, SEGMENTS * 1472, 9000, 9000), Vec::<Vec<u8>>::new());
        assert_eq!(spread_over(32, SEGMENTS * 1472, 1472, 0), Vec::<Vec<u8>>::new());
    }
}
