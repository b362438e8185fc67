//! Those who have names of a domain, at a relay alone: their name service vouches for them, and the relay
//! asks nobody.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use whimbrel_base::{EndpointId, Name};
use whimbrel_names::{AskError, Domain, ErrorCode, NameResolver, Rule, ServiceAddress, VOUCHED_FOR, Voucher};
use whimbrel_relay::{Gate, Prover};
use whimbrel_transport::{Allow, BoxFuture};

use crate::failure::Failure;
use crate::network::Network;

/// The servers that may use a relay which asks no name service.
#[derive(Clone)]
pub(crate) struct Admitted {
    pub(crate) allow: Allow,
    pub(crate) gate: Option<Arc<dyn Gate>>,
}

impl Admitted {
    /// Those whom the rules name. Of a domain, those for whom `names` vouches.
    pub(crate) fn by(rules: &[Rule], names: Option<&ServiceAddress>) -> Result<Self> {
        let (mut keys, mut domains) = (HashSet::new(), HashSet::new());
        for rule in rules {
            match rule {
                Rule::Any => return Ok(Self { allow: Allow::Any, gate: None }),
                Rule::Key(key) => drop(keys.insert(*key)),
                Rule::Domain(domain) => drop(domains.insert(domain.clone())),
                _ => return Err(Failure::usage(format!("a relay cannot tell whom {rule:?} means"))),
            }
        }
        if domains.is_empty() {
            return Ok(Self { allow: Allow::only(keys), gate: None });
        }
        let Some(names) = names else {
            return Err(Failure::usage(
                "say with --names which name service vouches for those who have names of the domain; or allow ids, \
                 or run both with `whimbrel serve`",
            ));
        };
        let gate = Vouched { service: names.id(), keys, domains };
        Ok(Self { allow: Allow::Any, gate: Some(Arc::new(gate)) })
    }
}

/// Those who are known by their keys, and those for whom a service vouches.
struct Vouched {
    service: EndpointId,
    keys: HashSet<EndpointId>,
    domains: HashSet<Domain>,
}

impl Gate for Vouched {
    fn is_open_to(&self, server: EndpointId) -> bool {
        self.keys.contains(&server)
    }

    fn check(&self, server: EndpointId, proof: &[u8]) -> Result<Duration, String> {
        let voucher = Voucher::verify(proof, self.service).map_err(|error| error.to_string())?;
        let now = SystemTime::now().into();
        if voucher.id != server {
            return Err("this voucher is for another key".to_owned());
        }
        if !self.domains.contains(&voucher.domain) {
            return Err(format!("it does not serve those who have names of {}", voucher.domain));
        }
        if voucher.is_expired(now) {
            return Err("the voucher has ended; its clock and that of the name service may differ".to_owned());
        }
        // A clock that is behind makes it no longer than that.
        Ok(voucher.expires.since(now).min(VOUCHED_FOR))
    }
}

/// An answer of the name service counts at further relays for so long: they ask at the same time, and one of
/// them must not make this endpoint ask again and again.
const FRESH: Duration = Duration::from_secs(60);
/// The name service is waited for no longer where there is an older voucher: relays do not wait for long
/// either.
const ASKING: Duration = Duration::from_secs(3);

/// Shows a relay that this endpoint has a name of its domain, by the word of its name service.
pub(crate) struct Named {
    names: Arc<NameResolver>,
    domain: Domain,
    last: Mutex<Last>,
}

/// What the service said last.
#[derive(Default)]
struct Last {
    /// And when.
    voucher: Option<(Vec<u8>, Instant)>,
    /// It knows nothing of vouchers. It ends a connection over the question, so it is not asked again for a
    /// while.
    unsupported: Option<Instant>,
}

impl Last {
    /// The voucher, if it is no older than that.
    fn within(&self, age: Duration) -> Option<Vec<u8>> {
        let recent = self.voucher.as_ref().filter(|(_, since)| since.elapsed() < age);
        recent.map(|(voucher, _)| voucher.clone())
    }

    /// What there is to show, now that the service has answered; `None`: not in time.
    fn hear(&mut self, answer: Option<Result<Vec<u8>, AskError>>) -> io::Result<Vec<u8>> {
        let why = match answer {
            Some(Ok(voucher)) => {
                *self = Self { voucher: Some((voucher.clone(), Instant::now())), unsupported: None };
                return Ok(voucher);
            }
            Some(Err(error)) => {
                if error.code() == Some(ErrorCode::NoName) {
                    // What it said before is true no more.
                    self.voucher = None;
                } else if matches!(error, AskError::Unsupported(_)) {
                    self.unsupported = Some(Instant::now());
                }
                error.to_string()
            }
            None => "the name service does not answer in time".to_owned(),
        };
        // It may be out of reach for a while.
        self.within(VOUCHED_FOR).ok_or_else(|| io::Error::other(why))
    }
}

