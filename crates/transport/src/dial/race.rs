//! The race itself: ways and carriers, each a little after the one before, until the peer has answered on
//! one.

use futures_util::FutureExt;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::nearness::is_elsewhere;
use super::{Candidate, Dialled, Dialler, SegmentSize, quic, source, tcp};
use crate::carrier::{CarrierKind, Carriers};
use crate::locator::Locator;

/// RFC 8305's recommended delay between attempts.
const STAGGER: Duration = Duration::from_millis(250);
/// How long one carrier runs alone before the next one starts on the same way: three round trips, if that is
/// known, within these bounds. A carrier that needs longer is blocked, or its server is busy, and a busy
/// server must not be dialled twice. A carrier that stands is given as long to be answered, but without the
/// upper bound.
const HEAD_START: Duration = Duration::from_millis(250);
const LONGEST_HEAD_START: Duration = Duration::from_secs(1);

/// How long a direct place and one behind a relay run alone, each before the other: a path that need not go
/// through a relay is better, and a connection to a relay takes one of the server's spare ones.
const RELAY_DELAY: Duration = Duration::from_millis(30);

/// How long after it was closed a place behind a relay is dialled once more: at first, and at most; and how
/// often in one race, which takes as long as an attempt at most then.
const AGAIN: Duration = Duration::from_millis(100);
const LONGEST_AGAIN: Duration = Duration::from_secs(1);
const MOST_AGAIN: u32 = 10;

type Attempt = Pin<Box<dyn Future<Output = io::Result<Dialled>> + Send>>;

/// One carrier on one way, and how long it runs before the next attempt may start.
struct Runner {
    way: Candidate,
    /// Our address on the way, if there is something to choose.
    local: Option<IpAddr>,
    kind: CarrierKind,
    segments: SegmentSize,
    alone: Duration,
}

/// An attempt that runs in a task of its own, or has ended and was not looked at yet.
struct Running {
    way: Candidate,
    kind: CarrierKind,
    task: AbortHandle,
}

/// The first attempt. It is all that most races need, and gets no task of its own.
struct First {
    way: Candidate,
    kind: CarrierKind,
    attempt: Attempt,
}

/// Candidates being tried, each a little after the one before or as soon as one [failed](Self::failed).
/// Whoever runs it says when the peer has [answered](Self::answered), which ends it. What still runs when
/// this is dropped is given up, except for attempts that lost against another carrier on the same way:
/// whether they would have got through is worth knowing.
pub(crate) struct Race {
    who: Arc<Dialler>,
    waiting: VecDeque<Runner>,
    first: Option<First>,
    tasks: JoinSet<io::Result<Dialled>>,
    running: Vec<Running>,
    winner: Option<(Locator, CarrierKind)>,
    next_start: Instant,
    again: u32,
    last_error: io::Error,
}

