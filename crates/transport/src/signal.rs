//! How well the Wi-Fi beneath a path is received, and from when on that counts as weak.

use std::sync::{Mutex, PoisonError};

/// Received with less, in dBm, a signal is weak: a receiver need not understand the slowest rate of IEEE
/// 802.11n below -82 dBm, and signals vary by more than 2 dB. What access policies leave has the same level.
const WEAK: i8 = -80;
/// A weak one is well again from here on: one that varies about the level is not told of each time.
const WELL: i8 = -75;

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
}
