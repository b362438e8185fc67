//! The paths of the host at one moment, by the numbers that policies know them by.

use crate::protocol::{PathReport, Wifi};
use crate::{AccessPath, Prefix, Routes, Settings};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use whimbrel_access::{MAX_PATHS, PathEstimate, PathId};
use whimbrel_base::order;

/// Which number each interface has. An interface keeps its number while it is away, so that settings of
/// policies go on to mean the same path; only if all numbers are in use, a newcomer takes one of those.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    names: Vec<String>,
    /// The first ones belong to interfaces of the settings, and are never given to others.
    reserved: usize,
}

impl Numbers {
    pub(crate) fn new(settings: &Settings) -> Self {
        let names: Vec<String> =
            settings.interface.iter().map(|interface| interface.name.clone()).take(MAX_PATHS).collect();
        Self { reserved: names.len(), names }
    }

    /// The numbers of what is there now; those that find no number are left out.
    fn assign(&mut self, present: &[AccessPath]) -> Vec<Option<usize>> {
        let is_present = |name: &String| present.iter().any(|path| path.interface == *name);
        let mut assigned: Vec<Option<usize>> =
            present.iter().map(|path| self.names.iter().position(|name| *name == path.interface)).collect();
        // What leads far comes before what leads to a neighbour.
        let mut new: Vec<usize> = (0..present.len()).filter(|n| assigned[*n].is_none()).collect();
        order::by_key(&mut new, |n| (!present[*n].routes.have_default(), present[*n].index));
        for n in new {
            let name = present[n].interface.clone();
            if self.names.len() < MAX_PATHS {
                self.names.push(name);
                assigned[n] = Some(self.names.len() - 1);
            } else if let Some(at) = (self.reserved..MAX_PATHS).find(|at| !is_present(&self.names[*at])) {
                self.names[at] = name;
                assigned[n] = Some(at);
            }
        }
        assigned
    }
}

/// A path and where it leads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KnownPath {
    pub(crate) interface: Arc<str>,
    pub(crate) index: u32,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) prefixes: Vec<Prefix>,
    routes: Arc<Routes>,
}

impl KnownPath {
    /// Whether it leads to this address: it has one of that family, and a route.
    pub(crate) fn leads_to(&self, address: IpAddr) -> bool {
        self.source_for(address).is_some() && self.routes.lead_to(address)
    }

    /// The address to send from: one in the same network, or the first of that family.
    pub(crate) fn source_for(&self, address: IpAddr) -> Option<IpAddr> {
        let same = |own: &&IpAddr| own.is_ipv4() == address.is_ipv4();
        let near = self.prefixes.iter().position(|prefix| prefix.contains(address));
        let near = near.and_then(|at| self.addresses.get(at)).filter(same);
        near.or_else(|| self.addresses.iter().find(same)).copied()
    }
}

/// All paths, immutable: whoever decides takes one of these, and measurements go on beside.
#[derive(Debug, Clone, Default)]
pub struct Paths {
    /// By number; `None`: that interface is not there.
    list: Vec<Option<KnownPath>>,
    estimates: Vec<PathEstimate>,
    /// Of interfaces that are Wi-Fi, by the kernel's numbers.
    wifi: Arc<BTreeMap<u32, Wifi>>,
}

impl Paths {
    /// What was measured, with numbers and what the settings say of it.
    pub(crate) fn of(measured: Vec<AccessPath>, settings: &Settings, numbers: &mut Numbers) -> Self {
        let kept = |path: &AccessPath| !settings.ignore.contains(&path.interface);
        let measured: Vec<AccessPath> = measured.into_iter().filter(kept).collect();
        let assigned = numbers.assign(&measured);
        let count = numbers.names.len();
        let estimates = vec![PathEstimate::default(); count];
        let mut paths = Self { list: vec![None; count], estimates, wifi: Arc::default() };
        for (path, number) in measured.into_iter().zip(assigned) {
            let Some(number) = number else { continue };
            let metered = settings.is_metered(&path.interface);
            paths.estimates[number] = PathEstimate { metered, ..path.estimate };
            paths.list[number] = Some(KnownPath {
                interface: path.interface.into(),
                index: path.index,
                addresses: path.addresses,
                prefixes: path.prefixes,
                routes: path.routes,
            });
        }
        paths
    }

    /// These interfaces cost money too.
    pub(crate) fn meter(&mut self, interfaces: &BTreeSet<String>) {
        for (path, estimate) in self.list.iter().zip(&mut self.estimates) {
            let is_listed = path.as_ref().is_some_and(|path| interfaces.contains(&*path.interface));
            estimate.metered |= is_listed;
        }
    }

