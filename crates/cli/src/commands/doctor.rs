//! `whimbrel doctor`: what works from here, and what to do about the rest.

use futures_util::FutureExt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::Args;
use rustix::net::sockopt;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use whimbrel_base::{Name, SecretKey, UnixTime};
use whimbrel_names::ServiceAddress;
use whimbrel_relay::{ProbeError, probe};
use whimbrel_transport::{CarrierKind, Carriers, CloseCode, ConnectError, Endpoint};

use crate::failure::{self, Failure};
use crate::network::{Network, Peer, Wish, connect};
use crate::options::{Globals, after};
use crate::{identity, output, places};

/// How long one thing is tried. All are tried at once, and ending takes less than two seconds.
const LIMIT: Duration = Duration::from_secs(6);
/// 2025-01-01: a clock that is behind this program is wrong.
const EARLIEST: UnixTime = UnixTime::from_secs(1_735_689_600);
/// Clocks that differ by less do no harm.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);
/// What Ethernet carries; probing for more shows nothing that matters.
const LARGEST_PROBE: u32 = 1500;
/// How long a router may take to say that a packet is too large, beyond two round trips.
const PROBE_SLACK: Duration = Duration::from_millis(50);
const LONGEST_PROBE: Duration = Duration::from_millis(800);
/// What every link of IPv6 carries (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;

/// Check what works from here, and say what to do about the rest
///
/// Tries TCP and QUIC by themselves to the name service, to relays and to a peer, and looks at files, the
/// clock and the MTU. Takes ten seconds at most. The exit code is 0 only if nothing needs to be done.
#[derive(Args)]
#[command(after_help = after("Examples:\n  whimbrel doctor\n  whimbrel doctor ssh.home.ada@example.org --json"))]
pub(crate) struct Doctor {
    /// A peer to try: a name, an id or a ticket
    #[arg(value_name = "NAME|TICKET")]
    peer: Option<Peer>,
    /// A relay to try: its ticket, or ID@HOST:PORT; repeatable
    #[arg(long, value_name = "RELAY")]
    relay: Vec<ServiceAddress>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// Worth knowing; nothing needs to be done.
    Note,
    Bad,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: String,
    state: State,
    finding: String,
    remedy: Option<String>,
}

impl Finding {
    fn good(check: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Good, finding: finding.into(), remedy: None }
    }

    fn note(check: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { state: State::Note, ..Self::good(check, finding) }
    }

    fn bad(check: impl Into<String>, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Bad, remedy: Some(remedy.into()), ..Self::good(check, finding) }
    }
}

pub(crate) async fn run(globals: &Globals, args: Doctor) -> Result<()> {
    let mut findings = files(globals)?;
    findings.push(clock(SystemTime::now().into()));
    // A key that cannot be read is a finding already; the networks are looked at all the same.
    let key = identity::of_user(globals).map_or_else(|_| SecretKey::generate(), |identity| identity.key);
    let (tcp, quic) = tokio::join!(
        carrier(globals, &key, CarrierKind::Tcp, &args),
        carrier(globals, &key, CarrierKind::Quic, &args),
    );
    findings.extend(tcp.into_iter().chain(quic));
    if globals.names.is_none() {
        let how = "none is configured; names can be used with --names SERVICE, tickets without";
        findings.push(Finding::note("name service", how));
    }
    findings.extend(delegations(globals));
    if args.relay.is_empty() {
        let how = "none was given; one that this host is to be reached through can be tried with --relay";
        findings.push(Finding::note("relay", how));
    }
    let well = findings.iter().all(|finding| finding.state != State::Bad);
    if args.json {
        output::json(&json!({ "well": well, "findings": findings }))?;
    } else {
        let width = output::width();
        findings.iter().try_for_each(|finding| output::line(output::fit(&describe(finding), width, 6)))?;
    }
    if well { Ok(()) } else { Err(Failure::silent(1)) }
}

fn describe(finding: &Finding) -> String {
    let mark = match finding.state {
        State::Good => "ok  ",
        State::Note => "note",
        State::Bad => "BAD ",
    };
    let remedy = finding.remedy.as_ref().map(|remedy| format!("\n      → {remedy}")).unwrap_or_default();
    format!("{mark}  {}: {}{remedy}", finding.check, finding.finding)
}

