//! A router's IPv6 firewall that is asked by UPnP: what it is told (WANIPv6FirewallControl:1).

use std::net::{Ipv6Addr, SocketAddrV6};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::InternetProtocol;

use crate::device::{Search, Service, UpnpError};
use crate::pcp::number;

/// The service of a router that controls its IPv6 firewall.
const SERVICES: [&str; 1] = ["urn:schemas-upnp-org:service:WANIPv6FirewallControl:1"];
/// For an answer.
const TALK: Duration = Duration::from_secs(1);

/// A router's firewall, and an address of this host behind it.
#[derive(Clone, Debug)]
pub(crate) struct Firewall {
    own: Ipv6Addr,
    service: Service,
}

/// A port that it lets in.
#[derive(Clone, Debug)]
pub(crate) struct LetIn {
    firewall: Firewall,
    number: u16,
}

impl Firewall {
    /// Finds that of a router, for an address of this host. Takes 2.5 seconds at most. Cancel-safe.
    pub(crate) async fn find(own: Ipv6Addr, router: SocketAddrV6) -> Result<Self, UpnpError> {
        let search = Search {
            own: own.into(),
            router: router.into(),
            targets: &SERVICES,
            services: &SERVICES,
            missing: "IPv6 firewall that can be asked",
        };
        Ok(Self { own, service: search.find().await? })
    }

    /// Has a port let in, for so long. If it is already, that goes on. Takes a second at most.
    pub(crate) async fn open(
        self,
        protocol: InternetProtocol,
        port: NonZeroU16,
        lifetime: Duration,
    ) -> Result<LetIn, UpnpError> {
        let wanted = self.wanted(protocol, port, lifetime);
        let answer = self.service.ask("AddPinhole", &wanted, TALK).await?;
        let number = answer.value("UniqueID").and_then(|number| number.parse().ok());
        Ok(LetIn { number: number.ok_or(UpnpError::Garbled)?, firewall: self })
    }

    fn wanted(
        &self,
        protocol: InternetProtocol,
        port: NonZeroU16,
        lifetime: Duration,
    ) -> [(&'static str, String); 6] {
        [
            // From wherever, and whichever port.
            ("RemoteHost", String::new()),
            ("RemotePort", "0".to_owned()),
            ("InternalClient", self.own.to_string()),
            ("InternalPort", port.to_string()),
            ("Protocol", number(protocol).to_string()),
            ("LeaseTime", lifetime.as_secs().to_string()),
        ]
    }
}

impl LetIn {
    /// Tells the router that it is no longer needed. Takes a second at most.
    pub(crate) async fn close(self) -> Result<(), UpnpError> {
        let which = [("UniqueID", self.number.to_string())];
        self.firewall.service.ask("DeletePinhole", &which, TALK).await.map(drop)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_a_firewall_is_laid_out_as_its_service_says() {
        let own: Ipv6Addr = "2001:db8:1::20".parse().unwrap();
        let [service] = SERVICES;
        let url = "http://[2001:db8:1::1]:34899/ctl/IP6FCtl";
        let firewall = Firewall { own, service: Service::at(own.into(), service, url).unwrap() };
        let port = NonZeroU16::new(4433).unwrap();
        let wanted = firewall.wanted(InternetProtocol::Udp, port, Duration::from_secs(3600));
        let asked = firewall.service.question("AddPinhole", &wanted);
        let (head, body) = asked.split_once("\r\n\r\n").unwrap();
        let lines: Vec<&str> = head.lines().collect();
        assert_eq!(lines[..2], ["POST /ctl/IP6FCtl HTTP/1.1", "Host: [2001:db8:1::1]:34899"]);
        assert!(lines.contains(&format!("SOAPAction: \"{service}#AddPinhole\"").as_str()), "{head}");
        assert!(lines.contains(&format!("Content-Length: {}", body.len()).as_str()), "{head}");
        let arguments = "<RemoteHost></RemoteHost><RemotePort>0</RemotePort><InternalClient>2001:db8:1::20\
                         </InternalClient><InternalPort>4433</InternalPort><Protocol>17</Protocol>\
                         <LeaseTime>3600</LeaseTime>";
        assert!(
            body.contains(&format!("<u:AddPinhole xmlns:u=\"{service}\">{arguments}</u:AddPinhole>")),
            "{body}"
        );
    }
}
