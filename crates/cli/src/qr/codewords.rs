//! Bytes as codewords: in byte mode, with Reed-Solomon correction, interleaved.

/// The largest version here: its 97 modules and what is around them fill a wide terminal.
pub(super) const MAX_VERSION: usize = 20;

/// Codewords of correction in a block, for each version from 1 on.
const CORRECTION: [[usize; MAX_VERSION]; 2] = [
    [7, 10, 15, 20, 26, 18, 20, 24, 30, 18, 20, 24, 26, 30, 22, 24, 28, 30, 28, 28],
    [10, 16, 26, 18, 24, 16, 18, 22, 22, 26, 30, 22, 22, 24, 24, 28, 28, 26, 26, 26],
];
/// Blocks, likewise.
const BLOCKS: [[usize; MAX_VERSION]; 2] = [
    [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8],
    [1, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5, 8, 9, 9, 10, 10, 11, 13, 14, 16],
];
/// What is behind the data, in turn.
const PADDING: [u8; 2] = [0xec, 0x11];
const BYTE_MODE: usize = 0b0100;

/// How much of a symbol may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// 7 %.
    L,
    /// 15 %.
    M,
}

impl Level {
    /// Its number in a symbol.
    pub(super) fn number(self) -> usize {
        match self {
            Self::L => 1,
            Self::M => 0,
        }
    }

    fn row(self) -> usize {
        match self {
            Self::L => 0,
            Self::M => 1,
        }
    }
}

/// Codewords that a symbol has room for.
fn room(version: usize) -> usize {
    let mut modules = (16 * version + 128) * version + 64;
    if version >= 2 {
        let alignments = version / 7 + 2;
        modules -= (25 * alignments - 10) * alignments - 55;
    }
    if version >= 7 {
        modules -= 36;
    }
    modules / 8
}

/// The codewords of a symbol with these bytes; `None` if they do not fit.
pub(super) fn of(bytes: &[u8], version: usize, level: Level) -> Option<Vec<u8>> {
    let (correction, blocks) = (CORRECTION[level.row()][version - 1], BLOCKS[level.row()][version - 1]);
    let data = data(bytes, version, room(version) - correction * blocks)?;
    let divisor = divisor(correction);
    // The first blocks are one shorter where they are not all alike.
    let (short, longer) = (data.len() / blocks, data.len() % blocks);
    let (mut parts, mut rest) = (Vec::new(), data.as_slice());
    for block in 0..blocks {
        let (part, behind) = rest.split_at(short + usize::from(block >= blocks - longer));
        parts.push((part, remainder(part, &divisor)));
        rest = behind;
    }
    let mut words = Vec::with_capacity(room(version));
    for at in 0..=short {
        words.extend(parts.iter().filter_map(|(part, _)| part.get(at)));
    }
    for at in 0..correction {
        words.extend(parts.iter().filter_map(|(_, correction)| correction.get(at)));
    }
    Some(words)
}

/// The bytes with their mode, their number and what fills them up.
fn data(bytes: &[u8], version: usize, room: usize) -> Option<Vec<u8>> {
    let number_bits = if version < 10 { 8 } else { 16 };
    let mut bits = Vec::new();
    let mut push =
        |value: usize, count: usize| bits.extend((0..count).rev().map(|at| (value >> at) & 1 == 1));
    push(BYTE_MODE, 4);
    push(bytes.len(), number_bits);
    bytes.iter().for_each(|byte| push(usize::from(*byte), 8));
    if bytes.len() >> number_bits != 0 || bits.len() > room * 8 {
        return None;
    }
    let end = (bits.len() + 4).min(room * 8);
    bits.resize(end.next_multiple_of(8), false);
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| (byte << 1) | u8::from(*bit));
    let mut data: Vec<u8> = bits.chunks(8).map(byte).collect();
    let missing = room - data.len();
    data.extend(PADDING.iter().cycle().take(missing));
    Some(data)
}

/// The product in the field of 256 elements, by x⁸ + x⁴ + x³ + x² + 1.
fn product(one: u8, other: u8) -> u8 {
    (0..8).rev().fold(0_u8, |sum, at| {
        let doubled = (sum << 1) ^ ((sum >> 7) * 0x1d);
        doubled ^ (((other >> at) & 1) * one)
    })
}

/// The polynomial whose roots are the first powers of 2; its highest coefficient, which is 1, is left out.
fn divisor(degree: usize) -> Vec<u8> {
    let mut divisor = vec![0; degree];
    divisor[degree - 1] = 1;
    let mut root = 1;
    for _ in 0..degree {
        for at in 0..degree {
            let next = divisor.get(at + 1).copied().unwrap_or(0);
            divisor[at] = product(divisor[at], root) ^ next;
        }
        root = product(root, 2);
    }
    divisor
}

/// What is left of the data, as a polynomial, behind the division: its correction.
fn remainder(data: &[u8], divisor: &[u8]) -> Vec<u8> {
    let mut rest = vec![0; divisor.len()];
    for byte in data {
        let factor = byte ^ rest[0];
        rest.rotate_left(1);
        if let Some(last) = rest.last_mut() {
            *last = 0;
        }
        for (rest, divisor) in rest.iter_mut().zip(divisor) {
            *rest ^= product(*divisor, factor);
        }
    }
    rest
}