impl Race {
    pub(crate) fn new(who: Dialler, candidates: Vec<Candidate>) -> Self {
        let now = std::time::Instant::now();
        let (last, first): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|way| who.reach.is_doubtful(way.remote, now));
        // With one carrier, or one way where nothing has failed yet, there is nothing to choose.
        let is_choice = first.len() + last.len() > 1 || who.reach.has_failures();
        let knows_source = who.carriers == Carriers::Auto && is_choice;
        let mut waiting: VecDeque<Runner> = VecDeque::new();
        for way in first.into_iter().chain(last) {
            let local = if knows_source { source(&way) } else { None };
            let runners = runners(&who, way, local);
            // From the address that routes choose too, one attempt is enough.
            let is_same = |a: &Runner, b: &Runner| {
                a.local.is_some() && (a.local, a.way.remote, a.kind) == (b.local, b.way.remote, b.kind)
            };
            let new = runners.into_iter().filter(|new| !waiting.iter().any(|old| is_same(old, new)));
            let new: Vec<_> = new.collect();
            waiting.extend(new);
        }
        other_kind_early(&mut waiting, |place| is_elsewhere(place, &who.here));
        proxy_early(&mut waiting);
        let mut race = Self {
            who: Arc::new(who),
            waiting,
            first: None,
            tasks: JoinSet::new(),
            running: Vec::new(),
            winner: None,
            next_start: Instant::now(),
            again: 0,
            last_error: io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to try"),
        };
        if let Some(runner) = race.waiting.pop_front() {
            race.next_start = Instant::now() + runner.alone;
            let (way, kind) = (runner.way.clone(), runner.kind);
            race.first = Some(First { way, kind, attempt: race.attempt(runner) });
        }
        race
    }

    fn attempt(&self, runner: Runner) -> Attempt {
        let who = self.who.clone();
        Box::pin(async move {
            let Runner { way, local, kind, segments, .. } = runner;
            let remote = way.remote;
            let result = match kind {
                CarrierKind::Tcp | CarrierKind::Mptcp => {
                    tcp::attempt(way.clone(), kind, segments, who.clone()).await
                }
                CarrierKind::Quic => quic::attempt(way.clone(), who.clone()).await,
            };
            let now = std::time::Instant::now();
            match &result {
                // The handshake proved the peer's key. Of TCP nothing is known yet but that something accepts
                // there.
                Ok(dialled) if dialled.rtt.is_some() && kind == CarrierKind::Quic => {
                    who.reach.note(dialled.local.ip().to_canonical(), remote, kind, true, now);
                }
                // With small segments, another one stands there.
                Err(_) if who.carriers == Carriers::Auto && segments == SegmentSize::Usual => {
                    if let Some(local) = local.or_else(|| source(&way)) {
                        who.reach.note(local, remote, kind, false, now);
                    }
                }
                Ok(_) | Err(_) => {}
            }
            result
        })
    }

    fn start_next(&mut self) {
        if let Some(runner) = self.waiting.pop_front() {
            self.next_start = Instant::now() + runner.alone;
            self.spawn(runner);
        }
    }

    fn spawn(&mut self, runner: Runner) {
        let (way, kind) = (runner.way.clone(), runner.kind);
        let task = self.attempt(runner);
        let task = self.tasks.spawn(FutureExt::boxed(task));
        self.running.push(Running { way, kind, task });
    }

    /// Dials once more over TCP, with small segments, beside a path whose large ones may have vanished.
    pub(crate) fn dial_small(&mut self, way: &Candidate, kind: CarrierKind) {
        let (way, segments, alone) = (way.clone(), SegmentSize::Small, Duration::ZERO);
        self.spawn(Runner { way, local: None, kind, segments, alone });
    }

    /// Dials once more after a pause, each one twice as long as the one before. False if that was done often
    /// enough.
    pub(crate) fn dial_once_more(&mut self, way: &Candidate, kind: CarrierKind) -> bool {
        if self.again == MOST_AGAIN {
            return false;
        }
        let (way, pause) = (way.clone(), (AGAIN * 2u32.pow(self.again)).min(LONGEST_AGAIN));
        self.again += 1;
        let (segments, alone) = (SegmentSize::Usual, Duration::ZERO);
        let attempt = self.attempt(Runner { way: way.clone(), local: None, kind, segments, alone });
        let task = async move {
            tokio::time::sleep(pause).await;
            attempt.await
        };
        let task = self.tasks.spawn(FutureExt::boxed(task));
        self.running.push(Running { way, kind, task });
        true
    }

    /// A carrier that stood is of no use: the next attempt need not wait any longer.
    pub(crate) fn failed(&mut self) {
        self.start_next();
    }

    /// The peer has answered on this carrier.
    pub(crate) fn answered(&mut self, remote: Locator, kind: CarrierKind) {
        self.winner = Some((remote, kind));
    }

    /// Goes on for TCP between these places alone; false if nothing of that is left.
    pub(crate) fn narrow_to_tcp(&mut self, (from, to): (IpAddr, Locator)) -> bool {
        let is_wanted =
            |of: &Candidate, kind: CarrierKind| of.may_lead(from, to) && kind != CarrierKind::Quic;
        self.waiting.retain(|runner| is_wanted(&runner.way, runner.kind));
        self.first.take_if(|first| !is_wanted(&first.way, first.kind));
        self.running.retain(|running| {
            let wanted = is_wanted(&running.way, running.kind);
            if !wanted {
                running.task.abort();
            }
            wanted
        });
        self.next_start = Instant::now();
        self.first.is_some() || !self.waiting.is_empty() || !self.running.is_empty()
    }

    /// Whether QUIC is under way between these places as well.
    pub(crate) fn awaits_quic(&self, (from, to): (IpAddr, Locator)) -> bool {
        let is_wanted =
            |of: &Candidate, kind: CarrierKind| of.may_lead(from, to) && kind == CarrierKind::Quic;
        self.first.as_ref().is_some_and(|first| is_wanted(&first.way, first.kind))
            || self.running.iter().any(|running| is_wanted(&running.way, running.kind))
    }

    /// Whether TCP is preferred to QUIC once both were answered.
    pub(crate) fn prefers_tcp(&self) -> bool {
        self.who.carriers == Carriers::Auto
    }

    /// The next carrier that can be used; an error once nothing is left to try. Cancel-safe.
    pub(crate) async fn next(&mut self) -> io::Result<Dialled> {
        while self.first.is_some() || !self.tasks.is_empty() || !self.waiting.is_empty() {
            while !self.waiting.is_empty() && self.next_start <= Instant::now() {
                self.start_next();
            }
            let first = async {
                match &mut self.first {
                    Some(first) => first.attempt.as_mut().await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                result = first => {
                    self.first = None;
                    result
                }
                Some(ended) = self.tasks.join_next_with_id() => {
                    let (task, result) = match ended {
                        Ok((task, result)) => (task, result),
                        Err(error) => (error.id(), Err(io::Error::other(error))),
                    };
                    self.running.retain(|running| running.task.id() != task);
                    result
                }
                () = tokio::time::sleep_until(self.next_start), if !self.waiting.is_empty() => {
                    self.start_next();
                    continue;
                }
            };
            match result {
                Ok(dialled) => {
                    if !dialled.is_early() {
                        let rtt = dialled.peer_rtt().or(self.who.rtt).unwrap_or_default();
                        self.next_start = self.next_start.max(Instant::now() + STAGGER.max(rtt * 3));
                    }
                    return Ok(dialled);
                }
                Err(error) => self.last_error = error,
            }
            self.start_next();
        }
        Err(io::Error::new(self.last_error.kind(), self.last_error.to_string()))
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        let Some((remote, winner)) = self.winner else { return };
        let is_worth_knowing = |to: Locator, kind: CarrierKind| to == remote && kind != winner;
        for running in &self.running {
            if !is_worth_knowing(running.way.remote, running.kind) {
                running.task.abort();
            }
        }
        if let Some(first) = self.first.take().filter(|first| is_worth_knowing(first.way.remote, first.kind))
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(FutureExt::boxed(first.attempt));
        }
        self.tasks.detach_all();
    }
}

