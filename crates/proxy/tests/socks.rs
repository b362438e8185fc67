//! The SOCKS proxy over real sockets, byte by byte.
#![allow(clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Client;
use whimbrel_proxy::{Credentials, Destination, Managed, Reaching, Socks, Upstream, UpstreamError};

const LIMIT: Duration = Duration::from_secs(20);

/// Connects as the system does, to these hosts alone; others fail as their name says.
struct Known(Vec<(&'static str, SocketAddr)>);

impl Upstream for Known {
    fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let shown = to.to_string();
            let fail = |kind: io::ErrorKind| {
                Err(UpstreamError::Unreachable { to: shown.clone(), source: kind.into() })
            };
            match to.host() {
                "refused.example" => fail(io::ErrorKind::ConnectionRefused),
                "unreachable.example" => fail(io::ErrorKind::HostUnreachable),
                "no-network.example" => fail(io::ErrorKind::NetworkUnreachable),
                "slow.example" => fail(io::ErrorKind::TimedOut),
                "forbidden.example" => Err(UpstreamError::Refused { to: shown, why: String::new() }),
                "unknown.example" => Err(UpstreamError::NoWay { to: shown, why: String::new() }),
                host => {
                    let (_, address) = self.0.iter().find(|(name, _)| *name == host).unwrap();
                    let here = address.to_string().parse().unwrap();
                    Managed::new(Client::at("/nowhere".as_ref())).reach(&here, &Intents::default()).await
                }
            }
        })
    }
}

/// Answers each connection with all that it read, once its end has come.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut all = Vec::new();
                if socket.read_to_end(&mut all).await.is_ok() {
                    let _ = socket.write_all(&all).await;
                }
            });
        }
    });
    address
}

async fn serve(socks: Socks) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { socks.serve(listener).await });
    address
}

async fn proxy() -> SocketAddr {
    let here = echo().await;
    let known = vec![("echo.example", here), ("192.0.2.1", here), ("2001:db8::1", here)];
    serve(Socks::new(Arc::new(Known(known)), None)).await
}

/// Says something, ends its direction, and returns all that comes back.
async fn whole(proxy: SocketAddr, says: &[&[u8]]) -> Vec<u8> {
    let mut socket = TcpStream::connect(proxy).await.unwrap();
    socket.write_all(&says.concat()).await.unwrap();
    let _ = socket.shutdown().await;
    let mut all = Vec::new();
    timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap().unwrap();
    all
}

const OPEN: &[u8] = &[5, 1, 0];
const DONE: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn named(host: &str) -> Vec<u8> {
    let length = u8::try_from(host.len()).unwrap();
    [&[5, 1, 0, 3, length], host.as_bytes(), &[0, 80]].concat()
}

#[tokio::test]
async fn names_and_addresses_of_both_kinds_are_connected_to_and_both_ends_are_passed_on() {
    let proxy = proxy().await;
    let v6 = [&[5, 1, 0, 4, 0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1, 0, 80]].concat();
    for request in [named("echo.example"), named("ECHO.example."), vec![5, 1, 0, 1, 192, 0, 2, 1, 0, 80], v6]
    {
        // The echo comes once the end has.
        let all = whole(proxy, &[OPEN, &request, b"hello"]).await;
        assert_eq!(all, [&[5, 0], &DONE[..], b"hello"].concat(), "{request:?}");
    }
    let v4 = whole(proxy, &[b"\x04\x01\0\x50\xc0\0\x02\x01ada\0", b"hello"]).await;
    assert_eq!(v4, b"\0\x5a\0\0\0\0\0\0hello");
    let v4a = whole(proxy, &[b"\x04\x01\0\x50\0\0\0\x07\0echo.example\0hello"]).await;
    assert_eq!(v4a, b"\0\x5a\0\0\0\0\0\0hello");
}

