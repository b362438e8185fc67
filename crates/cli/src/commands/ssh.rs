//! `whimbrel ssh`: OpenSSH's client, over whimbrel.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args;
use whimbrel_base::EndpointId;

use crate::failure::Failure;
use crate::network::Peer;
use crate::options::{Globals, after};
use crate::output;

/// Options of ssh that have a value, as in its `getopt`.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOoPpQRSWw";

/// Run ssh to a peer that exposes an ssh server
///
/// Everything is passed to ssh as it is, but for the host: a name or a ticket of a peer. Options before
/// the host that whimbrel has too (-q, -v, --names, …) are whimbrel's. The exit code is that of ssh.
/// `whimbrel setup ssh` lets ssh, scp, rsync and git do without this command. With `--session` the remote
/// shell goes on when its user does: the same command on another device shows it there, and detaches it here.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel ssh ada@ssh.home.ada@example.org
  whimbrel ssh -p 22 -L 8080:localhost:80 ada@ssh.home.ada@example.org uptime
  whimbrel ssh --session work ada@ssh.home.ada@example.org"))]
pub(crate) struct Ssh {
    /// Keep the remote shell by this name, in tmux or screen there. Stands before all that is ssh's
    #[arg(long, value_name = "NAME", value_parser = session_name)]
    session: Option<String>,
    /// [USER@] and a name, an id or a ticket, with ssh's options before and a command behind it
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "HOST")]
    args: Vec<OsString>,
}

pub(crate) fn run(globals: &Globals, args: Ssh) -> Result<()> {
    let at = host_at(&args.args).ok_or_else(|| {
        Failure::usage("which host? write `whimbrel ssh [USER@]NAME`; see `whimbrel ssh --help`")
    })?;
    let host = args.args[at].to_str().unwrap_or_default();
    let (user, peer) = destination(host).map_err(Failure::usage)?;
    peer.check(globals)?;
    tell_of_label(globals, host, &peer);
    let proxy = format!("ProxyCommand={} pipe -- {}", this_program(globals)?, peer.as_argument());
    let host = user.map_or_else(|| alias(&peer), |user| format!("{user}@{}", alias(&peer)));
    let (before, behind) = (&args.args[..at], &args.args[at + 1..]);
    let mut ssh = Command::new("ssh");
    ssh.arg("-o").arg(proxy);
    if args.session.is_some() {
        if !behind.is_empty() {
            return Err(Failure::usage("--session keeps a shell: leave out the command behind the host"));
        }
        // A terminal there, although there is a command.
        ssh.arg("-t");
    }
    ssh.args(before).arg(host).args(behind).args(args.session.as_deref().map(keeping));
    // Only returns if it cannot be run.
    Err(anyhow::Error::new(ssh.exec())).context("cannot run ssh; install OpenSSH's client")
}

/// The name of a session, which is a word for any shell, for tmux and for screen.
fn session_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_name = (1..=32).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(fits);
    is_name.then(|| text.to_owned()).ok_or_else(|| "a name is 1 to 32 letters, digits, - and _".to_owned())
}

/// What the user's shell there runs: what keeps a session by this name, begun if there is none, and taken
/// from where it was shown.
fn keeping(session: &str) -> String {
    // Within the quotes it is a POSIX shell's, whatever the user's is.
    format!(
        "exec sh -c '\
         if command -v tmux >/dev/null 2>&1; then exec tmux new-session -A -D -s {session}; fi; \
         if command -v screen >/dev/null 2>&1; then exec screen -d -R -S {session}; fi; \
         echo \"whimbrel: neither tmux nor screen is installed here; install one of them\" >&2; \
         exit 127'"
    )
}

/// Where ssh's host is among its arguments.
fn host_at(args: &[OsString]) -> Option<usize> {
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        let Some(letters) = arg.to_str().and_then(|arg| arg.strip_prefix('-')) else { return Some(at) };
        if letters == "-" {
            return (at + 1 < args.len()).then_some(at + 1);
        }
        // `-p22` has its value in it, and `-p` in the next argument.
        let valued = letters.find(|letter| WITH_VALUE.contains(letter));
        at += if valued.is_some_and(|place| place + 1 == letters.len()) { 2 } else { 1 };
    }
    None
}

