//! Which stream sends next: they take turns, and whoever has little to say goes before those who have much.

use std::collections::VecDeque;

use crate::ids::StreamId;
use crate::message::turns::Levels;

/// So many that have little to say may go before the next that has much.
const PASSING: u8 = 4;

/// Streams with something to send, for each level of urgency. A stream is in it once at most, which its owner
/// sees to.
#[derive(Debug, Default)]
pub(crate) struct SendQueues {
    /// As many as were ever used.
    levels: Vec<SendQueue>,
    waiting: Levels,
}

impl SendQueues {
    /// Levels at which streams wait.
    pub(crate) fn waiting(&self) -> Levels {
        self.waiting
    }

    /// Puts a stream behind all others of its level.
    pub(crate) fn push(&mut self, level: u8, id: StreamId) {
        self.at(level).push(id);
    }

    /// Puts a stream that had nothing to send and has little now before those that have much.
    pub(crate) fn push_brief(&mut self, level: u8, id: StreamId) {
        self.at(level).push_brief(id);
    }

    fn at(&mut self, level: u8) -> &mut SendQueue {
        let level = usize::from(level);
        if level >= self.levels.len() {
            self.levels.resize_with(level + 1, SendQueue::default);
        }
        self.waiting |= 1 << level;
        &mut self.levels[level]
    }

    /// Takes out the stream of a level whose turn it is.
    pub(crate) fn pop(&mut self, level: u8) -> Option<StreamId> {
        let queue = self.levels.get_mut(usize::from(level))?;
        let id = queue.pop();
        if queue.is_empty() {
            self.waiting &= !(1 << level);
        }
        id
    }

    /// Streams of these levels that wait, the most urgent first.
    pub(crate) fn iter(&self, levels: Levels) -> impl Iterator<Item = &StreamId> {
        let wanted = move |(level, _): &(usize, &SendQueue)| levels >> level & 1 == 1;
        self.levels.iter().enumerate().filter(wanted).flat_map(|(_, queue)| queue.iter())
    }

    pub(crate) fn len_at(&self, level: u8) -> usize {
        self.levels.get(usize::from(level)).map_or(0, SendQueue::len)
    }

    /// Streams that wait, at all levels.
    pub(crate) fn len(&self) -> usize {
        self.levels.iter().map(SendQueue::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Streams of one level.
#[derive(Debug, Default)]
struct SendQueue {
    /// Those that had nothing to send a moment ago, and have little now: an answer beside downloads.
    brief: VecDeque<StreamId>,
    /// All others, in turn.
    turns: VecDeque<StreamId>,
    /// How many of the first kind went before the others in a row.
    passed: u8,
}

impl SendQueue {
    /// Puts a stream behind all others.
    fn push(&mut self, id: StreamId) {
        self.turns.push_back(id);
    }

    /// Puts a stream that had nothing to send and has little now before those that have much.
    fn push_brief(&mut self, id: StreamId) {
        self.brief.push_back(id);
    }

    /// Takes out the stream whose turn it is.
    fn pop(&mut self) -> Option<StreamId> {
        if (self.passed < PASSING || self.turns.is_empty())
            && let Some(id) = self.brief.pop_front()
        {
            self.passed = self.passed.saturating_add(1);
            return Some(id);
        }
        self.passed = 0;
        self.turns.pop_front()
    }

    fn iter(&self) -> impl Iterator<Item = &StreamId> {
        self.brief.iter().chain(&self.turns)
    }

    fn len(&self) -> usize {
        self.brief.len() + self.turns.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_before_downloads_which_take_turns() {
        let mut queue = SendQueue::default();
        (1..=3).for_each(|id| queue.push(StreamId(id)));
        assert_eq!(queue.pop(), Some(StreamId(1)));
        queue.push(StreamId(1));
        queue.push_brief(StreamId(9));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|id| id.0).collect();
        assert_eq!(order, [9, 2, 3, 1]);
    }

    #[test]
    fn a_download_goes_on_however_many_answers_there_are() {
        let mut queue = SendQueue::default();
        queue.push(StreamId(1));
        let waited = (0..).take_while(|_| {
            queue.push_brief(StreamId(9));
            queue.pop() != Some(StreamId(1))
        });
        assert_eq!(waited.count(), usize::from(PASSING));
    }
}
