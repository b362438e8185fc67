//! The privileged helper: orders the kernel's path manager of Multipath TCP about, for one user.
//!
//! It needs CAP_NET_ADMIN, and does nothing else: it takes the orders of [`words`] on a Unix socket, lets in
//! one user and root, and touches the connections of that user alone (of all users, if it is root who
//! orders).

mod path_manager;
mod session;
pub(crate) mod words;

use crate::door::Door;
use crate::genl::Family;
use crate::kernel::Kernel;
use crate::mptcp::FAMILY;
use futures_util::FutureExt;
use netlink_sys::protocols::NETLINK_GENERIC;
use path_manager::Taken;
use session::{Session, refuse};
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// The most clients at a time; a user has one manager.
const MAX_CLIENTS: usize = 8;
/// The user that may do everything anyway.
const ROOT: u32 = 0;

/// The socket of the helper for the manager of this user.
pub fn helper_path(user: u32) -> PathBuf {
    PathBuf::from(format!("/run/whimbrel-steer/{user}"))
}

/// Why a helper does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelperError {
    /// The kernel has no Multipath TCP, or an older one.
    #[error("this kernel has no userspace path manager of Multipath TCP (Linux 5.19 has): {0}")]
    Kernel(io::Error),
    /// The program may not do that.
    #[error("the kernel's path manager cannot be taken over, which needs CAP_NET_ADMIN: {0}")]
    Forbidden(io::Error),
    /// What helpers have in common cannot be kept beside the socket.
    #[error("no file can be kept in the directory of the helper's socket: {0}")]
    Socket(io::Error),
}

/// A running helper. When the last one is dropped, new connections are the kernel's own path manager's again;
/// those that there are go on with the subflows that they have.
pub struct Helper {
    tasks: JoinSet<()>,
    _taken: Taken,
}

impl Helper {
    /// Takes the path manager over, and takes orders of this user and of root on this socket from then on.
    /// Must run inside a tokio runtime. Helpers beside each other have their sockets in one directory.
    ///
    /// # Errors
    /// [`HelperError`].
    pub async fn start(listener: UnixListener, user: u32) -> Result<Self, HelperError> {
        let mut kernel = Kernel::open(NETLINK_GENERIC).map_err(HelperError::Kernel)?;
        let family = Family::named(&mut kernel, FAMILY).await.map_err(HelperError::Kernel)?;
        // Events are for those alone who may do it all.
        session::Events::open(&family).map_err(HelperError::Forbidden)?;
        let taken = Taken::take(&directory(&listener).map_err(HelperError::Socket)?)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(FutureExt::boxed(accept(listener, user, family)));
        Ok(Self { tasks, _taken: taken })
    }

    /// Waits for the end of a part of it, which is an error in this program: there is none otherwise.
    pub async fn failed(&mut self) {
        self.tasks.join_next().await;
    }
}

fn directory(listener: &UnixListener) -> io::Result<PathBuf> {
    let address = listener.local_addr()?;
    let directory = address.as_pathname().and_then(Path::parent);
    directory.map(Path::to_owned).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

async fn accept(listener: UnixListener, user: u32, family: Family) {
    let mut door = Door::new(listener, MAX_CLIENTS);
    loop {
        let stream = door.next().await;
        match admit(&stream, user, door.is_full()) {
            Ok(peer) => door.let_in(Session::serve(stream, peer, family.clone())),
            Err(Some(why)) => door.turn_away(refuse(stream, why)),
            Err(None) => {}
        }
    }
}

/// The user who orders, if it is one who may. Else what it is told.
fn admit(stream: &UnixStream, user: u32, is_full: bool) -> Result<u32, Option<String>> {
    let peer = stream.peer_cred().map_err(|error| {
        tracing::warn!(%error, "cannot tell who a client is");
        None
    })?;
    let peer = peer.uid();
    if peer != user && peer != ROOT {
        tracing::warn!(uid = peer, "a client of another user is turned away");
        return Err(Some(format!("this helper works for user {user} and root, and you are user {peer}")));
    }
    if is_full {
        return Err(Some(format!("this helper has {MAX_CLIENTS} clients already; connect later")));
    }
    Ok(peer)
}
