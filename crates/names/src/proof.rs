//! Proof that a domain's owner wants its names served by this name service.
//!
//! The owner publishes the service's key in DNS: a TXT record of `_whimbrel.example.org` with
//! `service=ENDPOINT-ID`. Several services may be named, while names move from one to another. A text of it
//! may hold further words; records without `service=` say nothing.

use whimbrel_base::EndpointId;
use whimbrel_transport::BoxFuture;

/// In front of a domain, where its owner says which service has its names.
const LABEL: &str = "_whimbrel";
/// In front of a service's id.
const KEY: &str = "service=";

/// Finds out whether a domain's owner wants a name service. See [`NameResolver::require_proof`].
///
/// [`NameResolver::require_proof`]: crate::NameResolver::require_proof
pub trait DomainProof: Send + Sync + 'static {
    /// Fails unless the names of `domain` may be had from `service`. Called for each record: what was proved
    /// should be remembered.
    fn prove<'a>(&'a self, domain: &'a str, service: EndpointId) -> BoxFuture<'a, Result<(), ProofError>>;
}

/// Why a name service's word on a domain's names does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The owner wants another service.
    #[error(
        "the owner of {domain} says in DNS that {named} serves its names, and not {service}; use that one"
    )]
    Another {
        /// The domain.
        domain: String,
        /// A service that the owner wants.
        named: EndpointId,
        /// The service that was asked.
        service: EndpointId,
    },
    /// What the owner says cannot be understood.
    #[error("the TXT record _whimbrel.{0} names no endpoint id; its owner has to mend it: service=ID")]
    Malformed(String),
    /// The owner says nothing.
    #[error(
        "nothing in DNS says that {service} serves the names of {domain}; its owner has to publish a TXT record _whimbrel.{domain} with service={service}"
    )]
    Missing {
        /// The domain.
        domain: String,
        /// The service that was asked.
        service: EndpointId,
    },
    /// The owner could not be asked.
    #[error("cannot find out in DNS who serves the names of {domain}: {why}")]
    Unreachable {
        /// The domain.
        domain: String,
        /// Why not.
        why: String,
    },
}

/// The name in DNS whose TXT records say which service has the names of a domain.
pub fn proof_name(domain: &str) -> String {
    format!("{LABEL}.{domain}.")
}

/// Whether the TXT records of [`proof_name`] name `service`.
///
/// # Errors
/// All of [`ProofError`] but [`ProofError::Unreachable`].
pub fn check_proof<'a>(
    domain: &str,
    service: EndpointId,
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<(), ProofError> {
    let words = texts.into_iter().flat_map(str::split_whitespace);
    let ids = words.filter_map(|word| word.strip_prefix(KEY)).map(str::parse::<EndpointId>);
    let (mut another, mut is_malformed) = (None, false);
    for id in ids {
        match id {
            Ok(id) if id == service => return Ok(()),
            Ok(id) => another = another.or(Some(id)),
            Err(_) => is_malformed = true,
        }
    }
    let domain = domain.to_owned();
    Err(match another {
        Some(named) => ProofError::Another { domain, named, service },
        None if is_malformed => ProofError::Malformed(domain),
        None => ProofError::Missing { domain, service },
    })
}

#[cfg(test)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    #[test]
    fn a_service_is_proved_by_its_id_and_by_nothing_else() {
        let [ours, other] = [1, 2].map(|seed| SecretKey::from_bytes(&[seed; 32]).id());
        let check = |texts: &[String]| check_proof("example.org", ours, texts.iter().map(String::as_str));
        assert_eq!(check(&[format!("service={ours}")]), Ok(()));
        assert_eq!(check(&[format!("service={other}"), format!(" v=1  service={ours} x")]), Ok(()));
        let domain = || "example.org".to_owned();
        let another = ProofError::Another { domain: domain(), named: other, service: ours };
        assert_eq!(check(&["service=x".to_owned(), format!("service={other}")]), Err(another));
        assert_eq!(check(&["service=".to_owned()]), Err(ProofError::Malformed(domain())));
        let missing = Err(ProofError::Missing { domain: domain(), service: ours });
        assert_eq!(check(&[]), missing);
        assert_eq!(check(&[format!("v=spf1 {ours}"), format!("noservice={ours}")]), missing);
    }
}
