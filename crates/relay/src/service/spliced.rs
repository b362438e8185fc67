//! A client and a server that are connected.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::reservations::Splice;
use crate::splice::{Meter, Underway, splice};
use crate::traffic::Traffic;

/// A spare takes a ClientHello within this.
const FIRST_WORDS: Duration = Duration::from_secs(10);

/// Two sockets that are one connection.
pub(super) struct Spliced {
    pub(super) at: Splice,
    pub(super) client: TcpStream,
    pub(super) spare: TcpStream,
    /// Where the client is.
    pub(super) from: IpAddr,
    pub(super) underway: Underway,
    pub(super) bytes: AtomicU64,
    /// When it began, or this relay went on with it.
    pub(super) since: Instant,
}

impl Spliced {
    /// Cancel-safe.
    pub(super) async fn pass_on(&mut self, is_new: bool, traffic: &Traffic) -> io::Result<()> {
        let Self { at, client, spare, from, underway, bytes, .. } = self;
        if is_new && !underway.there.try_flush(spare)? {
            // Few wait. Boxed, because all others would keep room for the timer.
            Box::pin(tokio::time::timeout(FIRST_WORDS, underway.there.flush(spare))).await??;
        }
        splice(client, spare, underway, &Meter::of_relay(bytes, traffic, at.token(), *from)).await
    }

    /// Has the sockets end by a reset if the kernel says that one of them has broken: who is left learns it,
    /// instead of an end that nobody meant, and no socket stays in the kernel to wait for the other side.
    pub(super) fn end_as_told(&self, why: &io::Error) {
        if why.raw_os_error().is_none() {
            // It was given up here, and the kernel may still have something to deliver.
            return;
        }
        for socket in [&self.client, &self.spare] {
            // One that cannot be told ends as others do.
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
    }
}
