//! What changes whenever time passes, four nodes side by side, so that progress (7) is one straight loop that
//! the compiler turns into vector instructions.

use super::node::At;
use super::whole;

/// Nodes in a block.
const WIDTH: usize = 4;

/// A number that each node has.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    /// Rate given.
    Grant,
    /// Congestion window in bytes.
    Window,
    /// Bytes outstanding of the head of the queue.
    Left,
    /// Bytes outstanding of the whole queue.
    Queued,
    /// Bytes moved so far.
    Moved,
    /// When the grant was last set.
    GrantedAt,
    /// `Moved` at that moment.
    MovedThen,
    /// The most recently computed completion time. Never cleared (7.3).
    Eta,
    /// 1 for a busy channel whose bytes move, else 0.
    Moves,
    /// 1 if the window grows by the bytes that move (plain TCP in slow start), else 0.
    Grows,
    /// 1 if the window grows by the grant alone (a subflow in slow start), else 0.
    GrowsByGrant,
    /// When the pending event is due; infinite if there is none.
    Timer,
}

const FIELDS: usize = 12;

#[derive(Debug, Clone, Copy)]
struct Block([[f64; WIDTH]; FIELDS]);

/// The numbers of all nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Lanes {
    blocks: Vec<Block>,
}

impl Lanes {
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.blocks.clone_from(&other.blocks);
    }

    /// All numbers of a node to 0, no time of completion.
    pub(super) fn reset(&mut self, at: At) {
        let block = usize::from(at) / WIDTH;
        if block == self.blocks.len() {
            self.blocks.push(Block([[0.0; WIDTH]; FIELDS]));
            self.blocks[block].0[Field::Timer as usize] = [f64::INFINITY; WIDTH];
        }
        for field in &mut self.blocks[block].0 {
            field[usize::from(at) % WIDTH] = 0.0;
        }
        self.set(at, Field::Eta, f64::NAN);
        self.set(at, Field::Timer, f64::INFINITY);
    }

    #[inline(always)]
    pub(super) fn get(&self, at: At, field: Field) -> f64 {
        self.blocks[usize::from(at) / WIDTH].0[field as usize][usize::from(at) % WIDTH]
    }

    #[inline(always)]
    pub(super) fn set(&mut self, at: At, field: Field, value: f64) {
        self.blocks[usize::from(at) / WIDTH].0[field as usize][usize::from(at) % WIDTH] = value;
    }

    /// The moment for which the first timer is set; infinite if none is.
    #[inline]
    pub(super) fn earliest(&self) -> f64 {
        let mut least = [f64::INFINITY; WIDTH];
        for block in &self.blocks {
            for (least, &timer) in least.iter_mut().zip(&block.0[Field::Timer as usize]) {
                *least = if timer < *least { timer } else { *least };
            }
        }
        least.into_iter().fold(f64::INFINITY, |least, timer| if timer < least { timer } else { least })
    }

    /// The node whose timer is set for this moment, if there is exactly one.
    #[inline]
    pub(super) fn only_due(&self, moment: f64) -> Option<At> {
        let (mut count, mut sum) = (0, 0);
        for (n, block) in self.blocks.iter().enumerate() {
            for (lane, &timer) in block.0[Field::Timer as usize].iter().enumerate() {
                let due = usize::from(timer == moment);
                count += due;
                sum += due * (n * WIDTH + lane);
            }
        }
        (count == 1).then_some(sum as At)
    }

    /// 7.1 to 7.4 for everything: time goes on by `elapsed` until `end`.
    #[inline]
    pub(super) fn progress(&mut self, elapsed: f64, end: f64) {
        for Block(
            [grant, window, left, queued, moved, granted_at, moved_then, eta, moves, grows, by_grant, _],
        ) in &mut self.blocks
        {
            let idle = moves.iter().chain(grant.iter()).fold(0, |all, number| all | number.to_bits()) == 0;
            if idle {
                continue;
            }
            for n in 0..WIDTH {
                let amount = whole(grant[n] * elapsed);
                let cap = moved_then[n] + whole(grant[n] * (end - granted_at[n]));
                let excess = positive(moved[n] + amount - cap);
                let due = positive(amount - excess);
                // No short circuit: this must stay a straight line.
                let all = (due >= left[n]) | (end == eta[n]);
                let bytes = if all { left[n] } else { due } * moves[n];
                left[n] -= bytes;
                queued[n] -= bytes;
                moved[n] += bytes;
                window[n] += bytes * grows[n] + amount * by_grant[n];
            }
        }
    }
}

#[inline(always)]
fn positive(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.0 }
}
