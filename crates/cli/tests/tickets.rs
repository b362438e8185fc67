//! Tickets, which nobody signs: what they may say, and what they must not bring about.
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, SystemTime};

use crate::common::{LIMIT, Process, World, page, wait_for};
use whimbrel_base::{Record, SecretKey, SignedRecord, Ticket, UnixTime, next_sequence};
use whimbrel_transport::ManualMonitor;

const NAME: &str = "web.ada@example.org";

/// Somebody serves the name to all.
fn expose(world: &World, user: &str, to: &str) -> Process {
    let mut expose = world.start(user, &["expose", NAME, "--to", to, "--allow", "any", "--json"]);
    expose.next_json();
    expose
}

#[test]
fn a_ticket_does_not_change_what_is_pinned() {
    let (world, _names) = World::with_names();
    let _ada = expose(&world, "ada", &page("honest"));
    let (ada, eve) = (world.id("ada"), world.id("eve"));
    world.run("bob", &["trust", "accept", &format!("{NAME}={ada}")]).succeeded();
    let mut forged =
        world.start("eve", &["expose", "--ticket", "--to", &page("impostor"), "--allow", "any", "--json"]);
    let ticket = forged.next_json()["ticket"].as_str().unwrap().to_owned();
    let named = format!("{ticket}/{NAME}");
    world.run("bob", &["pipe", &named, "-q"]).failed(6, &["ANOTHER KEY", &eve]);
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "honest");
}

/// A ticket that eve printed, with these names written into it by hand.
fn forged<const N: usize>(world: &World, names: [&str; N]) -> (Process, [String; N]) {
    let args = ["expose", "--ticket", "--to", &page("impostor"), "--allow", "any", "--json"];
    let mut eve = world.start("eve", &args);
    let ticket = eve.next_json()["ticket"].as_str().unwrap().to_owned();
    (eve, names.map(|name| format!("{ticket}/{name}")))
}

#[test]
fn a_forged_ticket_is_told_by_an_owner_that_was_met_or_confirmed() {
    let (world, _names) = World::with_names();
    let _ada = expose(&world, "ada", &page("honest"));
    let user = "ada@example.org";
    let (_eve, [web, of_user, other]) = forged(&world, [NAME, user, "mail.ada@example.org"]);
    let (eve, owner) = (world.id("eve"), format!("{user}={}", world.id("ada")));

    // The owner was confirmed by hand, and its service was never met.
    world.run("bob", &["trust", "accept", &owner]).succeeded();
    let refused = world.run("bob", &["pipe", &web, "-q"]);
    refused.failed(6, &[NAME, "STANDS FOR ANOTHER KEY", &eve]);
    assert_eq!(refused.stdout, "");
    world.run("bob", &["pipe", &of_user, "-q"]).failed(6, &[user, "BELONGS TO ANOTHER KEY", &eve]);
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "honest");
    // It was met, and nobody confirmed it.
    world.run("carol", &["pipe", NAME]).succeeded();
    world.run("carol", &["pipe", &web, "-q"]).failed(6, &["when it was first used", &eve]);
    world.run("carol", &["pipe", &of_user, "-q"]).failed(6, &["when it was first used", &eve]);
    assert_eq!(world.run("carol", &["pipe", NAME]).succeeded().stdout.trim(), "honest");
    // A name of hers that nobody can say anything about: the ticket is used, and not believed.
    let used = world.run("carol", &["pipe", &other]);
    assert_eq!(used.succeeded().stdout.trim(), "impostor");
    assert!(used.stderr.contains("only the ticket says"), "{}", used.stderr);
    world.run("carol", &["trust", "show", "mail.ada@example.org"]).failed(3, &["not known"]);
}

#[test]
fn a_ticket_grants_no_access_to_whom_it_names() {
    let (world, _names) = World::with_names();
    let user = "ada@example.org";
    let _ada = expose(&world, "ada", &page("honest"));
    let (_eve, [web, of_user]) = forged(&world, [NAME, user]);
    // Ada is not known here: the tickets are used.
    for (by, ticket, name) in [("bob", &web, NAME), ("carol", &of_user, user)] {
        assert_eq!(world.run(by, &["pipe", ticket]).succeeded().stdout.trim(), "impostor");
        let own = format!("web.{by}@example.org");
        let args = ["expose", &own, "--to", "127.0.0.1:1", "--allow", name, "-q"];
        world.run(by, &args).failed(6, &[name, "grants no access"]);
    }
    // The ticket holds against a name service, and not against what is confirmed by hand.
    world.run("bob", &["pipe", NAME, "-q"]).failed(6, &["ANOTHER KEY", "from a ticket"]);
    world.run("bob", &["trust", "accept", &format!("{user}={}", world.id("ada"))]).succeeded();
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "honest");
    let args = ["expose", "--ticket", "--to", &page("secret"), "--allow", NAME, "--json"];
    let mut bob = world.start("bob", &args);
    let ticket = bob.next_json()["ticket"].as_str().unwrap().to_owned();
    wait_for("ada to be let in by her name", || {
        (world.run("ada", &["pipe", &ticket]).stdout.trim() == "secret").then_some(())
    });
    world.run("eve", &["pipe", &ticket, "-q"]).failed(5, &["not on the list"]);
}

