//! A device whose frames a test says by hand.

use super::{Device, Server, Stage, within};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use whimbrel::{EndpointId, Stream};
use whimbrel_proxy::{Attached, SessionError, SessionId};

pub const DATA: u8 = 0;
pub const END: u8 = 1;
pub const COUNT: u8 = 2;
pub const PAUSE: u8 = 3;
pub const PAUSED: u8 = 4;
pub const RESUME: u8 = 5;
pub const MOVED: u8 = 6;
pub const BROKEN: u8 = 7;
pub const AHEAD: u8 = 8;

/// Of PAUSED.
pub const WHOLE: u8 = 1;
pub const ENDED: u8 = 2;

/// A device that has a session, and says what a test says.
pub struct Hand {
    pub stream: Stream,
    /// What the server sent.
    pub came: usize,
    /// What the server has taken.
    pub counted: usize,
}

impl Hand {
    /// Opens a session that another device may take.
    pub async fn open(device: &Device, to: SocketAddr, taker: EndpointId) -> Self {
        let mut stream = within("a stream opens", device.connection.open_stream()).await.unwrap();
        let host = to.ip().to_string();
        let mut body = vec![u8::try_from(host.len()).unwrap()];
        body.extend_from_slice(host.as_bytes());
        body.extend_from_slice(&to.port().to_be_bytes());
        body.push(1);
        body.extend_from_slice(taker.as_bytes());
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        let asked = [&[2, 1][..], &length, &body].concat();
        within("it asks", stream.write_all(&asked)).await.unwrap();
        Self::granted(stream).await
    }

    /// Takes a session that has not moved yet, and lets no other device take it.
    pub async fn take(device: &Device, id: SessionId) -> Self {
        let mut hand = Self::begin(device, id).await;
        let offset = hand.came as u64;
        // The program is there.
        hand.say(COUNT, &offset.to_be_bytes()).await;
        hand
    }

    /// The same, without a word whether its program is there.
    pub async fn begin(device: &Device, id: SessionId) -> Self {
        Self::ask(device, id, 2).await
    }

    /// The same for a player of a film, whose program is not there yet.
    pub async fn enter(device: &Device, id: SessionId) -> Self {
        let mut hand = Self::ask(device, id, 10).await;
        // Where it can go on, and what it must read first.
        let told = hand.read(8 + 2).await;
        hand.read(u16::from_be_bytes([told[8], told[9]]).into()).await;
        hand
    }

    /// A second stream for a session of the device, which has not moved yet.
    pub async fn control(device: &Device, id: SessionId) -> Self {
        let mut stream = within("a stream opens", device.connection.open_stream()).await.unwrap();
        let asked = [&[2, 5, 0, 20][..], &id.to_bytes(), &[0; 4]].concat();
        within("it asks", stream.write_all(&asked)).await.unwrap();
        let mut hand = Self { stream, came: 0, counted: 0 };
        hand.answered().await;
        hand
    }

    /// Takes a session that has not moved yet, and has what comes before the answer.
    pub async fn begin_ahead(device: &Device, id: SessionId) -> Awaiting {
        let mut hand = Self { stream: Self::ask_ahead(device, id).await, came: 0, counted: 0 };
        assert_eq!(hand.read(1).await, [3], "something comes before the answer");
        let start = u64::from_be_bytes(hand.read(8).await.try_into().unwrap());
        Awaiting { hand, start, bytes: Vec::new() }
    }

    /// Asks for that.
    pub async fn ask_ahead(device: &Device, id: SessionId) -> Stream {
        Self::asks(device, id, 11).await
    }

    async fn ask(device: &Device, id: SessionId, kind: u8) -> Self {
        Self::granted(Self::asks(device, id, kind).await).await
    }

    async fn asks(device: &Device, id: SessionId, kind: u8) -> Stream {
        let mut stream = within("a stream opens", device.connection.open_stream()).await.unwrap();
        let asked = [&[2, kind, 0, 21][..], &id.to_bytes(), &[0; 4], &[0]].concat();
        within("it asks", stream.write_all(&asked)).await.unwrap();
        stream
    }

    async fn answered(&mut self) {
        let answer = self.read(3).await;
        assert_eq!(answer[..2], [1, 0], "it is granted");
        self.read(answer[2].into()).await;
    }