/// `USER@NAME`: a name has an '@' of its own.
fn destination(text: &str) -> Result<(Option<String>, Peer), String> {
    let is_key = text.rsplit('@').next().is_some_and(|last| last.parse::<EndpointId>().is_ok());
    let own = usize::from(!text.contains("whimbrel:") && !text.contains('+') && !is_key);
    let (user, peer) = match text.split_once('@') {
        Some((user, peer)) if text.matches('@').count() > own => (Some(user.to_owned()), peer),
        _ => (None, text),
    };
    Ok((user, peer.parse()?))
}

/// `ada@desk` is a name. Says so where something is called *desk*, which may have been meant.
fn tell_of_label(globals: &Globals, host: &str, peer: &Peer) {
    let (Peer::Name(_), Some((user, label))) = (peer, host.split_once('@')) else { return };
    let other = label.parse::<Peer>().ok().filter(|other| matches!(other, Peer::Personal(_)));
    if other.is_some_and(|other| other.check(globals).is_ok()) {
        let text = format!("{host} is taken for a name; for what you call {label} write -l {user} {label}");
        output::note(globals.quiet, text);
    }
}

/// What ssh takes for the host: it may have no '@'.
fn alias(peer: &Peer) -> String {
    let name = match peer {
        Peer::Name(name) => Some(name),
        Peer::Pinned(pin) => Some(&pin.name),
        Peer::Ticket(ticket) => ticket.name(),
        Peer::Key(_) | Peer::Personal(_) => None,
    };
    match (name, peer) {
        (Some(name), _) => name.to_string().replace('@', "+"),
        (None, peer) => format!("whimbrel-{peer}"),
    }
}

/// This program with the flags that it was started with, as ssh and the shell in it read them.
pub(crate) fn this_program(globals: &Globals) -> Result<String> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut words = vec![program.into_os_string()];
    words.extend(flags(globals)?);
    words.iter().map(|word| quoted(word)).collect::<Result<Vec<_>>>().map(|words| words.join(" "))
}

/// The flags that say whom and what to trust, and how to connect. All fields are named, so that a new flag is
/// either passed on or left out on purpose.
fn flags(globals: &Globals) -> Result<Vec<OsString>> {
    let Globals {
        config,
        identity,
        names,
        prove_domain,
        dns,
        pin,
        lan,
        carrier,
        limits,
        address,
        // Where the above come from, and not a flag.
        source: _,
        // Another program may have the port, and what is said belongs to ssh.
        port: _,
        verbose: _,
        log_format: _,
        quiet: _,
        until_eof: _,
    } = globals;
    let mut words = Vec::new();
    let mut flag = |name: &str, value: &OsStr| words.extend([name.into(), value.to_owned()]);
    for (name, file) in [("--config", config), ("--identity", identity), ("--limits", limits)] {
        if let Some(file) = file {
            flag(name, absolute(file)?.as_os_str());
        }
    }
    let one = |value: Option<String>| -> Vec<String> { value.into_iter().collect() };
    let several = [
        ("--names", one(names.as_ref().map(ToString::to_string))),
        ("--prove-domain", prove_domain.iter().map(ToString::to_string).collect()),
        ("--dns", one(dns.map(|dns| dns.to_string()))),
        ("--carrier", one(carrier.as_ref().map(ToString::to_string))),
        ("--pin", pin.iter().map(ToString::to_string).collect()),
        ("--address", address.iter().map(ToString::to_string).collect()),
    ];
    for (name, values) in several {
        values.iter().for_each(|value| flag(name, value.as_ref()));
    }
    if *lan {
        words.push("--lan".into());
    }
    Ok(words)
}

fn absolute(file: &std::path::Path) -> Result<std::path::PathBuf> {
    std::path::absolute(file).with_context(|| format!("cannot tell where {} is", file.display()))
}

