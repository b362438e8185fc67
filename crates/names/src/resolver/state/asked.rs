//! One question to the service.

use tokio::sync::oneshot;

use crate::protocol::{Request, Response};
use crate::resolver::AskError;

pub(super) type Answer = Result<Response, AskError>;

/// A question without an answer, and who waits for it.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) waiters: Vec<oneshot::Sender<Answer>>,
    pub(super) sent: bool,
    /// It is asked although nobody waits for the answer: a publication that is said again.
    pub(super) is_standing: bool,
}

impl Asked {
    pub(super) fn has_waiters(&mut self) -> bool {
        self.waiters.retain(|waiter| !waiter.is_closed());
        !self.waiters.is_empty()
    }

    pub(super) fn is_abandoned(&mut self) -> bool {
        // Watches and their ends are wanted by the table of watches.
        let is_of_a_watch = matches!(self.request, Request::Watch { .. } | Request::Unwatch { .. });
        !self.has_waiters() && !self.is_standing && !is_of_a_watch
    }

    /// Whether it is asked again when the service was lost before it answered. Watches are begun anew by
    /// their table.
    pub(super) fn is_worth_repeating(&mut self) -> bool {
        !matches!(self.request, Request::Watch { .. } | Request::Unwatch { .. }) && !self.is_abandoned()
    }

    pub(super) fn answer(self, answer: &Answer) {
        for waiter in self.waiters {
            // Who gave up waiting needs no answer.
            let _ = waiter.send(answer.clone());
        }
    }
}

/// What older services do not know, if the request is of that kind.
pub(super) fn newer(request: &Request) -> Option<&'static str> {
    match request {
        Request::Renew { .. } | Request::Renewed { .. } => Some("renewal of delegations"),
        Request::Vouch { .. } => Some("vouchers"),
        Request::Propose { .. }
        | Request::Decide { .. }
        | Request::Proposals { .. }
        | Request::Withdraw { .. } => Some("requests between users"),
        Request::Mail { .. } => Some("codes by mail"),
        Request::Devices { .. } => Some("look-ups of a user's devices"),
        Request::Appoint { .. } | Request::Appointed { .. } => Some("appointments"),
        Request::Leave { .. } | Request::Fetch { .. } => Some("batches for a user's devices"),
        _ => None,
    }
}

/// When a request's kind was added: of two that a service may not know, it is the later one.
pub(super) fn generation(request: &Request) -> u8 {
    match request {
        Request::Leave { .. } | Request::Fetch { .. } => 3,
        Request::Appoint { .. } | Request::Appointed { .. } => 2,
        other => u8::from(newer(other).is_some()),
    }
}

/// Whether two requests publish the same record.
pub(super) fn is_same_record(one: &Request, other: &Request) -> bool {
    match (one, other) {
        (Request::Register { record: one, .. }, Request::Register { record: other, .. }) => one == other,
        _ => false,
    }
}
