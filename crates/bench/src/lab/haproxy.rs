//! HAProxy, beside which things are measured.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;
use whimbrel_lab::{Host, HostChild};

use super::program::{self, Folder};

/// How a section passes on what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Tcp,
    Http,
}

/// One place where it listens, and where that leads.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub(crate) mode: Mode,
    pub(crate) at: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Words behind the address where it listens, and behind the one where it leads.
    pub(crate) more: [String; 2],
}

impl Section {
    pub(crate) fn new(mode: Mode, at: SocketAddr, to: SocketAddr) -> Self {
        Self { mode, at, to, more: Default::default() }
    }
}

/// Its configuration, with room for so many connections.
fn config(sections: &[Section], room: usize) -> String {
    let mut text = format!(
        "global\n  maxconn {room}\ndefaults\n  maxconn {room}\n  timeout connect 5s\n  timeout client 1h\n  \
         timeout server 1h\n"
    );
    for (number, Section { mode, at, to, more: [bind, server] }) in sections.iter().enumerate() {
        let mode = if *mode == Mode::Http { "http" } else { "tcp" };
        // To a string it cannot fail.
        let _ = write!(
            text,
            "listen part{number}\n  mode {mode}\n  bind {at} {bind}\n  server behind {to} {server}\n"
        );
    }
    text
}

/// Starts it, and waits until it listens in all places.
pub(crate) fn start(host: &Host, folder: &Folder, sections: &[Section], room: usize) -> Result<HostChild> {
    let haproxy = program::find("haproxy", "haproxy")?;
    let file = folder.join(&format!("haproxy-{}.cfg", host.name()));
    std::fs::write(&file, config(sections, room))?;
    let child = program::start(host, &haproxy, &["-db", "-q", "-f", &file.to_string_lossy()])?;
    sections.iter().try_for_each(|section| program::wait_for_port(host, section.at))?;
    Ok(child)
}

/// The first line of what it says of itself.
pub(crate) fn version(host: &Host) -> Result<String> {
    let printed = program::run(host, &program::find("haproxy", "haproxy")?, &["-v"])?;
    Ok(printed.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_says_where_it_listens_and_leads() {
        let [at, to] = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 80)));
        let tls =
            Section { more: ["ssl crt a.pem".into(), String::new()], ..Section::new(Mode::Tcp, at, to) };
        let text = config(&[Section::new(Mode::Http, at, to), tls], 100);
        assert!(text.starts_with("global\n  maxconn 100\n"), "{text}");
        assert!(
            text.contains("listen part0\n  mode http\n  bind 127.0.0.1:80 \n  server behind 127.0.0.2:80 \n")
        );
        assert!(text.contains("listen part1\n  mode tcp\n  bind 127.0.0.1:80 ssl crt a.pem\n"), "{text}");
    }
}
