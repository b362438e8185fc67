//! A film that a session's server sends by HTTP: from where another player can go on, which asks for it anew.
//!
//! A gateway keeps what a player must read first, and the bytes from the last place before the program on, if
//! these are few. Both count as what the session keeps; where there is little room, less is kept.

use super::container::Container;
use super::entry::Entry;
use super::http::object;
use super::window::Window;
use bytes::Bytes;
use std::ops::Range;

/// The most bytes that are kept although the program has taken them.
const MOST_PASSED: usize = 1024 * 1024;
/// What a player must read first is kept, however little room there is, if it is no longer: most films have
/// hundreds of bytes.
const LITTLE: usize = 8 * 1024;

/// What a gateway knows of one.
pub(super) struct Film {
    /// Where it is among all that the server sends.
    span: Range<u64>,
    container: Container,
    /// What the program has taken, from the last place on.
    passed: Window,
}

impl Film {
    /// In an answer that begins with this head of HTTP. `None` if a film could not be known in it.
    pub(super) fn new(head: &[u8]) -> Option<Self> {
        Some(Self { span: object(head)?, container: Container::new(), passed: Window::default() })
    }

    /// How many bytes are kept for it, beside those that the program has not taken.
    pub(super) fn kept(&self) -> usize {
        self.passed.len() + self.container.beginning().len()
    }

    /// Whether there is nothing to know, and nothing that a device may be about to be given.
    pub(super) fn is_of_no_use(&self) -> bool {
        self.container.is_other() && self.passed.is_empty()
    }

    /// The server has sent this, from this offset on.
    pub(super) fn sees(&mut self, at: u64, bytes: &[u8]) {
        let within = |offset: u64| {
            usize::try_from(offset.saturating_sub(at)).map_or(bytes.len(), |within| within.min(bytes.len()))
        };
        let (from, to) = (within(self.span.start), within(self.span.end));
        self.container.sees(bytes.get(from..to).unwrap_or_default());
    }

    /// The program has taken what is before this offset, which is still kept.
    pub(super) fn takes(&mut self, kept: &Window, to: u64) {
        if to <= kept.base() || to > kept.end() {
            return;
        }
        let done = to.saturating_sub(self.span.start);
        self.container.passes(done);
        let place = self.container.before(done).map(|place| self.span.start + place);
        let Some(place) = place.filter(|place| to.saturating_sub(*place) <= MOST_PASSED as u64) else {
            self.passed = Window::at(to);
            return;
        };
        if self.passed.end() != kept.base() {
            self.passed = Window::at(kept.base());
        }
        if self.passed.end() < place {
            self.passed = Window::at(place);
        }
        if self.passed.base() > place {
            // What is between is gone.
            self.passed = Window::at(to);
            return;
        }
        while self.passed.end() < to {
            let left = usize::try_from(to - self.passed.end()).unwrap_or(usize::MAX);
            let some = kept.from(self.passed.end(), left);
            if some.is_empty() {
                break;
            }
            self.passed.push(some);
        }
        self.passed.release(place);
    }

    /// Forgets what the program has taken: others have a better use for the room. False if that was nothing,
    /// and what is left is much.
    pub(super) fn makes_room(&mut self) -> bool {
        let had_some = !self.passed.is_empty();
        self.passed = Window::at(self.passed.end());
        had_some || self.container.beginning().len() <= LITTLE
    }

    /// Where a player can go on in the place of the program, which has taken what is before this offset: at
    /// the last place before that, if all from there on is kept, and is no more than there is room for; else
    /// at the next one, if that has come.
    pub(super) fn entry(&self, offset: u64, room: usize) -> Option<Entry> {
        if offset > self.span.end {
            // Another answer is under way.
            return None;
        }
        let done = offset.saturating_sub(self.span.start);
        let before = self.container.before(done).map(|place| self.span.start + place);
        let before = before.filter(|place| {
            let is_kept = self.passed.base() <= *place && self.passed.end() == offset;
            *place == offset || is_kept && offset.saturating_sub(*place) <= room as u64
        });
        let behind = || self.container.behind(done).map(|place| self.span.start + place);
        let place = before.or_else(behind)?;
        Some(Entry { place, beginning: self.container.beginning().to_vec() })
    }

