//! Whether there is a manager, and the paths that it sees.

use std::time::Duration;

use tokio::sync::watch;
use whimbrel_multiaccess::Client;
use whimbrel_multiaccess::protocol::{Answer, PathReport};

/// A manager that is gone is looked for after this time, and after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// How it stands with the manager.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// It was not heard of yet.
    Unknown,
    /// It does not answer; why, in words.
    Gone(String),
    /// These are the paths that it sees.
    There(Vec<PathReport>),
}

/// Tells how it stands with the manager, for as long as this is polled.
pub(crate) async fn follow(client: Client, told: watch::Sender<Standing>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let gone = match client.watch(false).await {
            Ok(mut watcher) => loop {
                match watcher.next().await {
                    Ok(line) => {
                        if let Some(paths) = paths(&line) {
                            pause = FIRST_PAUSE;
                            told.send_replace(Standing::There(paths));
                        }
                    }
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        let gone = gone.to_string();
        told.send_if_modified(|standing| {
            let is_new = !matches!(standing, Standing::Gone(_));
            *standing = Standing::Gone(gone);
            is_new
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The paths that a line tells of. What a newer manager says beside is left out.
fn paths(line: &str) -> Option<Vec<PathReport>> {
    serde_json::from_slice::<Answer>(line.as_bytes()).ok()?.paths
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_tell_of_no_paths_are_left_out() {
        let told = paths(r#"{"paths":[{"interface":"wlan0","metered":true,"newer":1}],"newer":{}}"#).unwrap();
        assert_eq!((told.len(), told[0].interface.as_str(), told[0].metered), (1, "wlan0", true));
        for other in [r#"{"ok":true}"#, "", "nonsense", r#"{"missed":3}"#] {
            assert!(paths(other).is_none(), "{other}");
        }
    }
}
