//! What `whimbrel proxy http` carries on loopback, beside tinyproxy and HAProxy: objects of 32 MiB over 1 and
//! 16 connections, objects of 10 KB a second, and objects of 32 MiB through tunnels (CONNECT).
//!
//! HAProxy is no forward proxy. It stands in front of the same server, in its HTTP mode for objects, and in
//! its TCP mode for tunnels: so it has less to find out of each request, and what it carries is the more to
//! be reached. The clients and the web server are the same for all, in this process; each proxy is a process
//! of its own.

mod stage;

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use self::stage::{Stage, System};
use super::{Plan, rotated};
use crate::lab::{Chain, LIMIT};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;
use crate::web::{Content, Load, WebServer};

/// Of an object in bulk: each connection asks for one after the other.
const LARGE: u64 = 32 << 20;
const SMALL: u64 = 10_000;
const MANY: usize = 16;

const SPEC: Spec = Spec {
    name: "proxy-http",
    title: "what HTTP proxies carry on loopback: objects of 32 MiB, objects of 10 KB a second, and tunnels",
    metrics: &[Metric { key: "rate", unit: "Gbit/s" }, Metric { key: "requests", unit: "1/s" }],
    targets: &[target("bulk", "rate"), target("requests", "requests"), target("tunnels", "rate")],
    plot: Plot::Ratios,
};

const fn target(case: &'static str, metric: &'static str) -> Target {
    Target {
        case,
        of: "whimbrel",
        metric,
        against: Some("haproxy"),
        judged: Judged::Median,
        bound: Bound::AtLeast(0.8),
        aim: 1.0,
    }
}

/// What is measured, over how many connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Bulk(usize),
    Requests,
    Tunnels(usize),
}

impl Work {
    const ALL: [Self; 5] =
        [Self::Bulk(1), Self::Bulk(MANY), Self::Requests, Self::Tunnels(1), Self::Tunnels(MANY)];

    fn case(self) -> String {
        match self {
            Self::Bulk(count) => format!("bulk, connections {count}"),
            Self::Requests => format!("requests of 10 KB, connections {MANY}"),
            Self::Tunnels(count) => format!("tunnels, connections {count}"),
        }
    }

    /// Connections, and bytes of each object.
    fn load(self) -> (usize, u64) {
        match self {
            Self::Bulk(count) | Self::Tunnels(count) => (count, LARGE),
            Self::Requests => (MANY, SMALL),
        }
    }

    fn metric(self) -> &'static str {
        if self == Self::Requests { "requests" } else { "rate" }
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    sys::raise_file_limit()?;
    let chain = Chain::loopback()?;
    let at = (chain.server_ip, stage::SERVER_PORT).into();
    let server = WebServer::start(&chain.server.runtime, at, Content::new())?;
    let length = plan.length(3.0);
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        for work in Work::ALL {
            for system in rotated(&System::ALL, round) {
                let value = one(&chain, &server, system, work, length)
                    .with_context(|| format!("{} by {}", work.case(), system.name()))?;
                let trial = Trial::new(system.name(), round).in_case(work.case());
                let trial = trial.with(work.metric(), value);
                output.trial(&SPEC, &trial);
                trials.push(trial);
            }
        }
    }
    let settings = json!({
        "carrier": "none: plain TCP",
        "seconds": length.as_secs_f64(),
        "object_bytes": LARGE,
        "small_object_bytes": SMALL,
        "versions": stage::versions(&chain.relay.host)?,
    });
    output.finish(&SPEC, settings, &trials)
}

/// Gbit/s, or objects a second.
fn one(chain: &Chain, server: &WebServer, system: System, work: Work, length: Duration) -> Result<f64> {
    let stage = Stage::start(&chain.relay.host, server.address, system)?;
    let (connections, bytes) = work.load();
    let dialler = stage.dialler(matches!(work, Work::Tunnels(_)));
    let counted = chain.client.within(LIMIT + length, "load", async {
        Load::start(dialler, connections, bytes).await?.measure(length).await
    })??;
    Ok(match work {
        Work::Requests => counted.objects_per_second(),
        Work::Bulk(_) | Work::Tunnels(_) => counted.gigabits_per_second(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn every_work_is_for_one_target() {
        for work in Work::ALL {
            let targets: Vec<_> = SPEC.targets.iter().filter(|t| work.case().starts_with(t.case)).collect();
            assert_eq!(targets.len(), 1, "{work:?}");
            assert_eq!(targets[0].metric, work.metric());
        }
    }

    /// Without a proxy, so that no program is needed.
    #[test]
    fn every_work_is_done() {
        if !require!() {
            return;
        }
        let chain = Chain::loopback().unwrap();
        let at = (chain.server_ip, stage::SERVER_PORT).into();
        let server = WebServer::start(&chain.server.runtime, at, Content::new()).unwrap();
        for work in Work::ALL {
            let value = one(&chain, &server, System::Direct, work, Duration::from_secs(1)).unwrap();
            assert!(value > 0.0, "{work:?}");
        }
    }
}