#[tokio::test]
async fn what_comes_byte_by_byte_is_understood() {
    let proxy = proxy().await;
    let mut socket = TcpStream::connect(proxy).await.unwrap();
    socket.set_nodelay(true).unwrap();
    for byte in [OPEN, &named("echo.example"), b"hello"].concat() {
        socket.write_all(&[byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    socket.shutdown().await.unwrap();
    let mut all = Vec::new();
    timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, [&[5, 0], &DONE[..], b"hello"].concat());
}

#[tokio::test]
async fn what_is_not_reached_is_told_by_the_reply_of_its_kind() {
    let proxy = proxy().await;
    for (host, code) in [
        ("refused.example", 5),
        ("unreachable.example", 4),
        ("no-network.example", 3),
        ("slow.example", 4),
        ("forbidden.example", 2),
        ("unknown.example", 4),
    ] {
        let all = whole(proxy, &[OPEN, &named(host)]).await;
        assert_eq!(all, [5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{host}");
    }
    let v4 = whole(proxy, &[b"\x04\x01\0\x50\0\0\0\x07\0refused.example\0"]).await;
    assert_eq!(v4, b"\0\x5b\0\0\0\0\0\0");
}

/// The same hosts, over a network that somebody chose.
struct Over(&'static str, Known);

impl Upstream for Over {
    fn reach<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let mut reached = self.1.reach(to, intents).await?;
            reached.network = Some(self.0.to_owned());
            Ok(reached)
        })
    }
}

#[tokio::test]
async fn what_was_reached_and_what_each_network_carried_is_told() {
    let known = Known(vec![("echo.example", echo().await)]);
    let socks = Socks::new(Arc::new(Over("wlan0", known)), None);
    let proxy = serve(socks.clone()).await;
    assert_eq!((socks.stats().connected, socks.stats().failed), (0, 0));
    for _ in 0..2 {
        whole(proxy, &[OPEN, &named("echo.example"), b"hello"]).await;
    }
    whole(proxy, &[OPEN, &named("refused.example")]).await;
    assert_eq!((socks.stats().connected, socks.stats().failed), (2, 1));
    let told = socks.networks();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].network.as_str(), told[0].received, told[0].sent), ("wlan0", 10, 10));
    let begun = std::time::Instant::now();
    while socks.stats().connections > 0 {
        assert!(begun.elapsed() < LIMIT, "{:?}", socks.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _held = TcpStream::connect(proxy).await.unwrap();
    while socks.stats().connections < 1 {
        assert!(begun.elapsed() < LIMIT, "{:?}", socks.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn bind_and_udp_are_refused_with_the_reply_for_that() {
    let proxy = proxy().await;
    for command in [2, 3] {
        let all = whole(proxy, &[OPEN, &[5, command, 0, 1, 192, 0, 2, 1, 0, 80]]).await;
        assert_eq!(all[2..4], [5, 7], "{command}");
    }
    let all = whole(proxy, &[b"\x04\x02\0\x50\xc0\0\x02\x01\0"]).await;
    assert_eq!(all[..2], [0, 91]);
}

#[tokio::test]
async fn who_does_not_speak_socks_gets_no_answer() {
    let proxy = proxy().await;
    for first in [
        &b"GET http://echo.example/ HTTP/1.1\r\nHost: echo.example\r\n\r\n"[..],
        b"CONNECT echo.example:80 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\0",
        &[0xff; 4000],
        &[&b"\x04\x01\0\x50\xc0\0\x02\x01"[..], &[b'a'; 4000]].concat(),
        &[],
    ] {
        let mut socket = TcpStream::connect(proxy).await.unwrap();
        let _ = socket.write_all(first).await;
        let _ = socket.shutdown().await;
        let mut all = Vec::new();
        // Unread bytes may make the end a reset.
        let _ = timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap();
        assert!(all.is_empty(), "{first:?}: {all:?}");
    }
    let all = whole(proxy, &[&[5, 2, 1, 2]]).await;
    assert_eq!(all, [5, 0xff], "no way of showing who one is that is known here");
    let all = whole(proxy, &[OPEN, &named("a\r\nb")]).await;
    assert_eq!(all[2..4], [5, 1]);
}

#[tokio::test]
async fn with_credentials_only_their_users_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).unwrap();
    std::fs::write(&file, "ada:secret\n").unwrap();
    let known = Known(vec![("echo.example", echo().await)]);
    let credentials = Credentials::read(&file).unwrap();
    let proxy = serve(Socks::new(Arc::new(known), Some(credentials))).await;
    let asks: &[u8] = &[5, 2, 0, 2];
    let all = whole(proxy, &[asks, b"\x01\x03ada\x06secret", &named("echo.example"), b"hello"]).await;
    assert_eq!(all, [&[5, 2, 1, 0], &DONE[..], b"hello"].concat());
    for login in
        [&b"\x01\x03ada\x05wrong"[..], b"\x01\x03bob\x06secret", b"\x01\0\0", b"\x05\x03ada\x06secret"]
    {
        let all = whole(proxy, &[asks, login, &named("echo.example"), b"hello"]).await;
        assert_eq!(all, [5, 2, 1, 1], "{login:?}");
    }
    assert_eq!(whole(proxy, &[OPEN, &named("echo.example")]).await, [5, 0xff]);
    let v4 = whole(proxy, &[b"\x04\x01\0\x50\0\0\0\x07ada\0echo.example\0"]).await;
    assert_eq!(v4, b"\0\x5b\0\0\0\0\0\0", "SOCKS4 has no passwords");
}

#[tokio::test]
async fn slow_programs_are_left_and_too_many_are_closed() {
    let known = Known(vec![("echo.example", echo().await)]);
    let socks = Socks::new(Arc::new(known), None).with_connections(8);
    let proxy = serve(socks.with_handshake_limit(Duration::from_secs(2))).await;
    let mut slow = Vec::new();
    for part in [&b""[..], b"\x05", OPEN, &[5, 1, 0, 5, 1], b"\x04\x01", b"", b"", b""] {
        let mut socket = TcpStream::connect(proxy).await.unwrap();
        socket.write_all(part).await.unwrap();
        slow.push(socket);
    }
    // Connections are accepted in order: all places are taken when it is the ninth's turn.
    let mut ninth = TcpStream::connect(proxy).await.unwrap();
    let mut byte = [0];
    let closed = timeout(LIMIT, ninth.read(&mut byte)).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    for mut socket in slow {
        let mut all = Vec::new();
        let _ = timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap();
    }
    let all = whole(proxy, &[OPEN, &named("echo.example"), b"hello"]).await;
    assert!(all.ends_with(b"hello"), "the places are free again");
}

/// Names as hosts that lead here, and whether anybody was led.
struct Names(SocketAddr, Arc<AtomicUsize>);

impl Upstream for Names {
    fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if to.port() == 22 {
                return Err(UpstreamError::NoWay { to: to.to_string(), why: String::new() });
            }
            let here = self.0.to_string().parse().unwrap();
            Managed::new(Client::at("/nowhere".as_ref())).reach(&here, &Intents::default()).await
        })
    }

    fn knows(&self, to: &Destination) -> Result<(), UpstreamError> {
        match to.host() {
            "web.whimbrel" => Ok(()),
            _ => Err(UpstreamError::Refused { to: to.to_string(), why: String::new() }),
        }
    }
}

