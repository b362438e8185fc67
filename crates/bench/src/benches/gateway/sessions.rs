//! What many sessions through `whimbrel gateway serve` carry, and what they cost it under load, beside
//! HAProxy.
//!
//! Programs connect to `whimbrel proxy socks`, which leads through the gateway to a web server. The peer
//! of whose rate 0.9 is asked does the same work: HAProxy in TCP mode on the client's host, which takes
//! connections in the clear and passes them on by TLS, and another one in the gateway's place, which
//! passes them on in the clear. HAProxy alone, which encrypts nothing, is measured beside them. Clients
//! and server are in this process, the same for all, and the processors are shared by everything.
//!
//! All sessions lead to the server before the first of them carries much: HAProxy takes a connection
//! before it has one to the server, makes its TLS handshakes behind everything else, and carried 40 to
//! 150 of 1000 where it had to make them beside bulk. The subject's lead there before a program may use
//! them.
//!
//! Memory is measured behind a link that is slower than the server, so that the gateway has as much to
//! keep as it keeps. What it may take is 64 KiB for each session, and twice what the link holds for all.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{LinkSpec, Rate};

use super::through::{Place, System, Through};
use crate::benches::{Plan, rotated};
use crate::lab::{Chain, Hub, LIMIT, haproxy};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;
use crate::web::{Content, Counted, Load, WebServer};

const FEW: usize = 16;
const MANY: usize = 1000;
/// Each connection asks for one such object after the other.
const OBJECT: u64 = 32 << 20;
const PORT: u16 = 80;
/// Of the client's link where memory is measured.
const RATE: Rate = Rate::mbit(100);
const RTT: Duration = Duration::from_millis(50);
const SERVER_RTT: Duration = Duration::from_millis(1);
/// Bytes of what a server has said that the kernel holds for each connection. By itself it holds a
/// megabyte for each that waits: a thousand of them pass the limit of TCP for all hosts of the lab, and
/// every connection there is held back then.
const HELD: usize = 128 * 1024;
/// For each session, in bytes.
const EACH: f64 = 65_536.0;
/// Buffers have the size that they need.
const SETTLE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);

const SPEC: Spec = Spec {
    name: "gateway-sessions",
    title: "sessions through the gateway: what they carry, and its resident memory for each under load; over: above \
            64 KiB and twice what the link holds",
    metrics: &[
        Metric { key: "rate", unit: "Gbit/s" },
        // That brought something while it was measured.
        Metric { key: "carrying", unit: "sessions" },
        Metric { key: "memory", unit: "KiB each" },
        Metric { key: "over", unit: "KiB each" },
    ],
    targets: &[
        Target {
            case: "bulk",
            of: "whimbrel",
            metric: "rate",
            against: Some("haproxy tls"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.9),
            aim: 1.0,
        },
        Target {
            case: "memory",
            of: "whimbrel",
            metric: "over",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(0.0),
            aim: 0.0,
        },
    ],
    plot: Plot::Ratios,
};

pub(crate) fn run(plan: &Plan, sessions: Option<usize>, output: &mut Output) -> Result<()> {
    sys::raise_file_limit()?;
    let many = sessions.unwrap_or(if plan.quick { MANY / 10 } else { MANY });
    let length = plan.length(3.0);
    let chain = Chain::direct()?;
    let at = (chain.server_ip, PORT).into();
    let server = WebServer::start_holding(HELD, &chain.server.runtime, at, Content::new())?;
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        for count in [FEW, many] {
            for system in rotated(&System::ALL, round) {
                let case = format!("bulk, sessions {count}");
                let counted = carried(&chain, server.address, system, count, length)
                    .with_context(|| format!("{case} by {}", system.name()))?;
                let trial = Trial::new(system.name(), round).in_case(case);
                let trial = trial.with("rate", counted.gigabits_per_second());
                let trial = trial.with("carrying", counted.carrying() as f64);
                output.trial(&SPEC, &trial);
                trials.push(trial);
            }
        }
        for system in rotated(&System::ALL, round) {
            let case = format!("memory, sessions {many}");
            let each = kept(system, many, length).with_context(|| format!("{case} by {}", system.name()))?;
            let over = each - allowed(many);
            let trial = Trial::new(system.name(), round).in_case(case).with("memory", each / 1024.0);
            let trial = trial.with("over", over / 1024.0);
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "carrier": "auto",
        "seconds": length.as_secs_f64(),
        "object_bytes": OBJECT,
        "server_holds_bytes": HELD,
        "memory_mbit": RATE.bits_per_second() / 1_000_000,
        "memory_rtt_ms": RTT.as_millis() as u64,
        "haproxy": haproxy::version(&chain.relay.host)?,
    });
    output.finish(&SPEC, settings, &trials)
}

/// What a session may cost the gateway, of so many, in bytes.
fn allowed(sessions: usize) -> f64 {
    EACH + 2.0 * RATE.bytes_in(RTT) as f64 / sessions as f64
}

/// What the clients get over so many connections.
fn carried(
    chain: &Chain,
    server: SocketAddr,
    system: System,
    sessions: usize,
    length: Duration,
) -> Result<Counted> {
    let place = Place {
        client: &chain.client.host,
        gateway: &chain.relay.host,
        gateway_ip: chain.relay_ips[0],
        server,
    };
    let through = Through::start(place, system, sessions)?;
    chain.client.within(LIMIT + length, "load", async {
        Load::start_together(through.dialler, sessions, OBJECT).await?.measure(length).await
    })?
}

/// The most memory that the gateway's process has more than without sessions, for each, in bytes.
fn kept(system: System, sessions: usize, length: Duration) -> Result<f64> {
    let link = LinkSpec::default().delay(RTT / 2).rate(RATE);
    let hub = Hub::new(SERVER_RTT, &[("client", Some(link))])?;
    let client = hub.devices.first().context("there is no client")?;
    let at = (hub.server.own, PORT).into();
    let server = WebServer::start_holding(HELD, &hub.server.site.runtime, at, Content::new())?;
    let place = Place {
        client: &client.site.host,
        gateway: &hub.gateway.host,
        gateway_ip: client.gateway,
        server: server.address,
    };
    let mut through = Through::start(place, system, sessions)?;
    let pid = through.gateway_pid();
    let before = sys::resident_of(pid)?;
    let starting = Load::start_together(through.dialler, sessions, OBJECT);
    let mut load = client.site.within(LIMIT, "load", starting)??;
    std::thread::sleep(SETTLE);
    let (began, mut most) = (Instant::now(), 0);
    while began.elapsed() < length {
        most = most.max(sys::resident_of(pid)?);
        std::thread::sleep(LOOK);
    }
    load.check()?;
    Ok(most.saturating_sub(before) as f64 / sessions as f64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_session_may_take_its_64_kib_and_its_share_of_twice_what_the_link_holds() {
        // 100 Mbit/s for 50 ms.
        assert_eq!(allowed(1), 65_536.0 + 2.0 * 625_000.0);
        assert_eq!(allowed(1000), 65_536.0 + 2.0 * 625.0);
    }

    #[test]
    fn the_peer_that_is_to_be_reached_does_the_same_work() {
        let [rate, over] = SPEC.targets else { panic!("there are two targets") };
        assert_eq!(rate.against, Some(System::HaproxyTls.name()));
        assert_eq!([rate.of, over.of], [System::Whimbrel.name(); 2]);
    }
}
