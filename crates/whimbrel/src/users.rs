//! A user's own name, and what the user lets other keys do under it.

use std::io;
use std::time::{Duration, SystemTime};

use whimbrel_base::{
    Delegation, DelegationError, EndpointId, IntoName, MAX_LIFETIME, Name, NameError, NameKind, Record,
    RecordError, SecretKey, SignedRecord, UnixTime, next_sequence,
};
use whimbrel_names::{AskError, ErrorCode, KnownPeersError, NameResolver, Origin, TrustError};

use crate::endpoint::Endpoint;

/// Since when a user name is this key's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Registered {
    /// Since now.
    New,
    /// Since before.
    Already,
}

/// Why a user name is not registered, or nothing under it can be delegated or revoked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// What was given as a name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is a device's or a service's name.
    #[error("{name} is no user's name; that is {user}", name = .0, user = .0.user())]
    NotAUser(Name),
    /// It is a user's name.
    #[error("{0} is a user name: give a device or a service of it, as laptop.{0}")]
    IsAUser(Name),
    /// The endpoint knows no name service.
    #[error("cannot register {0}: no name service is configured; give one with Builder::names")]
    NoResolver(Name),
    /// The endpoint's key is gone when it ends.
    #[error("this endpoint's key ends with it; give it one that lasts, with Builder::identity")]
    FleetingKey,
    /// Another key has it.
    #[error("{0} belongs to another key")]
    Taken(Name),
    /// The name service did not do as asked.
    #[error(transparent)]
    Names(#[from] AskError),
    /// It contradicts what is known of the name's owner.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// What is known of names can't be read.
    #[error(transparent)]
    Known(#[from] KnownPeersError),
    /// The record can't be made.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The delegation can't be made.
    #[error(transparent)]
    Delegation(#[from] DelegationError),
}

impl From<UserError> for io::Error {
    fn from(error: UserError) -> Self {
        let kind = match &error {
            UserError::Taken(_) => io::ErrorKind::PermissionDenied,
            UserError::Names(_) => io::ErrorKind::HostUnreachable,
            UserError::Known(_) | UserError::Trust(_) => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

impl Endpoint {
    /// Registers a user name for this endpoint's key, if nobody has it. From then on only this key, and those
    /// that it [delegates](Self::delegate) to, can listen under the name and those below it.
    ///
    /// # Errors
    /// [`UserError`] says what to do; [`UserError::Taken`] if another key has the name.
    pub async fn register_user(&self, user: impl IntoName) -> Result<Registered, UserError> {
        self.register_user_with(user.into_name()?, None).await
    }

    /// As [`register_user`](Self::register_user), with the code of an invitation where the service wants one.
    ///
    /// # Errors
    /// As [`register_user`](Self::register_user).
    pub async fn register_user_invited(
        &self,
        user: impl IntoName,
        invitation: &str,
    ) -> Result<Registered, UserError> {
        self.register_user_with(user.into_name()?, Some(invitation)).await
    }

    async fn register_user_with(
        &self,
        user: Name,
        invitation: Option<&str>,
    ) -> Result<Registered, UserError> {
        if user.kind() != NameKind::User {
            return Err(UserError::NotAUser(user));
        }
        let (names, key) = self.user_tools(&user)?;
        let known = names.known_peers();
        let own = || known.pin(&user, key.id(), Origin::Own, SystemTime::now().into());
        match names.lookup_record(&user).await {
            Ok(record) if record.record().id == key.id() => {
                own()?;
                return Ok(Registered::Already);
            }
            Ok(_) => return Err(UserError::Taken(user)),
            Err(AskError::Refused {
                code: Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked),
                ..
            }) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(code) = invitation {
            names.redeem(code).await?;
        }
        let sequence = next_sequence(None, now().as_millis());
        match names.publish_record(empty_record(&user, key, sequence)?).await {
            Ok(_) => {
                own()?;
                // Records are numbered by the millisecond: one who listens next shall have a number of its
                // own.
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(Registered::New)
            }
            // Its record lapsed, but the name is still kept for its owner; or another was quicker.
            Err(error) if error.code() == Some(ErrorCode::NameTaken) => Err(UserError::Taken(user)),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets another key listen under a device's or a service's name of this key's user, for so long. The
    /// other endpoint gives it to [`ListenOptions::delegation`](crate::ListenOptions::delegation).
    ///
    /// # Errors
    /// [`UserError`] for a user's name, or when this endpoint's key does not last.
    pub fn delegate(
        &self,
        name: impl IntoName,
        to: EndpointId,
        lifetime: Duration,
    ) -> Result<Delegation, UserError> {
        let key = self.key().ok_or(UserError::FleetingKey)?;
        Ok(Delegation::sign(name.into_name()?, to, now(), now().saturating_add(lifetime), key)?)
    }

    /// Gives a key that has a device's or service's name already more time, by the name service, from which
    /// the device [takes it](crate::ListenOptions::on_renewal). Unlike a [delegation](Self::delegate) made by
    /// hand, this never undoes a revocation: a service that knows of one refuses. Returns what was given.
    ///
    /// # Errors
    /// [`UserError::Names`] with [`ErrorCode::Revoked`] or [`ErrorCode::DelegationSuperseded`] when the user
    /// took the name back, perhaps on another machine; otherwise as [`delegate`](Self::delegate).
    pub async fn renew(
        &self,
        name: impl IntoName,
        to: EndpointId,
        lifetime: Duration,
    ) -> Result<Delegation, UserError> {
        let delegation = self.delegate(name, to, lifetime)?;
        let (names, _) = self.user_tools(delegation.name())?;
        names.renew(&delegation).await?;
        Ok(delegation)
    }

    /// Takes a device's or service's name back from the key that has it, with the user's key, and the names
    /// of the services on a device that were met here. The name service refuses what was delegated before.
    /// Returns what was taken back.
    ///
    /// # Errors
    /// [`UserError`]; with [`UserError::Names`] it is not known whether the service heard of it.
    pub async fn revoke(&self, name: impl IntoName) -> Result<Vec<Name>, UserError> {
        let name = name.into_name()?;
        if name.kind() == NameKind::User {
            return Err(UserError::IsAUser(name));
        }
        let (names, key) = self.user_tools(&name)?;
        withdraw(names, key, &name).await?;
        let mut revoked = vec![name.clone()];
        let pins = names.known_peers().pins()?;
        let services =
            pins.endpoints().map(|(known, _)| known).filter(|known| known.device().as_ref() == Some(&name));
        for service in services.filter(|service| **service != name) {
            // The service no longer gives it out in any case.
            if withdraw(names, key, service).await.is_ok() {
                revoked.push(service.clone());
            }
        }
        Ok(revoked)
    }

    fn user_tools(&self, name: &Name) -> Result<(&NameResolver, &SecretKey), UserError> {
        let names = self.names().ok_or_else(|| UserError::NoResolver(name.clone()))?;
        Ok((names, self.key().ok_or(UserError::FleetingKey)?))
    }
}

async fn withdraw(names: &NameResolver, key: &SecretKey, name: &Name) -> Result<(), UserError> {
    let previous = match names.lookup_record(name).await {
        Ok(record) => Some(record.record().sequence),
        Err(error @ (AskError::Unreachable(_) | AskError::Closed)) => return Err(error.into()),
        Err(_) => None,
    };
    let sequence = next_sequence(previous, now().as_millis());
    let revocation = Record::revocation(name.clone(), key.id(), sequence.saturating_add(1), now());
    let revocation = SignedRecord::sign(revocation, key, None)?;
    match names.revoke(revocation.clone()).await {
        Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
        other => return Ok(other.map(drop)?),
    }
    // A name that was never published can be withdrawn once it is there.
    names.publish_record(empty_record(name, key, sequence)?).await?;
    Ok(names.revoke(revocation).await.map(drop)?)
}

/// A record that says whose a name is, and of no place.
fn empty_record(name: &Name, key: &SecretKey, sequence: u64) -> Result<SignedRecord, RecordError> {
    let record = Record {
        name: name.clone(),
        id: key.id(),
        addrs: Vec::new(),
        sequence,
        expires: now().saturating_add(MAX_LIFETIME),
        lifetime: MAX_LIFETIME,
        revoked: false,
    };
    SignedRecord::sign(record, key, None)
}

fn now() -> UnixTime {
    SystemTime::now().into()
}
