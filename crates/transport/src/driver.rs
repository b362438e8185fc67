//! One task a connection: reads, writes and keeps time for all its paths.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

use crate::carrier::{Flow, PathError, Worked};
use crate::shared::Shared;

/// How long the other side may take to close its end, once the connection is over.
const FAREWELL: Duration = Duration::from_secs(1);
/// A timer that fires later than this tells that this process stood still.
const STOOD_STILL: Duration = Duration::from_millis(10);
/// So long others read then what came meanwhile, before anything counts as silence.
const CATCHING_UP: Duration = Duration::from_millis(5);
/// Tolerance when the kernel's time of the last acknowledgement is compared with ours.
const TIMER_SLACK: Duration = Duration::from_millis(1);

/// Whether the driver has to run again without being woken by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    No,
    AfterOthers,
    AtOnce,
}

/// Why a driver has nothing more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The connection is over, and nothing is owed to the peer.
    Over,
    /// The connection may rest. Polled again, the driver goes on.
    Idle,
}

/// How the connection stands at the end of a turn, read under one lock.
struct Standing {
    is_over: bool,
    /// When the engine wants to be told the time next.
    deadline: Option<Instant>,
    /// When the engine may rest if nothing happens before, unless that is over.
    rests_from: Option<Instant>,
    /// When the timer fires.
    armed: Option<Instant>,
    may_rest: bool,
}