/// Who else may read or write what only this user should.
fn files(globals: &Globals) -> Result<Vec<Finding>> {
    let directory = places::config()?;
    let identity = globals.identity.clone().unwrap_or_else(|| directory.join("identity"));
    let config = globals.config.clone().unwrap_or_else(|| directory.join("config.toml"));
    Ok(vec![
        file("identity", &identity, 0o077, "made on first use"),
        file("configuration", &config, 0o022, "there is none"),
        file("known peers", &directory.join("known_peers"), 0o022, "there are none yet"),
    ])
}

/// A file that others must not have these rights to.
fn file(check: &str, file: &Path, others: u32, absent: &str) -> Finding {
    let shown = file.display();
    match std::fs::metadata(file) {
        Ok(metadata) if metadata.mode() & others != 0 => Finding::bad(
            check,
            format!("{shown} has mode {:04o}", metadata.mode() & 0o7777),
            format!("chmod {:o} {shown}", metadata.mode() & 0o777 & !others),
        ),
        Ok(metadata) if metadata.uid() != rustix::process::geteuid().as_raw() => {
            Finding::bad(check, format!("{shown} is another user's"), format!("chown it, or remove {shown}"))
        }
        Ok(_) => Finding::good(check, format!("{shown} is this user's alone")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::note(check, format!("{shown}: {absent}"))
        }
        Err(error) => Finding::bad(check, format!("cannot look at {shown}: {error}"), "check who owns it"),
    }
}

/// Delegations, of this user's devices and to this key, that end soon.
fn delegations(globals: &Globals) -> Vec<Finding> {
    // What is wrong with the key itself is a finding already.
    let Ok(identity) = identity::of_user(globals) else { return Vec::new() };
    let found = |text: String| match text.split_once("; ") {
        Some((finding, remedy)) => Finding::bad("delegation", finding, remedy),
        None => Finding::note("delegation", text),
    };
    match crate::commands::id::devices::warnings(&identity) {
        Ok(warnings) => warnings.into_iter().map(found).collect(),
        Err(error) => vec![Finding::bad("delegations", failure::line(&error), "restore that file")],
    }
}

fn clock(now: UnixTime) -> Finding {
    if now < EARLIEST {
        let remedy = "set it, as with `timedatectl set-ntp true`: records are refused until then";
        return Finding::bad("clock", "it is years behind", remedy);
    }
    Finding::good("clock", "plausible; records that it calls expired would be told below")
}

/// What a carrier reaches by itself.
async fn carrier(globals: &Globals, key: &SecretKey, kind: CarrierKind, args: &Doctor) -> Vec<Finding> {
    // The port may be that of a command that runs.
    let globals = Globals { carrier: Some(Carriers::Only(kind)), port: None, quiet: true, ..globals.clone() };
    let network = match Network::start(&globals, key.clone(), Wish::default()).await {
        Ok(network) => network,
        Err(error) => {
            let remedy = "free a port or a socket, or check --address";
            return vec![Finding::bad(kind.to_string(), failure::line(&error), remedy)];
        }
    };
    let (service, relays, peer) =
        tokio::join!(to_service(&network, kind), to_relays(&network, kind, &args.relay), async {
            match &args.peer {
                Some(peer) => to_peer(&network, kind, peer).await,
                None => Vec::new(),
            }
        });
    network.close().await;
    service.into_iter().chain(relays).chain(peer).collect()
}

/// What to do where a carrier does not get through.
fn blocked(kind: CarrierKind) -> String {
    let (protocol, other) = if kind == CarrierKind::Quic { ("UDP", "TCP") } else { ("TCP", "QUIC") };
    format!(
        "check that it runs and that firewalls let {protocol} pass to its port; if only this carrier is bad, \
         {other} is used instead, and --carrier {} saves the trying",
        other.to_lowercase()
    )
}

