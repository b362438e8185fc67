//! How a session of a text protocol began: what its server said first, and the line of which its program has
//! a part. Another program, which begins anew, is given both.
//!
//! ```text
//! told = 0, greeting (2), part (2 + n), what the server said first
//! ```
//!
//! It stands where the head of HTTP stands, which no zero byte begins. A greeting is what was said before a
//! program had said anything; 65535 stands for all of it, where none has yet.

use super::message::LONGEST_HEAD;
use serde::{Deserialize, Serialize};

/// The most that is kept of what a server said first.
const LONGEST: usize = 7 * 1024;
/// The most that is kept of a line.
const LONGEST_LINE: usize = 1000;
/// What is told begins so. No text has this byte.
const MARK: u8 = 0;
/// In the place of a greeting's length: no program has said anything yet.
const ALL: u16 = u16::MAX;
/// What stands before the bytes that are told.
const FIELDS: usize = 1 + 2 + 2;

const _: () = assert!(FIELDS + LONGEST_LINE + LONGEST <= LONGEST_HEAD);

/// What a gateway keeps of it. By default nothing: so it is for a session whose beginning was not seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Beginning {
    /// No byte was seen that is none of a text, and it is not HTTP, which has a head of its own.
    is_text: bool,
    /// What the server said first.
    said: Vec<u8>,
    /// How much of that is a greeting, once a program has said something.
    greeting: Option<usize>,
    /// What the program has of a line.
    part: Vec<u8>,
    /// That is more than is kept.
    is_long: bool,
}

impl Beginning {
    /// Of a session in which nothing was said yet.
    pub(super) fn new() -> Self {
        Self { is_text: true, ..Self::default() }
    }

    /// Whether it is kept within its bounds, as one is that was not made here.
    pub(super) fn is_possible(&self) -> bool {
        let Self { said, part, greeting, .. } = self;
        said.len() <= LONGEST && part.len() <= LONGEST_LINE && greeting.is_none_or(|n| n <= said.len())
    }

    /// Whether it wants to know what a program has taken.
    pub(super) fn is_kept(&self) -> bool {
        self.is_text
    }

    /// The server says this.
    pub(super) fn sees(&mut self, bytes: &[u8]) {
        if !self.is_text || self.said.len() == LONGEST {
            return;
        }
        let room = LONGEST - self.said.len();
        self.said.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if self.said.contains(&MARK) || self.said.starts_with(b"HTTP/1.") {
            *self = Self::default();
        }
    }

    /// A program says something.
    pub(super) fn hears(&mut self) {
        if self.is_text && self.greeting.is_none() {
            self.greeting = Some(self.said.len());
        }
    }

    /// The program has taken this, which comes behind all that it took before.
    pub(super) fn takes(&mut self, bytes: &[u8]) {
        if !self.is_text {
            return;
        }
        let mut rest = bytes;
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            (self.part, self.is_long) = (Vec::new(), false);
            rest = &bytes[end + 1..];
        }
        self.is_long |= self.part.len() + rest.len() > LONGEST_LINE;
        if self.is_long {
            self.part = Vec::new();
        } else {
            self.part.extend_from_slice(rest);
        }
    }

    /// What a device is told that has the session from this offset on, which is where its program before is:
    /// all that was said first and will not come again. Nothing if that is none, or no text.
    pub(super) fn told(&self, offset: u64) -> Vec<u8> {
        let taken = usize::try_from(offset).unwrap_or(usize::MAX);
        if !self.is_text || taken == 0 {
            return Vec::new();
        }
        // What the program has of a line comes once.
        let until = taken.saturating_sub(self.part.len());
        let mut said = &self.said[..self.said.len().min(until)];
        if said.len() < until {
            // More was said than is kept: what is kept of its last line would run into what comes.
            said = &said[..said.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)];
        }
        let number = |n: usize| u16::try_from(n).unwrap_or(ALL);
        let greeting = self.greeting.map_or(ALL, |n| number(n.min(said.len())));
        let part = number(self.part.len());
        [&[MARK][..], &greeting.to_be_bytes(), &part.to_be_bytes(), &self.part, said].concat()
    }
}

/// What a device knows of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Begun {
    /// What the server said before a program had said anything.
    pub(super) greeting: Vec<u8>,
    /// What it said then.
    pub(super) answers: Vec<u8>,
    /// What the program before has of the line that goes on where the session does.
    pub(super) part: Vec<u8>,
    /// The server has heard something of a program, as far as that is known.
    pub(super) has_heard: bool,
}

impl Begun {
    /// Whether it is this that stands where the head of HTTP would.
    pub(super) fn is_in(head: &[u8]) -> bool {
        head.first() == Some(&MARK)
    }

