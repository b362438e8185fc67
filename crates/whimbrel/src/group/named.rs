//! A group that a name stands for: its record is followed, and each member called until it answers.

use futures_util::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use whimbrel_base::{EndpointId, IntoName, Member, Name};
use whimbrel_names::NameResolver;
use whimbrel_transport::{ConnectError, Connection, FlowOptions, Resolver as _};

use super::record::resolver;
use super::{Group, GroupError, Inner, Newcomer};
use crate::endpoint::Endpoint;
use whimbrel_base::order;

/// Between attempts to reach a member that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Ends the task that follows a group's record.
pub(super) struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Endpoint {
    /// The group that a name stands for. Each member is called, and again after its connection has ended,
    /// until it answers; meanwhile what is sent waits for it as for one that is [away](Group). Changes of the
    /// group are followed for as long as the group is held: new members are called, and those that are out
    /// get nothing more. This endpoint itself is left out. A member that is a group itself is not reached.
    ///
    /// ```
    /// # use whimbrel::names::{Admission, Limits, MemoryStore, Service};
    /// # use whimbrel::{Allow, Class, Endpoint, FlowOptions, GroupOptions, ListenOptions, Member};
    /// # use whimbrel::{SecretKey, SendOptions};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let own = whimbrel::transport::Endpoint::builder().bind().await?;
    /// # let service = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await?;
    /// # let [ada, bob] = [SecretKey::generate(), SecretKey::generate()];
    /// # let called = Endpoint::builder().identity(bob).names(service.addr()).bind().await?;
    /// # called.register_user("bob@example.org").await?;
    /// # let mut listener = called.listen(ListenOptions::named("bob@example.org").allow(Allow::Any)).await?;
    /// # let hears = tokio::spawn(async move {
    /// #     let connection = listener.accept().await?;
    /// #     Some((connection.recv_message().await.ok()?, connection))
    /// # });
    /// # let endpoint = Endpoint::builder().identity(ada).names(service.addr()).bind().await?;
    /// # endpoint.register_user("ada@example.org").await?;
    /// # let (bob, options) = ("bob@example.org".parse::<Member>()?, GroupOptions::default());
    /// # endpoint.update_group("team.ada@example.org", options, |team| team.extend([bob])).await?;
    /// let team = endpoint.group("team.ada@example.org", FlowOptions::new(Class::RELIABLE_SEQUENCED)).await?;
    /// for delivery in team.send("lunch?", SendOptions::default()) {
    ///     println!("{}: {:?}", delivery.member().clone(), delivery.await);
    /// }
    /// # assert_eq!(hears.await?.ok_or("nothing came")?.0.data, b"lunch?");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`GroupError::NotAGroup`] if the name is an endpoint's; [`GroupError`] otherwise.
    pub async fn group(&self, name: impl IntoName, options: FlowOptions) -> Result<Group, GroupError> {
        self.call_group(name, options, None).await
    }

    /// As [`group`](Self::group). The greeting is what each member gets first, on each of its connections,
    /// before what waited for it.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub async fn group_with_greeting(
        &self,
        name: impl IntoName,
        options: FlowOptions,
        greeting: impl Into<Vec<u8>>,
    ) -> Result<Group, GroupError> {
        self.call_group(name, options, Some(greeting.into())).await
    }

    async fn call_group(
        &self,
        name: impl IntoName,
        options: FlowOptions,
        greeting: Option<Vec<u8>>,
    ) -> Result<Group, GroupError> {
        let name = name.into_name()?;
        // First listen, then read: a change in between is heard.
        let mut records = resolver(self, &name)?.watch(&name);
        let members = order::set(self.group_members(&name).await?);
        let group = Group::greeting(options, greeting);
        let inner = Arc::downgrade(&group.inner);
        let mut calls =
            Calls { endpoint: self.clone(), inner, running: JoinSet::new(), by_member: BTreeMap::new() };
        calls.change(&members);
        let following = async move {
            loop {
                tokio::select! {
                    record = records.changed() => match record {
                        Some(Some(record)) if record.record().revoked => calls.change(&BTreeSet::new()),
                        Some(Some(record)) => match record.members() {
                            Some(members) => calls.change(&order::set(members.iter().cloned())),
                            None => tracing::warn!(%name, "the name stands for a group no more"),
                        },
                        Some(None) => {}
                        None => return,
                    },
                    Some(_) = calls.running.join_next() => {}
                }
            }
        };
        // It was made just now: there is none yet.
        let _ = group.inner.following.set(Following(tokio::spawn(FutureExt::boxed(following))));
        Ok(group)
    }
}

