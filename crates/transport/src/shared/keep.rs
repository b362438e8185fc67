//! The engine of a connection: awake, or packed while the connection waits for its peer without a path.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use whimbrel_proto::{Connection as Engine, Resting};

/// An engine. The [lock](super::Shared::lock) on a connection wakes it, so that whoever holds that may do with it
/// what they like.
pub(crate) enum Keep {
    Awake(Box<Engine>),
    Resting(Box<Resting>),
}

impl Keep {
    pub(super) fn new(engine: Engine) -> Self {
        Self::Awake(Box::new(engine))
    }

    /// Packs the engine if it may rest. True if it rests.
    pub(super) fn rest(&mut self, now: Instant) -> bool {
        if let Self::Awake(engine) = self
            && let Some(resting) = engine.rest(now)
        {
            *self = Self::Resting(Box::new(resting));
        }
        matches!(self, Self::Resting(_))
    }

    /// Unpacks the engine. True if it rested.
    #[inline]
    pub(super) fn wake(&mut self) -> bool {
        let Self::Resting(resting) = self else { return false };
        *self = Self::Awake(Box::new(resting.wake()));
        true
    }

    /// While it rests: until when at most, if that is known.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        match self {
            Self::Awake(_) => None,
            Self::Resting(resting) => resting.poll_timeout(),
        }
    }

    /// As [`Engine::buffered`].
    pub(crate) fn buffered(&self) -> u64 {
        match self {
            Self::Awake(engine) => engine.buffered(),
            Self::Resting(resting) => resting.buffered(),
        }
    }

    /// As [`Engine::detached_since`].
    pub(crate) fn detached_since(&self) -> Option<Instant> {
        match self {
            Self::Awake(engine) => engine.detached_since(),
            Self::Resting(resting) => resting.detached_since(),
        }
    }

    /// As [`Engine::is_confirmed`].
    pub(crate) fn is_confirmed(&self) -> bool {
        match self {
            Self::Awake(engine) => engine.is_confirmed(),
            // Before, it does not rest.
            Self::Resting(_) => true,
        }
    }
}

impl Deref for Keep {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        match self {
            Self::Awake(engine) => engine,
            Self::Resting(_) => unreachable!("the lock wakes it"),
        }
    }
}

impl DerefMut for Keep {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        match self {
            Self::Awake(engine) => engine,
            Self::Resting(_) => unreachable!("the lock wakes it"),
        }
    }
}
