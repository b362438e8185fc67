//! User names for those who read the mail of that address: a real mail server (Python's aiosmtpd), which
//! prints what it gets.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Process, World, dead_port, wait_for};

/// Starts a mail server; `None` where there is no such program, which CI has.
fn mail_server() -> Option<(Process, SocketAddr)> {
    // The package's is that of the system, whatever another one comes first in the PATH.
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|path| Path::new(path).exists());
    let python = python.unwrap_or("python3");
    let mut look = Command::new(python);
    let has = look.args(["-c", "import aiosmtpd"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        assert!(
            std::env::var_os("CI").is_none(),
            "python3-aiosmtpd is missing; scripts/setup.sh installs it"
        );
        return None;
    }
    let at = dead_port();
    let mut command = Command::new(python);
    command.env("PYTHONUNBUFFERED", "1").args(["-m", "aiosmtpd", "-n", "-l", &at.to_string()]);
    command.args(["-c", "aiosmtpd.handlers.Debugging", "stdout"]);
    let server = Process::start(&mut command);
    // Not only a connection: one that is made of itself, where nobody listens yet, greets nobody.
    wait_for("the mail server", || greets(at).then_some(()));
    Some((server, at))
}

/// Whether a mail server is there.
fn greets(at: SocketAddr) -> bool {
    let Ok(stream) = TcpStream::connect(at) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).is_ok() && line.starts_with("220")
}

/// The code in the next mail, which is for this address.
fn code(server: &mut Process, to: &str) -> String {
    let mut for_them = false;
    for _ in 0..100 {
        let line = server.line();
        for_them |= line == format!("To: {to}");
        if let Some((_, code)) = line.split_once("--code ") {
            assert!(for_them, "the mail is for somebody else");
            return code.trim().to_owned();
        }
    }
    panic!("no code in 100 lines");
}

#[test]
fn a_user_name_is_for_who_reads_the_mail_of_that_address() {
    let Some((mut mails, at)) = mail_server() else { return };
    let relay = format!("smtp://{at}/names@example.org");
    let mut world = World::new();
    let _names = world.serve_names(&["--verify-mail", &relay]);
    let ada = "ada@example.org";
    let register = |machine: &str, code: &[&str]| {
        world.run(machine, &[&["id", "register", ada, "--json", "-q"], code].concat())
    };
    register("ada", &[]).failed(5, &["a code was sent to ada@example.org", "--code CODE"]);
    let first = code(&mut mails, ada);
    // Neither a guess, nor the code in another's hands.
    register("ada", &["--code", "yyyy-yyyy-yyyy-yyyy"]).failed(5, &["mistyped, used, or has ended"]);
    register("eve", &["--code", &first]).failed(5, &["mistyped, used, or has ended"]);
    assert_eq!(register("ada", &["--code", &first]).succeeded().json()["new"], true);
    register("ada", &["--code", &first]).failed(5, &["mistyped, used, or has ended"]);
    assert_eq!(register("ada", &[]).succeeded().json()["new"], false);
    // Her devices need no mail.
    let to = dead_port().to_string();
    let args = ["expose", "web.ada@example.org", "--to", &to, "--allow", "any", "--json", "-q"];
    world.start("ada", &args).next_json();
    let bob = ["expose", "bob@example.org", "--to", &to, "--allow", "any", "--json", "-q"];
    world.run("bob", &bob).failed(5, &["whimbrel id register bob@example.org"]);
}

#[test]
fn a_mail_server_that_is_away_is_told_and_nobody_is_registered() {
    let mut world = World::new();
    let relay = format!("smtp://{}", dead_port());
    let _names = world.serve_names(&["--verify-mail", &relay]);
    world.run("ada", &["id", "register", "ada@example.org", "-q"]).failed(5, &["can't send mail now"]);
    world.run("bob", &["names", "lookup", "ada@example.org", "-q"]).failed(3, &["not registered"]);
}