/// Completes when the connection is over or may rest. To be spawned as a task of its own.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// `None` before it was needed.
    timer: Option<Pin<Box<Sleep>>>,
    /// Whom the timer wakes, once it was polled.
    timer_wakes: Option<Waker>,
    farewell: Option<Instant>,
    /// Until then nothing is due: this process stood still.
    catches_up_until: Option<Instant>,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, timer: None, timer_wakes: None, farewell: None, catches_up_until: None }
    }

    /// Reads and writes all paths once. Tells whether more may be possible, and how soon.
    fn drive_paths(&self, cx: &mut Context<'_>) -> More {
        let paths = {
            let mut state = self.shared.lock();
            state.wakers.wait_to_drive(cx);
            state.paths()
        };
        let several = paths.len() > 1;
        let sent_before = if several { self.sent() } else { 0 };
        let (mut more, mut after_others) = (false, false);
        for path in &paths {
            let was_blocked = path.is_blocked();
            match path.drive(&*self.shared, cx) {
                Ok(Worked { read, again, after_others: later }) => {
                    after_others |= later;
                    let blocked = several && path.is_blocked();
                    if blocked {
                        self.shared.lock().engine.path_blocked(path.id);
                    }
                    // What came in on one path may have to be answered on another, and what one cannot take
                    // is another's.
                    more |= again || (several && read) || (blocked && !was_blocked);
                }
                Err(error) => {
                    // What the peer said last may still be sent: the reason of a protocol error.
                    if matches!(error, PathError::Protocol) {
                        let _ = path.flush(&*self.shared);
                    }
                    self.shared.path_closed(path, &error);
                    more = true;
                }
            }
        }
        // What was sent on one path may have made another the better one for what follows.
        match more || (several && self.sent() != sent_before) {
            true => More::AtOnce,
            false if after_others => More::AfterOthers,
            false => More::No,
        }
    }

    /// Stream bytes sent so far, first and again.
    fn sent(&self) -> u64 {
        let stats = self.shared.lock().engine.stats();
        stats.stream_bytes_sent + stats.stream_bytes_resent
    }

    fn standing(&self) -> Standing {
        let state = self.shared.lock();
        Standing {
            is_over: state.engine.is_over(),
            deadline: state.engine.poll_timeout(),
            rests_from: state.engine.rests_from().filter(|at| *at > Instant::now()),
            armed: state.wakers.armed(),
            // By a later time than the line before, so that no moment is neither ahead nor over.
            may_rest: state.may_rest(),
        }
    }

    /// Lets the engine do what is due. True if it did something. With `again` this is called again soon:
    /// until then no timer is needed, and setting one may have the runtime wake a thread.
    fn drive_timers(&mut self, cx: &mut Context<'_>, standing: &Standing, again: bool) -> bool {
        let Standing { deadline, rests_from, armed, .. } = *standing;
        let Some(deadline) = [deadline, rests_from, self.farewell].into_iter().flatten().min() else {
            return false;
        };
        let deadline = self.due(deadline, Instant::now());
        // An armed timer that fires too early does no harm, and saves re-arming for each segment.
        let late = armed.is_none_or(|armed| deadline < armed);
        if late {
            let now = Instant::now();
            if deadline <= now {
                self.handle_timeout(now);
                return true;
            }
            if again {
                return false;
            }
            self.shared.lock().wakers.arm(Some(deadline));
        }
        // Once polled, a timer wakes this task by itself, unless it has become another one.
        let moved = !self.timer_wakes.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if moved {
            self.timer_wakes = Some(cx.waker().clone());
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline.into())));
        if late {
            timer.as_mut().reset(deadline.into());
        }
        if (late || moved || timer.is_elapsed()) && timer.as_mut().poll(cx).is_ready() {
            self.shared.lock().wakers.arm(None);
            return true;
        }
        false
    }

    /// When something is done that was due then. Where nobody looked for a while, as on a busy machine or in
    /// a stopped program, that nothing was heard says little of the peer: what it said may be on its way
    /// through this process.
    fn due(&mut self, deadline: Instant, now: Instant) -> Instant {
        let late = now.saturating_duration_since(deadline);
        if late.is_zero() {
            self.catches_up_until = None;
        } else if late > STOOD_STILL && self.catches_up_until.is_none() {
            self.catches_up_until = Some(now + CATCHING_UP);
        }
        self.catches_up_until.map_or(deadline, |until| until.max(deadline))
    }

    fn handle_timeout(&self, now: Instant) {
        let paths = self.shared.lock().paths.clone();
        for path in paths {
            let due = self.shared.lock().engine.suspect_deadline(path.id).is_some_and(|at| at <= now);
            let stats = if due { path.stats() } else { None };
            if due {
                path.falls_silent(now, stats.as_ref().and_then(|stats| stats.since_ack));
            }
            let Some(stats) = stats else { continue };
            // Only what came since counts: the carrier may have heard more than the engine.
            let at = |ago| now.checked_sub(ago + TIMER_SLACK);
            if let Some(heard) = stats.since_peer_heard().and_then(at) {
                self.shared.lock().engine.carrier_heard(path.id, heard);
            }
            if let Some(acknowledged) = stats.since_peer_ack().and_then(at) {
                self.shared.lock().engine.carrier_progress(path.id, acknowledged);
            }
        }
        self.shared.with(|state| state.engine.handle_timeout(now));
    }

    /// Once the connection is over: ends the paths, and waits shortly until the peer did so too.
    fn poll_farewell(&mut self) -> Poll<()> {
        let paths = self.shared.lock().paths.clone();
        for path in &paths {
            // With the connection over the engine has only its last words left to say.
            if !matches!(path.flush(&*self.shared), Ok(Flow::Blocked)) {
                path.end();
            }
        }
        let until = *self.farewell.get_or_insert_with(|| Instant::now() + FAREWELL);
        if paths.is_empty() || Instant::now() >= until {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Future for Driver {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let mut more = self.drive_paths(cx);
        let mut standing = self.standing();
        if standing.is_over {
            // Before the timers, which are set for its end too.
            if self.poll_farewell().is_ready() {
                self.shared.lock().paths.clear();
                return Poll::Ready(Ended::Over);
            }
            // Something may have been sent.
            standing = self.standing();
        }
        if self.drive_timers(cx, &standing, more != More::No) {
            more = More::AtOnce;
        }
        match more {
            // Whoever has it rest looks again, under the lock.
            More::No if standing.may_rest => return Poll::Ready(Ended::Idle),
            More::No => {}
            // Others first: whoever reads what came in finds it still in the processor's caches.
            More::AtOnce => cx.waker().wake_by_ref(),
            // On this thread: a task that wakes itself may be taken over by another one, and be there too
            // early.
            More::AfterOthers => drop(pin!(tokio::task::yield_now()).poll(cx)),
        }
        Poll::Pending
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::IpAddr;

    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use whimbrel_base::{ConnectionId, SecretKey};
    use whimbrel_proto::{CloseCode, Config, Connection as Engine, PathEnd};

    use super::*;
    use crate::carrier::{CarrierKind, Carriers, TcpCarrier};
    use crate::cause::DownCause;
    use crate::locked;
    use crate::path_io::PathIo;
    use crate::tls::{TlsChannel, TlsIdentity};
    use crate::{Allow, Endpoint, ListenOptions, ManualMonitor};

    const LIMIT: Duration = Duration::from_secs(30);

    /// A connection's end that has dialled its only path just now.
    struct Dialled {
        shared: Arc<Shared>,
        path: Arc<PathIo>,
        /// What its peer has accepted, and says nothing by.
        silent: TcpStream,
    }

    async fn dialled() -> Dialled {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let now = Instant::now();
        let mut engine =
            Engine::client(Config::default(), ConnectionId::random(), ours.id(), theirs.id(), [1; 32], now);
        let id = engine.open_path(now, None, u64::MAX).unwrap();
        let shared = Shared::new(engine, SecretKey::generate(), Vec::new(), Arc::default(), Arc::default());

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = listener.local_addr().unwrap();
        let socket = TcpStream::connect(remote).await.unwrap();
        let (silent, _) = listener.accept().await.unwrap();
        let config = TlsIdentity::new(&ours).unwrap().clients.direct(theirs.id()).unwrap();
        let tls = TlsChannel::client(config, theirs.id()).unwrap();
        let local = socket.local_addr().unwrap();
        let carrier = TcpCarrier::new(id, CarrierKind::Tcp, socket, tls, Vec::new());
        let path = Arc::new(PathIo::tcp(id, local, remote.into(), carrier));
        shared.with(|state| state.paths.push(path.clone()));
        Dialled { shared, path, silent }
    }

    /// Its peer never ends its side of the carrier: only the timer ends the wait.
    #[tokio::test]
    async fn a_connection_that_was_given_up_ends_although_its_peer_stays_silent() {
        let Dialled { shared, silent, .. } = dialled().await;
        let driver = tokio::spawn(Driver::new(shared.clone()));
        // The path is up and its timer runs.
        tokio::time::sleep(Duration::from_millis(50)).await;
        shared.give_up(CloseCode::NONE, "not reached in time");
        let over = tokio::time::timeout(FAREWELL * 5, driver).await;
        assert!(over.is_ok(), "the driver waits for a peer that says nothing");
        drop(silent);
    }

    /// The kernel tells it once: whoever reads comes to an end then, and does not learn why.
    #[tokio::test]
    async fn a_reset_that_comes_to_light_by_asking_for_icmp_ends_the_path_and_is_told_as_the_cause() {
        let Dialled { shared, path, silent } = dialled().await;
        SockRef::from(&silent).set_linger(Some(Duration::ZERO)).unwrap();
        drop(silent);
        let begun = Instant::now();
        while path.cause(PathEnd::Silent) != DownCause::Reset {
            assert!(begun.elapsed() < LIMIT, "no reset is told");
            path.falls_silent(Instant::now(), None);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let driver = tokio::spawn(Driver::new(shared.clone()));
        while !shared.lock().paths.is_empty() {
            assert!(begun.elapsed() < LIMIT, "the path goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        driver.abort();
        assert_eq!(path.cause(PathEnd::Silent), DownCause::Reset);
    }

    /// Once: a machine that is always late keeps time, too.
    #[tokio::test]
    async fn what_became_due_while_this_process_stood_still_waits_until_others_have_read() {
        let Dialled { shared, .. } = dialled().await;
        let mut driver = Driver::new(shared);
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(driver.due(after(0), after(3)), after(0), "as late as timers are");
        assert_eq!(driver.due(after(0), after(300)), after(305));
        assert_eq!(driver.due(after(0), after(306)), after(305), "it is done now, ");
        assert_eq!(driver.due(after(0), after(900)), after(305), "however late");
        assert_eq!(driver.due(after(1000), after(906)), after(1000));
        assert_eq!(driver.due(after(1000), after(1300)), after(1305));
    }

    /// Of what a small message takes here, locks are a good part. On each side: a turn of the driver takes
    /// four, two reads and the write between them five.
    #[tokio::test]
    async fn a_byte_there_and_one_back_lock_the_connections_ends_no_more_than_twenty_times() {
        let bind = |last: u8| {
            let monitor = ManualMonitor::new([IpAddr::from([127, 0, 174, last])]);
            Endpoint::builder().monitor(monitor).carriers(Carriers::Only(CarrierKind::Tcp)).bind()
        };
        let (client, server) = (bind(1).await.unwrap(), bind(2).await.unwrap());
        let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let echo = tokio::spawn(async move {
            let connection = listener.accept().await.unwrap();
            let mut stream = connection.accept_stream().await.unwrap();
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
        });
        let connection = client.connect(server.addr()).await.unwrap();
        let mut stream = connection.open_stream().await.unwrap();
        let mut counts = Vec::new();
        for _ in 0..400 {
            // Everything runs on this thread.
            let before = locked::taken();
            let mut byte = [7];
            stream.write_all(&byte).await.unwrap();
            let answer = stream.read_exact(&mut byte);
            tokio::time::timeout(Duration::from_secs(20), answer).await.unwrap().unwrap();
            counts.push(locked::taken() - before);
        }
        echo.abort();
        // The first words on a path take more, and so do timers now and then.
        counts.sort_unstable();
        let usual = counts[counts.len() / 2];
        assert!((10..=20).contains(&usual), "{usual} times");
    }
}
