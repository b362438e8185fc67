//! What a domain's owner says in DNS of the service that has its names: `--prove-domain`.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use hickory_resolver::Resolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RData;
use whimbrel_base::EndpointId;
use whimbrel_multiaccess::DnsSockets;
use whimbrel_names::proof::{check_proof, proof_name};
use whimbrel_names::{Domain, DomainProof, ProofError};
use whimbrel_transport::BoxFuture;

/// How long a DNS server may take to answer, before it is asked once more.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Proved domains that are remembered; others are asked about again.
const MAX_PROVED: usize = 256;

/// Which domains' names need proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhichDomain {
    Any,
    One(Domain),
}

impl FromStr for WhichDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        text.parse()
            .map(Self::One)
            .map_err(|error: whimbrel_names::admission::AdmissionError| error.to_string())
    }
}

impl fmt::Display for WhichDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::One(domain) => domain.as_str(),
        })
    }
}

/// Asks DNS servers. What was proved once counts until the program ends: names stay usable without DNS.
pub(crate) struct Dns {
    which: Vec<WhichDomain>,
    resolver: Resolver<DnsSockets>,
    proved: Mutex<HashSet<String>>,
}

impl Dns {
    /// The proof for these domains, by this server or the system's; none where no domain needs one.
    ///
    /// # Errors
    /// When the system's DNS servers are not known.
    pub(crate) fn proof(which: &[WhichDomain], server: Option<SocketAddr>) -> Result<Option<Self>> {
        if which.is_empty() {
            return Ok(None);
        }
        let mut builder = match server {
            Some(server) => {
                let config = ResolverConfig::from_name_servers(vec![name_server(server)]);
                Resolver::builder_with_config(config, DnsSockets::routed())
            }
            None => Resolver::builder(DnsSockets::routed())
                .context("cannot find out which DNS servers this system uses; give one with --dns")?,
        };
        let options = builder.options_mut();
        options.timeout = ANSWER_LIMIT;
        options.attempts = 1;
        let resolver = builder.build().context("cannot use DNS")?;
        Ok(Some(Self { which: which.to_vec(), resolver, proved: Mutex::default() }))
    }

    fn needs_proof(&self, domain: &str) -> bool {
        self.which.iter().any(|which| match which {
            WhichDomain::Any => true,
            WhichDomain::One(one) => one.as_str() == domain,
        })
    }

    async fn texts(&self, domain: &str) -> Result<Vec<String>, String> {
        let found = match self.resolver.txt_lookup(proof_name(domain)).await {
            Ok(found) => found,
            Err(error) if is_nothing_there(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        let records = found.answers().iter().filter_map(|record| match &record.data {
            RData::TXT(text) => Some(String::from_utf8_lossy(&text.txt_data.concat()).into_owned()),
            _ => None,
        });
        Ok(records.collect())
    }
}

fn name_server(server: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(server.ip());
    for connection in &mut config.connections {
        connection.port = server.port();
    }
    config
}

/// Whether the domain's DNS answered that there is no such record; a server that is broken says something
/// else.
fn is_nothing_there(error: &NetError) -> bool {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => {
            matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError)
        }
        _ => false,
    }
}

impl DomainProof for Dns {
    fn prove<'a>(&'a self, domain: &'a str, service: EndpointId) -> BoxFuture<'a, Result<(), ProofError>> {
        Box::pin(async move {
            let proved = || self.proved.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.needs_proof(domain) || proved().contains(domain) {
                return Ok(());
            }
            let texts = self.texts(domain).await;
            let texts = texts.map_err(|why| ProofError::Unreachable { domain: domain.to_owned(), why })?;
            check_proof(domain, service, texts.iter().map(String::as_str))?;
            let mut proved = proved();
            if proved.len() < MAX_PROVED {
                proved.insert(domain.to_owned());
            }
            Ok(())
        })
    }
}
