//! What becomes of one side of a splice when the other ends or breaks. The server is made by hand: its
//! sockets are looked at.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use whimbrel_base::{RelayToken, SecretKey, Ticket};
use whimbrel_relay::spare::{Key, Offer, START, decode_start};
use whimbrel_relay::wire::Message;
use whimbrel_relay::{Limits, Relay, RelayStats, Salt, control_name, token_of};
use whimbrel_transport::{Allow, Connection, Endpoint, Stream};

use crate::loopback::{LIMIT, endpoint, relay};

const TEST: u8 = 119;
/// What a kernel keeps for a side that reads nothing, about.
const WINDOW: u32 = 32 * 1024;
/// Four times as much, which a relay's kernel keeps all the same.
const LAST_WORDS: usize = 128 * 1024;

/// A reservation, and the control connection that holds it.
struct Reserved {
    token: RelayToken,
    key: Key,
    _control: (Endpoint, Connection, Stream),
}

impl Reserved {
    /// A server at this host.
    async fn at(relay: &Relay, host: u8) -> Self {
        let at = relay.endpoint().addr();
        let server = endpoint(TEST, host).await;
        let ticket = Ticket::new(at.id, at.addrs, Some(control_name().unwrap()));
        let connection = timeout(LIMIT, server.connect(ticket)).await.unwrap().unwrap();
        let mut stream = connection.open_stream().await.unwrap();
        let salt = Salt::of(&SecretKey::generate());
        stream.write_all(&Message::Reserve(salt).encode()).await.unwrap();
        let reserved = match timeout(LIMIT, Message::read(&mut stream)).await.unwrap().unwrap() {
            Message::Reserved(reserved) => reserved,
            other => panic!("no reservation: {other:?}"),
        };
        Self {
            token: token_of(server.id(), &salt),
            key: Key::new(&reserved.key),
            _control: (server, connection, stream),
        }
    }
}

/// A ClientHello that asks for this server name, and nothing else.
fn hello(name: &str) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = sized(&[&[0][..], &sized(name.as_bytes())].concat());
    let extensions = [&[0, 0][..], &sized(&names)].concat();
    // Version, random, no session, one suite, no compression.
    let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    let body = [head, sized(&extensions)].concat();
    let length = (body.len() as u32).to_be_bytes();
    [&[22, 3, 1][..], &sized(&[&[1][..], &length[1..], &body].concat())].concat()
}

/// Waits until a relay's counts are so.
async fn until(relay: &Relay, otherwise: &str, is_so: impl Fn(RelayStats) -> bool) {
    let waits = async {
        while !is_so(relay.stats()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, waits).await.expect(otherwise);
}

/// Connects with little room for what it is sent.
async fn dial(at: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(WINDOW).unwrap();
    timeout(LIMIT, socket.connect(at)).await.expect("nobody accepts").unwrap()
}

/// A client and a server's side of one connection through the relay, over which the ClientHello has come.
async fn joined(relay: &Relay, at: SocketAddr, reserved: &Reserved, number: u64) -> (TcpStream, TcpStream) {
    let mut server = dial(at).await;
    let offer = Offer { token: reserved.token, origin: 1, number };
    server.write_all(&offer.encode(&reserved.key)).await.unwrap();
    until(relay, "the spare is not kept", |stats| stats.spares > 0).await;
    let (mut client, hello) = (dial(at).await, hello(&reserved.token.to_string()));
    client.write_all(&hello).await.unwrap();
    let (mut start, mut came) = ([0; START], vec![0; hello.len()]);
    timeout(LIMIT, server.read_exact(&mut start)).await.expect("nobody comes").unwrap();
    timeout(LIMIT, server.read_exact(&mut came)).await.expect("no ClientHello comes").unwrap();
    assert_eq!(decode_start(&reserved.key, number, &start), Some(client.local_addr().unwrap()));
    assert_eq!(came, hello);
    (client, server)
}

/// What a side hears at the end.
async fn end_of(mut side: TcpStream) -> io::Result<usize> {
    timeout(LIMIT, side.read(&mut [0; 9])).await.expect("it does not end")
}

fn reset(socket: TcpStream) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

/// Passes a byte, so that all that was sent the other way has been acknowledged.
async fn answer(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"!").await.unwrap();
    timeout(LIMIT, to.read_exact(&mut [0])).await.expect("no answer comes").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_breaks_is_broken_for_its_server_and_one_that_ends_has_ended() {
    let relay = relay(TEST, 1, Allow::Any, Limits::default()).await;
    let (at, reserved) = (relay.endpoint().addr().addrs[0], Reserved::at(&relay, 2).await);
    let (client, server) = joined(&relay, at, &reserved, 1).await;
    drop(client);
    assert_eq!(end_of(server).await.unwrap(), 0);

    let (mut client, mut server) = joined(&relay, at, &reserved, 2).await;
    answer(&mut server, &mut client).await;
    reset(client);
    assert_eq!(end_of(server).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

    let (client, server) = joined(&relay, at, &reserved, 3).await;
    reset(server);
    assert_eq!(end_of(client).await.unwrap(), 0);
}

/// Sends more than the other side's kernel takes, and breaks when the relay has all of it.
async fn last_words(relay: &Relay, mut from: TcpStream, mut to: TcpStream) {
    let (before, words) = (relay.stats().bytes, vec![7_u8; LAST_WORDS]);
    timeout(LIMIT, from.write_all(&words)).await.expect("nobody takes it").unwrap();
    until(relay, "the relay does not take it", |stats| stats.bytes >= before + LAST_WORDS as u64).await;
    reset(from);
    until(relay, "the relay does not see the break", |stats| stats.splices == 0).await;
    let mut came = Vec::new();
    timeout(LIMIT, to.read_to_end(&mut came)).await.expect("it does not end").unwrap();
    assert!(came == words, "{} bytes came", came.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_side_of_a_relay_had_said_before_it_broke_reaches_the_other_with_an_end_behind_it() {
    let relay = relay(TEST, 3, Allow::Any, Limits::default()).await;
    let (at, reserved) = (relay.endpoint().addr().addrs[0], Reserved::at(&relay, 4).await);
    let (client, server) = joined(&relay, at, &reserved, 1).await;
    last_words(&relay, client, server).await;
    let (client, server) = joined(&relay, at, &reserved, 2).await;
    last_words(&relay, server, client).await;
}
