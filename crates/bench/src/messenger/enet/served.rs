//! Hosts that are served by threads of their own.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rusty_enet::{Event, Packet};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{BULK, Side, pair};
use crate::messenger::{Arrived, BLOCK, End, Letter, Places};
use crate::system::BoxFuture;

/// Between two looks at a host that has nothing to do.
const PAUSE: Duration = Duration::from_micros(200);
/// Bytes of bulk that are queued beyond what has arrived: ENet's own queue has no bound.
const BULK_AHEAD: u64 = 512 * 1024;
/// An outage ends no connection. In milliseconds.
const NEVER: u32 = 3_600_000;

/// One end, served by a thread that ends with it.
pub(in crate::messenger) struct Served {
    out: Sender<Vec<u8>>,
    letters: UnboundedReceiver<Letter>,
    bulk: Arc<Bulk>,
    dialled: bool,
}

/// What both ends, which share a process, know of the transfer beside the messages.
#[derive(Default)]
struct Bulk {
    runs: AtomicBool,
    arrived: AtomicU64,
}

pub(in crate::messenger) async fn served(places: &Places, reliable: bool) -> Result<(Served, Served)> {
    let at = places.at;
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let from = places.first.spawn(async move { UdpSocket::bind(any) }).await??;
    let to = places.second.spawn(async move { UdpSocket::bind((at, 0)) }).await??;
    let (mut from, mut to) =
        tokio::task::spawn_blocking(move || pair(reliable, [from, to])).await.context("ENet panicked")??;
    for side in [&mut from, &mut to] {
        side.host.peer_mut(side.peer).set_timeout(0, NEVER, NEVER);
    }
    let bulk = Arc::new(Bulk::default());
    Ok((Served::start(from, true, &bulk)?, Served::start(to, false, &bulk)?))
}

impl Served {
    fn start(side: Side, dialled: bool, bulk: &Arc<Bulk>) -> Result<Self> {
        let (out, queue) = channel();
        let (told, letters) = unbounded_channel();
        let shared = bulk.clone();
        thread::Builder::new().name("enet".into()).spawn(move || {
            // The other side hears of it otherwise.
            let _ = serve(side, &queue, &told, &shared, dialled);
        })?;
        Ok(Self { out, letters, bulk: bulk.clone(), dialled })
    }
}

/// Serves a host until its end is dropped.
fn serve(
    mut side: Side,
    queue: &Receiver<Vec<u8>>,
    told: &UnboundedSender<Letter>,
    bulk: &Bulk,
    pours: bool,
) -> Result<()> {
    let mut poured = 0;
    loop {
        loop {
            match queue.try_recv() {
                Ok(message) => side.send(&message)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        if pours && bulk.runs.load(Ordering::Relaxed) {
            while poured < bulk.arrived.load(Ordering::Relaxed) + BULK_AHEAD {
                let peer = side.host.peer_mut(side.peer);
                let block = Packet::reliable(&[7; BLOCK][..]);
                peer.send(BULK, &block).map_err(|error| anyhow!("ENet: {error:?}"))?;
                poured += BLOCK as u64;
            }
        }
        let mut idle = true;
        // A socket without a route fails, and works again later.
        while let Ok(Some(event)) = side.host.service() {
            idle = false;
            match event {
                Event::Receive { channel_id: BULK, packet, .. } => {
                    bulk.arrived.fetch_add(packet.data().len() as u64, Ordering::Relaxed);
                }
                Event::Receive { packet, .. } => told.send(Letter::of(packet.data()))?,
                Event::Disconnect { .. } => return Ok(()),
                Event::Connect { .. } => {}
            }
        }
        if idle {
            thread::sleep(PAUSE);
        }
    }
}

impl End for Served {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.out.send(message.to_vec()).context("ENet's connection is over")
    }

    async fn receive(&mut self) -> Result<Letter> {
        self.letters.recv().await.context("ENet's connection is over")
    }

    fn beside(&mut self, arrived: Arrived) -> BoxFuture<'static, Result<()>> {
        let (bulk, dialled) = (self.bulk.clone(), self.dialled);
        Box::pin(async move {
            if dialled {
                bulk.runs.store(true, Ordering::Relaxed);
                let () = std::future::pending().await;
            }
            loop {
                arrived.store(bulk.arrived.load(Ordering::Relaxed), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }
}
