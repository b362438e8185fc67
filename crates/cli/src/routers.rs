//! Having the routers of this host let peers in.

use std::time::Duration;

use whimbrel_portmap::{MapError, Mapped, Pinholes};

use crate::network::Network;
use crate::output;

/// How long a command waits for routers before it goes on.
const FIRST: Duration = Duration::from_secs(5);

/// Has routers pass the port on, and let it in at this host's IPv6 addresses. Waits a little for it, so that
/// what is told next has the places. Says what came of it.
pub(crate) async fn ask(network: &Network, quiet: bool) {
    let mut news = network.map_port();
    // What is known when the time is over is told as well.
    let _ = tokio::time::timeout(FIRST, news.wait_for(is_known)).await;
    for note in notes(&news.current()) {
        output::note(quiet, note);
    }
}

fn is_known(now: &Mapped) -> bool {
    (!now.places.is_empty() || now.problem.is_some()) && now.pinholes != Pinholes::Unknown
}

/// What a user is told of how it stands.
fn notes(now: &Mapped) -> Vec<String> {
    let list = |places: &[std::net::SocketAddr]| {
        places.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    };
    let mut notes = Vec::new();
    match &now.problem {
        _ if !now.places.is_empty() => notes.push(format!("the router passes {} on", list(&now.places))),
        // Where no port of IPv4 is wanted, IPv6 alone is told.
        Some(problem) if is_needless(problem) && matches!(now.pinholes, Pinholes::Open(_)) => {}
        Some(problem) => notes.push(problem.clone()),
        None => notes.push("the router has not answered yet; it is asked on".to_owned()),
    }
    match &now.pinholes {
        Pinholes::Open(places) => {
            notes.push(format!("the router's firewall lets peers in at {}", list(places)));
        }
        Pinholes::Closed(why) => {
            notes.push(format!("{why}; if it has a firewall, peers cannot come in over IPv6"));
        }
        _ => {}
    }
    notes
}

fn is_needless(problem: &str) -> bool {
    problem == MapError::NoRouter.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_told_of_and_what_has_no_use_is_not() {
        let told = |places: &[&str], problem: Option<&str>, pinholes: Pinholes| {
            let mut now = Mapped::default();
            now.places = places.iter().map(|place| place.parse().unwrap()).collect();
            now.problem = problem.map(str::to_owned);
            now.pinholes = pinholes;
            (is_known(&now), notes(&now))
        };
        let open = || Pinholes::Open(vec!["[2001:db8::2]:4433".parse().unwrap()]);
        let passed = "the router passes 192.0.2.1:4433 on".to_owned();
        let let_in = "the router's firewall lets peers in at [2001:db8::2]:4433".to_owned();
        assert_eq!(told(&["192.0.2.1:4433"], None, Pinholes::Needless), (true, vec![passed.clone()]));
        assert_eq!(told(&["192.0.2.1:4433"], None, open()), (true, vec![passed.clone(), let_in.clone()]));
        let no_router = MapError::NoRouter.to_string();
        assert_eq!(told(&[], Some(&no_router), open()), (true, vec![let_in.clone()]));
        assert_eq!(told(&[], Some(&no_router), Pinholes::Needless), (true, vec![no_router]));
        assert_eq!(told(&[], Some("no"), open()), (true, vec!["no".to_owned(), let_in]));
        let (known, notes) = told(&["192.0.2.1:4433"], None, Pinholes::Closed("no".to_owned()));
        assert!(known && notes[1].starts_with("no; if it has a firewall"), "{notes:?}");
        let (known, notes) = told(&[], None, Pinholes::Unknown);
        assert!(!known && notes.len() == 1 && notes[0].contains("not answered yet"), "{notes:?}");
        assert_eq!(told(&["192.0.2.1:4433"], None, Pinholes::Unknown), (false, vec![passed]));
    }
}
