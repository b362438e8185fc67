//! Plain TCP: what the kernel alone costs.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};

use super::{Address, BoxFuture, Channel, Handler, LOCALHOST, Start};

pub(super) async fn serve(handler: Handler) -> Result<Address> {
    let listener = TcpListener::bind(LOCALHOST).await?;
    let socket = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // Every system here sends at once, so TCP does too.
            if stream.set_nodelay(true).is_ok() {
                tokio::spawn(handler(Channel::new(stream)));
            }
        }
    });
    Ok(Address { socket, identity: String::new() })
}

pub(super) struct Client {
    server: SocketAddr,
}

impl Client {
    pub(super) fn new(address: &Address) -> Self {
        Self { server: address.socket }
    }
}

impl super::Client for Client {
    fn connect(&self, _: Start) -> BoxFuture<'_, Result<Channel>> {
        Box::pin(async {
            let stream = TcpStream::connect(self.server).await?;
            stream.set_nodelay(true)?;
            Ok(Channel::new(stream))
        })
    }
}
