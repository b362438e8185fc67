//! What two devices say to each other before a connection is handed over, on a stream that the taking one
//! opens. A message is its length (4 bytes, big-endian) and a postcard value; the first one of the taking
//! device has [`HELLO`] before it. `docs/protocol.md` has the bytes.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_proxy::WebObject;
use whimbrel_transport::Stream;

use crate::transfer::together::{Going, Together};
use crate::tunnel::direction::MOST;

/// What the taking device begins with.
pub(super) const HELLO: &[u8; 4] = b"WHN1";
/// No question is longer.
pub(super) const MAX_ASK: u32 = 4096;
/// Streams of a connection that moves.
pub(crate) const MAX_STREAMS: usize = 64;
/// No answer is longer: what both directions of so many tunnels may hold, and what is around it.
pub(super) const MAX_ANSWER: u32 = (MAX_STREAMS * 2 * MOST + 128 * 1024) as u32;

/// What the taking device asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The session whose id begins so.
    Session(String),
    /// What there is. Only an agent answers that.
    List,
    /// To an agent: it may have this.
    Offer(Offer),
}

/// A session that an agent may take at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Its id.
    pub(crate) session: String,
    /// What carries it.
    pub(crate) command: String,
    /// What people call its peer.
    pub(crate) peer: String,
    /// Where the command waits for the agent's device, under the key of who offers it.
    pub(crate) ticket: String,
}

/// What the device that has it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The connection comes next, on a stream of its own.
    Given(State),
    /// Why not, for people.
    Refused(String),
    /// By an agent: the command that has the session waits for this device at this ticket, whose key is the
    /// agent's own.
    At(String),
    /// By an agent: what there is.
    Listed(Vec<Elsewhere>),
    /// By an agent: it has taken what was offered.
    Taken,
}

/// What another device has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Elsewhere {
    pub(crate) id: String,
    /// What carries it there.
    pub(crate) command: String,
    /// What people call the peer.
    pub(crate) peer: String,
    /// For how many seconds it has been there.
    pub(crate) age: u64,
    /// Bytes that came from the peer, and that went there.
    pub(crate) down: u64,
    pub(crate) up: u64,
}

/// What there is to know of a session beside its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// Of `whimbrel pipe`.
    Pipe(Halves),
    /// Of `whimbrel chat`.
    Chat(Talk),
    /// Of `whimbrel forward`: each of its streams.
    Forward(Vec<Halves>),
    /// Of `whimbrel receive`: a file, of which what has arrived is fetched before the connection comes.
    File(Arriving),
    /// Of `whimbrel send`: a file, of which what is left is fetched before the connection comes.
    Sending(Leaving),
    /// Of `whimbrel receive`: several files, of which what has arrived is fetched before the connection
    /// comes.
    Together(Together),
    /// Of `whimbrel send`: several files, of which what is left is fetched before the connection comes.
    Going(Going),
    /// Of `whimbrel proxy http`: an answer of HTTPS. No connection comes: its server is asked for what is
    /// left.
    Web(WebObject),
}

/// A file that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arriving {
    /// What people call the peer.
    pub(crate) peer: String,
    /// The stream's number in its connection.
    pub(crate) stream: u64,
    /// What the file is called.
    pub(crate) name: String,
    /// In bytes; `None` if nobody knows it before the end.
    pub(crate) size: Option<u64>,
    /// Bytes that were there before the sender began.
    pub(crate) before: u64,
    /// Bytes that are there.
    pub(crate) at: u64,
    /// The rest comes in chunks.
    pub(crate) chunks: bool,
    /// What came out of the stream behind these bytes.
    pub(crate) waiting: Vec<u8>,
    /// The file may not become larger.
    pub(crate) most: u64,
}

/// A file that is being sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leaving {
    /// What people call the peer.
    pub(crate) peer: String,
    /// The stream's number in its connection.
    pub(crate) stream: u64,
    /// What the file is called.
    pub(crate) name: String,
    /// Bytes that the peer had before.
    pub(crate) before: u64,
    /// Bytes that are in the stream, or wait to be.
    pub(crate) at: u64,
    /// Bytes behind them: these are fetched, and the SHA-256 of the whole file.
    pub(crate) left: u64,
    /// They go in chunks.
    pub(crate) chunks: bool,
    /// Bytes that were written into the stream.
    pub(crate) carried: u64,
    /// What is to be written into it before what is left.
    pub(crate) waiting: Vec<u8>,
}

