//! The resolver: asks a name service, over one connection that lasts.
//!
//! The connection is made at the first question, and survives moves of either side as every whimbrel
//! connection does; so a record that is published from a new address costs no more than the way to the
//! service, and what the service pushes comes without anybody asking. If the service really lost the
//! connection (it was restarted, or was away for long), a new one is made, and everything is as before:
//! watches resume behind the newest record that is known, records that still hold are published again,
//! questions without an answer are asked again.
//!
//! Every answer is checked: signatures, the name, whether it is revoked or expired, and whether it agrees
//! with what is known of the name's owner ([`trust`](crate::trust)).

use futures_util::FutureExt;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_base::{Delegation, EndpointAddr, EndpointId, MAX_LIFETIME, Name, SignedRecord, UnixTime};
use whimbrel_transport::{BoxFuture, Endpoint, ResolveError, Resolver, Watch};

use crate::address::ServiceAddress;
use crate::admission::{Domain, Terms};
use crate::clock::now;
use crate::error::ErrorCode;
use crate::proof::{DomainProof, ProofError};
use crate::protocol::{Request, Response};
use crate::readers::Readers;
use crate::trust::{KnownPeers, TrustError};
use crate::voucher::MAX_VOUCHER_BYTES;

mod appointments;
mod batches;
mod between_users;
mod following;
mod link;
mod meeting;
mod own_stream;
mod state;

pub use self::batches::LeftBatch;
pub use self::between_users::KnownProposal;
pub use self::following::ProposalNews;
pub use self::meeting::{Meeting, MeetingError};
use self::state::Core;

/// Whoever asks gets an answer within this, or [`AskError::Unreachable`].
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// When the owner of a name is warned that it will not be held much longer.
const LEASE_WARNING: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How far the clocks of those who sign records may be ahead of ours.
const CLOCK_SLACK: Duration = Duration::from_secs(24 * 60 * 60);

/// Asks one name service. Set it as the [`Resolver`] of the endpoint that it was made from.
pub struct NameResolver {
    core: Arc<Core>,
}

impl NameResolver {
    /// A resolver that reaches its service from `endpoint`, when it is first needed. Must be called inside a
    /// tokio runtime.
    ///
    /// It remembers who owns the names that it meets for as long as it lives. It keeps `endpoint` open, until
    /// [`release`](Self::release)d.
    pub fn new(endpoint: Endpoint, service: impl Into<ServiceAddress>) -> Self {
        Self::with_known_peers(endpoint, service, KnownPeers::in_memory())
    }

    /// The same, with what is known already of who owns names.
    pub fn with_known_peers(
        endpoint: Endpoint,
        service: impl Into<ServiceAddress>,
        known: KnownPeers,
    ) -> Self {
        let service = service.into();
        let core = Arc::new(Core::new(tokio::runtime::Handle::current(), known, service.id()));
        tokio::spawn(FutureExt::boxed(link::run(core.clone(), endpoint, service)));
        Self { core }
    }

    /// From now on uses records, and publishes any, only if the owner of their domain wants this service:
    /// what `proof` finds out. To be called before anything is asked, once; the first proof stays.
    pub fn require_proof(&self, proof: impl DomainProof) {
        self.core.require_proof(Box::new(proof));
    }

    /// Publishes a record of this endpoint, and says for how long it counts. The same record again is a sign
    /// of life.
    ///
    /// # Errors
    /// [`AskError`] says why it is not taken in, or not known to be.
    pub async fn publish_record(&self, record: SignedRecord) -> Result<Duration, AskError> {
        let user = record.record().name.user();
        match self.core.publish(record).await? {
            Response::Registered { seconds, lease } => {
                let lease = Duration::from_secs(lease.into());
                if lease < LEASE_WARNING {
                    tracing::warn!(name = %user, "the name service holds this name for less than a week more");
                }
                self.core.set_lease(user, lease);
                Ok(Duration::from_secs(seconds.into()))
            }
            _ => Err(AskError::unexpected()),
        }
    }

    /// For how long the service holds a user name for its owner if none of the user's devices gives a further
    /// sign of life: what it said when one of the user's records was published here last. `None` if it has
    /// not said so yet.
    pub fn lease(&self, user: &Name) -> Option<Duration> {
        self.core.lease(user)
    }

