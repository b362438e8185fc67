//! Runs of messages that leave together: small ones of a flow beside which nothing of its urgency waits. What
//! is asked of each message else, whose turn it is and how much of it goes, has one answer for all of them.

#[cfg(test)]
mod alike;

use std::time::Duration;

use super::leaving::{FLOOD, HEADER, SMALL};
use super::{Chance, Outgoing, Sender};
use crate::draft::{Draft, MIN_PIECE};
use crate::flow::Class;
use crate::frame::{self, MessageHeader, kind};
use crate::message::cost;
use crate::path::{Leaver, Leavers};

/// Messages of a run that leave in a datagram.
pub(crate) struct Together<'a> {
    /// How long what is in it may become.
    pub(crate) room: u64,
    /// So many more, at most.
    pub(crate) most: usize,
    pub(crate) out: &'a mut Vec<u8>,
    /// Each that leaves is added.
    pub(crate) leavers: &'a mut Leavers,
}

/// What came of a run in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ran {
    /// There is none: other messages may go in.
    Not,
    /// It is in, and more may go in.
    In,
    /// Nothing that waits at the level fits any more, whether a run is in or not.
    Full,
}

/// What one run took.
#[derive(Default)]
struct Taken {
    messages: u64,
    /// Of the messages.
    bytes: u64,
    /// On the wire, before the last of them.
    before_last: u64,
}

impl Sender {
    /// Puts a run of whole messages of a level into a segment, until it is as long as it should become. False
    /// if there is none: [`put_one`](Self::put_one) may have another.
    pub(super) fn put_run(
        &mut self,
        level: u8,
        now: Duration,
        chance: Chance,
        limit: usize,
        draft: &mut Draft<'_>,
    ) -> bool {
        let Some((lane, flow, class)) = self.runs_alone(level, chance) else { return false };
        if !class.reliable && (!chance.takes_now || chance.datagram > 0) {
            return false;
        }
        let (before, mut taken) = (draft.len(), Taken::default());
        while draft.room() >= MIN_PIECE.max(HEADER + 1) && draft.len() < limit {
            let most = SMALL.min((draft.room() - HEADER) as u64);
            let may_go_alone = chance.datagram > 0 && self.lanes[lane].backlog <= FLOOD;
            if may_go_alone {
                break;
            }
            let Some(id) = self.begin_whole(lane, flow, now, most, &mut taken) else { break };
            let Some(message) = self.messages.get_mut(id) else { break };
            taken.before_last = (draft.len() - before) as u64;
            message.in_segments = !class.reliable;
            self.lanes[lane].in_segments += usize::from(!class.reliable);
            encode(message, class, draft.out);
            draft.note_message(id, class.reliable);
        }
        self.end_run(lane, flow, &taken, (draft.len() - before) as u64)
    }

    /// Puts a run of messages of a level into a datagram, each of them whole.
    pub(crate) fn put_run_alone(
        &mut self,
        level: u8,
        now: Duration,
        chance: Chance,
        together: Together<'_>,
    ) -> Ran {
        let Together { room, most, out, leavers } = together;
        let Some((lane, flow, class)) = self.runs_alone(level, chance) else { return Ran::Not };
        let overtakes = class.sequenced && self.lanes[lane].in_segments > 0;
        if class.reliable || !chance.takes_now || overtakes || self.flows[flow].options.redundant {
            return Ran::Not;
        }
        let (before, mut taken) = (out.len(), Taken::default());
        // Without room for a header, one without bytes does not fit either.
        let left = |out: &Vec<u8>| room.checked_sub((out.len() - before + HEADER) as u64);
        for _ in 0..most {
            let Some(left) = left(out) else { break };
            let Some(id) = self.begin_whole(lane, flow, now, left, &mut taken) else { break };
            let Some(message) = self.messages.get_mut(id) else { break };
            taken.before_last = (out.len() - before) as u64;
            message.datagrams = message.datagrams.saturating_add(1);
            encode(message, class, out);
            leavers.push(Leaver { id, size: message.size(), repetition: None });
        }
        let next = self.lanes[lane].fresh.first().and_then(|(_, id)| self.messages.get(*id));
        // One that is too old gives way to what is behind it.
        let waits = |message: &Outgoing| message.deadline.is_none_or(|at| at > now);
        let is_full =
            next.is_some_and(|message| left(out).is_none_or(|left| message.size() > left) && waits(message));
        match self.end_run(lane, flow, &taken, (out.len() - before) as u64) {
            _ if is_full => Ran::Full,
            true => Ran::In,
            false => Ran::Not,
        }
    }

