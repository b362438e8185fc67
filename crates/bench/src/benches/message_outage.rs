//! How soon messages go on after a long outage.
//!
//! A client sends a reliable message every 50 ms to a server, over a link of 20 Mbit/s and 50 ms. For a
//! minute nothing passes: either the client's interface is switched off, so that the host sees the link go
//! and come back, or packets are swallowed and nobody is told. What counts is the time from the moment from
//! which the link could be used again until the server's application has a message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use whimbrel_lab::{Direction, LinkSpec, Rate};
use whimbrel_transport::{CarrierKind, Carriers, Class, HandoverMode};

use super::{Plan, lanes, rotated};
use crate::lab::{LIMIT, Line};
use crate::messenger::{Messenger, Outage, Places, Switch};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const RTT: Duration = Duration::from_millis(50);
const RATE: Rate = Rate::mbit(20);
const LENGTH: Duration = Duration::from_secs(60);
/// A system of which nothing is heard for so long after the outage counts as this late.
const LATEST: Duration = Duration::from_secs(45);
/// Trials side by side: they only wait.
const LANES: usize = 6;

const SPEC: Spec = Spec {
    name: "message-outage",
    title: "the first message after an outage of a minute, RTT 50 ms",
    metrics: &[Metric { key: "late", unit: "ms" }],
    targets: &[
        // 2 RTT + 20 ms; 500 ms + 2 RTT.
        within("seen", "whimbrel", 120.0),
        within("silent", "whimbrel", 600.0),
        within("seen", "whimbrel-quic", 120.0),
        within("silent", "whimbrel-quic", 600.0),
        beside("tcp-cubic"),
        beside("enet"),
    ],
    plot: Plot::Cases { metric: "late", unit: "ms" },
};

const fn within(case: &'static str, of: &'static str, limit: f64) -> Target {
    Target {
        case,
        of,
        metric: "late",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim: limit / 2.0,
    }
}

const fn beside(peer: &'static str) -> Target {
    Target { against: Some(peer), bound: Bound::AtMost(1.0), aim: 0.1, ..within("", "whimbrel", 1.0) }
}

/// How the link is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Seen,
    Silent,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    kind: Kind,
    system: Messenger,
    carriers: Carriers,
    round: u32,
}

impl Job {
    fn case(&self) -> &'static str {
        match self.kind {
            Kind::Seen => "seen",
            Kind::Silent => "silent",
        }
    }

    fn label(&self) -> String {
        match self.carriers {
            Carriers::Only(carrier) => format!("{}-{carrier}", self.system),
            _ => self.system.to_string(),
        }
    }

    fn name(&self) -> String {
        format!("{}, {}", self.case(), self.label())
    }

    fn run(&self, length: Duration) -> Result<Trial> {
        let line = Arc::new(Line::new(LinkSpec::default().delay(RTT / 2).rate(RATE))?);
        let places = Places {
            first: line.client.runtime.handle().clone(),
            second: line.server.runtime.handle().clone(),
            at: line.address(),
            carriers: self.carriers,
            handover: HandoverMode::default(),
        };
        let outage = Outage { link: switch(line.clone(), self.kind), length, limit: LATEST };
        let system = self.system;
        let whole = length + LATEST + LIMIT;
        let messages = async move { system.outage(&places, outage).await };
        let late = line.client.within(whole, "messages", messages)??;
        let late = late.unwrap_or(LATEST).as_secs_f64() * 1000.0;
        Ok(Trial::new(self.label(), self.round).in_case(self.case()).with("late", late))
    }
}

fn switch(line: Arc<Line>, kind: Kind) -> Switch {
    Arc::new(move |on| {
        let host = &line.client.host;
        let interface = line.link.end(host).name();
        match (kind, on) {
            (Kind::Silent, on) => line.link.set_blackhole(Direction::Both, !on),
            (Kind::Seen, false) => host.set_link(interface, false)?,
            // The route went as well.
            (Kind::Seen, true) => host.restore(interface)?,
        }
        Ok(Instant::now())
    })
}

fn jobs(rounds: u32) -> Vec<Job> {
    let whimbrel = Messenger::whimbrel(Class::RELIABLE_SEQUENCED);
    let systems = [
        (whimbrel, Carriers::Auto),
        (whimbrel, Carriers::Only(CarrierKind::Quic)),
        (Messenger::FramedTcp("cubic"), Carriers::Auto),
        (Messenger::Enet { reliable: true }, Carriers::Auto),
    ];
    let systems: Vec<_> = systems.into_iter().filter(|(system, _)| system.is_available()).collect();
    let mut jobs = Vec::new();
    for round in 0..rounds {
        for kind in [Kind::Seen, Kind::Silent] {
            let job = |(system, carriers)| Job { kind, system, carriers, round };
            jobs.extend(rotated(&systems, round).map(job));
        }
    }
    jobs
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.seconds.map_or(if plan.quick { LENGTH / 20 } else { LENGTH }, Duration::from_secs_f64);
    let job = |job: &Job| Ok((vec![job.run(length)?], ()));
    let done = lanes::run(&jobs(plan.rounds(3)), LANES, &SPEC, output, Job::name, job)?;
    let settings = json!({
        "rtt_ms": RTT.as_millis(),
        "mbit": RATE.bits_per_second() / 1_000_000,
        "outage_seconds": length.as_secs_f64(),
        "latest_ms": LATEST.as_millis(),
        "seen": "the client's interface is switched off, and on again with its address and route",
        "silent": "packets are swallowed, both ways",
        "carrier": ["whimbrel: auto", "whimbrel-quic: quic"],
        "enet": "set to never call its peer lost",
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn a_message_comes_after_a_short_outage() {
        if !require!() {
            return;
        }
        let mut trials = Vec::new();
        let own: Vec<Job> = jobs(1).into_iter().filter(|job| job.label() == "whimbrel").collect();
        std::thread::scope(|scope| {
            let running: Vec<_> =
                own.iter().map(|job| scope.spawn(|| job.run(Duration::from_millis(300)))).collect();
            trials.extend(running.into_iter().map(|job| job.join().unwrap().unwrap()));
        });
        let latest = LATEST.as_secs_f64() * 1000.0;
        assert!(trials.len() == 2 && trials.iter().all(|trial| trial.values["late"] < latest), "{trials:?}");
    }
}
