//! Connections that a server accepts a second while it holds many idle ones, beside one that holds few.
//!
//! Both servers, and the clients that hold their connections, are processes of their own and run all the
//! time, so that what the idle connections cost the machine holds both up; new connections come to one server
//! after the other, over TCP.
//!
//! The idle connections are over TCP too, as far as the limit of open files allows. The others are over QUIC,
//! for which a server needs one socket in all.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::child::{Reply, Request};
use super::side::Side;
use super::{Plan, rotated};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;
use crate::system::{Address, Kind};

const FEW: usize = 100;
const MANY: usize = 50_000;
/// Idle connections of one client process: each has the ports of one of the server's addresses.
const PER_CLIENT: usize = 12_500;
/// Of one endpoint.
const PER_ENDPOINT: usize = 1000;
/// Open files besides the connections' own.
const OTHER_FILES: usize = 1024;
/// After so many connections were opened.
const CALM: Duration = Duration::from_secs(2);

const SPEC: Spec = Spec {
    name: "accept",
    title: "connections accepted a second, each used once and closed, beside many idle ones and beside few",
    metrics: &[Metric { key: "rate", unit: "1/s" }],
    targets: &[Target {
        case: "",
        of: "whimbrel, many idle",
        metric: "rate",
        against: Some("few idle"),
        judged: Judged::Median,
        bound: Bound::AtLeast(0.9),
        aim: 1.0,
    }],
    plot: Plot::Cases { metric: "rate", unit: "1/s" },
};

pub(crate) fn run(plan: &Plan, connections: Option<usize>, output: &mut Output) -> Result<()> {
    let many = connections.unwrap_or(if plan.quick { 2000 } else { MANY });
    let length = plan.length(3.0).as_secs_f64();
    let limit = usize::try_from(sys::raise_file_limit()?).unwrap_or(usize::MAX);
    ensure!(
        limit >= PER_CLIENT.min(many) + OTHER_FILES,
        "{many} connections need more open files than the limit of {limit}; raise it (ulimit -Hn)"
    );
    let held = Idle::within(limit, many);
    let mut crowded = Stage::start(held).context("the server with many connections")?;
    let mut calm = Stage::start(Idle::within(limit, FEW)).context("the server with few connections")?;
    std::thread::sleep(CALM);
    let mut trials = Vec::new();
    for round in 0..plan.rounds(7) {
        for is_crowded in rotated(&[true, false], round) {
            let (stage, label) =
                if is_crowded { (&mut crowded, "whimbrel, many idle") } else { (&mut calm, "few idle") };
            let trial = Trial::new(label, round).with("rate", stage.rate(length)?);
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "carrier": "auto",
        "many": many,
        "many_over": { "tcp": held.tcp, "quic": held.quic },
        "few": FEW,
        "connections_of_an_endpoint": PER_ENDPOINT,
        "seconds": length,
    });
    output.finish(&SPEC, settings, &trials)
}

/// Idle connections by their carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Idle {
    tcp: usize,
    quic: usize,
}

impl Idle {
    /// So many, of a server that may have `limit` open files.
    fn within(limit: usize, count: usize) -> Self {
        let tcp = count.min(limit.saturating_sub(OTHER_FILES));
        Self { tcp, quic: count - tcp }
    }

    /// Takes as many as one client holds; tells whether they are over QUIC.
    fn take(&mut self) -> Option<(usize, bool)> {
        let is_quic = self.tcp == 0;
        let left = if is_quic { &mut self.quic } else { &mut self.tcp };
        let count = PER_CLIENT.min(*left);
        *left -= count;
        (count > 0).then_some((count, is_quic))
    }
}

/// A server, clients that hold idle connections to it, and one that opens new ones. Fields are dropped in
/// this order.
struct Stage {
    caller: Side,
    _holders: Vec<Side>,
    _server: Side,
}

impl Stage {
    fn start(mut idle: Idle) -> Result<Self> {
        let system = Kind::Whimbrel;
        let (mut server, address) = Side::server(system)?;
        let mut holders = Vec::new();
        let all = idle.tcp + idle.quic;
        for number in 1_u8.. {
            let Some((count, is_quic)) = idle.take() else { break };
            let at = at(&address, number);
            let mut holder = if is_quic { Side::client_over_quic(&at)? } else { Side::client(system, &at)? };
            holder.tell(&Request::Connect { count, each: PER_ENDPOINT })?;
            holders.push(holder);
        }
        for holder in &mut holders {
            holder.hear()?;
        }
        let caller = Side::client(system, &address)?;
        server.ask(&Request::Expect(all))?;
        Ok(Self { caller, _holders: holders, _server: server })
    }

    fn rate(&mut self, seconds: f64) -> Result<f64> {
        match self.caller.ask(&Request::Churn(seconds))? {
            Reply::Rate(rate) => Ok(rate),
            other => bail!("unexpected answer {other:?}"),
        }
    }
}

/// The same server by another of this machine's own addresses: each has ports of its own for those who call
/// it.
fn at(address: &Address, number: u8) -> Address {
    let mut other = address.clone();
    other.socket.set_ip(Ipv4Addr::new(127, 0, 0, number).into());
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_limit_of_files_leaves_is_held_over_quic() {
        let mut idle = Idle::within(20_000, 50_000);
        assert_eq!(idle, Idle { tcp: 18_976, quic: 31_024 });
        let mut held = (0, 0);
        while let Some((count, is_quic)) = idle.take() {
            assert!(count <= PER_CLIENT);
            if is_quic { held.1 += count } else { held.0 += count }
        }
        assert_eq!(held, (18_976, 31_024));
        assert_eq!(Idle::within(1 << 20, 50_000), Idle { tcp: 50_000, quic: 0 });
    }
}
