//! One large download over two networks from a server that knows nothing of that: by ranges (`whimbrel proxy
//! http` and the manager), and through a gateway.
//!
//! The client has 20 and 10 Mbit/s; server and gateway are behind the router. curl gets the object. What both
//! links give is the sum of two files, each as large as its link's share, which curl gets over one link each.
//! Each download has a fresh network. The manager has been at work for some time, as it is in practice: it
//! has seen both links carry something.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use whimbrel_lab::Rate;

use super::curl::{Curl, Fetched};
use super::programs::{Gateway, Managed, http_address, socks_address};
use crate::benches::{Plan, lanes, rotated};
use crate::lab::program::Folder;
use crate::lab::{Access, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::web::{Content, WebServer};

const FILE: u64 = 64 << 20;
const RATES: [u64; 2] = [20, 10];
const RTTS: [u64; 2] = [20, 50];
const PORT: u16 = 80;
/// Connections that the gateway has room for.
const ROOM: usize = 64;
/// The manager sees each link filled for so long.
const FILLED: Duration = Duration::from_millis(1500);

const SPEC: Spec = Spec {
    name: "gateway-download",
    title: "a download of 64 MiB over 20 and 10 Mbit/s from an ordinary server, by ranges and through a gateway; \
            share: of what each link gives curl alone, together",
    metrics: &[
        Metric { key: "rate", unit: "Mbit/s" },
        Metric { key: "share", unit: "of sum" },
        Metric { key: "carried", unit: "× file" },
    ],
    targets: &[share_of("whimbrel ranges"), share_of("whimbrel gateway")],
    plot: Plot::Cases { metric: "share", unit: "of what both links give curl" },
};

const fn share_of(of: &'static str) -> Target {
    Target {
        case: "",
        of,
        metric: "share",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtLeast(0.93),
        aim: 0.97,
    }
}

/// How the object comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Ranges,
    Gateway,
    /// Over one link.
    Alone(usize),
}

const SYSTEMS: [System; 4] = [System::Ranges, System::Gateway, System::Alone(0), System::Alone(1)];

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Ranges => "whimbrel ranges",
            Self::Gateway => "whimbrel gateway",
            Self::Alone(0) => "curl, first link",
            Self::Alone(_) => "curl, second link",
        }
    }

    /// What it gets of a file: over one link only that link's share.
    fn part(self, file: u64) -> u64 {
        match self {
            Self::Alone(link) => file * RATES[link] / RATES.iter().sum::<u64>(),
            Self::Ranges | Self::Gateway => file,
        }
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let file = if plan.quick { FILE / 8 } else { FILE };
    let rounds: Vec<u32> = (0..plan.rounds(3)).collect();
    let job = |round: &u32| -> Result<(Vec<Trial>, ())> { Ok((one(*round, file)?, ())) };
    let done = lanes::run(&rounds, 1, &SPEC, output, |round| format!("#{}", round + 1), job)?;
    let settings = json!({
        "carrier": "auto",
        "congestion_control": CONGESTION_CONTROL,
        "mbit": RATES,
        "rtt_ms": RTTS,
        "queue_ms": 100,
        "file_bytes": file,
        "policy": "whimbrel",
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// Each system once.
fn one(round: u32, file: u64) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for system in rotated(&SYSTEMS, round) {
        let (fetched, carried) = fetch(system, system.part(file)).context(system.name())?;
        let trial = Trial::new(system.name(), round).with("rate", fetched.megabits_per_second());
        trials.push(trial.with("carried", carried as f64 / fetched.bytes as f64));
    }
    let rate = |trial: &Trial| trial.values.get("rate").copied().unwrap_or(f64::NAN);
    let alone = |trial: &&Trial| trial.system.starts_with("curl");
    let sum: f64 = trials.iter().filter(alone).map(rate).sum();
    for trial in trials.iter_mut().filter(|trial| trial.system.starts_with("whimbrel")) {
        let share = rate(trial) / sum;
        trial.values.insert("share", share);
    }
    Ok(trials)
}

/// Gets an object in a fresh network, and sees to it that every byte is right. Returns also how many bytes
/// the links carried down meanwhile.
fn fetch(system: System, bytes: u64) -> Result<(Fetched, u64)> {
    let access =
        |name, link: usize| Access::new(name, Rate::mbit(RATES[link]), Duration::from_millis(RTTS[link]));
    let net = TwoLinks::new(&[access("one", 0), access("two", 1)])?;
    let (content, folder) = (Content::new(), Folder::new("gateway-download")?);
    let server = WebServer::start(&net.server.runtime, net.server_address(PORT), content.clone())?;
    let client = &net.client.host;
    let get = |bytes: u64, flags: &[&str]| {
        Curl::start(client, &format!("http://{}/{bytes}", server.address), flags, limit(bytes))?.finish()
    };
    let [http, socks] = [http_address(), socks_address()].map(|at| at.to_string());
    let own = [0, 1].map(|link| net.address(link).to_string());
    let attached;
    let (_running, flags) = match system {
        System::Alone(link) => (Running::Nothing, ["--interface", &own[link]]),
        System::Gateway => {
            attached = net.attach("gateway")?;
            let hosts = [client, &attached.site.host];
            let gateway = Gateway::start(&folder, hosts, server.address, ROOM, &["--mode", "full"])?;
            (Running::Gateway { _gateway: gateway }, ["--socks5", &socks])
        }
        System::Ranges => {
            let managed = Managed::start(&folder, client)?;
            for (link, rate) in RATES.into_iter().enumerate() {
                let some = Rate::mbit(rate).bytes_in(FILLED) as u64;
                get(some, &["--interface", &own[link]]).context("the links are not filled")?;
            }
            (Running::Managed { _managed: managed }, ["--proxy", &http])
        }
    };
    let carried = || (0..2).map(|link| net.carried(link)[1]).sum::<u64>();
    let before = carried();
    let fetched = get(bytes, &flags)?;
    ensure!(fetched.bytes == bytes, "{} of {bytes} bytes came", fetched.bytes);
    ensure!(fetched.digest == content.digest(bytes), "what came is not what the server has");
    Ok((fetched, carried() - before))
}

/// What runs meanwhile.
enum Running {
    Nothing,
    Gateway { _gateway: Gateway },
    Managed { _managed: Managed },
}

/// Four times what the slower link alone would take.
fn limit(bytes: u64) -> Duration {
    let slower = RATES[0].min(RATES[1]);
    Duration::from_secs(20) + Rate::mbit(slower).time_for(bytes as usize) * 4
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn over_one_link_its_own_share_comes_and_every_byte_of_it() {
        if !require!() {
            return;
        }
        let parts = [0, 1].map(|link| System::Alone(link).part(3_000_000));
        assert_eq!(parts, [2_000_000, 1_000_000]);
        for (link, part) in parts.into_iter().enumerate() {
            let (fetched, carried) = fetch(System::Alone(link), part).unwrap();
            assert_eq!(fetched.bytes, part);
            assert!(carried >= part, "{carried} bytes of {part}");
            // No faster than the link.
            assert!(fetched.megabits_per_second() < RATES[link] as f64, "{fetched:?}");
        }
    }
}