/// What the taking device says of a file: first whether it keeps one, then whether it has all that it was
/// sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Keeps {
    Yes,
    /// Why not, for people.
    No(String),
}

/// A stream that is joined to something local.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Halves {
    /// What people call the peer.
    pub(crate) peer: String,
    /// The stream's number in its connection.
    pub(crate) stream: u64,
    /// Into the stream.
    pub(crate) out: Way,
    /// Out of the stream.
    pub(crate) back: Way,
}

/// One direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Way {
    /// What was read and not written.
    pub(crate) waiting: Vec<u8>,
    /// Its end was passed on.
    pub(crate) ended: bool,
}

/// A conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Talk {
    /// What the user called the other side.
    pub(crate) known_as: Option<String>,
    /// What it calls itself.
    pub(crate) nick: Option<String>,
    /// The number of the last line that was typed.
    pub(crate) number: u64,
    /// It has said hello.
    pub(crate) greeted: bool,
}

/// Says something.
pub(super) async fn say(stream: &mut Stream, what: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(what).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Hears something of at most so many bytes.
pub(super) async fn hear<T: DeserializeOwned>(stream: &mut Stream, most: u32) -> io::Result<T> {
    let length = stream.read_u32().await?;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other device says too much at once"));
    }
    let mut bytes = Vec::new();
    (&mut *stream).take(length.into()).read_to_end(&mut bytes).await?;
    decode(&bytes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the other device says something else"))
}

/// Decodes whatever comes as a question and as an answer; what is understood can be said again.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    fn again<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Some(understood) = decode::<T>(bytes) {
            let said = postcard::to_stdvec(&understood).ok();
            assert_eq!(said.and_then(|bytes| decode::<T>(&bytes)), Some(understood));
        }
    }
    again::<Ask>(bytes);
    again::<Answer>(bytes);
    again::<Keeps>(bytes);
}

