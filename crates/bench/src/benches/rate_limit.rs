//! How well a limit of the rate is kept.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Endpoint, ListenOptions, ManualMonitor, RateLimit, Stream,
};

use super::{Plan, isolated, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// Before the measurement: what was saved up, and what fills the queues, is not part of the rate.
const LEAD: Duration = Duration::from_millis(500);
/// Bytes a second.
const LIMITS: [u64; 3] = [100_000, 1_250_000, 12_500_000];

const SPEC: Spec = Spec {
    name: "rate-limit",
    title: "a stream under a limit of its connection, loopback: how far the rate is from what was asked",
    metrics: &[Metric { key: "off", unit: "%" }, Metric { key: "rate", unit: "B/s" }],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "off",
        against: None,
        judged: Judged::P95,
        bound: Bound::AtMost(3.0),
        aim: 3.0,
    }],
    plot: Plot::Cases { metric: "off", unit: "%" },
};

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.length(10.0);
    let cases: Vec<(CarrierKind, u64)> = [CarrierKind::Tcp, CarrierKind::Quic]
        .into_iter()
        .flat_map(|kind| LIMITS.map(|limit| (kind, limit)))
        .collect();
    let mut trials = Vec::new();
    for (round, (carrier, limit)) in schedule(&cases, plan.rounds(3)) {
        let bytes = isolated(carried(carrier, limit, length))
            .with_context(|| format!("a limit of {limit} bytes a second over {carrier}"))?;
        let rate = bytes as f64 / length.as_secs_f64();
        let off = (rate / limit as f64 - 1.0).abs() * 100.0;
        let case = format!("{carrier}, {} kB/s", limit / 1000);
        let trial = Trial::new("whimbrel", round).in_case(case).with("off", off).with("rate", rate);
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    output.finish(&SPEC, json!({ "carrier": "as the case says", "seconds": length.as_secs_f64() }), &trials)
}

/// Bytes that arrive in `length` of a stream that always has more to send.
async fn carried(carrier: CarrierKind, limit: u64, length: Duration) -> Result<u64> {
    let at = || ManualMonitor::new([IpAddr::from([127, 0, 0, 1])]);
    let server = Endpoint::builder().monitor(at()).bind().await?;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    let client = Endpoint::builder().monitor(at()).carriers(Carriers::Only(carrier)).bind().await?;
    let connection = client.connect(server.addr()).await?;
    let accepted = listener.accept().await.context("no connection came")?;
    connection.set_rate_limit(Some(RateLimit::new(limit).context("the limit is out of range")?));
    let mut writer = connection.open_stream().await?;
    let busy = tokio::spawn(async move { while writer.write_all(&[7; 32 * 1024]).await.is_ok() {} });
    let mut reader = accepted.accept_stream().await?;
    read_until(&mut reader, Instant::now() + LEAD).await?;
    let bytes = read_until(&mut reader, Instant::now() + length).await?;
    busy.abort();
    Ok(bytes)
}

async fn read_until(reader: &mut Stream, end: Instant) -> Result<u64> {
    let mut buffer = vec![0; 64 * 1024];
    let mut bytes = 0;
    while let Ok(read) = timeout_at(end, reader.read(&mut buffer)).await {
        bytes += read? as u64;
    }
    Ok(bytes)
}
