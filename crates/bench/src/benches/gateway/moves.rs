//! curl through the gateway, while its host moves ten times.
//!
//! The host is behind 50 Mbit/s and a round trip of 20 ms; the server knows nothing of Whimbrel. Beside it
//! curl gets the same without a gateway, from a host that does not move: that is what the link gives. The
//! moves are evenly spread over the file; at each the host has no address for a moment, and then another one.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{LinkSpec, Rate};

use super::curl::{Curl, Fetched};
use super::programs::{Gateway, socks_address};
use crate::benches::{Plan, lanes, rotated};
use crate::lab::Net;
use crate::lab::program::Folder;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::web::{Content, WebServer};

const FILE: u64 = 200 << 20;
const MOVES: u64 = 10;
const RATE: Rate = Rate::mbit(50);
const RTT: Duration = Duration::from_millis(20);
const PORT: u16 = 80;
/// Connections that the gateway has room for.
const ROOM: usize = 64;

const SPEC: Spec = Spec {
    name: "gateway-moves",
    title: "curl of 200 MiB from an ordinary server through the gateway, while its host moves ten times; whole: not a \
            byte is wrong; silence: the longest",
    metrics: &[
        Metric { key: "whole", unit: "of 1" },
        Metric { key: "rate", unit: "Mbit/s" },
        Metric { key: "silence", unit: "ms" },
    ],
    targets: &[
        Target {
            case: "",
            of: "whimbrel",
            metric: "whole",
            against: None,
            judged: Judged::Least,
            bound: Bound::AtLeast(1.0),
            aim: 1.0,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "rate",
            against: Some("curl, unmoved"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.95),
            aim: 0.98,
        },
    ],
    plot: Plot::Ratios,
};

/// How the file comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// Through the gateway, while the host moves.
    Moved,
    /// Through the gateway, from where it is.
    Unmoved,
    /// Without a gateway, and without moves.
    Plain,
}

const SYSTEMS: [System; 3] = [System::Moved, System::Unmoved, System::Plain];

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Moved => "whimbrel",
            Self::Unmoved => "whimbrel, unmoved",
            Self::Plain => "curl, unmoved",
        }
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let file = if plan.quick { FILE / 8 } else { FILE };
    let rounds: Vec<u32> = (0..plan.rounds(3)).collect();
    let one = |round: &u32| -> Result<(Vec<Trial>, ())> {
        let trials = rotated(&SYSTEMS, *round).map(|system| trial(system, *round, file));
        Ok((trials.collect::<Result<_>>()?, ()))
    };
    let done = lanes::run(&rounds, 1, &SPEC, output, |round| format!("#{}", round + 1), one)?;
    let settings = json!({
        "carrier": "auto",
        "mbit": RATE.bits_per_second() / 1_000_000,
        "rtt_ms": RTT.as_millis() as u64,
        "queue_ms": 100,
        "file_bytes": file,
        "moves": MOVES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// A download that breaks or is wrong is one that is not whole, and has no rate.
fn trial(system: System, round: u32, file: u64) -> Result<Trial> {
    let world = World::new(system)?;
    let trial = Trial::new(system.name(), round);
    let whole = world.fetch(system, file).and_then(|fetched| {
        let is_whole = fetched.bytes == file && fetched.digest == world.content.digest(file);
        anyhow::ensure!(is_whole, "{} of {file} bytes came, or some are wrong", fetched.bytes);
        Ok(fetched)
    });
    Ok(match whole {
        Ok(fetched) => trial
            .with("whole", 1.0)
            .with("rate", fetched.megabits_per_second())
            .with("silence", fetched.silence.as_secs_f64() * 1000.0),
        Err(error) if system == System::Moved => {
            eprintln!("  gateway-moves {} #{}: {error:#}", system.name(), round + 1);
            trial.with("whole", 0.0)
        }
        Err(error) => return Err(error.context(system.name())),
    })
}

/// A client that can move, a gateway, and a server, around a router. Fields are dropped in this order.
struct World {
    _gateway: Option<Gateway>,
    _folder: Folder,
    server: WebServer,
    content: std::sync::Arc<Content>,
    net: Net,
}

impl World {
    fn new(system: System) -> Result<Self> {
        let near = LinkSpec::default();
        let hosts = [
            ("client", LinkSpec::default().delay(RTT / 2).rate(RATE)),
            ("gateway", near.clone()),
            ("server", near),
        ];
        let (net, content) = (Net::around(hosts)?, Content::new());
        let [client, gateway, server] = net.nodes();
        let at = (server.ip(), PORT).into();
        let server = WebServer::start(&server.runtime, at, content.clone())?;
        let folder = Folder::new("gateway-moves")?;
        let gateway = match system {
            System::Moved | System::Unmoved => {
                let hosts = [client.host(), gateway.host()];
                Some(Gateway::start(&folder, hosts, server.address, ROOM, &[])?)
            }
            System::Plain => None,
        };
        Ok(Self { _gateway: gateway, _folder: folder, server, content, net })
    }

    fn fetch(&self, system: System, file: u64) -> Result<Fetched> {
        let [client] = self.net.nodes();
        let (url, socks) = (format!("http://{}/{file}", self.server.address), socks_address().to_string());
        let by_gateway = ["--socks5", &socks];
        let flags = if system == System::Plain { &[][..] } else { &by_gateway[..] };
        let mut curl = Curl::start(client.host(), &url, flags, limit(file))?;
        if system == System::Moved {
            for number in 1..=MOVES {
                let is_under_way = curl.wait_for(file * number / (MOVES + 1))?;
                anyhow::ensure!(is_under_way, "curl ended before move {number}");
                client.leave()?;
                client.arrive().with_context(|| format!("move {number}"))?;
            }
        }
        curl.finish()
    }
}

/// Four times what the link takes.
fn limit(bytes: u64) -> Duration {
    Duration::from_secs(30) + RATE.time_for(bytes as usize) * 4
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    /// The control: the subject's programs are needed for the rest.
    #[test]
    fn what_the_link_gives_is_whole_and_no_faster_than_it() {
        if !require!() {
            return;
        }
        let trial = trial(System::Plain, 0, 4_000_000).unwrap();
        assert_eq!((trial.values["whole"], trial.system.as_str()), (1.0, "curl, unmoved"));
        assert!(trial.values["rate"] < 50.0 && trial.values["silence"] > 0.0, "{trial:?}");
        let against = SPEC.targets[1].against;
        assert_eq!(against, Some(System::Plain.name()));
    }
}
