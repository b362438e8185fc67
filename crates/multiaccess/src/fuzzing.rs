//! What fuzz targets need: lines of a client, heard by the parts of a manager that no socket is needed for.

use crate::decide::Candidate;
use crate::genl::Generic;
use crate::helper::words;
use crate::nl80211;
use crate::paths::Numbers;
use crate::request::{self, Said};
use crate::shared::Shared;
use crate::target::Target;
use crate::{AccessPath, Paths, Prefix, Routes, Settings};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use whimbrel_access::{BytesPerSecond, Cost, PathEstimate, Seconds};

/// Hears these lines as those of one client, which also is the program that decides. Panics if a decision is
/// none that the lines allow. The helper hears them too, and they are read as the kernel's words of Wi-Fi.
pub fn client(lines: &[u8]) {
    heard_of_wifi(lines);
    let gateway = "gate.home.ada@example.org".parse().ok();
    let metered = vec!["usb0".to_owned()];
    let settings = Settings { metered, gateway, external: Some(1), ..Settings::default() };
    let shared = Shared::new(settings).expect("the default policy");
    let mut numbers = Numbers::new(&shared.settings);
    shared.publish(Paths::of(paths(), &shared.settings, &mut numbers));
    let mut questions = None;
    for line in lines.split(|byte| *byte == b'\n') {
        heard_by_the_helper(line);
        let Ok(Some((_, said))) = request::decode(line) else { continue };
        match said {
            Said::Ask(ask) => {
                let (endpoint, candidates) = match request::target(&ask) {
                    Ok(Target::Addresses(candidates)) => (None, candidates),
                    Ok(Target::Endpoint(name)) => (Some(name), Vec::new()),
                    Ok(Target::Name { port, .. }) => {
                        let address = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), port);
                        (None, vec![Candidate { address, interface: Some(2) }])
                    }
                    Err(refusal) => {
                        assert!(!refusal.is_busy && !refusal.why.is_empty());
                        continue;
                    }
                };
                shared.question(1, &ask, &candidates);
                let verdict = shared.answer(1, &ask, endpoint.as_ref(), &candidates, None);
                let Ok(verdict) = verdict else { continue };
                let by_whimbrel = verdict.whimbrel.iter().flat_map(|whimbrel| &whimbrel.ways);
                for way in verdict.ways.iter().chain(by_whimbrel) {
                    assert!(["wlan0", "usb0"].contains(&way.interface.as_str()), "{way:?}");
                    let costs = way.interface == "usb0" && ask.intents.cost == Some(Cost::NoExpense);
                    assert!(!costs, "{way:?}");
                }
                // What is under way may stay where it is.
                let is_answered = !verdict.ways.is_empty() || ask.under_way.is_some();
                assert!(is_answered || !verdict.problems.is_empty(), "nothing is said");
            }
            Said::Report(report) => drop(shared.note(1, report)),
            Said::Policy(offer) => questions = shared.external.offer(1, &offer.name).ok().or(questions),
            Said::Choose(chosen) => {
                let _ = shared.external.chosen(1, chosen);
            }
            Said::Watch(_) | Said::Steer(_) => {}
        }
    }
    shared.gone(1);
    assert!(shared.paths().estimates().iter().all(|estimate| estimate.objects == 0));
}

/// Panics if an order that is understood is another one when it is said again.
fn heard_by_the_helper(line: &[u8]) {
    if let Ok(order) = words::decode(line) {
        let again = serde_json::to_vec(&order).expect("an order can be said");
        assert_eq!(words::decode(&again), Ok(order));
    }
}

/// Reads these as the kernel's words of Wi-Fi, a command first.
fn heard_of_wifi(words: &[u8]) {
    let Some((command, attributes)) = words.split_first() else { return };
    let told = Generic { family: 0, command: *command, attributes: attributes.to_vec() };
    let _ = (nl80211::interface(&told), nl80211::station(&told));
    if let Some(channel) = nl80211::channel(&told) {
        assert_eq!(channel.busy_since(channel), None, "no time has passed");
    }
}

fn paths() -> Vec<AccessPath> {
    let path = |index: u8, name: &str, rtt: f64| {
        let (address, anywhere) = (IpAddr::from([10, 0, index, 1]), IpAddr::from([0, 0, 0, 0]));
        let mut routes = Routes::default();
        routes.add(Prefix::new(anywhere, 0));
        AccessPath {
            index: index.into(),
            interface: name.to_owned(),
            addresses: vec![address],
            prefixes: vec![Prefix::new(address, 24)],
            routes: Arc::new(routes),
            estimate: PathEstimate::known(Seconds(rtt), BytesPerSecond(1e6)),
        }
    };
    vec![path(1, "wlan0", 0.02), path(2, "usb0", 0.05)]
}
