//! Wakes the task that drives a connection to a server, and not for what that task did itself. The parts of
//! such a connection tell each other what they do by wakers. One task drives all of them: woken by its own
//! doing, it would be scheduled once more for nothing, and another thread be woken to run it.

use futures_util::task::AtomicWaker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// How often it is looked again at once when it rang meanwhile. After that others have their turn.
const AGAIN: usize = 2;

/// What all parts of a connection ring.
pub(super) struct Bell {
    rings: Arc<Rings>,
    waker: Waker,
}

#[derive(Default)]
struct Rings {
    /// A task polls the connection now, and polls it again if it rings.
    is_attended: AtomicBool,
    rang: AtomicBool,
    /// The task that polled it last.
    user: AtomicWaker,
}

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // In this order: whoever ends attending, looks behind that whether it rang. Exchanged, and not
        // stored: whoever clears it sees all that was done before it rang, however often it did.
        self.rang.swap(true, Ordering::SeqCst);
        if !self.is_attended.load(Ordering::SeqCst) {
            self.user.wake();
        }
    }
}

impl Default for Bell {
    fn default() -> Self {
        let rings = Arc::<Rings>::default();
        Self { waker: Waker::from(Arc::clone(&rings)), rings }
    }
}

impl Bell {
    /// Moves a connection, by one task at a time. What rings meanwhile is looked after here; what rings later
    /// wakes the task, until somebody else attends.
    pub(super) fn attend<T>(
        &self,
        cx: &mut Context<'_>,
        mut moves: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.rings.user.register(cx.waker());
        self.rings.is_attended.store(true, Ordering::SeqCst);
        let attended = Attended(&self.rings);
        for _ in 0..=AGAIN {
            self.rings.rang.swap(false, Ordering::SeqCst);
            let polled = moves(&mut Context::from_waker(&self.waker));
            // A task that has what it waited for polls again when it needs more.
            if polled.is_ready() {
                return polled;
            }
            if !self.rings.rang.load(Ordering::SeqCst) {
                break;
            }
        }
        drop(attended);
        if self.rings.rang.load(Ordering::SeqCst) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Ends when it is dropped, also by a panic.
struct Attended<'a>(&'a Rings);

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.0.is_attended.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn task() -> (Arc<Task>, Waker) {
        let task = Arc::<Task>::default();
        (Arc::clone(&task), Waker::from(task))
    }

    #[test]
    fn what_rings_while_it_is_attended_is_looked_after_at_once_and_wakes_nobody() {
        let (bell, (task, waker)) = (Bell::default(), task());
        let mut looks = 0;
        let polled = bell.attend(&mut Context::from_waker(&waker), |cx| {
            looks += 1;
            if looks == 2 {
                return Poll::Ready("there");
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!((polled, looks), (Poll::Ready("there"), 2));
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn what_rings_later_wakes_whoever_attended_last() {
        let bell = Bell::default();
        let ((one, first), (other, second)) = (task(), task());
        let mut kept = None;
        for waker in [&first, &second] {
            let polled = bell.attend(&mut Context::from_waker(waker), |cx| {
                kept = Some(cx.waker().clone());
                Poll::<()>::Pending
            });
            assert!(polled.is_pending());
        }
        assert_eq!((one.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (0, 0));
        if let Some(waker) = kept {
            waker.wake();
        }
        assert_eq!((one.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (0, 1));
    }

    #[test]
    fn what_rings_on_and_on_leaves_others_their_turn_and_comes_again() {
        let (bell, (task, waker)) = (Bell::default(), task());
        let mut looks = 0;
        let polled = bell.attend(&mut Context::from_waker(&waker), |cx| {
            looks += 1;
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((looks, task.0.load(Ordering::SeqCst)), (AGAIN + 1, 1));
    }

    #[test]
    fn no_ring_of_another_thread_is_lost() {
        const RINGS: usize = 10_000;
        let (bell, (task, waker)) = (Bell::default(), task());
        let rung = Arc::new(AtomicUsize::new(0));
        let (ringing, rings) = (bell.waker.clone(), Arc::clone(&rung));
        let thread = std::thread::spawn(move || {
            for _ in 0..RINGS {
                rings.fetch_add(1, Ordering::SeqCst);
                ringing.wake_by_ref();
            }
        });
        // It goes on only when it is woken, as a task does.
        let (mut seen, mut woken) = (0, 0);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let polled = bell.attend(&mut Context::from_waker(&waker), |_| {
                seen = rung.load(Ordering::SeqCst);
                if seen == RINGS { Poll::Ready(()) } else { Poll::Pending }
            });
            if polled.is_ready() {
                break;
            }
            while task.0.load(Ordering::SeqCst) == woken {
                assert!(std::time::Instant::now() < end, "not woken after {seen} of {RINGS}");
                std::thread::yield_now();
            }
            woken = task.0.load(Ordering::SeqCst);
        }
        assert!(thread.join().is_ok());
    }
}