    /// The answer, which nothing comes before.
    pub async fn granted(stream: Stream) -> Self {
        let mut hand = Self { stream, came: 0, counted: 0 };
        hand.answered().await;
        let granted = hand.read(16 + 4 + 8 + 1).await;
        hand.came = u64::from_be_bytes(granted[20..28].try_into().unwrap()).try_into().unwrap();
        let rest = hand.read(usize::from(granted[28]) + 2 + 1 + 2).await;
        let [.., has_ended, high, low] = rest[..] else { panic!("{rest:?}") };
        assert_eq!(has_ended, 0, "no end");
        // How it began.
        hand.read(u16::from_be_bytes([high, low]).into()).await;
        hand
    }

    async fn read(&mut self, size: usize) -> Vec<u8> {
        let mut some = vec![0; size];
        within("bytes come", self.stream.read_exact(&mut some)).await.unwrap();
        some
    }

    pub async fn say(&mut self, kind: u8, body: &[u8]) {
        self.try_say(kind, body).await.unwrap();
    }

    /// Fails if the gateway has ended the session.
    async fn try_say(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        let frame = [&[kind][..], &length, body].concat();
        within("it is said", self.stream.write_all(&frame)).await
    }

    pub async fn say_paused(&mut self, taken: u64, sent: u64, flags: u8) {
        let body = [&taken.to_be_bytes()[..], &sent.to_be_bytes(), &[flags]].concat();
        self.say(PAUSED, &body).await;
    }

    /// Waits for one kind of frame.
    pub async fn wait_for(&mut self, wanted: u8) {
        while self.hear().await != wanted {}
    }

    pub async fn hear(&mut self) -> u8 {
        self.hear_all().await.0
    }

    /// A frame's kind, and what it says.
    pub async fn hear_all(&mut self) -> (u8, Vec<u8>) {
        let head = self.read(3).await;
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        let body = self.read(length).await;
        match head[0] {
            DATA => self.came += length,
            COUNT => self.counted = number(&body).try_into().unwrap(),
            _ => {}
        }
        (head[0], body)
    }

    /// Waits until so many bytes of the server are here.
    pub async fn have(&mut self, bytes: usize) {
        while self.came < bytes {
            self.hear().await;
        }
    }
}

/// What a frame says that says a number.
pub fn number(body: &[u8]) -> u64 {
    u64::from_be_bytes(body.try_into().unwrap())
}

/// A device that takes a session, and has had no answer yet.
pub struct Awaiting {
    hand: Hand,
    /// The offset of what came.
    pub start: u64,
    pub bytes: Vec<u8>,
}

impl Awaiting {
    /// Takes another piece. False for the last one.
    pub async fn next(&mut self) -> bool {
        let length = self.hand.read(2).await;
        let piece = self.hand.read(u16::from_be_bytes(length.try_into().unwrap()).into()).await;
        self.bytes.extend_from_slice(&piece);
        !piece.is_empty()
    }

    /// Behind the last one: the offset from which on the session is granted.
    pub async fn granted(self) -> Hand {
        Hand::granted(self.hand.stream).await
    }
}

/// A session of a phone that a desk may take, with a server that sends so much of its file at first.
pub async fn session(stage: &Stage, file: Arc<Vec<u8>>, first: usize) -> (Device, Device, Server, Hand) {
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let server = Server::up_to(file, first).await;
    let hand = Hand::open(&phone, server.address, desk.id()).await;
    (phone, desk, server, hand)
}

/// A device that takes the one session that it sees.
pub async fn take(desk: &Device) -> JoinHandle<Result<Attached, SessionError>> {
    let listed = within("a list comes", desk.sessions.list()).await.unwrap().remove(0);
    let (sessions, takers) = (desk.sessions.clone(), desk.takers.clone());
    tokio::spawn(async move { sessions.take(listed.id, listed.moves, takers).await })
}

pub async fn taken(taking: JoinHandle<Result<Attached, SessionError>>) -> Result<Attached, SessionError> {
    within("an answer comes", taking).await.unwrap()
}

/// Sends these bytes, and no more than so many before the server has taken them, until it takes no more.
/// Returns how many were sent.
pub async fn fill(hand: &mut Hand, words: &[u8], ahead: usize) -> usize {
    let mut sent = 0;
    loop {
        sent = press(hand, words, sent, ahead).await;
        // Too early does no harm: then less is on its way.
        if tokio::time::timeout(Duration::from_secs(1), hand.hear()).await.is_err() {
            return sent;
        }
    }
}

/// Goes on behind what was sent, whatever is heard, unless the gateway ends the session.
pub async fn press(hand: &mut Hand, words: &[u8], mut sent: usize, ahead: usize) -> usize {
    while sent - hand.counted <= ahead {
        let piece = words[sent..].chunks(16 * 1024).next().expect("something is full before");
        if hand.try_say(DATA, piece).await.is_err() {
            break;
        }
        sent += piece.len();
    }
    sent
}
