//! All pairs of NAT gateways: every one is connected, no byte is wrong, and those that can be opened for each
//! other are. `WHIMBREL_RUNS` (1) says how often each pair is tried, `WHIMBREL_SIZE` (8) how many MiB go
//! through it in the first run; `make eval-reach` has 20 and 1024.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::homes::gateway::{Gateway, HTTPS, homes_as};
use crate::homes::{Carriers, Homes, Plan, direct, is_direct};
use crate::lab_support::net::Family;
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_base::SecretKey;
use whimbrel_lab::{NatKind, require};
use whimbrel_transport::Builder;

/// Worlds side by side: they mostly wait.
const LANES: usize = 4;
/// The same where each cell is tried often: then most of the time is for paths that cannot become direct.
const MANY_LANES: usize = 8;
/// A run that is not about bytes.
const LITTLE: u64 = 1 << 20;
/// More is a matter of minutes.
const MUCH: u64 = 64 << 20;
/// Where the server listens whose port is passed on.
const PORT: u16 = 4433;

/// What was asked for by the environment, or that.
fn asked(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual).max(1)
}

/// How a client and a server are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    /// By these gateways, the client's and the server's.
    Pair(Gateway, Gateway),
    /// The server has a public address.
    Public,
    /// The server's gateway, which maps each flow anew, passes a port on.
    Mapped,
    /// By one carrier's gateway, which turns back what is sent to its own address, or does not.
    Neighbours { hairpins: bool },
    /// By stateful firewalls of IPv6.
    Ipv6,
    /// By gateways that forget a mapping after 30 s.
    ShortLived,
}

impl Cell {
    const OTHERS: [Self; 6] = [
        Self::Public,
        Self::Mapped,
        Self::Neighbours { hairpins: true },
        Self::Neighbours { hairpins: false },
        Self::Ipv6,
        Self::ShortLived,
    ];

    fn name(self) -> String {
        match self {
            Self::Pair(client, server) => format!("{client} and {server}"),
            Self::Public => "a public server".into(),
            Self::Mapped => "a port that is passed on".into(),
            Self::Neighbours { hairpins: true } => "one carrier, hairpins".into(),
            Self::Neighbours { hairpins: false } => "one carrier, no hairpins".into(),
            Self::Ipv6 => "IPv6 firewalls".into(),
            Self::ShortLived => "mappings of 30 s".into(),
        }
    }

    /// What carries after a while, if that is certain: a search may find nothing.
    fn expected(self) -> Option<&'static str> {
        match self {
            Self::Pair(client, server) if client.is_searched_with(server) => None,
            Self::Pair(client, server) if client.open_with(server) => Some("punched"),
            Self::Pair(..) | Self::Neighbours { hairpins: false } => Some("relayed"),
            Self::Public => Some("direct"),
            Self::Mapped => Some("mapped"),
            Self::Neighbours { hairpins: true } | Self::Ipv6 | Self::ShortLived => Some("punched"),
        }
    }

    /// What a direct path between such is called.
    fn opened(self) -> &'static str {
        match self {
            Self::Public => "direct",
            Self::Mapped => "mapped",
            Self::Pair(client, server) if client.is_searched_with(server) => "searched",
            _ => "punched",
        }
    }

    /// A direct path that can come does so within this: a machine may be busy. One that cannot come is waited
    /// for a little.
    fn patience(self, runs: u64) -> Duration {
        match self.expected() {
            Some("relayed") if runs > 1 => secs(10),
            Some("relayed") => ms(500),
            Some(_) => secs(20),
            None => secs(10),
        }
    }

    /// `size`: how much goes through them.
    fn homes(self, size: u64) -> Homes {
        // A frame at a time, the machine would be busy with waking the links' threads.
        let plan = Plan { grain: if size > MUCH { ms(1) } else { Duration::ZERO }, ..Plan::default() };
        match self {
            Self::Pair(client, server) => homes_as(plan, [client, server]),
            Self::Public => Homes::build(Plan { relays: 2, ..plan }),
            Self::Mapped => Homes::build(plan),
            Self::Neighbours { hairpins } => {
                let homes = Homes::build(Plan { carriers: Carriers::Shared, ..plan });
                homes.gateways.iter().for_each(|nat| nat.set_kind(NatKind::PortRestricted).unwrap());
                homes.carriers[0].set_kind(NatKind::FullCone).unwrap();
                if hairpins {
                    homes.carriers[0].hairpin([10, 0, 3, 10].into()).unwrap();
                }
                homes
            }
            Self::Ipv6 => Homes::build(Plan { family: Family::V6, ..plan }),
            Self::ShortLived => {
                let homes = homes_as(plan, [Gateway::Nat(NatKind::PortRestricted); 2]);
                homes.gateways.iter().for_each(|nat| nat.forget_idle_udp_after(secs(30)).unwrap());
                homes
            }
        }
    }
}

