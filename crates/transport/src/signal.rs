//! How well the Wi-Fi beneath a path is received, and from when on that counts as weak.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Received with less, in dBm, a signal is weak: a receiver need not understand the slowest rate of IEEE
/// 802.11n below -82 dBm, and signals vary by more than 2 dB. What access policies leave has the same level.
const WEAK: i8 = -80;
/// A weak one is well again from here on: one that varies about the level is not told of each time.
const WELL: i8 = -75;
/// Addresses of which something is known.
const MOST: usize = 256;

/// How well the Wi-Fi beneath a path is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signal {
    /// How strong, in dBm.
    pub dbm: i8,
    /// Whether the network may be lost soon: below -80 dBm, and from then on until it is at -75 dBm again.
    pub is_weak: bool,
}

impl Signal {
    fn after(before: Option<Self>, dbm: i8) -> Self {
        let was_weak = before.is_some_and(|before| before.is_weak);
        Self { dbm, is_weak: dbm < if was_weak { WELL } else { WEAK } }
    }
}

/// How well the Wi-Fi of this host's addresses is received, as the endpoint was told last, in dBm.
#[derive(Debug, Default)]
pub(crate) struct Received(Mutex<BTreeMap<IpAddr, i8>>);

impl Received {
    /// This is known from now on, and nothing else.
    pub(crate) fn set(&self, told: impl IntoIterator<Item = (IpAddr, i8)>) {
        let told = told.into_iter().take(MOST).map(|(ip, dbm)| (ip.to_canonical(), dbm));
        let told: BTreeMap<IpAddr, i8> = told.collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    /// How well that of a local address is received, if that is known.
    pub(crate) fn at(&self, local: IpAddr) -> Option<i8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&local.to_canonical()).copied()
    }
}

/// A path's signal, as far as somebody tells of it.
#[derive(Debug, Default)]
pub(crate) struct Reception(Mutex<Option<Signal>>);

impl Reception {
    /// What was told last.
    pub(crate) fn signal(&self) -> Option<Signal> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is received like that, in dBm; with `None`, nobody knows (any more). Returns whether it is weak
    /// from now on, if that is news.
    pub(crate) fn hear(&self, dbm: Option<i8>) -> Option<bool> {
        let mut signal = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *signal;
        let now = dbm.map(|dbm| Signal::after(before, dbm));
        *signal = now;
        let is_weak = |signal: Option<Signal>| signal.is_some_and(|signal| signal.is_weak);
        (is_weak(before) != is_weak(now)).then(|| is_weak(now))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_weak_below_a_level_and_well_again_only_some_decibels_above_it() {
        let reception = Reception::default();
        assert_eq!(reception.signal(), None);
        let heard = [-60, -80, -81, -80, -79, -81, -76, -75, -76, -80, -81];
        let news = heard.map(|dbm| reception.hear(Some(dbm)));
        let (weak, well) = (Some(true), Some(false));
        assert_eq!(news, [None, None, weak, None, None, None, None, well, None, None, weak]);
        assert_eq!(reception.signal(), Some(Signal { dbm: -81, is_weak: true }));
    }

    #[test]
    fn a_signal_of_which_nobody_tells_any_more_does_not_stay_weak() {
        let reception = Reception::default();
        assert_eq!(reception.hear(None), None);
        assert_eq!(reception.hear(Some(i8::MIN)), Some(true));
        assert_eq!(reception.hear(None), Some(false));
        assert_eq!((reception.hear(None), reception.signal()), (None, None));
        assert_eq!(reception.hear(Some(-78)), None, "it begins anew");
    }

    #[test]
    fn what_was_told_last_is_known_and_of_no_more_addresses_than_there_is_room_for() {
        let v4 = |n: u16| {
            let [high, low] = n.to_be_bytes();
            IpAddr::from([192, 0, high, low])
        };
        let IpAddr::V4(first) = v4(0) else { unreachable!() };
        let received = Received::default();
        received.set((0..300).map(|n| (v4(n), -70)));
        assert_eq!(received.0.lock().unwrap().len(), MOST);
        assert_eq!([v4(255), v4(256)].map(|ip| received.at(ip)), [Some(-70), None]);
        received.set([(first.to_ipv6_mapped().into(), -60)]);
        assert_eq!([v4(0), v4(1)].map(|ip| received.at(ip)), [Some(-60), None]);
        assert_eq!(received.at(first.to_ipv6_mapped().into()), Some(-60));
    }
}
