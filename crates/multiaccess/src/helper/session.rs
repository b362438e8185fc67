//! One client of the helper: orders in, answers and events out.

use super::words::{self, Happened, MAX_LINE, Order, Told};
use crate::client::lines::Lines;
use crate::genl::{Family, Generic};
use crate::kernel::Kernel;
use crate::mptcp::{self, Action, Connection, EVENTS, Ends, Lookup, Subflow, What};
use crate::parting::{TOLD_WITHIN, part};
use netlink_packet_core::NetlinkMessage;
use netlink_packet_core::NetlinkPayload::InnerMessage;
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use std::collections::HashMap;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// A client that does not read its answers for so long is dropped.
const STALLED: Duration = Duration::from_secs(5);
/// The most connections whose events one client is told of.
const MOST: usize = 4096;
/// An address may have been known by another number before: so many numbers are tried, so far apart.
const NUMBERS: u8 = 4;
const APART: u8 = 8;
/// EINVAL: among other things the number is another address's.
const INVALID: i32 = 22;
/// ENOBUFS: the kernel had more to tell than the socket's buffer holds.
const LOST: i32 = 105;
/// The user that may order about all connections.
const ROOT: u32 = 0;

/// A socket that hears of all connections of Multipath TCP.
pub(super) struct Events {
    socket: TokioSocket,
}

impl Events {
    /// Listens from now on. Must run inside a tokio runtime.
    pub(super) fn open(family: &Family) -> io::Result<Self> {
        let group = family.group(EVENTS).ok_or(io::ErrorKind::NotFound)?;
        let mut socket = TokioSocket::new(NETLINK_GENERIC)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        socket.socket_mut().add_membership(group)?;
        Ok(Self { socket })
    }

    /// What was told next; `None`: something was lost. Cancel-safe.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.socket.recv_from_full().await {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if error.raw_os_error() == Some(LOST) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Tells a client why it is turned away.
pub(super) async fn refuse(mut stream: UnixStream, why: String) {
    let told = async {
        if let Ok(line) = line(&Told { error: Some(why), ..Told::default() })
            && stream.write_all(&line).await.is_ok()
        {
            part(&mut stream).await;
        }
    };
    let _ = tokio::time::timeout(TOLD_WITHIN, told).await;
}

fn line(told: &Told) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    Ok(line)
}

/// The exchange with one client.
pub(super) struct Session {
    /// Who orders.
    user: u32,
    family: Family,
    path_manager: Kernel,
    lookup: Lookup,
    events: Events,
    writer: OwnedWriteHalf,
    /// Connections that the client has ordered about, by their tokens.
    known: HashMap<u32, Ends>,
}

