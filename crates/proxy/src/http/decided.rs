//! What the manager decided for a message.

use std::time::{Duration, Instant};
use whimbrel_multiaccess::protocol::{OpenConnection, PartWay, Report, Resized, Verdict, Way};
use whimbrel_multiaccess::{Candidate, Client};

/// How long the manager may hold somebody up who tells it something.
pub(super) const REPORT: Duration = Duration::from_millis(100);

/// What was decided for a message.
#[derive(Default)]
pub(super) struct Decided {
    /// The routes, best first. None: the system's, or whatever else leads there.
    pub(super) routes: Vec<Route>,
    /// The object is to come in these parts.
    pub(super) parts: Vec<Part>,
    /// For as long as this is there, the message counts as scheduled.
    pub(super) unit: Option<Unit>,
    /// Its connection carries no other message meanwhile: it is to become something else than HTTP.
    pub(super) alone: bool,
    /// Where a new connection has to be made, another one is to be opened beside it.
    pub(super) beside: bool,
}

/// A way, and what is known of it here.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) way: Way,
    /// How a new connection is made that goes this way.
    pub(super) by: Option<Candidate>,
    /// When it was asked for: connections that have become idle since then were not offered.
    pub(super) asked: Instant,
}

/// A part of an object.
pub(super) struct Part {
    pub(super) bytes: u64,
    pub(super) route: Route,
}

/// An idle connection that the manager is told of, and how it was made.
pub(super) struct Offer {
    pub(super) open: OpenConnection,
    pub(super) by: Option<Candidate>,
}

/// A message that counts as scheduled until this is dropped.
pub(super) struct Unit {
    client: Client,
    number: Option<u64>,
}

/// What a message counts as with the manager.
pub(super) struct Counted {
    client: Client,
    unit: u64,
    bytes: u64,
}

impl Decided {
    /// What a manager answered to a question of this time with these offers.
    pub(super) fn of(verdict: Verdict, asked: Instant, offers: &[Offer], client: &Client) -> Self {
        let route = |way| Route::of(way, asked, offers);
        let part = |part: PartWay| Part { bytes: part.bytes, route: route(part.way) };
        Self {
            parts: verdict.parts.into_iter().map(part).collect(),
            routes: verdict.ways.into_iter().map(route).collect(),
            unit: verdict.unit.map(|number| Unit { client: client.clone(), number: Some(number) }),
            alone: false,
            beside: false,
        }
    }

    /// Over this route alone.
    pub(super) fn by(route: Route) -> Self {
        Self { routes: vec![route], ..Self::default() }
    }

    /// Whether more than one network leads there.
    pub(super) fn has_choice(&self) -> bool {
        let mut interfaces = self.routes.iter().map(|route| &route.way.interface);
        interfaces.next().is_some_and(|first| interfaces.any(|other| other != first))
    }

    /// How many bytes to ask for first, to learn a size, where that is so many at least. Over a connection
    /// that is open already it is what comes in a round trip: as long would be waited for the rest, with
    /// nothing on the network. A new connection brings no more at first than its window, and a little more
    /// than that would come a round trip later.
    pub(super) fn first_step(&self, least: u64, most: u64) -> u64 {
        let best = self.routes.first().map(|route| &route.way).filter(|way| way.reuse.is_some());
        let comes = best.and_then(|way| way.round_trip).map(|bytes| bytes.min(most));
        comes.filter(|bytes| *bytes >= least.saturating_mul(2)).unwrap_or(least)
    }

    /// How long it was to take by the best route, from when that was asked for. `None`: nobody reckoned it.
    pub(super) fn foreseen(&self) -> Option<Duration> {
        let millis = self.routes.first()?.way.completes_ms?;
        Duration::try_from_secs_f64(millis / 1000.0).ok()
    }

    /// The network of the best route; it has no name where nobody chose it.
    pub(super) fn network(&self) -> &str {
        self.routes.first().map_or("", |route| &route.way.interface)
    }
}

impl Route {
    fn of(way: Way, asked: Instant, offers: &[Offer]) -> Self {
        let by = match way.reuse {
            // Another message may take it before this one does: then another one by the same way is next
            // best.
            Some(id) => offers.iter().find(|offer| offer.open.id == id).and_then(|offer| offer.by.clone()),
            None => Candidate::of_way(way.clone()),
        };
        Self { way, by, asked }
    }

