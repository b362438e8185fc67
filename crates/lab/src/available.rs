//! Whether networks can be built, and the way in without root.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;

use rustix::process::Signal;

use crate::{Error, Unavailable, sys, tool};

/// Set in processes that were started again inside a user namespace.
const INSIDE: &str = "WHIMBREL_LAB_INSIDE";

/// Whether the lab works in this very process.
pub(crate) fn here() -> Result<(), Unavailable> {
    static ANSWER: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    ANSWER.get_or_init(|| common_needs().and_then(|()| try_tap())).clone()
}

/// Whether the lab works in a process inside a new user namespace.
fn inside_user_namespace() -> Result<(), Unavailable> {
    static ANSWER: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    let probe = || {
        common_needs()?;
        let unshared = unshare()?.arg("true").stdin(Stdio::null()).output();
        let refused = |reason: String| Err(Unavailable::NoNamespaces(reason));
        match unshared {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => refused(String::from_utf8_lossy(&output.stderr).trim().into()),
            Err(error) => refused(error.to_string()),
        }
    };
    ANSWER.get_or_init(probe).clone()
}

fn common_needs() -> Result<(), Unavailable> {
    for name in ["ip", "nft"] {
        tool::find(name).map_err(|_| Unavailable::NoTool(name))?;
    }
    // The device's file permissions hold inside a user namespace as well.
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    device.map(drop).map_err(|error| Unavailable::NoTap(error.to_string()))
}

/// Makes a TAP device in a namespace of a thread that then ends, and both with it.
fn try_tap() -> Result<(), Unavailable> {
    let attempt = || {
        sys::new_network_namespace().map_err(|error| Unavailable::NoNamespaces(error.to_string()))?;
        sys::open_tap("probe").map(drop).map_err(|error| Unavailable::NoTap(error.to_string()))
    };
    match thread::Builder::new().spawn(attempt).map(thread::JoinHandle::join) {
        Ok(Ok(answer)) => answer,
        _ => Err(Unavailable::NoNamespaces("no thread could be started".into())),
    }
}

fn unshare() -> Result<Command, Unavailable> {
    let path = tool::find("unshare").map_err(|_| Unavailable::NoTool("unshare"))?;
    let mut command = Command::new(path);
    command.args(["--user", "--map-root-user", "--net", "--"]).env(INSIDE, "1");
    Ok(command)
}

/// Says whether the calling test should go on, in this process.
///
/// - As root, or wherever networks can be built: true.
/// - Else the test is run again, alone, in a new process inside a user namespace. If it fails there, this
///   panics with what it printed; if it passes, this is false, and the test should return at once, passed.
/// - Where even that is not possible: false, and the test counts as skipped, which standard error tells;
///   but if the environment says `CI=true`, this panics.
///
/// ```no_run
/// # // Not run: what is a `#[test]` does nothing in an example.
/// #[test]
/// fn packets_arrive() {
///     if !whimbrel_lab::require!() { return; }
///     // …
/// }
/// ```
/// It also works inside `#[tokio::test]` functions. Programs call [`enter()`] instead.
#[macro_export]
macro_rules! require {
    () => {{
        // The only way to learn the name of the test it stands in: a type's name contains its function's.
        fn here() {}
        $crate::require_for(::std::any::type_name_of_val(&here))
    }};
}

/// Does the work of [`require!`], for a function inside the test of that full name.
pub fn require_for(inner_function: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        // Set here rather than before, because the kernel clears it when the user namespace is made.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    }
    let Err(reason) = here() else { return true };
    let test = test_name(inner_function);
    if std::env::var_os(INSIDE).is_none() {
        match inside_user_namespace() {
            Ok(()) => {
                run_inside(&test);
                return false;
            }
            Err(reason) => skip(&test, reason),
        }
    } else {
        skip(&test, reason);
    }
    false
}

/// `crate::module::test::{{closure}}::here` is run by libtest as `module::test`.
fn test_name(inner_function: &str) -> String {
    let parts: Vec<_> = inner_function.split("::").filter(|part| !part.starts_with("{{")).collect();
    match parts.as_slice() {
        [_crate, path @ .., _inner] => path.join("::"),
        _ => inner_function.into(),
    }
}

/// Counts a test, or a part of one, as skipped, which standard error tells.
///
/// # Panics
/// If the environment says `CI=true`: there, nothing may be skipped.
pub fn skip(test: &str, reason: impl Display) {
    let message = format!("skipped {test}: {reason}");
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        panic!("{message} (skipping is not allowed under CI=true)");
    }
    report(&message);
}

/// Writes past libtest, which hides what passed tests print.
fn report(message: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "{message}");
}

fn run_inside(test: &str) {
    let output = unshare().map_err(|error| error.to_string()).and_then(|mut unshare| {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        unshare.arg(program).args(["--exact", test, "--nocapture", "--include-ignored"]);
        unshare.stdin(Stdio::null()).output().map_err(|error| error.to_string())
    });
    let output = match output {
        Ok(output) => output,
        Err(error) => panic!("cannot run {test} inside a user namespace: {error}"),
    };
    let printed =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{test} failed inside a user namespace:\n{printed}");
    assert!(printed.contains("1 passed"), "{test} was not found when run again:\n{printed}");
    print!("{printed}");
}

/// For programs, as the first thing they do: if networks cannot be built here, starts the program again
/// inside a user namespace. Returns where the lab works, or with the reason why it does not.
pub fn enter() -> crate::Result<()> {
    let Err(reason) = here() else { return Ok(()) };
    if std::env::var_os(INSIDE).is_some() {
        return Err(reason.into());
    }
    inside_user_namespace()?;
    let failed = |source| Error::Spawn { what: "this program again".into(), source };
    let program = std::env::current_exe().map_err(failed)?;
    Err(failed(unshare()?.arg(program).args(std::env::args_os().skip(1)).exec()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_the_name_libtest_uses() {
        for full in [
            "links::delay::here",
            "links::delay::{{closure}}::here",
            "links::delay::{{closure}}::{{closure}}::here",
        ] {
            assert_eq!(super::test_name(full), "delay");
        }
        assert_eq!(super::test_name("lab::shaper::tests::loss::here"), "shaper::tests::loss");
    }
}