async fn to_service(network: &Network, kind: CarrierKind) -> Option<Finding> {
    let check = format!("name service over {kind}");
    let resolver = network.endpoint.names()?;
    let nobody: Name = "doctor@whimbrel.invalid".parse().ok()?;
    // That there is no such name is an answer too.
    let ask = async || match resolver.lookup_record(&nobody).await {
        Err(error) if error.code().is_none() => Err(error.to_string()),
        _ => Ok(()),
    };
    let start = Instant::now();
    let first = tokio::time::timeout(LIMIT, ask()).await.unwrap_or_else(|_| Err("no answer".to_owned()));
    let connected = start.elapsed();
    if let Err(error) = first {
        return Some(Finding::bad(check, error, blocked(kind)));
    }
    let start = Instant::now();
    let again = tokio::time::timeout(LIMIT.saturating_sub(connected), ask()).await;
    let round_trip = start.elapsed();
    let took = format!("first answer after {} ms", connected.as_millis());
    Some(match again {
        Ok(Ok(())) => {
            let ms = round_trip.as_secs_f64() * 1e3;
            Finding::good(check, format!("{took}, round trip {ms:.1} ms"))
        }
        _ => Finding::bad(check, format!("{took}, and none to a second question"), blocked(kind)),
    })
}

/// All at once, each as the first would be: they have the same time.
async fn to_relays(network: &Network, kind: CarrierKind, relays: &[ServiceAddress]) -> Vec<Finding> {
    let mut trying = JoinSet::new();
    for (number, relay) in relays.iter().cloned().enumerate() {
        let endpoint = network.endpoint.transport().clone();
        trying.spawn(FutureExt::boxed(async move { (number, to_relay(&endpoint, kind, &relay).await) }));
    }
    let mut found = trying.join_all().await;
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Whether a relay gives this key a reservation. What a command that runs has reserved for it stays.
async fn to_relay(endpoint: &Endpoint, kind: CarrierKind, relay: &ServiceAddress) -> Finding {
    let check = format!("relay {} over {kind}", relay.id().short());
    let start = Instant::now();
    let probed = tokio::time::timeout(LIMIT, async {
        let at = relay.resolve().await.map_err(|error| (error.to_string(), blocked(kind)))?;
        probe(endpoint, &at).await.map_err(|error| (error.to_string(), remedy(&error, kind)))
    });
    match probed.await {
        Ok(Ok(())) => Finding::good(
            check,
            format!("would relay for this key, known after {} ms", start.elapsed().as_millis()),
        ),
        Ok(Err((why, remedy))) => Finding::bad(check, why, remedy),
        Err(_) => Finding::bad(check, "no answer", blocked(kind)),
    }
}

/// What to do about a relay that cannot be used.
fn remedy(error: &ProbeError, kind: CarrierKind) -> String {
    match error {
        ProbeError::NoRelay => {
            "check --relay: it is what `whimbrel relay serve` or `whimbrel serve` prints".to_owned()
        }
        ProbeError::Refused(_) => "use another relay, or have its operator raise --reservations".to_owned(),
        ProbeError::Connect(ConnectError::Refused { code: CloseCode::NOT_ALLOWED, .. }) => {
            "have its operator allow this key, which `whimbrel id` prints; or check that it is a relay"
                .to_owned()
        }
        _ => blocked(kind),
    }
}

async fn to_peer(network: &Network, kind: CarrierKind, peer: &Peer) -> Vec<Finding> {
    let check = format!("{peer} over {kind}");
    let start = Instant::now();
    let connection = match tokio::time::timeout(LIMIT, connect(network, peer)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            let remedy = match failure::code(&error) {
                Failure::REFUSED => "have this key allowed there: `whimbrel id` prints it".to_owned(),
                Failure::NOT_FOUND => {
                    "check the name, that it is served there, and have this key allowed there: \
                                       `whimbrel id` prints it"
                        .to_owned()
                }
                _ => blocked(kind),
            };
            return vec![Finding::bad(check, failure::line(&error), remedy)];
        }
        Err(_) => return vec![Finding::bad(check, "no answer", blocked(kind))],
    };
    let took = start.elapsed().as_millis();
    let stats = connection.stats();
    let Some(path) = stats.paths.first() else {
        return vec![Finding::good(check, format!("connected in {took} ms"))];
    };
    let ms = path.srtt.as_secs_f64() * 1e3;
    let reached = Finding::good(
        check,
        format!("connected in {took} ms to {}, round trip {ms:.1} ms", path.remote.address()),
    );
    let mut findings = vec![reached];
    if let Some(name) = peer.name()
        && let Ok(resolver) = network.resolver()
        && let Ok(Ok(signed)) = tokio::time::timeout(LIMIT, resolver.lookup_record(name)).await
    {
        let record = signed.record();
        findings.extend(clock_beside(name, record.sequence, SystemTime::now().into()));
    }
    let addresses = network.endpoint.watch_addresses().current();
    let local = addresses.addresses.iter().find(|address| address.ip == path.local.ip());
    let interface = local.and_then(|address| address.interface.as_ref()).map(ToString::to_string);
    findings.extend(interface.and_then(|interface| mtu(&interface)));
    findings.push(match path_mtu(path.remote.address(), path.srtt).await {
        Ok(mtu) => judged_path(peer, mtu),
        Err(error) => Finding::note(format!("MTU to {peer}"), format!("cannot be probed: {error}")),
    });
    findings
}