    /// This is known of Wi-Fi, and counts where something is decided.
    pub(crate) fn set_wifi(&mut self, wifi: Arc<BTreeMap<u32, Wifi>>) {
        for (path, estimate) in self.list.iter().zip(&mut self.estimates) {
            estimate.radio = path.as_ref().and_then(|path| wifi.get(&path.index)).map(Wifi::radio);
        }
        self.wifi = wifi;
    }

    /// Whether other networks cost money than there.
    pub(crate) fn costs_differ_from(&self, other: &Self) -> bool {
        let costs = |paths: &Self| paths.estimates.iter().map(|known| known.metered).collect::<Vec<_>>();
        costs(self) != costs(other)
    }

    /// How many numbers are given, absent interfaces included.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Those that are there.
    pub(crate) fn present(&self) -> impl Iterator<Item = (PathId, &KnownPath)> {
        (0..).map(PathId).zip(&self.list).filter_map(|(id, path)| Some((id, path.as_ref()?)))
    }

    pub(crate) fn get(&self, id: PathId) -> Option<&KnownPath> {
        self.list.get(id.index())?.as_ref()
    }

    /// The path of this interface.
    pub(crate) fn named(&self, interface: &str) -> Option<PathId> {
        self.present().find(|(_, path)| &*path.interface == interface).map(|(id, _)| id)
    }

    /// The path that has this address.
    pub(crate) fn with_address(&self, address: IpAddr) -> Option<PathId> {
        self.present().find(|(_, path)| path.addresses.contains(&address)).map(|(id, _)| id)
    }

    /// Whether this address is one of this host, which no interface leads to.
    pub(crate) fn are_at(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified() || self.with_address(address).is_some()
    }

    pub(crate) fn estimates(&self) -> &[PathEstimate] {
        &self.estimates
    }

    pub(crate) fn estimates_mut(&mut self) -> &mut [PathEstimate] {
        &mut self.estimates
    }

    /// When something was last heard on this path, by the clock that says that it is `now`.
    pub(crate) fn heard(&self, id: PathId, now: Duration) -> Option<Duration> {
        let age = Duration::try_from_secs_f64(self.estimates.get(id.index())?.age?.0).ok()?;
        Some(now.saturating_sub(age))
    }

    /// Whether somebody would see another list of interfaces or addresses.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        self.list != other.list
    }

    /// What is told of one path.
    pub(crate) fn report_of(&self, id: PathId) -> Option<PathReport> {
        let path = self.get(id)?;
        let known = &self.estimates[id.index()];
        let millis = |time: Option<whimbrel_access::Seconds>| time.map(|time| round(time.0 * 1000.0));
        let rate = |rate: Option<whimbrel_access::BytesPerSecond>| rate.map(|rate| rate.0.round());
        Some(PathReport {
            number: id.0 + 1,
            interface: path.interface.to_string(),
            addresses: path.addresses.clone(),
            prefixes: path.prefixes.iter().map(ToString::to_string).collect(),
            metered: known.metered,
            srtt_min_ms: millis(known.srtt_min),
            srtt_median_ms: millis(known.srtt_median),
            down_now: rate(known.down.now),
            down_best: rate(known.down.best),
            up_now: rate(known.up.now),
            up_best: rate(known.up.best),
            loss: known.loss.map(|loss| (loss * 1e6).round() / 1e6),
            late_ms: millis(Some(known.late).filter(|late| late.0 > 0.0)),
            connections: known.connections,
            scheduled: known.objects,
            wifi: self.wifi.get(&path.index).copied(),
        })
    }

    /// What is told of all paths.
    pub fn report(&self) -> Vec<PathReport> {
        self.present().filter_map(|(id, _)| self.report_of(id)).collect()
    }
}

