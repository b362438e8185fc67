//! Who sends next: strictly by urgency, with ageing, and among equals by weight.

use super::ascending::Ascending;

/// Levels of urgency.
pub(crate) const LEVELS: usize = 8;
/// Of what goes before it, each level that waits gets one byte for so many: 2.4 % of the rate.
const SHARE: i64 = 40;
/// A level that waits has its first turn after so many bytes.
const FIRST_TURN: i64 = 16 * 1024;

/// As much as 16 KiB, of one that has the usual weight of 16.
const NEAR: u64 = 16 * 1024 * 256 / 16;

/// A set of levels, one bit each; bit 0 is the most urgent.
pub(crate) type Levels = u8;

/// Which level sends next. A level that waits while others send gets older, and has a turn now and then.
#[derive(Debug, Default)]
pub(crate) struct Ageing {
    /// Bytes that went before each level while it waited, less [`SHARE`] times what it sent itself.
    passed: [i64; LEVELS],
    /// Nothing is above zero.
    settled: bool,
}

impl Ageing {
    /// Returns the level whose turn it is among those that wait.
    pub(crate) fn choose(&self, waiting: Levels) -> Option<u8> {
        let first = waiting.trailing_zeros() as usize;
        if first >= LEVELS {
            return None;
        }
        let aged = (first + 1..LEVELS).filter(|level| waiting >> level & 1 == 1);
        let oldest = aged.max_by_key(|level| self.passed[*level]);
        let due = oldest.filter(|level| self.passed[*level] >= FIRST_TURN);
        Some(due.unwrap_or(first) as u8)
    }

    /// Notes that `level` sent `bytes` while `waiting` had something to send.
    pub(crate) fn note(&mut self, level: u8, bytes: u64, waiting: Levels) {
        let alone = waiting & !(1 << level) == 0;
        if alone && self.settled {
            // As below, where that changes nothing else.
            self.passed[usize::from(level)] = 0;
            return;
        }
        self.settled = alone;
        let bytes = bytes.min(1 << 30) as i64;
        let more_urgent = waiting & ((1 << level) - 1);
        for (other, passed) in self.passed.iter_mut().enumerate() {
            if other == usize::from(level) {
                // What is sent while nothing more urgent waits costs nothing.
                *passed = if more_urgent == 0 { 0 } else { *passed - SHARE * bytes };
            } else if waiting >> other & 1 == 0 {
                // Whoever does not wait saves nothing up.
                *passed = (*passed).min(0);
            } else if other > usize::from(level) {
                *passed += bytes;
            }
        }
    }
}

/// Among equals: whoever has sent least for its weight.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    levels: [Level; LEVELS],
    waiting: Levels,
}

#[derive(Debug, Default)]
struct Level {
    /// Who waits, by what it has sent so far for its weight.
    queue: Ascending<(u64, usize)>,
    /// What the last one had sent when its turn came: whoever comes anew begins here.
    floor: u64,
}

/// One who may have turns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) level: u8,
    pub(crate) weight: u8,
    /// What it has sent for its weight.
    spent: u64,
    waits: bool,
}

impl Turn {
    pub(crate) fn new(level: u8, weight: u8) -> Self {
        Self { level, weight, spent: 0, waits: false }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }
}

impl Turns {
    /// Levels at which somebody waits.
    pub(crate) fn waiting(&self) -> Levels {
        self.waiting
    }

    /// Returns who is next at a level, after so many others.
    pub(crate) fn at(&self, level: u8, others: usize) -> Option<usize> {
        self.levels[usize::from(level)].queue.get(others).map(|(_, who)| *who)
    }

    /// Returns who waits at a level if nobody else does.
    pub(crate) fn alone_at(&self, level: u8) -> Option<usize> {
        let queue = &self.levels[usize::from(level)].queue;
        queue.first().filter(|_| queue.get(1).is_none()).map(|(_, who)| *who)
    }

    /// One that waits has its turn soon: it has sent little more for its weight than the next.
    pub(crate) fn is_near(&self, turn: &Turn) -> bool {
        let next = self.levels[usize::from(turn.level)].queue.first();
        next.is_none_or(|(spent, _)| turn.spent <= spent.saturating_add(NEAR))
    }

    pub(crate) fn join(&mut self, who: usize, turn: &mut Turn) {
        if !turn.waits {
            let level = &mut self.levels[usize::from(turn.level)];
            turn.spent = turn.spent.max(level.floor);
            turn.waits = true;
            level.queue.insert((turn.spent, who));
            self.waiting |= 1 << turn.level;
        }
    }

