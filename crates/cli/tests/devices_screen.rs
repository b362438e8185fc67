//! The page with devices and sessions, in a real terminal: a key moves a real session to a real device, and
//! the terminal is given back whatever ends the page.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::common::{LIMIT, World, terminal, wait_for};
use crate::typed::{Film, LARGE, connected, devices, expose, half, says, session, sum};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// A terminal with the page in it.
struct Screen {
    person: File,
    /// The program's side of the terminal, and how it was before.
    end: File,
    before: Termios,
    seen: Arc<Mutex<Vec<u8>>>,
    program: Child,
}

impl Screen {
    fn start(mut command: Command) -> Self {
        let (person, end) = terminal(100, 24);
        let before = tcgetattr(&end).unwrap();
        let [input, output] = [(); 2].map(|()| end.try_clone().unwrap());
        let program = command.stdin(input).stdout(output).env("TERM", "xterm").spawn().unwrap();
        let (seen, mut reader) = (Arc::<Mutex<Vec<u8>>>::default(), person.try_clone().unwrap());
        let seeing = seen.clone();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut some) {
                seeing.lock().unwrap().extend_from_slice(&some[..n]);
            }
        });
        Self { person, end, before, seen, program }
    }

    fn types(&mut self, text: &str) {
        self.person.write_all(text.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        wait_for(&format!("the page shows {text}"), || self.text().contains(text).then_some(()));
    }

    /// The rows of the page that was drawn last.
    fn rows(&self) -> Vec<String> {
        let text = self.text();
        let page = text.rsplit("\x1b[J").nth(1).unwrap_or_default();
        let page = page.rsplit("\x1b[H").next().unwrap_or_default();
        page.split("\r\n").map(str::to_owned).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.program), signal).unwrap();
    }

    /// Waits for its end with this exit code. Returns what stands in the terminal then, which is as it was.
    #[track_caller]
    fn ends(&mut self, code: i32) -> String {
        let status = wait_for("the page ends", || self.program.try_wait().unwrap());
        assert_eq!(status.code(), Some(code), "{:?}", self.text());
        self.shows("\x1b[?25h\x1b[?1049l");
        let after = tcgetattr(&self.end).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        self.text().rsplit("\x1b[?1049l").next().unwrap().to_owned()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn a_key_moves_a_running_session_to_the_device_that_is_chosen() {
    let (world, _names) = devices();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let mut agent = world.start("desk", &["agent", "--as", "desk.ada@example.org", "--json"]);
    says(&mut agent, "ready");
    let (forward, _program, first) = half(&world, &ticket);
    let id = session(&world, "phone")["id"].as_str().unwrap().to_owned();
    let mut screen = Screen::start(world.command("phone", &["devices", "screen"]));
    screen.shows("desk.ada@example.org");
    screen.shows(&format!("> {}", &id[..8]));
    screen.shows("/s down, ");
    screen.types("\r");
    screen.shows(&format!("{} went on at desk", &id[..8]));
    says(&mut agent, "handed");
    says(&mut agent, "taken");
    assert!(forward.output(LIMIT).succeeded().stderr.contains("went on at desk"));
    screen.shows("nothing here could move now");
    screen.types("q");
    screen.ends(0);
    let at: SocketAddr = says(&mut agent, "port")["listening"].as_str().unwrap().parse().unwrap();
    let mut program = connected(at);
    film.may_go_on.store(true, Ordering::SeqCst);
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    assert_eq!(sum(&[first, second].concat()), sum(&Film::bytes()));
    assert_eq!(film.connections.load(Ordering::SeqCst), 1, "the server saw one connection");
}

#[test]
fn where_no_agent_takes_it_the_page_says_at_its_end_what_does() {
    let (world, _names) = devices();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let (forward, _program, first) = half(&world, &ticket);
    let id = session(&world, "phone")["id"].as_str().unwrap().to_owned();
    let mut screen = Screen::start(world.command("phone", &["devices", "screen"]));
    screen.shows("desk.ada@example.org");
    screen.shows(&format!("> {}", &id[..8]));
    screen.types("m");
    screen.shows("no agent of desk takes it");
    screen.types("q");
    screen.ends(0);
    let command = wait_for("a whole line behind the page", || {
        let text = screen.text();
        let behind = text.rsplit("\x1b[?1049l").next()?.split_once("whimbrel take ")?.1.to_owned();
        behind.contains('\n').then_some(behind)
    });
    let ticket = command.split_whitespace().nth(2).unwrap();
    let mut take = world.start("desk", &["take", &id[..8], "--from", ticket, "--json"]);
    let at: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    forward.output(LIMIT).succeeded();
    let mut program = connected(at);
    film.may_go_on.store(true, Ordering::SeqCst);
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    assert_eq!(sum(&[first, second].concat()), sum(&Film::bytes()));
}

/// A program's connection by way of a SOCKS proxy.
fn by_socks(proxy: &str, to: SocketAddr) -> TcpStream {
    let mut program = TcpStream::connect(proxy).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    program.write_all(&[5, 1, 0]).unwrap();
    program.read_exact(&mut [0; 2]).unwrap();
    let port = to.port().to_be_bytes();
    program.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]]).unwrap();
    let mut answer = [0; 10];
    program.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1], 0, "it is connected");
    program
}