/// To a thousandth.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// An interface with one IPv4 address and a default route.
    pub(crate) fn interface(index: u32, name: &str, address: [u8; 4], estimate: PathEstimate) -> AccessPath {
        let mut routes = Routes::default();
        routes.add(Prefix::new(IpAddr::from([0, 0, 0, 0]), 0));
        AccessPath {
            index,
            interface: name.to_owned(),
            addresses: vec![IpAddr::from(address)],
            prefixes: vec![Prefix::new(IpAddr::from(address), 24)],
            routes: Arc::new(routes),
            estimate,
        }
    }

    fn plain(index: u32, name: &str) -> AccessPath {
        interface(index, name, [10, 0, index as u8, 1], PathEstimate::default())
    }

    fn number(paths: &Paths, name: &str) -> Option<u8> {
        paths.named(name).map(|id| id.0 + 1)
    }

    #[test]
    fn what_is_known_of_wifi_is_told_of_its_own_interface() {
        let settings = Settings::default();
        let mut numbers = Numbers::new(&settings);
        let mut paths = Paths::of(vec![plain(2, "wlan0"), plain(3, "eth0")], &settings, &mut numbers);
        let wifi = Wifi { signal_dbm: Some(-61), busy: Some(0.25), ..Wifi::default() };
        paths.set_wifi(Arc::new(BTreeMap::from([(2, wifi), (9, Wifi::default())])));
        let told = paths.report();
        let of = |name: &str| told.iter().find(|path| path.interface == name).unwrap().wifi;
        assert_eq!((of("wlan0"), of("eth0")), (Some(wifi), None));
        let radio = |paths: &Paths, name: &str| paths.estimates()[paths.named(name).unwrap().index()].radio;
        assert_eq!((radio(&paths, "wlan0"), radio(&paths, "eth0")), (Some(wifi.radio()), None));
        paths.set_wifi(Arc::default());
        assert_eq!(radio(&paths, "wlan0"), None, "its driver says nothing any more");
    }

    #[test]
    fn numbers_follow_the_settings_and_stay_while_an_interface_is_away() {
        let settings =
            Settings::from_toml("[[interface]]\nname = \"usb0\"\n[[interface]]\nname = \"wlan0\"").unwrap();
        let mut numbers = Numbers::new(&settings);
        let all = || vec![plain(2, "wlan0"), plain(3, "eth0"), plain(4, "usb0")];
        let paths = Paths::of(all(), &settings, &mut numbers);
        let of = |paths: &Paths| ["usb0", "wlan0", "eth0"].map(|name| number(paths, name));
        assert_eq!(of(&paths), [Some(1), Some(2), Some(3)]);
        let fewer = Paths::of(vec![plain(3, "eth0")], &settings, &mut numbers);
        assert_eq!(of(&fewer), [None, None, Some(3)]);
        assert!(fewer.differs_from(&paths));
        assert_eq!(of(&Paths::of(all(), &settings, &mut numbers)), [Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn where_numbers_run_out_what_leads_far_comes_first_and_what_is_away_makes_room() {
        let settings = Settings::default();
        let mut numbers = Numbers::new(&settings);
        let mut near = plain(1, "near");
        near.routes = Arc::new(Routes::default());
        let far = |from: u32| (from..from + 8).map(|n| plain(n, &format!("far{n}")));
        let all: Vec<AccessPath> = std::iter::once(near).chain(far(2)).collect();
        let paths = Paths::of(all, &settings, &mut numbers);
        assert_eq!((paths.len(), number(&paths, "near")), (MAX_PATHS, None));
        let others = Paths::of(far(20).collect(), &settings, &mut numbers);
        assert_eq!((others.len(), others.present().count()), (MAX_PATHS, MAX_PATHS));
    }

    #[test]
    fn what_is_to_be_ignored_is_not_there() {
        let settings = Settings::from_toml("ignore = [\"docker0\"]\nmetered = [\"wlan0\"]").unwrap();
        let mut numbers = Numbers::new(&settings);
        let paths = Paths::of(vec![plain(1, "docker0"), plain(2, "wlan0")], &settings, &mut numbers);
        let told = paths.report();
        assert_eq!((told.len(), told[0].interface.as_str(), told[0].metered), (1, "wlan0", true));
    }

    #[test]
    fn what_somebody_else_says_to_cost_money_does_beside_what_the_settings_say() {
        let settings = Settings::from_toml("metered = [\"usb0\"]").unwrap();
        let mut numbers = Numbers::new(&settings);
        let all = || vec![plain(1, "eth0"), plain(2, "usb0"), plain(3, "wlan0")];
        let before = Paths::of(all(), &settings, &mut numbers);
        let mut paths = before.clone();
        paths.meter(&BTreeSet::from(["wlan0".to_owned(), "wwan9".to_owned()]));
        let metered: Vec<bool> = paths.report().iter().map(|path| path.metered).collect();
        assert_eq!(metered, [false, true, true]);
        assert!(paths.costs_differ_from(&before) && !paths.differs_from(&before));
    }

    #[test]
    fn the_source_is_the_address_in_the_same_network_and_of_the_same_family() {
        let settings = Settings::default();
        let mut both = plain(1, "eth0");
        both.addresses.extend([IpAddr::from([192, 168, 7, 1]), "2001:db8::1".parse().unwrap()]);
        both.prefixes.push(Prefix::new(IpAddr::from([192, 168, 7, 1]), 24));
        both.prefixes.push(Prefix::new("2001:db8::1".parse().unwrap(), 64));
        let paths = Paths::of(vec![both], &settings, &mut Numbers::new(&settings));
        let path = paths.get(PathId(0)).unwrap();
        let source = |to: &str| path.source_for(to.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(source("192.168.7.9").as_deref(), Some("192.168.7.1"));
        assert_eq!(source("203.0.113.9").as_deref(), Some("10.0.1.1"));
        assert_eq!(source("2001:db8:5::9").as_deref(), Some("2001:db8::1"));
        assert!(!path.leads_to("2001:db8:5::9".parse().unwrap()), "there is no route of that family");
    }
}
