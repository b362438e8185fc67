//! Connections to servers of hosts that are intercepted: none is used before its server has shown who it is.

use super::recent::Recent;
use crate::intercept::{HTTP2, Servers, Unsecured};
use crate::{Destination, Duplex, UpstreamError};
use std::time::Duration;

/// Hosts that pass through untouched are remembered for so long.
const UNTOUCHED: Duration = Duration::from_secs(600);
/// So many of them.
const REMEMBERED: usize = 1024;

/// TLS towards servers, and which hosts it is not for.
pub(super) struct Secured {
    servers: Servers,
    untouched: Recent<()>,
}

impl Secured {
    pub(super) fn new(servers: Servers) -> Self {
        Self { servers, untouched: Recent::new(REMEMBERED, UNTOUCHED) }
    }

    /// Agrees on TLS with the server of a new connection, which is HTTP/1.1 if the message wants it `alone`.
    /// Returns whether it carries several messages at once, as with HTTP/2.
    ///
    /// # Errors
    /// When its certificate is refused, or it and this proxy do not suit each other: then the host's next
    /// tunnels pass through untouched.
    pub(super) async fn secure(
        &self,
        to: &Destination,
        stream: Box<dyn Duplex>,
        alone: bool,
    ) -> Result<(Box<dyn Duplex>, bool), UpstreamError> {
        let no_way = |why| UpstreamError::NoWay { to: to.to_string(), why };
        match self.servers.secure(to, stream, alone).await {
            Ok(stream) => {
                let carries_several = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
                let stream: Box<dyn Duplex> = Box::new(stream);
                Ok((stream, carries_several))
            }
            Err(Unsecured::Certificate(why)) => {
                Err(no_way(format!("its certificate is refused, and nothing was said to it: {why}")))
            }
            Err(Unsecured::Unsuited(why)) => {
                self.leave_untouched(to);
                Err(no_way(format!("it is for the browser to speak with it ({why}): load it again")))
            }
            Err(Unsecured::Failed(source)) => Err(UpstreamError::Unreachable { to: to.to_string(), source }),
        }
    }

    /// Whether tunnels to this host are to pass through untouched.
    pub(super) fn leaves_untouched(&self, to: &Destination) -> bool {
        self.untouched.of(to).is_some()
    }

    /// From now on they are.
    pub(super) fn leave_untouched(&self, to: &Destination) {
        self.untouched.put(to, ());
    }
}
