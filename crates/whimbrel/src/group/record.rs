//! What a name stands for, as the name service has it: reading and changing the record of a group.

use std::collections::BTreeSet;
use std::time::SystemTime;

use whimbrel_base::{
    Delegation, IntoName, MAX_LIFETIME, Member, Name, NameKind, Record, SignedRecord, UnixTime,
    next_sequence, order,
};
use whimbrel_names::{AskError, ErrorCode, NameResolver, Reader, Readers};

use super::GroupError;
use crate::endpoint::Endpoint;
use crate::readers;

/// How the record of a group is published.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct GroupOptions {
    /// The user's permission for the group's name. None is needed by the user's own key.
    pub delegation: Option<Delegation>,
    /// Those who may look the group up beside its owner. By default its members and their users.
    pub readers: Option<Readers>,
}

impl Endpoint {
    /// The members that a name stands for, in order.
    ///
    /// # Errors
    /// [`GroupError::NotAGroup`] if the name is an endpoint's; [`GroupError`] otherwise.
    pub async fn group_members(&self, name: impl IntoName) -> Result<Vec<Member>, GroupError> {
        let name = name.into_name()?;
        let record = resolver(self, &name)?.lookup_record(&name).await?;
        Ok(record.members().ok_or(GroupError::NotAGroup(name))?.to_vec())
    }

    /// Changes what a name stands for, and returns its members then. A name that is not registered yet
    /// becomes that of a group. The record holds for seven days from then on: call this again, with no
    /// change, before they are over. Of two that change a group at once, one may be refused and can try
    /// again.
    ///
    /// ```
    /// # use whimbrel::names::{Admission, Limits, MemoryStore, Service};
    /// # use whimbrel::{Endpoint, GroupOptions, Member, SecretKey};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let own = whimbrel::transport::Endpoint::builder().bind().await?;
    /// # let service = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await?;
    /// # let key = SecretKey::generate();
    /// # let endpoint = Endpoint::builder().identity(key).names(service.addr()).bind().await?;
    /// # endpoint.register_user("ada@example.org").await?;
    /// # let bob = Member::from(SecretKey::generate().id());
    /// endpoint.update_group("team.ada@example.org", GroupOptions::default(), |team| team.extend([bob])).await?;
    /// # assert_eq!(endpoint.group_members("team.ada@example.org").await?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`GroupError`] says what to do; [`GroupError::NotAGroup`] if an endpoint has the name.
    pub async fn update_group(
        &self,
        name: impl IntoName,
        options: GroupOptions,
        change: impl FnOnce(&mut BTreeSet<Member>),
    ) -> Result<Vec<Member>, GroupError> {
        let name = name.into_name()?;
        if name.kind() == NameKind::User {
            return Err(GroupError::UserName(name));
        }
        let names = resolver(self, &name)?;
        let key = self.key().ok_or(GroupError::FleetingKey)?;
        let (mut members, previous) = match names.lookup_record(&name).await {
            Ok(record) => {
                let members = record.members().ok_or_else(|| GroupError::NotAGroup(name.clone()))?;
                (order::set(members.iter().cloned()), Some(record.record().sequence))
            }
            Err(error) if is_unregistered(&error) => (BTreeSet::new(), None),
            Err(error) => return Err(error.into()),
        };
        change(&mut members);
        let readers = match options.readers {
            Some(readers) => readers,
            None => readers_of(&members, &name)?,
        };
        let now = UnixTime::from(SystemTime::now());
        let record = Record {
            name: name.clone(),
            id: key.id(),
            addrs: Vec::new(),
            sequence: next_sequence(previous, now.as_millis()),
            expires: now.saturating_add(MAX_LIFETIME),
            lifetime: MAX_LIFETIME,
            revoked: false,
        };
        let record = SignedRecord::sign_group(record, members, key, options.delegation)?;
        names.set_readers(name, readers)?;
        names.publish_record(record.clone()).await?;
        Ok(record.members().unwrap_or_default().to_vec())
    }
}

pub(super) fn resolver<'a>(endpoint: &'a Endpoint, name: &Name) -> Result<&'a NameResolver, GroupError> {
    endpoint.names().ok_or_else(|| GroupError::NoResolver(name.clone()))
}

fn is_unregistered(error: &AskError) -> bool {
    matches!(error.code(), Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked))
}

fn readers_of(members: &BTreeSet<Member>, name: &Name) -> Result<Readers, GroupError> {
    let shown_to = members.iter().map(|member| match member {
        Member::Key(id) => Reader::Key(*id),
        Member::Name(member) => Reader::User(member.user()),
    });
    readers::only(shown_to, name).map_err(|readers::TooManyReaders| GroupError::TooManyReaders(name.clone()))
}
