//! The command line.

mod every;
pub(crate) mod listed;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand};

use crate::benches::handover::Experiment;
use crate::benches::reach::Experiment as Reach;
use crate::benches::recovery::AWAY_MS;
use crate::benches::session_move::Experiment as Move;
use crate::benches::{self, Plan, child};
use crate::output::Output;
use crate::page;
use crate::system::Kind;

/// Where results are kept unless another place is said.
const KEPT_IN: &str = "bench/results";

const EXAMPLES: &str = "\
Examples:
  whimbrel-bench                           every bench, results below bench/results
  whimbrel-bench throughput --rounds 9     one bench, nine rounds
  whimbrel-bench connect --quick           a smoke run, nothing is kept
  whimbrel-bench recovery --rtt 50         moves in the lab, one round-trip time
  whimbrel-bench server-move --connections 500
  whimbrel-bench handover                  the papers' experiments with two links
  whimbrel-bench handover --only goodput,delay --rounds 5
  whimbrel-bench session-move --only download,talk
  whimbrel-bench reach --only time,moves   direct paths between homes behind NAT
  whimbrel-bench access-pages --browsers client --pages \"32 x\" --rounds 3
  whimbrel-bench ping-pong --systems whimbrel,tls --json

The peers TLS, quinn and iroh are compiled in with `--features peers` only.";

