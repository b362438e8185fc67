//! Trials side by side, for those that mostly wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Result, bail};

use crate::output::Output;
use crate::report::{Spec, Trial};

/// What came of several jobs.
pub(crate) struct Done<T> {
    pub(crate) trials: Vec<Trial>,
    /// What the jobs brought besides, in no order.
    pub(crate) more: Vec<T>,
    /// Why jobs failed, each with the job's name.
    pub(crate) failures: Vec<String>,
}

/// Runs every job, `lanes` at a time, and reports its trials as they come. A job that fails is told and left
/// out.
///
/// # Errors
/// If no job at all succeeds.
pub(crate) fn run<J: Sync, T: Send>(
    jobs: &[J],
    lanes: usize,
    spec: &Spec,
    output: &Output,
    name: impl Fn(&J) -> String + Sync,
    job: impl Fn(&J) -> Result<(Vec<Trial>, T)> + Sync,
) -> Result<Done<T>> {
    let mut done = Done { trials: Vec::new(), more: Vec::new(), failures: Vec::new() };
    let mut ended = Vec::new();
    let next = AtomicUsize::new(0);
    let (results, received) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..lanes.max(1) {
            let (results, next, job) = (results.clone(), &next, &job);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = jobs.get(index) else { break };
                    // The receiver lives as long as the scope.
                    let _ = results.send((index, one, job(one)));
                }
            });
        }
        drop(results);
        for (index, one, result) in received {
            match result {
                Ok((trials, more)) => {
                    trials.iter().for_each(|trial| output.trial(spec, trial));
                    ended.push((index, trials));
                    done.more.push(more);
                }
                Err(error) => {
                    eprintln!("  {} {} failed: {error:#}", spec.name, name(one));
                    done.failures.push(format!("{}: {error:#}", name(one)));
                }
            }
        }
    });
    // In the order of the jobs, whichever ended first.
    ended.sort_by_key(|(index, _)| *index);
    done.trials = ended.into_iter().flat_map(|(_, trials)| trials).collect();
    if done.trials.is_empty() {
        bail!("every trial of {} failed: {}", spec.name, done.failures.join("; "));
    }
    Ok(done)
}
