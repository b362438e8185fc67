//! `whimbrel doctor`: what works from here, and what to do about the rest.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use whimbrel_base::{Name, SecretKey};
use whimbrel_portmap::MapError;
use whimbrel_transport::{CarrierKind, Carriers};

use crate::failure::{self, Failure};
use crate::network::{Network, Peer, Wish, connect};
use crate::options::{Globals, after};
use crate::relaying::RelayTarget;
use crate::{identity, output};

mod local;
mod mtu;
mod relays;

/// How long one thing is tried. All are tried at once, and ending takes less than two seconds.
const LIMIT: Duration = Duration::from_secs(6);

/// Check what works from here, and say what to do about the rest
///
/// Tries TCP and QUIC by themselves to the name service, to relays and to a peer, asks the router whether it
/// lets peers in over IPv6, and looks at files, the clock and the MTU. Takes ten seconds at most. The exit
/// code is 0 only if nothing needs to be done.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel doctor
  whimbrel doctor ssh.home.ada@example.org --json
  whimbrel doctor --relay pool.ada@example.org"))]
pub(crate) struct Doctor {
    /// A peer to try: a name, an id or a ticket
    #[arg(value_name = "NAME|TICKET")]
    peer: Option<Peer>,
    /// A relay or group to try: its ticket, name, or ID@HOST:PORT; repeatable
    #[arg(long, value_name = "RELAY")]
    relay: Vec<RelayTarget>,
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
    let mut findings = local::files(globals)?;
    findings.push(local::clock(SystemTime::now().into()));
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
    findings.extend(local::delegations(globals));
    findings.extend(local::names_held(globals));
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
    let to_peer = async {
        match &args.peer {
            Some(peer) => to_peer(&network, kind, peer).await,
            None => Vec::new(),
        }
    };
    let (service, router, relays, peer) = tokio::join!(
        to_service(&network, kind),
        to_router(&network, kind),
        relays::to_relays(&network, kind, &args.relay),
        to_peer,
    );
    network.close().await;
    service.into_iter().chain(router).chain(relays).chain(peer).collect()
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

/// Whether the firewall of this host's router would let peers in at its IPv6 addresses. It is asked to for a
/// moment.
async fn to_router(network: &Network, kind: CarrierKind) -> Option<Finding> {
    let check = format!("IPv6 firewall over {kind}");
    let asked =
        tokio::time::timeout(LIMIT, whimbrel_portmap::probe(network.endpoint.transport(), kind)).await;
    match asked {
        Ok(Ok(places)) => {
            let ips: Vec<String> = places.iter().map(|place| place.ip().to_string()).collect();
            let (ips, how) = (ips.join(" and "), "when it is asked to, as by --advertise router");
            Some(Finding::good(check, format!("the router opens it for {ips} {how}")))
        }
        Ok(Err(MapError::NoGate)) | Err(_) => None,
        Ok(Err(error)) => {
            let how = "if it has a firewall, peers come in over IPv6 only where that is opened by hand";
            Some(Finding::note(check, format!("{error}; {how}")))
        }
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
        findings.extend(local::clock_beside(name, record.sequence, SystemTime::now().into()));
    }
    let addresses = network.endpoint.watch_addresses().current();
    let local = addresses.addresses.iter().find(|address| address.ip == path.local.ip());
    let interface = local.and_then(|address| address.interface.as_ref()).map(ToString::to_string);
    findings.extend(interface.and_then(|interface| mtu::mtu(&interface)));
    findings.push(match mtu::path_mtu(path.remote.address(), path.srtt).await {
        Ok(mtu) => mtu::judged_path(peer, mtu),
        Err(error) => Finding::note(format!("MTU to {peer}"), format!("cannot be probed: {error}")),
    });
    findings
}
