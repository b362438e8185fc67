//! Gateways that let in whatever is sent to a port that they show of a socket ("full cone"): what they show
//! there is a place that anybody can dial. Pure: no clock, no sockets.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;

use super::{Observed, Server};

/// For how long what was tried counts before it is tried again.
const COUNTS: Duration = Duration::from_secs(30 * 60);
/// Gateways that are remembered.
const MAX_GATEWAYS: usize = 16;

/// A gateway, by the address at which it shows this host, and whether it lets all in.
#[derive(Debug)]
struct Tried {
    gateway: IpAddr,
    is_open: bool,
    at: Instant,
}

/// What was tried, the newest last.
#[derive(Debug, Default)]
pub(super) struct Openness(Vec<Tried>);

impl Openness {
    fn of(&self, gateway: IpAddr) -> Option<&Tried> {
        self.0.iter().find(|tried| tried.gateway == gateway)
    }

    fn note(&mut self, gateway: IpAddr, is_open: bool, at: Instant) {
        self.0.retain(|tried| tried.gateway != gateway);
        if self.0.len() >= MAX_GATEWAYS {
            self.0.remove(0);
        }
        self.0.push(Tried { gateway, is_open, at });
    }
}

/// A gateway that is to be tried, and by whom: two servers at different addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Untried {
    pub(crate) gateway: IpAddr,
    pub(crate) first: SocketAddr,
    pub(crate) second: SocketAddr,
}

impl Observed {
    /// The gateway of IPv4 that shows this endpoint's socket at one place to all that are asked, if it was
    /// not tried lately, and two servers that are kept by which that can be done.
    pub(crate) fn untried(&self, now: Instant) -> Option<Untried> {
        let gateway = self.only_place()?.ip();
        let is_known = |tried: &Tried| now.saturating_duration_since(tried.at) < COUNTS;
        if self.openness().of(gateway).is_some_and(is_known) {
            return None;
        }
        let servers = self.lock();
        let has_seen = |server: &&Server| server.kept && server.at.is_ipv4() && server.seen.is_some();
        let mut kept = servers.iter().filter(has_seen).map(|server| server.at);
        let first = kept.next()?;
        let second = kept.find(|second| second.ip() != first.ip())?;
        Some(Untried { gateway, first, second })
    }

    /// A gateway was tried: it lets in what anybody sends, or does not. Where that could not be told, it is
    /// as it was.
    pub(crate) fn note_tried(&self, gateway: IpAddr, is_open: Option<bool>, now: Instant) {
        let mut openness = self.openness();
        let was_open = openness.of(gateway).is_some_and(|tried| tried.is_open);
        openness.note(gateway, is_open.unwrap_or(was_open), now);
    }

    /// Where anybody can dial this endpoint's UDP sockets, although they are behind a gateway.
    pub(crate) fn open(&self) -> Option<SocketAddr> {
        self.only_place().filter(|at| self.openness().of(at.ip()).is_some_and(|tried| tried.is_open))
    }

    /// Waits until a server says something new. For one task. Cancel-safe.
    pub(crate) fn heard(&self) -> Notified<'_> {
        self.heard.notified()
    }

    /// The only place of IPv4 at which this endpoint is seen.
    fn only_place(&self) -> Option<SocketAddr> {
        let places = self.list();
        let mut of_ipv4 = places.iter().copied().filter(SocketAddr::is_ipv4);
        of_ipv4.next().filter(|_| of_ipv4.next().is_none())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observed::find;
    use crate::stun::observe;

    fn server(last: u8) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, last], 443))
    }

    fn seen(port: u16) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, 7], port))
    }

    /// A server answers what is due.
    fn answers(observed: &Observed, server: SocketAddr, from: SocketAddr) {
        observed.lock().iter_mut().find(|one| one.at == server).unwrap().ask(Instant::now());
        let request = find(&mut observed.lock(), server).next(Instant::now()).unwrap();
        observed.hear(&observe(&request, from, None).unwrap(), server);
    }

    #[test]
    fn a_gateway_is_tried_by_two_servers_at_different_addresses_that_see_the_same_place() {
        let (observed, now) = (Observed::default(), Instant::now());
        observed.keep(&[server(1), SocketAddr::new(server(1).ip(), 444), server(2)]);
        answers(&observed, server(1), seen(7));
        answers(&observed, SocketAddr::new(server(1).ip(), 444), seen(7));
        assert_eq!(observed.untried(now), None, "one address has seen it");
        answers(&observed, server(2), seen(8));
        assert_eq!(observed.untried(now), None, "each flow has a port of its own");
        answers(&observed, server(2), seen(7));
        let untried = observed.untried(now).unwrap();
        let expected = Untried { gateway: seen(7).ip(), first: server(1), second: server(2) };
        assert_eq!((untried, observed.open()), (expected, None));
        observed.note_tried(untried.gateway, Some(false), now);
        assert_eq!((observed.untried(now), observed.open()), (None, None));
        assert_eq!(observed.untried(now + COUNTS), Some(untried), "it is tried again");
    }

    #[test]
    fn the_place_that_anybody_can_dial_follows_the_mapping_and_goes_with_it() {
        let (observed, now) = (Observed::default(), Instant::now());
        observed.keep(&[server(1), server(2)]);
        observed.note_tried(seen(7).ip(), Some(true), now);
        observed.note_tried(seen(7).ip(), None, now);
        assert_eq!(observed.open(), None, "it is seen nowhere");
        answers(&observed, server(1), seen(7));
        assert_eq!(observed.open(), Some(seen(7)));
        answers(&observed, server(1), seen(9));
        assert_eq!(observed.open(), Some(seen(9)));
        answers(&observed, server(2), seen(10));
        assert_eq!(observed.open(), None, "each flow has a port of its own");
        observed.start_anew();
        assert_eq!(observed.open(), None);
    }

    #[test]
    fn no_more_gateways_are_remembered_than_sixteen() {
        let (mut openness, now) = (Openness::default(), Instant::now());
        (0..100).for_each(|last| openness.note([192, 0, 2, last].into(), true, now));
        assert_eq!(openness.0.len(), MAX_GATEWAYS);
    }
}
