//! Connections that carry nothing, and those that carry several messages and have room for more.

use super::IDLE;
use crate::Destination;
use crate::http::line::Line;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

/// Idle connections to one server. Where many clients ask one server in turns, half of the connections rest
/// at any moment: if those were closed, others would have to be opened in the next one.
const MOST_EACH: usize = 32;
/// The same over one network that the manager chose. It is told of all of them for each message, and its
/// policies compare 64 ways at most, new connections among them. Six objects have their turns there at once.
const MOST_OFFERED: usize = 8;
/// Idle connections altogether.
const MOST: usize = 256;

/// A connection, and the time since which it is idle.
type Resting = (Box<Line>, Instant);

/// All of them.
#[derive(Default)]
pub(super) struct Idle {
    next: u32,
    count: usize,
    servers: HashMap<Destination, Vec<Resting>>,
    /// Where somebody waits for one to this server.
    waiting: HashMap<Destination, Arc<Notify>>,
}

impl Idle {
    /// A number for a connection: older ones have smaller numbers.
    pub(super) fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Puts one in, if there is room.
    pub(super) fn put(&mut self, line: Box<Line>) {
        if self.count >= MOST {
            self.tidy();
        }
        if self.count >= MOST {
            return;
        }
        let lines = match self.servers.get_mut(line.to()) {
            Some(lines) => lines,
            None => self.servers.entry(line.to().clone()).or_default(),
        };
        let most = if line.source().is_some() { MOST_OFFERED } else { MOST_EACH };
        let beside = || lines.iter().filter(|(other, _)| network(other) == network(&line)).count();
        if lines.len() < most || beside() < most {
            let to = (!self.waiting.is_empty()).then(|| line.to().clone());
            lines.push((line, Instant::now()));
            self.count += 1;
            to.iter().for_each(|to| self.tell(to));
        }
    }

    /// Is notified each time a connection to the server becomes idle.
    pub(super) fn freed(&mut self, to: &Destination) -> Arc<Notify> {
        Arc::clone(self.waiting.entry(to.clone()).or_default())
    }

    fn tell(&mut self, to: &Destination) {
        let Some(freed) = self.waiting.get(to) else { return };
        freed.notify_waiters();
        if Arc::strong_count(freed) == 1 {
            self.waiting.remove(to);
        }
    }

    /// A message has passed on one that carries several: if it is here, it is idle from now on.
    pub(super) fn rests(&mut self, line: &Line) {
        let lines = self.servers.get_mut(line.to()).map(Vec::as_mut_slice).unwrap_or_default();
        if let Some((_, since)) = lines.iter_mut().find(|(other, _)| other.id() == line.id()) {
            *since = Instant::now();
            self.tell(line.to());
        }
    }

    /// Takes out the newest one that fits, or a hold on it if it carries several messages and has room.
    pub(super) fn take(
        &mut self,
        to: &Destination,
        fits: &impl Fn(&Line, Instant) -> bool,
    ) -> Option<Box<Line>> {
        let lines = self.servers.get_mut(to)?;
        let at = lines.iter().rposition(|(line, since)| line.has_room() && fits(line, *since))?;
        if let Some(shared) = lines[at].0.share() {
            return Some(Box::new(shared));
        }
        let (line, _) = lines.remove(at);
        if lines.is_empty() {
            self.servers.remove(to);
        }
        self.count -= 1;
        Some(line)
    }

    /// Takes out all to this server over this network, to be dropped. What carries messages there closes
    /// behind the last of them.
    pub(super) fn leave(&mut self, to: &Destination, network: &str) -> Vec<Resting> {
        let Some(lines) = self.servers.get_mut(to) else { return Vec::new() };
        let is_there = |line: &Line| line.by().and_then(|by| by.interface.as_deref()) == Some(network);
        let left: Vec<Resting> = lines.extract_if(.., |(line, _)| is_there(line)).collect();
        self.count -= left.len();
        if lines.is_empty() {
            self.servers.remove(to);
        }
        left
    }

    /// Closes what has been idle for too long.
    pub(super) fn tidy(&mut self) {
        let now = Instant::now();
        self.servers.retain(|_, lines| {
            keep_good(lines, now);
            !lines.is_empty()
        });
        self.count = self.servers.values().map(Vec::len).sum();
        self.waiting.retain(|_, freed| Arc::strong_count(freed) > 1);
    }

    /// Those to this server that still work.
    pub(super) fn good(&mut self, to: &Destination) -> &[Resting] {
        let Some(lines) = self.servers.get_mut(to) else { return &[] };
        let before = lines.len();
        keep_good(lines, Instant::now());
        self.count -= before - lines.len();
        lines
    }
}

/// The network that it goes over, where the manager chose it.
fn network(line: &Line) -> Option<&str> {
    line.by().and_then(|by| by.interface.as_deref())
}

/// Closes those that have been idle for too long by now, and drops those that are closed.
fn keep_good(lines: &mut Vec<Resting>, now: Instant) {
    lines.retain(|(line, since)| (line.is_used() || now.duration_since(*since) < IDLE) && !line.is_closed());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::http::line::Speaks;
    use crate::http::speaker::Speaker;
    use std::net::IpAddr;

    /// How many are kept of more than that.
    async fn kept(source: Option<IpAddr>) -> usize {
        let (mut idle, mut servers) = (Idle::default(), Vec::new());
        let to = Destination::new("192.0.2.9", 80).unwrap();
        for _ in 0..2 * MOST_EACH {
            let (stream, server) = tokio::io::duplex(1);
            servers.push(server);
            let speaks = Speaks::One(Speaker::start(Box::new(stream)).await.unwrap());
            let line = Line::new(idle.number(), to.clone(), speaks, source, None);
            idle.put(Box::new(line));
        }
        idle.good(&to).len()
    }

    #[tokio::test]
    async fn many_are_kept_of_a_server_and_few_of_those_that_the_manager_is_told_of() {
        assert_eq!(kept(None).await, MOST_EACH);
        assert_eq!(kept(Some([192, 0, 2, 1].into())).await, MOST_OFFERED);
    }
}