/// The tasks that call members, one for each.
struct Calls {
    endpoint: Endpoint,
    inner: Weak<Inner>,
    running: JoinSet<()>,
    by_member: BTreeMap<Member, AbortHandle>,
}

impl Calls {
    /// Brings the group to these members. Their connections end with the task that made them.
    fn change(&mut self, members: &BTreeSet<Member>) {
        let Some(inner) = self.inner.upgrade() else { return };
        self.by_member.retain(|member, call| {
            let stays = members.contains(member);
            if !stays {
                inner.remove(member);
                call.abort();
            }
            stays
        });
        let own = self.endpoint.id();
        for member in members.iter().filter(|member| **member != own) {
            if self.by_member.contains_key(member) {
                continue;
            }
            inner.expect(member.clone());
            let call = call(self.endpoint.clone(), self.inner.clone(), member.clone());
            self.by_member.insert(member.clone(), self.running.spawn(FutureExt::boxed(call)));
        }
    }
}

/// Keeps a member here for as long as that can be done.
async fn call(endpoint: Endpoint, inner: Weak<Inner>, member: Member) {
    let mut pause = FIRST_PAUSE;
    loop {
        match reach(&endpoint, &member).await {
            Ok(Reached::Itself) => {
                if let Some(inner) = inner.upgrade() {
                    inner.remove(&member);
                }
                return;
            }
            Ok(Reached::Peer(connection)) => {
                let Some(inner) = inner.upgrade() else { return };
                let added = inner.add(member.clone(), &connection, Newcomer::LeftOut).await;
                drop(inner);
                match added {
                    Ok(()) => {
                        pause = FIRST_PAUSE;
                        connection.closed().await;
                    }
                    Err(error) => tracing::warn!(%member, %error, "the member takes no messages"),
                }
            }
            Err(error) => tracing::info!(%member, %error, "the member is away"),
        }
        wait(endpoint.names(), &member, pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Reached {
    Peer(Connection),
    Itself,
}

async fn reach(endpoint: &Endpoint, member: &Member) -> Result<Reached, ConnectError> {
    match member {
        Member::Key(id) => endpoint.connect(id).await.map(Reached::Peer),
        Member::Name(name) if owner(endpoint, name).await == Some(endpoint.id()) => Ok(Reached::Itself),
        Member::Name(name) => endpoint.connect(name).await.map(Reached::Peer),
    }
}

/// The endpoint that has a name now. What cannot be found out shows when it is called.
async fn owner(endpoint: &Endpoint, name: &Name) -> Option<EndpointId> {
    let record = endpoint.names()?.lookup_record(name).await.ok()?;
    Some(record.record().id)
}

/// Waits for a while, or until the member's name has a new record.
async fn wait(names: Option<&NameResolver>, member: &Member, pause: Duration) {
    let news = async {
        match (names, member) {
            (Some(names), Member::Name(name)) => {
                let mut records = names.watch(name);
                // What is known already led nowhere.
                let known = records.current().map(|record| record.record().sequence);
                let is_newer = |sequence: u64| known.is_none_or(|known| sequence > known);
                while let Some(record) = records.changed().await {
                    if record.is_some_and(|record| is_newer(record.record().sequence)) {
                        // One that is published again and again must not be called more often than this.
                        tokio::time::sleep(FIRST_PAUSE).await;
                        return;
                    }
                }
            }
            _ => std::future::pending().await,
        }
    };
    let _ = tokio::time::timeout(pause, news).await;
}