    /// Says who may look up what is published under `name` from now on; everybody, unless it was said. What
    /// is published already is published again for them: the service hears of it as soon as it can be
    /// reached. A watch of somebody who may read it now brings it, and one of somebody who no longer may
    /// brings nothing newer.
    ///
    /// # Errors
    /// [`AskError::Busy`] when 256 other names have readers.
    pub fn set_readers(&self, name: Name, readers: Readers) -> Result<(), AskError> {
        self.core.set_readers(name, readers, false)
    }

    /// As [`set_readers`](Self::set_readers), unless that has said something of the name.
    ///
    /// # Errors
    /// As [`set_readers`](Self::set_readers).
    pub fn set_default_readers(&self, name: Name, readers: Readers) -> Result<(), AskError> {
        self.core.set_readers(name, readers, true)
    }

    /// Withdraws a name, by a [revocation](whimbrel_base::Record::revocation).
    ///
    /// # Errors
    /// [`AskError`] says why it is not withdrawn, or not known to be.
    pub async fn revoke(&self, record: SignedRecord) -> Result<Duration, AskError> {
        accepted(self.core.ask(Request::Revoke { record: record.encode().to_vec() }).await?)
    }

    /// Gives the service a delegation with which the user's key, this endpoint's, renews that of a device:
    /// more time for the same key. Returns for how long it counts.
    ///
    /// # Errors
    /// [`AskError::Refused`] with [`ErrorCode::Revoked`] or [`ErrorCode::DelegationSuperseded`] when the user
    /// took the name back since; [`AskError::Unsupported`] by an older service.
    pub async fn renew(&self, delegation: &Delegation) -> Result<Duration, AskError> {
        accepted(self.core.ask(Request::Renew { delegation: delegation.encode() }).await?)
    }

