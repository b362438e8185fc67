//! What is scheduled on the paths, and what clients measured by connections of their own.

use crate::lateness::{Expected, Lateness};
use crate::protocol::Measured;
use std::collections::HashMap;
use std::time::Duration;
use whimbrel_access::{BytesPerSecond, PathEstimate, PathId, Seconds};

/// A unit whose end nobody reported counts for so long.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// The most units of one client that count.
const MOST_UNITS: usize = 1024;
/// What a client measured counts for so long.
const FRESH: Duration = Duration::from_secs(5);
/// The most interfaces of which one client tells.
const MOST_TOLD: usize = 8;

/// Units and measurements of all clients. Pure: the time is the caller's.
#[derive(Debug, Default)]
pub(crate) struct Load {
    next: u64,
    clients: HashMap<u64, Client>,
    /// Units and bytes by number of the path.
    sums: [(u32, u64); whimbrel_access::MAX_PATHS],
    lateness: Lateness,
}

#[derive(Debug, Default)]
struct Client {
    units: HashMap<u64, Unit>,
    told: HashMap<u32, (Duration, Measured)>,
}

#[derive(Debug, Clone)]
struct Unit {
    /// How many bytes are to come over each path.
    shares: Vec<(PathId, u64)>,
    since: Duration,
    expected: Option<Expected>,
}

impl Load {
    /// A unit of this client is scheduled, with so many bytes over each of these paths, and complete after so
    /// long if it is as foreseen and its size was stated. `None` if it has too many, or there is no such
    /// path.
    pub(crate) fn schedule(
        &mut self,
        client: u64,
        shares: Vec<(PathId, u64)>,
        now: Duration,
        takes: Option<Duration>,
    ) -> Option<u64> {
        if shares.is_empty() || shares.iter().any(|(path, _)| path.index() >= self.sums.len()) {
            return None;
        }
        let units = &mut self.clients.entry(client).or_default().units;
        if units.len() >= MOST_UNITS {
            return None;
        }
        for (path, bytes) in &shares {
            let sum = &mut self.sums[path.index()];
            *sum = (sum.0.saturating_add(1), sum.1.saturating_add(*bytes));
        }
        self.next += 1;
        let expected = match (&shares[..], takes) {
            ([(path, bytes)], Some(takes)) => {
                now.checked_add(takes).and_then(|at| Expected::new(*path, *bytes, at))
            }
            _ => None,
        };
        units.insert(self.next, Unit { shares, since: now, expected });
        Some(self.next)
    }

    /// A unit of this client has ended, and nobody says how. False if there is none of that number.
    pub(crate) fn done(&mut self, client: u64, unit: u64) -> bool {
        self.end(client, unit).is_some()
    }

    /// A unit of this client has come, and was read as it came. False if there is none of that number.
    pub(crate) fn came(&mut self, client: u64, unit: u64, now: Duration) -> bool {
        let Some(unit) = self.end(client, unit) else { return false };
        unit.expected.into_iter().for_each(|expected| self.lateness.came(expected, now));
        true
    }

    fn end(&mut self, client: u64, unit: u64) -> Option<Unit> {
        let unit = self.clients.get_mut(&client)?.units.remove(&unit)?;
        self.subtract(&unit);
        Some(unit)
    }

    /// A unit of this client has so many bytes, more or less than it was scheduled with. False if there is
    /// none of that number that comes over one path.
    pub(crate) fn resize(&mut self, client: u64, number: u64, bytes: u64) -> bool {
        let units = self.clients.get_mut(&client).map(|client| &mut client.units);
        let Some(unit) = units.and_then(|units| units.get_mut(&number)) else { return false };
        let [(path, scheduled)] = &mut unit.shares[..] else { return false };
        if let Some((_, sum)) = self.sums.get_mut(path.index()) {
            *sum = sum.saturating_sub(*scheduled).saturating_add(bytes);
        }
        *scheduled = bytes;
        // When it was expected was said of another size.
        unit.expected = None;
        true
    }

    /// A client measured something on this interface.
    pub(crate) fn measured(&mut self, client: u64, index: u32, what: Measured, now: Duration) {
        let told = &mut self.clients.entry(client).or_default().told;
        if told.len() < MOST_TOLD || told.contains_key(&index) {
            told.insert(index, (now, what));
        }
    }

    /// A client is gone, and all that it told with it.
    pub(crate) fn gone(&mut self, client: u64) {
        let units = self.clients.remove(&client).map(|client| client.units).unwrap_or_default();
        units.into_values().for_each(|unit| self.subtract(&unit));
    }

