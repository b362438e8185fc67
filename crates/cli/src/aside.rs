//! Work on threads that may block.

use tokio::sync::oneshot;

/// Runs something on a thread that may block, from now on. No answer comes where it panicked, or the process
/// is ending. All of it is one type of task: what the runtime does with a task is compiled for each type of
/// one, 2 KB.
pub(crate) fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (reply, answer) = oneshot::channel();
    start(Box::new(move || drop(reply.send(work()))));
    answer
}

fn start(work: Box<dyn FnOnce() + Send>) {
    drop(tokio::task::spawn_blocking(work));
}