    /// Whether an idle connection that was made in this way, and has been idle since then, is as good as what
    /// was decided. One that was offered and not chosen is not.
    pub(super) fn takes(&self, made: Option<&Candidate>, idle_since: Instant) -> bool {
        let (Some(by), Some(made)) = (&self.by, made) else { return false };
        let is_same =
            (&by.interface, by.source, by.protocol) == (&made.interface, made.source, made.protocol);
        is_same && (self.way.reuse.is_some() || idle_since >= self.asked)
    }
}

impl Unit {
    /// Its number with the manager.
    pub(super) fn number(&self) -> Option<u64> {
        self.number
    }

    /// Tells the manager that all of it has come, and was read as it came.
    pub(super) fn came(mut self) {
        let report = Report { came: self.number.take(), ..Report::default() };
        self.client.tell(report);
    }

    /// What the message counts as, with so many bytes at present.
    pub(super) fn counted(&self, bytes: u64) -> Option<Counted> {
        Some(Counted { client: self.client.clone(), unit: self.number?, bytes })
    }

    /// Tells the manager that it has ended, so that what is decided next does not count it.
    pub(super) async fn end(mut self) {
        if let Some(number) = self.number {
            let report = Report { done: Some(number), ..Report::default() };
            // Where that fails it is forgotten after a while.
            let _ = tokio::time::timeout(REPORT, self.client.report(report)).await;
        }
        self.number = None;
    }
}

impl Counted {
    /// With how many bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tells the manager that it has so many bytes.
    pub(super) fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        let resized = Some(Resized { unit: self.unit, bytes });
        self.client.tell(Report { resized, ..Report::default() });
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.client.ended(number);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn way(reuse: Option<u32>, interface: &str) -> Way {
        Way {
            reuse,
            interface: interface.to_owned(),
            source: Some([192, 0, 2, 1].into()),
            destination: Some("192.0.2.9:80".parse().unwrap()),
            ..Way::default()
        }
    }

    #[test]
    fn what_is_asked_for_first_over_an_open_connection_fills_a_round_trip_of_its_network() {
        let step = |reuse, round_trip| {
            let way = Way { round_trip, ..way(reuse, "wlan0") };
            let decided = Decided::by(Route::of(way, Instant::now(), &[]));
            decided.first_step(14_000, 256 << 10)
        };
        assert_eq!(step(Some(1), Some(100_000)), 100_000);
        assert_eq!(step(Some(1), Some(2_500)), 14_000, "near and slow");
        assert_eq!(step(Some(1), Some(15_000)), 14_000, "hardly more than a window");
        assert_eq!(step(Some(1), Some(u64::MAX)), 256 << 10);
        assert_eq!(step(Some(1), None), 14_000);
        assert_eq!(step(None, Some(100_000)), 14_000, "its window has to grow first");
        assert_eq!(Decided::default().first_step(14_000, 256 << 10), 14_000);
        let open = Decided::by(Route::of(
            Way { round_trip: Some(100_000), ..way(Some(1), "wlan0") },
            Instant::now(),
            &[],
        ));
        assert_eq!(open.first_step(14_000, 0), 14_000, "never more, as was set");
    }

    #[test]
    fn an_idle_connection_is_taken_if_it_goes_the_way_that_was_decided() {
        let made = Candidate::of_way(way(None, "wlan0")).unwrap();
        let other = Candidate::of_way(way(None, "usb0")).unwrap();
        let open = OpenConnection { id: 3, source: [192, 0, 2, 1].into(), scheduled: 0 };
        let offers = [Offer { open, by: Some(made.clone()) }];
        let asked = Instant::now();
        let (before, after) = (asked.checked_sub(Duration::from_millis(5)).unwrap(), asked);
        // A new one was chosen: what became idle since then saves opening it, and what was offered does not.
        let new = Route::of(way(None, "wlan0"), asked, &offers);
        assert!(new.takes(Some(&made), after) && !new.takes(Some(&made), before));
        assert!(!new.takes(Some(&other), after) && !new.takes(None, after));
        // An open one was chosen: if it is taken, every other one there does as well.
        let reused = Route::of(way(Some(3), "wlan0"), asked, &offers);
        assert!(reused.takes(Some(&made), before) && !reused.takes(Some(&other), after));
        assert_eq!(reused.by, Some(made));
        // One that was never offered is nobody's.
        assert_eq!(Route::of(way(Some(4), "wlan0"), asked, &offers).by, None);
    }
}
