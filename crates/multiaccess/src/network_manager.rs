//! NetworkManager's word for what costs money: asked by its own program, nmcli(1), if the settings say so.

use crate::shared::Shared;
use std::collections::BTreeSet;
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// What is asked: the name of each interface, and whether it is metered.
const ARGS: [&str; 5] = ["-t", "-f", "GENERAL.DEVICE,GENERAL.METERED", "device", "show"];
const DEVICE: &str = "GENERAL.DEVICE:";
const METERED: &str = "GENERAL.METERED:";
/// It answers in a fraction of a second.
const LIMIT: Duration = Duration::from_secs(5);
/// A host has some interfaces; each takes two lines.
const MOST: u64 = 256 << 10;
/// It is asked again after this time, and when interfaces or addresses change.
const AGAIN: Duration = Duration::from_secs(30);
/// Changes that come together are asked about once; NetworkManager hears of them when we do.
const SETTLED: Duration = Duration::from_millis(500);

/// Asks for as long as the manager runs. Where there is no answer, the last one counts.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut is_told = false;
    loop {
        // Before it is asked: what changes meanwhile may not be in the answer.
        let seen = shared.paths();
        match tokio::time::timeout(LIMIT, ask()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        {
            Ok(metered) => {
                is_told = false;
                shared.set_metered(metered);
            }
            Err(error) if !std::mem::replace(&mut is_told, true) => {
                tracing::warn!(%error, "nmcli does not tell what costs money");
            }
            Err(_) => {}
        }
        let _ = tokio::time::timeout(AGAIN, shared.others_than(&seen)).await;
        tokio::time::sleep(SETTLED).await;
    }
}

/// The interfaces that cost money.
async fn ask() -> io::Result<BTreeSet<String>> {
    let mut command = Command::new("nmcli");
    command.args(ARGS).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut said = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(MOST).read_to_end(&mut said).await?;
    }
    let status = child.wait().await?;
    match status.success() {
        true => Ok(metered(&String::from_utf8_lossy(&said))),
        false => Err(io::Error::other(format!("nmcli ended with {status}"))),
    }
}

/// The interfaces that are metered by what nmcli says. What it guesses counts, what it does not know doesn't.
fn metered(said: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut device = None;
    for line in said.lines() {
        if let Some(name) = line.strip_prefix(DEVICE) {
            device = Some(name.replace('\\', ""));
        } else if let Some(word) = line.strip_prefix(METERED)
            && word.split(' ').next() == Some("yes")
        {
            found.extend(device.take());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_networkmanager_says_or_guesses_to_be_metered_is() {
        let said = "GENERAL.DEVICE:wlan0\nGENERAL.METERED:yes\n\n\
                    GENERAL.DEVICE:wwan0\nGENERAL.METERED:yes (guessed)\n\n\
                    GENERAL.DEVICE:eth0\nGENERAL.METERED:no (guessed)\n\n\
                    GENERAL.DEVICE:lo\nGENERAL.METERED:unknown\n\n\
                    GENERAL.DEVICE:a\\:b\nGENERAL.METERED:yes\n";
        let found: Vec<String> = metered(said).into_iter().collect();
        assert_eq!(found, ["a:b", "wlan0", "wwan0"]);
    }

    #[test]
    fn what_is_something_else_names_nothing() {
        for said in [
            "",
            "\n\n",
            "GENERAL.METERED:yes\n",
            "GENERAL.DEVICE:eth0\n",
            "Error: NetworkManager is not running.",
        ] {
            assert!(metered(said).is_empty(), "{said:?}");
        }
        // A word without its interface is none of the one before.
        assert_eq!(metered("GENERAL.DEVICE:a\nGENERAL.METERED:yes\nGENERAL.METERED:yes\n").len(), 1);
    }
}
