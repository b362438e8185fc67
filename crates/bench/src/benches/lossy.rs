//! One path that loses packets: QUIC beside the kernel's TCP.
//!
//! A server and a client on one emulated link, which loses packets at random in both directions. The server
//! sends for a while as fast as it can; what counts is what the client's application has read by the end, the
//! start included. Plain TCP is measured without encryption, with the congestion controls that are named.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_lab::{Host, Lab, LinkSpec, Rate};
use whimbrel_transport::{Allow, CarrierKind, Carriers, Config, Endpoint, ListenOptions, Listener, Stream};

use super::{Plan, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const RTT: Duration = Duration::from_millis(50);
const RATE_MBIT: u64 = 20;
/// Percent of the packets, each way.
const LOSSES: [u32; 3] = [1, 3, 10];
const SECONDS: f64 = 10.0;
const PORT: u16 = 4480;
const CLIENT: &str = "10.0.1.1";
const SERVER: &str = "10.0.1.2";
const BLOCK: usize = 64 * 1024;
/// Each host's workers.
const WORKERS: usize = 2;

const SPEC: Spec = Spec {
    name: "lossy",
    title: "bulk over one path of 20 Mbit/s and 50 ms that loses packets",
    metrics: &[Metric { key: "rate", unit: "Mbit/s" }],
    targets: &[
        beside("whimbrel quic 1 %", "tcp cubic 1 %"),
        beside("whimbrel quic 1 %", "tcp bbr 1 %"),
        beside("whimbrel quic 3 %", "tcp cubic 3 %"),
        beside("whimbrel quic 3 %", "tcp bbr 3 %"),
        beside("whimbrel quic 10 %", "tcp cubic 10 %"),
        beside("whimbrel quic 10 %", "tcp bbr 10 %"),
    ],
    plot: Plot::Ratios,
};

const fn beside(of: &'static str, peer: &'static str) -> Target {
    Target {
        case: "",
        of,
        metric: "rate",
        against: Some(peer),
        judged: Judged::Median,
        bound: Bound::AtLeast(0.95),
        aim: 1.0,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Quic,
    /// TCP with this congestion control.
    Tcp(&'static str),
}

const SYSTEMS: [System; 3] = [System::Quic, System::Tcp("cubic"), System::Tcp("bbr")];

impl System {
    fn label(self, loss: u32) -> String {
        match self {
            Self::Quic => format!("whimbrel quic {loss} %"),
            Self::Tcp(control) => format!("tcp {control} {loss} %"),
        }
    }
}

/// Runs the bench.
pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.length(SECONDS);
    let mut trials = Vec::new();
    for loss in LOSSES {
        for (round, system) in schedule(&SYSTEMS, plan.rounds(5)) {
            let label = system.label(loss);
            let world = World::new(loss, round)?;
            let bytes = match system {
                System::Quic => world.quic(length),
                System::Tcp(control) => world.tcp(control, length),
            };
            let bytes = bytes.with_context(|| label.clone())?;
            let rate = bytes as f64 * 8e-6 / length.as_secs_f64();
            let trial = Trial::new(label, round).with("rate", rate);
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "carrier": "quic",
        "rtt_ms": RTT.as_millis(),
        "rate_mbit": RATE_MBIT,
        "loss": "random, each way",
        "seconds": length.as_secs_f64(),
        "controls": "quic: BBR of quinn; tcp: as named, without encryption",
    });
    output.finish(&SPEC, settings, &trials)
}

/// Two hosts on a link of their own.
struct World {
    client: Host,
    server: Host,
    _lab: Lab,
}

impl World {
    fn new(loss: u32, round: u32) -> Result<Self> {
        let lab = Lab::new()?;
        let (client, server) = (lab.host("client")?, lab.host("server")?);
        let spec = LinkSpec::default()
            .delay(RTT / 2)
            .rate(Rate::mbit(RATE_MBIT))
            .loss(f64::from(loss) / 100.0)
            .seed(u64::from(round) + 1);
        let link = lab.link(&client, &server, spec)?;
        link.end(&client).add_address(&format!("{CLIENT}/24"))?;
        link.end(&server).add_address(&format!("{SERVER}/24"))?;
        Ok(Self { client, server, _lab: lab })
    }

    /// Bytes that arrived within that time.
    fn tcp(&self, control: &str, length: Duration) -> Result<u64> {
        let address: SocketAddr = format!("{SERVER}:{PORT}").parse()?;
        let listener = self.server.run(|| TcpListener::bind(address))?;
        let control = control.to_owned();
        let sending = std::thread::spawn(move || -> std::io::Result<()> {
            let (mut socket, _) = listener.accept()?;
            SockRef::from(&socket).set_tcp_congestion(control.as_bytes())?;
            let block = vec![0; BLOCK];
            // Ends when the client closes.
            while socket.write_all(&block).is_ok() {}
            Ok(())
        });
        let began = Instant::now();
        let mut socket = self.client.run(|| TcpStream::connect(address))?;
        let mut block = vec![0; BLOCK];
        let mut bytes = 0;
        while let Some(left) = length.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            match socket.read(&mut block) {
                Ok(n) => bytes += n as u64,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        drop(socket);
        ensure!(sending.join().is_ok_and(|sent| sent.is_ok()), "the sender failed");
        Ok(bytes)
    }

    fn quic(&self, length: Duration) -> Result<u64> {
        let (serving, dialling) = (self.server.runtime(WORKERS)?, self.client.runtime(WORKERS)?);
        let (server, listener) = serving.block_on(async {
            let endpoint = Endpoint::builder().bind().await?;
            let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
            anyhow::Ok((endpoint, listener))
        })?;
        serving.spawn(send(listener));
        let address = server.addr();
        let bytes = dialling.block_on(async move {
            let carriers = Carriers::Only(CarrierKind::Quic);
            let config = Config { carriers, ..Config::default() };
            let client = Endpoint::builder().config(config).bind().await?;
            let began = Instant::now();
            let connection = client.connect(address).await?;
            let mut stream = connection.open_stream().await?;
            stream.write_all(b"go").await?;
            receive(&mut stream, length.saturating_sub(began.elapsed())).await
        })?;
        drop(server);
        Ok(bytes)
    }
}

/// Sends on every stream for as long as somebody takes it.
async fn send(mut listener: Listener) {
    while let Some(connection) = listener.accept().await {
        if let Ok(mut stream) = connection.accept_stream().await {
            let block = vec![0; BLOCK];
            while stream.write_all(&block).await.is_ok() {}
        }
    }
}

async fn receive(stream: &mut Stream, length: Duration) -> Result<u64> {
    let (mut block, mut bytes) = (vec![0; BLOCK], 0);
    let until = tokio::time::Instant::now() + length;
    while let Ok(read) = tokio::time::timeout_at(until, stream.read(&mut block)).await {
        let n = read?;
        ensure!(n > 0, "the server ended the stream");
        bytes += n as u64;
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn every_peer_is_a_system_that_is_measured() {
        for target in SPEC.targets {
            for label in [Some(target.of), target.against].into_iter().flatten() {
                let all = LOSSES.iter().flat_map(|loss| SYSTEMS.map(|system| system.label(*loss)));
                assert!(all.into_iter().any(|known| known == label), "{label}");
            }
        }
    }

    #[test]
    fn both_carry_bytes() {
        if !require!() {
            return;
        }
        let length = Duration::from_secs(2);
        // 20 Mbit/s for two seconds are 5 MB.
        for bytes in [World::new(0, 0).unwrap().quic(length), World::new(0, 0).unwrap().tcp("cubic", length)]
        {
            let bytes = bytes.unwrap();
            assert!((500_000..5_500_000).contains(&bytes), "{bytes}");
        }
    }
}
