#![allow(clippy::unwrap_used)]

use super::codewords::of;
use super::*;

/// `length` letters.
fn text(length: usize) -> String {
    (0..length).map(|at| char::from(b'a' + (at % 26) as u8)).collect()
}

/// FNV-1a of the modules with each mask, row by row.
fn hash(text: &str, version: usize, level: Level) -> u64 {
    let words = of(text.as_bytes(), version, level).unwrap();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for mask in 0..8 {
        let symbol = Symbol::new(version, level, &words, mask);
        for (y, x) in (0..symbol.size()).flat_map(|y| (0..symbol.size()).map(move |x| (y, x))) {
            hash = (hash ^ u64::from(symbol.is_dark(x, y))).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

/// As the Python package `qrcode` 8.2 makes them, which others' readers read.
#[test]
fn symbols_are_those_of_another_program() {
    for (length, level, version, known) in [
        (20, Level::M, 2, 0x3de7_c011_2595_6aae),
        (100, Level::L, 5, 0xaf6d_7871_fe60_1ffa),
        (200, Level::M, 10, 0x6bb1_9286_fb67_d62c),
        (300, Level::L, 11, 0xddcb_3233_18e1_9aff),
        (640, Level::L, 17, 0xe8db_cbf0_424e_10ae),
    ] {
        assert_eq!(hash(&text(length), version, level), known, "{length} letters");
    }
}

/// What stands in the lines of half blocks, without what is around it: `true` is dark.
fn modules(lines: &[String]) -> Vec<Vec<bool>> {
    let mut rows = Vec::new();
    for line in lines {
        rows.push(line.chars().map(|c| matches!(c, '█' | '▀')).collect::<Vec<_>>());
        rows.push(line.chars().map(|c| matches!(c, '█' | '▄')).collect());
    }
    let size = rows[0].len() - 2 * QUIET;
    let around = rows
        .iter()
        .enumerate()
        .flat_map(|(y, row)| row.iter().enumerate().map(move |(x, dark)| (x, y, dark)));
    let inside = QUIET..QUIET + size;
    for (x, y, dark) in around {
        assert!(!dark || (inside.contains(&x) && inside.contains(&y)), "nothing is around it");
    }
    rows[inside.clone()].iter().map(|row| row[inside.clone()].to_vec()).collect()
}

/// Reads a symbol of one block, as a camera's program does, but for the correction.
fn read(modules: &[Vec<bool>]) -> String {
    let size = modules.len();
    let at = |x: usize, y: usize| modules[y][x];
    // The mask stands beside the upper left corner.
    let bits = [(2, 8), (3, 8), (4, 8)].map(|(x, y)| usize::from(at(x, y)));
    let mask = ((bits[0] << 2) | (bits[1] << 1) | bits[2]) ^ 0b101;
    let flips = |x: usize, y: usize| match mask {
        0 => (x + y).is_multiple_of(2),
        1 => y.is_multiple_of(2),
        2 => x.is_multiple_of(3),
        3 => (x + y).is_multiple_of(3),
        4 => (x / 3 + y / 2).is_multiple_of(2),
        5 => (x * y) % 2 + (x * y) % 3 == 0,
        6 => ((x * y) % 2 + (x * y) % 3).is_multiple_of(2),
        _ => ((x + y) % 2 + (x * y) % 3).is_multiple_of(2),
    };
    // Versions 2 to 6 have one small square in the lower right.
    let small = size - 9..=size - 5;
    let is_fixed = |x: usize, y: usize| {
        let (left, right) = (x < 9, x + 8 >= size);
        let corner = if y < 9 { left || right } else { left && y + 8 >= size };
        corner || x == 6 || y == 6 || (small.contains(&x) && small.contains(&y))
    };
    let (mut read, mut column, mut up) = (Vec::new(), size - 1, true);
    loop {
        for step in 0..size {
            let y = if up { size - 1 - step } else { step };
            for x in [column, column - 1] {
                if !is_fixed(x, y) {
                    read.push(at(x, y) ^ flips(x, y));
                }
            }
        }
        up = !up;
        column = match column {
            1 => break,
            8 => 5,
            column => column - 2,
        };
    }
    let byte = |from: usize| read[from..from + 8].iter().fold(0, |byte, bit| (byte << 1) | u8::from(*bit));
    assert_eq!(byte(0) >> 4, 0b0100, "it is not in bytes");
    let length = usize::from(byte(4));
    String::from_utf8((0..length).map(|at| byte(12 + 8 * at)).collect()).unwrap()
}

#[test]
fn what_is_printed_is_read_again() {
    for text in ["harvest-otter-violin", "abandon-ability-able-about-above-absent", "ä"] {
        let lines = lines(text, 80).unwrap();
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        let modules = modules(&lines);
        // The smallest has no small square, and the first of these are of versions 1 to 3.
        if modules.len() > 21 {
            assert_eq!(read(&modules), text);
        }
    }
}

#[test]
fn what_is_too_long_or_too_wide_is_not_printed() {
    assert!(smallest(text(858).as_bytes()).is_some());
    assert!(smallest(text(859).as_bytes()).is_none());
    let ticket = text(300);
    assert!(lines(&ticket, 60).is_none());
    assert!(lines(&ticket, 80).is_some());
}
