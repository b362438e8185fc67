//! Endpoints for programs without an async runtime.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use whimbrel_base::{EndpointId, IntoName, Member, Name, Ticket};
use whimbrel_transport::{
    ConnectError, FlowOptions, HandOverError, IntoTarget, ListenError, ListenOptions, ResumeError, Suspended,
    Target,
};

use super::runtime::{self, Background};
use super::{Connection, Connections, Group, Listener, State, Stream};
use crate::group::{GroupError, GroupOptions};
use crate::users::{Registered, UserError};
use crate::{StateError, StateLimits};

/// As [`crate::Endpoint`], for programs without an async runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Endpoint {
    endpoint: crate::Endpoint,
    runtime: Background,
}

impl Endpoint {
    /// Binds what was set up with [`crate::Endpoint::builder`].
    ///
    /// # Errors
    /// [`BindError`](crate::BindError), wrapped.
    pub fn bind(builder: crate::Builder) -> io::Result<Self> {
        let runtime = Background::start()?;
        let endpoint = runtime::run(builder.bind())??;
        Ok(Self { endpoint, runtime })
    }

    /// Connects, and opens a stream.
    ///
    /// # Errors
    /// [`ConnectError`], wrapped.
    pub fn connect(&self, target: impl IntoTarget) -> io::Result<Stream> {
        let target = target.into_target().map_err(ConnectError::from)?;
        runtime::run(connect(self.endpoint.clone(), target))?
    }

