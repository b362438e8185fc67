//! What a driver does: moves bytes between engines and carriers, and keeps time.

use std::time::Instant;

use whimbrel_base::ConnectionId;
use whimbrel_proto::{
    CloseCode, Connection, Event, FirstFlight, PathId, ProtocolError, Side, StreamId, refusal, segment,
};

use super::carrier::End;
use super::log::{Logged, pieces, pieces_alone};
use super::{Cut, Sim, identity, ms, secs};

const SIDES: [Side; 2] = [Side::Client, Side::Server];
/// So often may things happen at one instant of simulated time before it counts as spinning.
const SPIN: u32 = 20_000;
/// So often may all engines and carriers be asked at one instant whether they have something.
const ROUNDS: u32 = 1000;

impl Sim {
    /// Lets `duration` pass.
    pub(crate) fn advance(&mut self, duration: std::time::Duration) {
        let end = self.now + duration;
        self.pump();
        while let Some(next) = self.next_event().filter(|at| *at <= end) {
            self.step_to(next.max(self.now));
        }
        self.step_to(end);
    }

    /// Moves time on to `at` and does what is due then.
    pub(crate) fn step_to(&mut self, at: Instant) {
        assert!(at >= self.now);
        if at == self.now {
            self.steps += 1;
            assert!(self.steps < u64::from(SPIN), "spinning\n{}", self.report());
        } else {
            self.steps = 0;
        }
        self.now = at;
        self.deliver();
        self.notice_losses();
        self.fire_timers();
        self.drive_dialling();
        self.pump();
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        let engines = [Some(&self.client), self.server.as_ref()];
        let timers = engines.into_iter().flatten().map(Connection::poll_timeout);
        let carriers = self.carriers.iter().map(|c| c.next_event());
        let redial = [self.redial_at.filter(|_| self.options.redial && self.client.may_open_path())];
        timers.chain(carriers).chain(redial).flatten().min()
    }

    fn fire_timers(&mut self) {
        let now = self.now;
        for side in SIDES {
            if let Some(connection) = self.connection(side)
                && connection.poll_timeout().is_some_and(|at| at <= now)
            {
                connection.handle_timeout(now);
                let next = connection.poll_timeout();
                assert!(next.is_none_or(|at| at > now), "{side:?} would spin");
            }
        }
    }

    /// Takes events and segments out of the engines until they have none.
    pub(crate) fn pump(&mut self) {
        for round in 0.. {
            assert!(round < ROUNDS, "the sides never run dry\n{}", self.report());
            let mut busy = false;
            for side in SIDES {
                busy |= self.take_events(side);
                for index in 0..self.carriers.len() {
                    busy |= self.transmit(side, index);
                }
                busy |= self.take_events(side);
            }
            if !busy {
                break;
            }
        }
        let buffered = self.server.as_ref().map_or(0, Connection::buffered);
        self.peak_buffered = self.peak_buffered.max(self.client.buffered()).max(buffered);
        self.drop_finished();
    }

    fn drop_finished(&mut self) {
        if self.client.is_over() {
            for index in 0..self.carriers.len() {
                self.close_end(Side::Client, index);
            }
        }
        if !self.server.as_ref().is_some_and(Connection::is_over) || self.server_was_over {
            return;
        }
        // The object stays for the application to read from; nobody may join it any more.
        self.server_was_over = true;
        if !self.keep_server {
            for index in 0..self.carriers.len() {
                self.close_end(Side::Server, index);
            }
        }
    }

    fn take_events(&mut self, side: Side) -> bool {
        let mut any = false;
        while let Some(event) = self.connection(side).and_then(Connection::poll_event) {
            any = true;
            if let Some(log) = &mut self.log {
                log.push(Logged::Told(side, event.clone()));
            }
            match &event {
                Event::PathDown(path, _) => {
                    self.close_path(side, *path);
                    if side == Side::Client {
                        // What is left may be suspect already.
                        self.redial_at.get_or_insert(self.now);
                    }
                }
                Event::PathSuspect(_) if side == Side::Client => {
                    self.redial_at.get_or_insert(self.now);
                }
                _ => {}
            }
            match side {
                Side::Client => self.client_events.push(event),
                Side::Server => self.server_events.push(event),
            }
        }
        any
    }

