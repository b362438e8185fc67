//! Who decides for whom. A user's manager has one decider for all its clients. The host's manager has one for
//! root, and one for each other user, so that what a user schedules, reports and measures changes no decision
//! but its own.

use crate::decide::Decider;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use whimbrel_access::{PolicyError, PolicySpec};

/// The most clients of one user on the host's manager: a quarter of all (`MAX_CLIENTS`).
const MOST_CLIENTS: usize = 64;
/// Users of whom something is known while they have no client. Others are forgotten with their last one.
const MOST_RESTING: usize = 64;

/// Names that are looked up at a time: of one client, or, where users are apart, of one user.
pub(crate) const LOOK_UPS: usize = 16;

/// All deciders.
pub(crate) struct Deciders {
    spec: PolicySpec,
    /// For all clients that are not listed.
    own: Decider,
    users: HashMap<u32, User>,
    /// Clients of other users, by their numbers.
    clients: HashMap<u64, u32>,
}

struct User {
    decider: Decider,
    clients: usize,
    look_ups: Arc<Semaphore>,
}

impl Deciders {
    pub(crate) fn new(spec: &PolicySpec) -> Result<Self, PolicyError> {
        let own = Decider::new(spec.build()?);
        Ok(Self { spec: spec.clone(), own, users: HashMap::new(), clients: HashMap::new() })
    }

    /// Has a client decided for apart from others, with those of the same user.
    ///
    /// # Errors
    /// Why it is not let in, in words.
    pub(crate) fn enter(&mut self, client: u64, user: u32) -> Result<(), String> {
        if !self.users.contains_key(&user) {
            let policy = self.spec.build().map_err(|error| error.to_string())?;
            self.make_room();
            let look_ups = Arc::new(Semaphore::new(LOOK_UPS));
            self.users.insert(user, User { decider: Decider::of_user(policy), clients: 0, look_ups });
        }
        if let Some(known) = self.users.get_mut(&user) {
            if known.clients >= MOST_CLIENTS {
                return Err(format!("user {user} has {MOST_CLIENTS} clients already; connect later"));
            }
            known.clients += 1;
            self.clients.insert(client, user);
        }
        Ok(())
    }

    /// Forgets a client, and what it told.
    pub(crate) fn leave(&mut self, client: u64) {
        self.of(client).load.gone(client);
        if let Some(user) = self.clients.remove(&client)
            && let Some(known) = self.users.get_mut(&user)
        {
            known.clients = known.clients.saturating_sub(1);
        }
    }

    /// Forgets a user without clients, if there are too many of them.
    fn make_room(&mut self) {
        let resting = |user: &User| user.clients == 0;
        if self.users.values().filter(|user| resting(user)).count() >= MOST_RESTING {
            let one = self.users.iter().find(|(_, user)| resting(user)).map(|(number, _)| *number);
            if let Some(number) = one {
                self.users.remove(&number);
            }
        }
    }

    /// The user of this client, if it is decided for apart.
    pub(crate) fn user_of(&self, client: u64) -> Option<u32> {
        self.clients.get(&client).copied()
    }

    /// What this client looks names up by: together with others of its user, if that is decided for apart.
    pub(crate) fn look_ups(&self, client: u64) -> Arc<Semaphore> {
        let user = self.clients.get(&client).and_then(|user| self.users.get(user));
        user.map_or_else(|| Arc::new(Semaphore::new(LOOK_UPS)), |user| Arc::clone(&user.look_ups))
    }

    /// The one that decides for this client.
    pub(crate) fn of(&mut self, client: u64) -> &mut Decider {
        let user = self.clients.get(&client).and_then(|user| self.users.get_mut(user));
        match user {
            Some(user) => &mut user.decider,
            None => &mut self.own,
        }
    }

    /// The one for all clients that are not decided for apart.
    pub(crate) fn own(&mut self) -> &mut Decider {
        &mut self.own
    }

    /// Takes away what was too long ago. Returns whether units are scheduled.
    pub(crate) fn forget(&mut self, now: Duration) -> bool {
        let mut is_busy = false;
        let all = self.users.values_mut().map(|user| &mut user.decider).chain([&mut self.own]);
        for decider in all {
            decider.load.forget(now);
            decider.failures.forget(now);
            is_busy |= decider.load.is_scheduled();
        }
        is_busy
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use whimbrel_access::{PathEstimate, PathId};

    fn scheduled(decider: &Decider) -> u64 {
        let mut estimates = [PathEstimate::default()];
        decider.load.add_scheduled(&mut estimates, Duration::ZERO);
        estimates[0].scheduled
    }

    #[test]
    fn what_a_user_tells_counts_for_that_user_alone() {
        let mut deciders = Deciders::new(&PolicySpec::named("eaf")).unwrap();
        for (client, user) in [(1, 1000), (2, 1000), (3, 1001)] {
            deciders.enter(client, user).unwrap();
        }
        let now = Duration::ZERO;
        deciders.of(1).load.schedule(1, vec![(PathId(0), 500)], now, None).unwrap();
        deciders.of(1).failures.failed(now, 2, "192.0.2.1:443".parse().unwrap());
        assert_eq!((scheduled(deciders.of(2)), deciders.of(2).failures.is_empty()), (500, false));
        for other in [3, 4] {
            assert_eq!((scheduled(deciders.of(other)), deciders.of(other).failures.is_empty()), (0, true));
        }
        assert_eq!(
            [1, 2, 3, 4].map(|client| deciders.user_of(client)),
            [Some(1000), Some(1000), Some(1001), None]
        );
        let is_shared = |one, other| Arc::ptr_eq(&deciders.look_ups(one), &deciders.look_ups(other));
        assert!(is_shared(1, 2) && !is_shared(1, 3) && !is_shared(4, 4));
        assert!(deciders.forget(now));
        deciders.leave(1);
        assert_eq!((scheduled(deciders.of(2)), deciders.user_of(1)), (0, None));
        assert!(!deciders.forget(now));
    }

    #[test]
    fn one_user_does_not_take_the_room_of_all() {
        let mut deciders = Deciders::new(&PolicySpec::named("eaf")).unwrap();
        for client in 0..MOST_CLIENTS as u64 {
            deciders.enter(client, 1000).unwrap();
        }
        assert!(deciders.enter(1_000_000, 1000).unwrap_err().contains("connect later"));
        deciders.enter(1_000_001, 1001).unwrap();
        deciders.leave(0);
        deciders.enter(1_000_002, 1000).unwrap();
        // Users come and go without end.
        for user in 2000..3000 {
            deciders.enter(u64::from(user), user).unwrap();
            deciders.leave(u64::from(user));
        }
        assert!(deciders.users.len() <= MOST_RESTING + 3);
    }
}
