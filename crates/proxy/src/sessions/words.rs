//! Words for devices that wait for them: a session was handed over to this device.
//!
//! ```text
//! word = session (16), moves (4)
//! ```
//!
//! A word says that there is something to look at, and no more. Whoever misses some looks at the list.

use super::SessionId;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// Of a word.
const LENGTH: usize = SessionId::LENGTH + 4;
/// Words for one stream that are not written yet. Beyond them it ends, and its device looks at the list.
const UNSAID: usize = 32;
/// Streams on which one device waits. One more ends the oldest, which may be of a process that is gone.
const EACH: usize = 4;
/// Streams on which devices wait, in all.
const ALL: usize = 4096;
/// For a word to be taken.
const LIMIT: Duration = Duration::from_secs(30);

/// A device let this one take a session, which had moved so often until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Word {
    /// What the session is called.
    pub id: SessionId,
    /// How often it had moved.
    pub moves: u32,
}

impl Word {
    pub(super) fn new(id: SessionId, moves: u32) -> Self {
        Self { id, moves }
    }

    fn encode(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let (id, moves) = bytes.split_at_mut(SessionId::LENGTH);
        id.copy_from_slice(&self.id.to_bytes());
        moves.copy_from_slice(&self.moves.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; LENGTH]) -> Self {
        let (mut id, mut moves) = ([0; SessionId::LENGTH], [0; 4]);
        id.copy_from_slice(&bytes[..SessionId::LENGTH]);
        moves.copy_from_slice(&bytes[SessionId::LENGTH..]);
        Self::new(SessionId::from_bytes(id), u32::from_be_bytes(moves))
    }
}

/// The gateway: which devices wait.
#[derive(Default)]
pub(super) struct Words {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Numbers the streams.
    next: u64,
    /// How many streams there are.
    count: usize,
    devices: HashMap<EndpointId, VecDeque<(u64, mpsc::Sender<Word>)>>,
}

impl Words {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device waits from now on, until what is returned is dropped. `None` if too many do.
    pub(super) fn wait(self: &Arc<Self>, device: EndpointId) -> Option<Awaited> {
        let mut waiting = self.waiting();
        let Waiting { next, count, devices } = &mut *waiting;
        let is_full = devices.get(&device).is_some_and(|own| own.len() >= EACH);
        if !is_full && *count >= ALL {
            return None;
        }
        let own = devices.entry(device).or_default();
        if is_full {
            own.pop_front();
            *count -= 1;
        }
        let (sender, words) = mpsc::channel(UNSAID);
        let number = *next;
        (*next, *count) = (number + 1, *count + 1);
        own.push_back((number, sender));
        Some(Awaited { all: self.clone(), device, number, words })
    }

    /// Tells a device, wherever it waits.
    pub(super) fn say(&self, device: EndpointId, word: Word) {
        self.waiting().keep(device, |_, sender| sender.try_send(word).is_ok());
    }
}

impl Waiting {
    /// Keeps those streams of a device of which this is true.
    fn keep(&mut self, device: EndpointId, is_kept: impl Fn(u64, &mpsc::Sender<Word>) -> bool) {
        let Some(own) = self.devices.get_mut(&device) else { return };
        let before = own.len();
        own.retain(|(number, sender)| is_kept(*number, sender));
        self.count -= before - own.len();
        if own.is_empty() {
            self.devices.remove(&device);
        }
    }
}

/// The words that a device waits for on one stream.
pub(crate) struct Awaited {
    all: Arc<Words>,
    device: EndpointId,
    number: u64,
    words: mpsc::Receiver<Word>,
}