#[test]
fn a_key_moves_a_session_of_a_gateway() {
    let (world, _names) = devices();
    let film = Film::default();
    let (to, [phone, desk]) = (film.start(), ["phone", "desk"].map(|device| world.id(device)));
    let gate = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1", "--allow", &phone];
    let mut gateway = world.start("gate", &[&gate[..], &["--allow", &desk]].concat());
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    let socks = ["proxy", "socks", "--listen", "127.0.0.1:0", "--json", "--through", &ticket];
    let mut socks = world.start("phone", &socks);
    let mut old = by_socks(socks.next_json()["listening"].as_str().unwrap(), to);
    let mut first = vec![0; LARGE / 2];
    old.read_exact(&mut first).unwrap();
    let mut screen = Screen::start(world.command("phone", &["devices", "screen", "--through", &ticket]));
    screen.shows("desk.ada@example.org");
    screen.shows(&format!("  {to}"));
    screen.types("\r");
    screen.shows("; its agent does, or: whimbrel take ");
    let said = screen.text();
    let id = said.split_once("desk may take ").unwrap().1.split_once(';').unwrap().0;
    let mut take = world.start("desk", &["take", id, "--through", &ticket, "--json"]);
    let at: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let mut program = connected(at);
    film.may_go_on.store(true, Ordering::SeqCst);
    // What the old program's kernel had when it was let go, because the film went on before, is its own.
    old.set_read_timeout(Some(LIMIT)).unwrap();
    let mut kept = Vec::new();
    let _ = old.read_to_end(&mut kept);
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    let (whole, film_bytes) = ([first, kept, second].concat(), Film::bytes());
    let differs = whole.iter().zip(&film_bytes).position(|(one, other)| one != other);
    assert_eq!((whole.len(), differs), (film_bytes.len(), None), "of {} there", LARGE / 2);
    assert_eq!(film.connections.load(Ordering::SeqCst), 1, "the server saw one connection");
    screen.types("q");
    screen.ends(0);
}

/// What ends a page.
type End = fn(&mut Screen);

#[test]
fn the_terminal_is_given_back_whatever_ends_the_page() {
    let world = World::new();
    let ends: [(End, i32); 5] = [
        (|screen| screen.types("q"), 0),
        (|screen| screen.types("\x03"), 130),
        (|screen| screen.signal(Signal::INT), 130),
        (|screen| screen.signal(Signal::TERM), 143),
        (|screen| screen.signal(Signal::HUP), 129),
    ];
    for (end, code) in ends {
        let mut screen = Screen::start(world.command("ada", &["devices", "screen"]));
        screen.shows("none yet");
        screen.shows("nothing here could move");
        end(&mut screen);
        assert_eq!(screen.ends(code), "");
    }
}

#[test]
fn the_page_is_as_large_as_the_terminal_also_when_that_changes() {
    let world = World::new();
    let mut screen = Screen::start(world.command("ada", &["devices", "screen"]));
    screen.shows("none yet");
    wait_for("24 rows", || (screen.rows().len() == 24).then_some(()));
    for (columns, rows) in [(30, 6), (200, 50), (9, 1)] {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen.person, size).unwrap();
        screen.signal(Signal::WINCH);
        wait_for("a page of that size", || {
            let shown = screen.rows();
            // What is bold or in reverse is so by four bytes before, and what ends it.
            let fits = |row: &String| {
                let text = row.replace("\x1b[K", "").replace("\x1b[0m", "");
                let text = text.replace("\x1b[1m", "").replace("\x1b[7m", "");
                text.chars().count() < usize::from(columns)
            };
            (shown.len() == usize::from(rows) && shown.iter().all(fits)).then_some(())
        });
    }
    screen.types("q");
    screen.ends(0);
}

#[test]
fn without_a_terminal_there_is_no_page() {
    World::new().run("ada", &["devices", "screen"]).failed(2, &["needs a terminal", "whimbrel sessions"]);
}
