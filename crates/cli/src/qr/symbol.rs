//! The square: what is always there, the codewords, and the mask that makes it easy to read.

use super::codewords::Level;

const MASKS: usize = 8;
/// Dark and light modules as in the middle of a corner, with light ones on one side.
const LIKE_A_CORNER: [bool; 11] = [true, false, true, true, true, false, true, false, false, false, false];

/// A QR code.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    size: usize,
    dark: Vec<bool>,
    /// Whether a module is always so, and no part of a codeword.
    fixed: Vec<bool>,
}

impl Symbol {
    /// With the mask after which it is read best.
    pub(super) fn clearest(version: usize, level: Level, words: &[u8]) -> Self {
        let mut all = (0..MASKS).map(|mask| Self::new(version, level, words, mask));
        let first = all.next().unwrap_or_else(|| Self::new(version, level, words, 0));
        all.fold(first, |best, other| if other.penalty() < best.penalty() { other } else { best })
    }

    /// With this mask.
    pub(super) fn new(version: usize, level: Level, words: &[u8], mask: usize) -> Self {
        let size = 17 + 4 * version;
        let mut symbol = Self { size, dark: vec![false; size * size], fixed: vec![false; size * size] };
        symbol.draw_timing();
        symbol.draw_corners();
        symbol.draw_alignments(version);
        symbol.draw_version(version);
        symbol.draw_format(level, mask);
        symbol.draw_words(words);
        symbol.apply(mask);
        symbol
    }

    /// Modules on a side.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether a module is dark; the first is that on the upper left.
    pub(super) fn is_dark(&self, x: usize, y: usize) -> bool {
        self.dark[y * self.size + x]
    }

    fn fix(&mut self, x: usize, y: usize, dark: bool) {
        self.dark[y * self.size + x] = dark;
        self.fixed[y * self.size + x] = true;
    }

    fn draw_timing(&mut self) {
        for at in 0..self.size {
            self.fix(6, at, at % 2 == 0);
            self.fix(at, 6, at % 2 == 0);
        }
    }

    /// The three corners, and the light line around each.
    fn draw_corners(&mut self) {
        let far = self.size - 4;
        for (center_x, center_y) in [(3, 3), (far, 3), (3, far)] {
            for y in center_y.saturating_sub(4)..=(center_y + 4).min(self.size - 1) {
                for x in center_x.saturating_sub(4)..=(center_x + 4).min(self.size - 1) {
                    let ring = x.abs_diff(center_x).max(y.abs_diff(center_y));
                    self.fix(x, y, ring != 2 && ring != 4);
                }
            }
        }
    }

    fn draw_alignments(&mut self, version: usize) {
        if version == 1 {
            return;
        }
        let count = version / 7 + 2;
        let step = (version * 8 + count * 3 + 5) / (count * 4 - 4) * 2;
        let place = |number: usize| if number == 0 { 6 } else { self.size - 7 - (count - 1 - number) * step };
        let places: Vec<usize> = (0..count).map(place).collect();
        let last = count - 1;
        for (row, &center_y) in places.iter().enumerate() {
            for (column, &center_x) in places.iter().enumerate() {
                // Where the corners are there is none.
                if [(0, 0), (0, last), (last, 0)].contains(&(row, column)) {
                    continue;
                }
                for y in center_y - 2..=center_y + 2 {
                    for x in center_x - 2..=center_x + 2 {
                        let ring = x.abs_diff(center_x).max(y.abs_diff(center_y));
                        self.fix(x, y, ring != 1);
                    }
                }
            }
        }
    }

    fn draw_version(&mut self, version: usize) {
        if version < 7 {
            return;
        }
        let rest = (0..12).fold(version, |rest, _| (rest << 1) ^ ((rest >> 11) * 0x1f25));
        let bits = (version << 12) | rest;
        for at in 0..18 {
            let (far, near) = (self.size - 11 + at % 3, at / 3);
            let dark = (bits >> at) & 1 == 1;
            self.fix(far, near, dark);
            self.fix(near, far, dark);
        }
    }