/// Measures whimbrel beside TCP, TLS over TCP, quinn, iroh, ENet, HAProxy, tinyproxy and kernel MPTCP.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// What holds for every bench.
#[derive(Debug, Args)]
struct Options {
    /// Rounds; in each, every system runs once.
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds that one trial measures.
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Print one JSON object a line instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// Where results are kept, as `BENCH.json`, and drawn, as `BENCH.svg`.
    #[arg(long, global = true, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A smoke run: few, short rounds; results are kept only where `--out` says.
    #[arg(long, global = true)]
    quick: bool,
    /// Where the recorded networks of the bench `traces` are.
    #[arg(long, global = true, value_name = "DIR", default_value = "../shared/data/traces")]
    traces: PathBuf,
    /// Only these systems.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    systems: Vec<Kind>,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Every bench, one after the other (the default).
    All,
    /// 64 KiB writes: one stream, both ways at once, 8 streams.
    Throughput,
    /// One stream, 1 KiB writes: how well they are gathered.
    SmallWrites,
    /// One byte there and back.
    PingPong,
    /// Messages of 100 bytes: how many a second, and one there and back.
    Messages,
    /// A limit of a connection's rate: how well it is kept.
    RateLimit,
    /// From starting to connect to a known peer until the first byte was echoed.
    Connect,
    /// The same in the lab, at several round-trip times, of a known and of an unknown peer.
    ConnectLab,
    /// Relays of a group, simulated: how even their load is, and how near they are, when places fail.
    RelaysAtScale,
    /// In the lab: what a relay carries, beside HAProxy and iroh-relay.
    Relay,
    /// In the lab: what idle connections cost a relay, beside HAProxy.
    RelayIdle {
        /// How many connections.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// In the lab: how soon a known peer behind a relay is heard, beside iroh.
    RelayFirstByte,
    /// In the lab: direct paths between homes behind NAT, moves, and a relay's death, beside iroh.
    #[command(alias = "relay-direct")]
    Reach {
        /// Only these.
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<Reach>,
    },
    /// Connections accepted a second, beside many idle ones and beside few.
    Accept {
        /// How many idle connections are many.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// Memory and CPU time of connections that do nothing.
    Idle {
        /// How many connections.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// In the lab: how long a move of either side, or both, interrupts a connection.
    Recovery {
        /// How long a host that moves has no address in the last round, in milliseconds; in the first it gets
        /// one at once, in those between after a while between.
        #[arg(long, default_value_t = AWAY_MS)]
        away: u64,
        /// Only these round-trip times of 20, 50, 100 and 200, in milliseconds.
        #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = benches::recovery::parse_rtt)]
        rtt: Vec<u64>,
    },
    /// In the lab: how long a client's move interrupts a connection over QUIC.
    QuicRecovery,
    /// In the lab: bulk over a path that loses packets, QUIC beside TCP.
    Lossy,
    /// In the lab: how late messages are over links that lose packets.
    MessageDelay,
    /// In the lab: how soon messages go on after an outage of a minute.
    MessageOutage,
    /// In the lab: 2 MB and an answer over the networks of the mockets paper.
    MocketsTables,
    /// In the lab: how soon a suspended connection goes on elsewhere, and how large it is.
    Suspend,
    /// In the lab: how long a peer hears nothing while the other end is handed over live.
    HandOverGap,
    /// In the lab: what a decision of the multi-access manager costs, and what it costs to measure.
    AccessDecision {
        /// How many TCP connections the host has.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// In the lab: page loads over two networks through the proxy and the manager, by real browsers too.
    AccessPages(benches::access_pages::Choice),
    /// In the lab: what the multi-access manager's program costs at rest and under traffic.
    ManagerRest {
        /// How many TCP connections the host has.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// In the lab: what the HTTP proxy carries, beside HAProxy and tinyproxy.
    ProxyHttp,
    /// In the lab: a download over two networks by ranges and through a gateway.
    GatewayDownload,
    /// In the lab: curl through a gateway while its host moves.
    GatewayMoves,
    /// In the lab: what sessions through a gateway carry, and what they cost under load, beside HAProxy.
    GatewaySessions {
        /// How many sessions are many.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        sessions: Option<u16>,
    },
    /// Memory of connections whose peers are suspended.
    Standby {
        /// How many connections.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// In the lab: how long many connections are interrupted when their server moves.
    ServerMove {
        /// How many connections, instead of 20, 100, 500 and 2000.
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
        connections: Vec<u16>,
    },
    /// In the lab: running sessions that move to another device through the gateway.
    SessionMove {
        /// Only these.
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<Move>,
    },
    /// In the lab: a file over two links, beside kernel MPTCP and TCP on each link.
    Aggregate {
        /// Only pairs of links whose name begins so, as in "30+10".
        #[arg(long, value_name = "NAME")]
        links: Option<String>,
    },
    /// In the lab: the first seconds over two links.
    StartUp {
        /// Only pairs of links whose name begins so, as in "30+10".
        #[arg(long, value_name = "NAME")]
        links: Option<String>,
    },
    /// In the lab: small objects over two unequal links.
    SmallObjects,
    /// In the lab: small requests beside a download through the same `forward`.
    BesideBulk,
    /// In the lab: programs through `forward`, `ssh -L` and stunnel.
    Tunnel,
    /// In the lab: the longest silence at the beginning of a download over two links.
    Smooth,
    /// In the lab: a download's first seconds, while TCP takes over from QUIC.
    TakeOver,
    /// In the lab: how long the application hears nothing when the link in use is lost.
    Failover,
    /// In the lab: Wi-Fi beside recorded cellular networks.
    Traces,
    /// In the lab: both ends move at once, a hundred times.
    BothMove,
    /// In the lab: CPU time with two paths and with one.
    Cpu,
    /// In the lab: the experiments of the handover papers.
    Handover {
        /// Only these.
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<Experiment>,
    },
    /// The page of all kept results: what each target asks, what was found, what is missed.
    Report {
        /// Write it there instead of printing it.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// One side of `idle` or `accept`, in a process of its own.
    #[command(hide = true)]
    IdleChild(child::Role),
    /// The relay of `relay` and `relay-idle`, in a process of its own.
    #[command(hide = true)]
    RelayChild {
        #[arg(long)]
        connections: usize,
        /// iroh's relay, which has no such limit.
        #[arg(long)]
        iroh: bool,
        /// Over TLS: its addresses.
        #[arg(long)]
        tls: Vec<IpAddr>,
    },
}

impl Cli {
    pub(crate) fn run(self) -> Result<()> {
        let command = self.command.unwrap_or(Command::All);
        if let Command::IdleChild(role) = command {
            return child::run(role);
        }
        if let Command::RelayChild { connections, iroh, tls } = command {
            return match iroh {
                #[cfg(feature = "peers")]
                true => benches::relayed::iroh::run(&tls),
                #[cfg(not(feature = "peers"))]
                true => {
                    drop(tls);
                    Err(anyhow!("iroh is not compiled in"))
                }
                false => benches::relayed::child::run(connections),
            };
        }
        if let Command::Report { page } = command {
            return report(&self.options.out.unwrap_or_else(|| KEPT_IN.into()), page.as_deref());
        }
        if command.needs_lab() {
            // May start this program again, inside a user namespace.
            whimbrel_lab::enter().map_err(|reason| anyhow!("the lab cannot run: {reason}"))?;
        }
        let options = self.options;
        let plan = options.plan()?;
        let mut output = Output::new(options.json, options.kept_in(), options.quick)?;
        match command {
            Command::All => every::run(&plan, &options.traces, &mut output),
            Command::Throughput => benches::bulk::throughput(&plan, &mut output),
            Command::SmallWrites => benches::bulk::small_writes(&plan, &mut output),
            Command::PingPong => benches::ping_pong::run(&plan, &mut output),
            Command::Messages => benches::messages::run(&plan, &mut output),
            Command::RateLimit => benches::rate_limit::run(&plan, &mut output),
            Command::RelaysAtScale => benches::relays::run(&plan, &mut output),
            Command::Relay => benches::relayed::speed::run(&plan, &mut output),
            Command::RelayIdle { connections } => {
                benches::relayed::idle::run(&plan, connections, &mut output)
            }
            Command::RelayFirstByte => benches::relayed::first_byte::run(&plan, &mut output),
            Command::Reach { only } => benches::reach::run(&plan, &only, &mut output),
            Command::Connect => benches::connect::run(&plan, &mut output),
            Command::ConnectLab => benches::connect_lab::run(&plan, &mut output),
            Command::Accept { connections } => benches::accept::run(&plan, connections, &mut output),
            Command::Idle { connections } => benches::idle::run(&plan, connections, &mut output),
            Command::Recovery { away, rtt } => {
                benches::recovery::run(&plan, Duration::from_millis(away), &rtt, &mut output)
            }
            Command::QuicRecovery => benches::recovery::run_quic(&plan, &mut output),
            Command::Lossy => benches::lossy::run(&plan, &mut output),
            Command::MessageDelay => benches::message_delay::run(&plan, &mut output),
            Command::MessageOutage => benches::message_outage::run(&plan, &mut output),
            Command::MocketsTables => benches::mockets_tables::run(&plan, &mut output),
            Command::Suspend => benches::suspend::run(&plan, &mut output),
            Command::HandOverGap => benches::hand_over_gap::run(&plan, &mut output),
            Command::AccessDecision { connections } => {
                benches::access_decision::run(&plan, connections, &mut output)
            }
            Command::AccessPages(choice) => {
                benches::access_pages::run(&plan, &choice, &options.traces, &mut output)
            }
            Command::ManagerRest { connections } => {
                benches::manager_rest::run(&plan, connections, &mut output)
            }
            Command::ProxyHttp => benches::proxy_http::run(&plan, &mut output),
            Command::GatewayDownload => benches::gateway::download::run(&plan, &mut output),
            Command::GatewayMoves => benches::gateway::moves::run(&plan, &mut output),
            Command::GatewaySessions { sessions } => {
                benches::gateway::sessions::run(&plan, sessions.map(usize::from), &mut output)
            }
            Command::Standby { connections } => benches::standby::run(&plan, connections, &mut output),
            Command::ServerMove { connections } => {
                let counts: Vec<usize> = connections.into_iter().map(usize::from).collect();
                benches::server_move::run(&plan, &counts, &mut output)
            }
            Command::SessionMove { only } => benches::session_move::run(&plan, &only, &mut output),
            Command::Aggregate { links } => {
                benches::aggregate::aggregate(&plan, links.as_deref(), &mut output)
            }
            Command::StartUp { links } => benches::aggregate::start_up(&plan, links.as_deref(), &mut output),
            Command::SmallObjects => benches::small_objects::run(&plan, &mut output),
            Command::BesideBulk => benches::beside_bulk::run(&plan, &mut output),
            Command::Tunnel => benches::tunnel::run(&plan, &mut output),
            Command::Smooth => benches::smooth::run(&plan, &mut output),
            Command::TakeOver => benches::take_over::run(&plan, &mut output),
            Command::Failover => benches::failover::run(&plan, &mut output),
            Command::Traces => benches::traces::run(&plan, &options.traces, &mut output),
            Command::BothMove => benches::both_move::run(&plan, &mut output),
            Command::Cpu => benches::cpu::run(&plan, &mut output),
            Command::Handover { only } => benches::handover::run(&plan, &only, &mut output),
            Command::Report { .. } | Command::IdleChild(_) | Command::RelayChild { .. } => Ok(()),
        }
        .context("the bench did not finish")
    }
}

fn report(folder: &Path, to: Option<&Path>) -> Result<()> {
    let text = page::page(folder, &listed::benches())?;
    match to {
        Some(file) => std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display())),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

impl Command {
    fn needs_lab(&self) -> bool {
        let runs_here = matches!(
            self,
            Self::All
                | Self::Throughput
                | Self::SmallWrites
                | Self::PingPong
                | Self::Messages
                | Self::RateLimit
                | Self::RelaysAtScale
                | Self::Connect
                | Self::Idle { .. }
                | Self::Accept { .. }
                | Self::Standby { .. }
                | Self::Report { .. }
                | Self::IdleChild(_)
                | Self::RelayChild { .. }
        );
        !runs_here
    }
}

impl Options {
    fn plan(&self) -> Result<Plan> {
        let mut systems = Kind::available();
        if !self.systems.is_empty() {
            if let Some(missing) = self.systems.iter().find(|s| !systems.contains(s)) {
                bail!("{missing} is not compiled in; build with `--features peers`");
            }
            systems.retain(|s| self.systems.contains(s));
        }
        Ok(Plan { systems, rounds: self.rounds, seconds: self.seconds, quick: self.quick })
    }

    fn kept_in(&self) -> Option<PathBuf> {
        match (&self.out, self.quick) {
            (Some(out), _) => Some(out.clone()),
            (None, true) => None,
            (None, false) => Some(KEPT_IN.into()),
        }
    }
}
