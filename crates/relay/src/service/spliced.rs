//! A client and a server that are connected.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

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
    pub(super) underway: Underway,
    pub(super) bytes: AtomicU64,
    /// When it began, or this relay went on with it.
    pub(super) since: Instant,
}

impl Spliced {
    /// Cancel-safe.
    pub(super) async fn pass_on(&mut self, is_new: bool, traffic: &Traffic) -> io::Result<()> {
        let Self { at, client, spare, underway, bytes, .. } = self;
        if is_new {
            tokio::time::timeout(FIRST_WORDS, underway.there.flush(spare)).await??;
        }
        // One that has gone is as good as any.
        let from = client.peer_addr().map_or(IpAddr::from([0; 4]), |at| at.ip());
        splice(client, spare, underway, &Meter::of_relay(bytes, traffic, at.token(), from)).await
    }
}
