//! Programs on machines of the lab: ours, and a web server that knows nothing of it.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use whimbrel_lab::{Host, HostChild, HostCommand};

use crate::waiting;

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
/// For whatever must come at all.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Where the web server listens, on a machine with that address.
pub const HTTP: &str = "203.0.113.80:8000";

/// The program, with this home directory, and with nothing of the environment of the test.
pub fn whimbrel(machine: &Host, home: &Path) -> HostCommand {
    fs::create_dir_all(home).unwrap();
    machine.command(PROGRAM).env("HOME", home).env("XDG_RUNTIME_DIR", home).with(|command| {
        for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "WHIMBREL_NAMES", "RUST_LOG"] {
            command.env_remove(name);
        }
        for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
    })
}

/// A command that says nothing and hears nothing.
pub fn silent(command: HostCommand) -> HostCommand {
    command.with(|command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    })
}

/// Starts a web server for these files.
pub fn web_server(machine: &Host, files: &Path) -> HostChild {
    let (host, port) = HTTP.split_once(':').unwrap();
    let python = machine.command("python3").args(["-m", "http.server", port, "--bind", host, "--directory"]);
    silent(python.arg(files)).spawn().unwrap()
}

/// Says to everybody who comes to this address of a machine what they say.
pub fn echo(machine: &Host, address: &str) {
    let listener = machine.run(|| TcpListener::bind(address)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            // A client that goes away is noticed by the test.
            std::thread::spawn(move || io::copy(&mut socket.try_clone()?, &mut socket));
        }
    });
}

/// Waits until a server is reached from a machine.
#[track_caller]
pub fn wait_for_server(from: &Host, address: &str) {
    wait_for(&format!("{address} listens"), || from.run(|| TcpStream::connect(address)).ok());
}

/// Waits until something is so.
#[track_caller]
pub fn wait_for<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    waiting::wait_within(LIMIT, what, check)
}

pub fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |file| file.len())
}

pub fn random(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}