impl Awaited {
    /// Says them until the stream ends, or the device does not take them in time.
    pub(crate) async fn tell(mut self, mut stream: Stream) {
        let mut more = [0; 1];
        loop {
            let word = tokio::select! {
                word = self.words.recv() => word,
                // It has nothing to say: it is gone.
                _ = stream.read(&mut more) => return,
            };
            // Another stream has taken the place of this one, or there were too many words.
            let Some(word) = word else { return };
            let told = tokio::time::timeout(LIMIT, stream.write_all(&word.encode())).await;
            if !matches!(told, Ok(Ok(()))) {
                return;
            }
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.all.waiting().keep(self.device, |number, _| number != self.number);
    }
}

/// A device: the words for it, as they are said. They end when this is dropped.
pub struct Hearing {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    begun: [u8; LENGTH],
    length: usize,
}

impl Hearing {
    pub(super) fn new(stream: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), begun: [0; LENGTH], length: 0 }
    }

    /// The next word. Cancel-safe.
    ///
    /// # Errors
    /// When the gateway says no more. Words may have been missed: look at the list, and ask again.
    pub async fn next(&mut self) -> io::Result<Word> {
        while self.length < LENGTH {
            match self.stream.read(&mut self.begun[self.length..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => self.length += n,
            }
        }
        self.length = 0;
        Ok(Word::decode(self.begun))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn device(number: u8) -> EndpointId {
        EndpointId::from_bytes(&[number; 32])
    }

    fn word(number: u8) -> Word {
        Word::new(SessionId::from_bytes([number; 16]), u32::from(number))
    }

    fn heard(awaited: &mut Awaited) -> Vec<Word> {
        std::iter::from_fn(|| awaited.words.try_recv().ok()).collect()
    }

    #[tokio::test]
    async fn words_are_read_however_they_are_cut_and_an_end_is_an_error() {
        let bytes = [word(1).encode(), word(2).encode()].concat();
        assert_eq!(bytes[..LENGTH], [&[1; 16][..], &[0, 0, 0, 1]].concat());
        for cut in 0..bytes.len() {
            let (first, rest) = bytes.split_at(cut);
            let (first, rest) = (first.to_vec(), rest.to_vec());
            let stream = io::Cursor::new(first).chain(io::Cursor::new(rest));
            let mut hearing = Hearing::new(stream);
            assert_eq!(hearing.next().await.unwrap(), word(1));
            assert_eq!(hearing.next().await.unwrap(), word(2));
            assert_eq!(hearing.next().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_word_is_for_one_device_wherever_it_waits() {
        let words = Arc::<Words>::default();
        let [mut one, mut again, mut other] = [1, 1, 2].map(|number| words.wait(device(number)).unwrap());
        words.say(device(1), word(7));
        words.say(device(3), word(8));
        assert_eq!((heard(&mut one), heard(&mut again)), (vec![word(7)], vec![word(7)]));
        assert_eq!(heard(&mut other), []);
        drop(one);
        words.say(device(1), word(9));
        assert_eq!(heard(&mut again), [word(9)]);
        drop((again, other));
        assert!(words.waiting().devices.is_empty() && words.waiting().count == 0);
    }

    #[test]
    fn a_device_that_does_not_listen_is_let_go_and_its_newest_streams_have_the_places() {
        let words = Arc::<Words>::default();
        let mut slow = words.wait(device(1)).unwrap();
        for _ in 0..=UNSAID {
            words.say(device(1), word(1));
        }
        assert_eq!(heard(&mut slow).len(), UNSAID);
        assert!(slow.words.is_closed(), "it must look at the list");
        assert_eq!(words.waiting().count, 0);
        drop(slow);
        let mut streams: Vec<_> = (0..=EACH).map(|_| words.wait(device(1)).unwrap()).collect();
        assert_eq!(words.waiting().count, EACH);
        words.say(device(1), word(2));
        let counts: Vec<_> = streams.iter_mut().map(|it| heard(it).len()).collect();
        assert_eq!(counts, [0, 1, 1, 1, 1]);
        drop(streams);
        assert_eq!(words.waiting().count, 0);
    }

    #[test]
    fn not_more_wait_than_may_in_all() {
        let words = Arc::<Words>::default();
        let number = |at: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&at.to_be_bytes());
            EndpointId::from_bytes(&bytes)
        };
        let mut all: Vec<_> = (0..ALL).map(|at| words.wait(number(at / EACH)).unwrap()).collect();
        assert!(words.wait(number(ALL)).is_none());
        // One that is there already takes a place of its own.
        assert!(words.wait(number(0)).is_some());
        all.pop();
        assert!(words.wait(number(ALL)).is_some());
    }
}
