//! TLS 1.3 over TCP, by tokio-rustls: what applications use today.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Address, BoxFuture, Channel, Handler, LOCALHOST, Start, crypto};

pub(super) async fn serve(handler: Handler) -> Result<Address> {
    let (config, identity) = crypto::server()?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(LOCALHOST).await?;
    let socket = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, handler) = (acceptor.clone(), handler.clone());
            tokio::spawn(async move {
                if stream.set_nodelay(true).is_ok()
                    && let Ok(stream) = acceptor.accept(stream).await
                {
                    handler(Channel::new(stream)).await;
                }
            });
        }
    });
    Ok(Address { socket, identity })
}

pub(super) struct Client {
    server: SocketAddr,
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Client {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let config = crypto::client(&address.identity)?;
        Ok(Self {
            server: address.socket,
            connector: TlsConnector::from(Arc::new(config)),
            name: ServerName::try_from(crypto::SERVER_NAME)?,
        })
    }
}

impl super::Client for Client {
    fn connect(&self, _: Start) -> BoxFuture<'_, Result<Channel>> {
        Box::pin(async {
            let stream = TcpStream::connect(self.server).await?;
            stream.set_nodelay(true)?;
            let stream = self.connector.connect(self.name.clone(), stream).await?;
            let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
            Ok(Channel { resumed: Some(resumed), ..Channel::new(stream) })
        })
    }
}
