//! Runs the real program as real processes, with a home directory of its own for each user.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::lines;
pub use crate::waiting::wait_within;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
/// For whatever must come at all. Longer than the program itself waits for any answer (30 s), so that what it
/// says then is seen.
pub const LIMIT: Duration = Duration::from_secs(45);

/// A place for one test: users' homes, and a part of 127.0.0.0/8.
pub struct World {
    pub dir: TempDir,
    subnet: [u8; 2],
    service: Option<String>,
}

pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn json(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.stdout, self.stderr))
    }

    /// The program failed with this code and one line that has all of these in it.
    #[track_caller]
    pub fn failed(&self, code: i32, says: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{:?} {:?}", self.stdout, self.stderr);
        let stderr = self.stderr.trim_end();
        assert_eq!(stderr.lines().count(), 1, "not one line: {stderr}");
        assert!(stderr.starts_with("whimbrel: "), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        for part in says {
            assert!(stderr.contains(part), "no {part:?} in: {stderr}");
        }
    }

    #[track_caller]
    pub fn succeeded(&self) -> &Self {
        assert_eq!(self.status.code(), Some(0), "{:?} {:?}", self.stdout, self.stderr);
        self
    }
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        let mut subnet = [0; 2];
        getrandom::fill(&mut subnet).unwrap();
        Self { dir, subnet, service: None }
    }

    /// With a name service, which lives as long as the process that is returned.
    pub fn with_names() -> (Self, Process) {
        let mut world = Self::new();
        let names = world.serve_names(&[]);
        (world, names)
    }

    pub fn serve_names(&mut self, args: &[&str]) -> Process {
        let store = self.path("names.redb");
        let mut command =
            self.command("names", &["names", "serve", "--json", "--store", store.to_str().unwrap()]);
        if !args.contains(&"--operator") {
            command.args(["--allow", "any"]);
        }
        if !args.contains(&"--port") {
            command.args(["--port", "0"]);
        }
        let process = Process::start(command.args(args));
        self.service = Some(process.ready()["ticket"].as_str().unwrap().to_owned());
        process
    }

    pub fn service(&self) -> &str {
        self.service.as_ref().unwrap()
    }

    pub fn set_service(&mut self, service: &str) {
        self.service = Some(service.to_owned());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn address(&self, user: &str) -> String {
        let last = user.bytes().fold(7u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)).clamp(2, 250);
        format!("127.{}.{}.{last}", self.subnet[0] | 1, self.subnet[1])
    }

    /// The program as `user` runs it.
    pub fn command(&self, user: &str, args: &[&str]) -> Command {
        self.command_of(Path::new(PROGRAM), user, args)
    }

    /// A program as `user` runs it.
    pub fn command_of(&self, program: &Path, user: &str, args: &[&str]) -> Command {
        let home = self.path(user);
        std::fs::create_dir_all(home.join("run")).unwrap();
        let mut command = Command::new(program);
        command
            .args(args)
            .args(["--address", &self.address(user)])
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", home.join("run"))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("RUST_LOG")
            .current_dir(&home)
            .stdin(Stdio::null());
        if let Some(service) = self.service.as_ref().filter(|_| user != "names" && !args.contains(&"--names"))
        {
            command.args(["--names", service]);
        }
        command
    }

    pub fn start(&self, user: &str, args: &[&str]) -> Process {
        Process::start(&mut self.command(user, args))
    }

    #[track_caller]
    pub fn run(&self, user: &str, args: &[&str]) -> Output {
        Process::start(&mut self.command(user, args)).output(LIMIT)
    }

    #[track_caller]
    pub fn id(&self, user: &str) -> String {
        self.run(user, &["id"]).succeeded().stdout.trim().to_owned()
    }

    /// A user's file in the configuration directory.
    pub fn config(&self, user: &str, name: &str) -> PathBuf {
        let directory = self.path(user).join(".config/whimbrel");
        std::fs::create_dir_all(&directory).unwrap();
        directory.join(name)
    }
}

/// A running program; killed when dropped.
pub struct Process {
    pub child: Child,
    /// Its arguments.
    words: String,
    lines: Receiver<String>,
    /// What it has said so far to its user.
    stderr: Arc<Mutex<String>>,
    readers: Option<[JoinHandle<()>; 2]>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let (lines, output) = lines::of(stdout);
        let stderr = Arc::<Mutex<String>>::default();
        let said = stderr.clone();
        let messages = std::thread::spawn(move || {
            let mut line = String::new();
            while errors.read_line(&mut line).is_ok_and(|length| length > 0) {
                said.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Self { child, words, lines, stderr, readers: Some([output, messages]) }
    }

    /// The next line of output.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no line in time"),
            Err(RecvTimeoutError::Disconnected) => {
                let output = self.finish(LIMIT);
                panic!("ended with {}: {:?} {:?}", output.status, output.stdout, output.stderr)
            }
        }
    }

    /// The next line of output; `None` if it ended without one.
    pub fn try_line(&mut self) -> Option<String> {
        self.lines.recv_timeout(LIMIT).ok()
    }

    /// Waits until it has said this so many times to its user.
    #[track_caller]
    pub fn until_said(&self, text: &str, times: usize) {
        let start = Instant::now();
        while self.stderr.lock().unwrap().matches(text).count() < times {
            assert!(start.elapsed() < LIMIT, "not said in time: {:?}", self.stderr.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has said so far to its user.
    pub fn said(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// The first line, which a command prints in JSON when it is ready.
    #[track_caller]
    pub fn next_json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    #[track_caller]
    fn ready(&self) -> Value {
        let line = self.lines.recv_timeout(LIMIT).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills it as hard as can be.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    #[track_caller]
    pub fn output(mut self, limit: Duration) -> Output {
        self.finish(limit)
    }

    #[track_caller]
    pub fn finish(&mut self, limit: Duration) -> Output {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                start.elapsed() < limit,
                "`{}` did not end in time; it said {:?} {:?}",
                self.words,
                self.lines.try_iter().collect::<Vec<_>>(),
                self.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        self.readers.take().unwrap().into_iter().for_each(|reader| reader.join().unwrap());
        let stdout: String = self.lines.try_iter().map(|line| line + "\n").collect();
        let stderr = std::mem::take(&mut *self.stderr.lock().unwrap());
        Output { status, stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP server that does `serve` with each connection, until the test ends.
pub fn tcp_server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(socket));
        }
    });
    address
}

/// Sends back in capitals what it gets, line by line; a last line when the input has ended.
pub fn shouting_server() -> SocketAddr {
    use std::io::Write as _;
    tcp_server(|socket| {
        let mut output = socket.try_clone().unwrap();
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            if writeln!(output, "{}", line.to_uppercase()).is_err() {
                return;
            }
        }
        let _ = writeln!(output, "THE END");
    })
}

/// A server that says who it is, and ends.
pub fn page(text: &'static str) -> String {
    tcp_server(move |mut socket| {
        use std::io::Write as _;
        let _ = writeln!(socket, "{text}");
    })
    .to_string()
}

/// A port that nobody listens on.
pub fn dead_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A terminal of this size: its side of a person, and that of a program.
pub fn terminal(columns: u16, rows: u16) -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let name = ptsname(&person, Vec::new()).unwrap();
    let program = std::fs::OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&person, size).unwrap();
    (person.into(), program)
}

/// Waits until something is so.
#[track_caller]
pub fn wait_for<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    wait_within(LIMIT, what, check)
}

pub fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.len())
}