    fn close_path(&mut self, side: Side, path: PathId) {
        for index in 0..self.carriers.len() {
            if self.carriers[index].path == path && self.carriers[index].end(side) == End::Attached {
                self.close_end(side, index);
            }
        }
    }

    /// This side closes the carrier: the other one reads what is under way, then the end.
    fn close_end(&mut self, side: Side, index: usize) {
        let (now, hard) = (self.now, self.rng.below(2) == 0);
        let carrier = &mut self.carriers[index];
        if carrier.end(side) == End::Gone {
            return;
        }
        *carrier.end_mut(side) = End::Gone;
        let at = now + carrier.delay;
        if hard && side == Side::Client {
            carrier.outgoing(side).kill();
            carrier.notice_at(side.peer(), at);
        } else {
            carrier.outgoing(side).close(at);
        }
        carrier.incoming_mut(side).kill();
    }

    fn transmit(&mut self, side: Side, index: usize) -> bool {
        let (now, capacity, fragment) = (self.now, self.options.capacity, self.options.fragment);
        let carrier = &mut self.carriers[index];
        if carrier.end(side) != End::Attached {
            return false;
        }
        let connection = match side {
            Side::Client => &mut self.client,
            Side::Server => match &mut self.server {
                Some(server) => server,
                None => return false,
            },
        };
        let mut any = false;
        let mut buf = Vec::new();
        let mut rounds = 0;
        if let Some(air) = self.options.datagrams {
            connection.set_datagram_room(carrier.path, air.room);
            while connection.poll_datagram(now, carrier.path, &mut buf) {
                assert!(buf.len() as u64 <= air.room, "{} bytes", buf.len());
                any = true;
                if let Some(log) = &mut self.log {
                    log.extend(pieces_alone(side, &buf));
                }
                let lost = self.rng.below(1000) < air.loss;
                let at = now + carrier.delay + air.jitter.mul_f64(self.rng.below(1000) as f64 / 1000.0);
                let pipe = carrier.outgoing(side);
                if let Some(at) = pipe.pass(now, buf.len(), at).filter(|_| !lost && !pipe.dead) {
                    pipe.air.push((at, std::mem::take(&mut buf)));
                }
                buf.clear();
            }
        }
        loop {
            carrier.outgoing(side).run(now);
            if carrier.outgoing(side).backlog() >= capacity {
                connection.path_blocked(carrier.path);
                break;
            }
            if !connection.poll_transmit(now, carrier.path, &mut buf) {
                break;
            }
            any = true;
            rounds += 1;
            assert!(rounds < SPIN, "{side:?} transmits for ever");
            assert!(buf.len() <= segment::MAX_SEGMENT);
            let (body, taken) = segment::split(&buf).unwrap().unwrap();
            assert!(!body.is_empty() && taken == buf.len());
            if let Some(log) = &mut self.log {
                log.extend(pieces(side, body));
            }
            let at = now + carrier.delay;
            let rng = fragment.then_some(&mut self.rng);
            carrier.outgoing(side).push(at, &buf, rng);
            if side == Side::Client && !carrier.answered {
                let (sent, limit) = (carrier.up.sent, carrier.early_limit);
                assert!(sent <= limit, "{sent} bytes sent early, {limit} allowed");
            }
            buf.clear();
        }
        any
    }