    /// The level and the mask, twice.
    fn draw_format(&mut self, level: Level, mask: usize) {
        let format = (level.number() << 3) | mask;
        let rest = (0..10).fold(format, |rest, _| (rest << 1) ^ ((rest >> 9) * 0x537));
        let bits = ((format << 10) | rest) ^ 0x5412;
        let bit = |at: usize| (bits >> at) & 1 == 1;
        let around = [0, 1, 2, 3, 4, 5, 7, 8].map(|y| (8, y));
        let along = [7, 5, 4, 3, 2, 1, 0].map(|x| (x, 8));
        for (at, (x, y)) in around.into_iter().chain(along).enumerate() {
            self.fix(x, y, bit(at));
        }
        for at in 0..8 {
            self.fix(self.size - 1 - at, 8, bit(at));
        }
        for at in 8..15 {
            self.fix(8, self.size - 15 + at, bit(at));
        }
        self.fix(8, self.size - 8, true);
    }

    /// The places of codewords' bits: in columns of two, up and down, from the right.
    fn places(&self) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        // The column of the timing pattern has none.
        let columns = (0..self.size).rev().filter(|column| *column != 6).collect::<Vec<_>>();
        for (number, columns) in columns.chunks(2).enumerate() {
            for row in 0..self.size {
                let y = if number % 2 == 0 { self.size - 1 - row } else { row };
                places
                    .extend(columns.iter().map(|x| (*x, y)).filter(|(x, y)| !self.fixed[y * self.size + x]));
            }
        }
        places
    }

    fn draw_words(&mut self, words: &[u8]) {
        let bits = words.iter().flat_map(|word| (0..8).rev().map(move |at| (word >> at) & 1 == 1));
        for ((x, y), dark) in self.places().into_iter().zip(bits) {
            self.dark[y * self.size + x] = dark;
        }
    }

    fn apply(&mut self, mask: usize) {
        for (x, y) in self.places() {
            let flips = match mask {
                0 => (x + y) % 2 == 0,
                1 => y % 2 == 0,
                2 => x % 3 == 0,
                3 => (x + y) % 3 == 0,
                4 => (x / 3 + y / 2) % 2 == 0,
                5 => x * y % 2 + x * y % 3 == 0,
                6 => (x * y % 2 + x * y % 3) % 2 == 0,
                _ => ((x + y) % 2 + x * y % 3) % 2 == 0,
            };
            self.dark[y * self.size + x] ^= flips;
        }
    }

    /// How hard it is to read: less is better.
    fn penalty(&self) -> usize {
        let mut penalty = 0;
        for at in 0..self.size {
            let row: Vec<bool> = (0..self.size).map(|x| self.is_dark(x, at)).collect();
            let column: Vec<bool> = (0..self.size).map(|y| self.is_dark(at, y)).collect();
            penalty += of_line(&row) + of_line(&column);
        }
        for y in 1..self.size {
            for x in 1..self.size {
                let dark = self.is_dark(x, y);
                let others = [(x - 1, y), (x, y - 1), (x - 1, y - 1)];
                penalty += 3 * usize::from(others.iter().all(|(x, y)| self.is_dark(*x, *y) == dark));
            }
        }
        let dark = self.dark.iter().filter(|dark| **dark).count();
        let percent = dark * 100 / self.dark.len();
        penalty + percent.abs_diff(50) / 5 * 10
    }
}

/// Long runs of one colour, and what looks like a corner.
fn of_line(line: &[bool]) -> usize {
    let runs = line.chunk_by(|one, other| one == other).map(<[bool]>::len);
    let runs: usize = runs.filter(|length| *length >= 5).map(|length| length - 2).sum();
    let is_corner =
        |window: &&[bool]| window.iter().eq(&LIKE_A_CORNER) || window.iter().rev().eq(&LIKE_A_CORNER);
    runs + 40 * line.windows(LIKE_A_CORNER.len()).filter(is_corner).count()
}
