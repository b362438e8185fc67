//! Names as hosts: what a program that knows hosts only writes for an endpoint.
//!
//! `ssh.laptop.ada@example.org` is the host `ssh.laptop.ada.at.example.org.whimbrel`: the label `at` stands
//! for the `@`. A label of the name that is `at` itself, or any number of `x-` and `at`, has one more `x-`
//! before it: `at.ada@example.org` is `x-at.ada.at.example.org.whimbrel`. So each name has one host, and no
//! two have the same. What ends in `.whimbrel` is never looked up in DNS.

use crate::whole::Whole;
use crate::{Destination, InSession, Reached, Reaching, Streams, Upstream, UpstreamError};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use whimbrel_access::Intents;
use whimbrel_base::Name;
use whimbrel_multiaccess::Client;

/// The last label of hosts that are names.
const TOP: &str = "whimbrel";
/// Stands for the `@`.
const AT: &str = "at";
/// Before a label that could be taken for it.
const ESCAPE: &str = "x-";
/// For a stream to the endpoint, also while this side is moving.
const LIMIT: Duration = Duration::from_secs(30);

/// The host that stands for a name; `None` if the name is too long to be one.
///
/// ```
/// let name = "ssh.laptop.ada@example.org".parse()?;
/// let host = whimbrel_proxy::host_of_name(&name);
/// assert_eq!(host.as_deref(), Some("ssh.laptop.ada.at.example.org.whimbrel"));
/// assert_eq!(whimbrel_proxy::name_of_host("ssh.laptop.ada.at.example.org.whimbrel"), Some(name));
/// # Ok::<(), whimbrel_base::NameError>(())
/// ```
pub fn host_of_name(name: &Name) -> Option<String> {
    let (local, domain) = name.as_str().split_once('@')?;
    let escaped = |part: &str| part.split('.').map(escape).collect::<Vec<_>>().join(".");
    let host = format!("{}.{AT}.{}.{TOP}", escaped(local), escaped(domain));
    let fits = |host: &str| Destination::new(host, 1).is_ok_and(|to| to.host() == host);
    Some(host).filter(|host| fits(host))
}

/// The name that a host stands for; `None` if it is no host of that kind.
pub fn name_of_host(host: &str) -> Option<Name> {
    let labels: Vec<&str> = host.strip_suffix(TOP)?.strip_suffix('.')?.split('.').collect();
    let at = labels.iter().position(|label| *label == AT)?;
    let plain = |labels: &[&str]| labels.iter().map(|label| unescape(label)).collect::<Vec<_>>().join(".");
    let name: Name = format!("{}@{}", plain(&labels[..at]), plain(&labels[at + 1..])).parse().ok()?;
    // Anything that is not exactly what stands for a name stands for none.
    Some(name).filter(|name| host_of_name(name).as_deref() == Some(host))
}

/// Whether a host is of this kind, be it right or wrong: DNS has nothing to do with it.
pub fn is_whimbrel_host(host: &str) -> bool {
    host == TOP || host.strip_suffix(TOP).is_some_and(|rest| rest.ends_with('.'))
}

/// What to say of such a host where names as hosts are not known.
pub(crate) fn not_here(to: &Destination) -> UpstreamError {
    let why = "it stands for a name, and none is listed here (--host)".to_owned();
    UpstreamError::NoWay { to: to.to_string(), why }
}

fn could_be_at(label: &str) -> bool {
    let mut rest = label;
    while let Some(shorter) = rest.strip_prefix(ESCAPE) {
        rest = shorter;
    }
    rest == AT
}

fn escape(label: &str) -> String {
    if could_be_at(label) { format!("{ESCAPE}{label}") } else { label.to_owned() }
}

fn unescape(label: &str) -> &str {
    match label.strip_prefix(ESCAPE) {
        Some(rest) if could_be_at(rest) => rest,
        _ => label,
    }
}

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

    fn session<'a>(&'a self, to: &'a Destination) -> Option<InSession<'a>> {
        if is_whimbrel_host(to.host()) { None } else { self.rest.session(to) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Opening;
    use proptest::prelude::*;

    fn host(name: &str) -> Option<String> {
        host_of_name(&name.parse().unwrap())
    }

    #[test]
    fn each_name_has_its_host() {
        for (name, expected) in [
            ("ada@example.org", "ada.at.example.org.whimbrel"),
            ("ssh.laptop.ada@example.org", "ssh.laptop.ada.at.example.org.whimbrel"),
            ("at@at", "x-at.at.x-at.whimbrel"),
            ("x-at.x-x-at.at@x-a.at.whimbrel", "x-x-at.x-x-x-at.x-at.at.x-a.x-at.whimbrel.whimbrel"),
        ] {
            assert_eq!(host(name).as_deref(), Some(expected));
            assert_eq!(name_of_host(expected).unwrap().as_str(), name);
        }
        assert_eq!(host(&format!("a@{}", "b.".repeat(125) + "b")), None, "too long");
        assert_eq!(host(&format!("{}at@b", "x-".repeat(30))), None, "too long a label");
    }

    #[test]
    fn other_hosts_stand_for_no_name() {
        for other in [
            "",
            "whimbrel",
            ".whimbrel",
            "example.org",
            "ada.example.org.whimbrel",
            "at.example.org.whimbrel",
            "ada.at.whimbrel",
            "ada.at.at.whimbrel",
            "ada.at.example.at.whimbrel",
            "a.b.c.d.at.example.org.whimbrel",
            "Ada.at.example.org.whimbrel",
            "ada.at.example.org.whimbrel.",
            "ada.at.example.org.nowhimbrel",
            "ada_.at.example.org.whimbrel",
        ] {
            assert_eq!(name_of_host(other), None, "{other}");
        }
        assert!(is_whimbrel_host("whimbrel") && is_whimbrel_host("x.whimbrel"));
        assert!(!is_whimbrel_host("xwhimbrel") && !is_whimbrel_host("whimbrel.org"));
    }

    proptest! {
        #[test]
        fn names_and_hosts_stand_for_each_other(
            local in "(x-){0,3}(at|a|ad-a|x)(\\.(x-){0,3}(at|b|x)){0,2}",
            domain in "(x-){0,3}(at|org|whimbrel)(\\.(x-){0,3}(at|c|whimbrel)){0,3}",
        ) {
            let name: Name = format!("{local}@{domain}").parse().unwrap();
            let host = host_of_name(&name).unwrap();
            prop_assert_eq!(name_of_host(&host), Some(name));
        }

        #[test]
        fn a_host_that_stands_for_a_name_is_its_only_one(
            host in "((x-)?(at|a|b)\\.){1,7}whimbrel|\\PC{0,30}\\.whimbrel",
        ) {
            if let Some(name) = name_of_host(&host) {
                prop_assert_eq!(host_of_name(&name), Some(host));
            }
        }
    }

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
