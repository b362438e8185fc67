//! What the manager is told of paths that the kernel does not know as connections: those of QUIC. Pure.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_base::ConnectionId;
use whimbrel_multiaccess::protocol::Measured;

/// What is told counts for five seconds: at rest it is told so often.
const AT_REST: Duration = Duration::from_secs(4);

/// A connection's path, by its number.
pub(crate) type Key = (ConnectionId, u64);

/// A path and what it has carried so far.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    pub(crate) key: Key,
    pub(crate) interface: String,
    pub(crate) srtt: Duration,
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// Makes rates of counters.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Bytes received and sent, when it was looked at last.
    before: HashMap<Key, (u64, u64)>,
    looked: Option<Duration>,
    told: Option<Duration>,
}

impl Meter {
    /// What is to be told of each interface at this time: each time while there is traffic, else now and
    /// then.
    pub(crate) fn measure(&mut self, now: Duration, flows: &[Flow]) -> Vec<Measured> {
        let took = self.looked.map_or(0.0, |looked| now.saturating_sub(looked).as_secs_f64());
        let came = |flow: &Flow| {
            self.before.get(&flow.key).map_or(0, |before| flow.received.saturating_sub(before.0))
        };
        let moved = |flow: &Flow| self.before.get(&flow.key) != Some(&(flow.received, flow.sent));
        let is_due = self.told.is_none_or(|told| now.saturating_sub(told) >= AT_REST);
        let mut all: Vec<(Measured, u64)> = Vec::new();
        if is_due || flows.iter().any(moved) {
            for flow in flows {
                add(&mut all, flow, came(flow));
            }
        }
        self.before = flows.iter().map(|flow| (flow.key, (flow.received, flow.sent))).collect();
        self.looked = Some(now);
        if !all.is_empty() {
            self.told = Some(now);
        }
        let with_rate = |(measured, came): (Measured, u64)| {
            let rate = (came > 0 && took > 0.0).then(|| came as f64 / took);
            Measured { rate, ..measured }
        };
        all.into_iter().map(with_rate).collect()
    }
}

/// Adds a path to what is told of its interface, and what came on it.
fn add(all: &mut Vec<(Measured, u64)>, flow: &Flow, came: u64) {
    let srtt = flow.srtt.as_secs_f64() * 1000.0;
    match all.iter_mut().find(|(known, _)| known.interface == flow.interface) {
        Some((known, sum)) => {
            known.srtt_ms = known.srtt_ms.map(|least| least.min(srtt));
            known.connections += 1;
            *sum += came;
        }
        None => {
            let interface = flow.interface.clone();
            let measured =
                Measured { interface, srtt_ms: Some(srtt), rate: None, loss: None, connections: 1 };
            all.push((measured, came));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn flow(key: Key, interface: &str, millis: u64, received: u64) -> Flow {
        Flow { key, interface: interface.to_owned(), srtt: Duration::from_millis(millis), received, sent: 7 }
    }

    #[test]
    fn the_smallest_round_trip_and_the_sum_of_what_came_are_told_of_each_interface() {
        let mut meter = Meter::default();
        let (one, other) = (ConnectionId::random(), ConnectionId::random());
        let flows = |received| {
            [
                flow((one, 0), "wlan0", 20, received),
                flow((other, 0), "wlan0", 30, received),
                flow((one, 1), "usb0", 80, 5),
            ]
        };
        let first = meter.measure(SECOND, &flows(1000));
        assert!(first.iter().all(|measured| measured.rate.is_none()), "nothing is known of the time before");
        let told = meter.measure(3 * SECOND, &flows(3000));
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].interface.as_str(), told[0].connections), ("wlan0", 2));
        assert_eq!((told[0].srtt_ms, told[0].rate), (Some(20.0), Some(2000.0)));
        assert_eq!((told[1].srtt_ms, told[1].rate), (Some(80.0), None));
    }

    #[test]
    fn at_rest_it_is_told_now_and_then_and_without_paths_never() {
        let mut meter = Meter::default();
        let flows = [flow((ConnectionId::random(), 0), "wlan0", 20, 1000)];
        assert_eq!(meter.measure(Duration::ZERO, &flows).len(), 1);
        let times = (1_u32..=12).filter(|n| !meter.measure(*n * SECOND, &flows).is_empty());
        assert_eq!(times.collect::<Vec<_>>(), [4, 8, 12]);
        assert!(meter.measure(20 * SECOND, &[]).is_empty() && meter.before.is_empty());
    }
}