async fn names() -> (SocketAddr, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let names = Names(echo().await, Arc::clone(&reached));
    (serve(Socks::new(Arc::new(names), None)).await, reached)
}

#[tokio::test]
async fn a_browser_is_judged_before_a_name_is_reached_and_reads_why_also_behind_a_long_body() {
    let (proxy, reached) = names().await;
    let page = b"POST / HTTP/1.1\r\nHost: web.whimbrel\r\nOrigin: http://evil.example\r\n\r\n";
    let stun = b"\0\x03\0\x08\x21\x12\xa4\x42";
    for words in [&page[..], b"GET / HTTP/1.1\r\nUser-Agent: Mozilla/5.0\r\n\r\n", stun] {
        let mut socket = TcpStream::connect(proxy).await.unwrap();
        let body = vec![b'x'; 1 << 20];
        socket.write_all(&[OPEN, &named("web.whimbrel"), words, &body].concat()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut all = Vec::new();
        timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&all[12..]).contains("403 Forbidden"), "{all:?}");
    }
    let refused = whole(proxy, &[OPEN, &named("other.whimbrel")]).await;
    assert_eq!(refused[2..4], [5, 2]);
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_program_that_speaks_late_is_judged_as_well_and_one_whose_name_is_not_reached_is_cut_off() {
    let (proxy, reached) = names().await;
    assert!(whole(proxy, &[OPEN, &named("web.whimbrel"), b"hello"]).await.ends_with(b"hello"));
    for (words, passes) in [(&b"hello"[..], true), (b"GET / HTTP/1.1\r\nOrigin: null\r\n\r\n", false)] {
        let before = reached.load(Ordering::SeqCst);
        let mut socket = TcpStream::connect(proxy).await.unwrap();
        socket.write_all(&[OPEN, &named("web.whimbrel")].concat()).await.unwrap();
        let begun = std::time::Instant::now();
        while reached.load(Ordering::SeqCst) == before {
            assert!(begun.elapsed() < LIMIT, "a service that begins is not reached");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        socket.write_all(words).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut all = Vec::new();
        timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all.ends_with(words), passes, "{all:?}");
        assert_eq!(String::from_utf8_lossy(&all).contains("403 Forbidden"), !passes);
    }
    let mut socket = TcpStream::connect(proxy).await.unwrap();
    let gone = [OPEN, &[5, 1, 0, 3, 12], b"web.whimbrel", &[0, 22]].concat();
    socket.write_all(&gone).await.unwrap();
    let mut all = Vec::new();
    let error = timeout(LIMIT, socket.read_to_end(&mut all)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_connection_that_breaks_looks_broken_on_the_other_side() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let known = Known(vec![("breaks.example", listener.local_addr().unwrap())]);
    let proxy = serve(Socks::new(Arc::new(known), None)).await;
    let open = async || {
        let mut socket = TcpStream::connect(proxy).await.unwrap();
        socket.write_all(&[OPEN, &named("breaks.example"), b"half"].concat()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut seen = [0; 12];
        socket.read_exact(&mut seen).await.unwrap();
        server.read_exact(&mut seen[..4]).await.unwrap();
        (socket, server)
    };
    let abort = |socket: TcpStream| {
        let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    };
    let (mut program, server) = open().await;
    abort(server);
    let error = timeout(LIMIT, program.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "the program sees half a file");
    let (program, mut server) = open().await;
    abort(program);
    let error = timeout(LIMIT, server.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "the server sees half a file");
}
