//! Relays that have names, as the name service knows them: one, or a group.

use futures_util::FutureExt;
use std::io;
use std::sync::Arc;

use anyhow::Result;
use tokio::task::JoinSet;
use whimbrel::{Endpoint, Member};
use whimbrel_base::{EndpointAddr, Name, SignedRecord};
use whimbrel_names::{AskError, ErrorCode, NameResolver};
use whimbrel_relay::{Listed, Roster};
use whimbrel_transport::{BoxFuture, Resolver as _, Watch, Watched};

use crate::network::Network;

/// What a name stands for: the relays of a group, or a relay.
pub(crate) struct NamedRelays {
    endpoint: Endpoint,
    members: Watch<Option<Arc<[Name]>>>,
    /// Follows the record.
    _following: JoinSet<()>,
}

impl NamedRelays {
    /// Looks the name up, and follows it from then on. What went wrong with the first question is told
    /// beside.
    ///
    /// # Errors
    /// If there is no name service.
    pub(crate) async fn follow(network: &Network, name: &Name) -> Result<(Self, Option<AskError>)> {
        Ok(Self::by(&network.endpoint, network.resolver()?, name).await)
    }

    /// The same of an endpoint, with its resolver.
    pub(crate) async fn by(
        endpoint: &Endpoint,
        resolver: &NameResolver,
        name: &Name,
    ) -> (Self, Option<AskError>) {
        let mut records = resolver.watch(name);
        let (first, problem) = match resolver.lookup_record(name).await {
            Ok(record) => (Some(members_of(&record)), None),
            Err(error) => (None, Some(error)),
        };
        let told = Watched::new(first);
        let members = told.watch();
        let mut following = JoinSet::new();
        following.spawn(FutureExt::boxed(async move {
            while let Some(record) = records.changed().await {
                if let Some(record) = record {
                    told.set(Some(members_of(&record)));
                }
            }
        }));
        (Self { endpoint: endpoint.clone(), members, _following: following }, problem)
    }
}

/// Those that a record means. Members of a group are meant by their names: only a name has a record that says
/// how a relay stands.
fn members_of(record: &SignedRecord) -> Arc<[Name]> {
    if record.record().revoked {
        return Arc::from([]);
    }
    let Some(members) = record.members() else { return Arc::from([record.record().name.clone()]) };
    let by_name = |member: &Member| match member {
        Member::Name(name) => Some(name.clone()),
        Member::Key(id) => {
            tracing::warn!(group = %record.record().name, %id, "a relay's id says nothing of it: take it in by name");
            None
        }
    };
    members.iter().filter_map(by_name).collect()
}

impl Roster for NamedRelays {
    fn members(&self) -> Watch<Option<Arc<[Name]>>> {
        self.members.clone()
    }

    fn member<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, io::Result<Listed>> {
        Box::pin(async move {
            let resolver = self.endpoint.names().ok_or(io::ErrorKind::NotConnected)?;
            let record = resolver.lookup_record(name).await.map_err(|error| match error.code() {
                Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked) => {
                    io::Error::new(io::ErrorKind::NotFound, error)
                }
                _ => io::Error::other(error),
            })?;
            if record.members().is_some() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "a group in a group"));
            }
            let addr = EndpointAddr::new(record.record().id, record.record().addrs.iter().copied());
            Ok(Listed { name: name.clone(), addr, state: record.relay().cloned() })
        })
    }
}
