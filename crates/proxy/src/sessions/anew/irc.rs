//! A registration with an IRC server (RFC 2812, §3.1, and capabilities of IRCv3), answered a second time.

/// What a program hears in the place of the server, which knows it already.
pub(super) struct Irc {
    /// Of the server, as its welcome names it.
    name: Vec<u8>,
    /// What the server had to say at once.
    notices: Vec<u8>,
    /// Its answers to the registration, up to the end of its message of the day.
    welcome: Vec<u8>,
    has_nick: bool,
    has_user: bool,
    /// The program asks for capabilities, and did not say that this is all.
    is_asking: bool,
}

/// What becomes of a program's line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is a part of the registration, and the answer is this.
    Answered(Vec<u8>),
    /// It is for the server.
    Other,
}

impl Irc {
    /// Of what the server said first. `None` if that is no welcome of IRC.
    pub(super) fn of(said: &[u8]) -> Option<Self> {
        let (mut notices, mut welcome, mut names) = (Vec::new(), Vec::new(), None);
        for line in said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let Message { bare, source, command, rest } = Message::of(line);
            let number = number(command);
            if number == Some(1) && !source.is_empty() && names.is_none() {
                names = Some((source.to_vec(), word(rest).0.to_vec()));
            }
            match names {
                None if command == b"NOTICE" => put(&mut notices, bare),
                Some(_) if number.is_some_and(is_of_welcome) => put(&mut welcome, bare),
                _ => {}
            }
            if names.is_some() && number.is_some_and(is_last) {
                break;
            }
        }
        let (name, nick) = names?;
        let is_whole = welcome.split(|byte| *byte == b'\n').any(|line| {
            let number = number(Message::of(line).command);
            number.is_some_and(is_last)
        });
        if !is_whole {
            // More was said than is kept. Programs wait for the end.
            let last = [&b":"[..], &name, b" 376 ", &nick, b" :End of /MOTD command."].concat();
            put(&mut welcome, &last);
        }
        Some(Self { name, notices, welcome, has_nick: false, has_user: false, is_asking: false })
    }

    /// What a program hears before it says anything.
    pub(super) fn notices(&self) -> &[u8] {
        &self.notices
    }

    /// What it hears once it is registered.
    pub(super) fn welcome(&self) -> &[u8] {
        &self.welcome
    }

    /// Whether a program has said all that registers it.
    pub(super) fn is_registered(&self) -> bool {
        self.has_nick && self.has_user && !self.is_asking
    }

    /// The program says this line.
    pub(super) fn hears(&mut self, line: &[u8]) -> Heard {
        let Message { command, rest, .. } = Message::of(line);
        match &command.to_ascii_uppercase()[..] {
            b"NICK" => self.has_nick = true,
            b"USER" => self.has_user = true,
            b"PASS" | b"AUTHENTICATE" | b"WEBIRC" => {}
            b"CAP" => return Heard::Answered(self.capabilities(rest)),
            _ => return Heard::Other,
        }
        Heard::Answered(Vec::new())
    }

    /// There are none: those of the session are of the program that began it.
    fn capabilities(&mut self, asked: &[u8]) -> Vec<u8> {
        let (what, rest) = word(asked);
        let (answer, names) = match &what.to_ascii_uppercase()[..] {
            b"LS" => (&b"LS"[..], &b""[..]),
            b"REQ" => (&b"NAK"[..], rest.strip_prefix(b":").unwrap_or(rest)),
            b"END" => {
                self.is_asking = false;
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        self.is_asking = true;
        [&b":"[..], &self.name, b" CAP * ", answer, b" :", names, b"\r\n"].concat()
    }
}

/// A line of IRC.
struct Message<'a> {
    /// The line without its tags, and its end.
    bare: &'a [u8],
    source: &'a [u8],
    command: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    fn of(line: &'a [u8]) -> Self {
        let mut bare = line.trim_ascii();
        if bare.starts_with(b"@") {
            bare = word(bare).1;
        }
        let (first, behind) = word(bare);
        let (source, (command, rest)) = match first.strip_prefix(b":") {
            Some(source) => (source, word(behind)),
            None => (&b""[..], (first, behind)),
        };
        Self { bare, source, command, rest }
    }
}

/// The first word, and what is behind it.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, rest.trim_ascii_start())
}