/// A word for ssh, which looks for `%`, and then for a shell.
fn quoted(word: &OsStr) -> Result<String> {
    let word = word.to_str().with_context(|| format!("{} is no text that ssh can read", word.display()))?;
    if word.contains('\n') {
        return Err(Failure::usage("a path with a line break cannot be given to ssh"));
    }
    let word = word.replace('%', "%%");
    if word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:=@%,".contains(c)) {
        return Ok(word);
    }
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(line: &str) -> Option<usize> {
        host_at(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_host_is_found_among_sshs_arguments() {
        assert_eq!(at("host"), Some(0));
        assert_eq!(at("-p 22 host -x"), Some(2));
        assert_eq!(at("-p22 -vvo A=b host"), Some(3));
        assert_eq!(at("-N -- host"), Some(2));
        assert_eq!(at("-p 22"), None);
        assert_eq!(at("-V"), None);
    }

    #[test]
    fn a_session_is_kept_by_tmux_or_screen_and_without_both_it_is_said_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/sh", folder.path().join("sh")).unwrap();
        let run = || {
            let mut shell = Command::new("/bin/sh");
            let output = shell.arg("-c").arg(keeping("work")).env("PATH", folder.path()).output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        let (code, _, said) = run();
        assert_eq!((code, said.contains("neither tmux nor screen")), (Some(127), true), "{said}");
        // A program that was written here could not be run while another test's process has it open. This one
        // says what it is asked.
        let echo = std::path::Path::new("/bin/echo");
        for (program, says) in [("screen", "-d -R -S work\n"), ("tmux", "new-session -A -D -s work\n")] {
            std::os::unix::fs::symlink(echo, folder.path().join(program)).unwrap();
            assert_eq!(run(), (Some(0), says.to_owned(), String::new()));
        }
    }

    #[test]
    fn names_of_sessions_are_words() {
        for name in ["work", "a", "Work-2_b"] {
            assert_eq!(session_name(name).as_deref(), Ok(name));
        }
        for wrong in ["", "-a", "a b", "a.b", "a:b", "a'b", "ä", "$(x)", &"x".repeat(33)] {
            session_name(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_session_is_named_before_what_is_sshs() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            ssh: Ssh,
        }
        let read = |line: &str| Line::try_parse_from(line.split(' ')).map(|line| line.ssh).unwrap();
        let Ssh { session, args } = read("ssh --session work -p 22 host");
        assert_eq!(
            (session.as_deref(), args),
            (Some("work"), ["-p", "22", "host"].map(OsString::from).to_vec())
        );
        assert_eq!(
            read("ssh -p 22 host --session work").args.len(),
            5,
            "all behind ssh's first word is its own"
        );
    }

    #[test]
    fn users_and_names_are_told_apart() {
        let read = |text: &str| {
            let (user, peer) = destination(text).unwrap();
            (user.unwrap_or_default(), alias(&peer))
        };
        let host = "ssh.home.ada+example.org".to_owned();
        assert_eq!(read("root@ssh.home.ada@example.org"), ("root".to_owned(), host.clone()));
        assert_eq!(read("root@ssh.home.ada+example.org"), ("root".to_owned(), host.clone()));
        assert_eq!(read("ssh.home.ada@example.org"), (String::new(), host));
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let by_key = format!("whimbrel-{id}");
        assert_eq!(read(&format!("root@{id}")), ("root".to_owned(), by_key.clone()));
        assert_eq!(read(&id.to_string()), (String::new(), by_key));
        destination("local_host").unwrap_err();
        assert!(matches!(destination("desk"), Ok((None, Peer::Personal(_)))));
        assert!(matches!(destination("ada@desk"), Ok((None, Peer::Name(_)))), "real names come first");
    }

    #[test]
    fn what_is_trusted_and_how_to_connect_is_passed_on() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            globals: Globals,
        }
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let names = format!("{id}@192.0.2.1:4433");
        let pin = format!("ada@example.org={id}");
        let line = [
            "whimbrel",
            "--config",
            "/c",
            "--identity",
            "/i",
            "--limits",
            "/l",
            "--names",
            &names,
            "--prove-domain",
            "example.org",
            "--prove-domain",
            "any",
            "--dns",
            "192.0.2.53:53",
            "--carrier",
            "tcp",
            "--pin",
            &pin,
            "--address",
            "192.0.2.7",
            "--lan",
        ];
        let first = Line::parse_from(line).globals;
        let again = std::iter::once("whimbrel".into()).chain(flags(&first).unwrap());
        let again = Line::parse_from(again).globals;
        assert_eq!(format!("{again:?}"), format!("{first:?}"));
        assert_eq!(flags(&first).unwrap().len(), line.len() - 1);
    }

    #[test]
    fn words_are_safe_in_a_shell() {
        assert_eq!(quoted("/a/b-c".as_ref()).unwrap(), "/a/b-c");
        assert_eq!(quoted("/a b/%h'$(x)".as_ref()).unwrap(), r"'/a b/%%h'\''$(x)'");
        quoted("a\nb".as_ref()).unwrap_err();
    }
}
