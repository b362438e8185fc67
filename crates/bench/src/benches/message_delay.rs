//! How late messages are over links that lose packets.
//!
//! A client sends 60 messages of 1 KiB a second to a server, over a link of 20 Mbit/s and 50 ms, alone or
//! beside a transfer that never ends. A message is late from the moment at which it was to be sent, so a
//! sender that is held up counts too. What a reliable system has not delivered by the end counts as late as
//! that; of an unreliable one only what arrived counts. With two links the first is as before but loses
//! nothing, and the second, of 10 Mbit/s, loses packets; peers have the first one alone.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{Host, LinkSpec, Rate};
use whimbrel_transport::{CarrierKind, Carriers, Class, HandoverMode};

use super::{Plan, lanes, rotated};
use crate::lab::{Access, Line, Site, TwoLinks};
use crate::messenger::{Delays, Letters, Messenger, Places};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};

const RTT: Duration = Duration::from_millis(50);
const RATE_MBIT: u64 = 20;
const SECOND_MBIT: u64 = 10;
/// Percent of the packets, each way.
const LOSSES: [u32; 3] = [1, 3, 10];
/// Of the second link.
const SECOND_LOSS: f64 = 0.03;
const SIZE: usize = 1024;
const A_SECOND: u32 = 60;
/// Messages that are still missing so long after the last one that came are lost; of reliable ones none is.
const PATIENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
const LANES: usize = 3;
/// Half a millisecond in half a round trip: the lab tells no smaller difference.
const EQUAL: f64 = 1.02;
/// Milliseconds beyond half a round trip or, beside bulk, beyond what a probe takes, after which one is late.
const ON_TIME: f64 = 5.0;

const ORDERED: Messenger = Messenger::whimbrel(Class::RELIABLE_SEQUENCED);
const RELIABLE: Messenger = Messenger::whimbrel(Class::RELIABLE);
const NEWER: Messenger = Messenger::whimbrel(Class::UNRELIABLE_SEQUENCED);
const UNRELIABLE: Messenger = Messenger::whimbrel(Class::UNRELIABLE);
const REDUNDANT: Messenger = Messenger::Whimbrel { class: Class::RELIABLE_SEQUENCED, redundant: true };

const PEERS: [Messenger; 7] = [
    Messenger::FramedTcp("cubic"),
    Messenger::FramedTcp("bbr"),
    Messenger::QuinnStream,
    Messenger::QuinnStreams,
    Messenger::Enet { reliable: true },
    Messenger::QuinnDatagrams,
    Messenger::Enet { reliable: false },
];

const SPEC: Spec = Spec {
    name: "message-delay",
    title: "60 messages of 1 KiB a second over 20 Mbit/s and 50 ms with losses, alone and beside bulk",
    metrics: &[
        Metric { key: "p50", unit: "ms" },
        Metric { key: "p99", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "arrived", unit: "%" },
        Metric { key: "bulk", unit: "Mbit/s" },
    ],
    targets: &[
        beside("", "whimbrel", "tcp-cubic"),
        beside("", "whimbrel", "tcp-bbr"),
        beside("", "whimbrel", "quinn-stream"),
        beside("", "whimbrel", "quinn-streams"),
        beside("", "whimbrel", "enet"),
        beside("", "whimbrel-reliable", "tcp-cubic"),
        beside("", "whimbrel-reliable", "tcp-bbr"),
        beside("", "whimbrel-reliable", "quinn-stream"),
        beside("", "whimbrel-reliable", "quinn-streams"),
        beside("", "whimbrel-reliable", "enet"),
        beside("", "whimbrel-unreliable-sequenced", "quinn-datagrams"),
        beside("", "whimbrel-unreliable-sequenced", "enet-unreliable"),
        beside("", "whimbrel-unreliable", "quinn-datagrams"),
        beside("", "whimbrel-unreliable", "enet-unreliable"),
        on_time("alone"),
        on_time("beside bulk"),
    ],
    plot: Plot::Cases { metric: "p99", unit: "ms" },
};

/// What the two links are compared with is the best of the reliable peers.
const BEST: &str = "best peer";
/// And of the others.
const BEST_UNRELIABLE: &str = "best unreliable peer";

const TWO: Spec = Spec {
    name: "message-two-links",
    title: "60 messages of 1 KiB a second over links of 20 and 10 Mbit/s, of which the second loses 3 %",
    metrics: &[
        Metric { key: "p50", unit: "ms" },
        Metric { key: "p99", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "late", unit: "messages" },
        Metric { key: "arrived", unit: "%" },
        Metric { key: "bulk", unit: "Mbit/s" },
    ],
    targets: &[
        two("alone", "whimbrel", BEST, 1.05),
        two("alone", "whimbrel-reliable", BEST, 1.05),
        two("alone", "whimbrel-redundant", BEST, 1.05),
        two("alone", "whimbrel-unreliable", BEST_UNRELIABLE, 1.05),
        two("beside bulk", "whimbrel", BEST, 0.8),
        two("beside bulk", "whimbrel-reliable", BEST, 0.8),
        two("beside bulk", "whimbrel-redundant", BEST, 0.8),
        two("beside bulk", "whimbrel-unreliable", BEST_UNRELIABLE, 0.8),
        none_late("alone"),
        none_late("beside bulk"),
    ],
    plot: SPEC.plot,
};

