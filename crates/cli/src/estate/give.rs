//! The running instance's side.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::wire::{Item, Wire};
use super::{Estate, VERSIONS};
use crate::manager;

/// The newer instance has this long to be ready. Until then nobody serves.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to read what is handed over.
const SEND_LIMIT: Duration = Duration::from_secs(20);

/// What a newer instance asks with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// Those that it understands, the best first.
    pub(crate) versions: Vec<u32>,
}

/// The answer, before the items.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandOver {
    pub(crate) version: u32,
    /// For people.
    pub(crate) program: String,
}

/// As it is said.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) hand_over: HandOver,
}

/// A newer instance that asked to take over.
pub(crate) struct Asker {
    wire: Wire,
    version: u32,
    /// Its process.
    pid: Option<u32>,
}

impl Asker {
    /// Checks who asks on this socket, and for what.
    ///
    /// # Errors
    /// Why it is refused, in words for its user.
    pub(crate) fn check(socket: UnixStream, question: &Question) -> Result<Self, (UnixStream, String)> {
        let peer = match socket.peer_cred() {
            Ok(peer) => peer,
            Err(error) => return Err((socket, format!("cannot tell who asks: {error}"))),
        };
        if !may_take_over(peer.uid()) {
            return Err((socket, "only the user that runs this may take over".to_owned()));
        }
        let Some(version) = question.versions.iter().copied().find(|version| VERSIONS.contains(version))
        else {
            let why = format!(
                "this instance (whimbrel {}) hands over in version {VERSIONS:?}, and the newer one understands {:?}; \
                 restart it instead",
                env!("CARGO_PKG_VERSION"),
                question.versions
            );
            return Err((socket, why));
        };
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        if manager::is_there() && !pid.is_none_or(is_of_this_unit) {
            let why =
                "a service manager runs this instance, and would start another one; use `systemctl reload`";
            return Err((socket, why.to_owned()));
        }
        Ok(Self { wire: Wire::new(socket), version, pid })
    }

    /// Says no.
    pub(crate) async fn refuse(mut self, why: String) {
        // If it does not listen any more it needs no answer.
        let _ = self.wire.send_line(&serde_json::json!({ "error": why })).await;
    }

    /// Hands everything over. Returns the process that has it from then on.
    ///
    /// # Errors
    /// When it does not take it: this instance has to go on then.
    pub(crate) async fn give(mut self, estate: &Estate) -> Result<u32> {
        let hand_over = HandOver { version: self.version, program: env!("CARGO_PKG_VERSION").to_owned() };
        if let Err(error) = estate.check() {
            let why = error.to_string();
            self.refuse(why).await;
            return Err(error);
        }
        let sending = async {
            self.wire.send_line(&Answer { hand_over }).await?;
            estate.send(&mut self.wire).await
        };
        let ended = "it ended before it had everything";
        tokio::time::timeout(SEND_LIMIT, sending)
            .await
            .context("it does not read what it is given")?
            .context(ended)?;
        let ready = tokio::time::timeout(READY_LIMIT, self.wire.receive()).await;
        match ready.context("it is not ready in time")? {
            Ok((Item::Ready, _)) => {}
            Ok(_) => bail!("it says something else than it should"),
            Err(_) => bail!("it ended before it was ready"),
        }
        let pid = self.pid.unwrap_or_default();
        // First, because the service manager listens to the main process only.
        manager::main_process_is(pid);
        if let Err(error) = self.wire.say(&Item::Go).await {
            manager::main_process_is(std::process::id());
            return Err(error).context("it ended when it was ready");
        }
        Ok(pid)
    }
}

/// Whether the service manager takes this process for one of the same service.
fn is_of_this_unit(pid: u32) -> bool {
    let unit = |of: &str| std::fs::read(format!("/proc/{of}/cgroup")).ok();
    unit("self") == unit(&pid.to_string())
}

/// Whether processes of this user may have what this process has. Not even root: it can become the user.
fn may_take_over(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processes_of_other_users_may_not_take_over() {
        let own = rustix::process::geteuid().as_raw();
        assert!(may_take_over(own));
        assert!(!may_take_over(own + 1) && !may_take_over(65_534));
    }

    #[test]
    fn this_process_is_of_its_own_unit() {
        assert!(is_of_this_unit(std::process::id()));
        assert!(!is_of_this_unit(u32::MAX), "no such process");
    }

    #[tokio::test]
    async fn a_version_that_is_not_known_is_refused_in_words() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let question = Question { versions: vec![9, 8] };
        let why = Asker::check(socket, &question).err().unwrap().1;
        assert!(why.contains("[1]") && why.contains("[9, 8]") && why.contains("restart"), "{why}");
        let (socket, _other) = UnixStream::pair().unwrap();
        let asker = Asker::check(socket, &Question { versions: vec![9, 1] }).ok().unwrap();
        assert_eq!(asker.version, 1);
    }
}
