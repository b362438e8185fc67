//! The adapter for protocols of lines: what a program hears that begins one anew, in a session that is long
//! under way. What it says to begin is answered by what the server said then, and the server does not hear it
//! again.
//!
//! IRC is known by its welcome. Of other protocols the program's first lines are its own beginning, as many
//! as the user says: each is answered by the next line that the server had said.

mod irc;

use super::beginning::Begun;
use irc::{Heard, Irc};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

/// For a program to begin. The gateway waits for ten seconds, until this device says that a program is there.
const LIMIT: Duration = Duration::from_secs(6);
/// The most that a program says until it has begun.
const LONGEST: usize = 16 * 1024;
/// What is read at once.
const READ: usize = 1024;

/// There is nothing to answer a program with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "how the session began is not known: its server says no text, or the gateway is older; take it as raw"
)]
pub struct NoBeginning;

/// A program that begins anew.
pub struct Anew {
    protocol: Protocol,
    /// For the program.
    answers: Vec<u8>,
    /// For the server.
    passed_on: Vec<u8>,
    /// Of the program, and no whole line yet.
    line: Vec<u8>,
    /// The line with which the session goes on, as far as the program before has it.
    part: Vec<u8>,
    heard: usize,
}

/// What is known of the beginning.
enum Protocol {
    Irc(Irc),
    /// So many lines of the program, and the server's lines that answer them, the next one last.
    Lines {
        left: u16,
        answers: Vec<Vec<u8>>,
    },
    Begun,
}

impl Anew {
    /// In a session that goes on at this offset, of which the gateway told this. So many first lines of the
    /// program are its own beginning, if it does not speak IRC and the server was told something before.
    pub(super) fn new(head: &[u8], offset: u64, own_lines: u16) -> Result<Self, NoBeginning> {
        let Begun { greeting, answers, part, has_heard } = Begun::of(head, offset).ok_or(NoBeginning)?;
        let (protocol, first) = match Irc::of(&[&greeting[..], &answers[..]].concat()) {
            Some(irc) => {
                let first = irc.notices().to_vec();
                (Protocol::Irc(irc), first)
            }
            None => {
                let lines = answers.split_inclusive(|byte| *byte == b'\n').rev().map(<[u8]>::to_vec);
                // A server that has heard nothing yet waits for these lines.
                let left = if has_heard { own_lines } else { 0 };
                (Protocol::Lines { left, answers: lines.collect() }, greeting)
            }
        };
        let (passed_on, line) = (Vec::new(), Vec::new());
        let mut anew = Self { protocol, answers: first, passed_on, line, part, heard: 0 };
        if let Protocol::Lines { left: 0, .. } = anew.protocol {
            anew.begins();
        }
        Ok(anew)
    }

    /// Lets a program begin: answers what it says until then. Returns what of that is for the server. One
    /// that says nothing more for six seconds has begun.
    ///
    /// # Errors
    /// When the program ends, or says too much without having begun.
    pub async fn begin(self, program: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<Vec<u8>> {
        self.begin_within(program, LIMIT).await
    }

    async fn begin_within(
        mut self,
        program: &mut (impl AsyncRead + AsyncWrite + Unpin),
        limit: Duration,
    ) -> io::Result<Vec<u8>> {
        let until = Instant::now() + limit;
        loop {
            let answers = std::mem::take(&mut self.answers);
            let written = timeout_at(until, program.write_all(&answers)).await;
            written.map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
            if let Protocol::Begun = self.protocol {
                return Ok(self.passed_on);
            }
            let mut some = [0; READ];
            match timeout_at(until, program.read(&mut some)).await {
                Ok(read) => match read? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    n => self.hears(&some[..n])?,
                },
                Err(_) => self.begins(),
            }
        }
    }

