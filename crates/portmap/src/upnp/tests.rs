#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::wish::HIGH;
use super::*;

const VERSION_1: &str = SERVICES[0];
const PPP: &str = SERVICES[1];
const NONCE: Nonce = [0x1234_5678, 2, 3];
const INSIDE: NonZeroU16 = NonZeroU16::new(4433).unwrap();

/// What routers differ in, and what one passes on.
#[derive(Default)]
struct Model {
    /// Says nothing of its address.
    has_no_address: bool,
    is_for_ever_only: bool,
    is_same_only: bool,
    /// What it chooses, if it knows how to.
    choice: Option<u16>,
    /// The inner port is another host's outside.
    is_taken: bool,
    /// So many others as well, of those that are asked for next.
    others_taken: usize,
    passed: Vec<String>,
    asked: Vec<String>,
}

impl Model {
    fn answer(&mut self, request: &str) -> String {
        let action = between(request, "#", "\"");
        self.asked.push(action.to_owned());
        let (status, inner) = match self.act(action, request) {
            Ok(inner) => ("200 OK", format!("<u:{action}Response>{inner}</u:{action}Response>")),
            Err(code) => (
                "500 Internal Server Error",
                format!(
                    "<s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail>\
                     <UPnPError><errorCode>{code}</errorCode></UPnPError></detail></s:Fault>"
                ),
            ),
        };
        let body = format!("<?xml version=\"1.0\"?><s:Envelope><s:Body>{inner}</s:Body></s:Envelope>");
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    /// What it answers, or the code of its refusal.
    fn act(&mut self, action: &str, request: &str) -> Result<String, u16> {
        let outside: u16 = between(request, "<NewExternalPort>", "<").parse().unwrap_or_default();
        let which = format!("{} {outside}", between(request, "<NewProtocol>", "<"));
        match action {
            "GetExternalIPAddress" if self.has_no_address => Ok("<NewExternalIPAddress/>".to_owned()),
            "GetExternalIPAddress" => {
                Ok("<NewExternalIPAddress>203.0.113.9</NewExternalIPAddress>".to_owned())
            }
            "AddPortMapping" => self.pass_on(outside, request).map(|()| String::new()),
            "AddAnyPortMapping" => {
                let chosen = self.choice.ok_or(401u16)?;
                self.pass_on(chosen, request)?;
                Ok(format!("<NewReservedPort>{chosen}</NewReservedPort>"))
            }
            "DeletePortMapping" => {
                let before = self.passed.len();
                self.passed.retain(|passed| !passed.starts_with(&which));
                if self.passed.len() < before { Ok(String::new()) } else { Err(714) }
            }
            _ => Err(401),
        }
    }

    fn pass_on(&mut self, outside: u16, request: &str) -> Result<(), u16> {
        let value = |name: &str| between(request, &format!("<{name}>"), "<").to_owned();
        let (inside, lease) = (value("NewInternalPort"), value("NewLeaseDuration"));
        let is_same = inside == outside.to_string();
        if self.is_for_ever_only && lease != "0" {
            return Err(725);
        }
        if self.is_same_only && !is_same {
            return Err(724);
        }
        if is_same && self.is_taken {
            return Err(718);
        }
        if !is_same && self.others_taken > 0 {
            self.others_taken -= 1;
            return Err(718);
        }
        let (protocol, client) = (value("NewProtocol"), value("NewInternalClient"));
        let passed = format!("{protocol} {outside} to {client}:{inside} for {lease}");
        if !self.passed.contains(&passed) {
            self.passed.push(passed);
        }
        Ok(())
    }
}

/// What stands behind the first of these words and before the next one, if anything does.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let behind = text.split_once(before).map_or("", |(_, behind)| behind);
    behind.split_once(after).map_or("", |(found, _)| found)
}

/// A service of such a router on this host.
async fn router(kind: &'static str, model: Model) -> (Gateway, Arc<Mutex<Model>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/ctl", listener.local_addr().unwrap());
    let model = Arc::new(Mutex::new(model));
    tokio::spawn(serve(listener, model.clone()));
    let own = Ipv4Addr::LOCALHOST;
    (Gateway { own, service: Service::at(own.into(), kind, &url).unwrap() }, model)
}

async fn serve(listener: TcpListener, model: Arc<Mutex<Model>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = request(&mut stream).await;
        let answer = model.lock().unwrap().answer(&request);
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

async fn request(stream: &mut TcpStream) -> String {
    let mut heard = Vec::new();
    while !heard.ends_with(b"</s:Envelope>\r\n") {
        let size = stream.read_buf(&mut heard).await.unwrap();
        assert_ne!(size, 0, "it breaks off");
    }
    String::from_utf8(heard).unwrap()
}

fn outside(port: u16) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], port))
}