/// The ticket is a way in, and nothing else is: not the id, not a part of the ticket, not another secret.
#[test]
fn a_ticket_with_a_secret_lets_its_holder_in_and_nobody_else() {
    let (world, _names) = World::with_names();
    let to = page("come in");
    world.run("ada", &["expose", NAME, "--to", &to, "--secret"]).failed(2, &["--secret", "ticket"]);
    let mut ada = world.start("ada", &["expose", NAME, "--to", &to, "--ticket", "--secret", "--json"]);
    let said = ada.next_json();
    let (ticket, port) = (said["ticket"].as_str().unwrap().to_owned(), said["port"].to_string());
    assert_eq!(world.run("bob", &["pipe", &ticket]).succeeded().stdout.trim(), "come in");

    let secret = ticket.split('/').find(|part| part.starts_with("key-")).unwrap();
    let without = ticket.replace(&format!("/{secret}"), "");
    let refused = world.run("eve", &["pipe", &without, "-q"]);
    refused.failed(5, &["not on the list"]);
    // Of another start of the same command, and so of a secret that was real.
    let mut other = world.start("eve", &["expose", "--to", &to, "--ticket", "--secret", "--json"]);
    let others = other.next_json()["ticket"].as_str().unwrap().to_owned();
    let others = others.split('/').find(|part| part.starts_with("key-")).unwrap().to_owned();
    let guessed = world.run("eve", &["pipe", &ticket.replace(secret, &others), "-q"]);
    assert_eq!(guessed.stderr, refused.stderr, "a wrong secret looks like none");
    world.run("eve", &["pipe", NAME, "-q"]).failed(5, &["not on the list"]);
    // It ends with the command.
    ada.kill();
    let args = ["expose", NAME, "--to", &to, "--ticket", "--secret", "--json", "--port", &port];
    let mut again = world.start("ada", &args);
    again.next_json();
    world.run("bob", &["pipe", &ticket, "-q"]).failed(5, &["not on the list"]);
}

/// Eve has others dial what listens on their own hosts. Places on the dialler's host count only where there
/// are no others, as they do for services that never leave a host.
#[test]
fn neither_a_ticket_nor_a_record_has_us_dial_what_listens_on_our_own_host() {
    let (world, _names) = World::with_names();
    let eve = SecretKey::generate();
    let elsewhere: SocketAddr = "192.0.2.1:443".parse().unwrap();
    let traps: [Trap; 4] = std::array::from_fn(|_| Trap::new());
    let [hidden, alone, published, published_alone] = traps.each_ref().map(|trap| trap.address);
    let ticket = |places: &[SocketAddr]| Ticket::new(eve.id(), places.iter().copied(), None).to_string();
    let names = ["web.eve@example.org", "alone.eve@example.org"];
    publish(&world, &eve, [(names[0], &[elsewhere, published]), (names[1], &[published_alone])]);
    world.id("bob");
    let peers = [ticket(&[elsewhere, hidden]), ticket(&[alone]), names[0].into(), names[1].into()];
    // A dialler gives up after its time; all at once wait no longer than one.
    let pipes = peers.each_ref().map(|peer| world.start("bob", &["pipe", peer, "-q"]));
    pipes.into_iter().for_each(|pipe| pipe.output(2 * LIMIT).failed(4, &[]));
    assert_eq!(traps.each_ref().map(Trap::was_dialled), [false, true, false, true]);
}

#[test]
fn a_ticket_tells_private_addresses_unless_its_operator_wants_public_ones_alone() {
    let world = World::new();
    let places = |user: &str, more: &[&str]| {
        let expose = ["expose", "--ticket", "--to", &page("honest"), "--allow", "any", "--json"];
        let expose = [&expose[..], &["--advertise", "203.0.113.9:4433"], more].concat();
        let said = world.start(user, &expose).next_json();
        let ticket: Ticket = said["ticket"].as_str().unwrap().parse().unwrap();
        ticket.addrs().iter().map(|place| place.ip().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(places("ada", &[]), ["203.0.113.9".to_owned(), world.address("ada")]);
    assert_eq!(places("bob", &["--advertise", "public"]), ["203.0.113.9"]);
}

/// Something on this host that is for nobody else.
struct Trap {
    tcp: TcpListener,
    udp: UdpSocket,
    address: SocketAddr,
}

impl Trap {
    fn new() -> Self {
        // A port that is free for both.
        let both = (0..100).find_map(|_| {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            let udp = UdpSocket::bind(tcp.local_addr().unwrap()).ok()?;
            Some((tcp, udp))
        });
        let (tcp, udp) = both.unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        let address = tcp.local_addr().unwrap();
        Self { tcp, udp, address }
    }

    fn was_dialled(&self) -> bool {
        self.tcp.accept().is_ok() || self.udp.recv_from(&mut [0; 2048]).is_ok()
    }
}

/// Publishes records with whatever places.
fn publish(world: &World, key: &SecretKey, records: [(&str, &[SocketAddr]); 2]) {
    let at = ManualMonitor::new([world.address("liar").parse().unwrap()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service: whimbrel::ServiceAddress = world.service().parse().unwrap();
        let endpoint = whimbrel::Endpoint::builder().identity(key.clone()).monitor(at).names(service);
        let endpoint = endpoint.bind().await.unwrap();
        endpoint.register_user("eve@example.org").await.unwrap();
        for (name, places) in records {
            let now = UnixTime::from(SystemTime::now());
            let record = Record {
                name: name.parse().unwrap(),
                id: key.id(),
                addrs: places.to_vec(),
                sequence: next_sequence(None, now.as_millis()),
                expires: now.saturating_add(Duration::from_secs(3600)),
                lifetime: Duration::from_secs(600),
                revoked: false,
            };
            let record = SignedRecord::sign(record, key, None).unwrap();
            endpoint.names().unwrap().publish_record(record).await.unwrap();
        }
    });
}