    /// The newest delegation that the user renewed for this endpoint, in place of `present`: made by the same
    /// key, for the same name, and ending later. `None` if there is none.
    ///
    /// # Errors
    /// [`AskError`]; [`AskError::Unsupported`] by an older service.
    pub async fn renewed(&self, present: &Delegation) -> Result<Option<Delegation>, AskError> {
        let name = present.name().clone();
        match self.core.ask(Request::Renewed { name }).await {
            Ok(Response::Delegation { delegation }) => {
                let invalid = |why: String| AskError::Invalid(why);
                let new = Delegation::decode(&delegation).map_err(|error| invalid(error.to_string()))?;
                new.verify().map_err(|error| invalid(error.to_string()))?;
                let same = |it: &Delegation| (it.name().clone(), it.id(), it.issuer());
                if same(&new) != same(present) {
                    return Err(invalid("it is another delegation than the one to renew".to_owned()));
                }
                Ok((new.expires() > present.expires()).then_some(new))
            }
            Ok(_) => Err(AskError::unexpected()),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The service's word that this endpoint has a name of `domain`: the bytes of a
    /// [`Voucher`](crate::Voucher), to be shown to others.
    ///
    /// # Errors
    /// [`AskError::Refused`] with [`ErrorCode::NoName`] when it has none; [`AskError::Unsupported`] by an
    /// older service.
    pub async fn vouched(&self, domain: Domain) -> Result<Vec<u8>, AskError> {
        match self.core.ask(Request::Vouch { domain }).await? {
            Response::Voucher { voucher } if voucher.len() <= MAX_VOUCHER_BYTES => Ok(voucher),
            _ => Err(AskError::unexpected()),
        }
    }

    /// What is known of who owns names.
    pub fn known_peers(&self) -> &KnownPeers {
        self.core.known_peers()
    }

    /// The newest record of a name, verified; neither revoked nor expired. If a newer one of the same
    /// endpoint was pushed before, that one: a service pushes before it stores, and may have forgotten it.
    /// A name that is met for the first time is remembered ([`known_peers`](Self::known_peers)).
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn lookup_record(&self, name: &Name) -> Result<SignedRecord, AskError> {
        match self.ask_record(name).await {
            // Another process may have seen a newer one while this answer was on its way.
            Err(AskError::Untrusted(TrustError::OldRecord { .. })) => self.ask_record(name).await,
            answer => answer,
        }
    }

    // Made here, and not inlined: async code of this crate that another one polls is compiled there once
    // more.
    #[inline(never)]
    fn ask_record<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<SignedRecord, AskError>> {
        Box::pin(async move {
            match self.core.ask(Request::Lookup { name: name.clone() }).await? {
                Response::Record { seconds: 0, .. } => Err(AskError::not_found(ErrorCode::Expired, name)),
                Response::Record { record, .. } => {
                    // What was pushed is judged already, and may be newer.
                    let record = self.core.newest(verified(&record, name, now())?);
                    let record = self.core.judged(record).await?;
                    if record.record().revoked {
                        return Err(AskError::not_found(ErrorCode::Revoked, name));
                    }
                    Ok(record)
                }
                _ => Err(AskError::unexpected()),
            }
        })
    }

    /// Where an endpoint is that has names, by its id alone. What the service says need not be believed: who
    /// is dialled there proves the id. Nothing is remembered of its names.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn find_endpoint(&self, id: EndpointId) -> Result<EndpointAddr, AskError> {
        match self.core.ask(Request::Find { id }).await? {
            Response::Record { record, .. } => {
                let invalid = |error: &dyn fmt::Display| AskError::Invalid(error.to_string());
                let record = SignedRecord::decode(&record).map_err(|error| invalid(&error))?;
                let record = record.record();
                if record.id != id {
                    return Err(AskError::Invalid(format!("it is about {}", record.id)));
                }
                Ok(EndpointAddr::new(id, record.addrs.iter().copied()))
            }
            _ => Err(AskError::unexpected()),
        }
    }

    /// Redeems an invitation: this endpoint may register user names then. Returns of which domain; of every
    /// one if `None`.
    ///
    /// # Errors
    /// [`AskError::Refused`] when the code is mistyped, used or has ended.
    pub async fn redeem(&self, code: &str) -> Result<Option<Domain>, AskError> {
        match self.core.ask(Request::Redeem { code: code.to_owned() }).await? {
            Response::Admitted { domain } => Ok(domain),
            _ => Err(AskError::unexpected()),
        }
    }

    /// Makes an invitation, as an operator of the service. Returns its code.
    ///
    /// # Errors
    /// [`AskError::Refused`] when this endpoint is no operator, or the terms are out of bounds.
    pub async fn invite(&self, terms: Terms) -> Result<String, AskError> {
        let seconds = u32::try_from(terms.valid.as_secs()).unwrap_or(u32::MAX);
        let request = Request::Invite { domain: terms.domain, uses: terms.uses, seconds };
        match self.core.ask(request).await? {
            Response::Invited { code } => Ok(code),
            _ => Err(AskError::unexpected()),
        }
    }

    /// Opens a meeting in a random free slot, for a peer that learns its number in another way.
    ///
    /// # Errors
    /// [`AskError::Refused`] when too many are open, [`AskError::Unsupported`] by a service that knows no
    /// meetings.
    pub async fn open_meeting(&self) -> Result<Meeting, AskError> {
        meeting::enter(&self.core, None).await
    }

    /// Joins the meeting in `slot`.
    ///
    /// # Errors
    /// [`AskError::Refused`] when nobody waits there or somebody joined before, or this key joins too often;
    /// otherwise as [`open_meeting`](Self::open_meeting).
    pub async fn join_meeting(&self, slot: u16) -> Result<Meeting, AskError> {
        meeting::enter(&self.core, Some(slot)).await
    }

    /// Lets the endpoint go: from now on it can close although this resolver exists. What is watched is
    /// watched on over the present connection for as long as somebody does; then the resolver ends.
    pub fn release(&self) {
        self.core.release();
    }
}

impl Drop for NameResolver {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl fmt::Debug for NameResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameResolver").finish_non_exhaustive()
    }
}

fn accepted(response: Response) -> Result<Duration, AskError> {
    match response {
        Response::Accepted { seconds } => Ok(Duration::from_secs(seconds.into())),
        _ => Err(AskError::unexpected()),
    }
}

