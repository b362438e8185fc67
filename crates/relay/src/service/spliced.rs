//! A client and a server that are connected.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpStream;
use whimbrel_transport::is_delivered;

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

    /// Has the server's side end by a reset if the kernel says that a side has broken, and nothing is on its
    /// way there any more: the server learns that its client broke, and no socket stays in the kernel to wait
    /// for it. The client's side always ends in order, because it may have to be sent an answer to its end.
    pub(super) fn end_as_told(&self, why: &io::Error) {
        // What has no number was given up here.
        if why.raw_os_error().is_some() && is_delivered(&self.spare) {
            // One that cannot be told ends as others do.
            let _ = SockRef::from(&self.spare).set_linger(Some(Duration::ZERO));
        }
    }
}
