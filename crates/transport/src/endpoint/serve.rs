//! Which tasks serve an endpoint's sockets.

use futures_util::FutureExt;
use std::sync::Arc;

use quinn::ServerConfig;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::accept::{Entrance, accept_quic, accept_tcp};
use crate::carrier::CarrierKind;
use crate::carrier::quic::{Fronting, Heard, QuicSocket};
use crate::endpoint_core::EndpointCore;
use crate::notices::hear;
use crate::sockets::{Accepting, Serve};

impl Serve for Arc<EndpointCore> {
    fn front(&self) -> Fronting {
        self.datagram_front.clone()
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
