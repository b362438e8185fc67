//! Clock, events, progress and queues: all that happens without a scheduler (6, 7, 8.1, 8.2, 10).

use super::events::Events;
use super::heap::Entry;
use super::lanes::{Field, Lanes};
use super::node::{At, INITIAL_WINDOW, Kind, Mode, NONE, Node, Phase, Role};
use crate::scenario::Link;
use whimbrel_access::{MAX_PATHS, PathList};

/// An idle channel is closed after so many seconds.
pub(super) const IDLE_TIMEOUT: f64 = 30.0;

/// What a queue is made of: sizes, and who follows whom. Only the real run writes it.
#[derive(Debug, Clone, Default)]
pub(super) struct Queues {
    pub(super) size: Vec<f64>,
    pub(super) next: Vec<u16>,
}

/// What an event led to, as far as anybody outside must know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finished {
    pub(super) transfer: u16,
    pub(super) channel: At,
    /// The channel has nothing more to do.
    pub(super) emptied: bool,
}

/// The state that a prediction copies.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) clock: f64,
    pub(super) events: Events,
    pub(super) nodes: Vec<Node>,
    pub(super) lanes: Lanes,
    free: Vec<At>,
    /// Open channels, oldest first.
    pub(super) channels: Vec<At>,
    /// The flows of each path that want something, in order of registration.
    pub(super) wanting: [Vec<At>; MAX_PATHS],
    registered: u32,
    serial: u32,
    pub(super) next_id: u32,
}

impl World {
    pub(super) fn clear(&mut self) {
        self.clock = 0.0;
        self.events.clear();
        self.nodes.clear();
        self.lanes.clear();
        self.free.clear();
        self.channels.clear();
        self.wanting.iter_mut().for_each(Vec::clear);
        self.registered = 0;
        self.serial = 0;
        self.next_id = 0;
    }

    /// Become a copy of another world, without allocating once the vectors are large enough.
    pub(super) fn copy_from(&mut self, other: &Self, paths: usize) {
        self.clock = other.clock;
        self.events.copy_from(&other.events);
        self.nodes.clone_from(&other.nodes);
        self.lanes.copy_from(&other.lanes);
        self.free.clone_from(&other.free);
        self.channels.clone_from(&other.channels);
        for (mine, theirs) in self.wanting.iter_mut().zip(&other.wanting).take(paths) {
            mine.clone_from(theirs);
        }
        self.registered = other.registered;
        self.serial = other.serial;
        self.next_id = other.next_id;
    }

    #[inline(always)]
    pub(super) fn node(&mut self, at: At) -> &mut Node {
        &mut self.nodes[usize::from(at)]
    }

    #[inline(always)]
    pub(super) fn get(&self, at: At, field: Field) -> f64 {
        self.lanes.get(at, field)
    }

    #[inline(always)]
    pub(super) fn set(&mut self, at: At, field: Field, value: f64) {
        self.lanes.set(at, field, value);
    }

    fn add(&mut self, node: Node) -> At {
        let at = if let Some(at) = self.free.pop() {
            *self.node(at) = node;
            at
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as At
        };
        self.lanes.reset(at);
        self.set(at, Field::Window, INITIAL_WINDOW);
        at
    }

    /// Change what a node does, and with it how it moves.
    pub(super) fn turn(&mut self, at: At, mode: Mode, phase: Phase) {
        let node = self.node(at);
        (node.mode, node.phase) = (mode, phase);
        let role = node.role;
        let busy = mode == Mode::Busy;
        let flag = |is: bool| f64::from(u8::from(is));
        let moves = busy && (role == Role::Mptcp || (role == Role::Tcp && phase != Phase::Setup));
        self.set(at, Field::Moves, flag(moves));
        self.set(at, Field::Grows, flag(role == Role::Tcp && phase == Phase::Ramp));
        self.set(at, Field::GrowsByGrant, flag(role == Role::Subflow && phase == Phase::Ramp));
    }

    /// 6.3
    #[inline]
    pub(super) fn set_timer(&mut self, at: At, time: f64, kind: Kind) {
        let serial = self.serial + 1;
        let node = &mut self.nodes[usize::from(at)];
        if node.kind == kind && self.lanes.get(at, Field::Timer) == time {
            return;
        }
        node.kind = kind;
        node.serial = serial;
        self.lanes.set(at, Field::Timer, time);
        self.serial = serial;
        self.events.push(Entry::new(time, serial, u32::from(at)));
    }

    pub(super) fn cancel_timer(&mut self, at: At) {
        self.node(at).serial = 0;
        self.set(at, Field::Timer, f64::INFINITY);
    }

    /// Take the next event, if it is due before this moment (6.4).
    #[inline]
    pub(super) fn next(&mut self, before: f64) -> Option<(f64, At)> {
        let due = self.lanes.earliest();
        if due >= before {
            return None;
        }
        if let Some(at) = self.lanes.only_due(due) {
            self.events.took(self.nodes[usize::from(at)].serial);
            return Some((due, at));
        }
        let nodes = &self.nodes;
        let entry = self.events.pop(|entry| nodes[entry.owner as usize].serial == entry.serial)?;
        Some((due, entry.owner as At))
    }

