//! Clients that name others as the places where they hear of a move.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::lab_support::net::{Family, Net};
use crate::lab_support::traffic::Server;
use crate::lab_support::{ms, secs};
use crate::raw::{Identity, RawClient};
use whimbrel_lab::require;

/// Any; the sockets are on hosts of their own.
const PORT: u16 = 4711;

#[test]
fn a_client_elsewhere_cannot_have_a_listener_send_to_its_own_host_or_link() {
    if !require!() {
        return;
    }
    let net = Net::new(Family::V4);
    for (node, address) in [(&net.client, "169.254.7.7/16"), (&net.server, "169.254.7.1/16")] {
        node.host.add_address(net.link.end(&node.host).name(), address).unwrap();
    }
    let server = Server::start(&net.server, net.server.endpoint());
    let honest = SocketAddr::new(net.client.ip(), PORT);
    let [own, on_link, group] = ["127.0.0.1", "169.254.7.7", "224.0.0.1"].map(|ip| at(ip.parse().unwrap()));
    let bind = |at: SocketAddr| UdpSocket::bind(at).unwrap();
    let heard = net.client.host.run(|| bind(honest));
    let mut victims = net.client.host.run(|| vec![(on_link, bind(on_link)), (group, bind(group))]);
    victims.push((own, net.server.host.run(|| bind(own))));
    let named = victims.iter().map(|(victim, _)| *victim).chain([honest]).collect();
    let (address, id) = (SocketAddr::new(net.server.ip(), server.endpoint.port()), server.endpoint.id());
    let _client = net.client.host.run(|| RawClient::open_hearing(&Identity::new(), address, id, named));
    net.server.move_on();
    let mut buffer = [0; 2000];
    heard.set_read_timeout(Some(secs(10))).unwrap();
    heard.recv_from(&mut buffer).expect("the notice to the client's own address");
    for (victim, socket) in victims {
        socket.set_read_timeout(Some(ms(500))).unwrap();
        assert!(socket.recv_from(&mut buffer).is_err(), "{victim} was sent to");
    }
}

fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, PORT)
}