    pub(crate) fn leave(&mut self, who: usize, turn: &mut Turn) {
        if turn.waits {
            let level = &mut self.levels[usize::from(turn.level)];
            level.queue.remove(&(turn.spent, who));
            turn.waits = false;
            if level.queue.is_empty() {
                self.waiting &= !(1 << turn.level);
            }
        }
    }

    /// Notes that one who waits has sent `bytes`; it goes on waiting.
    pub(crate) fn spend(&mut self, who: usize, turn: &mut Turn, bytes: u64) {
        let level = &mut self.levels[usize::from(turn.level)];
        level.floor = level.floor.max(turn.spent);
        level.queue.remove(&(turn.spent, who));
        turn.spent += bytes * 256 / u64::from(turn.weight.max(1));
        level.queue.insert((turn.spent, who));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_goes_first_and_each_other_gets_two_percent() {
        let mut ageing = Ageing::default();
        let mut sent = [0u64; LEVELS];
        for round in 0..200_000u64 {
            let level = ageing.choose(0xff).unwrap();
            let bytes = [1200, 100, 14_000][(round % 3) as usize];
            ageing.note(level, bytes, 0xff);
            sent[usize::from(level)] += bytes;
        }
        let all: u64 = sent.iter().sum();
        assert!(sent.iter().all(|bytes| bytes * 50 >= all), "{sent:?}");
        assert!(sent[0] * 5 >= all * 4, "{sent:?}");
    }

    #[test]
    fn a_level_that_does_not_wait_saves_nothing_up() {
        let mut ageing = Ageing::default();
        ageing.note(0, 1 << 20, 0b1);
        assert_eq!(ageing.choose(0b11), Some(0));
        ageing.note(0, FIRST_TURN as u64, 0b11);
        assert_eq!(ageing.choose(0b11), Some(1));
        ageing.note(1, 1000, 0b11);
        assert_eq!(ageing.choose(0b11), Some(0));
        assert_eq!(Ageing::default().choose(0), None);
    }

    #[test]
    fn a_level_that_sends_alone_settles_all_and_counts_anew_beside_others() {
        let mut ageing = Ageing::default();
        ageing.note(0, FIRST_TURN as u64, 0b11);
        assert_eq!(ageing.choose(0b11), Some(1));
        // The other one does not wait any more: what it had saved up is gone.
        ageing.note(0, 1, 0b1);
        ageing.note(0, 1 << 20, 0b1);
        assert_eq!(ageing.choose(0b11), Some(0));
        ageing.note(0, FIRST_TURN as u64, 0b11);
        assert_eq!(ageing.choose(0b11), Some(1));
        // The debt of one that sent beside a more urgent one ends when it sends alone.
        ageing.note(1, FIRST_TURN as u64, 0b11);
        ageing.note(1, 1, 0b10);
        ageing.note(1, 1, 0b10);
        ageing.note(0, FIRST_TURN as u64, 0b11);
        assert_eq!(ageing.choose(0b11), Some(1));
    }

    #[test]
    fn equals_share_by_weight_and_a_newcomer_does_not_catch_up() {
        let mut turns = Turns::default();
        let mut who = [Turn::new(3, 10), Turn::new(3, 30), Turn::new(3, 10)];
        turns.join(0, &mut who[0]);
        assert_eq!((turns.alone_at(3), turns.alone_at(2)), (Some(0), None));
        turns.join(1, &mut who[1]);
        assert_eq!(turns.alone_at(3), None);
        let run = |turns: &mut Turns, who: &mut [Turn; 3], rounds| {
            let mut sent = [0u32; 3];
            for _ in 0..rounds {
                let next = turns.at(3, 0).unwrap();
                turns.spend(next, &mut who[next], 1000);
                sent[next] += 1;
            }
            sent
        };
        let sent = run(&mut turns, &mut who, 400);
        assert!((99..=101).contains(&sent[0]), "{sent:?}");
        turns.join(2, &mut who[2]);
        let sent = run(&mut turns, &mut who, 500);
        assert!((98..=102).contains(&sent[2]) && (98..=102).contains(&sent[0]), "{sent:?}");
        (0..3).for_each(|n| turns.leave(n, &mut who[n]));
        assert_eq!(turns.waiting(), 0);
    }
}