    /// Some of the bytes that the program has taken, at most so many, from an offset on.
    pub(super) fn from(&self, offset: u64, most: usize) -> Bytes {
        self.passed.from(offset, most)
    }

    /// Gives back what the program has taken from an offset on: another one reads that again.
    pub(super) fn give_back(&mut self, offset: u64, kept: &mut Window) {
        if offset < kept.base() && self.passed.base() <= offset && self.passed.end() == kept.base() {
            self.passed.release(offset);
            kept.put_before(std::mem::take(&mut self.passed));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: video/webm\r\n\r\n";
    /// What is before the first cluster.
    const BEGINNING: &[u8] = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff";

    /// A cluster of so many bytes.
    fn cluster(size: usize) -> Vec<u8> {
        let filler = u32::try_from(size - 16).unwrap();
        let begin = b"\x1f\x43\xb6\x75\xff\xa3\x84\x81\0\0\x80\xec".to_vec();
        [begin, (1 << 28 | filler).to_be_bytes().to_vec(), vec![7; size - 16]].concat()
    }

    /// A film under way, of which all is kept.
    struct Sent {
        film: Film,
        kept: Window,
        all: Vec<u8>,
        places: Vec<u64>,
    }

    impl Sent {
        fn new(sizes: &[usize]) -> Self {
            let (mut all, mut places) = ([HEAD, BEGINNING].concat(), Vec::new());
            for size in sizes {
                places.push(all.len() as u64);
                all.extend(cluster(*size));
            }
            let mut sent = Self { film: Film::new(HEAD).unwrap(), kept: Window::default(), all, places };
            for piece in sent.all.chunks(1000) {
                sent.film.sees(sent.kept.end(), piece);
                sent.kept.push(Bytes::copy_from_slice(piece));
            }
            sent
        }

        fn takes(&mut self, to: u64) {
            self.film.takes(&self.kept, to);
            assert!(self.kept.release(to));
        }

        fn place(&self, offset: u64) -> Option<u64> {
            let entry = self.film.entry(offset, MOST_PASSED)?;
            assert_eq!(entry.beginning, BEGINNING);
            Some(entry.place)
        }
    }

    #[test]
    fn a_player_goes_on_at_the_last_place_before_the_program_and_gets_the_bytes_from_there() {
        let mut sent = Sent::new(&[3000, 3000, 3000]);
        let [first, second, third] = sent.places[..] else { panic!("three clusters") };
        assert_eq!(sent.place(0), Some(first), "nothing was taken");
        for (to, place) in [
            (9, first),
            (first, first),
            (first + 1, first),
            (second - 1, first),
            (second, second),
            (second + 1500, second),
            (third + 2999, third),
        ] {
            sent.takes(to);
            assert_eq!(sent.place(to), Some(place), "at {to}");
            let next = sent.places.iter().find(|next| **next >= to).copied();
            assert_eq!(sent.film.entry(to, 0).map(|entry| entry.place), next, "without room, at {to}");
            assert!(sent.film.kept() <= 3000 + BEGINNING.len());
            let mut window = Window::at(sent.kept.base());
            sent.film.give_back(place, &mut window);
            assert_eq!(window.base(), place.min(to));
            assert_eq!(window.to_vec(), &sent.all[window.base() as usize..to as usize]);
            // Another one has it: as if it had gone back.
            sent.kept = Window::with(window.base(), &sent.all[window.base() as usize..]);
        }
    }

    #[test]
    fn where_too_much_was_taken_since_the_last_place_it_is_the_next_one_if_that_has_come() {
        let mut sent = Sent::new(&[2 * MOST_PASSED, 3000, 3000]);
        let [first, second, third] = sent.places[..] else { panic!("three clusters") };
        sent.takes(first + MOST_PASSED as u64);
        assert_eq!(sent.place(first + MOST_PASSED as u64), Some(first));
        sent.takes(first + MOST_PASSED as u64 + 1);
        assert_eq!(sent.place(first + MOST_PASSED as u64 + 1), Some(second));
        assert_eq!(sent.film.kept(), BEGINNING.len());
        sent.takes(second + 10);
        assert_eq!(sent.place(second + 10), Some(second), "it is kept again from there on");
        assert!(sent.film.makes_room());
        assert_eq!((sent.place(second + 10), sent.film.kept()), (Some(third), BEGINNING.len()));
        sent.takes(second + 20);
        assert_eq!(sent.place(second + 20), Some(third), "what is between was forgotten");
        assert!(sent.film.makes_room());
        sent.takes(third + 5);
        assert_eq!(sent.place(third + 5), Some(third));
        assert!(sent.film.makes_room());
        assert_eq!(sent.place(third + 5), None, "no place is known");
    }

    #[test]
    fn where_there_is_no_room_a_long_beginning_goes_after_the_bytes_and_a_short_one_stays() {
        for (filler, stays) in [(100, true), (LITTLE, false)] {
            let (mut film, mut kept) = (Film::new(HEAD).unwrap(), Window::default());
            // Tags, which a player is given.
            let size = (1 << 28 | u32::try_from(filler).unwrap()).to_be_bytes();
            let tags = [&[0x12, 0x54, 0xc3, 0x67][..], &size, &vec![7; filler]].concat();
            let all = [HEAD, BEGINNING, &tags, &cluster(3000)].concat();
            film.sees(0, &all);
            let end = all.len() as u64;
            kept.push(Bytes::from(all));
            film.takes(&kept, end);
            let beginning = BEGINNING.len() + tags.len();
            assert_eq!(film.kept(), beginning + 3000);
            assert!(film.makes_room(), "the bytes are enough at first");
            assert_eq!((film.kept(), film.makes_room()), (beginning, stays));
        }
    }

    #[test]
    fn what_is_behind_the_answer_or_no_film_is_not_looked_at() {
        let film = |head: &[u8], body: &[u8]| {
            let (mut film, all) = (Film::new(head)?, [head, body].concat());
            all.chunks(7).zip((0..).step_by(7)).for_each(|(piece, at)| film.sees(at, piece));
            film.entry(0, 0).map(|entry| entry.place)
        };
        let body = [BEGINNING, &cluster(100), &cluster(100)].concat();
        assert_eq!(film(HEAD, &body), Some((HEAD.len() + BEGINNING.len()) as u64));
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n";
        assert_eq!(film(short, &body), None, "the cluster is not this answer's");
        assert_eq!(film(HEAD, b"no film, but some other file"), None);
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 117\r\n\r\n";
        let (mut two, all) = (Film::new(whole).unwrap(), [&whole[..], &body].concat());
        two.sees(0, &all);
        let (place, end) = ((whole.len() + BEGINNING.len()) as u64, (whole.len() + 117) as u64);
        let mut kept = Window::default();
        kept.push(Bytes::from(all));
        two.takes(&kept, end);
        assert_eq!(two.entry(end, MOST_PASSED).unwrap().place, place);
        assert!(kept.release(end));
        two.takes(&kept, end + 1);
        assert_eq!(two.entry(end + 1, MOST_PASSED), None, "another answer is under way");
        for head in [
            &b"HTTP/1.1 206 Part\r\nContent-Range: bytes 9-99/100\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\n\r\n",
        ] {
            assert!(Film::new(head).is_none());
        }
        assert!(Film::new(b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-99/100\r\n\r\n").is_some());
    }
}
