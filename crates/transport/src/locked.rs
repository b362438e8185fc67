//! Whether this thread has the lock on a connection. The kernel is not asked for anything meanwhile:
//! everything else that wants something of the connection would wait for its answer. Builds for debugging and
//! tests see to it.

#[cfg(any(test, debug_assertions))]
use std::cell::Cell;
use std::marker::PhantomData;

#[cfg(any(test, debug_assertions))]
thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
    static ASKED: Cell<u32> = const { Cell::new(0) };
}

#[cfg(test)]
thread_local! {
    static TAKEN: Cell<u32> = const { Cell::new(0) };
}

/// Says that this thread has the lock on a connection, until it is dropped.
pub(crate) struct Holding(PhantomData<*const ()>);

impl Holding {
    pub(crate) fn begin() -> Self {
        #[cfg(any(test, debug_assertions))]
        HELD.set(HELD.get() + 1);
        #[cfg(test)]
        TAKEN.set(TAKEN.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        #[cfg(any(test, debug_assertions))]
        HELD.set(HELD.get() - 1);
    }
}

/// The kernel is asked for something. Panics in builds for debugging and tests if this thread has the lock on
/// a connection.
pub(crate) fn asks_the_kernel() {
    #[cfg(any(test, debug_assertions))]
    {
        assert_eq!(HELD.get(), 0, "the kernel is asked while a connection is locked");
        ASKED.set(ASKED.get() + 1);
    }
}

/// How often this thread has asked.
#[cfg(test)]
pub(crate) fn asked() -> u32 {
    ASKED.get()
}

/// How often this thread has taken the lock on a connection.
#[cfg(test)]
pub(crate) fn taken() -> u32 {
    TAKEN.get()
}