impl Named {
    /// One who is published under `name`; nothing if nobody vouches for that.
    pub(crate) fn of(network: &Network, name: Option<&Name>) -> Option<Arc<dyn Prover>> {
        let (name, names) = (name?, network.endpoint.shared_names()?);
        let domain = name.domain().parse().ok()?;
        Some(Arc::new(Self { names, domain, last: Mutex::default() }))
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What need not be asked for.
    fn known(&self) -> Option<io::Result<Vec<u8>>> {
        let last = self.last();
        let is_old = last.unsupported.is_some_and(|since| since.elapsed() < VOUCHED_FOR);
        let unsupported = || Err(io::Error::other("its name service knows no vouchers; update it"));
        last.within(FRESH).map(Ok).or_else(|| is_old.then(unsupported))
    }

    async fn ask(&self) -> io::Result<Vec<u8>> {
        let asking = self.names.vouched(self.domain.clone());
        let has_another = self.last().within(VOUCHED_FOR).is_some();
        let answer = match has_another {
            true => tokio::time::timeout(ASKING, asking).await.ok(),
            false => Some(asking.await),
        };
        self.last().hear(answer)
    }
}

impl Prover for Named {
    fn prove(&self) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        Box::pin(async move {
            let known = self.known();
            match known {
                Some(known) => known,
                None => self.ask().await,
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::{SecretKey, UnixTime};

    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn gate(rules: &[&str]) -> Arc<dyn Gate> {
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let service: ServiceAddress = format!("{}@names.example.org:4480", key(9).id()).parse().unwrap();
        Admitted::by(&rules, Some(&service)).unwrap().gate.unwrap()
    }

    fn voucher(domain: &str, id: EndpointId, seconds: u64) -> Voucher {
        let expires = UnixTime::from(SystemTime::now()).saturating_add(Duration::from_secs(seconds));
        Voucher { domain: domain.parse().unwrap(), id, expires }
    }

    #[test]
    fn a_voucher_of_the_service_for_this_key_and_domain_counts_and_no_other_one() {
        let (gate, ada) = (gate(&["@example.org"]), key(1).id());
        let good = voucher("example.org", ada, 600);
        let counts = gate.check(ada, &good.sign(&key(9))).unwrap();
        assert!(counts <= Duration::from_secs(600) && counts > Duration::from_secs(300), "{counts:?}");
        let wrong = [
            (good.sign(&key(8)), "another name service"),
            (b"nothing of the kind".to_vec(), "not a voucher"),
            (voucher("example.com", ada, 600).sign(&key(9)), "names of example.com"),
            (voucher("mail.example.org", ada, 600).sign(&key(9)), "names of mail.example.org"),
            (voucher("example.org", key(2).id(), 600).sign(&key(9)), "for another key"),
            (voucher("example.org", ada, 0).sign(&key(9)), "has ended"),
        ];
        for (proof, why) in wrong {
            let refused = gate.check(ada, &proof).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn no_voucher_counts_for_longer_than_an_hour() {
        let (gate, ada) = (gate(&["@example.org"]), key(1).id());
        let long = voucher("example.org", ada, 1_000_000).sign(&key(9));
        assert_eq!(gate.check(ada, &long), Ok(VOUCHED_FOR));
    }

    #[test]
    fn known_keys_show_nothing_and_without_a_service_nobody_vouches() {
        let rules = [key(1).id().to_string(), "@example.org".to_owned()];
        let gate = gate(&rules.each_ref().map(String::as_str));
        assert!(gate.is_open_to(key(1).id()) && !gate.is_open_to(key(2).id()));
        let rules = rules.map(|rule| rule.parse::<Rule>().unwrap());
        let refused = Admitted::by(&rules, None).err().unwrap().to_string();
        assert!(refused.contains("--names"), "{refused}");
        assert!(Admitted::by(&rules[..1], None).unwrap().gate.is_none());
    }

    #[test]
    fn what_the_service_said_before_is_shown_while_it_is_away_and_not_once_it_says_no() {
        let refused = |code| AskError::Refused { code: Some(code), message: "no".to_owned() };
        let mut last = Last::default();
        assert!(last.hear(None).is_err(), "there is nothing yet");
        assert_eq!(last.hear(Some(Ok(vec![1]))).unwrap(), [1]);
        let passing = [
            None,
            Some(Err(AskError::Unreachable("it is away".to_owned()))),
            Some(Err(refused(ErrorCode::TooOften))),
            Some(Err(refused(ErrorCode::Unavailable))),
        ];
        for answer in passing {
            assert_eq!(last.hear(answer).unwrap(), [1]);
        }
        assert!(last.hear(Some(Err(refused(ErrorCode::NoName)))).is_err());
        assert!(last.hear(None).is_err(), "it had said no");
        assert!(last.hear(Some(Err(AskError::Unsupported("vouchers")))).is_err());
        assert!(last.unsupported.is_some(), "it is not asked again soon");
    }
}
