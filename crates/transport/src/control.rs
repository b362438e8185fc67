//! Changing how a living connection uses its paths.

use std::fmt;
use std::sync::Arc;

use whimbrel_proto::{HandoverMode, PathId, Priority, SchedulerKind};

use crate::error::NoSuchPath;
use crate::policy::PathPolicy;
use crate::shared::Shared;

/// Says how a connection uses its paths. Does not keep the connection alive, nor wait for anything.
#[derive(Clone)]
pub struct PathControl {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for PathControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathControl").field("connection", &self.shared.id).finish_non_exhaustive()
    }
}

impl PathControl {
    /// How the connection uses its paths now.
    #[must_use]
    pub fn handover(&self) -> HandoverMode {
        self.shared.lock().engine.handover()
    }

    /// Sets how the connection uses its paths, for both sides. The last word of either side counts, and the
    /// client's if both speak at once. Priorities that were set by hand are forgotten.
    pub fn set_handover(&self, mode: HandoverMode) {
        self.shared.set_handover(mode);
    }

    /// How this side shares its data out among the paths.
    #[must_use]
    pub fn scheduler(&self) -> SchedulerKind {
        self.shared.lock().engine.scheduler()
    }

    /// Sets how this side shares its data out among the paths, from the next byte on.
    pub fn set_scheduler(&self, kind: SchedulerKind) {
        self.shared.with(|state| state.engine.set_scheduler(kind));
    }

    /// Which paths this side wants.
    #[must_use]
    pub fn policy(&self) -> PathPolicy {
        PathPolicy::clone(&self.shared.policy())
    }

    /// Sets which paths this side wants. Missing ones are opened at once; which path carries data is decided
    /// anew. The [mode](Self::set_handover) stays. Only the side that dialled opens paths; on the other this
    /// has no effect.
    pub fn set_policy(&self, policy: impl Into<PathPolicy>) {
        self.shared.set_policy(policy.into());
    }

    /// Says whether a path carries data or stands by, for both sides. It stays so until the path ends, or the
    /// [mode](Self::set_handover) or the [policy](Self::set_policy) is set anew.
    ///
    /// # Errors
    /// [`NoSuchPath`] if the path is gone.
    pub fn set_priority(&self, path: u64, priority: Priority) -> Result<(), NoSuchPath> {
        self.shared.with(|state| {
            let id = PathId(path);
            if !state.paths.iter().any(|path| path.id == id) {
                return Err(NoSuchPath(path));
            }
            state.engine.set_priority(id, priority);
            state.pin(id);
            Ok(())
        })?;
        self.shared.mover.look();
        Ok(())
    }
}
