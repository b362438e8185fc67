//! Names that programs may reach as hosts, as flags list them.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use whimbrel_base::Name;
use whimbrel_proxy::{Opening, Streams, WhimbrelHosts, host_of_name};

use crate::failure::{self, Failure};
use crate::lasting::Lasting;
use crate::network::{Network, Peer};

/// What a browser takes for `http://`.
const PORT: u16 = 80;

/// A name, and the port on which programs may reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedHost {
    name: Name,
    port: u16,
}

impl FromStr for ListedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (name, port.ok_or("a port is a number from 1 to 65535")?)
            }
            None => (text, PORT),
        };
        let name: Name = name.parse().map_err(|error: whimbrel_base::NameError| error.to_string())?;
        match host_of_name(&name) {
            Some(_) => Ok(Self { name, port }),
            None => Err(format!("{name} is too long to be a host")),
        }
    }
}

impl ListedHost {
    /// The host and the port, as programs write them.
    pub(crate) fn shown(&self) -> String {
        format!("{}:{}", host_of_name(&self.name).unwrap_or_default(), self.port)
    }
}

/// Lists these, each name over connections of its own, which are made when they are first needed.
///
/// # Errors
/// When there is nobody to ask for a name.
pub(crate) fn list(into: &mut WhimbrelHosts, hosts: &[ListedHost], network: &Arc<Network>) -> Result<()> {
    if !hosts.is_empty() {
        network.needs_to_resolve()?;
    }
    let mut lasting: HashMap<&Name, Arc<Lasting>> = HashMap::new();
    for host in hosts {
        let new = || Arc::new(Lasting::new(network.clone(), Peer::Name(host.name.clone())));
        let streams = Arc::clone(lasting.entry(&host.name).or_insert_with(new));
        if into.list(host.name.clone(), host.port, streams).is_none() {
            return Err(Failure::usage(format!("{} is too long to be a host", host.name)));
        }
    }
    Ok(())
}

impl Streams for Lasting {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { self.stream().await.map_err(|error| failure::line(&error)) })
    }

    fn unreachable(&self) -> Option<Duration> {
        self.out_of_reach()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_listed_host_is_a_name_and_a_port() {
        let host: ListedHost = "web.home.ada@example.org".parse().unwrap();
        assert_eq!(host.shown(), "web.home.ada.at.example.org.whimbrel:80");
        let host: ListedHost = "ssh.home.ada@example.org:22".parse().unwrap();
        assert_eq!(host.shown(), "ssh.home.ada.at.example.org.whimbrel:22");
        for wrong in ["", "example.org", "a@b:0", "a@b:x", "a@b:80:80", "a@b:"] {
            assert!(wrong.parse::<ListedHost>().is_err(), "{wrong}");
        }
    }
}
