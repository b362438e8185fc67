//! 12 MB from one phone to another one behind the same NAT gateway [msocket, figure 18]: through a relay that
//! is more or less far away, and directly.
//!
//! Bluetooth is not measured. What the paper's phones could have had of it at most is the limit: 2.1 Mbit/s
//! (version 2.1 with EDR), with which 12 MB take 46 s.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::EndpointAddr;
use whimbrel_lab::Rate;
use whimbrel_transport::{Config, Endpoint};

use super::{talk, whimbrel_stage};
use crate::benches::Plan;
use crate::lab::Phones;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::system::Channel;

const SIZE: u64 = 12_000_000;
/// From phone to phone through the relay, in milliseconds; the last is the paper's.
const RTTS: [u64; 4] = [30, 60, 120, 232];
/// From phone to phone through their gateway alone.
const DIRECT_MS: f64 = 8.0;
const WIFI_MBIT: u64 = 20;
const DIRECT: &str = "direct";

const SPEC: Spec = Spec {
    name: "reach-proximate",
    title: "12 MB between two phones behind one NAT gateway [msocket, figure 18]",
    metrics: &[Metric { key: "time", unit: "s" }, Metric { key: "rate", unit: "Mbit/s" }],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "time",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(46.0),
        aim: 10.0,
    }],
    plot: Plot::Chart,
};

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rtts = if plan.quick { &RTTS[3..] } else { &RTTS[..] };
    let mut trials = Vec::new();
    for round in 0..plan.rounds(5) {
        for &rtt in rtts {
            let took = transfer(Duration::from_millis(rtt), true)?;
            trials.push(trial(round, relayed(rtt), took));
        }
        let took = transfer(Duration::from_millis(RTTS[3]), false)?;
        trials.push(trial(round, DIRECT.to_owned(), took));
    }
    trials.iter().for_each(|trial| output.trial(&SPEC, trial));
    let settings = json!({
        "carrier": "auto", "bytes": SIZE, "wifi_mbit": WIFI_MBIT, "rtt_ms": rtts, "direct_rtt_ms": DIRECT_MS,
    });
    let chart = chart(rtts, &trials);
    output.finish_chart(&SPEC, settings, &trials, Some(&chart))
}

fn relayed(rtt: u64) -> String {
    format!("through a relay, {rtt} ms")
}

fn trial(round: u32, case: String, took: Duration) -> Trial {
    let seconds = took.as_secs_f64();
    let rate = SIZE as f64 * 8.0 / 1e6 / seconds;
    Trial::new("whimbrel", round).in_case(case).with("time", seconds).with("rate", rate)
}

fn chart(rtts: &[u64], trials: &[Trial]) -> Chart {
    let times = |case: &str| -> Vec<f64> {
        let own = trials.iter().filter(|trial| trial.case == case);
        own.filter_map(|trial| trial.values.get("time")).copied().collect()
    };
    let through = rtts.iter().filter_map(|rtt| Point::of(*rtt as f64, &times(&relayed(*rtt))));
    let series =
        |label: &str, points: Vec<Point>| Series { label: label.to_owned(), style: Style::Both, points };
    let direct = Point::of(DIRECT_MS, &times(DIRECT)).into_iter().collect();
    Chart {
        x: Axis::linear("round trip from phone to phone [ms]"),
        y: Axis::linear("time of 12 MB [s], median and ends of the runs"),
        series: vec![series("through a relay", through.collect()), series("direct", direct)],
        free: Corner::UpperLeft,
        mark: None,
    }
}

/// Has one phone fetch the file from the other one; with `by_relay` only the relay is known.
fn transfer(rtt: Duration, by_relay: bool) -> Result<Duration> {
    let world = Phones::new(rtt, Rate::mbit(WIFI_MBIT))?;
    let [taker, giver] = &world.phones;
    let relays = [whimbrel_stage::relay(&world.relay)?];
    let (server, listener, _keeper) = whimbrel_stage::serve(giver, &relays)?;
    giver.runtime.spawn(whimbrel_stage::accept(listener, talk::pourer()));
    let target = if by_relay {
        EndpointAddr::new(server.id(), server.relayed().into_iter().flat_map(|place| place.pack()))
    } else {
        server.addr()
    };
    let config = Config { direct_paths: !by_relay, ..Config::default() };
    let fetching = async {
        let endpoint = Endpoint::builder().config(config).bind().await?;
        let began = Instant::now();
        let connection = endpoint.connect(target).await?;
        let mut channel = Channel::new(connection.open_stream().await?);
        channel.write_u8(0).await?;
        channel.flush().await?;
        let fetched = tokio::io::copy(&mut channel.take(SIZE), &mut tokio::io::sink()).await?;
        ensure!(fetched == SIZE, "the stream ended after {fetched} bytes");
        let took = began.elapsed();
        ensure!(whimbrel_stage::is_direct(&connection) != by_relay, "it went the other way");
        anyhow::Ok(took)
    };
    taker.wait("fetch", fetching)?.with_context(|| format!("{rtt:?}, by the relay alone: {by_relay}"))
}
