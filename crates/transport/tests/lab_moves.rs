//! One side moves while a connection carries data: real hosts, real address events, every byte compared.
#![allow(clippy::unwrap_used)]

mod lab_support;

use lab_support::net::{Family, Net, Watch};
use lab_support::traffic::{Server, Transfer, Way};
use whimbrel_lab::require;

const TOTAL: u64 = 12_000_000;

#[derive(Debug, Clone, Copy)]
enum Mover {
    Client,
    Server,
}

/// Moves one side in the middle of a transfer.
fn one_side_moves(mover: Mover, way: Way, family: Family) {
    let net = Net::new(family);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut watch = Watch::new(&connection);
    let transfer = Transfer::start(&net.client, &connection, &server, way, TOTAL);
    transfer.reach(&net.client, TOTAL / 3);
    let now_at = match mover {
        Mover::Client => net.client.move_on(),
        Mover::Server => net.server.move_on(),
    };
    let took = net.client.wait(watch.recovery());
    let paths = connection.stats().paths;
    transfer.finish(&net.client);
    eprintln!("{mover:?} moved, {way:?}, {family:?}: recovered after {took:?}");
    let end = match mover {
        Mover::Client => paths[0].local,
        Mover::Server => paths[0].remote,
    };
    assert_eq!(end.ip(), now_at);
}

macro_rules! one_side_moves {
    ($($name:ident: $mover:ident $way:ident $family:ident;)*) => {
        $(#[test]
        fn $name() {
            if require!() {
                one_side_moves(Mover::$mover, Way::$way, Family::$family);
            }
        })*
    };
}

one_side_moves! {
    the_client_moves_while_it_uploads_over_ipv4: Client Up V4;
    the_client_moves_while_it_uploads_over_ipv6: Client Up V6;
    the_client_moves_while_it_downloads_over_ipv4: Client Down V4;
    the_client_moves_while_it_downloads_over_ipv6: Client Down V6;
    the_server_moves_while_it_is_uploaded_to_over_ipv4: Server Up V4;
    the_server_moves_while_it_is_uploaded_to_over_ipv6: Server Up V6;
    the_server_moves_while_it_is_downloaded_from_over_ipv4: Server Down V4;
    the_server_moves_while_it_is_downloaded_from_over_ipv6: Server Down V6;
}