    /// As [`connect`](Self::connect), for at most `limit`.
    ///
    /// # Errors
    /// [`ConnectError`], wrapped; `TimedOut` after `limit`.
    pub fn connect_timeout(&self, target: impl IntoTarget, limit: Duration) -> io::Result<Stream> {
        if limit.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot connect within no time at all"));
        }
        let target = target.into_target().map_err(ConnectError::from)?;
        let connect = connect(self.endpoint.clone(), target);
        runtime::run(async move {
            let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection within the time given");
            tokio::time::timeout(limit, connect).await.unwrap_or_else(|_| Err(late()))
        })?
    }

    /// Connects, and returns the connection itself: for several streams, messages, or putting it to sleep.
    ///
    /// # Errors
    /// [`ConnectError`] says what to do.
    pub fn connect_to(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        self.runtime.wait(self.endpoint.connect(target)).map(|connection| self.connection(connection))
    }

    /// As [`connect_to`](Self::connect_to), without waiting for the peer; see
    /// [`crate::Endpoint::connect_early`].
    ///
    /// # Errors
    /// [`ConnectError`] if it is not clear to whom.
    pub fn connect_to_early(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        self.runtime.wait(self.endpoint.connect_early(target)).map(|connection| self.connection(connection))
    }

    /// A connection that the [endpoint itself](Self::inner) has, for use in threads.
    #[must_use]
    pub fn connection(&self, connection: whimbrel_transport::Connection) -> Connection {
        Connection::new(connection, self.runtime.clone(), self.id())
    }

    /// Wakes a connection that [`Connection::suspend`] put to sleep, or that was
    /// [handed over](Connection::suspend_for) to this key; see [`crate::Endpoint::resume`].
    ///
    /// # Errors
    /// [`ResumeError`] if these are not the bytes of a connection of this identity, or there is no room.
    pub fn resume(&self, suspended: &Suspended) -> Result<Connection, ResumeError> {
        self.runtime.wait(self.endpoint.resume(suspended)).map(|connection| self.connection(connection))
    }

    /// Takes the next connection that the endpoint at the other end of `over` [hands
    /// over](Connection::hand_over); see [`crate::Endpoint::accept_hand_over`].
    ///
    /// # Errors
    /// [`HandOverError`]; the connection goes on at the other endpoint then. [`HandOverError::TimedOut`]
    /// after `limit`.
    pub fn accept_hand_over(&self, over: &Connection, limit: Duration) -> Result<Connection, HandOverError> {
        let accepted = self.runtime.wait(self.endpoint.accept_hand_over(over.inner(), limit));
        accepted.map(|connection| self.connection(connection))
    }

    /// Listens for whole connections, with options that say under which name and for whom.
    ///
    /// # Errors
    /// [`ListenError`] says what to do.
    pub fn listen_for_connections(&self, options: ListenOptions) -> Result<Connections, ListenError> {
        let listener = self.runtime.wait(self.endpoint.listen(options))?;
        Ok(Connections::new(listener, self.runtime.clone(), self.id()))
    }

    /// Opens the durable messages in a directory; see [`crate::Endpoint::open_state`].
    ///
    /// # Errors
    /// [`StateError`], above all if another process has it open, or it is damaged.
    pub fn open_state(&self, directory: impl AsRef<Path>) -> Result<State, StateError> {
        self.open_state_with(directory, StateLimits::default())
    }

    /// As [`open_state`](Self::open_state), with limits of your own.
    ///
    /// # Errors
    /// As [`open_state`](Self::open_state).
    pub fn open_state_with(
        &self,
        directory: impl AsRef<Path>,
        limits: StateLimits,
    ) -> Result<State, StateError> {
        let state = self.runtime.wait(self.endpoint.open_state_with(directory, limits))?;
        Ok(State::new(state, self.runtime.clone()))
    }

    /// The group that a name stands for, whose members are followed and called; see
    /// [`crate::Endpoint::group`].
    ///
    /// # Errors
    /// [`GroupError`] says what to do.
    pub fn group(&self, name: impl IntoName, options: FlowOptions) -> Result<Group, GroupError> {
        let group = self.runtime.wait(self.endpoint.group(name, options))?;
        Ok(Group::new(group, self.runtime.clone()))
    }

    /// A group without members, whose messages go on flows with these options, one to each.
    #[must_use]
    pub fn new_group(&self, options: FlowOptions) -> Group {
        Group::new(crate::Group::new(options), self.runtime.clone())
    }

    /// The members that a name stands for; see [`crate::Endpoint::group_members`].
    ///
    /// # Errors
    /// [`GroupError`] says what to do.
    pub fn group_members(&self, name: impl IntoName) -> Result<Vec<Member>, GroupError> {
        self.runtime.wait(self.endpoint.group_members(name))
    }

    /// Changes what a name stands for, and returns its members then; see [`crate::Endpoint::update_group`].
    ///
    /// # Errors
    /// [`GroupError`] says what to do; [`GroupError::NotAGroup`] if an endpoint has the name.
    pub fn update_group(
        &self,
        name: impl IntoName,
        options: GroupOptions,
        change: impl FnOnce(&mut BTreeSet<Member>),
    ) -> Result<Vec<Member>, GroupError> {
        self.runtime.wait(self.endpoint.update_group(name, options, change))
    }

    /// Listens, with options that say under which name and for whom.
    ///
    /// # Errors
    /// [`ListenError`](crate::ListenError), wrapped.
    pub fn listen(&self, options: ListenOptions) -> io::Result<Listener> {
        let endpoint = self.endpoint.clone();
        let listener = runtime::run(async move { endpoint.listen(options).await })??;
        Listener::start(self.endpoint.clone(), listener)
    }

    /// Registers a user name for this endpoint's key; see [`crate::Endpoint::register_user`].
    ///
    /// # Errors
    /// [`UserError`], wrapped.
    pub fn register_user(&self, user: impl IntoName) -> io::Result<Registered> {
        let user: Name = user.into_name().map_err(UserError::from)?;
        let endpoint = self.endpoint.clone();
        Ok(runtime::run(async move { endpoint.register_user(user).await })??)
    }

    /// As [`register_user`](Self::register_user), with the code of an invitation where the service wants one.
    ///
    /// # Errors
    /// [`UserError`], wrapped.
    pub fn register_user_invited(&self, user: impl IntoName, invitation: &str) -> io::Result<Registered> {
        let user: Name = user.into_name().map_err(UserError::from)?;
        let (endpoint, invitation) = (self.endpoint.clone(), invitation.to_owned());
        Ok(runtime::run(async move { endpoint.register_user_invited(user, &invitation).await })??)
    }

    /// Who this is.
    pub fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// Where it can be reached now: enough for others to connect without any name service.
    pub fn ticket(&self) -> Ticket {
        self.endpoint.ticket(None)
    }

    /// Ends all connections in order, for at most `limit`, and stops.
    pub fn close(&self, limit: Duration) {
        let endpoint = self.endpoint.clone();
        // Without a runtime there is nothing to end.
        let _ = runtime::run(async move { endpoint.close(limit).await });
    }

    /// The endpoint itself.
    pub fn inner(&self) -> &crate::Endpoint {
        &self.endpoint
    }
}

async fn connect(endpoint: crate::Endpoint, target: Target) -> io::Result<Stream> {
    let connection = endpoint.connect(target).await?;
    let stream = connection.open_stream().await?;
    Ok(Stream::dialled(stream, endpoint.id()))
}