const fn beside(case: &'static str, of: &'static str, peer: &'static str) -> Target {
    let (metric, against, bound) = ("p99", Some(peer), Bound::AtMost(EQUAL));
    Target { case, of, metric, against, judged: Judged::Median, bound, aim: 1.0 }
}

const fn two(case: &'static str, of: &'static str, peer: &'static str, most: f64) -> Target {
    Target { bound: Bound::AtMost(most), ..beside(case, of, peer) }
}

/// On two paths at once no message is late.
const fn none_late(case: &'static str) -> Target {
    let (of, metric, bound) = ("whimbrel-redundant", "late", Bound::AtMost(0.0));
    Target { case, of, metric, against: None, judged: Judged::Median, bound, aim: 0.0 }
}

/// Within 5 ms of half a round trip or, beside bulk, of what a probe takes.
const fn on_time(case: &'static str) -> Target {
    let (of, metric, bound) = ("whimbrel-unreliable", "excess", Bound::AtMost(ON_TIME));
    Target { case, of, metric, against: None, judged: Judged::Median, bound, aim: 2.0 }
}

/// What messages go over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One link, which loses so many percent.
    One(u32),
    Two,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    way: Way,
    bulk: bool,
    system: Messenger,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        let beside = if self.bulk { "beside bulk" } else { "alone" };
        match self.way {
            Way::One(loss) => format!("{beside}, {loss} %"),
            Way::Two => beside.to_owned(),
        }
    }

    fn name(&self) -> String {
        format!("{}, {}", self.case(), self.system)
    }

    fn run(&self, count: usize) -> Result<Trial> {
        let letters = Letters {
            size: SIZE,
            every: Duration::from_secs(1) / A_SECOND,
            count,
            bulk: self.bulk,
            patience: PATIENCE[usize::from(self.system.is_reliable())],
        };
        let (delays, probe) = match self.way {
            Way::One(loss) => {
                let spec = LinkSpec::default()
                    .delay(RTT / 2)
                    .rate(Rate::mbit(RATE_MBIT))
                    .loss(f64::from(loss) / 100.0)
                    .seed(u64::from(self.round) + 1);
                let line = Line::new(spec)?;
                self.measure(&line.client, &line.server, line.address(), HandoverMode::default(), letters)?
            }
            Way::Two => {
                let lossy = Access::new("two", Rate::mbit(SECOND_MBIT), RTT).loss(SECOND_LOSS);
                let net = TwoLinks::new(&[Access::new("one", Rate::mbit(RATE_MBIT), RTT), lossy])?;
                let at = net.server_address(0).ip();
                self.measure(&net.client, &net.server, at, HandoverMode::Full, letters)?
            }
        };
        self.trial(delays, probe)
    }

    /// What came of it, and what the slowest hundredth of a probe's packets took, in milliseconds.
    fn measure(
        &self,
        client: &Site,
        server: &Site,
        at: std::net::IpAddr,
        handover: HandoverMode,
        letters: Letters,
    ) -> Result<(Delays, f64)> {
        let places = Places {
            first: client.runtime.handle().clone(),
            second: server.runtime.handle().clone(),
            at,
            carriers: Carriers::Only(CarrierKind::Quic),
            handover,
        };
        let system = self.system;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let probe = scope.spawn(|| probe(&client.host, &server.host, at, &over));
            let delays = client.wait("messages", async move { system.delays(&places, letters).await });
            over.store(true, Ordering::Relaxed);
            let probe = probe.join().ok().context("the probe panicked")??;
            Ok((delays??, probe))
        })
    }

    fn trial(&self, delays: Delays, probe: f64) -> Result<Trial> {
        let Delays { mut late, missing, bulk } = delays;
        let arrived = late.len();
        if self.system.is_reliable() {
            // As late as may be: nobody saw them come.
            let latest = PATIENCE[1].as_secs_f64() * 1000.0;
            late.extend(std::iter::repeat_n(latest, missing));
        }
        let late = sorted(&late);
        let at = |q| quantile(&late, q).context("no message came");
        let due = if self.bulk { probe } else { RTT.as_secs_f64() * 500.0 };
        // Of a reliable system those that are missing are among them already.
        let gone = if self.system.is_reliable() { 0 } else { missing };
        let behind = gone + late.iter().filter(|delay| **delay > due + ON_TIME).count();
        let trial = Trial::new(self.system, self.round)
            .in_case(self.case())
            .with("p50", at(0.5)?)
            .with("p99", at(0.99)?)
            .with("excess", at(0.99)? - due)
            .with("arrived", arrived as f64 * 100.0 / (arrived + missing) as f64);
        let trial = if self.way == Way::Two { trial.with("late", behind as f64) } else { trial };
        Ok(if self.bulk { trial.with("bulk", bulk / 1e6) } else { trial })
    }
}