    /// The program says this.
    fn hears(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.heard += bytes.len();
        if self.heard > LONGEST {
            let text = "the program says too much before it has begun";
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Protocol::Begun = self.protocol {
                self.passed_on.extend_from_slice(rest);
                break;
            }
            let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
            let (some, behind) = rest.split_at(end);
            rest = behind;
            self.line.extend_from_slice(some);
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.hears_line(&line);
            }
        }
        Ok(())
    }

    fn hears_line(&mut self, line: &[u8]) {
        let has_begun = match &mut self.protocol {
            Protocol::Irc(irc) => {
                match irc.hears(line) {
                    Heard::Answered(answer) => self.answers.extend_from_slice(&answer),
                    Heard::Other => self.passed_on.extend_from_slice(line),
                }
                irc.is_registered()
            }
            Protocol::Lines { left, answers } => {
                *left = left.saturating_sub(1);
                self.answers.extend_from_slice(&answers.pop().unwrap_or_default());
                *left == 0
            }
            Protocol::Begun => false,
        };
        if has_begun {
            self.begins();
        }
    }

    /// From now on all is passed on, in both directions.
    fn begins(&mut self) {
        if let Protocol::Irc(irc) = std::mem::replace(&mut self.protocol, Protocol::Begun) {
            self.answers.extend_from_slice(irc.welcome());
        }
        self.answers.append(&mut self.part);
        self.passed_on.append(&mut self.line);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sessions::beginning::Beginning;

    /// What a gateway tells of a session whose server has said this, the first part unasked, and whose
    /// program has taken all of it.
    fn told(greeting: &[u8], then: &[u8]) -> (Vec<u8>, u64) {
        let mut beginning = Beginning::new();
        beginning.sees(greeting);
        beginning.hears();
        beginning.sees(then);
        let all = [greeting, then].concat();
        beginning.takes(&all);
        (beginning.told(all.len() as u64), all.len() as u64)
    }

    fn anew(greeting: &[u8], then: &[u8], own_lines: u16) -> Anew {
        let (head, offset) = told(greeting, then);
        Anew::new(&head, offset, own_lines).unwrap()
    }

    /// What a program heard and what the server did, of a program that says this in two pieces.
    fn said(mut anew: Anew, words: &[u8], cut: usize) -> (String, String) {
        anew.hears(&words[..cut]).unwrap();
        anew.hears(&words[cut..]).unwrap();
        assert!(matches!(anew.protocol, Protocol::Begun), "it has begun");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(anew.answers), text(anew.passed_on))
    }

    #[test]
    fn a_program_registers_with_irc_once_more_however_its_words_are_cut() {
        let welcome =
            b":s 001 ada :Welcome\r\n:s 422 ada :none\r\n:ada!a@h JOIN #a\r\n:bob!b@h PRIVMSG #a :he";
        let words = b"CAP LS 302\r\nNICK x\r\nUSER x 0 * :x\r\nCAP END\r\nJOIN #a\r\nPRIVMSG #a :h";
        for cut in 0..=words.len() {
            let (heard, passed_on) = said(anew(b"NOTICE * :wait\r\n", welcome, 0), words, cut);
            let expected = "NOTICE * :wait\r\n:s CAP * LS :\r\n:s 001 ada :Welcome\r\n:s 422 ada :none\r\n\
                            :bob!b@h PRIVMSG #a :he";
            assert_eq!((&heard[..], &passed_on[..]), (expected, "JOIN #a\r\nPRIVMSG #a :h"), "cut at {cut}");
        }
    }

    #[test]
    fn a_program_says_its_own_lines_once_more_and_each_is_answered_by_one() {
        let words = b"ada\r\nsecret\nhello\r\nwor";
        for cut in 0..=words.len() {
            let anew = anew(b"name?\r\n", b"password?\r\nwelcome\r\nbob: hi\r\n", 2);
            let (heard, passed_on) = said(anew, words, cut);
            assert_eq!(heard, "name?\r\npassword?\r\nwelcome\r\n", "cut at {cut}");
            assert_eq!(passed_on, "hello\r\nwor", "cut at {cut}");
        }
    }

    #[test]
    fn a_program_that_has_no_lines_of_its_own_hears_the_greeting_and_the_line_that_goes_on() {
        let words = b"hello\r\n";
        for cut in 0..=words.len() {
            let (heard, passed_on) = said(anew(b"* welcome\r\n", b"bob: one\r\nbob: tw", 0), words, cut);
            assert_eq!((&heard[..], &passed_on[..]), ("* welcome\r\nbob: tw", "hello\r\n"));
        }
        // A session in which nothing was taken yet: all comes as it came.
        assert_eq!(said(Anew::new(b"", 0, 0).unwrap(), words, 3), (String::new(), "hello\r\n".to_owned()));
        assert_eq!(Anew::new(b"", 9, 0).err(), Some(NoBeginning));
        assert_eq!(Anew::new(b"HTTP/1.0 200 OK\r\n\r\n", 9, 0).err(), Some(NoBeginning));
    }

    #[test]
    fn where_no_program_has_said_anything_its_own_lines_are_for_the_server() {
        let mut beginning = Beginning::new();
        beginning.sees(b"hello\r\nname? ");
        beginning.takes(b"hello\r\nname? ");
        let anew = Anew::new(&beginning.told(13), 13, 1).unwrap();
        let (heard, passed_on) = said(anew, b"ada\r\n", 2);
        assert_eq!((&heard[..], &passed_on[..]), ("hello\r\nname? ", "ada\r\n"));
        let (_, passed_on) = said(Anew::new(b"", 0, 1).unwrap(), b"ada\r\n", 2);
        assert_eq!(passed_on, "ada\r\n");
    }

    #[tokio::test]
    async fn a_program_that_says_nothing_has_begun_and_one_that_ends_or_says_too_much_has_not() {
        let irc = || anew(b"", b":s 001 ada :Welcome\r\n:s 422 ada :none\r\n", 0);
        let (mut program, mut own) = tokio::io::duplex(64 * 1024);
        program.write_all(b"NICK x\r\nPRIV").await.unwrap();
        let begun = irc().begin_within(&mut own, Duration::from_millis(50)).await;
        assert_eq!(begun.unwrap(), b"PRIV");
        drop(own);
        let mut heard = Vec::new();
        program.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b":s 001 ada :Welcome\r\n:s 422 ada :none\r\n");

        let (program, mut own) = tokio::io::duplex(64 * 1024);
        drop(program);
        assert_eq!(irc().begin(&mut own).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let (mut program, mut own) = tokio::io::duplex(64 * 1024);
        program.write_all(&[b'x'; LONGEST + 1]).await.unwrap();
        assert_eq!(irc().begin(&mut own).await.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
