//! On loopback, whose addresses are machines here.
#![allow(clippy::unwrap_used)]

use tokio::net::TcpListener;

use super::*;

const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ROUTER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// For what happens soon, on a busy machine too.
const LONG: Duration = Duration::from_secs(20);
const KINDS: [&str; 1] = ["urn:schemas-upnp-org:service:WANIPConnection:1"];

fn search_for_the_router() -> Search {
    let router = SocketAddr::new(ROUTER.into(), 0);
    Search { own: OWN.into(), router, targets: &KINDS, services: &KINDS, missing: "such service" }
}

/// A device that answers searches.
async fn device(ip: Ipv4Addr) -> UdpSocket {
    UdpSocket::bind((ip, 0)).await.unwrap()
}

/// Where a device describes itself, with a service of this kind.
async fn page(ip: Ipv4Addr, kind: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let service = format!("<serviceType>{kind}</serviceType><controlURL>/ctl</controlURL>");
        let body = format!("<root><device><service>{service}</service></device></root>");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let size = stream.read_buf(&mut asked).await.unwrap();
                assert_ne!(size, 0, "it breaks off");
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    at
}

/// What a search for the router finds that is sent to `hearing`, where each time these devices name these
/// pages.
async fn found_with(hearing: &UdpSocket, answers: &[(&UdpSocket, SocketAddr)]) -> Result<Service, UpnpError> {
    let to = hearing.local_addr().unwrap();
    tokio::select! {
        found = search_for_the_router().find_by(to) => found,
        () = answer_all(hearing, answers) => panic!("it stops answering"),
    }
}

async fn answer_all(hearing: &UdpSocket, answers: &[(&UdpSocket, SocketAddr)]) {
    loop {
        let from = searched(hearing).await;
        for (device, page) in answers {
            answer(device, *page, from).await;
        }
    }
}

/// Hears one search: where it comes from.
async fn searched(hearing: &UdpSocket) -> SocketAddr {
    let mut datagram = [0; LONGEST];
    let (size, from) = hearing.recv_from(&mut datagram).await.unwrap();
    let asked = String::from_utf8_lossy(&datagram[..size]).into_owned();
    assert!(asked.starts_with("M-SEARCH * HTTP/1.1\r\n"), "{asked}");
    from
}

async fn answer(device: &UdpSocket, page: SocketAddr, to: SocketAddr) {
    let answer = format!("HTTP/1.1 200 OK\r\nLOCATION: http://{page}/rootDesc.xml\r\n\r\n");
    device.send_to(answer.as_bytes(), to).await.unwrap();
}

#[tokio::test]
async fn the_router_is_found_where_another_device_answers_first() {
    let (router, stranger) = (device(ROUTER).await, device(STRANGER).await);
    let [kind] = KINDS;
    // The router is a printer as well.
    let printer = page(ROUTER, "urn:schemas-upnp-org:service:PrintBasic:1").await;
    let (own_page, strangers) = (page(ROUTER, kind).await, page(STRANGER, kind).await);
    let answers = [
        (&stranger, strangers),
        (&stranger, own_page),
        (&router, strangers),
        (&router, printer),
        (&router, own_page),
    ];
    let found = found_with(&router, &answers).await.unwrap();
    let asked = found.question("GetExternalIPAddress", &[]);
    assert!(asked.starts_with(&format!("POST /ctl HTTP/1.1\r\nHost: {own_page}\r\n")), "{asked}");
}

#[tokio::test]
async fn where_no_device_is_the_router_it_is_said_what_came_instead() {
    let (router, stranger) = (device(ROUTER).await, device(STRANGER).await);
    let nothing = found_with(&router, &[]).await.unwrap_err();
    assert_eq!(nothing.to_string(), "it does not answer to UPnP");

    let [kind] = KINDS;
    let strangers = page(STRANGER, kind).await;
    let other = found_with(&device(ROUTER).await, &[(&stranger, strangers)]).await.unwrap_err();
    assert_eq!(other.to_string(), "127.0.0.3 answered to UPnP, which is not the router");
}

#[tokio::test]
async fn a_router_that_has_not_what_is_looked_for_says_so() {
    let router = device(ROUTER).await;
    let printer = page(ROUTER, "urn:schemas-upnp-org:service:PrintBasic:1").await;
    let nothing = found_with(&router, &[(&router, printer)]).await.unwrap_err();
    assert_eq!(nothing.to_string(), "by UPnP it has no such service");
}

/// A device that says this over HTTP to whoever asks, again and again until nobody listens.
async fn saying(ip: Ipv4Addr, head: String, again: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        while !again.is_empty() && stream.write_all(again.as_bytes()).await.is_ok() {}
        // Until the other side has ended it too.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    at
}

/// What comes of asking a device something.
async fn asked(at: SocketAddr) -> Result<Answer, UpnpError> {
    let [kind] = KINDS;
    let service = Service::at(OWN.into(), kind, &format!("http://{at}/ctl")).unwrap();
    service.ask("GetExternalIPAddress", &[], LONG).await
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_for_long() {
    for head in [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    ] {
        let endless = saying(ROUTER, head.to_owned(), "<a><b>and so on</b>").await;
        let garbled = asked(endless).await.unwrap_err();
        assert!(matches!(garbled, UpnpError::Garbled), "{head}: {garbled}");
    }
}

#[tokio::test]
async fn a_router_that_sends_to_another_machine_is_not_followed() {
    let stranger = std::net::TcpListener::bind((STRANGER, 0)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    for status in ["301 Moved Permanently", "307 Temporary Redirect", "200 OK"] {
        let there = stranger.local_addr().unwrap();
        let head = format!("HTTP/1.1 {status}\r\nLocation: http://{there}/\r\nContent-Length: 0\r\n\r\n");
        let answer = asked(saying(ROUTER, head, "").await).await;
        match answer {
            Ok(answer) => assert_eq!(answer.value("NewExternalIPAddress"), None),
            Err(error) => assert!(matches!(error, UpnpError::Garbled), "{status}: {error}"),
        }
    }
    assert_eq!(stranger.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "somebody came to it");
}