/// A clock beside the one of whoever signed a record. Numbers of records are the milliseconds at which they
/// were signed, or more: only one of the future says something.
fn clock_beside(name: &Name, sequence: u64, now: UnixTime) -> Option<Finding> {
    let ahead = Duration::from_millis(sequence.saturating_sub(now.as_millis()));
    (ahead > CLOCK_TOLERANCE).then(|| {
        let finding = format!("{} s behind that of {name}, or its is ahead", ahead.as_secs());
        Finding::bad("clock", finding, "set both, as with `timedatectl set-ntp true`")
    })
}

/// What the kernel knows of the way to a peer, after a packet as large as the first link carries that routers
/// may not break up. Routers that drop it without a word are not found out. Takes less than a second.
async fn path_mtu(peer: SocketAddr, srtt: Duration) -> io::Result<u32> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = tokio::net::UdpSocket::bind((any, 0)).await?;
    socket.connect(peer).await?;
    let known = || if peer.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
    if peer.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
    }
    let headers = if peer.is_ipv4() { 28 } else { 48 };
    // The link may carry more than any datagram.
    let size = known()?.min(LARGEST_PROBE).saturating_sub(headers);
    // A refusal by the peer, which expects none of it, is no news.
    let _ = socket.send(&vec![0; size as usize]).await;
    tokio::time::sleep((2 * srtt + PROBE_SLACK).min(LONGEST_PROBE)).await;
    Ok(known()?)
}

fn judged_path(peer: &Peer, mtu: u32) -> Finding {
    let check = format!("MTU to {peer}");
    if mtu < LEAST_MTU {
        let remedy = format!(
            "have the tunnel or link on the way carry {LEAST_MTU} bytes; until then --carrier tcp saves the trying"
        );
        return Finding::bad(check, format!("packets of {mtu} bytes get through, too few for QUIC"), remedy);
    }
    Finding::good(check, format!("{mtu} bytes, as far as routers say"))
}

/// The MTU of the path's first link. What lies behind it only the carriers' own probes know.
fn mtu(interface: &str) -> Option<Finding> {
    // The name comes from the kernel, and must not lead elsewhere all the same.
    let name = Path::new(interface).file_name()?;
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("mtu")).ok()?;
    let mtu: u32 = text.trim().parse().ok()?;
    let check = format!("MTU of {interface}");
    Some(if mtu < LEAST_MTU {
        let remedy = format!("raise it: ip link set {interface} mtu {LEAST_MTU}");
        Finding::bad(check, format!("{mtu} bytes, too few for QUIC"), remedy)
    } else {
        Finding::good(check, format!("{mtu} bytes on the first link"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_of_the_future_shows_a_clock_that_is_behind() {
        let name: Name = "web.home.ada@example.org".parse().unwrap();
        let now = UnixTime::from_secs(2_000_000_000);
        for (ahead, bad) in [(0, false), (59_000, false), (3_600_000, true)] {
            let found = clock_beside(&name, now.as_millis() + ahead, now);
            assert_eq!(found.is_some_and(|finding| finding.state == State::Bad), bad, "{ahead} ms");
        }
        assert!(clock_beside(&name, 0, now).is_none());
    }

    #[test]
    fn a_clock_that_is_years_behind_is_bad() {
        assert_eq!(clock(UnixTime::from_secs(0)).state, State::Bad);
        assert_eq!(clock(SystemTime::now().into()).state, State::Good);
    }
}
