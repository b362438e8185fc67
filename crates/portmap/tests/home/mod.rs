//! An endpoint at home, the port map that it has, and whether somebody on the Internet reaches it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use whimbrel_base::{EndpointAddr, SecretKey};
use whimbrel_lab::Runtime;
use whimbrel_portmap::{Mapped, PortMap};
use whimbrel_transport::{Allow, CarrierKind, Carriers, Endpoint, ListenOptions};

/// For what a router does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// One that is let in is answered within some milliseconds.
const NOBODY: Duration = Duration::from_secs(3);

/// Where the endpoint is, and where its peers are.
pub(crate) struct Sides {
    pub(crate) inside: Runtime,
    pub(crate) far: Runtime,
}

impl Sides {
    pub(crate) fn endpoint_at_home(&self, key: &SecretKey) -> Endpoint {
        self.inside.block_on(Endpoint::builder().secret_key(key.clone()).bind()).unwrap()
    }

    pub(crate) fn map(&self, endpoint: &Endpoint, key: &SecretKey) -> PortMap {
        self.inside.block_on(async { PortMap::start(endpoint.clone(), key) })
    }

    /// What the home's port map says once it is as wanted.
    pub(crate) fn told(&self, ports: &PortMap, wanted: impl FnMut(&Mapped) -> bool + Send) -> Mapped {
        let mut news = ports.news();
        let told = self.inside.block_on(async { timeout(PATIENCE, news.wait_for(wanted)).await });
        told.unwrap_or_else(|_| panic!("still {:?}", ports.news().current())).unwrap()
    }

    /// Lets everybody in, and says what they say.
    pub(crate) fn echo(&self, server: &Endpoint) {
        let options = ListenOptions::unnamed().allow(Allow::Any);
        let mut listener = self.inside.block_on(server.listen(options)).unwrap();
        self.inside.spawn(async move {
            while let Some(connection) = listener.accept().await {
                let mut stream = connection.accept_stream().await.unwrap();
                let mut word = [0; 5];
                stream.read_exact(&mut word).await.unwrap();
                stream.write_all(&word).await.unwrap();
                connection.closed().await;
            }
        });
    }

    /// Whether somebody on the Internet who dials a place is heard and answered.
    pub(crate) fn is_reached(&self, server: &Endpoint, place: SocketAddr, carrier: CarrierKind) -> bool {
        let target = EndpointAddr::new(server.id(), vec![place]);
        let heard = async {
            let client = Endpoint::builder().carriers(Carriers::Only(carrier)).bind().await.unwrap();
            let connection = timeout(NOBODY, client.connect(target)).await.ok()?.ok()?;
            let mut stream = connection.open_stream().await.ok()?;
            stream.write_all(b"hello").await.ok()?;
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.ok()?;
            client.close(Duration::from_secs(1)).await;
            Some(word)
        };
        self.far.block_on(heard).is_some_and(|word| &word == b"hello")
    }
}
