//! Endpoints that programs reach by their [names as hosts](crate::host_of_name).

use crate::whole::Whole;
use crate::{
    Choosing, Destination, InSession, Reached, Reaching, Streams, Upstream, UpstreamError, host_of_name,
    is_whimbrel_host, name_of_host,
};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use whimbrel_access::Intents;
use whimbrel_base::Name;
use whimbrel_multiaccess::Client;

/// For a stream to the endpoint, also while this side is moving.
const LIMIT: Duration = Duration::from_secs(30);

/// Reaches the names that the user listed, by Whimbrel, and no others.
#[derive(Default)]
pub struct WhimbrelHosts {
    listed: HashMap<Destination, Listed>,
}

struct Listed {
    name: Name,
    streams: Arc<dyn Streams>,
}

impl WhimbrelHosts {
    /// Lets a name be reached on a port, over these streams. Returns the host that stands for it; `None` if
    /// the name is too long to be one, or the port is 0.
    pub fn list(&mut self, name: Name, port: u16, streams: Arc<dyn Streams>) -> Option<String> {
        let host = host_of_name(&name)?;
        let to = Destination::new(&host, port).ok()?;
        self.listed.insert(to, Listed { name, streams });
        Some(host)
    }

    fn find(&self, to: &Destination) -> Result<&Listed, UpstreamError> {
        if let Some(listed) = self.listed.get(to) {
            return Ok(listed);
        }
        let (shown, port) = (to.to_string(), to.port());
        Err(match name_of_host(to.host()) {
            Some(name) => UpstreamError::Refused {
                to: shown,
                why: format!("list it with --host {name}:{port}, if programs are to use it with your key"),
            },
            None => UpstreamError::NoWay {
                to: shown,
                why: "a name is written as in ssh.laptop.user.at.example.org.whimbrel".to_owned(),
            },
        })
    }
}

impl Upstream for WhimbrelHosts {
    fn reach<'a>(&'a self, to: &'a Destination, _intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let listed = self.find(to)?;
            let opened = tokio::time::timeout(LIMIT, listed.streams.open()).await;
            match opened {
                Ok(Ok(stream)) => Ok(Reached {
                    stream: Box::new(Whole::new(stream)),
                    by: format!("{} by Whimbrel", listed.name),
                    network: None,
                }),
                Ok(Err(why)) => Err(UpstreamError::NoWay { to: to.to_string(), why }),
                Err(_) => Err(UpstreamError::Unreachable {
                    to: to.to_string(),
                    source: io::ErrorKind::TimedOut.into(),
                }),
            }
        })
    }

    fn knows(&self, to: &Destination) -> Result<(), UpstreamError> {
        self.find(to).map(drop)
    }
}

/// Names as hosts by Whimbrel, and everything else another way.
pub struct Routed {
    hosts: WhimbrelHosts,
    rest: Arc<dyn Upstream>,
}

impl Routed {
    /// These names, and this way for the rest.
    pub fn new(hosts: WhimbrelHosts, rest: Arc<dyn Upstream>) -> Self {
        Self { hosts, rest }
    }
}

impl Upstream for Routed {
    fn reach<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Reaching<'a> {
        match is_whimbrel_host(to.host()) {
            true => self.hosts.reach(to, intents),
            false => self.rest.reach(to, intents),
        }
    }

    fn knows(&self, to: &Destination) -> Result<(), UpstreamError> {
        if is_whimbrel_host(to.host()) { self.hosts.knows(to) } else { self.rest.knows(to) }
    }

    fn manager(&self, to: &Destination) -> Option<&Client> {
        if is_whimbrel_host(to.host()) { None } else { self.rest.manager(to) }
    }

    fn is_here(&self, to: &Destination) -> bool {
        !is_whimbrel_host(to.host()) && self.rest.is_here(to)
    }

    fn choose<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Option<Choosing<'a>> {
        if is_whimbrel_host(to.host()) { None } else { self.rest.choose(to, intents) }
    }

    fn session<'a>(&'a self, to: &'a Destination) -> Option<InSession<'a>> {
        if is_whimbrel_host(to.host()) { None } else { self.rest.session(to) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Opening;

    struct Nobody;

    impl Streams for Nobody {
        fn open(&self) -> Opening<'_> {
            Box::pin(std::future::ready(Err("nobody is there".to_owned())))
        }
    }

    /// What must not be asked.
    struct Dns;

    impl Upstream for Dns {
        fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
            let why = "asked in DNS".to_owned();
            Box::pin(std::future::ready(Err(UpstreamError::NoWay { to: to.to_string(), why })))
        }
    }

    #[tokio::test]
    async fn only_listed_hosts_and_ports_are_reached_and_dns_hears_of_none() {
        let mut hosts = WhimbrelHosts::default();
        let host = hosts.list("web.home.ada@example.org".parse().unwrap(), 80, Arc::new(Nobody)).unwrap();
        let routed = Routed::new(hosts, Arc::new(Dns));
        let says = async |to: String| {
            let to: Destination = to.parse().unwrap();
            routed.reach(&to, &Intents::default()).await.err().unwrap().to_string()
        };
        assert!(says(format!("{host}:80")).await.contains("nobody is there"));
        assert!(says(format!("{host}:22")).await.contains("--host web.home.ada@example.org:22"));
        assert!(says("ssh.home.ada.at.example.org.whimbrel:80".to_owned()).await.contains("is refused"));
        assert!(says("nonsense.whimbrel:80".to_owned()).await.contains("a name is written as"));
        assert!(says("whimbrel:80".to_owned()).await.contains("a name is written as"));
        assert!(says("example.org:80".to_owned()).await.contains("asked in DNS"));
    }
}