impl Session {
    /// Serves a client until it leaves or must be dropped.
    pub(super) async fn serve(stream: UnixStream, user: u32, family: Family) {
        let (reader, writer) = stream.into_split();
        let opened = Self::open(writer, user, family);
        let served = match opened {
            Ok(mut session) => session.run(Lines::up_to(MAX_LINE, reader)).await,
            Err(error) => Err(error),
        };
        match served {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                tracing::warn!(uid = user, %error, "a client is dropped");
            }
            _ => {}
        }
    }

    fn open(writer: OwnedWriteHalf, user: u32, family: Family) -> io::Result<Self> {
        Ok(Self {
            events: Events::open(&family)?,
            path_manager: Kernel::open(NETLINK_GENERIC)?,
            lookup: Lookup::open()?,
            user,
            family,
            writer,
            known: HashMap::new(),
        })
    }

    async fn run(&mut self, mut lines: Lines<OwnedReadHalf>) -> io::Result<()> {
        loop {
            tokio::select! {
                line = lines.next() => match line {
                    Ok(line) => match words::decode(line) {
                        Ok(order) => self.obey(order).await?,
                        Err(why) => return self.hang_up(why).await,
                    },
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        return self.hang_up(format!("a line has at most {MAX_LINE} bytes")).await;
                    }
                    Err(error) => return Err(error),
                },
                heard = self.events.next() => self.hear(heard?).await?,
            }
        }
    }

    /// Says what is wrong, and reads no further.
    async fn hang_up(&mut self, why: String) -> io::Result<()> {
        tracing::warn!(uid = self.user, %why, "a client says what is no order");
        self.tell(&Told { error: Some(why), ..Told::default() }).await
    }

    async fn tell(&mut self, told: &Told) -> io::Result<()> {
        let line = line(told)?;
        let written = tokio::time::timeout(STALLED, self.writer.write_all(&line)).await;
        written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn obey(&mut self, order: Order) -> io::Result<()> {
        let (subflows, error) = match self.done(&order).await {
            Ok(subflows) => (subflows, None),
            Err(why) => {
                tracing::info!(uid = self.user, %why, "an order is refused");
                (None, Some(why))
            }
        };
        let ok = error.is_none();
        self.tell(&Told { id: Some(order.id), ok, error, subflows, ..Told::default() }).await
    }

    /// Does what is ordered, if the connection is one of who orders. Returns its subflows if nothing is.
    async fn done(&mut self, order: &Order) -> Result<Option<Vec<Subflow>>, String> {
        let Ends { local, remote } = order.connection;
        let found = self.lookup.connection(order.connection).await;
        let found = found.map_err(|error| self.untold(&error))?;
        // Of another user's connection nothing is said, not even that there is one.
        let own = found.filter(|found| self.user == ROOT || found.user == self.user);
        let own =
            own.ok_or_else(|| format!("you have no connection of Multipath TCP from {local} to {remote}"))?;
        if self.known.len() >= MOST && !self.known.contains_key(&own.token) {
            return Err(format!("you have ordered about {MOST} connections already"));
        }
        self.known.insert(own.token, order.connection);
        match order.action {
            Some(action) => self.act(own.token, action).await.map(|()| None),
            None => self.subflows(&own).await.map(Some),
        }
    }

    async fn subflows(&mut self, connection: &Connection) -> Result<Vec<Subflow>, String> {
        let found = self.lookup.subflows(connection).await;
        found.map_err(|error| self.untold(&error))
    }

    fn untold(&mut self, error: &io::Error) -> String {
        self.reopen();
        format!("the kernel does not tell of connections: {error}")
    }

    async fn act(&mut self, token: u32, action: Action) -> Result<(), String> {
        let mut what = action;
        for attempt in 1..=NUMBERS {
            let message = mptcp::Order { token, what }.message(self.family.number);
            let done = self.path_manager.order(message, |_: Generic| ()).await;
            let Err(error) = done else { return Ok(()) };
            if error.kind() == io::ErrorKind::TimedOut {
                self.reopen();
            }
            match (&mut what, error.raw_os_error()) {
                (Action::Create { number, .. }, Some(INVALID)) if attempt < NUMBERS => {
                    *number = number.wrapping_add(APART).max(1);
                }
                _ => return Err(format!("the kernel refuses it: {error}")),
            }
        }
        Ok(())
    }

    /// Opens the sockets to the kernel anew: an answer may be half read. The old ones stay if that fails, and
    /// answers to old questions are known by their numbers.
    fn reopen(&mut self) {
        if let (Ok(path_manager), Ok(lookup)) = (Kernel::open(NETLINK_GENERIC), Lookup::open()) {
            (self.path_manager, self.lookup) = (path_manager, lookup);
        }
    }

    /// Passes on what happened to connections of this client.
    async fn hear(&mut self, heard: Option<Vec<u8>>) -> io::Result<()> {
        let Some(bytes) = heard else {
            // Ends of connections too; the client orders about those that there are.
            self.known.clear();
            return self.tell(&Told { lost: true, ..Told::default() }).await;
        };
        let Ok(message) = NetlinkMessage::<Generic>::deserialize(&bytes) else { return Ok(()) };
        let InnerMessage(message) = message.payload else { return Ok(()) };
        let told = Some(message).filter(|message| message.family == self.family.number);
        let Some(event) = told.as_ref().and_then(mptcp::event) else { return Ok(()) };
        let Some(connection) = self.known.get(&event.token).copied() else { return Ok(()) };
        if event.what == What::Closed {
            self.known.remove(&event.token);
        }
        let event = Some(Happened { connection, what: event.what });
        self.tell(&Told { event, ..Told::default() }).await
    }
}