    /// Takes away what was too long ago.
    pub(crate) fn forget(&mut self, now: Duration) {
        let mut ended = Vec::new();
        for client in self.clients.values_mut() {
            client.told.retain(|_, (at, _)| now.saturating_sub(*at) < FRESH);
            client.units.retain(|_, unit| {
                let stays = now.saturating_sub(unit.since) < FORGOTTEN;
                if !stays {
                    ended.push(unit.clone());
                }
                stays
            });
        }
        self.clients.retain(|_, client| !client.units.is_empty() || !client.told.is_empty());
        ended.iter().for_each(|unit| self.subtract(unit));
    }

    /// Adds what clients measured on this interface.
    pub(crate) fn add_measured(&self, index: u32, estimate: &mut PathEstimate, now: Duration) {
        for (at, measured) in self.clients.values().filter_map(|client| client.told.get(&index)) {
            if let Some(srtt) = measured.srtt_ms.map(Seconds::from_millis) {
                estimate.srtt_min = Some(estimate.srtt_min.map_or(srtt, |known| known.min(srtt)));
                estimate.srtt_median = estimate.srtt_median.or(Some(srtt));
                let age = Seconds(now.saturating_sub(*at).as_secs_f64());
                estimate.age = Some(estimate.age.map_or(age, |known| known.min(age)));
            }
            if let Some(rate) = measured.rate.map(BytesPerSecond) {
                let best = estimate.down.best.filter(|best| *best >= rate);
                estimate.down.best = best.or(Some(rate));
            }
            estimate.loss = estimate.loss.or(measured.loss);
            estimate.connections = estimate.connections.saturating_add(measured.connections);
        }
    }

    /// Adds what is scheduled, and how late it comes.
    pub(crate) fn add_scheduled(&self, estimates: &mut [PathEstimate], now: Duration) {
        self.lateness.add_to(estimates, now);
        for (estimate, (units, bytes)) in estimates.iter_mut().zip(self.sums) {
            estimate.objects = units;
            estimate.scheduled = bytes;
        }
    }

    /// Takes a unit of this client out of what is scheduled.
    pub(crate) fn leave_out(&self, client: u64, unit: u64, estimates: &mut [PathEstimate]) {
        let unit = self.clients.get(&client).and_then(|client| client.units.get(&unit));
        for (path, bytes) in unit.iter().flat_map(|unit| &unit.shares) {
            if let Some(estimate) = estimates.get_mut(path.index()) {
                estimate.objects = estimate.objects.saturating_sub(1);
                estimate.scheduled = estimate.scheduled.saturating_sub(*bytes);
            }
        }
    }

    /// Whether anything is.
    pub(crate) fn is_scheduled(&self) -> bool {
        self.sums.iter().any(|(units, _)| *units > 0)
    }

    fn subtract(&mut self, unit: &Unit) {
        for (path, bytes) in &unit.shares {
            if let Some(sum) = self.sums.get_mut(path.index()) {
                *sum = (sum.0.saturating_sub(1), sum.1.saturating_sub(*bytes));
            }
        }
    }
}

