//! A server on a phone that roams through a town [msocket, figure 17]: what a client behind NAT receives of
//! it while the phone goes from network to network, one of which lets out TCP to port 443 alone, with gaps
//! between.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_lab::{Block, Direction, NatKind, Rate};
use whimbrel_transport::Endpoint;

use super::{millis, talk, whimbrel_stage};
use crate::benches::Plan;
use crate::lab::Homes;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::system::Channel;

/// From end to end through the relay, without what the phone's network adds.
const RTT: Duration = Duration::from_millis(60);
const STAY: Duration = Duration::from_secs(12);
const GAP: Duration = Duration::from_secs(3);
/// Of the throughput.
const BIN: f64 = 0.5;
const PIECE: usize = 64 * 1024;

const SPEC: Spec = Spec {
    name: "reach-roaming",
    title: "a server on a phone that roams [msocket, figure 17]: what its client receives",
    metrics: &[Metric { key: "resumed", unit: "ms" }, Metric { key: "used", unit: "of the link" }],
    // Every network has to be used; how soon is what the figure shows.
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "used",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtLeast(0.5),
        aim: 0.8,
    }],
    plot: Plot::Chart,
};

/// A network on the phone's way.
#[derive(Debug, Clone, Copy)]
struct Network {
    name: &'static str,
    kind: NatKind,
    /// Lets out TCP to port 443 alone.
    only_https: bool,
    mbit: u64,
    delay: Duration,
}

const WAY: [Network; 5] = [
    wifi("1 Wi-Fi", 20, false),
    cellular("2 cellular", 5),
    wifi("3 Wi-Fi, HTTPS only", 8, true),
    cellular("4 cellular", 3),
    wifi("5 Wi-Fi", 12, false),
];

const fn wifi(name: &'static str, mbit: u64, only_https: bool) -> Network {
    Network { name, kind: NatKind::PortRestricted, only_https, mbit, delay: Duration::from_millis(3) }
}

const fn cellular(name: &'static str, mbit: u64) -> Network {
    Network { name, kind: NatKind::Symmetric, only_https: false, mbit, delay: Duration::from_millis(25) }
}

/// When bytes came, since the beginning, and how many.
type Arrivals = Arc<Mutex<Vec<(Duration, usize)>>>;

/// One walk: when each network was there and was left, and what came.
struct Walk {
    stays: Vec<(Network, Duration, Duration)>,
    arrivals: Vec<(Duration, usize)>,
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let stay = if plan.quick { STAY / 3 } else { STAY };
    let (mut trials, mut last) = (Vec::new(), None);
    for round in 0..plan.rounds(3) {
        let walk = walk(stay)?;
        for (network, from, to) in &walk.stays {
            let trial = walk.trial(*network, *from, *to).in_case(network.name);
            let trial = Trial { round, ..trial };
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
        last = Some(walk);
    }
    let settings = json!({
        "carrier": "auto", "rtt_ms": RTT.as_millis() as u64, "client": "port-restricted",
        "stay_s": stay.as_secs_f64(), "gap_s": GAP.as_secs_f64(), "way": WAY.map(|network| network.name),
    });
    let chart = last.map(|walk| walk.chart());
    output.finish_chart(&SPEC, settings, &trials, chart.as_ref())
}

fn enter(homes: &Homes, network: Network) -> Result<()> {
    let gateway = homes.gateways().last().context("the server has no gateway")?;
    let (link, https) = (homes.link_of_server(), Block::AllButTcpPort(443));
    gateway.set_kind(network.kind)?;
    if network.only_https {
        gateway.router().block(https)?;
    } else {
        gateway.router().unblock(https)?;
    }
    link.set_rate(Direction::Both, Rate::mbit(network.mbit));
    link.set_delay(Direction::Both, network.delay);
    Ok(())
}

fn walk(stay: Duration) -> Result<Walk> {
    let homes = Homes::apart(1, RTT, Duration::ZERO)?;
    homes.set_kind(NatKind::PortRestricted)?;
    enter(&homes, WAY[0])?;
    let relays = [whimbrel_stage::relay(&homes.relays[0])?];
    let (server, listener, _keeper) = whimbrel_stage::serve(&homes.server, &relays)?;
    homes.server.runtime.spawn(whimbrel_stage::accept(listener, talk::pourer()));
    let connecting = async {
        let endpoint = Endpoint::builder().bind().await?;
        let connection = endpoint.connect(server.addr()).await?;
        let mut channel = Channel::new(connection.open_stream().await?);
        channel.write_u8(0).await?;
        channel.flush().await?;
        anyhow::Ok((endpoint, connection, channel))
    };
    let (_endpoint, _connection, channel) = homes.client.wait("connect", connecting)??;
    let began = Instant::now();
    let arrivals = Arrivals::default();
    let reading = homes.client.runtime.spawn(read(channel, began, arrivals.clone()));
    let mut stays = Vec::new();
    for (index, network) in WAY.into_iter().enumerate() {
        if index > 0 {
            enter(&homes, network)?;
            homes.server.arrive()?;
        }
        let from = began.elapsed();
        std::thread::sleep(stay);
        homes.server.leave()?;
        stays.push((network, from, began.elapsed()));
        std::thread::sleep(GAP);
    }
    reading.abort();
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Walk { stays, arrivals })
}