/// Has the first place behind a relay start soon after the first direct one, or the other way round: it must
/// not wait until all others have failed, of which there may be many that lead nowhere. It does not wait at
/// all beside one that is `unlikely` to lead anywhere.
fn other_kind_early(waiting: &mut VecDeque<Runner>, unlikely: impl Fn(Locator) -> bool) {
    let is_relayed = |runner: &Runner| runner.way.remote.relayed().is_some();
    let Some(first) = waiting.front() else { return };
    let (first_way, first_relayed) = (first.way.clone(), is_relayed(first));
    let Some(at) = waiting.iter().position(|runner| is_relayed(runner) != first_relayed) else { return };
    let way = waiting[at].way.clone();
    let (early, mut others): (VecDeque<_>, VecDeque<_>) =
        waiting.drain(..).partition(|runner| runner.way == way);
    let behind = others.iter().take_while(|runner| runner.way == first_way).count();
    if let Some(last) = behind.checked_sub(1).and_then(|last| others.get_mut(last)) {
        last.alone = if unlikely(first_way.remote) { Duration::ZERO } else { RELAY_DELAY };
    }
    let rest = others.split_off(behind);
    waiting.extend(others.into_iter().chain(early).chain(rest));
}

/// Has the first place that a proxy is asked for start behind the first two others: where nothing but the
/// proxy gets through, all the others are waited for in turn otherwise.
fn proxy_early(waiting: &mut VecDeque<Runner>) {
    let is_proxied = |runner: &Runner| runner.way.remote.proxied().is_some();
    let Some(way) = waiting.iter().find(|runner| is_proxied(runner)).map(|runner| runner.way.clone()) else {
        return;
    };
    let mut before: Vec<Candidate> = Vec::new();
    for runner in waiting.iter().filter(|runner| !is_proxied(runner)) {
        if before.len() < 2 && !before.contains(&runner.way) {
            before.push(runner.way.clone());
        }
    }
    let (early, others): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|runner| runner.way == way);
    let (first, last): (Vec<_>, Vec<_>) = others.into_iter().partition(|runner| before.contains(&runner.way));
    waiting.extend(first.into_iter().chain(early).chain(last));
}