    /// The lane that waits alone at a level, its only flow and that one's class, if nothing of it has to go
    /// before what is fresh, and nothing goes on a second path.
    fn runs_alone(&self, level: u8, chance: Chance) -> Option<(usize, usize, Class)> {
        let lane = self.turns.alone_at(level)?;
        let queue = &self.lanes[lane];
        if queue.group.is_some() || !queue.again.is_empty() || !queue.begun.is_empty() {
            return None;
        }
        let (_, id) = queue.fresh.first()?;
        let flow = self.messages.get(*id)?.flow.0 as usize;
        let options = &self.flows[flow].options;
        let is_copied = chance.second && (chance.redundant || options.redundant);
        (!is_copied).then_some((lane, flow, options.class))
    }

    /// Takes the next fresh message of a lane as a whole, if it may go and has at most so many bytes.
    #[inline]
    fn begin_whole(
        &mut self,
        lane: usize,
        flow: usize,
        now: Duration,
        most: u64,
        taken: &mut Taken,
    ) -> Option<u64> {
        let (queue, flow) = (&mut self.lanes[lane], &mut self.flows[flow]);
        let (_, id) = *queue.fresh.first()?;
        let message = self.messages.get_mut(id)?;
        let size = message.size();
        let goes = size <= most && message.deadline.is_none_or(|at| at > now) && message.fate.is_none();
        if !goes || !flow.settled.admits(flow.next) || !self.credit.pay(cost(size)) {
            return None;
        }
        message.begin_whole(flow.next);
        flow.next += 1;
        queue.fresh.pop_first();
        queue.backlog -= size.max(1);
        (taken.messages, taken.bytes) = (taken.messages + 1, taken.bytes + size);
        Some(id)
    }

    /// Notes what a run took, and that it took so many bytes on the wire. False if that is nothing.
    fn end_run(&mut self, lane: usize, flow: usize, taken: &Taken, bytes: u64) -> bool {
        if taken.messages == 0 {
            return false;
        }
        let (queue, flow) = (&mut self.lanes[lane], &mut self.flows[flow]);
        queue.begun_first = true;
        for stats in [&mut self.stats, &mut flow.tally.counts] {
            (stats.sent, stats.bytes_sent) = (stats.sent + taken.messages, stats.bytes_sent + taken.bytes);
        }
        // Whoever comes anew begins where this one stood before its last message, not before its first.
        if taken.before_last > 0 {
            self.turns.spend(lane, &mut queue.turn, taken.before_last);
        }
        self.turns.spend(lane, &mut queue.turn, bytes - taken.before_last);
        if queue.backlog == 0 {
            self.activate(lane);
        }
        true
    }
}

