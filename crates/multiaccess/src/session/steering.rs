//! Connections that a client has steered.

use super::answers::{answer, write_line};
use super::{OUTSTANDING, Session};
use crate::protocol::{Answer, Steer};
use crate::refusal::Refusal;
use futures_util::FutureExt;
use std::sync::Arc;

impl Session {
    /// Has a connection steered, which takes as long as the helper and the kernel.
    pub(super) fn steer(&mut self, id: Option<u64>, steer: Steer) {
        if self.waiting.len() >= OUTSTANDING {
            let why = format!("{OUTSTANDING} questions of yours wait already; ask again later");
            return self.push(&answer(id, Err(Refusal::busy(why))));
        }
        let user = match self.stream.peer_cred() {
            Ok(peer) => peer.uid(),
            Err(error) => return self.push(&answer(id, Err(Refusal::wrong(error)))),
        };
        let (shared, who) = (Arc::clone(&self.shared), (self.number, user));
        let presence = Arc::downgrade(&self.steers);
        self.waiting.spawn(FutureExt::boxed(async move {
            let told = match shared.steering.steer(who, presence, steer).await {
                Ok(steered) => Answer { id, steered: Some(steered), ..Answer::default() },
                Err(refusal) => answer(id, Err(refusal)),
            };
            let mut line = Vec::new();
            write_line(&mut line, &told);
            line
        }));
    }
}
