//! What waits in a group for a member that is away.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use whimbrel_transport::{Flow, FlowOptions, Outcome, Refused, SendError, SendOptions, Sent};

use super::State;

/// What a message takes of a queue beside its bytes, as in a flow.
const MESSAGE_COST: u64 = 256;
/// As in a flow, an unreliable message without a lifetime of its own waits no longer than this.
const UNRELIABLE_PATIENCE: Duration = Duration::from_secs(1);

/// What waits for a member that is away.
#[derive(Default)]
pub(super) struct Backlog {
    waiting: VecDeque<Waiting>,
    held: u64,
}

struct Waiting {
    data: Vec<u8>,
    options: SendOptions,
    until: Option<Instant>,
    handed: oneshot::Sender<Handed>,
}

/// What became of a message that waited.
pub(super) enum Handed {
    Sent(Sent),
    Refused(SendError),
    Ended(Outcome),
}

fn cost(data: &[u8]) -> u64 {
    data.len() as u64 + MESSAGE_COST
}

impl Backlog {
    pub(super) fn put(&mut self, data: &[u8], options: SendOptions, flow: &FlowOptions) -> State {
        let now = Instant::now();
        self.drop_dead(now);
        if self.held > 0 && self.held + cost(data) > flow.queue {
            return State::Refused(SendError::Full);
        }
        let patience = (!flow.class.reliable).then_some(UNRELIABLE_PATIENCE);
        let until = options.lifetime.or(patience).and_then(|time| now.checked_add(time));
        let (handed, waits) = oneshot::channel();
        self.held += cost(data);
        self.waiting.push_back(Waiting { data: data.to_vec(), options, until, handed });
        let sleep = until.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        State::Waits { waits, sleep }
    }

    /// What has outlived its lifetime is not kept.
    fn drop_dead(&mut self, now: Instant) {
        let dead = |waiting: &Waiting| waiting.until.is_some_and(|at| at <= now);
        let mut left = VecDeque::new();
        for waiting in self.waiting.drain(..) {
            if dead(&waiting) {
                self.held -= cost(&waiting.data);
                // Without effect where the handle was dropped.
                let _ = waiting.handed.send(Handed::Ended(Outcome::Expired));
            } else {
                left.push_back(waiting);
            }
        }
        self.waiting = left;
    }

    /// The member is here: sends what is still alive.
    pub(super) fn hand_over(&mut self, flow: &Flow) {
        let now = Instant::now();
        self.drop_dead(now);
        for Waiting { data, mut options, until, handed } in self.waiting.drain(..) {
            options.lifetime = until.map(|at| at.saturating_duration_since(now));
            let handed_over = match flow.try_send(data, options) {
                Ok(sent) => Handed::Sent(sent),
                Err(Refused { error, .. }) => Handed::Refused(error),
            };
            let _ = handed.send(handed_over);
        }
        self.held = 0;
    }
}