    /// Move the clock to an event's time and handle it (6.4).
    #[inline]
    pub(super) fn handle(&mut self, time: f64, at: At, links: &[Link], queues: &Queues) -> Option<Finished> {
        if time > self.clock {
            self.lanes.progress(time - self.clock, time);
            self.clock = time;
        }
        self.cancel_timer(at);
        let Node { role, mode, .. } = self.nodes[usize::from(at)];
        if role == Role::Subflow {
            self.subflow_event(at, links);
            return None;
        }
        if mode == Mode::Busy && self.get(at, Field::Left) == 0.0 {
            return Some(self.finish(at, links, queues));
        }
        match role {
            Role::Tcp => self.tcp_event(at, links),
            Role::Mptcp | Role::Subflow if mode == Mode::Idle => self.close(at),
            Role::Mptcp | Role::Subflow => {}
        }
        None
    }

    /// 8.1 and 11.1: a new channel on these paths.
    pub(super) fn open(&mut self, paths: PathList, host: u16, tls: bool, links: &[Link]) -> At {
        let path = paths.first();
        let link = &links[path.index()];
        let setup = self.clock + link.rtt * if tls { 4.0 } else { 2.0 };
        let role = if paths.is_multipath() { Role::Mptcp } else { Role::Tcp };
        let mut node = Node::new(role, path.0, link.rtt);
        (node.host, node.tls, node.paths, node.id) = (host, tls, paths, self.next_id);
        self.next_id += 1;
        let at = self.add(node);
        self.set(at, Field::GrantedAt, self.clock);
        self.channels.push(at);
        let flow = if role == Role::Tcp { self.register(at) } else { self.add_subflow(at, path.0, link.rtt) };
        self.set_timer(flow, setup, Kind::SetupDone);
        at
    }

    /// Append a subflow to an MPTCP connection and register it with its path.
    pub(super) fn add_subflow(&mut self, owner: At, path: u8, rtt: f64) -> At {
        let mut node = Node::new(Role::Subflow, path, rtt);
        node.owner = owner;
        let at = self.add(node);
        let mut last = owner;
        while self.node(last).next != NONE {
            last = self.node(last).next;
        }
        self.node(last).next = at;
        self.register(at)
    }

    /// A flow takes its place behind all others of its path.
    fn register(&mut self, at: At) -> At {
        self.registered += 1;
        self.node(at).order = self.registered;
        at
    }

    /// 8.2: put a transfer behind what is queued on a channel.
    pub(super) fn assign(&mut self, at: At, transfer: u16, size: f64, links: &[Link]) {
        self.set(at, Field::Queued, self.get(at, Field::Queued) + size);
        let node = self.node(at);
        node.tail = transfer;
        node.length += 1;
        if node.mode == Mode::Idle {
            node.head = transfer;
            let phase = node.phase;
            self.set(at, Field::Left, size);
            self.turn(at, Mode::Busy, phase);
        }
        self.refresh(at, links);
    }

    /// 8.3 and 11.3
    #[inline]
    pub(super) fn refresh(&mut self, at: At, links: &[Link]) {
        if self.node(at).role == Role::Tcp {
            self.refresh_tcp(at, links);
        } else {
            self.refresh_mptcp(at, links);
        }
    }

    /// 10.1 to 10.3
    fn finish(&mut self, at: At, links: &[Link], queues: &Queues) -> Finished {
        let clock = self.clock;
        let node = self.node(at);
        let transfer = node.head;
        node.length -= 1;
        let emptied = node.length == 0;
        if emptied {
            node.since = clock;
            let phase = node.phase;
            self.turn(at, Mode::Idle, phase);
            self.refresh(at, links);
        } else {
            // A prediction's own transfer is the tail of a queue without being linked to it.
            node.head = if node.length == 1 { node.tail } else { queues.next[usize::from(transfer)] };
            let left = queues.size[usize::from(node.head)];
            self.set(at, Field::Left, left);
            self.refresh(at, links);
            self.reschedule(at);
        }
        Finished { transfer, channel: at, emptied }
    }

    pub(super) fn reschedule(&mut self, at: At) {
        if self.node(at).role == Role::Tcp {
            self.reschedule_tcp(at);
        } else {
            self.reschedule_mptcp(at);
        }
    }

    /// 8.7 and 11.10
    pub(super) fn close(&mut self, at: At) {
        self.channels.retain(|other| *other != at);
        let mut subflow = self.node(at).next;
        while subflow != NONE {
            let next = self.node(subflow).next;
            self.release(subflow);
            subflow = next;
        }
        self.release(at);
    }

    fn release(&mut self, at: At) {
        self.node(at).serial = 0;
        self.lanes.reset(at);
        self.free.push(at);
    }
}