/// The carriers to try on a way.
fn runners(who: &Dialler, way: Candidate, local: Option<IpAddr>) -> Vec<Runner> {
    // A proxy passes TCP on, and what is blocked on other ways says nothing of it.
    let is_proxied = way.remote.proxied().is_some();
    let from = local.filter(|_| !is_proxied);
    let mut kinds = who.reach.order(from, way.remote, who.carriers, std::time::Instant::now());
    kinds.retain(|kind| !is_proxied || *kind == CarrierKind::Tcp);
    let Some(last) = kinds.len().checked_sub(1) else { return Vec::new() };
    let head_start = who.rtt.map_or(HEAD_START, |rtt| (rtt * 3).clamp(HEAD_START, LONGEST_HEAD_START));
    let both = last > 0 && who.opens_with_quic(way.remote);
    if both {
        kinds.reverse();
    }
    let first_alone = if both { Duration::ZERO } else { head_start };
    let runner = |(index, kind)| {
        let alone = if index == last { STAGGER } else { first_alone };
        Runner { way: way.clone(), local, kind, segments: SegmentSize::Usual, alone }
    };
    kinds.into_iter().enumerate().map(runner).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;

    use whimbrel_base::{RelayToken, RelayedAddr};

    use super::*;
    use crate::dial::tests::somebody;
    use crate::locator::Proxied;

    fn direct(last: u8) -> Locator {
        Locator::Direct(SocketAddr::from(([192, 0, 2, last], 443)))
    }

    fn relayed(last: u8) -> Locator {
        let (relay, token) = (direct(last).address(), RelayToken::from_bytes([last; 10]));
        Locator::Relayed(RelayedAddr { relay, token })
    }

    /// The order in which these start, each with the time until the next one.
    fn order(remotes: &[(Locator, CarrierKind)]) -> Vec<(Locator, CarrierKind, Duration)> {
        let runner = |&(remote, kind): &(Locator, CarrierKind)| Runner {
            way: Candidate { local: None, remote },
            local: None,
            kind,
            segments: SegmentSize::Usual,
            alone: STAGGER,
        };
        let mut waiting: VecDeque<Runner> = remotes.iter().map(runner).collect();
        other_kind_early(&mut waiting, |place| place == direct(9));
        waiting.into_iter().map(|runner| (runner.way.remote, runner.kind, runner.alone)).collect()
    }

    #[tokio::test]
    async fn what_was_closed_is_dialled_once_more_though_nothing_else_is_left_to_try() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = Locator::Direct(listener.local_addr().unwrap());
        let who = Dialler { carriers: Carriers::Only(CarrierKind::Tcp), ..somebody() };
        let mut race = Race::new(who, vec![Candidate { local: None, remote }]);
        let first = race.next().await.unwrap();
        assert!(race.dial_once_more(&first.way, CarrierKind::Tcp));
        let second = race.next().await.unwrap();
        assert_eq!((second.way.remote, second.kind()), (remote, CarrierKind::Tcp));
        assert!(race.next().await.is_err(), "it was asked for once");
        let asked = (0..20).filter(|_| race.dial_once_more(&first.way, CarrierKind::Tcp)).count();
        assert_eq!(asked, 9, "there is an end to it");
    }

    #[test]
    fn a_place_behind_a_relay_is_dialled_over_both_carriers_as_a_direct_one_is() {
        let who = Dialler { carriers: Carriers::Auto, ..somebody() };
        let kinds = |remote| -> Vec<CarrierKind> {
            let runners = runners(&who, Candidate { local: None, remote }, None);
            runners.into_iter().map(|runner| runner.kind).collect()
        };
        assert_eq!(kinds(relayed(3)), [CarrierKind::Quic, CarrierKind::Tcp]);
        assert_eq!(kinds(relayed(3)), kinds(direct(1)));
    }

    #[test]
    fn what_a_proxy_is_asked_for_is_dialled_over_tcp_behind_two_other_places() {
        let who = Dialler { carriers: Carriers::Auto, ..somebody() };
        let proxied = |last| {
            let place = whimbrel_base::relayed::Place::Direct(direct(last).address());
            Locator::Proxied(Proxied { proxy: direct(9).address(), place })
        };
        let places = [direct(1), direct(2), direct(3), proxied(1), proxied(2)];
        let mut waiting: VecDeque<Runner> = places
            .iter()
            .flat_map(|remote| runners(&who, Candidate { local: None, remote: *remote }, None))
            .collect();
        proxy_early(&mut waiting);
        let started: Vec<Locator> = waiting.iter().map(|runner| runner.way.remote).collect();
        let (one, two, three) = (direct(1), direct(2), direct(3));
        assert_eq!(started, [one, one, two, two, proxied(1), three, three, proxied(2)]);
        let of_proxies = waiting.iter().filter(|runner| runner.way.remote.proxied().is_some());
        assert!(of_proxies.map(|runner| runner.kind).all(|kind| kind == CarrierKind::Tcp));
        let quic = Dialler { carriers: Carriers::Only(CarrierKind::Quic), ..somebody() };
        assert!(runners(&quic, Candidate { local: None, remote: proxied(1) }, None).is_empty());
    }

    #[test]
    fn a_place_behind_a_relay_does_not_wait_for_direct_ones_that_lead_nowhere() {
        use CarrierKind::{Quic, Tcp};
        let (one, two, relay, other) = (direct(1), direct(2), relayed(3), relayed(4));
        let ways = [(one, Quic), (one, Tcp), (two, Quic), (two, Tcp), (relay, Tcp), (other, Tcp)];
        let expected = [
            (one, Quic, STAGGER),
            (one, Tcp, RELAY_DELAY),
            (relay, Tcp, STAGGER),
            (two, Quic, STAGGER),
            (two, Tcp, STAGGER),
            (other, Tcp, STAGGER),
        ];
        assert_eq!(order(&ways), expected);
        // Nor does a direct one, where a relay was what worked last.
        let ways = [(relay, Tcp), (other, Tcp), (one, Quic), (one, Tcp)];
        let expected =
            [(relay, Tcp, RELAY_DELAY), (one, Quic, STAGGER), (one, Tcp, STAGGER), (other, Tcp, STAGGER)];
        assert_eq!(order(&ways), expected);
        // Over both carriers.
        let ways = [(one, Quic), (one, Tcp), (two, Quic), (relay, Tcp), (relay, Quic)];
        let expected = [
            (one, Quic, STAGGER),
            (one, Tcp, RELAY_DELAY),
            (relay, Tcp, STAGGER),
            (relay, Quic, STAGGER),
            (two, Quic, STAGGER),
        ];
        assert_eq!(order(&ways), expected);
        // Nor for as long as others, beside what looks as if it led nowhere.
        let ways = [(direct(9), Quic), (direct(9), Tcp), (relay, Tcp)];
        let expected = [(direct(9), Quic, STAGGER), (direct(9), Tcp, Duration::ZERO), (relay, Tcp, STAGGER)];
        assert_eq!(order(&ways), expected);
        let alone = [(relay, Tcp), (other, Tcp)];
        assert_eq!(order(&alone), [(relay, Tcp, STAGGER), (other, Tcp, STAGGER)]);
        assert_eq!(order(&[]), []);
    }
}