/// Appends the frame of a whole message of a class, which belongs to no group.
#[inline]
fn encode(message: &Outgoing, class: Class, out: &mut Vec<u8>) {
    let number = message.number().unwrap_or_default();
    let header = MessageHeader { flow: message.flow.0, number, class, tag: message.tag(), place: None };
    let data = message.bytes(&(0..message.size()));
    out.reserve(HEADER + data.len());
    frame::put(out, kind::MESSAGE, |out| {
        header.encode(out);
        out.extend_from_slice(data);
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::event::Events;
    use crate::flow::Urgency;
    use crate::ids::PathId;
    use crate::message::{FlowOptions, MESSAGE_WINDOW, SendOptions};

    const NOW: Duration = Duration::from_secs(2);
    const LEVEL: u8 = Urgency::USUAL.level();
    const CHANCE: Chance = Chance {
        path: PathId(0),
        takes_now: true,
        datagram: 0,
        reliable: true,
        second: false,
        redundant: false,
    };
    /// Some without bytes, some that go in pieces, and some too old.
    const SIZES: [usize; 12] = [100, 0, 1, 100, 9000, 100, 4096, 4097, 1100, 300, 100, 30_000];

    fn sender(class: Class, sizes: &[usize]) -> Sender {
        let mut sender = Sender::new();
        sender.open(MESSAGE_WINDOW);
        let flow = sender.open_flow(FlowOptions::new(class)).unwrap();
        for (number, size) in sizes.iter().enumerate() {
            let old = number % 4 == 3;
            let lifetime = Some(Duration::from_secs(if old { 1 } else { 9 }));
            let options = SendOptions { lifetime, ..SendOptions::default() };
            let data = vec![number as u8; *size];
            sender.send(Duration::ZERO, None, flow, data, options, &mut Events::default()).unwrap();
        }
        sender
    }

    /// What segments hold that `put` fills until there is nothing left, and what else there is to see.
    fn segments(
        mut sender: Sender,
        put: impl Fn(&mut Sender, usize, &mut Draft<'_>, &mut Events) -> bool,
    ) -> Vec<String> {
        let mut all = Vec::new();
        for limit in [200, 1400, 9000].into_iter().cycle() {
            let (mut out, mut events) = (Vec::new(), Events::default());
            let mut draft = Draft::new(&mut out, 10_000);
            if !put(&mut sender, limit, &mut draft, &mut events) {
                break;
            }
            let contents = draft.finish().unwrap();
            all.push(format!(
                "{contents:?} {out:?} {:?} {}",
                sender.stats(),
                sender.waiting(u8::MAX, CHANCE)
            ));
        }
        assert!(sender.is_idle());
        all
    }

    #[test]
    fn a_run_fills_segments_as_messages_one_by_one_do() {
        for class in
            [Class::RELIABLE, Class::RELIABLE_SEQUENCED, Class::UNRELIABLE, Class::UNRELIABLE_SEQUENCED]
        {
            let together = segments(sender(class, &SIZES), |sender, limit, draft, events| {
                sender.put_all(LEVEL, NOW, CHANCE, limit, draft, events)
            });
            let one_by_one = segments(sender(class, &SIZES), |sender, limit, draft, events| {
                let before = draft.len();
                while draft.room() >= MIN_PIECE
                    && draft.len() < limit
                    && sender.put_one(LEVEL, NOW, CHANCE, limit, draft, events)
                {}
                draft.len() > before
            });
            assert_eq!(together, one_by_one, "{class:?}");
            assert!(together.len() > 4);
        }
    }

    #[test]
    fn a_run_fills_a_datagram_as_messages_one_by_one_do_and_keeps_within_its_room() {
        let chance = Chance { datagram: 700, ..CHANCE };
        let sizes = [100, 0, 50, 70, 100, 200, 90, 100, 300, 100];
        let mut one_by_one = (sender(Class::UNRELIABLE, &sizes), Vec::new(), Leavers::new());
        let (sender_of, out, leavers) = &mut one_by_one;
        loop {
            let chance = Chance { datagram: chance.datagram - out.len() as u64, ..chance };
            let Some(leaver) = sender_of.put_alone(LEVEL, NOW, chance, out, &mut Events::default()) else {
                break;
            };
            leavers.push(leaver);
        }
        let (mut sender, mut run, mut left) = (sender(Class::UNRELIABLE, &sizes), Vec::new(), Leavers::new());
        loop {
            let room = chance.datagram - run.len() as u64;
            let together = Together { room, most: 3, out: &mut run, leavers: &mut left };
            match sender.put_run_alone(LEVEL, NOW, chance, together) {
                Ran::In => continue,
                Ran::Full => break,
                // One that is too old ends a run.
                Ran::Not => {}
            }
            let chance = Chance { datagram: room, ..chance };
            let put = sender.put_alone(LEVEL, NOW, chance, &mut run, &mut Events::default());
            let Some(leaver) = put else { break };
            left.push(leaver);
        }
        assert_eq!((&run, &left), (&*out, &*leavers));
        assert!(left.len() > 4 && run.len() <= 700);
        assert_eq!(sender.stats(), sender_of.stats());
    }

    #[test]
    fn there_is_no_run_while_another_flow_waits_or_something_goes_a_second_time() {
        let fill = |sender: &mut Sender| {
            let mut out = Vec::new();
            sender.put_run(LEVEL, NOW, CHANCE, 1000, &mut Draft::new(&mut out, 10_000))
        };
        let mut alone = sender(Class::RELIABLE, &[100; 3]);
        assert!(fill(&mut alone));
        let mut beside = sender(Class::RELIABLE, &[100; 3]);
        let other = beside.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
        let options = SendOptions::default();
        beside.send(NOW, None, other, vec![7], options, &mut Events::default()).unwrap();
        assert!(!fill(&mut beside), "each has its turns");
        let mut again = sender(Class::RELIABLE, &[100; 20]);
        assert!(fill(&mut again));
        again.all_come_back(0..1, &mut Events::default());
        assert!(!fill(&mut again), "what is late goes first");
    }
}