/// The slowest hundredth of small UDP packets from one host to the other until it is over, in milliseconds.
fn probe(from: &Host, to: &Host, at: std::net::IpAddr, over: &AtomicBool) -> Result<f64> {
    let receiver = to.run(|| UdpSocket::bind((at, 0)))?;
    receiver.set_read_timeout(Some(Duration::from_millis(200)))?;
    let sender = from.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    let (place, clock) = (receiver.local_addr()?, Instant::now());
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                let stamp = u64::try_from(clock.elapsed().as_nanos())?;
                // A packet that finds the queue full is lost like any other.
                let _ = sender.send_to(&stamp.to_be_bytes(), place);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let (mut late, mut stamp) = (Vec::new(), [0; 8]);
        while !over.load(Ordering::Relaxed) {
            if receiver.recv(&mut stamp).is_ok() {
                let sent = Duration::from_nanos(u64::from_be_bytes(stamp));
                late.push(clock.elapsed().saturating_sub(sent).as_secs_f64() * 1000.0);
            }
        }
        sending.join().ok().context("the probe's sender panicked")??;
        quantile(&sorted(&late), 0.99).context("no packet of the probe arrived")
    })
}

fn jobs(ways: &[Way], systems: &[Messenger], rounds: u32) -> Vec<Job> {
    let mut jobs = Vec::new();
    for round in 0..rounds {
        for (way, bulk) in ways.iter().flat_map(|way| [(*way, false), (*way, true)]) {
            jobs.extend(rotated(systems, round).map(|system| Job { way, bulk, system, round }));
        }
    }
    jobs
}

fn with_peers(subjects: &[Messenger]) -> Vec<Messenger> {
    subjects.iter().copied().chain(PEERS.into_iter().filter(|peer| peer.is_available())).collect()
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.length(12.0);
    let count = (length.as_secs_f64() * f64::from(A_SECOND)) as usize;
    let losses = if plan.quick { &LOSSES[..1] } else { &LOSSES[..] };
    let ways: Vec<Way> = losses.iter().map(|loss| Way::One(*loss)).collect();
    let systems = with_peers(&[ORDERED, RELIABLE, NEWER, UNRELIABLE]);
    let job = |job: &Job| Ok((vec![job.run(count)?], ()));
    let done = lanes::run(&jobs(&ways, &systems, plan.rounds(3)), LANES, &SPEC, output, Job::name, job)?;
    let settings = |links: &str, failures: &[String]| {
        json!({
            "links": links,
            "rtt_ms": RTT.as_millis(),
            "queue_ms": 100,
            "loss": "random, each way",
            "seconds": length.as_secs_f64(),
            "messages_a_second": A_SECOND,
            "bytes": SIZE,
            "carrier": "quic",
            "congestion_control": "BBR of quinn, for whimbrel and for quinn; tcp: as named",
            "bulk": "a stream of the same connection; enet: a channel; tcp: a connection",
            "urgent": "whimbrel's flow and quinn's streams; datagrams leave first; enet and tcp have no such thing",
            "excess": "p99 beyond half a round trip; beside bulk: beyond the p99 of a UDP probe",
            "late": "messages that are more than 5 ms beyond it, or did not come",
            "encryption": "whimbrel and quinn; not tcp and enet",
            "lanes": LANES,
            "failures": failures,
        })
    };
    output.finish(&SPEC, settings("20 Mbit/s", &done.failures), &done.trials)?;
    let systems = with_peers(&[ORDERED, RELIABLE, UNRELIABLE, REDUNDANT]);
    let jobs = jobs(&[Way::Two], &systems, plan.rounds(3));
    let mut done = lanes::run(&jobs, LANES, &TWO, output, Job::name, job)?;
    for (name, reliable) in [(BEST, true), (BEST_UNRELIABLE, false)] {
        let best = best_peers(&done.trials, name, reliable);
        done.trials.extend(best);
    }
    output.finish(&TWO, settings("20 + 10 Mbit/s, the second loses 3 %", &done.failures), &done.trials)
}

/// Of each case and round, the peer with the lowest p99 among those that are reliable, or among the others.
fn best_peers(trials: &[Trial], name: &str, reliable: bool) -> Vec<Trial> {
    let is_peer = |trial: &&Trial| {
        PEERS.iter().any(|peer| peer.is_reliable() == reliable && peer.to_string() == trial.system)
    };
    let mut best: Vec<Trial> = Vec::new();
    for trial in trials.iter().filter(is_peer) {
        let same = |other: &&mut Trial| (&other.case, other.round) == (&trial.case, trial.round);
        match best.iter_mut().find(same) {
            Some(other) if other.values["p99"] <= trial.values["p99"] => {}
            Some(other) => other.values.clone_from(&trial.values),
            None => best.push(Trial { system: name.to_owned(), ..trial.clone() }),
        }
    }
    best
}

#[cfg(test)]
mod tests;