/// A value that takes all of these bytes.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn halves() -> Halves {
        let way = |waiting: &[u8], ended| Way { waiting: waiting.to_vec(), ended };
        Halves { peer: "x".to_owned(), stream: 7, out: way(&[0xff; 300], false), back: way(b"", true) }
    }

    fn arriving() -> Arriving {
        let [peer, name] = ["p", "f"].map(str::to_owned);
        let (size, before, at, waiting) = (Some(300), 1, 2, b"x".to_vec());
        Arriving { peer, stream: 7, name, size, before, at, chunks: true, waiting, most: 400 }
    }

    fn leaving() -> Leaving {
        let [peer, name] = ["p", "f"].map(str::to_owned);
        let (before, at, left, carried, waiting) = (1, 300, 2, 4, b"x".to_vec());
        Leaving { peer, stream: 7, name, before, at, left, chunks: true, carried, waiting }
    }

    #[test]
    fn what_is_said_is_heard_and_nothing_that_is_cut_or_longer() {
        let said = Answer::Given(State::Pipe(halves()));
        let bytes = postcard::to_stdvec(&said).unwrap();
        assert_eq!(decode::<Answer>(&bytes), Some(said));
        for end in 0..bytes.len() {
            assert_eq!(decode::<Answer>(&bytes[..end]), None, "{end}");
        }
        assert_eq!(decode::<Answer>(&[&bytes[..], b"x"].concat()), None);
        for file in [
            State::File(arriving()),
            State::Sending(leaving()),
            State::Together(Together::example()),
            State::Going(Going::example()),
        ] {
            let said = postcard::to_stdvec(&Answer::Given(file.clone())).unwrap();
            assert_eq!(decode::<Answer>(&said), Some(Answer::Given(file)));
            assert!((0..said.len()).all(|end| decode::<Answer>(&said[..end]).is_none()));
        }
        // A length that memory would be needed for.
        assert_eq!(decode::<Ask>(&[0, 0xff, 0xff, 0xff, 0xff, 0x0f, b'x']), None);
    }

    /// What is written here is written in `docs/protocol.md`.
    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let ask = Ask::Session("5f2c".to_owned());
        assert_eq!(postcard::to_stdvec(&ask).unwrap(), b"\0\x045f2c");
        assert_eq!(postcard::to_stdvec(&Ask::List).unwrap(), b"\x01");
        let talk = Talk { known_as: None, nick: Some("bob".to_owned()), number: 300, greeted: true };
        let bytes = postcard::to_stdvec(&Answer::Given(State::Chat(talk))).unwrap();
        assert_eq!(bytes, b"\0\x01\0\x01\x03bob\xac\x02\x01");
        let bytes = postcard::to_stdvec(&Answer::Given(State::File(arriving()))).unwrap();
        assert_eq!(bytes, b"\0\x03\x01p\x07\x01f\x01\xac\x02\x01\x02\x01\x01x\x90\x03");
        let bytes = postcard::to_stdvec(&Answer::Given(State::Sending(leaving()))).unwrap();
        assert_eq!(bytes, b"\0\x04\x01p\x07\x01f\x01\xac\x02\x02\x01\x04\x01x");
        let bytes = postcard::to_stdvec(&Answer::Given(State::Together(Together::example()))).unwrap();
        let whole = b"\0\x05\x01p\x09\x03\x01\x01\x01d\xac\x02\x04\0\x01\0\x01";
        let files = b"\x01\x07\x01x\x01\x01d\x01f\x01\xac\x02\x01\x02\x01\x01\x0b\x01y\xac\x02\x90\x03";
        assert_eq!(bytes, [&whole[..], files].concat());
        let bytes = postcard::to_stdvec(&Answer::Given(State::Going(Going::example()))).unwrap();
        let whole = b"\0\x06\x01p\x09\x03\x01\x01\x01d\xac\x02\x04";
        let files = b"\x01\x08\x01f\x01\x02\x03\x01\x04\x01x\x05\x06\x07\0\xac\x02";
        assert_eq!(bytes, [&whole[..], files].concat());
        let web = b"\0\x07\x01h\xbb\x03\x01/\x01\x01a\x01b\x01\x04etag\x03\"a\"\0\xac\x02\xad\x02\x02";
        let said = decode::<Answer>(web).unwrap();
        let Answer::Given(State::Web(object)) = &said else { panic!("it is something else: {said:?}") };
        assert_eq!((&object.place()[..], object.at()), ("https://h/", 2));
        assert_eq!(postcard::to_stdvec(&said).unwrap(), web);
        assert!((0..web.len()).all(|end| decode::<Answer>(&web[..end]).is_none()));
        assert_eq!(postcard::to_stdvec(&Keeps::Yes).unwrap(), b"\0");
        assert_eq!(postcard::to_stdvec(&Keeps::No("no".to_owned())).unwrap(), b"\x01\x02no");
        assert_eq!(postcard::to_stdvec(&Answer::Refused("no".to_owned())).unwrap(), b"\x01\x02no");
        assert_eq!(postcard::to_stdvec(&Answer::At("x".to_owned())).unwrap(), b"\x02\x01x");
        let [session, command, peer, ticket] = ["5f", "pipe", "p", "x"].map(str::to_owned);
        let offer = Ask::Offer(Offer { session, command, peer, ticket });
        assert_eq!(postcard::to_stdvec(&offer).unwrap(), b"\x02\x025f\x04pipe\x01p\x01x");
        assert_eq!(postcard::to_stdvec(&Answer::Taken).unwrap(), b"\x04");
        let (id, command, peer) = ("5f".to_owned(), "pipe".to_owned(), "p".to_owned());
        let listed = Answer::Listed(vec![Elsewhere { id, command, peer, age: 1, down: 300, up: 2 }]);
        assert_eq!(postcard::to_stdvec(&listed).unwrap(), b"\x03\x01\x025f\x04pipe\x01p\x01\xac\x02\x02");
    }

    #[test]
    fn an_answer_has_room_for_all_that_two_directions_hold() {
        let way = || Way { waiting: vec![0xff; MOST], ended: false };
        let full = Halves { peer: "x".repeat(1024), stream: u64::MAX, out: way(), back: way() };
        let all = vec![full; MAX_STREAMS];
        let bytes = postcard::to_stdvec(&Answer::Given(State::Forward(all))).unwrap();
        assert!(bytes.len() <= MAX_ANSWER as usize, "{}", bytes.len());
    }
}
