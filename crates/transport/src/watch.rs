//! Values that change: one side sets them, others see the newest.

use tokio::sync::watch;

/// One reader's view of a value that changes. Values in between may be missed, the newest never is. Clones
/// have seen what it has seen.
#[derive(Debug, Clone)]
pub struct Watch<T>(pub(crate) watch::Receiver<T>);

impl<T: Clone> Watch<T> {
    /// The value now. It may still be news to [`changed`](Self::changed).
    #[must_use]
    pub fn current(&self) -> T {
        self.0.borrow().clone()
    }

    /// Waits for a value that this reader was not given yet; one that was there when the watch began is not
    /// news. `None` once it can't change any more. Cancel-safe.
    pub async fn changed(&mut self) -> Option<T> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }

    /// Waits until the value is as wanted, which it may be already. `None` once it can't change any more.
    /// Cancel-safe.
    pub async fn wait_for(&mut self, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        self.0.wait_for(wanted).await.ok().map(|value| value.clone())
    }

    /// Makes the present value news to [`changed`](Self::changed), although it may have been seen.
    pub fn renew(&mut self) {
        self.0.mark_changed();
    }
}

impl<T> Watch<T> {
    /// Begins to watch; the present value counts as seen.
    pub(crate) fn begin(value: &watch::Receiver<T>) -> Self {
        let mut receiver = value.clone();
        receiver.mark_unchanged();
        Self(receiver)
    }
}

/// The side that sets a value which others [watch](Watch).
///
/// ```
/// # tokio_test(async {
/// use whimbrel_transport::Watched;
/// let level = Watched::new(1);
/// let mut watch = level.watch();
/// level.set(2);
/// assert_eq!(watch.changed().await, Some(2));
/// # });
/// # fn tokio_test(test: impl Future<Output = ()>) {
/// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
/// # }
/// ```
#[derive(Debug)]
pub struct Watched<T>(watch::Sender<T>);

impl<T: Clone> Watched<T> {
    /// Starts with `value`.
    pub fn new(value: T) -> Self {
        Self(watch::Sender::new(value))
    }

    /// The value now.
    pub fn current(&self) -> T {
        self.0.borrow().clone()
    }

    /// Begins to watch; the present value counts as seen.
    pub fn watch(&self) -> Watch<T> {
        Watch(self.0.subscribe())
    }

    /// Puts another value there.
    pub fn set(&self, value: T) {
        self.0.send_replace(value);
    }

    /// Changes the value.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        self.0.send_modify(change);
    }

    /// Changes the value if `change` says that it did. Otherwise it is no news.
    pub fn update_if(&self, change: impl FnOnce(&mut T) -> bool) {
        self.0.send_if_modified(change);
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Waits until nobody watches. Cancel-safe.
    pub async fn unwatched(&self) {
        self.0.closed().await;
    }
}