async fn add(gateway: &Gateway) -> Result<(SocketAddr, Duration), UpnpError> {
    gateway.add(InternetProtocol::Udp, INSIDE, NONCE).await
}

#[tokio::test]
async fn a_port_that_is_free_is_passed_on_until_it_is_given_back() {
    for kind in SERVICES {
        let (gateway, model) = router(kind, Model::default()).await;
        assert_eq!(add(&gateway).await.unwrap(), (outside(4433), LIFETIME));
        assert_eq!(model.lock().unwrap().passed, ["UDP 4433 to 127.0.0.1:4433 for 3600"]);
        let is_other = gateway.remove(InternetProtocol::Tcp, 4433).await.unwrap_err();
        assert_eq!(is_other.to_string(), "it refuses by UPnP: it does not pass that port on");
        gateway.remove(InternetProtocol::Udp, 4433).await.unwrap();
        assert!(model.lock().unwrap().passed.is_empty());
    }
}

#[tokio::test]
async fn where_another_host_has_the_port_further_ones_are_tried() {
    let taken = Model { is_taken: true, others_taken: 3, ..Model::default() };
    let (gateway, model) = router(PPP, taken).await;
    let (at, _) = add(&gateway).await.unwrap();
    assert!(at.port() >= HIGH && at == outside(at.port()), "{at}");
    let model = model.lock().unwrap();
    assert_eq!(model.passed, [format!("UDP {} to 127.0.0.1:4433 for 3600", at.port())]);
    let adding = model.asked.iter().filter(|action| *action == "AddPortMapping").count();
    assert_eq!(adding, 5, "{:?}", model.asked);
}

#[tokio::test]
async fn a_router_all_of_whose_ports_are_taken_is_not_asked_without_end() {
    let full = Model { is_taken: true, others_taken: usize::MAX, ..Model::default() };
    let (gateway, model) = router(VERSION_1, full).await;
    let refused = add(&gateway).await.unwrap_err();
    assert_eq!(refused.to_string(), "it refuses by UPnP: another host has that port");
    assert_eq!(model.lock().unwrap().asked.len(), 23, "its address, the port, and 21 others");
}

#[tokio::test]
async fn a_router_that_can_choose_does() {
    let choosing = Model { is_taken: true, choice: Some(50_000), ..Model::default() };
    let (gateway, model) = router(VERSION_2, choosing).await;
    assert_eq!(add(&gateway).await.unwrap(), (outside(50_000), LIFETIME));
    assert_eq!(model.lock().unwrap().passed, ["UDP 50000 to 127.0.0.1:4433 for 3600"]);

    // It says that it can, and does not.
    let (gateway, model) = router(VERSION_2, Model { is_taken: true, ..Model::default() }).await;
    let (at, _) = add(&gateway).await.unwrap();
    assert!(at.port() >= HIGH, "{at}");
    let asked = ["GetExternalIPAddress", "AddPortMapping", "AddAnyPortMapping", "AddPortMapping"];
    assert_eq!(model.lock().unwrap().asked, asked);
}

#[tokio::test]
async fn a_router_that_keeps_no_time_passes_the_port_on_until_it_is_given_back() {
    let (gateway, model) = router(VERSION_1, Model { is_for_ever_only: true, ..Model::default() }).await;
    assert_eq!(add(&gateway).await.unwrap(), (outside(4433), LIFETIME));
    assert_eq!(model.lock().unwrap().passed, ["UDP 4433 to 127.0.0.1:4433 for 0"]);
}

#[tokio::test]
async fn a_router_that_is_asked_again_and_again_goes_on_with_the_port_that_it_has_passed_on() {
    let models =
        [false, true].map(|is_for_ever_only| Model { is_taken: true, is_for_ever_only, ..Model::default() });
    for model in models {
        let (gateway, model) = router(VERSION_1, model).await;
        let (at, _) = add(&gateway).await.unwrap();
        for _ in 0..3 {
            assert_eq!(add(&gateway).await.unwrap(), (at, LIFETIME));
        }
        assert_eq!(model.lock().unwrap().passed.len(), 1, "none is left behind");
    }
}

#[tokio::test]
async fn a_refusal_is_told_in_words() {
    let same = Model { is_taken: true, is_same_only: true, ..Model::default() };
    let (gateway, model) = router(VERSION_1, same).await;
    let refused = add(&gateway).await.unwrap_err();
    let words = "it refuses by UPnP: it passes a port on as the same one alone, which is not to be had";
    assert_eq!(refused.to_string(), words);
    assert!(model.lock().unwrap().passed.is_empty());

    let (gateway, _) = router(VERSION_1, Model { has_no_address: true, ..Model::default() }).await;
    assert!(matches!(add(&gateway).await.unwrap_err(), UpnpError::Garbled));
}
