//! On loopback, whose addresses are machines here.
#![allow(clippy::unwrap_used)]

use tokio::net::TcpListener;

use super::*;

const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ROUTER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
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
    let answering = async {
        let from = searched(&router).await;
        answer(&stranger, strangers, from).await;
        answer(&stranger, own_page, from).await;
        answer(&router, strangers, from).await;
        answer(&router, printer, from).await;
        answer(&router, own_page, from).await;
    };
    let to = router.local_addr().unwrap();
    let (found, ()) = tokio::join!(search_for_the_router().find_by(to), answering);
    let asked = found.unwrap().question("GetExternalIPAddress", &[]);
    assert!(asked.starts_with(&format!("POST /ctl HTTP/1.1\r\nHost: {own_page}\r\n")), "{asked}");
}

#[tokio::test]
async fn where_no_device_is_the_router_it_is_said_what_came_instead() {
    let (router, stranger) = (device(ROUTER).await, device(STRANGER).await);
    let to = router.local_addr().unwrap();
    let nothing = search_for_the_router().find_by(to).await.unwrap_err();
    assert_eq!(nothing.to_string(), "it does not answer to UPnP");

    let [kind] = KINDS;
    let strangers = page(STRANGER, kind).await;
    let answering = async { answer(&stranger, strangers, searched(&router).await).await };
    // That of the search before has no answer: each one has its own socket.
    let search = async {
        searched(&router).await;
        searched(&router).await;
        tokio::join!(search_for_the_router().find_by(to), answering).0
    };
    let other = search.await.unwrap_err();
    assert_eq!(other.to_string(), "127.0.0.3 answered to UPnP, which is not the router");
}

#[tokio::test]
async fn a_router_that_has_not_what_is_looked_for_says_so() {
    let router = device(ROUTER).await;
    let printer = page(ROUTER, "urn:schemas-upnp-org:service:PrintBasic:1").await;
    let answering = async { answer(&router, printer, searched(&router).await).await };
    let to = router.local_addr().unwrap();
    let (found, ()) = tokio::join!(search_for_the_router().find_by(to), answering);
    assert_eq!(found.unwrap_err().to_string(), "by UPnP it has no such service");
}