/// Whether what a client says it measured can be true.
pub(crate) fn is_possible(measured: &Measured) -> bool {
    let within = |value: Option<f64>, most: f64| value.is_none_or(|value| (0.0..=most).contains(&value));
    // A minute; a terabyte a second; all of it.
    within(measured.srtt_ms, 60_000.0) && within(measured.rate, 1e12) && within(measured.loss, 1.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scheduled(load: &Load) -> [(u32, u64); 2] {
        let mut estimates = [PathEstimate::default(); 2];
        load.add_scheduled(&mut estimates, Duration::ZERO);
        estimates.map(|estimate| (estimate.objects, estimate.scheduled))
    }

    #[test]
    fn a_unit_can_be_left_out_by_its_client_alone() {
        let mut load = Load::default();
        let shares = vec![(PathId(0), 500), (PathId(1), 20)];
        let unit = load.schedule(1, shares, Duration::ZERO, None).unwrap();
        load.schedule(2, vec![(PathId(1), 7)], Duration::ZERO, None).unwrap();
        let without = |client, unit| {
            let mut estimates = [PathEstimate::default(); 2];
            load.add_scheduled(&mut estimates, Duration::ZERO);
            load.leave_out(client, unit, &mut estimates);
            estimates.map(|estimate| (estimate.objects, estimate.scheduled))
        };
        assert_eq!(without(1, unit), [(0, 0), (1, 7)]);
        assert_eq!(without(2, unit), [(1, 500), (2, 27)]);
        assert_eq!(without(1, unit + 9), [(1, 500), (2, 27)]);
    }

    #[test]
    fn a_unit_counts_until_it_ends_its_client_goes_or_it_is_forgotten() {
        let mut load = Load::default();
        let unit = load.schedule(1, vec![(PathId(0), 500)], Duration::ZERO, None).unwrap();
        load.schedule(1, vec![(PathId(1), 7)], Duration::ZERO, None).unwrap();
        load.schedule(2, vec![(PathId(1), 30)], Duration::from_secs(1), None).unwrap();
        assert_eq!(scheduled(&load), [(1, 500), (2, 37)]);
        assert!(!load.done(2, unit), "it is another client's");
        assert!(load.done(1, unit) && !load.done(1, unit));
        assert_eq!(scheduled(&load), [(0, 0), (2, 37)]);
        load.gone(1);
        assert_eq!(scheduled(&load), [(0, 0), (1, 30)]);
        load.forget(Duration::from_secs(1) + FORGOTTEN);
        assert_eq!(scheduled(&load), [(0, 0), (0, 0)]);
        assert!(load.clients.is_empty());
    }

    #[test]
    fn a_unit_that_has_another_size_counts_with_that_and_tells_nothing_of_when_it_comes() {
        let (mut load, now) = (Load::default(), Duration::from_secs(9));
        let (takes, size) = (Some(Duration::from_millis(100)), 50_000);
        let one =
            |load: &mut Load, path| load.schedule(1, vec![(path, size)], Duration::ZERO, takes).unwrap();
        let late = |load: &Load| {
            let mut estimates = [PathEstimate::default(); 2];
            load.add_scheduled(&mut estimates, now);
            estimates.map(|estimate| estimate.late > Seconds::ZERO)
        };
        let near = one(&mut load, PathId(0));
        assert!(load.came(1, near, Duration::from_millis(100)));
        let far = one(&mut load, PathId(1));
        assert!(load.resize(1, far, 70_000) && !load.resize(2, far, 1) && !load.resize(1, near, 1));
        assert_eq!(scheduled(&load), [(0, 0), (1, 70_000)]);
        assert!(load.came(1, far, now));
        assert_eq!((scheduled(&load), late(&load)), ([(0, 0), (0, 0)], [false, false]));
        // Of one that ended nobody knows whether it came.
        let given_up = one(&mut load, PathId(1));
        assert!(load.done(1, given_up) && !load.came(1, given_up, now));
        assert_eq!(late(&load), [false, false]);
        let came = one(&mut load, PathId(1));
        assert!(load.came(1, came, now));
        assert_eq!(late(&load), [false, true]);
        // Of one in parts nobody knows which has another size.
        let parts = vec![(PathId(0), 1), (PathId(1), 2)];
        let both = load.schedule(1, parts, now, takes).unwrap();
        assert!(!load.resize(1, both, 5));
    }

    #[test]
    fn each_part_of_a_unit_counts_on_its_own_path_and_all_end_together() {
        let mut load = Load::default();
        let parts = vec![(PathId(0), 500), (PathId(1), 70)];
        let unit = load.schedule(1, parts, Duration::ZERO, None).unwrap();
        assert_eq!(scheduled(&load), [(1, 500), (1, 70)]);
        assert!(load.done(1, unit));
        assert_eq!(scheduled(&load), [(0, 0), (0, 0)]);
        assert_eq!(load.schedule(1, vec![(PathId(200), 1)], Duration::ZERO, None), None);
        assert_eq!(load.schedule(1, Vec::new(), Duration::ZERO, None), None);
    }

    #[test]
    fn one_client_has_no_more_units_than_there_is_room_for() {
        let mut load = Load::default();
        for _ in 0..MOST_UNITS {
            assert!(load.schedule(1, vec![(PathId(0), 1)], Duration::ZERO, None).is_some());
        }
        assert_eq!(load.schedule(1, vec![(PathId(0), 1)], Duration::ZERO, None), None);
        assert!(load.schedule(2, vec![(PathId(0), 1)], Duration::ZERO, None).is_some());
    }

    #[test]
    fn what_a_client_measured_counts_beside_the_kernels_figures_for_some_seconds() {
        let mut load = Load::default();
        let told = Measured {
            interface: "wlan0".to_owned(),
            srtt_ms: Some(20.0),
            rate: Some(5e6),
            loss: Some(0.01),
            connections: 3,
        };
        load.measured(1, 4, told, Duration::ZERO);
        let kernel = PathEstimate::known(Seconds(0.05), BytesPerSecond(1e6));
        let mut estimate = PathEstimate { connections: 1, ..kernel };
        load.add_measured(4, &mut estimate, Duration::from_secs(1));
        assert_eq!(estimate.age, Some(Seconds::ZERO));
        assert_eq!((estimate.srtt_min, estimate.connections), (Some(Seconds(0.02)), 4));
        assert_eq!((estimate.down.best, estimate.loss), (Some(BytesPerSecond(5e6)), Some(0.0)));
        let mut silent = PathEstimate { age: Some(Seconds(30.0)), ..kernel };
        load.add_measured(4, &mut silent, Duration::from_secs(1));
        assert_eq!(silent.age, Some(Seconds(1.0)));
        load.forget(FRESH);
        let mut estimate = kernel;
        load.add_measured(4, &mut estimate, FRESH);
        assert_eq!(estimate, kernel);
    }
}