/// A record from outside, if it is what it should be.
fn verified(bytes: &[u8], name: &Name, now: UnixTime) -> Result<SignedRecord, AskError> {
    let record = SignedRecord::decode(bytes).map_err(|error| AskError::Invalid(error.to_string()))?;
    record.verify().map_err(|error| AskError::Invalid(error.to_string()))?;
    if record.record().name != *name {
        return Err(AskError::Invalid(format!("it is about {}", record.record().name)));
    }
    if record.delegation().is_some_and(|delegation| delegation.is_expired(now)) {
        return Err(AskError::Invalid("the user's permission has expired".to_owned()));
    }
    let end = record.record().expires;
    if record.record().is_expired(now) {
        return Err(AskError::Invalid(format!("its endpoint let it end at {end} (unix time)")));
    }
    if end > now.saturating_add(MAX_LIFETIME + CLOCK_SLACK) {
        let why =
            format!("it ends at {end} (unix time), later than any record; is this machine's clock right?");
        return Err(AskError::Invalid(why));
    }
    Ok(record)
}

impl Resolver for NameResolver {
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>> {
        Box::pin(async move { Ok(self.lookup_record(name).await?) })
    }

    fn watch(&self, name: &Name) -> Watch<Option<SignedRecord>> {
        self.core.watch(name)
    }

    fn find(&self, id: EndpointId) -> BoxFuture<'_, Result<EndpointAddr, ResolveError>> {
        Box::pin(async move { Ok(self.find_endpoint(id).await?) })
    }

    fn renewed<'a>(
        &'a self,
        present: &'a Delegation,
    ) -> BoxFuture<'a, Result<Option<Delegation>, ResolveError>> {
        Box::pin(async move { Ok(NameResolver::renewed(self, present).await?) })
    }

    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
        Box::pin(async move {
            self.publish_record(record).await?;
            Ok(())
        })
    }
}

/// Why the name service did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It did not answer.
    #[error("the name service does not answer ({0}); check its address, and the way there")]
    Unreachable(String),
    /// It said no.
    #[error("{message}")]
    Refused {
        /// Why. `None` if this program does not know the number.
        code: Option<ErrorCode>,
        /// In its words, which say what to do.
        message: String,
    },
    /// It answered something that must not be used.
    #[error("the name service's answer must not be used: {0}")]
    Invalid(String),
    /// It contradicts what is known of the name's owner.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// The owner of the name's domain does not want this service, or did not say so.
    #[error(transparent)]
    Unproven(#[from] ProofError),
    /// The service is of an older version.
    #[error("this name service knows no {0}; update it, or use another one")]
    Unsupported(&'static str),
    /// Too many questions wait already.
    #[error("too many questions wait for the name service; try again later")]
    Busy,
    /// The resolver or its endpoint was closed.
    #[error("the endpoint is closed; make a new one")]
    Closed,
}

impl AskError {
    fn not_found(code: ErrorCode, name: &Name) -> Self {
        let what = if code == ErrorCode::Revoked { "was withdrawn" } else { "has expired" };
        Self::Refused { code: Some(code), message: format!("{name} {what}") }
    }

    fn unexpected() -> Self {
        Self::Invalid("it answers another question".to_owned())
    }

    /// What the service objected to, if it did.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => *code,
            _ => None,
        }
    }
}

impl From<AskError> for ResolveError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Refused {
                code: Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked),
                ..
            } => Self::NotFound,
            AskError::Refused { message, .. } => Self::Refused(message),
            AskError::Unreachable(why) => Self::Unreachable(why),
            AskError::Busy => Self::Unreachable("too many questions wait".to_owned()),
            AskError::Closed => Self::Unreachable("the endpoint is closed".to_owned()),
            AskError::Invalid(what) => Self::Invalid(what),
            AskError::Untrusted(error) => Self::Untrusted(error.to_string()),
            AskError::Unproven(error @ ProofError::Unreachable { .. }) => {
                Self::Unreachable(error.to_string())
            }
            AskError::Unproven(error) => Self::Untrusted(error.to_string()),
            error @ AskError::Unsupported(_) => Self::Refused(error.to_string()),
        }
    }
}
