//! ENet, by rusty_enet, which is the C library in Rust. On loopback a host is served in a loop without a
//! pause, as games do, which is its best case; in the lab, where others run beside it, with short pauses.

mod served;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rusty_enet::{Event, Host, HostSettings, Packet, PeerID};

pub(super) use self::served::served;
use super::speed::{SIZE, WARM_UP};

/// What goes on which channel.
const MESSAGES: u8 = 0;
const BULK: u8 = 1;
const CHANNELS: usize = 2;
/// Packets that may be under way: ENet's own queue has no bound.
const AHEAD: u64 = 2048;
/// What did not arrive after so long is lost.
const PATIENCE: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(10);

struct Side {
    host: Host<UdpSocket>,
    peer: PeerID,
    reliable: bool,
}

fn host(socket: UdpSocket) -> Result<Host<UdpSocket>> {
    let settings = HostSettings { peer_limit: 1, channel_limit: CHANNELS, ..HostSettings::default() };
    Host::new(socket, settings).map_err(|error| anyhow!("ENet: {error:?}"))
}

impl Side {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let packet = if self.reliable { Packet::reliable(message) } else { Packet::unreliable(message) };
        self.host.peer_mut(self.peer).send(MESSAGES, &packet).map_err(|error| anyhow!("ENet: {error:?}"))
    }

    /// Serves the host once. True if a message arrived.
    fn serve(&mut self) -> Result<bool> {
        match self.host.service()? {
            Some(Event::Receive { .. }) => Ok(true),
            Some(Event::Disconnect { .. }) => bail!("ENet lost its peer"),
            _ => Ok(false),
        }
    }
}

/// Two hosts on loopback that know each other.
fn here(reliable: bool) -> Result<(Side, Side)> {
    let socket = || UdpSocket::bind("127.0.0.1:0");
    pair(reliable, [socket()?, socket()?])
}

/// Two hosts that know each other. The second is served by the thread that is to use it.
fn pair(reliable: bool, [from, to]: [UdpSocket; 2]) -> Result<(Side, Side)> {
    let (mut from, mut to) = (host(from)?, host(to)?);
    let place = to.socket().local_addr()?;
    let peer = from.connect(place, CHANNELS, 0).map_err(|error| anyhow!("ENet: {error:?}"))?.id();
    let (mut back, mut connected, began) = (None, false, Instant::now());
    while back.is_none() || !connected {
        connected |= matches!(from.service()?, Some(Event::Connect { .. }));
        if let Some(Event::Connect { peer, .. }) = to.service()? {
            back = Some(peer.id());
        }
        if began.elapsed() > LIMIT {
            bail!("ENet does not connect");
        }
    }
    let other = back.ok_or_else(|| anyhow!("nobody came"))?;
    Ok((Side { host: from, peer, reliable }, Side { host: to, peer: other, reliable }))
}

/// Messages a second that arrive.
pub(super) fn rate(reliable: bool, length: Duration) -> Result<f64> {
    let (mut from, mut to) = here(reliable)?;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut sent, mut waits) = (0, None::<Instant>);
            while !over.load(Ordering::Relaxed) {
                if sent < received.load(Ordering::Relaxed) + AHEAD {
                    waits = None;
                    sent += u64::from(from.send(&[7; SIZE]).is_ok());
                    if sent % 16 != 0 {
                        continue;
                    }
                } else if waits.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    sent = received.load(Ordering::Relaxed);
                }
                if from.serve().is_err() {
                    return;
                }
            }
        });
        let count = |to: &mut Side, until: &dyn Fn(u64) -> bool| -> Result<u64> {
            let (mut count, mut last) = (0, Instant::now());
            while !until(count) {
                if to.serve()? {
                    received.fetch_add(1, Ordering::Relaxed);
                    (count, last) = (count + 1, Instant::now());
                } else if last.elapsed() > LIMIT {
                    bail!("ENet delivers nothing any more");
                }
            }
            Ok(count)
        };
        let measured = count(&mut to, &|count| count >= WARM_UP as u64).and_then(|_| {
            let began = Instant::now();
            let count = count(&mut to, &|count| count % 64 == 0 && began.elapsed() >= length)?;
            Ok(count as f64 / began.elapsed().as_secs_f64())
        });
        over.store(true, Ordering::Relaxed);
        measured
    })
}

/// In microseconds.
pub(super) fn round_trips(reliable: bool, length: Duration) -> Result<Vec<f64>> {
    let (mut from, mut to) = here(reliable)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                match to.serve() {
                    Ok(true) if to.send(&[7; SIZE]).is_ok() => to.host.flush(),
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        });
        let measured = echoes(&mut from, length);
        over.store(true, Ordering::Relaxed);
        measured
    })
}

fn echoes(from: &mut Side, length: Duration) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    let mut began = Instant::now();
    for number in 0.. {
        let sent = Instant::now();
        if number == WARM_UP {
            began = sent;
        }
        from.send(&[7; SIZE])?;
        from.host.flush();
        while !from.serve()? {
            // An unreliable one may be lost; a loopback loses few.
            if sent.elapsed() > LIMIT {
                bail!("ENet does not answer");
            }
        }
        if number >= WARM_UP {
            times.push(sent.elapsed().as_nanos() as f64 / 1000.0);
            if sent - began >= length {
                break;
            }
        }
    }
    Ok(times)
}
