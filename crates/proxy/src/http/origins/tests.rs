//! Which requests wait for a turn.

use super::*;
use crate::{Managed, Reaching};
use whimbrel_multiaccess::Client;

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
