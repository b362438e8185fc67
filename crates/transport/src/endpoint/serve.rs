//! Which tasks serve an endpoint's sockets.

use futures_util::FutureExt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use quinn::ServerConfig;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::accept::{Entrance, accept_quic, accept_tcp};
use crate::carrier::quic::{Fronting, Heard, QuicSocket};
use crate::carrier::{CarrierKind, hands_on};
use crate::endpoint_core::EndpointCore;
use crate::notices::hear;
use crate::sockets::{Accepting, Serve};

impl Serve for Arc<EndpointCore> {
    fn front(&self) -> Fronting {
        self.datagram_front.clone()
    }

    fn prepare(&self, listener: BorrowedFd<'_>, kind: CarrierKind) -> io::Result<()> {
        let front = self.front.get().filter(|_| hands_on(kind));
        front.map_or(Ok(()), |front| front.prepare(listener))
    }

    fn hear(&self, socket: Arc<QuicSocket>, heard: mpsc::Receiver<Heard>) -> JoinHandle<()> {
        tokio::spawn(FutureExt::boxed(hear(self.clone(), socket, heard)))
    }

    fn accept_tcp(&self, listener: Arc<Accepting>, kind: CarrierKind) -> JoinHandle<()> {
        tokio::spawn(FutureExt::boxed(accept_tcp(self.clone(), listener, kind)))
    }

    fn accept_quic(
        &self,
        socket: Arc<QuicSocket>,
        quic: quinn::Endpoint,
        config: ServerConfig,
    ) -> JoinHandle<()> {
        let entrance = Entrance::Socket(socket);
        tokio::spawn(FutureExt::boxed(accept_quic(self.clone(), quic, config, entrance)))
    }
}
