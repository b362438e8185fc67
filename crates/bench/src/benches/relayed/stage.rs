//! A relay in a process of its own, with a server behind it, and how clients come to it.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use whimbrel_base::EndpointAddr;
use whimbrel_lab::HostChild;

use super::child::Ready;
use super::served::{Reservation, Served, dial, hello};
use crate::lab::program::{self, Folder};
use crate::lab::{Chain, haproxy};

const HAPROXY_PORT: u16 = 8443;
/// A name as long as a token's, for relays that read none.
const NAME: &str = "0000000000000000";

/// A relay that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Whimbrel,
    /// In TCP mode, as it comes.
    Haproxy,
    /// The same with `option splice-auto`.
    HaproxySplice,
}

impl System {
    pub(super) const ALL: [Self; 3] = [Self::Whimbrel, Self::Haproxy, Self::HaproxySplice];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::Haproxy => "haproxy",
            Self::HaproxySplice => "haproxy splice",
        }
    }
}

/// How clients come to the relay.
#[derive(Debug, Clone)]
pub(super) struct Dialler {
    from: IpAddr,
    to: SocketAddr,
    first: Arc<[u8]>,
}

impl Dialler {
    /// A connection whose server knows what to do.
    pub(super) async fn dial(&self, what: u8) -> Result<TcpStream> {
        let mut stream = dial(self.from, self.to).await?;
        stream.write_all(&[&self.first[..], &[what]].concat()).await?;
        Ok(stream)
    }

    /// A connection over which a byte was echoed.
    pub(super) async fn echoed(&self) -> Result<TcpStream> {
        let mut stream = self.dial(super::served::ECHO).await?;
        echo(&mut stream).await?;
        Ok(stream)
    }
}

/// One byte there and back.
pub(super) async fn echo(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&[1]).await?;
    let mut byte = [0];
    stream.read_exact(&mut byte).await?;
    Ok(())
}

/// Everything but the clients, running.
pub(super) struct Stage {
    pub(super) dialler: Dialler,
    pub(super) served: Arc<Served>,
    relay: HostChild,
    _behind: (Option<Reservation>, Option<JoinSet<()>>),
    _folder: Option<Folder>,
}

impl Stage {
    /// Starts a relay that has room for so many connections.
    pub(super) fn start(chain: &Chain, system: System, connections: usize) -> Result<Self> {
        match system {
            System::Whimbrel => Self::whimbrel(chain, connections),
            System::Haproxy => Self::haproxy(chain, connections, ""),
            System::HaproxySplice => Self::haproxy(chain, connections, "option splice-auto"),
        }
        .with_context(|| format!("cannot start {}", system.name()))
    }

    /// The relay's process.
    pub(super) fn pid(&mut self) -> u32 {
        self.relay.child().id()
    }

    fn whimbrel(chain: &Chain, connections: usize) -> Result<Self> {
        let this = std::env::current_exe()?;
        let room = (connections + 100).to_string();
        let command = chain.relay.host.command(&this.to_string_lossy());
        let command = command.args(["relay-child", "--connections", &room]).with(|command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let mut relay = command.spawn()?;
        let mut line = String::new();
        BufReader::new(relay.child().stdout.take().context("no output")?).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the relay ended; its message is above");
        let ready: Ready = serde_json::from_str(&line)?;
        let [to_client, to_server] = chain.relay_ips.map(|ip| SocketAddr::new(ip, ready.port));
        let served = Served::new(hello(NAME).len());
        let at = EndpointAddr::new(ready.id.parse()?, [to_server]);
        let reserving = Reservation::get(at, served.clone());
        let reservation = chain.server.wait("reserve", reserving)??;
        let first = hello(&reservation.token.to_string()).into();
        Ok(Self {
            dialler: Dialler { from: chain.client_ip, to: to_client, first },
            served,
            relay,
            _behind: (Some(reservation), None),
            _folder: None,
        })
    }

    fn haproxy(chain: &Chain, connections: usize, option: &str) -> Result<Self> {
        let haproxy = program::find("haproxy", "haproxy")?;
        let served = Served::new(hello(NAME).len());
        let (server, accepting) = chain.server.wait("listen", served.clone().accept(chain.server_ip))??;
        let folder = Folder::new("haproxy")?;
        let (file, at) = (folder.join("haproxy.cfg"), SocketAddr::new(chain.relay_ips[0], HAPROXY_PORT));
        let room = connections + 100;
        let text = format!(
            "global\n  maxconn {room}\ndefaults\n  mode tcp\n  {option}\n  timeout connect 5s\n  timeout client 1h\n  \
             timeout server 1h\nlisten relay\n  maxconn {room}\n  bind {at}\n  server behind {server}\n"
        );
        std::fs::write(&file, text)?;
        let relay =
            program::start(&chain.relay.host, &haproxy, &["-db", "-q", "-f", &file.to_string_lossy()])?;
        program::wait_for_port(&chain.relay.host, at)?;
        let first = hello(NAME).into();
        Ok(Self {
            dialler: Dialler { from: chain.client_ip, to: at, first },
            served,
            relay,
            _behind: (None, Some(accepting)),
            _folder: Some(folder),
        })
    }
}

/// The first line of what HAProxy says of itself.
pub(super) fn haproxy_version(chain: &Chain) -> Result<String> {
    haproxy::version(&chain.relay.host)
}