/// One run: so many bytes go half down and half up, and none is wrong. Returns which path carries then.
fn run(cell: Cell, size: u64, runs: u64) -> &'static str {
    let homes = cell.homes(size);
    let relay = homes.relay_at(0, HTTPS);
    let (server, _kept) = match cell {
        Cell::Public => {
            let node = &homes.relays[1].0;
            (Server::start(node, node.endpoint()), None)
        }
        Cell::Mapped => {
            homes.gateways[1].forward_port(PORT, homes.server.ip()).unwrap();
            let outside = SocketAddr::from(([10, 0, 2, 10], PORT));
            let change = |builder: Builder| builder.port(PORT).advertise([outside]);
            let (server, keeper) = homes.serve_with(&SecretKey::generate(), &[&relay], change);
            (server, Some(keeper))
        }
        _ => {
            let (server, keeper) = homes.serve(&[&relay]);
            (server, Some(keeper))
        }
    };
    let (_client, connection) = homes.connect(&server);
    let is_direct_soon = direct(&homes, &connection, cell.patience(runs)).is_some();
    // At least a MiB a second, whatever else the machine does.
    let limit = secs(60 + size / LITTLE);
    for way in [Way::Down, Way::Up] {
        Transfer::start(&homes.client, &connection, &server, way, size / 2)
            .finish_within(&homes.client, limit);
    }
    if is_direct_soon || is_direct(&connection) { cell.opened() } else { "relayed" }
}

/// All cells, and what carried in each run of each.
fn all() -> Vec<(Cell, Vec<&'static str>)> {
    let pairs =
        Gateway::ALL.into_iter().flat_map(|client| Gateway::ALL.map(|server| Cell::Pair(client, server)));
    let cells: Vec<Cell> = pairs.chain(Cell::OTHERS).collect();
    let (runs, size) = (asked("WHIMBREL_RUNS", 1), asked("WHIMBREL_SIZE", 8) << 20);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..if runs > 1 { MANY_LANES } else { LANES } {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                    let sizes = (0..runs).map(|number| if number == 0 { size } else { LITTLE });
                    let carried: Vec<_> = sizes.map(|size| run(cell, size, runs)).collect();
                    let mut found = found.lock().unwrap();
                    found.push((cell, carried));
                    if runs > 1 {
                        let (_, carried) = found.last().unwrap();
                        println!("{} of {}: {}: {}", found.len(), cells.len(), cell.name(), shown(carried));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(cell, _)| cells.iter().position(|one| one == cell));
    found
}

/// What carried: once if it was the same each time.
fn shown(carried: &[&'static str]) -> String {
    let direct = carried.iter().filter(|one| **one != "relayed").count();
    match carried.iter().find(|one| **one != "relayed") {
        Some(opened) if direct == carried.len() => (*opened).to_owned(),
        Some(opened) => format!("{opened} {direct}/{}", carried.len()),
        None => "relayed".to_owned(),
    }
}

fn print(found: &[(Cell, Vec<&'static str>)]) {
    println!("{:<16}{}", "client, server:", Gateway::ALL.map(|gateway| format!("{gateway:<16}")).concat());
    for client in Gateway::ALL {
        let row = found.iter().filter(|(cell, _)| matches!(cell, Cell::Pair(one, _) if *one == client));
        let row: String = row.map(|(_, carried)| format!("{:<16}", shown(carried))).collect();
        println!("{client:<16}{row}");
    }
    for (cell, carried) in found.iter().filter(|(cell, _)| !matches!(cell, Cell::Pair(..))) {
        println!("{:<26}{}", cell.name(), shown(carried));
    }
}

#[test]
fn every_pair_of_gateways_is_connected_and_direct_where_that_is_possible() {
    if !require!() {
        return;
    }
    let found = all();
    print(&found);
    assert_eq!(found.len(), Gateway::ALL.len() * Gateway::ALL.len() + Cell::OTHERS.len());
    for (cell, carried) in &found {
        match cell.expected() {
            Some(expected) => {
                assert!(carried.iter().all(|one| *one == expected), "{}: {carried:?}", cell.name());
            }
            // 49 of 50 searches find a port.
            None => {
                let searched = carried.iter().filter(|one| **one == "searched").count();
                let enough = if carried.len() < 20 { 0 } else { carried.len() * 4 / 5 };
                assert!(searched >= enough, "{}: {searched} of {}", cell.name(), carried.len());
            }
        }
    }
}