    fn deliver(&mut self) {
        let now = self.now;
        for index in 0..self.carriers.len() {
            for side in SIDES {
                let carrier = &mut self.carriers[index];
                if !carrier.stalled {
                    carrier.incoming_mut(side).run(now);
                }
                if carrier.stalled || carrier.end(side) == End::Gone {
                    continue;
                }
                let landed = carrier.incoming_mut(side).land(now);
                self.take_datagrams(side, index, landed);
                let carrier = &mut self.carriers[index];
                let cut = carrier.incoming_mut(side).arrive(now);
                self.take_segments(side, index);
                if cut {
                    self.cut(index, self.cut_style);
                } else if self.carriers[index].incoming(side).is_at_end(now) {
                    self.lost(side, index);
                }
            }
        }
    }

    fn take_segments(&mut self, side: Side, index: usize) {
        let mut inbox = std::mem::take(&mut self.carriers[index].incoming_mut(side).inbox);
        let mut at = 0;
        while let Some((body, taken)) = segment::split(&inbox[at..]).unwrap() {
            at += taken;
            match self.carriers[index].end(side) {
                End::Gone => return,
                End::Fresh => self.accept_carrier(index, body),
                End::Attached => self.feed(side, index, body),
            }
        }
        inbox.drain(..at);
        self.carriers[index].incoming_mut(side).inbox = inbox;
    }

    fn take_datagrams(&mut self, side: Side, index: usize, landed: Vec<Vec<u8>>) {
        let (now, path) = (self.now, self.carriers[index].path);
        for datagram in landed {
            if self.carriers[index].end(side) == End::Attached
                && let Some(connection) = self.connection(side)
            {
                let result = connection.handle_datagram(now, path, &datagram);
                assert_eq!(result, Ok(()), "{side:?} rejects an honest peer");
                self.take_events(side);
            }
        }
    }

    fn feed(&mut self, side: Side, index: usize, body: &[u8]) {
        let now = self.now;
        let path = self.carriers[index].path;
        if side == Side::Client {
            self.carriers[index].answered = true;
        }
        if let Some(connection) = self.connection(side) {
            let result = connection.handle_segment(now, path, body);
            if side == Side::Client && self.forgotten > 0 && result == Err(ProtocolError::OtherAnswer) {
                // An answer of the server process before it was still on its way. The engine has closed
                // itself.
                self.close_end(side, index);
                return;
            }
            assert_eq!(result, Ok(()), "{side:?} rejects an honest peer");
        }
        self.take_events(side);
    }

    /// The server's accept loop.
    fn accept_carrier(&mut self, index: usize, body: &[u8]) {
        let now = self.now;
        self.carriers[index].server = End::Attached;
        let began = (identity(Side::Client), identity(Side::Server));
        let (client, expected) = self.carriers[index].ids.unwrap_or(began);
        if expected != self.key(Side::Server).id() {
            // TLS fails.
            return self.close_end(Side::Server, index);
        }
        let first = FirstFlight::decode(body).unwrap();
        let stranger = self.server.as_ref().filter(|server| server.peer() != client);
        let verdict = match first {
            FirstFlight::TakeOver(take_over) => match self.server.as_mut() {
                Some(server) if !self.server_was_over => server
                    .take_over(now, client, &take_over, [self.rng.next() as u8; 32])
                    .map_err(|e| e.code()),
                _ => Err(CloseCode::UNKNOWN_CONNECTION),
            },
            first if stranger.is_some() => {
                let refused = stranger.and_then(|server| server.turn_away(client, &first));
                Err(refused.map_or(CloseCode::UNKNOWN_CONNECTION, |error| error.code()))
            }
            FirstFlight::Open(open) => match self.server.as_mut() {
                Some(_) if self.server_was_over => Err(CloseCode::UNKNOWN_CONNECTION),
                Some(server) => server.reopen(now, &open).map_err(|e| e.code()),
                None => {
                    self.server = Some(Connection::server(
                        self.options.server.clone(),
                        &open,
                        identity(Side::Server),
                        identity(Side::Client),
                        [9 + self.forgotten as u8; 32],
                        now,
                    ));
                    Ok(())
                }
            },
            FirstFlight::Resume(resume) => match self.server.as_mut() {
                Some(server) if !self.server_was_over => server.resume(now, &resume).map_err(|e| e.code()),
                _ => Err(CloseCode::UNKNOWN_CONNECTION),
            },
            FirstFlight::Join(join) => {
                assert_eq!(join.connection, ConnectionId::from_bytes(&super::CONNECTION));
                match self.server.as_mut() {
                    Some(server) if !self.server_was_over => server.join(now, &join).map_err(|e| e.code()),
                    _ => Err(CloseCode::UNKNOWN_CONNECTION),
                }
            }
        };
        match verdict {
            Ok(()) => {
                self.take_events(Side::Server);
                self.feed(Side::Server, index, body);
            }
            Err(code) => {
                let delay = self.carriers[index].delay;
                let bytes = refusal(code, "refused");
                self.carriers[index].down.push(now + delay, &bytes, None);
                self.close_end(Side::Server, index);
            }
        }
    }