async fn read(mut channel: Channel, began: Instant, arrivals: Arrivals) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = channel.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((began.elapsed(), count));
    }
}

impl Walk {
    /// What came between two moments.
    fn bytes(&self, from: Duration, to: Duration) -> usize {
        let within = self.arrivals.iter().filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, count)| count).sum()
    }

    fn trial(&self, network: Network, from: Duration, to: Duration) -> Trial {
        let could = network.mbit as f64 * 1e6 / 8.0 * (to - from).as_secs_f64();
        let used = self.bytes(from, to) as f64 / could;
        let first = self.arrivals.iter().map(|(at, _)| *at).find(|at| *at >= from);
        let resumed = first.unwrap_or(to).min(to) - from;
        Trial::new("whimbrel", 0).with("used", used).with("resumed", millis(resumed))
    }

    fn chart(&self) -> Chart {
        let end = self.stays.last().map_or(Duration::ZERO, |(_, _, to)| *to).as_secs_f64();
        let bins = (end / BIN).ceil() as usize;
        let seconds = |time: f64| Duration::from_secs_f64(time);
        let received = (0..bins).map(|bin| {
            let from = bin as f64 * BIN;
            let bytes = self.bytes(seconds(from), seconds(from + BIN));
            Point::new(from + BIN / 2.0, bytes as f64 * 8.0 / 1e6 / BIN)
        });
        let mut there = Vec::new();
        for (network, from, to) in &self.stays {
            let (from, to, rate) = (from.as_secs_f64(), to.as_secs_f64(), network.mbit as f64);
            there.extend([(from, 0.0), (from, rate), (to, rate), (to, 0.0)].map(|(x, y)| Point::new(x, y)));
        }
        let line =
            |label: &str, points: Vec<Point>| Series { label: label.to_owned(), style: Style::Line, points };
        Chart {
            x: Axis::linear("time [s]"),
            y: Axis::linear("[Mbit/s]"),
            series: vec![
                line("received by the client", received.collect()),
                line("rate of the phone's network", there),
            ],
            free: Corner::UpperRight,
            mark: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_counted_in_the_network_in_which_it_came() {
        let seconds = Duration::from_secs;
        let walk = Walk {
            stays: vec![(WAY[1], seconds(0), seconds(2)), (WAY[1], seconds(3), seconds(5))],
            arrivals: vec![(seconds(1), 625_000), (seconds(4), 1_250_000)],
        };
        let [first, second] = [0, 1].map(|index| {
            let (network, from, to) = walk.stays[index];
            walk.trial(network, from, to).values
        });
        assert_eq!((first["used"], first["resumed"]), (0.5, 1000.0));
        assert_eq!((second["used"], second["resumed"]), (1.0, 1000.0));
        let chart = walk.chart();
        assert_eq!(chart.series[0].points.len(), 10);
        assert_eq!(chart.series[0].points[2].y, 10.0);
    }
}
