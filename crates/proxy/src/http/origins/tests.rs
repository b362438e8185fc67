//! Which requests wait for a turn, and which connections go with their network.

use super::*;
use crate::{Managed, Reaching};
use whimbrel_multiaccess::Client;
use whimbrel_multiaccess::protocol::Way;

const HOUR: Duration = Duration::from_secs(3600);

/// Where every host is another one.
struct Elsewhere;

impl Upstream for Elsewhere {
    fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
        let why = "nobody asks".to_owned();
        Box::pin(std::future::ready(Err(UpstreamError::NoWay { to: to.to_string(), why })))
    }
}

async fn has_turns(upstream: impl Upstream, here: bool, host: &str) -> bool {
    let rules = Rules { each: 1, here, rest: HOUR, limit: HOUR };
    let origins = Origins::new(Arc::new(upstream), rules);
    origins.turn(&Destination::new(host, 80).unwrap(), "", false).await.is_some()
}

#[tokio::test]
async fn nothing_of_this_host_waits_unless_it_is_to_or_it_is_another_hosts() {
    let from_here = || Managed::new(Client::off());
    for host in ["127.0.0.1", "0.0.0.0", "::", "localhost"] {
        assert!(!has_turns(from_here(), false, host).await, "{host}");
        assert!(has_turns(from_here(), true, host).await, "{host}");
        assert!(has_turns(Elsewhere, false, host).await, "{host}");
    }
    assert!(has_turns(from_here(), false, "192.0.2.1").await);
}

#[tokio::test]
async fn when_a_network_fails_nothing_on_it_to_that_server_is_offered_any_more_and_all_else_is() {
    let rules = Rules { each: 1, here: false, rest: HOUR, limit: HOUR };
    let origins = Origins::new(Arc::new(Elsewhere), rules);
    let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|host| Destination::new(host, 80).unwrap());
    let by = |network: &str| {
        let destination = Some("192.0.2.1:80".parse().unwrap());
        Candidate::of_way(Way { interface: network.to_owned(), destination, ..Way::default() })
    };
    let mut servers = Vec::new();
    for (id, to, network) in [(1, &one, "wlan0"), (2, &one, "usb0"), (3, &other, "wlan0")] {
        let (stream, server) = tokio::io::duplex(1 << 10);
        servers.push(server);
        let speaks = Speaks::One(Speaker::start(Box::new(stream)).await.unwrap());
        let line = Line::new(id, to.clone(), speaks, Some([10, 0, 0, 1].into()), by(network));
        origins.keep(Box::new(line));
    }
    let offered = |to| origins.offers(to).iter().map(|offer| offer.open.id).collect::<Vec<_>>();
    assert_eq!((offered(&one), offered(&other)), (vec![1, 2], vec![3]));
    origins.failed(&one, &by("wlan0").unwrap()).await;
    assert_eq!((offered(&one), offered(&other)), (vec![2], vec![3]));
    origins.failed_meanwhile(&other, &by("wlan0").unwrap());
    assert_eq!((offered(&one), offered(&other)), (vec![2], vec![]));
}