    /// Of what stands where the head of HTTP would, in a session that goes on at this offset. `None` if
    /// nothing is known.
    pub(super) fn of(head: &[u8], offset: u64) -> Option<Self> {
        if offset == 0 {
            // All comes as it came.
            return Some(Self::default());
        }
        let ([MARK, g1, g2, p1, p2], rest) = head.split_first_chunk::<FIELDS>()? else { return None };
        let (greeting, part) = (u16::from_be_bytes([*g1, *g2]), u16::from_be_bytes([*p1, *p2]));
        let (part, said) = rest.split_at_checked(part.into())?;
        let has_heard = greeting != ALL;
        let greeting = if has_heard { usize::from(greeting) } else { said.len() };
        let (greeting, answers) = said.split_at_checked(greeting)?;
        let [greeting, answers, part] = [greeting, answers, part].map(<[u8]>::to_vec);
        Some(Self { greeting, answers, part, has_heard })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GREETING: &[u8] = b"* hello\r\nwho are you? ";
    const ANSWERS: &[u8] = b"* ada, then\r\n* bob is here\r\n";

    fn begun(beginning: &Beginning, offset: usize) -> Option<Begun> {
        Begun::of(&beginning.told(offset as u64), offset as u64)
    }

    #[test]
    fn a_beginning_is_told_up_to_the_line_of_which_the_program_has_a_part() {
        let all = [GREETING, ANSWERS].concat();
        for cut in 0..=all.len() {
            for taken in 1..=all.len() {
                let mut beginning = Beginning::new();
                // Whatever pieces it comes in; the server is heard before the program is.
                let (first, second) = GREETING.split_at(cut.min(GREETING.len()));
                beginning.sees(first);
                beginning.sees(second);
                beginning.hears();
                beginning.sees(ANSWERS);
                beginning.takes(&all[..cut.min(taken)]);
                beginning.takes(&all[cut.min(taken)..taken]);
                let Begun { greeting, answers, part, has_heard } = begun(&beginning, taken).unwrap();
                assert!(has_heard);
                assert!(GREETING.starts_with(&greeting) && ANSWERS.starts_with(&answers));
                assert_eq!([greeting, answers, part.clone()].concat(), all[..taken], "{cut} {taken}");
                assert!(
                    !part.contains(&b'\n') && (part.len() == taken || all[taken - part.len() - 1] == b'\n')
                );
            }
        }
    }

    #[test]
    fn whether_a_program_has_said_anything_is_told() {
        let mut beginning = Beginning::new();
        beginning.sees(GREETING);
        beginning.takes(GREETING);
        let (greeting, part) = (b"* hello\r\n".to_vec(), b"who are you? ".to_vec());
        let expected = Begun { greeting, part, ..Begun::default() };
        assert_eq!(begun(&beginning, GREETING.len()), Some(expected.clone()));
        beginning.hears();
        assert_eq!(begun(&beginning, GREETING.len()), Some(Begun { has_heard: true, ..expected }));
    }

    #[test]
    fn what_is_no_text_or_has_a_head_of_its_own_is_not_kept() {
        for said in [&b"220 \0"[..], b"\x16\x03\x03\0\x7a", b"HTTP/1.1 200 OK\r\n\r\n"] {
            let mut beginning = Beginning::new();
            said.iter().for_each(|byte| beginning.sees(&[*byte]));
            beginning.takes(said);
            assert_eq!((beginning.clone(), begun(&beginning, said.len())), (Beginning::default(), None));
        }
        // So it is for a session of a process that kept none.
        assert_eq!(begun(&Beginning::default(), 9), None);
        assert_eq!(begun(&Beginning::default(), 0), Some(Begun::default()), "all comes anyway");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut beginning = Beginning::new();
        let line = [&[b'x'; 99][..], b"\n"].concat().repeat(100);
        beginning.sees(&line);
        beginning.sees(&[0]);
        beginning.takes(&line);
        let known = begun(&beginning, line.len()).unwrap();
        assert_eq!((known.greeting.len(), known.part.len()), (LONGEST / 100 * 100, 0), "whole lines");
        beginning.takes(&[b'y'; LONGEST_LINE]);
        assert_eq!(begun(&beginning, line.len() + LONGEST_LINE).unwrap().part, [b'y'; LONGEST_LINE]);
        let told = beginning.told((line.len() + LONGEST_LINE) as u64);
        assert!(told.len() <= LONGEST_HEAD && beginning.is_possible());
        // A longer line is not given again, but what comes behind it is a line as others are.
        beginning.takes(b"y");
        beginning.takes(b"y");
        assert!(begun(&beginning, line.len() + LONGEST_LINE + 2).unwrap().part.is_empty());
        beginning.takes(b"y\nz");
        assert_eq!(begun(&beginning, line.len() + LONGEST_LINE + 5).unwrap().part, b"z");
    }

    #[test]
    fn what_cannot_be_told_is_known_as_nothing() {
        let told = Begun::of(&[0, 0, 1, 0, 1, b'p', b'g', b'a'], 3).unwrap();
        assert_eq!(
            (&told.part[..], &told.greeting[..], &told.answers[..]),
            (&b"p"[..], &b"g"[..], &b"a"[..])
        );
        for wrong in [&b""[..], b"HTTP/1.0 200 OK\r\n\r\n", &[0; 4], &[0, 0, 1, 0, 0], &[0, 0, 0, 0, 1]] {
            assert_eq!(Begun::of(wrong, 3), None, "{wrong:?}");
        }
        let impossible = Beginning { greeting: Some(1), ..Beginning::new() };
        assert!(!impossible.is_possible());
    }
}