fn put(lines: &mut Vec<u8>, line: &[u8]) {
    lines.extend_from_slice(line);
    lines.extend_from_slice(b"\r\n");
}

fn number(command: &[u8]) -> Option<u16> {
    let is_number = command.len() == 3 && command.iter().all(u8::is_ascii_digit);
    is_number.then(|| command.iter().fold(0, |number, digit| 10 * number + u16::from(digit - b'0')))
}

/// Of the welcome: what the server is, who is there, and its message of the day.
fn is_of_welcome(number: u16) -> bool {
    matches!(number, 1..=5 | 250..=266 | 372 | 375) || is_last(number)
}

/// The end of the message of the day, or that there is none.
fn is_last(number: u16) -> bool {
    matches!(number, 376 | 422)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(said: &str) -> Option<Irc> {
        Irc::of(said.as_bytes())
    }

    fn answer(irc: &mut Irc, line: &str) -> Option<String> {
        match irc.hears(line.as_bytes()) {
            Heard::Answered(answer) => Some(String::from_utf8(answer).unwrap()),
            Heard::Other => None,
        }
    }

    #[test]
    fn a_welcome_is_repeated_without_what_was_said_to_the_first_program_alone() {
        let said = "NOTICE AUTH :*** a notice\r\n:s CAP * LS :sasl\r\nPING :cookie\r\n:s 433 * ada :in use\r\n\
                    @time=1 :s 001 ada_ :Welcome\r\n:s 005 ada_ A B :are known\r\n:ada_!a@h MODE ada_ +i\r\n\
                    :s 375 ada_ :-\r\n:s 372 ada_ :- hello\r\n:s 376 ada_ :End\r\n:s 001 x :y\r\n";
        let irc = of(said).unwrap();
        assert_eq!(irc.notices(), b"NOTICE AUTH :*** a notice\r\n");
        let expected = ":s 001 ada_ :Welcome\r\n:s 005 ada_ A B :are known\r\n:s 375 ada_ :-\r\n\
                        :s 372 ada_ :- hello\r\n:s 376 ada_ :End\r\n";
        assert_eq!(String::from_utf8_lossy(irc.welcome()), expected);
        // Without its end there is one, and a line that is cut is none.
        let irc = of(":s 001 ada :Welcome\r\n:s 372 ada :- hel").unwrap();
        let expected = ":s 001 ada :Welcome\r\n:s 376 ada :End of /MOTD command.\r\n";
        assert_eq!(String::from_utf8_lossy(irc.welcome()), expected);
        assert!(of(":s 001 ada :Welcome\r\n:s 422 ada :none\r\n").unwrap().welcome().ends_with(b":none\r\n"));
    }

    #[test]
    fn what_is_no_welcome_is_none() {
        for other in
            ["", "220 mail\r\n", "001 x\r\n", ":s 001 cut", ":s NOTICE * :hello\r\n", "* OK\r\n:s 0001 x\r\n"]
        {
            assert!(of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_registration_is_known_in_any_order_and_waits_for_capabilities() {
        let welcome = ":s 001 ada :Welcome\r\n";
        let mut irc = of(welcome).unwrap();
        assert_eq!(answer(&mut irc, "CAP LS 302\r\n").unwrap(), ":s CAP * LS :\r\n");
        assert_eq!(answer(&mut irc, "nick bob\n").unwrap(), "");
        assert_eq!(answer(&mut irc, "USER bob 0 * :Bob\r\n").unwrap(), "");
        assert!(!irc.is_registered());
        assert_eq!(
            answer(&mut irc, "CAP REQ :sasl multi-prefix\r\n").unwrap(),
            ":s CAP * NAK :sasl multi-prefix\r\n"
        );
        assert_eq!(answer(&mut irc, "JOIN #a\r\n"), None);
        assert_eq!(answer(&mut irc, "CAP END\r\n").unwrap(), "");
        assert!(irc.is_registered());
        let mut irc = of(welcome).unwrap();
        for line in ["PASS secret\r\n", "USER bob 0 * :Bob\r\n", "CAP LIST\r\n", "NICK :bob\r\n"] {
            assert!(!irc.is_registered());
            assert_eq!(answer(&mut irc, line).unwrap(), "");
        }
        assert!(irc.is_registered());
    }
}