    fn notice_losses(&mut self) {
        for index in 0..self.carriers.len() {
            for side in SIDES {
                let carrier = &self.carriers[index];
                if carrier.notice(side).is_some_and(|at| at <= self.now) && carrier.end(side) != End::Gone {
                    self.lost(side, index);
                }
            }
        }
    }

    /// This side's end of the carrier is found closed or broken.
    fn lost(&mut self, side: Side, index: usize) {
        let now = self.now;
        let path = self.carriers[index].path;
        let was_attached = self.carriers[index].end(side) == End::Attached;
        self.close_end(side, index);
        if was_attached && let Some(connection) = self.connection(side) {
            connection.path_lost(now, path);
        }
        self.take_events(side);
    }

    fn drive_dialling(&mut self) {
        if !self.options.redial {
            return;
        }
        let now = self.now;
        let opening = |c: &&super::Carrier| c.client == End::Attached && !c.answered;
        let stale: Vec<PathId> = self
            .carriers
            .iter()
            .filter(opening)
            .filter(|c| now >= c.opened + secs(3))
            .map(|c| c.path)
            .collect();
        for path in stale {
            self.client.path_lost(now, path);
            self.take_events(Side::Client);
            self.redial_at.get_or_insert(now);
            // Forgotten without an event only if it was gone already.
            self.close_path(Side::Client, path);
        }
        if !self.client.may_open_path() {
            return;
        }
        if self.client.paths().is_empty() {
            self.redial_at.get_or_insert(now);
        }
        if self.redial_at.is_some_and(|at| at <= now) {
            let dialling = self.carriers.iter().any(|c| opening(&c));
            self.redial_at = None;
            if self.client.has_active_path() {
                return;
            }
            if !dialling {
                self.dial();
            }
            self.redial_at = Some(now + ms(1000));
        }
    }

    /// Makes the network whole again and lets the client find its way.
    pub(crate) fn heal(&mut self) {
        self.offline = false;
        self.options.redial = true;
        for index in 0..self.carriers.len() {
            self.stall(index, false);
        }
        self.redial_at = Some(self.now);
    }

    /// Cuts whatever is open, in the given way, and heals.
    pub(crate) fn cut_and_heal(&mut self, how: Cut) {
        self.cut_all(how);
        self.heal();
    }

    /// Writes everything in as many steps as the buffers ask for, both ends reading.
    pub(crate) fn send(&mut self, side: Side, id: StreamId, mut n: usize) {
        let mut idle = 0;
        while n > 0 {
            let taken = self.write(side, id, n.min(256 * 1024));
            n -= taken;
            idle = if taken == 0 { idle + 1 } else { 0 };
            assert!(idle < 100_000, "the writer is stuck\n{}", self.report());
            if n > 0 {
                self.read_all(side.peer());
                self.pump();
                let next = self.next_event().unwrap_or(self.now + ms(10));
                self.step_to(next.min(self.now + ms(50)).max(self.now));
            }
        }
    }
}
